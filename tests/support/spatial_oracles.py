"""What TensorRT documents of its spatial layers, in numpy: NvInfer.h's formulas, an element at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
EXPLICIT = ("EXPLICIT_ROUND_DOWN", "EXPLICIT_ROUND_UP")
MODES = (*EXPLICIT, "SAME_UPPER", "SAME_LOWER")
RANDOM = np.random.default_rng(7)
Window = tuple[tuple[int, ...], list[int], list[list[tuple[int, int]]], list[int]]


def image(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def close(found: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def padded(mode: str, i: int, f: int, s: int, b: int, a: int, d: int = 1) -> tuple[int, int, int]:
    """Output length, padding before and padding after of a convolution or pooling, for one axis."""
    dk = 1 + d * (f - 1)
    if mode in EXPLICIT:
        whole, rest = divmod(i + b + a - dk, s)
        return whole + 1 + (rest > 0 and mode == "EXPLICIT_ROUND_UP"), b, a
    p = max((i - 1) // s * s + dk - i, 0)
    small, large = p // 2, p - p // 2
    return -(-i // s), *((small, large) if mode == "SAME_UPPER" else (large, small))


def windows(
    x: Array, mode: str, size: Sequence[int], stride: Sequence[int], pads: Sequence[Sequence[int]], d: int = 1
) -> Iterator[Window]:
    """Each output position, the output's shape, the elements of each axis that the window sees (place in the kernel,
    place in the image) and how many of each axis lie in the padded image."""
    axes = [
        padded(mode, i, f, s, b, a, d) for i, f, s, b, a in zip(x.shape[2:], size, stride, *pads, strict=True)
    ]
    for place in itertools.product(*(range(o) for o, _, _ in axes)):
        starts = [p * s - b for p, s, (_, b, _) in zip(place, stride, axes, strict=True)]
        taps = [
            [(k, start + k * d) for k in range(f) if 0 <= start + k * d < i]
            for start, f, i in zip(starts, size, x.shape[2:], strict=True)
        ]
        around = [
            sum(-b <= start + k < i + a for k in range(f))
            for start, f, i, (_, b, a) in zip(starts, size, x.shape[2:], axes, strict=True)
        ]
        yield place, [o for o, _, _ in axes], taps, around


def pooled(x: Array, word: str, inside: bool, *where: Any) -> Array:
    out: Array | None = None
    for place, shape, taps, around in windows(x, *where):
        if out is None:
            out = np.zeros((*x.shape[:2], *shape))
        seen = x[(slice(None), slice(None), *np.ix_(*([at for _, at in axis] for axis in taps)))]
        axes = tuple(range(2, x.ndim))
        largest = seen.max(axis=axes, initial=-np.inf)
        count = np.prod(seen.shape[2:]) if inside else np.prod(around)
        mean = seen.sum(axis=axes) / count if count else np.full(x.shape[:2], np.nan)
        out[(slice(None), slice(None), *place)] = {"MAX": largest, "AVERAGE": mean}[word]
    assert out is not None
    return out


def convolved(x: Array, kernel: Array, groups: int, *where: Any) -> Array:
    maps, inner = kernel.shape[0] // groups, kernel.shape[1]
    out: Array | None = None
    for place, shape, taps, _ in windows(x, *where):
        if out is None:
            out = np.zeros((x.shape[0], kernel.shape[0], *shape))
        seen = x[(slice(None), slice(None), *np.ix_(*([at for _, at in axis] for axis in taps)))]
        part = kernel[(slice(None), slice(None), *np.ix_(*([k for k, _ in axis] for axis in taps)))]
        for group in range(groups):
            into, of = slice(group * maps, (group + 1) * maps), slice(group * inner, (group + 1) * inner)
            n = x.ndim - 1
            out[(slice(None), into, *place)] = np.tensordot(
                seen[:, of], part[into], (range(1, n + 1), range(1, n + 1))
            )
    assert out is not None
    return out


def deconvolved(
    x: Array,
    kernel: Array,
    mode: str,
    stride: Sequence[int],
    pads: Sequence[Sequence[int]],
    d: int,
    groups: int,
) -> Array:
    """Each input element spreads its multiple of the kernel; the padding is cut off."""
    size, maps = kernel.shape[2:], kernel.shape[1]
    whole = [(i - 1) * s + 1 + d * (f - 1) for i, s, f in zip(x.shape[2:], stride, size, strict=True)]
    out = np.zeros((x.shape[0], maps * groups, *whole))
    inner = x.shape[1] // groups
    for place in itertools.product(*map(range, x.shape[2:])):
        at = tuple(
            slice(p * s, p * s + d * (f - 1) + 1, d) for p, s, f in zip(place, stride, size, strict=True)
        )
        for group in range(groups):
            of = slice(group * inner, (group + 1) * inner)
            part = np.tensordot(x[(slice(None), of, *place)], kernel[of], (1, 0))
            out[(slice(None), slice(group * maps, (group + 1) * maps), *at)] += part
    cut = [slice(None), slice(None)]
    for f, s, b, a, o in zip(size, stride, *pads, whole, strict=True):
        if mode not in EXPLICIT:
            p = max(1 + d * (f - 1) - s, 0)
            b, a = (p // 2, p - p // 2) if mode == "SAME_UPPER" else (p - p // 2, p // 2)
        cut.append(slice(b, o - a))
    return out[tuple(cut)]


# -- the formulas of IResizeLayer


def resized(x: Array, shape: Sequence[int], scales: Sequence[float] = (), **how: Any) -> Array:
    """``x`` resized to ``shape`` in float64, an axis at a time: a matrix of weights for each."""
    value = x.astype(np.float64)
    for axis, (before, after) in enumerate(zip(x.shape, shape, strict=True)):
        if before != after or (scales and scales[axis] != 1):
            weights = matrix(before, after, np.float32(scales[axis]) if scales else None, **how)
            value = np.moveaxis(np.tensordot(weights, value, (1, axis)), 0, axis)
    return value


def matrix(
    i: int,
    o: int,
    scale: Any,
    mode: str,
    where: str,
    rounding: str = "FLOOR",
    upper: bool = False,
    a: float = -0.75,
    exclude: bool = False,
) -> Array:
    out = np.zeros((o, i))
    for place in range(o):
        ratio = 1 / np.float64(scale) if scale is not None else i / o
        if where == "ALIGN_CORNERS":
            length = i * np.float64(scale) if scale is not None else o
            at = 0.0 if o == 1 else place * (i - 1) / (length - 1)
        else:
            at = place * ratio if where == "ASYMMETRIC" else (place + 0.5) * ratio - 0.5
        if upper and o == 1:
            at = 0.0
        if mode == "NEAREST":
            halves = {"HALF_UP": np.floor(at + 0.5), "HALF_DOWN": np.ceil(at - 0.5)}
            at = {**halves, "FLOOR": np.floor(at), "CEIL": np.ceil(at)}[rounding]
            out[place, int(np.clip(at, 0, i - 1))] = 1
            continue
        low = int(np.floor(at))
        taps = [(low, 1 - (at - low)), (low + 1, at - low)]
        if mode == "CUBIC":
            taps = [(low + k, cubic(abs(at - low - k), a)) for k in (-1, 0, 1, 2)]
            if exclude:
                taps = [(k, w) for k, w in taps if 0 <= k < i]
                taps = [(k, w / sum(w for _, w in taps)) for k, w in taps]
        for k, weight in taps:
            out[place, min(max(k, 0), i - 1)] += weight
    return out


def cubic(x: float, a: float) -> float:
    return ((a + 2) * x - (a + 3)) * x * x + 1 if x <= 1 else ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


# -- boxes


def chosen(
    boxes: Array, scores: Array, most: int, iou: float, least: float, centers: bool, limit: int
) -> list[list[int]]:
    """Rows of batch, class and box as INMSLayer documents them. ``scores`` are (batch, box, class), all different."""
    rows = []
    for batch in range(scores.shape[0]):
        order = sorted(np.ndindex(*scores.shape[1:]), key=lambda at: -scores[(batch, *at)])[:limit]
        taken: dict[int, list[Array]] = {}
        for box, kind in order:
            if scores[batch, box, kind] <= least:
                continue
            one = corners(boxes[batch, box], centers)
            mine = taken.setdefault(kind, [])
            if len(mine) < most and all(overlap(one, other) <= iou for other in mine):
                mine.append(one)
                rows.append([batch, kind, box])
    return rows


def corners(box: Array, centers: bool) -> Array:
    """Smaller x and y, larger x and y."""
    if centers:
        return np.concatenate([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2])
    return np.concatenate([np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])])


def overlap(one: Array, other: Array) -> float:
    """Intersection over union."""
    inner = np.maximum(np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2]), 0).prod()
    return float(inner / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - inner))
