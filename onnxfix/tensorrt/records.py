"""The options and results of a TensorRT build: frozen records that cross the sandbox's pipe."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from onnxfix.place import NOWHERE, Place

Stage = Literal["", "parse", "profile", "build"]
Status = Literal["accepted", "refused", "crash", "timeout", "memory", "error"]
Severity = Literal["error", "warning"]
#: The least, the usual and the greatest size of one dimension.
Sizes = tuple[int, int, int]
#: The least, the usual and the greatest of something, each as long as a shape or a flattened value.
Triple = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class TrtOptions:
    """The user's options for TensorRT.

    ``package`` is auto, tensorrt or tensorrt-rtx; ``compute_capability`` what to build for ("8.9", None: this machine's
    GPU, else 8.9). ``min_shapes``, ``opt_shapes`` and ``max_shapes`` are specs such as ``x:1x3``, also one text, or
    shapes by the names of inputs (``{"x": (1, 3)}``); inputs that they leave out get sizes derived from the model's
    symbols. ``target`` is the name of the target that the model is meant for. ``save_engine`` and
    ``timing_cache`` are files, ``plugins`` libraries that serve operators of the model. ``timeout`` is in seconds, for
    parsing and for building each, ``memory_mb`` bounds the child (None: three quarters of what is available).
    ``batch_sweep`` is the greatest batch of the sweep, 0 for none. ``benchmark`` asks for the engines' latency, where
    the rung trt-gpu runs them. For ``layers``: ``builds`` engines are built and compared, and tactics are written to
    the file ``save_tactics`` and read from ``load_tactics``.
    """

    package: Literal["auto", "tensorrt", "tensorrt-rtx"] = "auto"
    compute_capability: str | None = None
    min_shapes: tuple[str, ...] = ()
    opt_shapes: tuple[str, ...] = ()
    max_shapes: tuple[str, ...] = ()
    target: str = ""
    tf32: bool = False
    save_engine: str = ""
    timing_cache: str = ""
    plugins: tuple[str, ...] = ()
    timeout: float = 300.0
    memory_mb: int | None = None
    batch_sweep: int = 0
    benchmark: bool = False
    builds: int = 1
    save_tactics: str = ""
    load_tactics: str = ""

    def __post_init__(self) -> None:
        """The forms of the command line, for what has another one."""
        for name in ("min_shapes", "opt_shapes", "max_shapes"):
            object.__setattr__(self, name, tuple(_specs(getattr(self, name))))
        for name in ("save_engine", "timing_cache", "save_tactics", "load_tactics"):
            object.__setattr__(self, name, os.fspath(getattr(self, name)))
        named = (self.plugins,) if isinstance(self.plugins, (str, os.PathLike)) else self.plugins
        object.__setattr__(self, "plugins", tuple(os.path.abspath(os.fspath(path)) for path in named))
        if isinstance(self.compute_capability, float):
            object.__setattr__(self, "compute_capability", str(self.compute_capability))


def _specs(shapes: str | Sequence[str] | Mapping[str, Sequence[int]]) -> Iterable[str]:
    if isinstance(shapes, Mapping):
        return (f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    return (shapes,) if isinstance(shapes, str) else shapes


@dataclass(frozen=True)
class Issue:
    """One error or warning, verbatim from TensorRT.

    ``code`` is the parser's ErrorCode by name, ``source`` the file, line and function in TensorRT that objected,
    ``stack`` the local functions around the node, outermost first, ``layer`` the network layer that the builder named.
    ``count`` says how often the same text came. ``narrowed`` is what cutting the model showed where TensorRT named no
    node, in onnxfix's words; ``place`` is the node that fails alone, where there is one.
    """

    stage: Stage
    severity: Severity
    text: str
    place: Place = NOWHERE
    code: str = ""
    source: str = ""
    stack: tuple[str, ...] = ()
    layer: str = ""
    count: int = 1
    narrowed: str = ""

    @property
    def words(self) -> str:
        """``operator: text``, on one line, and what cutting the model showed."""
        words = " ".join(self.text.split())
        if words in ("", "false"):  # how the parser reports an unknown operator
            words = f"{words} ({self.code} at {self.source})".strip()
        words = f"{words}; {self.narrowed}" if self.narrowed else words
        return f"{self.place.op_type}: {words}" if self.place.op_type else words

    def repeats(self, other: Issue) -> bool:
        """Whether both report the same about the same place, whenever and however often."""
        return self._subject == other._subject

    @property
    def _subject(self) -> tuple[object, ...]:
        return self.at, self.place.op_type, " ".join(self.text.split())

    @property
    def at(self) -> Place | None:
        """The place, else the layer, else None."""
        if self.place.known:
            return self.place
        return Place(layer=self.layer) if self.layer else None

    def __str__(self) -> str:
        """``place: operator: text``, on one line."""
        return f"{self.at}: {self.words}" if self.at is not None else self.words


@dataclass(frozen=True)
class Ending(Issue):
    """How the process of a build ended: TensorRT reported nothing, and the text is onnxfix's."""


