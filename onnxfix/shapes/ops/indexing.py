"""Operators that select elements (Slice, the Gather and Scatter families, selections of data-dependent size), and those
that create tensors from attributes (constants, fills, random numbers, windows)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxfix.files import lazy
from onnxfix.shapes.ops.base import (
    FLOATS,
    INTEGERS,
    Call,
    Elements,
    Info,
    Shape,
    Unknown,
    axes_of,
    axis_of,
    elements,
    from_array,
    small,
    transfer,
)
from onnxfix.shapes.symbols import (
    DIM_MAX,
    Dim,
    as_dim,
    ceildiv,
    constant,
    dim_max,
    dim_min,
    nonnegative,
    product,
    relu,
)

INT64 = TensorProto.INT64
INT32_MAX = 2**31 - 1


@transfer("Slice")
def _slice(call: Call) -> Info:
    data, rank = call.info(0), len(call.shape(0))
    if call.opset < 10:
        starts: list[Dim | None] = [constant(i) for i in call.attr("starts", [])]
        ends: list[Dim | None] = [constant(i) for i in call.attr("ends", [])]
        axes: list[int] | None = list(call.attr("axes", range(len(starts))))
        steps: list[Dim] | None = [constant(1)] * len(starts)
    else:
        count = call.length(1) if call.length(1) is not None else call.length(2)
        if count is None:
            count = rank if not call.has(3) else None
        starts, ends = _bounds(call, 1, count), _bounds(call, 2, count)
        axes = list(range(len(starts))) if not call.has(3) else call.static_ints(3)
        steps = call.ints(4) if call.has(4) else [constant(1)] * len(starts)
    if axes is None:
        return Info(data.elem, call.fresh_shape(0, rank))
    return _sliced(call, data, axes_of(axes, rank), starts, ends, steps)


def _bounds(call: Call, index: int, count: int | None) -> list[Dim | None]:
    found = call.ints(index)
    return list(found) if found is not None else [None] * (count or 0)


def _sliced(
    call: Call,
    data: Info,
    axes: list[int],
    starts: Sequence[Dim | None],
    ends: Sequence[Dim | None],
    steps: Sequence[Dim | None] | None,
) -> Info:
    assert data.shape is not None
    dims: list[Dim] = list(data.shape)
    value: Elements | None = data.value
    for i, axis in enumerate(axes):
        start = starts[i] if i < len(starts) else None
        end = ends[i] if i < len(ends) else None
        step = steps[i] if steps is not None and i < len(steps) else None
        length = None
        if start is not None and end is not None and step is not None and step.value:
            length = slice_length(data.shape[axis], start, end, step.value)
        dims[axis] = call.fresh(0, axis) if length is None else length
        if (
            value is None
            or start is None
            or end is None
            or step is None
            or start.value is None
            or end.value is None
            or not step.value
        ):
            value = None
        else:
            value = value[(slice(None),) * axis + (slice(start.value, end.value, step.value),)]
    shape = tuple(dims)
    return Info(data.elem, shape, value if value is not None and small(shape) == value.shape else None)


def slice_length(size: Dim, start: Dim, end: Dim, step: int) -> Dim | None:
    """Number of elements of a slice of an axis (ONNX, Slice); None if the sign of a bound is unknown."""
    first, last = _from_front(start, size), _from_front(end, size)
    if first is None or last is None:
        return None
    if step > 0:
        first, last = _clamped(first, 0, size), _clamped(last, 0, size)
        return relu(ceildiv(last - first, step))
    # Backends read differently what ONNX says of steps backwards: a negative start that lies before the axis, and
    # an end of INT32_MAX or INT64_MAX, which ONNX Runtime takes for "as far as it goes", towards the front.
    if not (nonnegative(first).yes or first is size - 1) or (end.value or 0) >= INT32_MAX:
        return None
    first = dim_min(first, size - 1)
    last = _clamped(last, -1, size - 1)
    return relu(ceildiv(first - last, -step))


def _from_front(index: Dim, size: Dim) -> Dim | None:
    if nonnegative(index).yes:
        return index
    return index + size if nonnegative(index).no else None


def _clamped(index: Dim, low: int, high: Dim) -> Dim:
    return dim_max(dim_min(index, high), low)


@transfer("Gather")
def _gather(call: Call) -> Info:
    data, indices, source = call.info(0), call.info(1), call.shape(0)
    axis = axis_of(call.attr("axis", 0), len(source))
    shape = source[:axis] + call.shape(1) + source[axis + 1 :]
    value = None
    picks = call.static_ints(1)
    sizes = small(shape)
    if data.value is not None and picks is not None and sizes is not None and indices.value is not None:
        length = data.value.shape[axis]
        if not all(-length <= i < length for i in picks):
            raise Unknown
        at = np.array(picks, dtype=np.int64).reshape(indices.value.shape)
        value = np.asarray(np.take(data.value, at, axis=axis), dtype=object).reshape(sizes)
    return Info(data.elem, shape, value)


@transfer("GatherElements", "ScatterElements", "Scatter", "ScatterND", "TensorScatter")
def _like_an_input(call: Call) -> Info:
    data = call.info(0)
    if call.op == "GatherElements":
        return Info(data.elem, call.info(1).shape)
    return Info(data.elem, data.shape, _scattered(call) if call.op == "ScatterND" else None)


def _scattered(call: Call) -> Elements | None:
    """ScatterND on a small vector with static indices, as exporters write assignments to a shape."""
    data, updates = call.info(0).value, call.info(2).value
    at = call.static_ints(1)
    if (
        data is None
        or updates is None
        or at is None
        or data.ndim != 1
        or call.attr("reduction", "none") != "none"
    ):
        return None
    if len(at) != updates.size or not all(-data.size <= i < data.size for i in at) or len(set(at)) != len(at):
        return None
    result = data.copy()
    result[at] = updates.reshape(-1)
    return result


@transfer("GatherND")
def _gather_nd(call: Call) -> Info:
    data, indices = call.info(0), call.info(1)
    batch = call.attr("batch_dims", 0)
    if data.shape is None or not indices.shape or indices.shape[-1].value is None:
        return Info(data.elem)
    return Info(data.elem, indices.shape[:-1] + data.shape[indices.shape[-1].value + batch :])


@transfer("Compress")
def _compress(call: Call) -> Info:
    elem, axis = call.info(0).elem, call.attr("axis")
    if axis is None:
        return Info(elem, (call.fresh(0, 0),))
    shape = call.shape(0)
    axis = axis_of(axis, len(shape))
    return Info(elem, (*shape[:axis], call.fresh(0, axis), *shape[axis + 1 :]))


@transfer("NonZero")
def _non_zero(call: Call) -> Info:
    data = call.info(0)
    if not data.shape:  # backends disagree about scalars
        return Info(INT64, call.fresh_shape(0, 2))
    rank = constant(len(data.shape))
    if data.fill is not None:
        return Info(INT64, (rank, product(data.shape) if data.fill else constant(0)))
    return Info(INT64, (rank, call.fresh(0, 1)))


@transfer("TopK")
def _top_k(call: Call) -> Sequence[Info]:
    source = call.shape(0)
    axis = axis_of(call.attr("axis", -1), len(source))
    if call.opset < 10:
        k: Dim = constant(call.attr("k"))
    else:
        found = call.ints(1)
        k = found[0] if found else call.fresh(0, axis)
    shape = (*source[:axis], k, *source[axis + 1 :])
    return [Info(call.info(0).elem, shape), Info(INT64, shape)][: len(call.outputs)]


@transfer("OneHot")
def _one_hot(call: Call) -> Info:
    indices, values = call.info(0), call.info(2)
    if indices.shape is None:
        return Info(values.elem)
    rank = len(indices.shape) + 1
    axis = axis_of(call.attr("axis", -1), rank)
    depth = call.info(1)
    found: Dim | None = None
    if depth.value is not None and depth.value.size == 1:
        item = depth.value.reshape(-1)[0]
        if isinstance(item, Dim) or (item is not None and float(item).is_integer()):
            found = as_dim(item)
    return Info(values.elem, (*indices.shape[:axis], found or call.fresh(0, axis), *indices.shape[axis:]))


@transfer("NonMaxSuppression")
def _non_max_suppression(call: Call) -> Info:
    return Info(INT64, (call.fresh(0, 0), constant(3)))


@transfer("Range")
def _range(call: Call) -> Info:
    start, limit, delta = (_scalar(call, i) for i in range(3))
    elem = next((call.info(i).elem for i in range(3) if call.info(i).elem is not None), None)
    length: Dim | None = None
    value: Elements | None = None
    if isinstance(start, Dim) and isinstance(limit, Dim) and isinstance(delta, Dim):
        length = _int_range(start, limit, delta)
        if length is not None and delta.value is not None and small((length,)) is not None:
            value = elements([start + delta * i for i in range(length.value or 0)])
    elif isinstance(start, float) and isinstance(limit, float) and isinstance(delta, float) and delta:
        length = _float_range(start, limit, delta, elem)
    return Info(elem, (length if length is not None else call.fresh(0, 0),), value)


def _scalar(call: Call, index: int) -> Dim | float | None:
    value = call.info(index).value
    return None if value is None or value.size != 1 else value.reshape(-1)[0]


def _int_range(start: Dim, limit: Dim, delta: Dim) -> Dim | None:
    if delta.value:
        span = limit - start if delta.value > 0 else start - limit
        return relu(ceildiv(span, abs(delta.value)))
    return None


def _float_range(start: float, limit: float, delta: float, elem: int | None) -> Dim | None:
    """The length, if single and double precision agree on it, else None."""
    single = np.float32 if elem == TensorProto.FLOAT else np.float64
    wide = np.ceil((limit - start) / delta)
    near = np.ceil(np.float64(single(limit) - single(start)) / delta)
    short = np.ceil((single(limit) - single(start)) / single(delta))
    if not (np.isfinite(wide) and wide == near == short and abs(wide) < DIM_MAX):
        return None
    return constant(max(0, int(wide)))


@transfer("ConstantOfShape")
def _constant_of_shape(call: Call) -> Info:
    tensor = call.attr("value")
    elem: int = TensorProto.FLOAT
    fill: float | None = 0.0
    if isinstance(tensor, TensorProto):
        elem, fill = tensor.data_type, None
        if elem in INTEGERS or elem in FLOATS:
            array = numpy_helper.to_array(lazy.with_payload(tensor))
            fill = array.reshape(-1)[0].item() if array.size == 1 else None
    target = call.ints(0)
    if target is None:
        rank = call.length(0)
        return Info(elem, None if rank is None else call.fresh_shape(0, rank), None, fill)
    return Info(elem, tuple(target), filled(tuple(target), elem, fill), fill)


def filled(shape: Shape, elem: int, fill: Any) -> Elements | None:
    """A small tensor that holds ``fill`` everywhere."""
    sizes = small(shape)
    if sizes is None or fill is None or not (elem in INTEGERS or elem in FLOATS):
        return None
    item = constant(int(fill)) if elem in INTEGERS else float(fill)
    return elements([item] * int(np.prod(sizes)), sizes)


@transfer("Constant")
def _constant_node(call: Call) -> Info:
    """A Constant inside a function call, whose attributes may come from the caller."""
    for name, elem in (("value_int", TensorProto.INT64), ("value_float", TensorProto.FLOAT)):
        scalar = call.attr(name)
        if scalar is not None:
            return Info(elem, (), from_array(np.array(scalar), elem))
    for name, elem in (("value_ints", TensorProto.INT64), ("value_floats", TensorProto.FLOAT)):
        items = call.attr(name)
        if items is not None:
            value = from_array(np.array(items), elem) if len(items) <= 64 else None
            return Info(elem, (constant(len(items)),), value)
    if call.attr("value_string") is not None:
        return Info(TensorProto.STRING, ())
    if call.attr("value_strings") is not None:
        return Info(TensorProto.STRING, (constant(len(call.attr("value_strings"))),))
    tensor = call.attr("value")
    if isinstance(tensor, TensorProto):
        return tensor_info(tensor)
    sparse = call.attr("sparse_value")
    if sparse is not None:
        return Info(sparse.values.data_type, tuple(constant(d) for d in sparse.dims))
    return Info()


def tensor_info(tensor: TensorProto) -> Info:
    """Type, dimensions and, for a small embedded tensor, the value."""
    shape = tuple(constant(d) for d in tensor.dims)
    elem = tensor.data_type
    value = None
    followed = elem in INTEGERS or elem in FLOATS
    if followed and tensor.data_location != TensorProto.EXTERNAL and small(shape) is not None:
        try:
            value = from_array(numpy_helper.to_array(lazy.with_payload(tensor)), elem)
        except (ValueError, TypeError):
            value = None  # its bytes do not match its dimensions: the checker reports it
    return Info(elem, shape, value)


@transfer("EyeLike", "Bernoulli", "RandomNormalLike", "RandomUniformLike")
def _like(call: Call) -> Info:
    data = call.info(0)
    return Info(call.attr("dtype", data.elem), data.shape)


@transfer("RandomNormal", "RandomUniform")
def _random(call: Call) -> Info:
    return Info(call.attr("dtype", TensorProto.FLOAT), tuple(constant(d) for d in call.attr("shape", [])))


@transfer("BlackmanWindow", "HammingWindow", "HannWindow")
def _window(call: Call) -> Info:
    size = call.ints(0)
    return Info(
        call.attr("output_datatype", TensorProto.FLOAT), (as_dim(size[0]) if size else call.fresh(0, 0),)
    )
