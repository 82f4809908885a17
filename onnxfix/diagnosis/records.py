"""What a diagnosis found, as frozen records whose fields are written as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from onnxfix.place import Place
from onnxfix.proof.compare.tolerance import ErrorHistogram
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.interrupts import INTERRUPTED
from onnxfix.shown import Shown

#: What the truth is held against: another model, or one of the ways to execute the same model.
Against = Literal["model", "ort-cpu", "ort-cuda", "fp16", "bf16", "trt-network", "trt-gpu"]

#: "agree": bit-identical. "rounding": they differ by no more than rounding explains. "differ": at least one node
#: computes something else. "unexplained": outputs differ beyond rounding, and no node alone shows why. "unknown": it
#: could not be found out, see ``reason``.
Status = Literal["agree", "rounding", "differ", "unexplained", "unknown"]

#: Why a node computes something else. "weight", "attribute", "operator": the two models differ in this there.
#: "structure": the two compute the value by other nodes. "hazard": a rule of onnxfix names the node. "overflow",
#: "underflow", "saturation": a value leaves the range of its type. "precision": it computes in fewer bits.
#: "cancellation": large terms cancel out, and what remains is rounding. "ill-conditioned": the truth moves as much when
#: its inputs move by one rounding. "kernel": another kernel (order of sums, TF32). "rounding": no more than the type's
#: rounding. "import": TensorRT's network computes something else than the ONNX node. "unknown": none of these.
Why = Literal[
    "weight", "attribute", "operator", "structure", "hazard", "import", "overflow", "underflow", "saturation",
    "precision", "cancellation", "ill-conditioned", "kernel", "rounding", "unknown",
]  # fmt: skip
Explanation = tuple[Why, str]
"""A cause, and one sentence with the evidence."""


@dataclass(frozen=True)
class Histogram:
    """How many values fall between ``edges`` (one more than counts), in the truth and on the other side. Values that
    are not finite are not counted."""

    edges: tuple[float, ...]
    truth: tuple[int, ...]
    other: tuple[int, ...]


@dataclass(frozen=True)
class NonFinite:
    """NaN and infinities of one side: how many, and the index of the first."""

    nan: int = 0
    inf: int = 0
    first: tuple[int, ...] | None = None


@dataclass(frozen=True)
class OutputComparison:
    """How one output of the model agrees, over all samples.

    ``dtype`` (numpy's name, or "string", "sequence", "map", "optional") and ``shape`` (None: no tensor) are those of
    the truth's first sample. ``elements`` counts the truth's, ``differing`` those that are not bit-identical (every
    NaN equals every NaN, -0.0 is not 0.0) or have no counterpart.

    Errors are of elements that are finite on both sides: absolute ones in the output's unit, relative ones where the
    true value is not 0. ``p99`` is the least error that 99 % of them do not exceed; of more than half a million
    elements, it is taken of as many that are evenly spread. ``scale`` is the truth's largest finite magnitude.
    ``cosine`` is the cosine similarity and ``snr`` the signal-to-noise ratio in dB (None where it is infinite or
    undefined). ``argmax`` is the share of rows (along the last axis) in which the other side's largest element is at an
    index where the truth has its largest; None where rows have one element or the type is no number.

    ``rtol`` and ``atol`` are the least tolerances with which ``|other - truth| <= atol + rtol * |truth|`` holds in
    float64 for every element, where NaN and infinities agree with themselves: each alone, with the other 0; None
    where no tolerance suffices. ``worst`` is the index of the element where one side alone is finite, otherwise of
    the largest absolute error (in a sequence or map, its position there comes first), ``sample`` the sample in which
    it is, and ``values`` the true value and the other one there. ``noise`` is how far rounding alone moves the truth
    (absolute). ``differs`` says in one line what differs besides values (shape, type, structure), "" for nothing.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    elements: int = 0
    differing: int = 0
    max_abs: float = 0.0
    mean_abs: float = 0.0
    p99_abs: float = 0.0
    max_rel: float = 0.0
    mean_rel: float = 0.0
    p99_rel: float = 0.0
    scale: float = 0.0
    cosine: float | None = None
    snr: float | None = None
    argmax: float | None = None
    rtol: float | None = 0.0
    atol: float | None = 0.0
    worst: tuple[int, ...] | None = None
    sample: int = 0
    values: tuple[str, str] | None = None
    truth_nonfinite: NonFinite = NonFinite()
    other_nonfinite: NonFinite = NonFinite()
    histogram: Histogram | None = None
    errors: ErrorHistogram | None = None
    noise: float = 0.0
    differs: str = ""

    @property
    def same(self) -> bool:
        """Whether nothing differs at all."""
        return not self.differing and not self.differs


@dataclass(frozen=True)
class NodeError:
    """How one node of the truth's model compares with what computes its output on the other side.

    ``own_error`` is the error of its output when it gets the truth's inputs, as a share of the output's scale
    (largest finite magnitude); ``own_abs`` the same in the output's unit. ``noise`` is the share that rounding
    explains. ``input_error`` and ``output_error`` are those of the whole run on the other side, as shares too (None:
    not measured); ``effect`` is the largest error, as a share of its scale, that this node alone causes in an output
    of the model (None: not measured). ``nodes`` are the nodes, or TensorRT's layers, that compute the output on the
    other side. ``low`` and ``high`` are the range of the true values, ``nonfinite`` counts elements that are finite
    on one side only. ``feed`` counts the samples from 0: the one with the largest own error.
    """

    place: Place
    own_error: float
    own_abs: float = 0.0
    noise: float = 0.0
    input_error: float | None = None
    output_error: float | None = None
    effect: float | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float = 0.0
    high: float = 0.0
    nonfinite: int = 0
    nodes: tuple[str, ...] = ()
    feed: int = 0

    @property
    def amplification(self) -> float | None:
        """Error at the output for one at the inputs; None where the inputs have none or it was not measured."""
        if not self.input_error or self.output_error is None:
            return None
        return self.output_error / self.input_error


@dataclass(frozen=True)
class DepthError:
    """The error at one node: ``number`` is its place in the order of computation, of ``Diagnosis.nodes``. The other
    fields are those of ``NodeError``."""

    number: int
    output: str
    op_type: str
    own_error: float | None = None
    output_error: float | None = None


@dataclass(frozen=True)
class Culprit:
    """A node that computes something else.

    ``reason`` says why in one sentence, with the evidence; ``advice`` what to do.
    ``rule`` is the code of the rule that names or fixes it, "" for none; ``fix`` the safety of that fix ("" for none).
    """

    error: NodeError
    cause: Why
    reason: str
    advice: str = ""
    rule: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Marking:
    """One build with inner ``tensors`` as outputs. ``unchanged``: its own outputs stayed bit-identical to those of the
    unmarked build. ``believed``: they still show the difference that is looked for, else ``reason`` says what changed,
    and nothing is concluded from this build."""

    tensors: tuple[str, ...]
    unchanged: bool
    seconds: float = 0.0
    reason: str = ""
    believed: bool = True


@dataclass(frozen=True, repr=False)
class Diagnosis(Shown):
    """The result of ``diagnose``.

    ``outputs`` compares the model's outputs; ``culprits`` are the nodes that compute something else, worst first;
    ``begins`` are the first tensors, in the order of computation, that differ beyond noise in the whole run; ``table``
    are the nodes with the largest own error, worst first (culprits among them); ``depths`` are the errors along the
    model, one node for each of at most 1,000 sections of equal length (the one with the largest error at its output).
    ``tolerance`` is the one that is right where the status is "rounding" (relative to each output's scale).
    ``keep_fp32`` are node names for a file that keeps nodes in float32. ``runs`` counts runs of the model or of its
    parts, in whole models. ``complete`` is False where it was interrupted (``interrupted``) or ran out of time.
    ``cause`` says why the status is "unknown", as data.
    """

    path: str
    against: Against
    other: str
    status: Status
    reason: str = ""
    cause: Cause = ""
    truth: str = ""
    samples: int = 0
    outputs: tuple[OutputComparison, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    begins: tuple[NodeError, ...] = ()
    table: tuple[NodeError, ...] = ()
    depths: tuple[DepthError, ...] = ()
    markings: tuple[Marking, ...] = ()
    tolerance: float | None = None
    keep_fp32: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nodes: int = 0
    compared: int = 0
    runs: float = 0.0
    seconds: float = 0.0
    complete: bool = True
    interrupted: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0: they agree, or differ by rounding. 1: they differ. 3: it could not be found out. 130: interrupted."""
        if self.interrupted:
            return INTERRUPTED
        return {"agree": 0, "rounding": 0, "differ": 1, "unexplained": 1, "unknown": 3}[self.status]

    def _facts(self) -> dict[str, object]:
        names = tuple(one.error.place.node or one.error.place.output for one in self.culprits[:3])
        more = {"culprits": names} if names else {"reason": self.reason} if self.reason else {}
        against = {"other": self.other} if self.other else {"against": self.against}
        return {"path": self.path, **against, "status": self.status, **more}