@dataclass(frozen=True)
class TargetOnly(Issue):
    """What the target has and the TensorRT that refused does not, in onnxfix's text: it says nothing of the model."""


@dataclass(frozen=True)
class Part:
    """A part of a model: so many ``nodes`` of ``of``. ``lacking`` has an issue for each of the others that is not
    judged for itself: only the TensorRT at hand lacks it. The others are around those, in the same branch or loop."""

    nodes: int
    of: int
    lacking: tuple[Issue, ...]

    @property
    def words(self) -> str:
        """``1,061 of 1,068 nodes; NonZero ×3, and 4 nodes around them, not judged``."""
        counts = Counter(one.place.op_type for one in self.lacking)
        names = ", ".join(f"{name} ×{count}" for name, count in counts.items())
        around = self.of - self.nodes - len(self.lacking)
        more = f", and {around:,} node{'s' * (around > 1)} around them," if around else ""
        return f"{self.nodes:,} of {self.of:,} nodes; {names}{more} not judged"


@dataclass(frozen=True)
class Profile:
    """An optimization profile: input name -> (min, opt, max).

    ``shapes`` holds shapes of inputs with dynamic dimensions, ``values`` flattened values of shape tensors (inputs
    whose values TensorRT must know when it builds). ``symbols`` bounds the sizes of symbolic dimensions (name ->
    min, opt, max) in inputs that ``shapes`` leaves out; a profile that was used has none. ``derived`` says that no
    user chose it; ``strict``, that a user did, and that an input with values only must be a shape tensor.
    """

    shapes: Mapping[str, Triple] = field(default_factory=dict)
    values: Mapping[str, Triple] = field(default_factory=dict)
    derived: bool = False
    symbols: Mapping[str, Sizes] = field(default_factory=dict)
    strict: bool = False

    def __bool__(self) -> bool:
        return bool(self.shapes or self.values or self.symbols)

    @staticmethod
    def of_feeds(feeds: Sequence[Mapping[str, Any]]) -> Profile:
        """A profile that covers test inputs: element by element the least, the last feed's, and the greatest.

        ``feeds`` map input names to arrays; other kinds of values are left out. Values are taken of integer and
        boolean tensors of up to 64 elements only: no shape tensor is larger. ``build`` ignores what it has no use for.

        Raises:
            ValueError: there is no feed, or one input has two ranks.
        """
        import numpy as np  # lazy: start-up

        if not feeds:
            raise ValueError("a profile needs at least one feed")
        shapes: dict[str, Triple] = {}
        values: dict[str, Triple] = {}
        for name, last in feeds[-1].items():
            arrays = [feed[name] for feed in feeds if name in feed]
            if not all(isinstance(one, (np.ndarray, np.generic)) for one in arrays):
                continue
            if len({one.ndim for one in arrays}) > 1:
                raise ValueError(f"input {name} has different ranks in different feeds")
            shapes[name] = spread([one.shape for one in arrays], last.shape)
            flat = [np.asarray(one).reshape(-1) for one in arrays]
            if last.dtype.kind in "iub" and last.size <= 64 and len({one.size for one in flat}) == 1:
                numbers = [tuple(int(v) for v in one) for one in flat]
                values[name] = spread(numbers, numbers[-1])
        return Profile(shapes, values)


