"""The result of verification: frozen records whose fields can be written as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.names import PYTORCH as PYTORCH
from onnxfix.names import RUNGS
from onnxfix.proof.compare.compare import Metrics
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.proof.sweep import SweepResult
from onnxfix.proof.validity import Checked
from onnxfix.runtime.causes import Cause
from onnxfix.tensorrt.reading import Reading
from onnxfix.tensorrt.records import Part, TrtBuild
from onnxfix.tensorrt.timing import Latency

#: "broke": the check's own code failed. That proves nothing about the models, and is a bug of onnxfix to report.
Status = Literal["passed", "failed", "skipped", "broke"]
FeedStatus = Literal["identical", "within", "different", "not counted"]
#: Which of the two models.
Side = Literal["", "original", "fixed"]
#: "engines": the engine of the fixed model with that of the original. "oracle": an engine with the ONNX model.
#: "export": the exported model with PyTorch. "result": the fixed model with PyTorch.
Sides = Literal["", "engines", "oracle", "export", "result"]

#: Those that need neither a GPU nor TensorRT.
CPU_RUNGS = RUNGS[: RUNGS.index("ort-cpu") + 1]
#: Those that compute nothing: they prove nothing about values.
STATIC = ("contract", "trt-build")
#: Those that judge each model by itself, or its declarations: a pass does not prove that the two compute the same.
#: trt-network compares values, but those of a model with those of TensorRT's import of that same model.
ALONE = (*STATIC, "trt-network")


#: What executed engines showed about a fixed model, see ``checks.judge.Finding``.
Outcome = Literal["agree", "repaired", "alike", "unsteady", "wrong"]


@dataclass(frozen=True)
class Executed:
    """Executed engines: package and version, GPU, whether NVIDIA lists that GPU for the package, and the precision of
    float32 products ("float32", "tf32", or "" where that is not known).

    ``outcome`` is "agree" where the engines are right, "repaired" where that of the original is wrong and the fixed one
    right, "alike" where both are wrong, "unsteady" where they are not so each time that they are loaded, "wrong" where
    the fixed one is further from the ONNX model; ``reason`` says so with the values, and ``output`` is the first output
    that it is about. ``noise`` is how far rounding alone moves an output of the original, as a share of its largest
    magnitude, for the outputs of which that was measured."""

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


#: What is to blame for a difference from PyTorch: "export": the exported model has it before any fix. "fix": only the
#: fixed model has it. "": nothing differs.
Blame = Literal["", "export", "fix"]


@dataclass(frozen=True)
class Exported:
    """PyTorch's own outputs beside those of the exported and of the fixed model (check pytorch).

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
    """One test run. With ``feed`` (None for inputs that the user gave) and the model, ``make_inputs`` gives the same
    inputs again. ``reason`` says why it is "different" or "not counted", or what besides the original judged.

    ``given`` counts the user's inputs from 1 (0: they were made). ``stopped`` is the model that did not run, ``said``
    the error of the runtime that ran it ("" where it reported none), and ``cause`` what it failed of. ``sides`` are
    what was compared, where that is not the fixed model with the original."""

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
    """Planned inputs that a check did not run with, since its budget did not allow for them (``Effort``): they would
    have taken about so many ``seconds`` of the processor."""

    label: str
    feed: Feed
    seconds: float


@dataclass(frozen=True)
class RungResult:
    """The result of one check. ``reason`` is one line: what was proven, what differs, or why it was skipped or broke;
    ``cause`` is the same as data, where it is known. ``stopped``: this model could not be loaded, with the error
    ``said`` by the runtime.

    ``excluded`` are outputs in which the original is not deterministic, and ``notes`` more for a reader. ``seconds`` is
    wall-clock time. ``informative`` are runs that do not decide, such as the same with TF32 on. ``builds`` are
    TensorRT's builds of the original and, unless that is the same file, of the fixed model; ``networks`` how TensorRT
    reads them; ``checks`` the results of onnx.checker. ``executed`` is what their engines did, ``latency`` their
    latency, and ``sweep`` how builds for batch 1 alone and for more differ (None where these were not requested).
    ``exported`` is what PyTorch's own outputs showed (check pytorch).
    ``random`` are the outputs of random nodes that gave both models the same numbers, and were not compared themselves.
    ``left_out`` are planned inputs that the budget did not allow for.
    ``part`` is the part of the models that it is about (None: all of them).
    ``inherited``: it failed, and the original fails in the same way, so that no fix is to blame.
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
    """The results of all requested checks, in order, and the names of those that had to pass.

    ``settled``: no check needs to compare the two, since nothing was changed (except by UNSAFE fixes on request).
    ``without_unsafe``: the values that were compared are those without the UNSAFE fixes or steps, which are in the
    result. ``allowed`` is the user's tolerance, by which values were compared (None: by their types).
    """

    rungs: tuple[RungResult, ...]
    required: tuple[str, ...] = ()
    settled: bool = False
    without_unsafe: bool = False
    allowed: Allowed | None = None

    @property
    def failed(self) -> bool:
        """A check refutes the fixed model, or one that is required did not pass."""
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
        """The result of one check; None where it did not run."""
        return next((check for check in self.rungs if check.name == name), None)

    @property
    def seconds(self) -> float:
        """Wall-clock time of all checks."""
        return sum(check.seconds for check in self.rungs)
