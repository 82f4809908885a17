"""What each check is asked, the inputs that it runs models with, and what running them may cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.files import Inputs, check_inputs, load_feeds
from onnxfix.inputs.feeds.inputs import Kind, shape_of
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import Assignment, Signature
from onnxfix.inputs.specialize import ResolvedSpecialization
from onnxfix.proof.compare.compare import Metrics, Terms
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.proof.verdict import FeedResult, FeedStatus
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import THOROUGH, Effort
from onnxfix.runtime.backends import reference
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
    type. In float32, outputs may differ as much as the original does from itself in float64 (``excused``), if
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


#: Kinds of data to try, in this order, if the original rejects the planned kind.
MILDER: tuple[Kind, ...] = ("small", "ones", "zeros")
SEARCH = 60.0  # seconds to look for inputs that the original accepts
ENOUGH = 3  # number of assignments on which to compare a model with dynamic shapes


@dataclass
class Budget:
    """Measures runs of a pair of models, and predicts what others cost. All times are seconds of the processor.

    Nothing is known before the first run; until then everything is affordable.
    """

    known: Signature
    effort: Effort
    _price: float = 0.0  # of loading both models and running each of them once
    _most: float = math.inf
    _spent: float = 0.0
    _runs: dict[float, float] = field(default_factory=dict)  # weight of the inputs -> seconds

    def loaded(self, seconds: float) -> None:
        """Both models were loaded."""
        if not self._runs:
            self._price += seconds

    def ran(self, sizes: Mapping[str, int], seconds: float) -> None:
        """Both models ran on inputs of these sizes."""
        weight = _weight(self.known, sizes)
        if not self._runs:
            self._price += seconds
            self._most = self.effort.budget(self._price)
        else:
            self._spent += seconds
        # Of two runs of one weight the cheaper one says what it costs: other processes only add.
        self._runs[weight] = min(seconds, self._runs.get(weight, math.inf))

    def allows(self, *sizes: Mapping[str, int]) -> bool:
        """Whether runs on inputs of these sizes, one each, are within the budget, as far as is known. What costs
        nothing always is."""
        cost = sum(map(self.predicted, sizes))
        return not cost or self._spent + cost <= self._most

    def remaining(self, feeds: Sequence[Mapping[str, int]]) -> float:
        """What runs on inputs of these sizes cost, as far as they are within the budget."""
        return max(0.0, min(sum(map(self.predicted, feeds)), self._most - self._spent))

    def predicted(self, sizes: Mapping[str, int]) -> float:
        """What a run on inputs of these sizes costs; 0 where nothing is known, or all of them are empty.

        Between two that ran, the cost is between theirs. Beyond the largest, it grows as it did between the last two of
        different weight, and in proportion to the weight where there is only one.
        """
        weight = _weight(self.known, sizes)
        if not self._runs or not weight:
            return 0.0
        weights = sorted(self._runs)
        after = next((place for place, other in enumerate(weights) if other >= weight), len(weights) - 1)
        last, before = weights[after], weights[max(after - 1, 0)]
        if last == weight or (last > weight and not after):
            return self._runs[last]
        if last == before:
            return self._runs[last] * weight / max(last, 1.0)
        slope = max(0.0, self._runs[last] - self._runs[before]) / (last - before)
        return max(0.0, self._runs[last] + slope * (weight - last))

    def largest(self, candidates: list[Assignment]) -> Assignment:
        """Of some sizes the largest that the budget allows, else the cheapest; empty ones where there are no others."""
        full = [sizes for sizes in candidates if _weight(self.known, sizes)]
        ranked = sorted(full or candidates, key=lambda sizes: _weight(self.known, sizes))
        return next((sizes for sizes in reversed(ranked) if self.allows(sizes)), ranked[0])


def _weight(known: Signature, sizes: Mapping[str, int]) -> float:
    """How much work inputs of these sizes stand for, in proportion: their elements, and once more their open sizes but
    for the leading one, since attention compares each position with each other."""
    total = 0.0
    for one in known.inputs:
        if one.default is not None:
            continue
        shape = shape_of(known, one, sizes)
        open_sizes = [
            size
            for axis, size in enumerate(shape)
            if axis and (one.dims is None or isinstance(one.dims[axis], str))
        ]
        total += math.prod(shape) * math.prod(open_sizes)
    return total


# ------------------------------------------------------------------------------------- what the evaluator would cost

CHEAP = 200_000_000
"""Element-operations on all shapes up to which the evaluator costs next to nothing: less than a second."""


def too_large(request: Request, *models: ModelProto) -> str | None:
    """Why the evaluator would take too long for any input of the original, or of one of these models; None where it
    should not."""
    sizes = _elements(request)
    tried = min(sizes if request.given is not None else sizes[:2])
    reasons = (reference.infeasible(one, tried) for one in models or (request.known.model,))
    return next(filter(None, reasons), None)


def _elements(request: Request) -> list[int]:
    """How many elements the planned or given inputs have, for each of them."""
    if request.given is not None:
        return [sum(map(plan.size, feed.values())) for feed in request.given]
    return [plan.elements(request.known, one) for one in plan.assignments(request.known, request.shapes)]


def is_redundant(request: Request, half: str) -> bool:
    """Whether the evaluator shows nothing that ONNX Runtime does not show, and costs something. Half precision (the
    type ``half``) is not judged without it."""
    if request.effort.whole or half or backends.missing("ort-cpu") is not None:
        return False
    return sum(reference.work(request.known.model, count) for count in _elements(request)) > CHEAP
