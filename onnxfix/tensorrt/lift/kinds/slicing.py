"""Slices: elements picked by where they are, or put around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from onnxfix.tensorrt.lift.emit import Emit, lifts
from onnxfix.tensorrt.lift.kinds.moving import Vector, carrier, size_of, vector
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable

#: As the end of an ONNX Slice that goes backwards: as far as there are elements.
_FIRST = -(2**63)
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Window:
    """The elements that a slice reads: along each of ``axes``, ``size`` of them from ``start``, ``stride`` apart. The
    stride may be negative, or 0 for the same element again and again."""

    axes: tuple[int, ...]
    start: Vector
    size: Vector
    stride: Vector

    @property
    def rows(self) -> list[tuple[int, int, int, int]] | None:
        """Axis, start, size and stride for each axis; None where any of them is not known."""
        parts = (self.start.known, self.size.known, self.stride.known)
        if parts[0] is None or parts[1] is None or parts[2] is None:
            return None
        return list(zip(self.axes, parts[0], parts[1], parts[2], strict=True))

    @property
    def repeats(self) -> bool:
        """Whether an element may be read more than once for its stride."""
        return self.stride.known is None or 0 in self.stride.known


@lifts("SLICE")
def _slice(e: Emit, layer: Layer) -> str:
    """Inputs 1 start, 2 size, 3 stride, 4 what to fill with, 5 axes; properties for those that are left out. Size is
    the output's, start counts from the first element and is never relative to the end (NvInfer.h, ISliceLayer;
    coordinates outside: TensorRT's operator reference, Slice)."""
    data, mode = layer.need(0), layer.word("mode")
    if data.rank == 0:
        return e.op("Identity", e.of(data))
    window = _window(e, layer, data)
    needs = {"STRICT_BOUNDS": ("Slice", "Expand") if window.repeats else ("Slice",), "FILL": ("Pad",)}
    wide = carrier(data.dtype, *needs.get(mode, ("Gather",)))
    value = before = e.as_type(data, wide)
    if mode == "STRICT_BOUNDS":
        value = _strided(e, value, data.dims, window)
    elif mode == "FILL":
        value = _filled(e, value, data.dims, window, _filler(e, layer, data, wide))
    elif mode in _WHERE:
        value = _picked(e, value, data, window, mode)
    else:
        raise Unliftable(f"its mode {mode} is not known")
    return e.op("Identity", e.of(data)) if value == before else e.turn(value, wide, data.dtype)


def _window(e: Emit, layer: Layer, data: Tensor) -> _Window:
    parts = [vector(e, layer, place, name) for place, name in ((1, "start"), (2, "shape"), (3, "stride"))]
    start, size, stride = parts
    if start is None or size is None or stride is None:
        raise Unliftable("its start, size or stride is left out")
    axes = vector(e, layer, 5, "axes")
    if axes is None:
        return _Window(tuple(range(data.rank)), start, size, stride)
    if axes.known is not None:
        return _Window(tuple(axis % data.rank for axis in axes.known), start, size, stride)
    # Axes that are not known before it runs: put what they say into what says nothing.
    nothing = (e.ints([0] * data.rank), e.op("Shape", e.of(data)), e.ints([1] * data.rank))
    every = [
        Vector(None, e.op("ScatterElements", frame, axes.name, part.value(e)))
        for frame, part in zip(nothing, (start, size, stride), strict=True)
    ]
    return _Window(tuple(range(data.rank)), *every)