def spread(rows: Sequence[Sequence[int]], usual: Sequence[int]) -> Triple:
    """The least and the greatest of each column, with ``usual`` between them."""
    columns = list(zip(*rows, strict=True))
    return tuple(map(min, columns)), tuple(usual), tuple(map(max, columns))


@dataclass(frozen=True)
class TrtBuild:
    """What TensorRT's parser and builder made of one model. No engine was executed for any of it.

    ``stage`` is where it was refused or died ("" when accepted, or when it did not come to parsing). ``layers``
    counts the imported network's layers by kind, as far as the parser came. ``profiles`` are the optimization
    profiles that were used, the first that was tried where none was accepted; ``attempts`` counts the profiles tried.
    ``engine_bytes`` is 0 without an engine. ``part`` is the part of the model that it is about (None: all of it).
    """

    status: Status
    stage: Stage = ""
    errors: tuple[Issue, ...] = ()
    warnings: tuple[Issue, ...] = ()
    layers: tuple[tuple[str, int], ...] = ()
    profiles: tuple[Profile, ...] = ()
    attempts: int = 0
    package: str = ""
    version: str = ""
    compute_capability: str = ""
    parse_seconds: float = 0.0
    build_seconds: float = 0.0
    engine_bytes: int = 0
    part: Part | None = None

    @property
    def accepted(self) -> bool:
        """Whether an engine was built."""
        return self.status == "accepted"

    @property
    def judged(self) -> bool:
        """Whether TensorRT processed the model, had the memory to, and refuses nothing only because it lacks what the
        target has; if not, nothing here is about the model."""
        began = self.status != "memory" and (self.status != "error" or self.stage != "")
        return began and not self.target_only

    @property
    def target_only(self) -> bool:
        """Whether it refuses only what the target has and it lacks itself."""
        return bool(self.errors) and all(isinstance(one, TargetOnly) for one in self.errors)

    @property
    def result(self) -> str:
        """The status, and whether it is that of a part."""
        return f"{self.status}{' in part' if self.part is not None else ''}"

    @property
    def layer_count(self) -> int:
        """How many layers the parser imported."""
        return sum(count for _, count in self.layers)

    @property
    def error_texts(self) -> list[str]:
        """The texts of all errors."""
        return [one.text for one in self.errors]

    @property
    def reason(self) -> str:
        """The first error on one line, "" when accepted."""
        return str(self.errors[0]) if self.errors else ""


@dataclass(frozen=True)
class Outside(Issue):
    """A node that TensorRT does not take, and why; ``remedy`` is the rule that brings it in, in a few words."""

    remedy: str = ""


@dataclass(frozen=True)
class Partition:
    """How ONNX Runtime's TensorRT provider cuts a model, as TensorRT's parser foretells it: the parser takes ``parts``
    of its ``nodes``, all but those ``outside``; the provider of this package gives it ``provided`` nodes. Nodes that
    are constant do not count. ``reason`` says why nothing is known."""

    nodes: int = 0
    parts: int = 0
    provided: int = 0
    outside: tuple[Outside, ...] = ()
    package: str = ""
    version: str = ""
    reason: str = ""

    RENDERED: ClassVar[tuple[str, ...]] = ("taken", "words")

    @property
    def taken(self) -> int:
        """How many nodes the parser takes."""
        return self.nodes - len(self.outside)

    @property
    def words(self) -> str:
        """``TensorRT takes 88 of 91 nodes, so ONNX Runtime's RTX provider takes none: all 91 run elsewhere``."""
        if self.reason:
            return f"how TensorRT cuts it is unknown: {self.reason}"
        extent = f"{self.parts:,} parts" if self.parts > 1 else "one part"
        if not self.outside:
            return f"TensorRT takes all {self.nodes:,} nodes in {extent}"
        least = f", so ONNX Runtime's RTX provider takes {self.provided or 'none'}"
        how = least if self.provided < self.taken else f" in {extent}" * (self.parts > 0)
        left = self.nodes - self.provided
        rest = f"{'all ' * (left == self.nodes)}{left:,} {'runs' if left == 1 else 'run'} elsewhere"
        return f"TensorRT takes {self.taken or 'none'} of {self.nodes:,} nodes{how}: {rest}"
