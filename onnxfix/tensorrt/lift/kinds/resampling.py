"""Resizing and sampling at the points of a grid.

ONNX's Resize is written where it means what the layer does and ONNX Runtime runs it; the documented formulas, axis by
axis, where not. With an output shape the coordinates come of the two lengths. ``scales`` are taken as they were given,
as ONNX takes them, though IResizeLayer's formulas name lengths only: TensorRT's answers differ between a layer that
has scales and one that has the shape which these scales lead to (NVIDIA/TensorRT issue 823, and a remark in ONNX
Runtime's resize_op_test.cc), so it does not replace scales by lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxfix.tensorrt.lift.emit import Emit, lifts
from onnxfix.tensorrt.lift.network import Layer, Unliftable
from onnxfix.tensorrt.lift.records import FLOATS

_ROUNDING = {
    "HALF_UP": "round_prefer_ceil", "HALF_DOWN": "round_prefer_floor", "FLOOR": "floor", "CEIL": "ceil",
}  # fmt: skip
#: Ranks that ONNX Runtime interpolates, with the number of last axes that may change.
_RANKS = {"LINEAR": {2: 2, 3: 3, 4: 2, 5: 3}, "CUBIC": {2: 2, 4: 2}}


@dataclass(frozen=True)
class _Axis:
    """An axis that is resized: its number and, as float32 scalars of the model, its length before and after. ``scale``
    is the given one, "" where the lengths make it."""

    number: int
    before: str
    after: str
    scale: str = ""


@dataclass(frozen=True)
class _Resize:
    """What a RESIZE layer does. ``sizes`` is the output shape as a value, "" with ``scales``; ``shape`` are its
    numbers, -1 where they are not known; ``changed`` the axes that may change."""

    mode: str
    transformation: str
    rounding: str
    upper: bool
    sizes: str
    scales: tuple[float, ...]
    shape: tuple[int, ...]
    changed: tuple[int, ...]
    cubic: float
    exclude: bool


@lifts("RESIZE")
def _resize(e: Emit, layer: Layer) -> str:
    x, out = layer.need(0), layer.outputs[0]
    plan = _plan(e, layer)
    if plan.mode != "NEAREST" and x.dtype not in FLOATS:
        raise Unliftable(f"how TensorRT rounds what it interpolates in {x.dtype} is not documented")
    if x.dtype not in (*FLOATS, "INT8", "FP8"):
        raise Unliftable(f"resizing {x.dtype} is not read back")
    if plan.transformation == "ALIGN_CORNERS" and 1 in [plan.shape[axis] for axis in plan.changed]:
        e.note(
            "ALIGN_CORNERS onto a single element has no formula (0/0): the first element is taken, as in ONNX"
        )
    value = e.of(x)
    if x.dtype not in ("FLOAT", "INT8"):
        value = e.cast(value, "FLOAT")
    value = _native(e, plan, value) if _is_native(plan) else _by_hand(e, plan, value, x.rank)
    return value if x.dtype in ("FLOAT", "INT8") else e.cast(value, out.dtype)


def _plan(e: Emit, layer: Layer) -> _Resize:
    native, x, target = layer.native, layer.need(0), layer.input(1)
    rank, start, word = x.rank, x.shape or (), layer.word("coordinate_transformation")
    scales = tuple(native.scales) if target is None else ()
    if target is not None:
        sizes = e.of(target) if target.dtype == "INT64" else e.cast(e.of(target), "INT64")
        # Sizes whose number is not known by inference are refused, as if they were none ("Number of elements of
        # input 'sizes' (0)", onnx 1.23, ONNX Runtime 1.31).
        sizes = e.op("Reshape", sizes, e.ints([rank]))
        shape = layer.outputs[0].shape or (-1,) * rank
    elif scales:
        lengths = [np.float32(n) * np.float32(s) for n, s in zip(start, scales, strict=True)]
        sizes, shape = "", tuple(int(n) if old >= 0 else -1 for n, old in zip(lengths, start, strict=True))
        if word == "ALIGN_CORNERS" and min(shape) >= 0 and all(n == int(n) for n in lengths):
            sizes, scales = e.ints(shape), ()  # no matter then, and by lengths ONNX Runtime computes it
    else:
        shape = layer.dims("shape") or ()
        if len(shape) != rank or min(shape, default=0) < 0:
            raise Unliftable(f"an output shape of {list(shape)} is not read back")
        sizes = e.ints(shape)
    if scales and word == "ALIGN_CORNERS":
        e.note(
            "ALIGN_CORNERS with scales that lead to no whole lengths goes by scale times length, as in ONNX: ONNX "
            "Runtime's Resize goes by the lengths"
        )
    still = [s == 1 for s in scales] or [old == new >= 0 for old, new in zip(start, shape, strict=True)]
    return _Resize(
        layer.word("resize_mode"),
        word,
        layer.word("nearest_rounding"),
        layer.word("selector_for_single_pixel") == "UPPER",
        sizes,
        scales,
        shape,
        tuple(axis for axis in range(rank) if not still[axis]),
        float(native.cubic_coeff),
        bool(native.exclude_outside),
    )


# -- ONNX's operator


def _is_native(plan: _Resize) -> bool:
    """Whether ONNX Runtime's Resize computes what the layer does."""
    if plan.scales and plan.transformation == "ALIGN_CORNERS":
        return False  # ONNX Runtime goes by the lengths there
    if plan.mode == "NEAREST":
        return True
    rank = len(plan.shape)
    last = _RANKS[plan.mode].get(rank, 0)
    return bool(last) and all(axis >= rank - last for axis in plan.changed)


