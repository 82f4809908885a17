"""What is known of a node whose result differs, and the figures that explanations are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfix.diagnosis.findings import Hazard
from onnxfix.diagnosis.records import Against, NodeError
from onnxfix.diagnosis.rows import Row
from onnxfix.dtypes import FLOATS

Array = np.ndarray[Any, Any]

BLOCK = 1 << 20
"""Elements that are compared at a time: tensors may be mapped from disk and larger than memory."""

#: What the other side is called in a sentence.
SIDES: dict[Against, str] = {
    "model": "the second model",
    "ort-cpu": "the optimized model",
    "ort-cuda": "ONNX Runtime on CUDA",
    "fp16": "float16",
    "bf16": "bfloat16",
    "trt-network": "TensorRT's network",
    "trt-gpu": "the engine",
}

_LOW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


@dataclass(frozen=True)
class Evidence:
    """A node of the truth's model and what computes its outputs on the other side.

    ``node`` is the truth's (its weights may be stand-ins). ``inputs`` are the true tensors that it reads, initializers
    included, by their names in its model. ``truth``, ``own`` and ``moved`` are its outputs by name: the true ones, what
    the other side computes from the true inputs, and the true ones with inputs moved by one rounding (one part in 10^7,
    or one unit of ``low``). ``others`` are the nodes that compute the output on the other side, and ``constants`` the
    initializers that these read, by their names there. ``findings`` are those of onnxfix's rules at this
    node; of two models those that only the second has there.
    ``low`` is the precision of the other side: "float16", "bfloat16", or "" for that of the truth. ``opsets`` and
    ``other_opsets`` are both models' imports; ``names`` leads from tensors of the other side to the truth's,
    and ``types`` are the element types of those that its nodes read. ``row`` is what the walk measured; ``given`` are
    the values that the node and its region read, of a node with graphs inside; ``effect`` is the largest error in an
    output of the model, as a share of its scale, that this node alone causes (None: not measured).
    """

    against: Against
    error: NodeError
    node: NodeProto
    inputs: Mapping[str, Array]
    truth: Mapping[str, Array]
    own: Mapping[str, Array]
    moved: Mapping[str, Array] = field(default_factory=dict)
    others: Sequence[NodeProto] = ()
    constants: Mapping[str, Array] = field(default_factory=dict)
    findings: Sequence[Hazard] = ()
    low: str = ""
    opsets: Mapping[str, int] = field(default_factory=dict)
    other_opsets: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    types: Collection[str] = ()
    row: Row = field(default_factory=lambda: Row("", -1))
    given: Mapping[str, Any] = field(default_factory=dict)
    effect: float | None = None

    @property
    def side(self) -> str:
        """What the other side is called."""
        return SIDES[self.against]

    @property
    def precision(self) -> str:
        """``low``, or the lower precision that Casts, constants or values of the other side show; "" for none."""
        if self.low:
            return self.low
        here = {str(array.dtype) for array in (*self.inputs.values(), *self.truth.values())}
        targets = {
            one.i
            for node in self.others
            if node.op_type == "Cast"
            for one in node.attribute
            if one.name == "to"
        }
        stored = {str(array.dtype) for array in (*self.constants.values(), *self.own.values())} | {
            *self.types
        }
        for name, number in _LOW.items():
            if name not in here and (number in targets or name in stored):
                return name
        return ""


@dataclass(frozen=True)
class Limits:
    """The largest finite value of a low precision, its smallest normal one, the smallest of all, and the relative size
    of one rounding."""

    largest: float
    normal: float
    smallest: float
    unit: float


def limits(low: str) -> Limits:
    """Those of "float16" or "bfloat16"."""
    kind = FLOATS[_LOW[low]]
    normal = 2.0 ** (kind.lowest + kind.precision - 1)
    return Limits(kind.highest, normal, 2.0**kind.lowest, 2.0**-kind.precision)


def unit_of(evidence: Evidence) -> float:
    """By what share of themselves the inputs of ``moved`` were moved."""
    return limits(evidence.low).unit if evidence.low else 1e-7


@dataclass(frozen=True)
class Focus:
    """The element with the largest own error, in the output where that is the largest share of the scale.

    ``error`` is absolute, infinite where one side alone is not finite; ``scale`` is the largest finite magnitude of the
    true output. ``wander`` is how far ``moved`` is from the truth at most, None where that was not computed.
    """

    name: str
    truth: Array
    own: Array
    index: tuple[int, ...]
    true: float
    seen: float
    error: float
    scale: float
    wander: float | None = None

    @property
    def share(self) -> float:
        """The error as a share of the scale."""
        return self.error / self.scale if self.scale else (0.0 if not self.error else float("inf"))

    @property
    def values(self) -> str:
        """``0.5 instead of 0.25 at [0, 3]``, the other side's first."""
        seen, true = number(self.seen), number(self.true)
        if seen == true:
            seen, true = f"{self.seen:.9g}", f"{self.true:.9g}"
        return f"{seen} instead of {true}{at(self.index)}"


