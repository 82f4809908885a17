"""Integers for an input: indices stay inside what they index, shapes are shapes, and masks are masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from onnxfix.verification.feeds.draw import Array, Draw

#: Uses as a size or a count: a large value would mean a large tensor or a long loop.
_SIZES = frozenset(
    (
        "size",
        "reshape",
        "expand",
        "repeat",
        "limit",
        "start",
        "one",
        "pads",
        "split",
        "depth",
        "scales",
        "length",
    )
)
#: Operands that must suit the shape of the data: (that shape, how many numbers) -> the numbers.
_FROM_DATA: dict[str, Callable[[tuple[int, ...], int], list[int]]] = {
    "grid": lambda data, count: [*data[:1], *range(1, count)],  # AffineGrid: the batch of theta, then free
    "image": lambda data, count: [*data[-1:], *[1] * (count - 1)],  # Col2Im with blocks of one pixel
    "unpooled": lambda data, _: [*data[:2], *(2 * size + 1 for size in data[2:])],
}
_SHAPE_LIKE = ("reshape", "expand", "split", "axes", "pads", "length", "depth", "repeat", "size")


def integers(draw: Draw, dtype: np.dtype[Any]) -> Array:
    """Integers of the input's shape that ``dtype`` can hold."""
    strict, kind = draw.role.strict, draw.kind
    limited = draw.limited()
    if limited is not None:
        return limited
    if strict & {"index", "index_nd", "class"}:
        return _indices(draw)
    for sort in (*_SHAPE_LIKE, *_FROM_DATA):
        if sort in strict:
            return _shape_like(draw, sort)
    plain = {"zero": 0, "start": 0, "one": 1, "limit": 3, "true": 1, "false": 0}
    for sort, value in plain.items():
        if sort in strict:
            return draw.full(value)
    low = {"divisor": 1, "shift": 0, "exponent": 0}
    for sort, least in low.items():
        if sort in strict:
            return draw.rng.integers(least, 4, draw.shape)
    if "low" in strict or "high" in strict:
        return draw.full(1 if "low" in strict else 5)
    if kind in ("zeros", "ones", "small"):
        return draw.full(0) if kind == "zeros" else draw.full(1) if kind == "ones" else draw.mask()
    if "mask" in draw.name:
        return draw.mask()
    if "len" in draw.name or draw.role.loose & _SIZES:
        return draw.rng.integers(1, 4, draw.shape)
    if draw.role.loose & {"index", "index_nd", "class", "zero", "axes"}:
        return draw.rng.integers(0, 2, draw.shape)
    if draw.role.masks and kind == "normal" and draw.seed % 2 == 0:
        return draw.mask()
    return _ints(draw, dtype)


def _indices(draw: Draw) -> Array:
    sizes = draw.bounds()
    known = [size for size in sizes if size is not None and size > 0]
    # An unknown axis (its data is computed) is taken to be at least 2 long; fallbacks try 0 alone.
    least = min(known) if known else 4 if "class" in draw.role.strict else 2
    if None in sizes:
        least = min(least, 2) if not known else least
    if draw.kind in ("zeros", "small", "ones"):
        return draw.full(0) if draw.kind == "zeros" else draw.rng.integers(0, min(least, 2), draw.shape)
    if "position" in draw.name and draw.shape:
        steps = np.minimum(np.arange(draw.shape[-1]), least - 1)
        return np.broadcast_to(steps, draw.shape).astype(np.int64)
    picked = draw.rng.integers(0, least, draw.shape)
    if draw.kind != "normal" and picked.size:
        picked.reshape(-1)[0] = least - 1
        picked.reshape(-1)[-1] = 0
    return picked


def _shape_like(draw: Draw, sort: str) -> Array:
    count = math.prod(draw.shape)
    beside = draw.beside()
    if sort == "axes":
        return np.arange(count) if draw.kind != "zeros" else draw.full(0)
    if sort == "pads":
        return draw.rng.integers(0, 2, count) if draw.kind != "zeros" else draw.full(0)
    if sort == "reshape":
        if beside is not None and len(beside) == count and draw.kind != "ones":
            return np.array(beside if draw.seed % 2 else beside[::-1])
        return np.array([-1, *[1] * (count - 1)][:count])
    if sort == "expand":
        fits = beside is not None and len(beside) == count and draw.kind != "ones"
        return np.array(beside) if fits else np.ones(count, np.int64)
    if sort in _FROM_DATA and draw.kind in ("normal", "edge", "extreme"):
        made = _FROM_DATA[sort](beside, count) if beside is not None else []
        return np.array(made if len(made) == count else [2] * count)
    if sort == "split":
        total = next((size for size in draw.bounds() if size is not None), count)
        part = total // max(count, 1)
        return np.array([part] * (count - 1) + [total - part * (count - 1)]) if draw.shape else draw.full(1)
    if sort == "length":
        longest = min((size for size in beside or () if size > 0), default=1)
        return draw.rng.integers(1, longest + 1, draw.shape)
    if sort == "depth":
        return draw.full(5)
    if draw.kind in ("zeros", "ones"):
        return draw.full(1)
    least, most = {"size": (1, 3), "image": (2, 6)}.get(sort, (1, 2))
    return draw.rng.integers(least, most + 1, draw.shape)


def _ints(draw: Draw, dtype: np.dtype[Any]) -> Array:
    least, most = integer_range(dtype)
    values = draw.rng.integers(max(least, -50), min(50, most) + 1, draw.shape).astype(object)
    flat = values.reshape(-1)
    edges = [0, 1, -1, least if most < 1 << 15 else -129, most if most < 1 << 15 else 300]
    if draw.kind == "extreme":
        limits = [2**31 - 1, -(2**31), 2**31, 2**24 + 1, 2**53 + 1]
        edges = [least, most, 0, -1, 1, *limits, 255, 256, -129, 65536]
    draw.put(flat, [edge for edge in edges if least <= edge <= most], 2)
    draw.put_compared(flat, [number for number in draw.role.compared if least <= number <= most])
    draw.put_points(flat, [round(point) for point in draw.points(least, most)])
    return flat.reshape(draw.shape)


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and greatest value of an integer type, also of one that numpy has no name for, such as int4."""
    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)
