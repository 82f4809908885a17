"""What each check is asked, and the inputs that it runs models with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.files import Inputs, check_inputs, load_feeds
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import Assignment, Signature
from onnxfix.inputs.specialize import ResolvedSpecialization
from onnxfix.proof.compare.compare import Metrics, Terms
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.proof.verdict import FeedResult, FeedStatus
from onnxfix.runtime.effort import THOROUGH, Effort
from onnxfix.runtime.sandbox import Posted, Worker
from onnxfix.tensorrt.records import TrtOptions

if TYPE_CHECKING:
    from onnxfix.tensorrt.engine import Ran
    from onnxfix.tensorrt.lift.records import Lifted
    from onnxfix.tensorrt.records import TrtBuild

Fed = tuple[int, Feed | None]
"""What identifies inputs: ``FeedResult.fed``."""
Label = tuple[str, Feed | None, int]
"""What a result says of inputs: ``label``, ``feed`` and ``given`` of a ``FeedResult``."""
ENGINE = ".engine"  # suffix of the file for the engine of a model, beside that of its network
REMOTE = "onnxfix.proof.remote"
"""The module of the functions that checks call in the sandbox's child."""


@dataclass(eq=False)
class Networks:
    """Models of one proof by path: ``lifted`` are those whose network was read back, into ``folder``; ``begun`` are
    builds under way, all in the child of ``worker``. ``builds`` have ended; the file ``engine`` is that of an accepted
    one. ``ran`` are feeds that both models have run in ONNX Runtime; ``refused`` are those that the original refuses
    there, if it accepts none."""

    folder: Path
    lifted: dict[Path, Lifted] = field(default_factory=dict)
    begun: dict[Path, Posted] = field(default_factory=dict)
    builds: dict[Path, TrtBuild] = field(default_factory=dict)
    worker: Worker | None = None
    ran: tuple[Feed, ...] = ()
    refused: tuple[Feed, ...] = ()
    _files: dict[Path, Path] = field(default_factory=dict)

    def place(self, path: Path) -> Path:
        """The file for the network of a model; always the same for the same model."""
        return self._files.setdefault(path, self.folder / f"network{len(self._files)}.onnx")

    def engine(self, path: Path) -> Path:
        """The file for the engine of a model, where there is a GPU to execute it."""
        return self.place(path).with_suffix(ENGINE)

    def cancel(self) -> None:
        """End the builds that nobody waits for."""
        waiting, self.begun = self.begun, {}
        if self.worker is not None and any(one.outcome is None for one in waiting.values()):
            self.worker.close()


@contextmanager
def networks() -> Iterator[Networks]:
    """Networks for one proof, whose files and builds end with it."""
    with TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        found = Networks(Path(folder))
        try:
            yield found
        finally:
            found.cancel()


def read_feeds(known: Signature, inputs: Inputs) -> list[dict[str, Any]] | None:
    """The user's feeds for a model; None where there are none.

    Raises:
        UsageError: they cannot be read, or do not fit the model.
    """
    feeds = load_feeds(inputs)
    if feeds == []:
        raise UsageError("the given inputs contain no feed")
    return None if feeds is None else check_inputs(known, feeds)


@dataclass(frozen=True)
class Trial:
    """Inputs to run models with, and the outputs that are ``expected``. ``feed`` made them: None for inputs that the
    user gave, which ``given`` counts from 1."""

    label: str
    feed: Feed | None
    values: dict[str, Any]
    expected: Ran | None = None
    given: int = 0

    def result(
        self, status: FeedStatus, reason: str = "", metrics: Sequence[Metrics] = (), **more: Any
    ) -> FeedResult:
        """The result of a run with these inputs."""
        return FeedResult(self.label, self.feed, status, reason, tuple(metrics), given=self.given, **more)


@dataclass(frozen=True)
class Request:
    """All that a check needs.

    ``exact``: outputs must be bit-identical. Else they may differ within ``compare.tolerance_for``. Where the original
    leaves half precision's range, the original in higher precision decides (``compare.Twin``); ``half`` names that
    type. In float32, outputs may differ as much as the original does from itself in float64 (``rounding.excused``), if
    ``precise``. ``coarse`` names the half-precision type whose roundings a backend may skip, and ``forgiven`` says
    that only for this reason identical bits are not required.

    ``known`` is the original's signature, ``shapes`` are symbols that the user fixed (name -> size), ``given`` the
    user's own feeds, or with ``labels`` those that they describe. ``step`` and ``total`` are in seconds. ``trt`` are
    the options for TensorRT. ``inherit``: the fixes are not to blame where the original fails as well. ``shown``
    names the check that has compared the two models already and passed; "" where there is none, or where this check
    must pass itself. ``special`` is how the fixed model is specialized: ``known`` has its values pinned and
    ``shapes`` has its sizes. ``allowed`` is the user's tolerance, which no ``exact`` request has. ``networks`` are
    what TensorRT's checks leave for each other (None: nothing). ``effort`` bounds what is spent on running models.
    ``only`` are the inputs to run, where a failure on them is looked into; () for all. ``tell`` reports which part of
    the check is done, and what it does next."""

    original: Path
    fixed: Path
    known: Signature
    worker: Worker
    exact: bool
    seed: int
    shapes: Assignment
    given: list[dict[str, Any]] | None
    labels: tuple[Label, ...] = ()
    coarse: str = ""
    step: float = 60.0
    total: float = 300.0
    trt: TrtOptions = field(default_factory=TrtOptions)
    inherit: bool = False
    half: str = ""
    precise: bool = False
    shown: str = ""
    forgiven: bool = False
    special: ResolvedSpecialization | None = None
    allowed: Allowed | None = None
    networks: Networks | None = None
    effort: Effort = THOROUGH
    only: tuple[Fed, ...] = ()
    tell: Callable[[float, str], None] = lambda part, words: None

    @property
    def terms(self) -> Terms:
        """How outputs are compared."""
        return Terms(self.exact, self.coarse, self.allowed)

    def trials(self) -> list[Trial]:
        """The user's inputs."""
        given = self.given or []
        labels = self.labels or [(f"inputs {n} of {len(given)}", None, n) for n in range(1, len(given) + 1)]
        numbered = zip(labels, given, strict=True)
        return [Trial(label, feed, values, given=number) for (label, feed, number), values in numbered]

    @property
    def without(self) -> tuple[str, ...]:
        """The inputs that the original has and the fixed model has not."""
        return self.special.without if self.special is not None else ()

    def misdeclared(self, metrics: Iterable[Metrics]) -> str:
        """The output that does not have a size declared by the specialized model, as text; "" where all have it."""
        declared = self.special.outputs if self.special is not None else {}
        for one in metrics:
            sizes, shape = declared.get(one.name, ()), one.shape or ()
            if any(size not in (None, real) for size, real in zip(sizes, shape, strict=False)):
                return f"output {one.name} has shape {list(shape)}, and is declared otherwise"
        return ""
