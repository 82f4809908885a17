"""Matrix products and what surrounds them, reductions, and the operators that find an extreme along an axis."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onnx import TensorProto

from onnxfix.shapes.ops.base import (
    INTEGERS,
    Call,
    Elements,
    Info,
    Shape,
    Unknown,
    axes_of,
    broadcast_shapes,
    elements,
    transfer,
)
from onnxfix.shapes.ops.elementwise import settle
from onnxfix.shapes.symbols import Dim, broadcast, constant, dim_max, dim_min


def matmul_shape(a: Shape, b: Shape) -> Shape:
    """numpy.matmul's shape: batch dimensions broadcast, a vector operand has its axis removed."""
    if not a or not b:
        raise Unknown
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return broadcast_shapes([a[:-2], b[:-2]]) + rows + columns


@transfer("MatMul", "MatMulInteger", "QLinearMatMul")
def _matmul(call: Call) -> Info:
    second = 3 if call.op == "QLinearMatMul" else 1
    elem = call.info(0).elem
    if call.op == "MatMulInteger":
        elem = TensorProto.INT32
    if call.op == "QLinearMatMul":
        elem = call.info(7).elem
    a, b = call.info(0).shape, call.info(second).shape
    return Info(elem, None if a is None or b is None else matmul_shape(a, b))


@transfer("Gemm")
def _gemm(call: Call) -> Info:
    a, b = call.info(0), call.info(1)
    rows: Dim | None = None
    columns: Dim | None = None
    if a.shape is not None and len(a.shape) == 2:
        rows = a.shape[1 if call.attr("transA", 0) else 0]
    if b.shape is not None and len(b.shape) == 2:
        columns = b.shape[0 if call.attr("transB", 0) else 1]
    return Info(a.elem or b.elem, (rows or call.fresh(0, 0), columns or call.fresh(0, 1)))


@transfer("Det")
def _det(call: Call) -> Info:
    shape = call.info(0).shape
    return Info(call.info(0).elem, None if shape is None else shape[:-2])


@transfer("Einsum")
def _einsum(call: Call) -> Info:
    elem = next((info.elem for info in call.inputs if info.elem is not None), None)
    equation = call.attr("equation")
    if not isinstance(equation, str) or any(info.shape is None for info in call.inputs):
        return Info(elem)
    return Info(elem, einsum_shape(equation, [call.shape(i) for i in range(len(call.inputs))]))


TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def einsum_terms(equation: str) -> tuple[list[str], str | None]:
    """The operands' terms and the result's (None for an implicit one).

    Raises:
        Unknown: malformed, such as two ellipses in a term, on which onnx's C++ inference never returns.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if any(TERM.fullmatch(term) is None for term in [*terms, right]):
        raise Unknown
    return terms, right if arrow else None


def einsum_shape(equation: str, shapes: Sequence[Shape]) -> Shape:
    """The result's shape; a label's dimension is the broadcast of all that carry it."""
    terms, result = einsum_terms(equation)
    if len(terms) != len(shapes):
        raise Unknown
    labels: dict[str, Dim] = {}
    batches: list[Shape] = []
    for term, shape in zip(terms, shapes, strict=True):
        names = term.replace("...", "")
        hidden = len(shape) - len(names)
        if hidden < 0 or (hidden and "..." not in term):
            raise Unknown
        at = term.find("...")
        start = len(names) if at < 0 else at
        batches.append(shape[start : start + hidden])
        for name, dim in zip(names, shape[:start] + shape[start + hidden :], strict=True):
            labels[name] = broadcast(labels[name], dim) if name in labels else dim
    batch = broadcast_shapes(batches) if batches else ()
    if result is None:
        once = sorted(name for name in labels if sum(term.count(name) for term in terms) == 1)
        return batch + tuple(labels[name] for name in once)
    if any(name not in labels for name in result.replace("...", "")):
        raise Unknown
    head, _, tail = result.partition("...")
    middle = batch if "..." in result else ()
    return tuple(labels[n] for n in head) + middle + tuple(labels[n] for n in tail)


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
