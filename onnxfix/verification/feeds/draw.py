"""How the value of one input is drawn: what is known of it, and what all element types have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onnxfix.errors import UsageError
from onnxfix.verification.feeds.operands import HARMLESS
from onnxfix.verification.feeds.signature import FLOATS, Input, Signature

Array = Any
#: "normal": plausible values. "edge": with 0.0, -0.0, tiny and large ones. "extreme": the limits of the types, for
#: comparisons that demand identical bits. "small", "zeros", "ones": for models that refuse the others. "large":
#: magnitudes from 1 to 2048, so that squares, sums and products pass 65504, half precision's largest number.
#: "quantized": with values around the limits of what is quantized.
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
    """The value of one input in the making: ``rng`` draws it, for an assignment, a seed and a kind of data. For the
    others see ``make_inputs``."""

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
        """0 and 1, with at least one 1 in each row: a row without any makes a softmax of nothing but -inf."""
        mask = self.rng.integers(0, 2, self.shape)
        if mask.ndim and mask.shape[-1]:
            mask[..., 0] = 1
        return mask if mask.ndim else np.ones((), np.int64)

    def beside(self) -> tuple[int, ...] | None:
        """The shape of the data beside a shape-like operand, when every dimension is known."""
        for dims in self.role.beside:
            sizes = [self.known.size(dim, self.assignment) for dim in dims] if dims is not None else [None]
            if all(size is not None for size in sizes):
                return tuple(size for size in sizes if size is not None)
        return None

    def bounds(self) -> list[int | None]:
        """The sizes of the axes that it indexes, as far as they are known."""
        return [self.known.size(bound, self.assignment) for bound in self.role.bounds]

    def full(self, value: int) -> Array:
        return np.full(self.shape, value, np.int64)

    def limited(self) -> Array | None:
        """Numbers within the limits that are known of indices and lengths; None where there are none."""
        fit = self.role.strict <= _LIMITED
        ends = self.known.within(self.one.name, self.assignment) if fit else None
        if ends is None:
            return None
        least, most = math.ceil(ends[0]), math.floor(min(ends[1], ends[0] + 2**20))
        if "index" in self.role.strict:  # tables in loops and functions, of which the limits say nothing
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
        return self._picked(least, min(most, least + 1) if self.kind in ("small", "ones") else most)

    def _picked(self, least: int, most: int) -> Array:
        """Numbers from ``least`` to ``most``; both ends are among them where the values are not just plausible."""
        picked = self.rng.integers(least, most + 1, self.shape)
        for number in self.role.compared:
            if least <= number <= most and number == int(number) and picked.size > 1:
                picked.reshape(-1)[self.rng.integers(picked.size)] = int(number)
        if self.kind not in ("normal", "small", "ones") and picked.size:
            picked.reshape(-1)[0] = most
            picked.reshape(-1)[-1] = least
        return picked

    def points(self, least: float, most: float) -> list[float]:
        """What to feed, as far as the input's type holds it, beginning where the feed before ended."""
        if self.kind != "quantized":
            return []
        known = [one for one in self.known.quantizers.points.get(self.one.name, ()) if least <= one <= most]
        first = self.turn * math.prod(self.shape) % len(known) if known else 0
        return known[first:] + known[:first]

    def put_points(self, flat: Array, points: list[Any]) -> None:
        """Put each of the points into some element, the first ones first, into half of all elements or into all."""
        count = flat.size if flat.size <= 2 * len(points) else flat.size // 2
        self._put(flat, points, count)

    def put_compared(self, flat: Array, numbers: list[float]) -> None:
        """Put what the model compares the input with into every fourth element of plausible values."""
        if self.kind == "normal":
            self._put(flat, numbers, max(1, flat.size // 4))

    def _put(self, flat: Array, values: list[Any], count: int) -> None:
        """Put values, the first ones first, into so many elements in random places."""
        if values and flat.size:
            for number, place in enumerate(self.rng.permutation(flat.size)[:count]):
                flat[place] = values[number % len(values)]

    def put(self, flat: Array, edges: list[Any], part: int) -> None:
        """Put edge values into every ``part``-th element, in random order and places; everywhere into a short one."""
        if self.kind not in ("edge", "extreme") or not flat.size:
            return
        few = self.kind == "extreme" and flat.size <= 32
        places = self.rng.permutation(flat.size)[: flat.size if few else max(1, flat.size // part)]
        order = self.rng.permutation(len(edges))
        for number, place in enumerate(places):
            flat[place] = edges[order[number % len(edges)]]
