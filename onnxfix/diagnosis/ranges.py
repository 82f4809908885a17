"""Values that leave the range of their type: overflow and underflow of low precision, saturation of integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onnxfix.diagnosis.facts import (
    Array,
    Evidence,
    Focus,
    Limits,
    at,
    blocks,
    limits,
    number,
    numeric,
)
from onnxfix.diagnosis.records import Why
from onnxfix.diagnosis.terms import attributes, element

Explanation = tuple[Why, str]

_LOST = 0.01
"""Share of the true values that are not 0 from which on their underflow is a reason."""
_INT32 = 2**31 - 1


@dataclass
class Range:
    """The range of an array's finite values, and what becomes of them in a low precision.

    ``beyond`` counts those larger than its largest value, the first at the flat index ``first``; ``zero`` those that
    become 0 and ``subnormal`` those that keep fewer bits, of ``nonzero`` that are not 0.
    """

    low: float = np.inf
    high: float = -np.inf
    beyond: int = 0
    first: int = -1
    nonzero: int = 0
    zero: int = 0
    subnormal: int = 0

    @property
    def text(self) -> str:
        """``-3.5 to 81225``."""
        return f"{number(self.low)} to {number(self.high)}"


def range_of(array: Array, bounds: Limits) -> Range:
    """The range of an array of numbers within ``bounds``."""
    found = Range()
    # Halfway to the next power of two and beyond, a value is rounded to infinity.
    edge = bounds.largest * (1 + bounds.unit / 2)
    for start, (part,) in blocks(array):
        size = np.abs(part)
        finite = np.isfinite(part)
        if finite.any():
            found.low, found.high = min(found.low, part[finite].min()), max(found.high, part[finite].max())
        beyond = np.flatnonzero(finite & (size >= edge))
        found.first = start + int(beyond[0]) if found.first < 0 and beyond.size else found.first
        found.beyond += int(beyond.size)
        found.nonzero += int(np.count_nonzero(part))
        found.zero += int(np.count_nonzero((size > 0) & (size <= bounds.smallest / 2)))
        found.subnormal += int(np.count_nonzero((size > bounds.smallest / 2) & (size < bounds.normal)))
    return found


def _floats(evidence: Evidence) -> Iterator[tuple[str, Array]]:
    """The true inputs of floating point, each with what it is called."""
    for name, array in evidence.inputs.items():
        if numeric(array) and array.dtype.kind not in "biu" and array.size:
            yield f"input {name!r}", array


def overflow(evidence: Evidence, focus: Focus) -> Explanation | None:
    """A value beyond the largest one of the other side's precision."""
    low = evidence.precision
    lost = np.isfinite(focus.true) and not np.isfinite(focus.seen)
    if not low:
        return _overflow_of_float32(focus) if lost else None
    bounds = limits(low)
    clamped = abs(focus.seen) == bounds.largest and abs(focus.true) > bounds.largest
    if not (lost or clamped):
        return None
    ends = f"{low} ends at {number(bounds.largest)}"
    for what, array in [*_floats(evidence), ("output", focus.truth)]:
        seen = range_of(array, bounds)
        if seen.beyond:
            index = np.unravel_index(seen.first, array.shape)
            reaches = f"{number(float(array[index]))}{at([int(i) for i in index])}"
            share = (
                f"{seen.beyond} of {array.size} values are beyond"
                if seen.beyond > 1
                else "one value is beyond"
            )
            became = f"{number(focus.seen)} instead of {number(focus.true)}{at(focus.index)}"
            return (
                "overflow",
                f"{ends}: the {what} reaches {reaches} (range {seen.text}; {share}), which gives {became}",
            )
    square = _largest_square(evidence)
    if lost and square > bounds.largest:
        return "overflow", (
            f"{ends}: inside {evidence.node.op_type} squares reach {number(square)}, which gives {focus.values}"
        )
    return None


def _overflow_of_float32(focus: Focus) -> Explanation | None:
    """An infinity where the truth is near the end of float32."""
    if abs(focus.true) < 1e37:
        return None
    return "overflow", f"float32 ends at 3.4e+38: the output is {focus.values}"


_SQUARES = {
    "ReduceSumSquare", "ReduceL2", "LpNormalization", "LayerNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization",
}  # fmt: skip


def _largest_square(evidence: Evidence) -> float:
    """The largest sum of squares that a normalization may compute; 0 for other operators."""
    if evidence.node.op_type not in _SQUARES or not evidence.node.input:
        return 0.0
    data = evidence.inputs.get(evidence.node.input[0])
    if data is None or not numeric(data) or not data.size:
        return 0.0
    return max(float(np.nanmax(np.square(part))) for _, (part,) in blocks(data))


