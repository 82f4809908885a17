"""Differences that number formats make: values out of range, fewer bits, terms that cancel, sums in another order."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from onnxfix.diagnosis.evidence import (
    Array,
    Evidence,
    Focus,
    Limits,
    at,
    blocks,
    limits,
    number,
    numeric,
    unit_of,
)
from onnxfix.diagnosis.records import Explanation
from onnxfix.diagnosis.terms import PRODUCTS, Terms, element, terms_of

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
        near_the_end = lost and abs(focus.true) >= 1e37
        return (
            ("overflow", f"float32 ends at 3.4e+38: the output is {focus.values}") if near_the_end else None
        )
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
    """A value that an integer type cannot hold: a Cast, 64 bits computed in 32."""
    kind = focus.truth.dtype
    if kind.kind not in "iu" and focus.own.dtype.kind not in "iu":
        return None
    if evidence.node.op_type == "Cast":
        return _cast(evidence, focus)
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


FLOAT32 = 2.0**-24
"""The relative size of one rounding of float32."""
TF32 = 2.0**-11
"""That of TensorFloat-32, which has 10 bits after the leading one."""
_CANCELED = 16.0
"""Terms that are so many times larger than the output's scale cancel out: more than one decimal digit is lost."""
_AMPLIFIED = 16.0
"""A node whose output moves so many times further than its inputs is ill-conditioned."""
_ORDER = 4.0
"""Times the square root of the number of terms: how far sums of another order differ, in roundings of the magnitude."""


def unit(evidence: Evidence) -> float:
    """The relative size of one rounding on the other side."""
    if evidence.precision:
        return limits(evidence.precision).unit
    return FLOAT32


def is_rounding(evidence: Evidence, focus: Focus) -> bool:
    """Whether the error is no more than the rounding of the type that both sides have, or than the measured noise."""
    if not math.isfinite(focus.error):
        return False
    kind, step = focus.truth.dtype, 0.0
    if kind.kind not in "biu":
        with contextlib.suppress(ValueError):
            step = float(ml_dtypes.finfo(kind).eps)  # type: ignore[no-untyped-call]
    return focus.share <= max(4 * step, evidence.error.noise) and not evidence.precision


def in_float32_order(evidence: Evidence, focus: Focus) -> Explanation | None:
    """Sums of float32 in another order: within what their terms explain."""
    terms = _terms(evidence, focus)
    if (
        terms is None
        or evidence.precision
        or focus.truth.dtype != np.float32
        or not math.isfinite(focus.error)
    ):
        return None
    bound = _ORDER * math.sqrt(terms.count) * FLOAT32 * terms.magnitude
    if focus.error > bound:
        return None
    return "kernel", (
        f"another order of the sums: {terms.count} terms with magnitudes of {number(terms.magnitude)} in all explain "
        f"up to {bound:.2g}, and the error is {focus.error:.2g}"
    )


def tf32(evidence: Evidence, focus: Focus) -> Explanation | None:
    """Products of factors that were rounded to TensorFloat-32."""
    terms = _terms(evidence, focus)
    if terms is None or evidence.node.op_type not in PRODUCTS or not math.isfinite(focus.error):
        return None
    bound = 2 * TF32 * terms.magnitude
    if focus.error > bound:
        return None
    shown = f"the error is {focus.error:.2g}, {focus.error / terms.magnitude / TF32:.2g} units of 2^-11 of the terms"
    return "kernel", f"TF32: {shown} (exact: {number(terms.value())}{at(focus.index)}, {terms.count} terms)"


def cancellation(evidence: Evidence, focus: Focus) -> Explanation | None:
    """Large terms that cancel out, so that what remains is made of their rounding errors."""
    if not math.isfinite(focus.error) or not focus.scale:
        return None
    terms = _terms(evidence, focus)
    if terms is None:
        return None
    count, ratio = terms.count, terms.magnitude / focus.scale
    # Terms of random signs add up to the square root of their number.
    if (
        ratio < max(_CANCELED, math.sqrt(count))
        or focus.share > _ORDER * (math.sqrt(count) + 1) * unit(evidence) * ratio
    ):
        return None
    return "cancellation", (
        f"terms with magnitudes of {number(terms.magnitude)} cancel out to {number(focus.scale)} at most, which loses "
        f"{math.log10(ratio):.1f} decimal digits: {focus.values}"
    )


def _terms(evidence: Evidence, focus: Focus) -> Terms | None:
    if evidence.node.output[:1] != [focus.name]:
        return None
    return terms_of(evidence.node, evidence.inputs, focus.index)


def ill_conditioned(evidence: Evidence, focus: Focus) -> Explanation | None:
    """A truth that moves as far when its inputs move by one rounding."""
    if focus.wander is None or not focus.wander or not focus.scale:
        return None
    moved = unit_of(evidence)
    factor = focus.wander / focus.scale / moved
    if not (math.isinf(focus.wander) or factor >= _AMPLIFIED) or focus.error > 4 * focus.wander:
        return None
    inputs = f"inputs moved by {moved:.1g} of themselves"
    if math.isinf(focus.wander):
        return "ill-conditioned", f"with {inputs} the truth itself is no longer finite everywhere"
    return "ill-conditioned", (
        f"{inputs} move the truth itself by {focus.wander / focus.scale:.2g} of its scale ({factor:.2g} times as "
        f"much), and the error is {focus.share:.2g}"
    )


def precision(evidence: Evidence, focus: Focus) -> Explanation | None:
    """Fewer bits: an error of some roundings of the lower precision."""
    low = evidence.precision
    if not low or not math.isfinite(focus.error):
        return None
    step = unit(evidence)
    units = focus.share / step
    terms = _terms(evidence, focus)
    bound = 8.0
    if terms is not None and focus.scale:
        bound = max(bound, 2 * _ORDER * terms.magnitude / focus.scale)
    if units > bound and evidence.against not in ("fp16", "bf16"):
        return None
    power = round(math.log2(step))
    return "precision", (
        f"it computes in {low}: the error is {focus.share:.2g} of the output's scale of {number(focus.scale)}, "
        f"{units:.2g} roundings of {low} (2^{power})"
    )
