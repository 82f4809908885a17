"""The result of verification: frozen records whose fields can be written as JSON, and a sweep of batches in lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.names import PYTORCH as PYTORCH
from onnxfix.names import RUNGS
from onnxfix.proof.compare.compare import Metrics
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.proof.validity import Checked
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.messages import means
from onnxfix.tensorrt.reading import Reading
from onnxfix.tensorrt.records import Issue, Part, TrtBuild
from onnxfix.tensorrt.timing import Latency

#: "broke": the check's own code failed. That proves nothing about the models, and is a bug of onnxfix to report.
Status = Literal["passed", "failed", "skipped", "broke"]
FeedStatus = Literal["identical", "within", "different", "not counted"]
#: Which of the two models.
Side = Literal["", "original", "fixed"]
#: "engines": the fixed model's engine with the original's. "oracle": an engine with the ONNX model.
#: "export": the exported model with PyTorch. "result": the fixed model with PyTorch.
Sides = Literal["", "engines", "oracle", "export", "result"]

#: Checks that need neither a GPU nor TensorRT.
CPU_RUNGS = RUNGS[: RUNGS.index("ort-cpu") + 1]
#: Checks that compute nothing. They prove nothing about values.
STATIC = ("contract", "trt-build")
#: Checks that judge each model, or its declarations, alone. A pass does not prove that both compute the same.
#: trt-network compares values, but only the values of a model with the values of TensorRT's import of it.
ALONE = (*STATIC, "trt-network")


#: What executed engines showed about a fixed model, see ``checks.judge.Finding``.
Outcome = Literal["agree", "repaired", "alike", "unsteady", "wrong"]


@dataclass(frozen=True)
class Executed:
    """Executed engines: package and version, GPU, whether NVIDIA lists that GPU for the package, and the precision of
    float32 products ("float32", "tf32", or "" where that is not known).

    ``outcome`` is "agree" if the engines are right, "repaired" if the original's engine is wrong and the
    fixed one right, "alike" if both are wrong, "unsteady" if the result changes between loads, and "wrong" if
    the fixed engine is further from the ONNX model. ``reason`` explains it with values, and ``output`` is the
    first output concerned. ``noise`` is how far rounding alone moves an output of the original, as a share of
    its largest magnitude, for the measured outputs."""

    package: str
    version: str
    gpu: str
    compute_capability: str
    listed: bool
    precision: str
    outcome: Outcome
    reason: str = ""
    output: str = ""
    noise: tuple[tuple[str, float], ...] = ()


#: What causes a difference from PyTorch. "export": the exported model already differs. "fix": only the fixed
#: model differs. "": nothing differs.
Blame = Literal["", "export", "fix"]


@dataclass(frozen=True)
class Exported:
    """PyTorch's outputs compared with the outputs of the exported and the fixed model (check pytorch).

    ``torch`` is its version, ``exporter`` "dynamo" or "legacy" ("" where that is not known). ``inputs`` counts the
    inputs that were compared, ``sizes`` their different sets of shapes. ``output`` is the first output that differs.
    """

    torch: str
    exporter: str
    blame: Blame = ""
    inputs: int = 0
    sizes: int = 0
    output: str = ""


@dataclass(frozen=True)
class FeedResult:
    """One test run. From ``feed`` (None for the user's inputs) and the model, ``make_inputs`` generates the
    same inputs again. ``reason`` says why it is "different" or "not counted", or what judged it besides the
    original.

    ``given`` counts the user's inputs from 1 (0: generated inputs). ``stopped`` is the model that did not
    run, ``said`` the runtime's error ("" if it reported none), and ``cause`` the cause of the failure.
    ``sides`` says what was compared, if it was not the fixed model with the original."""

    label: str
    feed: Feed | None
    status: FeedStatus
    reason: str = ""
    metrics: tuple[Metrics, ...] = ()
    stopped: Side = ""
    said: str = ""
    cause: Cause = ""
    sides: Sides = ""
    given: int = 0

    @property
    def fed(self) -> tuple[int, Feed | None]:
        """What identifies the inputs."""
        return self.given, self.feed


@dataclass(frozen=True)
class LeftOut:
    """Planned inputs that exceeded a check's budget (``Effort``) and were not run. ``seconds`` is the
    processor time that they would have taken."""

    label: str
    feed: Feed
    seconds: float


@dataclass(frozen=True)
class RungResult:
    """The result of one check. ``reason`` is one line: what was proven, what differs, or why it was skipped or broke;
    ``cause`` is the same as data, where it is known. ``stopped``: this model could not be loaded, with the error
    ``said`` by the runtime.

    ``excluded`` are outputs in which the original is not deterministic. ``notes`` are for readers.
    ``seconds`` is wall-clock time. ``informative`` are runs that do not decide, such as runs with TF32.
    ``builds`` are TensorRT's builds of the original and, if it is another file, of the fixed model.
    ``networks`` says how TensorRT reads them, and ``checks`` are the results of onnx.checker. ``executed``
    says what the engines computed, ``latency`` is their latency, and ``sweep`` compares builds for batch 1
    alone and for more (each None if it was not requested). ``exported`` is the comparison with PyTorch's
    outputs (check pytorch). ``random`` are outputs of random nodes: both models got the same numbers, and
    these outputs were not compared. ``left_out`` are planned inputs that exceeded the budget. ``part`` is the
    part of the models that was checked (None: all). ``inherited``: it failed, and the original fails in the
    same way, so that no fix is to blame.
    """

    name: str
    status: Status
    reason: str = ""
    feeds: tuple[FeedResult, ...] = ()
    excluded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seed: int = 0
    exact: bool = False
    seconds: float = 0.0
    informative: tuple[FeedResult, ...] = ()
    builds: tuple[TrtBuild, ...] = ()
    networks: tuple[Reading, ...] = ()
    checks: tuple[Checked, ...] = ()
    inherited: bool = False
    cause: Cause = ""
    stopped: Side = ""
    said: str = ""
    executed: Executed | None = None
    latency: Latency | None = None
    sweep: SweepResult | None = None
    exported: Exported | None = None
    left_out: tuple[LeftOut, ...] = ()
    random: tuple[str, ...] = ()
    part: Part | None = None

    @property
    def judged(self) -> bool:
        """Whether it has a result about the models."""
        return self.status in ("passed", "failed")

    @property
    def compares(self) -> bool:
        """Whether it is a check that compares the values of the two models."""
        return self.name not in ALONE

    @property
    def refutes(self) -> bool:
        """Whether it shows that the fixed model is worse than the original."""
        return self.status == "failed" and not self.inherited


def unjudged(name: str, reason: str, cause: Cause = "") -> RungResult:
    """The result of a check that could not judge the models: "broke" where onnxfix is to blame, else "skipped"."""
    return RungResult(name, "broke" if cause == "fault" else "skipped", reason, cause=cause)


@dataclass(frozen=True)
class Verdict:
    """The results of all requested checks, in order, and the names of the required checks.

    ``settled``: no check needs to compare the models, because nothing changed (except by requested UNSAFE
    fixes). ``without_unsafe``: the values were compared without the UNSAFE fixes or steps that the result
    contains. ``allowed`` is the user's tolerance for comparing values (None: by their types).
    """

    rungs: tuple[RungResult, ...]
    required: tuple[str, ...] = ()
    settled: bool = False
    without_unsafe: bool = False
    allowed: Allowed | None = None

    @property
    def failed(self) -> bool:
        """Whether a check refutes the fixed model, or a required check did not pass."""
        passed = {check.name for check in self.rungs if check.status == "passed"}
        return any(check.refutes for check in self.rungs) or not passed.issuperset(self.required)

    @property
    def passed(self) -> bool:
        """Nothing failed, and at least one of the checks that count passed. If any check compares the two models, only
        such checks count. Otherwise all but ``contract`` count, which counts only if it is alone. If this and
        ``failed`` are both false, the models could not be checked."""
        if self.failed:
            return False
        more = [check for check in self.rungs if check.name != "contract"]
        relevant = [check for check in more if check.name not in ALONE] or more or self.rungs
        return self.settled or any(check.status == "passed" for check in relevant)

    @property
    def broken(self) -> tuple[RungResult, ...]:
        """The checks that broke."""
        return tuple(check for check in self.rungs if check.status == "broke")

    @property
    def compared(self) -> bool:
        """Whether a check compared values of the two models."""
        return any(check.status == "passed" and check.name not in ALONE for check in self.rungs)

    def rung(self, name: str) -> RungResult | None:
        """The result of one check; None if it did not run."""
        return next((check for check in self.rungs if check.name == name), None)

    @property
    def seconds(self) -> float:
        """Wall-clock time of all checks."""
        return sum(check.seconds for check in self.rungs)


_WIDEST = 240  # characters of one of TensorRT's texts in a line


@dataclass(frozen=True)
class Pair:
    """One model, called ``name`` in texts, built for batch 1 alone and for a profile of batch sizes.

    ``differing`` says which outputs of the two engines differ at batch 1, ``unproven`` why none were compared; both
    are empty where all agree.
    """

    name: str
    static: TrtBuild
    dynamic: TrtBuild
    differing: str = ""
    unproven: str = ""

    @property
    def wrong(self) -> str:
        """How the two builds differ, in acceptance or in outputs; "" where they agree."""
        if self.static.accepted != self.dynamic.accepted:
            builds = [("batch 1 alone", self.static), ("the profile", self.dynamic)]
            (yes, _), (no, refused) = sorted(builds, key=lambda one: not one[1].accepted)
            return f"{yes} builds, {no} does not: {one_line(refused.reason, _WIDEST)}"
        hollow = next((one for one in self.only_dynamic() if means("inconsistent-profile", [one.text])), None)
        if hollow is not None and self.dynamic.accepted:
            return f"the profile builds, but not all of its sizes fit: {one_line(str(hollow), _WIDEST)}"
        return self.differing

    def only_static(self) -> list[Issue]:
        """The warnings for batch 1 alone that the profile's build does not give."""
        return _only(self.static, self.dynamic)

    def only_dynamic(self) -> list[Issue]:
        """The warnings for the profile that the build for batch 1 alone does not give."""
        return _only(self.dynamic, self.static)


def _only(own: TrtBuild, other: TrtBuild) -> list[Issue]:
    found: list[Issue] = []
    for issue in own.warnings:
        if not any(map(issue.repeats, (*other.warnings, *found))):
            found.append(issue)
    return found


@dataclass(frozen=True)
class SweepResult:
    """A batch sweep up to batch ``greatest`` over ``symbols``. ``reason`` is one line, ``span`` another: how the
    batches of the user's own profile relate to it ("" without one).

    It fails where the last of ``pairs``, the fixed model or the only one, differs between its two builds.
    """

    status: Literal["passed", "failed", "skipped"]
    reason: str
    symbols: tuple[str, ...] = ()
    greatest: int = 0
    pairs: tuple[Pair, ...] = ()
    span: str = ""

    def lines(self) -> tuple[str, ...]:
        """The result and the differences between the builds of each model, as text."""
        return (
            f"batch sweep {self.status}: {self.reason}",
            *([f"batch sweep: {self.span}"] if self.span else []),
            *(line for one in self.pairs for line in self._of(one)),
        )

    def _of(self, pair: Pair) -> Iterator[str]:
        span = f"batch 1 to {self.greatest}"
        figures = f"batch 1 alone: {_figures(pair.static)}; {span}: {_figures(pair.dynamic)}"
        yield f"batch sweep of {pair.name}: {figures}"
        static, dynamic = dict(pair.static.layers), dict(pair.dynamic.layers)
        counts = [(kind, static.get(kind, 0), dynamic.get(kind, 0)) for kind in sorted({*static, *dynamic})]
        kinds = ", ".join(f"{kind} {alone}/{spread}" for kind, alone, spread in counts if alone != spread)
        if (
            kinds and pair.static.accepted and pair.dynamic.accepted
        ):  # else the parser may have stopped half-way
            yield f"imported layers that differ, batch 1 alone against {span}: {kinds}"
        for where, issues in (("batch 1 alone", pair.only_static()), (span, pair.only_dynamic())):
            yield from (f"warning for {where} only: {one_line(str(one), _WIDEST)}" for one in issues)
        if pair.differing:
            yield f"outputs differ: {pair.differing}"
        elif pair.static.accepted and pair.dynamic.accepted:
            yield f"outputs {pair.unproven or 'of the two engines agree at batch 1'}"


def _figures(build: TrtBuild) -> str:
    """``accepted, 131 layers, 2 warnings``."""
    layers, warnings = build.layer_count, len(build.warnings)
    counts = f"{layers} layer{'s' * (layers != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    return f"accepted, {counts}" if build.accepted else f"{build.status} ({one_line(build.reason, _WIDEST)})"
