"""Integer products as products of floats that hold the integers.

MatMulInteger and ConvInteger return int32; QLinearMatMul and QLinearConv scale and quantize the sums again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import INTEGERS, Model, Node, RemoveNode, Safety, Value

from ._common import FLOATS, WEIGHT_LIMIT, Array, Unable, Workshop, behind_ones, rounded

if TYPE_CHECKING:
    from ._float import Writer

F32 = TensorProto.FLOAT
LIMIT = 2**24
"""float32 represents every integer up to this one."""

FACTORS = {
    "MatMulInteger": ((0, 2), (1, 3)),
    "ConvInteger": ((0, 2), (1, 3)),
    "QLinearMatMul": ((0, 2), (3, 5)),
    "QLinearConv": ((0, 2), (3, 5)),
}
"""Input indices of (data, zero point) for both factors."""


def convolves(node: Node) -> bool:
    return node.op_type.endswith(("ConvInteger", "LinearConv"))


def requantizes(node: Node) -> bool:
    return node.op_type.startswith("QLinear")


def quantized_inputs(node: Node) -> list[Value]:
    """Data and zero points of both factors, as far as present."""
    found = [node.input(index) for pair in FACTORS[node.op_type] for index in pair]
    return [value for value in found if value is not None]


def product(writer: Writer, node: Node) -> None:
    """Write ``Cast(MatMul(a - zero point, b - zero point))``, Conv likewise, or the scaled and quantized form of it.

    Raises:
        Unable: the shape of a zero point or scale is unknown.
    """
    output = node.output(0)
    if output is None or any(node.input(pair[0]) is None for pair in FACTORS[node.op_type]):
        raise Unable
    draft = writer.shop.at(node)
    names = [_factor(writer, node, which) for which in (0, 1)]
    if node.op_type == "QLinearConv" and node.input(8) is not None:
        names.append(_bias(writer, node))
    found = writer.shop.like(node, "Conv" if convolves(node) else "MatMul", names)
    writer.shop.edits.append(RemoveNode(node))
    if requantizes(node):
        _requantized(writer, node, output, found)
        return
    draft.add("Cast", [found], output=output.name, to=TensorProto.INT32)
    if not stays_exact(node, writer.model):
        writer.safety = max(writer.safety, Safety.NUMERIC)


def _factor(writer: Writer, node: Node, which: int) -> str:
    """The data minus its zero point, in float32."""
    value, zero = (node.input(index) for index in FACTORS[node.op_type][which])
    assert value is not None
    whole = _shifted(node, which)
    if whole is not None:
        return writer.shop.constant(node, whole.astype(np.float32), "integers")
    if writer.model.shapes.elem_type(value) not in (TensorProto.INT8, TensorProto.UINT8):
        raise Unable
    name = writer.read(value, node, F32)
    if zero is None:
        return name
    array = zero.constant()
    if array is None:
        return writer.shop.at(node).add("Sub", [name, _computed_zero(writer, node, which, value, zero)])
    if not array.size or not array.astype(np.int64).any():
        return name
    placed = _placed(node, which, array, writer.model.shapes.rank(value))
    if placed is None:
        raise Unable
    subtrahend = writer.shop.constant(node, placed.astype(np.int64).astype(np.float32), "zero_point")
    return writer.shop.at(node).add("Sub", [name, subtrahend])


def _computed_zero(writer: Writer, node: Node, which: int, value: Value, zero: Value) -> str:
    """A non-constant zero point, if its shape shows its granularity."""
    shape, rank = writer.model.shapes.static_shape(zero), writer.model.shapes.rank(value)
    if zero.is_constant or shape is None:
        raise Unable
    name = writer.read(zero, node, F32)
    if shape in ((), (1,)):
        return name
    if len(shape) != 1 or rank is None or which == 0:
        raise Unable
    # A per-filter vector belongs to the first axis, a per-column vector to the last.
    return behind_ones(writer.shop, node, name, rank - 1) if convolves(node) else name


def _placed(node: Node, which: int, array: Array, rank: int | None) -> Array | None:
    """Constant zero points or scales of a factor, reshaped to broadcast with it.

    For convolution filters that is the first axis; for the rows and columns of a matrix product the shape decides.
    """
    if array.size == 1:
        return array.reshape(())
    if convolves(node):
        if which == 0 or array.ndim != 1 or rank is None:
            return None
        return array.reshape([-1] + [1] * (rank - 1))
    if rank is None or rank < 2 or array.ndim > rank:
        return None
    if which == 0 and array.ndim == 1:
        return array.reshape(-1, 1)  # one per row
    return array


def _shifted(node: Node, which: int) -> Array | None:
    """``data - zero point`` if both are constant."""
    value, zero = (node.input(index) for index in FACTORS[node.op_type][which])
    array = None if value is None else value.constant(WEIGHT_LIMIT)
    if array is None:
        return None
    if zero is None:
        return array.astype(np.int64)
    zeros = zero.constant()
    placed = None if zeros is None else _placed(node, which, zeros, array.ndim)
    if placed is None:
        return None
    found: Array = array.astype(np.int64) - placed.astype(np.int64)
    return found if found.shape == array.shape else None


# -- scaling and quantization in QLinear operators


def _bias(writer: Writer, node: Node) -> str:
    """The int32 bias, which is already in units of the sums."""
    bias = node.require(8)
    array = bias.constant(WEIGHT_LIMIT)
    if array is None:
        if bias.is_constant:
            raise Unable
        return writer.shop.cast(node, bias.name, F32)
    return writer.shop.constant(node, array.astype(np.float32), "bias")


def _requantized(writer: Writer, node: Node, output: Value, sums: str) -> None:
    """``Clip(Round(sums * (scale * scale / scale)) + zero point, least, largest)``."""
    zero = node.input(7)
    elem = None if zero is None else writer.model.shapes.elem_type(zero)
    if zero is None or elem not in (TensorProto.INT8, TensorProto.UINT8):
        raise Unable
    if writer.model.shapes.static_shape(zero) not in ((), (1,)):
        raise Unable
    draft = writer.shop.at(node)
    steps = rounded(writer.shop, node, draft.add("Mul", [sums, ratio(writer.shop, node, writer.model)]))
    array = zero.constant()
    if array is None:
        shift = writer.read(zero, node)
    else:
        number = np.array(int(array.reshape(())), dtype=np.float32)
        shift = writer.shop.constant(node, number, "zero_point")
    writer.publish(node, output, writer.clip(node, draft.add("Add", [steps, shift]), elem), elem)


def ratio(shop: Workshop, node: Node, model: Model) -> str:
    """``scale of a * scale of b / scale of y`` in float32, in ONNX Runtime's order of multiplication.

    Half-precision scales are multiplied in half precision and then cast, as in onnx.reference. ONNX Runtime
    multiplies them in float32, also here: it runs half-precision nodes between Casts and drops two adjacent Casts.

    Raises:
        Unable: a scale's shape is unknown, or the scales have different types.
    """
    scales = [scale for scale in (node.input(index) for index in (1, 4, 6)) if scale is not None]
    kinds = {model.shapes.elem_type(scale) for scale in scales}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in FLOATS or len(scales) < 3:
        raise Unable
    arrays = _placed_scales(node, scales, model)
    if arrays is not None and kind == F32:
        one, other, last = arrays
        with np.errstate(all="ignore"):
            return shop.constant(node, one * other / last, "ratio")
    factors: list[Value | str] = [*scales]
    if arrays is not None:
        factors = [shop.constant(node, array, "scale") for array in arrays]
    elif any(model.shapes.static_shape(scale) not in ((), (1,)) for scale in scales):
        raise Unable
    draft = shop.at(node)
    found = draft.add("Div", [draft.add("Mul", factors[:2]), factors[2]])
    return found if kind == F32 else shop.cast(node, found, F32)


def _placed_scales(node: Node, scales: list[Value], model: Model) -> list[Array] | None:
    """The scales, reshaped to broadcast with the sums; None unless all are constant.

    Raises:
        Unable: they do not broadcast with the sums.
    """
    arrays = [scale.constant() for scale in scales]
    known = [array for array in arrays if array is not None]
    if len(known) < 3:
        return None
    ranks = [None if value is None else model.shapes.rank(value) for value in (node.input(0), node.input(3))]
    one, other = (_placed(node, which, known[which], ranks[which]) for which in (0, 1))
    if one is None or other is None or known[2].size != 1:
        raise Unable
    if convolves(node) and other.ndim:
        other = other.reshape(other.shape[:-1])  # the filter axis is the second axis of the result
    return [one, other, known[2].reshape(())]


# -- whether float32 is exact


def stays_exact(node: Node, model: Model) -> bool:
    """Whether every possible partial sum, in any order, stays below 2**24."""
    arrays = [_shifted(node, which) for which in (0, 1)]
    largest: Callable[[int], int] = lambda which: _largest(node, which, arrays[which], model)  # noqa: E731
    for which in (1, 0):
        sums = _sums(node, arrays[which], which)
        if sums is not None:
            return sums * largest(1 - which) < LIMIT
    terms = _terms(node, model)
    return terms is not None and terms * largest(0) * largest(1) < LIMIT


def _sums(node: Node, weights: np.ndarray[Any, Any] | None, which: int) -> int | None:
    """The largest sum of magnitudes in one result, from constant weights."""
    if weights is None or weights.ndim < 1 or (convolves(node) and which == 0):
        return None
    if not weights.size:
        return 0
    magnitudes = np.abs(weights)
    if convolves(node):
        return int(magnitudes.sum(axis=tuple(range(1, weights.ndim))).max())
    axis = -1 if which == 0 or weights.ndim == 1 else -2
    return int(magnitudes.sum(axis=axis).max())


def _largest(node: Node, which: int, shifted: Array | None, model: Model) -> int:
    """The largest magnitude of ``data - zero point``."""
    if shifted is not None:
        return int(np.abs(shifted).max()) if shifted.size else 0
    value, zero = (node.input(index) for index in FACTORS[node.op_type][which])
    elem = None if value is None else model.shapes.elem_type(value)
    if elem not in INTEGERS:
        return LIMIT
    low, high = INTEGERS[elem].low, INTEGERS[elem].high
    zeros = np.zeros(1, dtype=np.int64) if zero is None else zero.constant()
    if zeros is None or not zeros.size:
        return high - low
    known = zeros.astype(np.int64)
    return int(max(high - known.min(), known.max() - low))


def _terms(node: Node, model: Model) -> int | None:
    """How many products one result sums, if static."""
    left, right = (node.input(pair[0]) for pair in FACTORS[node.op_type])
    if left is None or right is None:
        return None
    if convolves(node):
        shape = model.shapes.static_shape(right)
        return None if shape is None or len(shape) < 3 else int(np.prod(shape[1:], dtype=np.int64))
    for value, axis in ((left, -1), (right, -2)):
        dims = model.shapes.shape(value)
        if dims:
            size = dims[axis if len(dims) > 1 else -1].value
            if size is not None:
                return size
    return None
