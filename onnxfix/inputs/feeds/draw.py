"""Random values for one input of a model: the code that all element types share, and integers.

Indices stay within the axes that they index, shape operands fit the data, and masks hold 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.flow import HARMLESS
from onnxfix.inputs.feeds.signature import FLOATS, Input, Signature

Array = Any
#: "normal": plausible values. "edge": also 0.0, -0.0, tiny and large values. "extreme": the limits of the types, for
#: comparisons that demand identical bits. "small", "zeros", "ones": for models that reject the other kinds. "large":
#: magnitudes from 1 to 2048, so that squares, sums and products pass 65504, half precision's largest number.
#: "quantized": values around the limits of the model's quantizers.
Kind = Literal["normal", "edge", "extreme", "small", "zeros", "ones", "large", "quantized"]
KINDS: tuple[Kind, ...] = ("normal", "edge", "extreme", "small", "zeros", "ones", "large", "quantized")

#: Uses in which a number only has to be within limits.
_LIMITED = HARMLESS | {"index_nd", "length"}
_MAX_ELEMENTS = 1 << 28


def shape_of(known: Signature, one: Input, assignment: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input under an assignment."""
    if one.dims is None:
        rank = assignment.get(f"{one.name}.rank", 2)
        return tuple(assignment.get(f"{one.name}.{axis}", 2) for axis in range(rank))
    sizes = (known.size(dim, assignment) for dim in one.dims)
    return tuple(2 if size is None else size for size in sizes)