def _strided(e: Emit, value: str, dims: Sequence[int], window: _Window) -> str:
    """STRICT_BOUNDS: all elements are inside. TensorRT fails where they are not; here that shows where it is known
    before the model runs, else ONNX's Slice makes fewer elements."""
    rows = window.rows
    if rows is None:
        return _strided_later(e, value, dims, window)
    for axis, start, size, stride in rows:
        ends = start, start + (size - 1) * stride
        if size and (min(ends) < 0 or 0 <= dims[axis] <= max(ends)):
            raise Unliftable(f"it reads from {min(ends)} to {max(ends)} along axis {axis}, which is outside")
    cut = [
        row for row in rows if row[1:] != (0, dims[row[0]], 1) and (row[3] or dims[row[0]] != 1 or not row[2])
    ]
    if cut:
        stops: list[int] = []
        steps: list[int] = []
        for _, start, size, stride in cut:
            end = start + (size if stride else min(size, 1)) * (stride or 1)
            stops.append(end if end >= 0 and size else _FIRST if size else 0)
            steps.append(stride or 1)
        starts = [start if size else 0 for _, start, size, _ in cut]
        by = e.ints(steps) if set(steps) != {1} else ""
        value = e.op("Slice", value, e.ints(starts), e.ints(stops), e.ints([row[0] for row in cut]), by)
    if any(not stride and size > 1 for _, _, size, stride in rows):
        shape = dict.fromkeys(range(len(dims)), 1)
        shape.update({axis: size for axis, _, size, stride in rows if not stride})
        value = e.op("Expand", value, e.ints(list(shape.values())))
    return value


def _strided_later(e: Emit, value: str, dims: Sequence[int], window: _Window) -> str:
    """The same, with numbers that are not known before it runs."""
    start, size, stride = window.start, window.size, window.stride
    if start.known is not None and min(start.known, default=0) < 0:
        raise Unliftable(f"it reads from {min(start.known)}, which is outside")
    alike = (
        stride.known is not None and not any(stride.known) and all(dims[axis] == 1 for axis in window.axes)
    )
    if not alike:
        one, count, back = e.ints([1]), size.value(e), True
        if stride.known is None:
            still = e.op("Equal", stride.name, e.ints([0]))
            step = e.op("Where", still, one, stride.name)
        else:
            still = e.const(np.array([not by for by in stride.known]))
            step = e.ints([by or 1 for by in stride.known])
            back = min(stride.known, default=1) < 0
        if window.repeats:
            count = e.op("Where", still, e.op("Min", count, one), count)
        plain = stride.known is not None and set(stride.known) <= {0, 1}
        end = count if plain else e.op("Mul", count, step)
        if start.known is None or any(start.known):
            end = e.op("Add", start.value(e), end)
        if back:
            end = e.op("Where", e.op("Less", end, e.ints([0])), e.ints([_FIRST]), end)
        value = e.op("Slice", value, start.value(e), end, e.ints(window.axes), "" if plain else step)
    if window.repeats:
        value = e.op("Expand", value, _shape(e, len(dims), window))
    return value


def _shape(e: Emit, rank: int, window: _Window) -> str:
    """The shape of the output along the window's axes, 1 along the others."""
    if window.axes == tuple(range(rank)):
        return window.size.value(e)
    return e.op("ScatterElements", e.ints([1] * rank), e.ints(window.axes), window.size.value(e))


def _filler(e: Emit, layer: Layer, data: Tensor, wide: str) -> str:
    """What FILL reads outside, a scalar: input 4, or 0."""
    given = layer.input(4)
    if given is None:
        return ""
    if given.dtype != data.dtype:
        raise Unliftable(f"it fills {data.dtype} with {given.dtype}")
    value = e.as_type(given, wide)
    return e.op("Reshape", value, e.ints([])) if given.rank else value


def _filled(e: Emit, value: str, dims: Sequence[int], window: _Window, filler: str) -> str:
    """FILL: pad to hold all that is read, and slice that."""
    rows, axes = window.rows, window.axes
    if rows is None or any(dims[axis] < 0 for axis in axes):
        return _filled_later(e, value, dims, window, filler)
    ends = [
        sorted((start, start + (size - 1) * stride)) if size else (0, -1) for _, start, size, stride in rows
    ]
    low = [max(0, -first) for first, _ in ends]
    high = [max(0, last + 1 - dims[axis]) for axis, (_, last) in zip(axes, ends, strict=True)]
    if any(low) or any(high):
        value = e.op("Pad", value, e.ints([*low, *high]), filler, e.ints(axes))
    padded = list(dims)
    for axis, before, after in zip(axes, low, high, strict=True):
        padded[axis] += before + after
    starts = Vector(tuple(row[1] + before for row, before in zip(rows, low, strict=True)))
    return _strided(e, value, padded, replace(window, start=starts))