def _native(e: Emit, plan: _Resize, value: str) -> str:
    transformation = plan.transformation.lower()
    if plan.upper and plan.transformation == "HALF_PIXEL":
        transformation = "pytorch_half_pixel"  # 0 for an output of length 1, which elsewhere is 0 anyway
    cubic = plan.mode == "CUBIC"
    return e.op(
        "Resize",
        value,
        "",
        e.const(list(plan.scales), "FLOAT") if plan.scales else "",
        plan.sizes,
        mode=plan.mode.lower(),
        coordinate_transformation_mode=transformation,
        nearest_mode=_ROUNDING[plan.rounding] if plan.mode == "NEAREST" else None,
        cubic_coeff_a=plan.cubic if cubic else None,
        exclude_outside=int(plan.exclude) if cubic else None,
    )


# -- axis by axis


def _by_hand(e: Emit, plan: _Resize, value: str, rank: int) -> str:
    lengths = e.cast(e.op("Shape", value), "FLOAT")
    factors = e.const(list(plan.scales), "FLOAT") if plan.scales else ""
    sizes = e.op("Floor", e.op("Mul", lengths, factors)) if plan.scales else e.cast(plan.sizes, "FLOAT")
    for number in plan.changed:
        before, after = (e.op("Gather", one, e.const(number, "INT64")) for one in (lengths, sizes))
        scale = e.const(plan.scales[number], "FLOAT") if plan.scales else ""
        axis = _Axis(number, before, after, scale)
        value = _resample(e, plan, value, axis, rank)
    return value


def _resample(e: Emit, plan: _Resize, value: str, axis: _Axis, rank: int) -> str:
    """One axis resized: a weighted sum of elements picked along it."""
    at = _coordinates(e, plan, axis)
    if plan.mode == "NEAREST":
        return _pick(e, value, _rounded(e, at, plan.rounding), axis)
    taps = _linear(e, at, axis) if plan.mode == "LINEAR" else _cubic(e, plan, at, axis)
    shape = e.ints([-1] + [1] * (rank - 1 - axis.number))
    terms = [
        e.op("Mul", _pick(e, value, index, axis), e.op("Reshape", weight, shape)) for index, weight in taps
    ]
    return e.op("Sum", *terms)


def _coordinates(e: Emit, plan: _Resize, axis: _Axis) -> str:
    """Where in the input each element of the output lies: the formulas of ResizeCoordinateTransformation."""
    one, half = e.const(1.0, "FLOAT"), e.const(0.5, "FLOAT")
    place = e.op("Range", e.const(0.0, "FLOAT"), axis.after, one)
    if plan.transformation == "ALIGN_CORNERS":
        length = e.op("Mul", axis.before, axis.scale) if axis.scale else axis.after
        # The limit serves an output of length 1 only, whose place is 0 however far the steps are.
        last = e.op("Max", e.op("Sub", length, one), one)
        return e.op("Div", e.op("Mul", place, e.op("Sub", axis.before, one)), last)
    scale = axis.scale or e.op("Div", axis.after, axis.before)
    if plan.transformation == "ASYMMETRIC":
        return e.op("Div", place, scale)
    if plan.transformation != "HALF_PIXEL":
        raise Unliftable(f"the coordinate transformation {plan.transformation} is not known")
    at = e.op("Sub", e.op("Div", e.op("Add", place, half), scale), half)
    if plan.upper:
        at = e.op("Where", e.op("Equal", axis.after, one), e.const(0.0, "FLOAT"), at)
    return at