@dataclass
class Draw:
    """Generates the value of one input with ``rng``, for an assignment, a seed and a kind of data. ``make_inputs``
    describes ``gain`` and ``turn``."""

    known: Signature
    one: Input
    assignment: Mapping[str, int]
    rng: np.random.Generator
    seed: int
    kind: Kind
    gain: float = 1.0
    turn: int = 0

    def __post_init__(self) -> None:
        self.role, self.name = self.known.roles[self.one.name], self.one.name.lower()
        self.shape = shape_of(self.known, self.one, self.assignment)
        if math.prod(self.shape) > _MAX_ELEMENTS:
            raise UsageError(
                f"input {self.one.name} of shape {self.shape} is too large to make test data for"
            )

    def mask(self) -> Array:
        """Zeros and ones, with a 1 in each row: a row of zeros would give a softmax nothing but -inf."""
        mask = self.rng.integers(0, 2, self.shape)
        if mask.ndim and mask.shape[-1]:
            mask[..., 0] = 1
        return mask if mask.ndim else np.ones((), np.int64)

    def beside(self) -> tuple[int, ...] | None:
        """The shape of the data that this shape-like operand applies to; None if a size is unknown."""
        for dims in self.role.beside:
            sizes = [self.known.size(dim, self.assignment) for dim in dims] if dims is not None else [None]
            if all(size is not None for size in sizes):
                return tuple(size for size in sizes if size is not None)
        return None

    def bounds(self) -> list[int | None]:
        """The sizes of the axes that the input indexes; None for an unknown size."""
        return [self.known.size(bound, self.assignment) for bound in self.role.bounds]

    def full(self, value: int) -> Array:
        return np.full(self.shape, value, np.int64)

    def limited(self) -> Array | None:
        """Numbers within the known limits of an index or a length; None if no limits are known."""
        fit = self.role.strict <= _LIMITED
        ends = self.known.within(self.one.name, self.assignment) if fit else None
        if ends is None:
            return None
        least, most = math.ceil(ends[0]), math.floor(min(ends[1], ends[0] + 2**20))
        if "index" in self.role.strict:  # the limits do not cover tables in loops and functions
            most = min([most, *(size - 1 for size in self.bounds() if size is not None and size > 0)])
        if self.one.elem in FLOATS and (
            least > most or self.role.strict.isdisjoint(("index", "index_nd", "length"))
        ):
            return self.rng.uniform(ends[0], min(ends[1], ends[0] + 2**20), self.shape)
        if least > most:
            return None
        if "length" in self.role.strict and most > 0:
            least = max(least, 1)
        if self.kind == "zeros":
            return np.full(self.shape, min(max(0, least), most), np.int64)
        if "position" in self.name and self.shape:
            steps = np.minimum(np.arange(self.shape[-1]) + least, most)
            return np.broadcast_to(steps, self.shape).astype(np.int64)
        return self._pick(least, min(most, least + 1) if self.kind in ("small", "ones") else most)

    def _pick(self, least: int, most: int) -> Array:
        """Random numbers from ``least`` to ``most``. Kinds that test limits include both ends."""
        picked = self.rng.integers(least, most + 1, self.shape)
        for number in self.role.compared:
            if least <= number <= most and number == int(number) and picked.size > 1:
                picked.reshape(-1)[self.rng.integers(picked.size)] = int(number)
        if self.kind not in ("normal", "small", "ones") and picked.size:
            picked.reshape(-1)[0] = most
            picked.reshape(-1)[-1] = least
        return picked

    def points(self, least: float, most: float) -> list[float]:
        """The input's quantizer points that its type can hold, beginning where the previous feed ended."""
        if self.kind != "quantized":
            return []
        known = [one for one in self.known.quantizers.points.get(self.one.name, ()) if least <= one <= most]
        first = self.turn * math.prod(self.shape) % len(known) if known else 0
        return known[first:] + known[:first]

    def put_points(self, flat: Array, points: list[Any]) -> None:
        """Put the points, in order, into random elements: half of them, or all if the points fill that half."""
        count = flat.size if flat.size <= 2 * len(points) else flat.size // 2
        self._put(flat, points, count)

    def put_compared(self, flat: Array, numbers: list[float]) -> None:
        """Put numbers that the model compares the input with into a quarter of the elements (kind "normal")."""
        if self.kind == "normal":
            self._put(flat, numbers, max(1, flat.size // 4))

    def _put(self, flat: Array, values: list[Any], count: int) -> None:
        """Put the values, in order and repeatedly, into ``count`` elements at random places."""
        if values and flat.size:
            for number, place in enumerate(self.rng.permutation(flat.size)[:count]):
                flat[place] = values[number % len(values)]

    def put(self, flat: Array, edges: list[Any], part: int) -> None:
        """Put edge values, in random order, into one random element in ``part``, or into all of a short array."""
        if self.kind not in ("edge", "extreme") or not flat.size:
            return
        few = self.kind == "extreme" and flat.size <= 32
        places = self.rng.permutation(flat.size)[: flat.size if few else max(1, flat.size // part)]
        order = self.rng.permutation(len(edges))
        for number, place in enumerate(places):
            flat[place] = edges[order[number % len(edges)]]


# ------------------------------------------------------------------------------------------------------- integers

#: Uses as a size or a count: a large value would mean a large tensor or a long loop.
_SIZES = {
    *("size", "reshape", "expand", "repeat", "limit", "start", "one", "pads", "split", "depth", "scales"),
    "length",
}
#: Operands that must fit the shape of the data: (data shape, number of elements) -> their values.
_FROM_DATA: dict[str, Callable[[tuple[int, ...], int], list[int]]] = {
    "grid": lambda data, count: [*data[:1], *range(1, count)],  # AffineGrid: theta's batch, then any sizes
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
    # If no size is known, since the data is computed, assume at least 2. The kind "zeros" tries index 0 alone.
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
    data_shape = draw.beside()
    if sort == "axes":
        return np.arange(count) if draw.kind != "zeros" else draw.full(0)
    if sort == "pads":
        return draw.rng.integers(0, 2, count) if draw.kind != "zeros" else draw.full(0)
    if sort == "reshape":
        if data_shape is not None and len(data_shape) == count and draw.kind != "ones":
            return np.array(data_shape if draw.seed % 2 else data_shape[::-1])
        return np.array([-1, *[1] * (count - 1)][:count])
    if sort == "expand":
        fits = data_shape is not None and len(data_shape) == count and draw.kind != "ones"
        return np.array(data_shape) if fits else np.ones(count, np.int64)
    if sort in _FROM_DATA and draw.kind in ("normal", "edge", "extreme"):
        values = _FROM_DATA[sort](data_shape, count) if data_shape is not None else []
        return np.array(values if len(values) == count else [2] * count)
    if sort == "split":
        total = next((size for size in draw.bounds() if size is not None), count)
        part = total // max(count, 1)
        return np.array([part] * (count - 1) + [total - part * (count - 1)]) if draw.shape else draw.full(1)
    if sort == "length":
        longest = min((size for size in data_shape or () if size > 0), default=1)
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
    """Least and greatest value of an integer type, also of a type that numpy lacks, such as int4."""
    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)