def number(value: float) -> str:
    """A value as text, with the digits that float32 has at most."""
    return f"{value:.7g}" if abs(value) < 1e6 and value == int_or(value) else f"{value:.5g}"


def int_or(value: float) -> float:
    """The value as a whole number where it is one."""
    return float(int(value)) if np.isfinite(value) and value == int(value) else float("nan")


def at(index: Sequence[int]) -> str:
    """`` at [0, 3]``; "" for a scalar."""
    return f" at {[int(i) for i in index]}" if len(index) else ""


def numeric(array: Any) -> bool:
    """Whether it is an array of real numbers, also of the types of ml_dtypes."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "cOSUMm":
        return False
    return array.dtype.kind in "biuf" or array.dtype.name in ("bfloat16",) or "float" in array.dtype.name


def blocks(*arrays: Array) -> Iterator[tuple[int, list[Array]]]:
    """Arrays of one size as float64, flat and in parts: the first index, and a part of each."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield start, [np.asarray(one[start : start + BLOCK]).astype(np.float64) for one in flat]


@dataclass(frozen=True)
class Worst:
    """Where two arrays are farthest apart: the flat index, and how far (infinite where one alone is not finite)."""

    flat: int = 0
    error: float = 0.0


def farthest(first: Array, second: Array) -> Worst:
    """The element where two arrays of one shape are farthest apart."""
    found = Worst()
    for start, (one, other) in blocks(first, second):
        with np.errstate(all="ignore"):
            off = np.abs(one - other)
        special = ~(np.isfinite(one) & np.isfinite(other))
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        off = np.where(special, np.where(same, 0.0, np.inf), off)
        here = int(np.argmax(off))
        if off[here] > found.error:
            found = Worst(start + here, float(off[here]))
        if found.error == np.inf:
            break
    return found


def magnitude(array: Array) -> float:
    """The largest finite magnitude; 0 where there is none."""
    largest = 0.0
    for _, (part,) in blocks(array):
        finite = np.abs(part[np.isfinite(part)])
        largest = max(largest, float(finite.max())) if finite.size else largest
    return largest


def focus_of(evidence: Evidence) -> Focus | None:
    """The element to explain; None where no output of both sides has the same shape and holds numbers."""
    best: Focus | None = None
    for name, truth in evidence.truth.items():
        own = evidence.own.get(name)
        if (
            own is None
            or not numeric(truth)
            or not numeric(own)
            or truth.shape != own.shape
            or not truth.size
        ):
            continue
        worst = farthest(truth, own)
        index = tuple(int(i) for i in np.unravel_index(worst.flat, truth.shape))
        moved = evidence.moved.get(name)
        comparable = moved is not None and numeric(moved) and moved.shape == truth.shape
        found = Focus(
            name,
            truth,
            own,
            index,
            float(truth[index]),
            float(own[index]),
            worst.error,
            magnitude(truth),
            farthest(truth, moved).error if moved is not None and comparable else None,
        )
        best = found if best is None or found.share > best.share else best
    return best