def _rounded(e: Emit, at: str, rounding: str) -> str:
    half = e.const(0.5, "FLOAT")
    if rounding == "HALF_UP":
        return e.op("Floor", e.op("Add", at, half))
    if rounding == "HALF_DOWN":
        return e.op("Ceil", e.op("Sub", at, half))
    return e.op("Floor" if rounding == "FLOOR" else "Ceil", at)


def _pick(e: Emit, value: str, index: str, axis: _Axis) -> str:
    """The elements at float32 indices; those outside are the nearest inside."""
    last = e.op("Sub", axis.before, e.const(1.0, "FLOAT"))
    inside = e.op("Max", e.op("Min", index, last), e.const(0.0, "FLOAT"))
    return e.op("Gather", value, e.cast(inside, "INT64"), axis=axis.number)


def _linear(e: Emit, at: str, axis: _Axis) -> list[tuple[str, str]]:
    one = e.const(1.0, "FLOAT")
    low = e.op("Floor", at)
    high = e.op("Sub", at, low)
    return [(low, e.op("Sub", one, high)), (e.op("Add", low, one), high)]


def _cubic(e: Emit, plan: _Resize, at: str, axis: _Axis) -> list[tuple[str, str]]:
    """The four neighbors, weighted by the polynomials of IResizeLayer::setCubicCoeff."""
    low = e.op("Floor", at)
    taps = []
    for step in (-1.0, 0.0, 1.0, 2.0):
        index = e.op("Add", low, e.const(step, "FLOAT"))
        weight = _polynomial(e, e.op("Abs", e.op("Sub", at, index)), plan.cubic, near=step in (0.0, 1.0))
        if plan.exclude:
            last = e.op("Sub", axis.before, e.const(1.0, "FLOAT"))
            outside = e.op("Or", e.op("Less", index, e.const(0.0, "FLOAT")), e.op("Greater", index, last))
            weight = e.op("Where", outside, e.const(0.0, "FLOAT"), weight)
        taps.append((index, weight))
    if plan.exclude:
        total = e.op("Sum", *(weight for _, weight in taps))
        taps = [(index, e.op("Div", weight, total)) for index, weight in taps]
    return taps


def _polynomial(e: Emit, distance: str, a: float, *, near: bool) -> str:
    """((a + 2) d - (a + 3)) d d + 1 up to a distance of 1, ((a d - 5 a) d + 8 a) d - 4 a beyond."""
    factors = (a + 2, -(a + 3), 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a)
    value = e.const(factors[0], "FLOAT")
    for factor in factors[1:]:
        value = e.op("Add", e.op("Mul", value, distance), e.const(factor, "FLOAT"))
    return value


# -- grids


@lifts("GRID_SAMPLE")
def _grid_sample(e: Emit, layer: Layer) -> str:
    """TensorRT documents no more than the names of its modes, which are those of ONNX's operator and of PyTorch."""
    x, grid = layer.need(0), layer.need(1)
    padding = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}.get(layer.word("sample_mode"))
    mode = layer.word("interpolation_mode")
    if padding is None:
        raise Unliftable(f"sampling with {layer.word('sample_mode')} outside the input is not documented")
    if mode == "CUBIC" and x.rank != 4:
        raise Unliftable(f"bicubic sampling of an input of {x.rank} dimensions is not documented")
    for tensor in (x, grid):
        if tensor.dtype not in FLOATS:
            raise Unliftable(f"how TensorRT interpolates in {tensor.dtype} is not documented")
    value = e.op(
        "GridSample",
        e.as_float(x),
        e.as_float(grid),
        mode=mode.lower(),
        padding_mode=padding,
        align_corners=int(layer.native.align_corners),
    )
    return e.turn(value, "FLOAT", layer.outputs[0].dtype)