def _filled_later(e: Emit, value: str, dims: Sequence[int], window: _Window, filler: str) -> str:
    """The same, with numbers that are not known before it runs."""
    start, zero, one = window.start, e.ints([0]), e.ints([1])
    begin, ahead = (
        start.value(e),
        window.stride.known is not None and min(window.stride.known, default=1) >= 0,
    )
    past = e.op("Sub", window.size.value(e), one)  # from the first to the last
    if window.stride.known is None or set(window.stride.known) != {1}:
        past = e.op("Mul", past, window.stride.value(e))
    last = e.op("Add", begin, past)
    first = begin if ahead else e.op("Min", begin, last)
    sizes = e.op("Shape", value)
    if window.axes != tuple(range(len(dims))):
        sizes = e.op("Gather", sizes, e.ints(window.axes))
    end = e.op("Add", last if ahead else e.op("Max", begin, last), one)
    high = e.op("Max", e.op("Sub", end, sizes), zero)
    if start.known is not None and ahead:
        below = tuple(max(0, -number) for number in start.known)
        low, starts = e.ints(below), Vector(tuple(map(sum, zip(start.known, below, strict=True))))
    else:
        low = e.op("Max", e.op("Neg", first), zero)
        starts = Vector(None, e.op("Add", begin, low))
    value = e.op("Pad", value, e.op("Concat", low, high, axis=0), filler, e.ints(window.axes))
    return _strided_later(e, value, (-1,) * len(dims), replace(window, start=starts))


def _picked(e: Emit, value: str, data: Tensor, window: _Window, mode: str) -> str:
    """WRAP, CLAMP and REFLECT: along each axis, the elements with these numbers."""
    rows = window.rows
    for place, axis in enumerate(window.axes):
        extent = data.dims[axis]
        if rows is not None and extent >= 0:
            _, start, size, stride = rows[place]
            if size and not extent:
                raise Unliftable(f"it reads along axis {axis}, which has no elements")
            numbers = _WHERE[mode](start + np.arange(size, dtype=np.int64) * stride, extent)
            if not np.array_equal(numbers, np.arange(extent)):
                value = e.op("Gather", value, e.const(numbers), axis=axis)
            continue
        zero, one = e.const(0, "INT64"), e.const(1, "INT64")
        there = e.op("Range", zero, window.size.at(e, place), one)
        if window.stride.known is None or window.stride.known[place] != 1:
            there = e.op("Mul", there, window.stride.at(e, place))
        if window.start.known is None or window.start.known[place]:
            there = e.op("Add", there, window.start.at(e, place))
        value = e.op("Gather", value, _inside_later(e, there, size_of(e, data, axis), mode), axis=axis)
    return value


#: Where a coordinate outside of an axis of that many elements reads.
_WHERE: dict[str, Callable[[_Numbers, int], _Numbers]] = {
    "WRAP": lambda x, extent: x % max(extent, 1),
    "CLAMP": lambda x, extent: np.clip(x, 0, max(extent - 1, 0)),
    # One element has nothing to reflect at, and is repeated (NvInfer.h, SampleMode).
    "REFLECT": lambda x, extent: extent - 1 - np.abs(np.abs(x) % max(2 * extent - 2, 1) - extent + 1),
}


def _inside_later(e: Emit, there: str, extent: str, mode: str) -> str:
    """The same, for a scalar ``extent`` that is not known before it runs."""
    one = e.const(1, "INT64")
    if mode == "WRAP":
        return e.op("Mod", there, extent)
    last = e.op("Sub", extent, one)
    if mode == "CLAMP":
        return e.op("Clip", there, e.const(0, "INT64"), last)
    turn = e.op("Add", last, last)
    there = e.op("Mod", there, e.op("Max", turn, one))
    return e.op("Min", there, e.op("Sub", turn, there))
