"""Whether what was measured of a tensor is more than rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterable

from onnxfix.diagnosis.rows import Row

_SHARE = 8.0  # times the measured noise that is no difference
FLOOR = {"float64": 2.0**-48, "float32": 2.0**-19, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Share of a tensor's scale that another kernel, or another order of sums, may make of it: 32 units in the last place
for float32."""


def allowed(row: Row) -> float:
    """How far a tensor may be from the truth by rounding alone, in its own unit."""
    scale = row.own.scale if row.own is not None else 0.0
    return max(_SHARE * row.noise, _floor(row) * scale)


def _floor(row: Row) -> float:
    return max(row.kernels, FLOOR.get(row.dtype, 0.0)) if row.dtype in FLOOR else 0.0


def excess(row: Row) -> float:
    """The own error as a multiple of what rounding may make of it."""
    if row.own is None:
        return 0.0
    if row.own.shape or row.own.special > row.unstable:
        return math.inf
    limit = allowed(row)
    largest = row.own.largest / limit if limit else (math.inf if row.own.largest else 0.0)
    return max(largest, _typical_excess(row))


def _typical_excess(row: Row) -> float:
    """The same for the quantiles of all elements: where a few elements are unstable, or much larger than all others,
    the largest difference says nothing of the rest."""
    typical = row.own.typical if row.own is not None else None
    if row.own is None or typical is None:
        return 0.0
    scale = row.own.scale if row.dtype in FLOOR else 0.0
    found = [0.0]
    noises = row.typical_noise or (0.0,) * len(typical.off)
    for off, size, noise in zip(typical.off, typical.size, noises, strict=True):
        limit = max(_SHARE * noise, FLOOR.get(row.dtype, 0.0) * size, row.kernels * scale)
        if off:
            found.append(off / limit if limit else math.inf)
    return max(found)


def is_beyond(row: Row) -> bool:
    """Whether the region computes something else than the truth, beyond rounding."""
    return excess(row) > 1.0


def is_beyond_whole(row: Row) -> bool:
    """Whether a tensor of the other side's own run is beyond rounding."""
    if row.whole is None:
        return False
    limit = max(_SHARE * row.noise, 8 * _floor(row) * row.whole.scale)
    return not math.isfinite(row.whole.relative) or row.whole.largest > limit


def rounded_up(share: float) -> float:
    """Twice a share, rounded up to one digit: a tolerance that it passes with some room."""
    if share <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(2 * share))
    return math.ceil(2 * share / unit - 1e-9) * unit


def ranked_rows(rows: Iterable[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Rows by their own error, the worst of each node."""
    best: dict[int, tuple[int, Row]] = {}
    for feed, row in rows:
        if row.own is None:
            continue
        old = best.get(row.number)
        if old is None or own_size(row) > own_size(old[1]):
            best[row.number] = (feed, row)
    return sorted(best.values(), key=lambda one: (-own_size(one[1]), one[1].number))


def own_size(row: Row) -> float:
    """The own error as a share of the scale; 0 where it was not measured."""
    return row.own.relative if row.own is not None else 0.0