def underflow(evidence: Evidence, focus: Focus) -> Explanation | None:
    """Values that become 0, or lose bits, because they are smaller than the other side's precision can hold."""
    low = evidence.precision
    if not low or not focus.error:
        return None
    bounds = limits(low)
    # Where the output itself is large and finite on both sides, small values explain nothing of its error.
    output = range_of(focus.truth, bounds)
    vanished = 0 < abs(focus.true) < bounds.normal
    if vanished and (output.zero + output.subnormal) >= _LOST * output.nonzero:
        return "underflow", _lost("the output", output, low, bounds, focus)
    for what, array in _floats(evidence):
        seen = range_of(array, bounds)
        if not (seen.zero or seen.subnormal):
            continue
        worst = _read(array, focus)
        hit = worst is not None and 0 < abs(worst) < bounds.normal
        # Where it is not known which element was read, most of the tensor must be affected.
        if hit or (worst is None and (seen.zero + seen.subnormal) >= 0.5 * seen.nonzero):
            return "underflow", _lost(f"the {what}", seen, low, bounds, focus)
    return None


def _read(array: Array, focus: Focus) -> float | None:
    """The element that an elementwise operator reads for the worst one; None where shapes say it is none."""
    if array.ndim > len(focus.index):
        return None
    sizes = focus.truth.shape[len(focus.index) - array.ndim :]
    if any(size not in (1, wide) for size, wide in zip(array.shape, sizes, strict=True)):
        return None
    return element(array, focus.index)


def _lost(what: str, seen: Range, low: str, bounds: Limits, focus: Focus) -> str:
    share = 100 * (seen.zero + seen.subnormal) / max(1, seen.nonzero)
    zero = f", {seen.zero} of them become 0" if seen.zero else ""
    return (
        f"{share:.3g} % of the values of {what} that are not 0 are below {bounds.normal:.2g}, the smallest normal {low}"
        f"{zero}: {focus.values}"
    )


def saturation(evidence: Evidence, focus: Focus) -> Explanation | None:
    """A value that an integer type cannot hold: a Cast, a quantizer, 64 bits computed in 32."""
    kind = focus.truth.dtype
    if kind.kind not in "iu" and focus.own.dtype.kind not in "iu":
        return None
    op_type = evidence.node.op_type
    if op_type == "Cast":
        return _cast(evidence, focus)
    if op_type == "QuantizeLinear":
        return _quantized(evidence, focus)
    if kind.kind == "i" and kind.itemsize == 8 and abs(focus.true) > _INT32:
        return "saturation", f"int32 ends at {_INT32}: {evidence.side} has {focus.values}"
    return None


def _cast(evidence: Evidence, focus: Focus) -> Explanation | None:
    data = evidence.inputs.get(evidence.node.input[0])
    kind = focus.truth.dtype
    if data is None or not numeric(data) or kind.kind not in "iu" or data.shape != focus.truth.shape:
        return None
    value, info = float(data[focus.index]), np.iinfo(kind)
    if info.min <= np.trunc(value) <= info.max and not (abs(value) > _INT32 and kind.itemsize == 8):
        return None
    name = str(kind) if not info.min <= value <= info.max else "int32"
    ends = f"{name} holds {np.iinfo(name).min} to {np.iinfo(name).max}"
    return "saturation", f"{ends}: Cast gets {number(value)}{at(focus.index)} and returns {focus.values}"


def _quantized(evidence: Evidence, focus: Focus) -> Explanation | None:
    node = evidence.node
    data, scale = (evidence.inputs.get(name) for name in node.input[:2])
    zero = evidence.inputs.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if data is None or scale is None or data.shape != focus.truth.shape or focus.truth.dtype.kind not in "iu":
        return None
    steps = float(data[focus.index]) / _of_axis(scale, node, focus) + (
        _of_axis(zero, node, focus) if zero is not None else 0.0
    )
    info = np.iinfo(focus.truth.dtype)
    edge = np.iinfo(focus.own.dtype) if focus.own.dtype.kind in "iu" else info
    if info.min <= round(steps) <= info.max and edge.min <= round(steps) <= edge.max:
        return None
    limit = f"{focus.truth.dtype} holds {info.min} to {info.max}"
    given = f"{number(float(data[focus.index]))}{at(focus.index)} is {steps:.1f} steps"
    return "saturation", f"{limit}: {given}, and the result is {focus.values}"


def _of_axis(array: Array, node: object, focus: Focus) -> float:
    """A scale or zero point for the worst element: one for all, or one a position on the axis."""
    if array.size == 1:
        return float(array.reshape(-1)[0])
    axis = attributes(node).get("axis", 1)  # type: ignore[arg-type]
    return float(array.reshape(-1)[focus.index[axis]])
