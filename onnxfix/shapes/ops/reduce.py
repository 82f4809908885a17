"""Reductions, and the operators that find an extreme along an axis."""

from __future__ import annotations

from onnx import TensorProto

from onnxfix.shapes.ops.base import INTEGERS, Call, Elements, Info, Shape, axes_of, elements, transfer
from onnxfix.shapes.ops.elementwise import settle
from onnxfix.shapes.symbols import Dim, constant, dim_max, dim_min

REDUCTIONS = [
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
]  # fmt: skip
SINCE_18 = {op: 13 if op == "ReduceSum" else 18 for op in REDUCTIONS}


@transfer(*REDUCTIONS)
def _reduce(call: Call) -> Info:
    data = call.info(0)
    keep = bool(call.attr("keepdims", 1))
    shape = data.shape
    axes: list[int] | None
    if call.opset < SINCE_18[call.op]:
        axes = call.attr("axes")
    elif not call.has(1):
        axes = None
    else:
        axes = call.static_ints(1)
        if axes is None:
            return Info(data.elem, _unknown_axes(call, shape, keep))
    if not axes and call.attr("noop_with_empty_axes", 0):
        return Info(data.elem, shape)
    if shape is None:
        return Info(data.elem, None if axes or keep else ())
    gone = set(axes_of(axes, len(shape))) if axes else set(range(len(shape)))
    return Info(data.elem, reduced(shape, gone, keep), _value(call, gone, keep))


def _unknown_axes(call: Call, shape: Shape | None, keep: bool) -> Shape | None:
    """Only the rank can be known: no axes at all may mean all of them, or none."""
    if shape is None:
        return None
    if keep:
        return call.fresh_shape(0, len(shape))
    count = call.length(1)
    return None if not count or count > len(shape) else call.fresh_shape(0, len(shape) - count)


def reduced(shape: Shape, gone: set[int], keep: bool) -> Shape:
    """``shape`` with the axes ``gone`` reduced."""
    if keep:
        return tuple(constant(1) if i in gone else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in gone)


FOLDS = {
    "ReduceSum": lambda a, b: a + b,
    "ReduceProd": lambda a, b: a * b,
    "ReduceMax": dim_max,
    "ReduceMin": dim_min,
}


def _value(call: Call, gone: set[int], keep: bool) -> Elements | None:
    """The reduction of a small integer vector, as in the product of a shape."""
    data = call.info(0)
    value, elem = data.value, data.elem
    if (
        value is None
        or elem not in INTEGERS
        or call.op not in FOLDS
        or gone != set(range(value.ndim))
        or not value.size
    ):
        return None
    items = [item if isinstance(item, Dim) else None for item in value.reshape(-1)]
    result: Dim | None = items[0]
    for item in items[1:]:
        if result is None or item is None:
            return None
        result = settle(FOLDS[call.op](result, item), elem)
    return elements([result], (1,) * value.ndim if keep else ())


@transfer("ArgMax", "ArgMin")
def _arg_max(call: Call) -> Info:
    shape = call.info(0).shape
    if shape is None:
        return Info(TensorProto.INT64)
    gone = set(axes_of([call.attr("axis", 0)], len(shape)))
    return Info(TensorProto.INT64, reduced(shape, gone, bool(call.attr("keepdims", 1))))
