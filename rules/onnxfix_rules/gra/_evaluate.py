"""Evaluates one operator on constants with numpy, if the result is defined to the last bit, or nearly.

Data movement, integers, comparisons, casts, and arithmetic of one IEEE rounding are exact: ONNX Runtime gives the same
bits. Roots, powers and exponentials differ in the last bits between implementations. Nothing here reads a model,
allocates more than ``RESULT_LIMIT`` at a time, or runs foreign code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import CONSTANT_LIMIT, Node

Array = np.ndarray[Any, Any]
Inputs = Sequence[Array | None]

RESULT_LIMIT = CONSTANT_LIMIT
"""Maximum bytes of a result."""


class NotFoldable(Exception):
    """The result is unknown, uncertain, or too large."""


def evaluate(node: Node, inputs: Inputs) -> list[Array]:
    """The node's outputs, one array each.

    Raises:
        NotFoldable: the result is unknown, uncertain, or too large.
    """
    make = _OPERATORS.get(node.op_type)
    if make is None or node.opset < 7 or not inputs or inputs[0] is None:
        raise NotFoldable
    if any(array is not None and array.dtype.kind not in "biufV" for array in inputs):
        raise NotFoldable  # strings, complex numbers
    since, most = _MOST_INPUTS.get(node.op_type, (0, len(inputs)))
    if len(inputs) > (most if node.opset >= since else 1):
        raise NotFoldable  # invalid ONNX, which every runtime refuses; a constant would hide that
    with np.errstate(all="ignore"):
        try:
            found = make(node, inputs)
        except (ValueError, TypeError, IndexError, OverflowError):  # numpy: incompatible shapes
            raise NotFoldable from None
    results = found if isinstance(found, list) else [found]
    if len(results) != len(node.outputs) or sum(array.nbytes for array in results) > RESULT_LIMIT:
        raise NotFoldable
    return [np.ascontiguousarray(array).reshape(array.shape) for array in results]


def is_exact(op_type: str) -> bool:
    """Whether every backend gives the same bits."""
    return op_type not in _ROUNDED


def _need(condition: object) -> None:
    if not condition:
        raise NotFoldable


def _given(inputs: Inputs, index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def _integers(node: Node, inputs: Inputs, name: str, index: int, since: int) -> list[int] | None:
    """A list of integers that is an attribute before opset ``since``, and an input from ``since`` on."""
    if node.opset < since:
        listed = node.attr(name)
        return None if listed is None else [int(item) for item in listed]
    array = _given(inputs, index)
    return None if array is None else _numbers(array.reshape(-1))


def _numbers(array: Array | None) -> list[int]:
    """The elements of an input of sizes, indices or axes: runtimes accept only integers."""
    assert array is not None
    _need(array.dtype.kind == "i")
    return [int(item) for item in array]


def _axis(value: int, rank: int) -> int:
    _need(-rank <= value < rank)
    return value % rank


def _axes(values: list[int], rank: int) -> list[int]:
    found = [_axis(value, rank) for value in values]
    _need(found and len(set(found)) == len(found))  # backends interpret an empty list differently
    return found


# ---------------------------------------------------------------------------------------------- data movement


def _first(inputs: Inputs) -> Array:
    assert inputs[0] is not None
    return inputs[0]


def _reshape(node: Node, inputs: Inputs) -> Array:
    data, dims = _first(inputs), _numbers(_given(inputs, 1))
    if not node.attr("allowzero", 0):
        dims = [data.shape[i] if dim == 0 else dim for i, dim in enumerate(dims)]
    _need(min(dims, default=0) >= -1 and (-1 not in dims or data.size))
    return data.reshape(dims)


def _flatten(node: Node, inputs: Inputs) -> Array:
    data = _first(inputs)
    axis = node.attr("axis", 1)
    _need(-data.ndim <= axis <= data.ndim)
    axis = axis + data.ndim if axis < 0 else axis
    return data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))


def _squeeze(node: Node, inputs: Inputs) -> Array:
    data = _first(inputs)
    axes = _integers(node, inputs, "axes", 1, 13)
    return data.squeeze() if axes is None else data.squeeze(tuple(_axes(axes, data.ndim)))


def _unsqueeze(node: Node, inputs: Inputs) -> Array:
    data = _first(inputs)
    axes = _integers(node, inputs, "axes", 1, 13)
    _need(axes is not None)
    assert axes is not None
    return np.expand_dims(data, tuple(_axes(axes, data.ndim + len(axes))))


def _concat(node: Node, inputs: Inputs) -> Array:
    parts = [array for array in inputs if array is not None]
    _need(len(parts) == len(inputs))
    _need(len({array.dtype for array in parts}) == 1 and sum(a.nbytes for a in parts) <= RESULT_LIMIT)
    return np.concatenate(parts, _axis(node.attr("axis"), parts[0].ndim))


def _split(node: Node, inputs: Inputs) -> list[Array]:
    data = _first(inputs)
    axis = _axis(node.attr("axis", 0), data.ndim)
    sizes = _integers(node, inputs, "split", 1, 13)
    if sizes is None:
        count = len(node.outputs)
        _need(node.attr("num_outputs", count) == count and data.shape[axis] % count == 0)
        sizes = [data.shape[axis] // count] * count
    _need(len(sizes) == len(node.outputs) and sum(sizes) == data.shape[axis] and min(sizes) >= 0)
    ends = np.cumsum(sizes).tolist()
    return np.split(data, ends[:-1], axis)


def _slice(node: Node, inputs: Inputs) -> Array:
    data = _first(inputs)
    starts = _integers(node, inputs, "starts", 1, 10)
    ends = _integers(node, inputs, "ends", 2, 10)
    axes = _integers(node, inputs, "axes", 3, 10)
    _need(starts is not None and ends is not None)
    assert starts is not None
    assert ends is not None
    steps = _integers(node, inputs, "", 4, 10) if node.opset >= 10 else None
    steps = [1] * len(starts) if steps is None else steps
    named = list(range(len(starts))) if axes is None else axes
    _need(len(starts) == len(ends) == len(named) == len(steps) and min(steps, default=1) > 0)
    parts = [slice(None)] * data.ndim
    for axis, start, end, step in zip(_axes(named, data.ndim), starts, ends, steps, strict=True):
        parts[axis] = slice(start, end, step)
    return data[tuple(parts)]


def _gather(node: Node, inputs: Inputs) -> Array:
    data, indices = _first(inputs), _given(inputs, 1)
    assert indices is not None
    axis = _axis(node.attr("axis", 0), data.ndim)
    size = data.shape[axis]
    _need(indices.size == 0 or (-size <= indices.min() and indices.max() < size))
    _small(math.prod(data.shape[:axis] + data.shape[axis + 1 :]) * indices.size, data)
    return np.take(data, indices, axis)


def _expand(node: Node, inputs: Inputs) -> Array:
    data, dims = _first(inputs), _numbers(_given(inputs, 1))
    _need(min(dims, default=0) >= 0)
    result = np.broadcast_shapes(data.shape, tuple(dims))
    _small(math.prod(result), data)
    return np.broadcast_to(data, result)


def _tile(node: Node, inputs: Inputs) -> Array:
    data, repeats = _first(inputs), _given(inputs, 1)
    assert repeats is not None
    _need(repeats.shape == (data.ndim,) and (repeats >= 0).all())
    counts = _numbers(repeats)
    _small(data.size * math.prod(counts), data)
    return np.tile(data, counts)


def _non_zero(node: Node, inputs: Inputs) -> Array:
    data = _first(inputs)
    _need(data.ndim and data.dtype.kind in "biuf")  # backends disagree about scalars
    _small(int(np.count_nonzero(data)) * data.ndim, np.empty(0, np.int64))
    return np.array(np.nonzero(data), np.int64)


def _small(elements: int, like: Array) -> None:
    _need(elements * like.dtype.itemsize <= RESULT_LIMIT)


# ---------------------------------------------------------------------------------------- arithmetic


def _computes(operation: Callable[..., Array], kinds: str) -> Callable[[Node, Inputs], Array]:
    def make(node: Node, inputs: Inputs) -> Array:
        given = [array for array in inputs if array is not None]
        _need(len(given) == len(inputs) and len({array.dtype for array in given}) == 1)
        _need(given[0].dtype.kind in kinds and given[0].dtype != np.float16)
        if isinstance(operation, np.ufunc):
            _need(len(given) == operation.nin)  # numpy would write its result to an extra argument
        _small(math.prod(np.broadcast_shapes(*(array.shape for array in given))), given[0])
        return operation(*given)

    return make


def _divided(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    _need(b.all() and not (a.dtype.kind == "i" and (a == np.iinfo(a.dtype).min).any() and (b == -1).any()))
    quotient, rest = a // b, a % b  # numpy rounds down, ONNX towards zero
    return np.asarray(quotient + ((rest != 0) & ((a < 0) != (b < 0))).astype(a.dtype), dtype=a.dtype)


def _where(node: Node, inputs: Inputs) -> Array:
    condition, first, second = inputs
    assert condition is not None
    assert first is not None
    assert second is not None
    _need(condition.dtype == bool and first.dtype == second.dtype and first.dtype.kind in "biuf")
    if first.dtype.kind == "f":  # ONNX Runtime selects by adding 0.0
        _need(not any(((array == 0) & np.signbit(array)).any() for array in (first, second)))
    _small(math.prod(np.broadcast_shapes(condition.shape, first.shape, second.shape)), first)
    return np.where(condition, first, second)


def _cast(node: Node, inputs: Inputs) -> Array:
    data, target = _first(inputs), node.attr("to")
    _need(target not in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128))
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(target))
    except KeyError:
        raise NotFoldable from None
    _small(data.size, np.empty(0, dtype))
    if data.dtype == dtype:
        return data
    _need(data.dtype.kind in "biuf" and dtype.kind in "biuf")
    if data.dtype.kind == "f" and dtype.kind in "iu" and data.size:
        _need(np.isfinite(data).all())
        limits = np.iinfo(dtype)
        low, high = math.trunc(float(data.min())), math.trunc(float(data.max()))
        _need(limits.min <= low and high <= limits.max)
    result = data.astype(dtype)
    if dtype == np.float16:  # ONNX Runtime may omit this rounding
        _need(np.array_equal(result.astype(data.dtype), data, equal_nan=data.dtype.kind == "f"))
    return result


_ROUNDED = frozenset({"Cos", "Exp", "Log", "Pow", "Reciprocal", "Sin", "Sqrt", "Tanh"})

_MOST_INPUTS = {
    **dict.fromkeys(("Identity", "Flatten", "Transpose", "Cast", "NonZero"), (1, 1)),
    **dict.fromkeys(("Reshape", "Gather", "Expand", "Tile"), (1, 2)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "Split"), (13, 2)),
    "Slice": (10, 5),
}
"""``(opset, inputs)``: the maximum number of inputs from that opset on. Before, there is one input, and the others are
attributes (ONNX, Operators.md). For operators not listed, the evaluating function checks the inputs."""

_OPERATORS: dict[str, Callable[[Node, Inputs], Array | list[Array]]] = {
    "Identity": lambda node, inputs: _first(inputs),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": lambda node, inputs: _first(inputs).transpose(node.attr("perm")),
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Expand": _expand,
    "Tile": _tile,
    "NonZero": _non_zero,
    "Where": _where,
    "Cast": _cast,
    "Add": _computes(np.add, "iuf"),
    "Sub": _computes(np.subtract, "iuf"),
    "Mul": _computes(np.multiply, "iuf"),
    "Div": _computes(_divided, "iuf"),
    "Neg": _computes(np.negative, "if"),
    "Abs": _computes(np.abs, "iuf"),
    "Not": _computes(np.logical_not, "b"),
    "And": _computes(np.logical_and, "b"),
    "Or": _computes(np.logical_or, "b"),
    "Xor": _computes(np.logical_xor, "b"),
    "Equal": _computes(np.equal, "biuf"),
    "Less": _computes(np.less, "iuf"),
    "Greater": _computes(np.greater, "iuf"),
    "LessOrEqual": _computes(np.less_equal, "iuf"),
    "GreaterOrEqual": _computes(np.greater_equal, "iuf"),
    "Sqrt": _computes(np.sqrt, "f"),
    "Reciprocal": _computes(lambda x: np.asarray(x.dtype.type(1) / x), "f"),
    "Exp": _computes(np.exp, "f"),
    "Log": _computes(np.log, "f"),
    "Pow": _computes(np.power, "f"),
    "Sin": _computes(np.sin, "f"),
    "Cos": _computes(np.cos, "f"),
    "Tanh": _computes(np.tanh, "f"),
}
FOLDABLE = frozenset(_OPERATORS)
