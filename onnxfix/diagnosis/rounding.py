"""Differences that rounding makes: in fewer bits, of terms that cancel out, of sums in another order."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from onnxfix.diagnosis.facts import (
    Array,
    Evidence,
    Focus,
    at,
    limits,
    number,
    unit_of,
)
from onnxfix.diagnosis.records import Why
from onnxfix.diagnosis.terms import PRODUCTS, Terms, attributes, terms_of

Explanation = tuple[Why, str]

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
_NEAR = 0.3
"""Share of an error that a prediction of it may leave unexplained."""


def unit(evidence: Evidence) -> float:
    """The relative size of one rounding on the other side."""
    if evidence.precision:
        return limits(evidence.precision).unit
    return FLOAT32


def is_rounding(evidence: Evidence, focus: Focus) -> bool:
    """Whether the error is no more than the rounding of the type that both sides have, or than the measured noise."""
    if not math.isfinite(focus.error):
        return False
    kind = focus.truth.dtype
    step = _step(kind)
    return focus.share <= max(4 * step, evidence.error.noise) and not evidence.precision


def _step(kind: np.dtype[np.generic]) -> float:
    if kind.kind in "biu":
        return 0.0
    try:
        return float(ml_dtypes.finfo(kind).eps)  # type: ignore[no-untyped-call]
    except ValueError:
        return 0.0


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
    predicted = terms.value(to_tf32)
    shown = f"the error is {focus.error:.2g}, {focus.error / terms.magnitude / TF32:.2g} units of 2^-11 of the terms"
    if abs(focus.seen - predicted) <= _NEAR * focus.error:
        shown = f"rounding the factors to 10 bits gives {number(predicted)}, {evidence.side} has {number(focus.seen)}"
    return "kernel", f"TF32: {shown} (exact: {number(terms.value())}{at(focus.index)}, {terms.count} terms)"


def to_tf32(values: Array) -> Array:
    """Values rounded to TensorFloat-32 (10 bits after the leading one, to nearest even), as float64."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint64(0x1FFF)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def cancellation(evidence: Evidence, focus: Focus) -> Explanation | None:
    """Large terms that cancel out, so that what remains is made of their rounding errors."""
    if not math.isfinite(focus.error) or not focus.scale:
        return None
    found = _centered(evidence, focus)
    if found is None:
        terms = _terms(evidence, focus)
        if terms is None:
            return None
        found = terms.magnitude, terms.count, focus.scale
    size, count, left = found
    ratio = size / left
    # Terms of random signs add up to the square root of their number.
    if (
        ratio < max(_CANCELED, math.sqrt(count))
        or focus.share > _ORDER * (math.sqrt(count) + 1) * unit(evidence) * ratio
    ):
        return None
    return "cancellation", (
        f"terms with magnitudes of {number(size)} cancel out to {number(left)} at most, which loses "
        f"{math.log10(ratio):.1f} decimal digits: {focus.values}"
    )


def _terms(evidence: Evidence, focus: Focus) -> Terms | None:
    if evidence.node.output[:1] != [focus.name]:
        return None
    return terms_of(evidence.node, evidence.inputs, focus.index)


def _centered(evidence: Evidence, focus: Focus) -> tuple[float, int, float] | None:
    """Of a normalization: the largest magnitude that it centers around the worst element, how many there are, and the
    standard deviation that remains; None for other operators."""
    node = evidence.node
    data = evidence.inputs.get(node.input[0]) if node.input else None
    if data is None or data.ndim < 2 or data.shape != focus.truth.shape:
        return None
    if node.op_type == "LayerNormalization":
        axis = attributes(node).get("axis", -1) % data.ndim
        row = data[focus.index[:axis]]
    elif node.op_type == "InstanceNormalization":
        row = data[focus.index[:2]]
    else:
        return None
    values = np.asarray(row).astype(np.float64)
    spread = float(values.std())
    return (float(np.abs(values).max()), 1, spread) if spread else None


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
