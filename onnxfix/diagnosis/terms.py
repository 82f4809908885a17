"""What is added up to one element of a node's output: the terms of sums, products and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from onnxfix.diagnosis.evidence import Array, numeric


@dataclass(frozen=True)
class Terms:
    """The element is the sum of ``left * right`` and ``rest``, times ``factor``. All are float64; ``left`` and
    ``right`` have one element a term."""

    left: Array
    right: Array
    rest: float = 0.0
    factor: float = 1.0

    @property
    def magnitude(self) -> float:
        """The sum of the magnitudes of the terms."""
        return float(abs(self.factor) * np.sum(np.abs(self.left * self.right)) + abs(self.rest))

    @property
    def count(self) -> int:
        """How many terms there are."""
        return int(self.left.size) + int(self.rest != 0.0)

    def value(self) -> float:
        """The sum."""
        return float(self.factor * np.sum(self.left * self.right) + self.rest)


PRODUCTS = ("MatMul", "Gemm", "Conv")
"""The operators here whose terms are products of two inputs, which TensorFloat-32 rounds."""


def terms_of(node: NodeProto, inputs: Mapping[str, Array], index: Sequence[int]) -> Terms | None:
    """The terms of the element at ``index`` of the first output; None for other operators or unknown inputs."""
    make = _KINDS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    arrays = [inputs.get(name) if name else None for name in node.input]
    if make is None or not arrays or any(array is None and node.input[i] for i, array in enumerate(arrays)):
        return None
    if not all(array is None or numeric(array) for array in arrays):
        return None
    try:
        return make(node, arrays, tuple(index))
    except (IndexError, ValueError, TypeError):
        return None  # the shapes contradict the operator: there is nothing to learn from it


def element(array: Array, index: Sequence[int]) -> float:
    """The element that broadcasting brings to ``index``."""
    own = index[len(index) - array.ndim :] if array.ndim else ()
    return float(array[tuple(0 if size == 1 else i for i, size in zip(own, array.shape, strict=True))])


def attributes(node: NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values, without graphs."""
    return {one.name: helper.get_attribute_value(one) for one in node.attribute if not one.ref_attr_name}


def axes_of(node: NodeProto, arrays: Sequence[Array | None], rank: int) -> tuple[int, ...]:
    """The axes of a reduction, from its attribute or second input, counted from 0; all where none are given."""
    stored = attributes(node).get("axes")
    if stored is None and len(arrays) > 1 and arrays[1] is not None:
        stored = np.asarray(arrays[1]).reshape(-1).tolist()
    if not stored:
        return () if attributes(node).get("noop_with_empty_axes") else tuple(range(rank))
    return tuple(sorted(int(axis) % rank for axis in stored))


def _flat(part: Any) -> Array:
    return np.asarray(part).astype(np.float64).reshape(-1)


def _addends(node: NodeProto, arrays: Sequence[Any], index: tuple[int, ...]) -> Terms:
    values = np.array([element(array, index) for array in arrays if array is not None])
    signs = np.ones(len(values))
    if node.op_type == "Sub":
        signs[1] = -1.0
    return Terms(values, signs, factor=1.0 / len(values) if node.op_type == "Mean" else 1.0)


def _reduced(node: NodeProto, arrays: Sequence[Any], index: tuple[int, ...]) -> Terms:
    data = arrays[0]
    over = (
        axes_of(node, arrays, data.ndim) if node.op_type.startswith("Reduce") else tuple(range(2, data.ndim))
    )
    kept = attributes(node).get("keepdims", 1) or not node.op_type.startswith("Reduce")
    where = iter(index if not kept else [i for axis, i in enumerate(index) if axis not in over])
    part = _flat(data[tuple(slice(None) if axis in over else next(where) for axis in range(data.ndim))])
    mean = node.op_type in ("ReduceMean", "GlobalAveragePool")
    return Terms(part, np.ones(part.size), factor=1.0 / max(1, part.size) if mean else 1.0)


def _matmul(node: NodeProto, arrays: Sequence[Any], index: tuple[int, ...]) -> Terms:
    left, right = arrays
    row, column = left.ndim > 1, right.ndim > 1
    left, right = np.atleast_2d(left), right if column else right[:, None]
    batch = index[: len(index) - row - column]
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    rows: Any = (*batch, index[len(batch)] if row else 0)
    columns: Any = (*batch, slice(None), index[-1] if column else 0)
    first = np.broadcast_to(left, (*shape, *left.shape[-2:]))[rows]
    second = np.broadcast_to(right, (*shape, *right.shape[-2:]))[columns]
    return Terms(_flat(first), _flat(second))


def _gemm(node: NodeProto, arrays: Sequence[Any], index: tuple[int, ...]) -> Terms:
    given = attributes(node)
    left, right = arrays[0], arrays[1]
    first = left[:, index[0]] if given.get("transA") else left[index[0]]
    second = right[index[1]] if given.get("transB") else right[:, index[1]]
    bias = arrays[2] if len(arrays) > 2 else None
    rest = given.get("beta", 1.0) * element(bias, index) if bias is not None else 0.0
    return Terms(_flat(first), _flat(second), rest, given.get("alpha", 1.0))


def _conv(node: NodeProto, arrays: Sequence[Any], index: tuple[int, ...]) -> Terms:
    given = attributes(node)
    data, weights = arrays[0], arrays[1]
    sizes, kernel = data.shape[2:], weights.shape[2:]
    strides = given.get("strides") or [1] * len(sizes)
    dilations = given.get("dilations") or [1] * len(sizes)
    before = _padding(given, sizes, kernel, strides, dilations)
    inside: list[Array] = []
    taps: list[Array] = []
    for axis, size in enumerate(sizes):
        read = index[2 + axis] * strides[axis] - before[axis] + dilations[axis] * np.arange(kernel[axis])
        valid = (read >= 0) & (read < size)
        inside.append(read[valid])
        taps.append(np.flatnonzero(valid))
    channels = weights.shape[1]
    group = index[1] // (weights.shape[0] // given.get("group", 1))
    window = data[index[0], group * channels : (group + 1) * channels][np.ix_(np.arange(channels), *inside)]
    used = weights[index[1]][np.ix_(np.arange(channels), *taps)]
    bias = arrays[2] if len(arrays) > 2 else None
    return Terms(_flat(window), _flat(used), float(bias[index[1]]) if bias is not None else 0.0)


def _padding(
    given: Mapping[str, Any],
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Elements of padding before each axis."""
    mode = bytes(given.get("auto_pad", b"NOTSET"))
    if mode in (b"NOTSET", b""):
        return list(given.get("pads", [0] * len(sizes)))[: len(sizes)]
    if mode == b"VALID":
        return [0] * len(sizes)
    before = []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (taps - 1) + 1 - size)
        before.append(total // 2 if mode == b"SAME_UPPER" else total - total // 2)
    return before


_Make = Callable[[NodeProto, Sequence[Any], tuple[int, ...]], Terms]
_KINDS: dict[str, _Make] = {
    "Add": _addends,
    "Sub": _addends,
    "Sum": _addends,
    "Mean": _addends,
    "ReduceSum": _reduced,
    "ReduceMean": _reduced,
    "GlobalAveragePool": _reduced,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
}
