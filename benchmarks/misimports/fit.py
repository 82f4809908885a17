"""Inputs that a changed attribute asks for: weights of another shape, indices within another axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto, numpy_helper

from misimports import alter
from misimports.models import Variant, nodes, tensor_of

Array = np.ndarray[Any, Any]
#: Attributes before and after the change, the arrays of the inputs -> other arrays, by place.
Fit = Callable[[dict[str, Any], dict[str, Any], list["Array | None"]], dict[int, Array]]


def fitted(variant: Variant, before: NodeProto) -> Variant:
    """The variant with inputs that go with its change; ``before`` is the node without it. The variant itself where
    nothing is known of the operator, or an input comes from another node."""
    fit = _FITS.get(before.op_type)
    if fit is None or variant.change.node < 0:
        return variant
    node = list(nodes(variant.model.graph))[variant.change.node]
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in variant.model.graph.initializer}
    known = {**stored, **variant.feed}
    arrays = [known.get(name) if name else None for name in node.input]
    attributes = [{one.name: alter.value_of(one) for one in each.attribute} for each in (before, node)]
    try:
        changed = fit(attributes[0], attributes[1], arrays)
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return variant  # the change makes no sense here, and ONNX says so
    feed = dict(variant.feed)
    for place, array in changed.items():
        name, old = node.input[place], arrays[place]
        if old is None or (array.shape == old.shape and np.array_equal(array, old)):
            continue
        array = array.astype(old.dtype)
        if name in feed:
            feed[name] = array
        _declare(variant, name, array)
    return replace(variant, feed=feed)


def _need(arrays: list[Array | None], place: int) -> Array:
    found = arrays[place]
    if found is None:
        raise ValueError("it comes from another node, or is left out")
    return found


def _declare(variant: Variant, name: str, array: Array) -> None:
    for tensor in variant.model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(tensor_of(array, name, tensor.data_type))
    for info in variant.model.graph.input:
        if info.name == name:
            shape = info.type.tensor_type.shape
            symbols = [dim.dim_param for dim in shape.dim]
            del shape.dim[:]
            for axis, size in enumerate(array.shape):
                symbol = symbols[axis] if axis < len(symbols) else ""
                shape.dim.add(**({"dim_param": symbol} if symbol else {"dim_value": size}))


def _recurrence(
    before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]
) -> dict[int, Array]:
    counts = [2 if one.get("direction") == "bidirectional" else 1 for one in (before, after)]
    layouts = [int(one.get("layout", 0)) for one in (before, after)]
    found: dict[int, Array] = {}
    for place, array in enumerate(arrays):
        if array is None or place == 4:
            continue
        axis = layouts[0] if place in (5, 6) else 0
        if place and counts[0] != counts[1]:
            array = (
                np.concatenate([array, array[..., ::-1]], axis) if counts[1] == 2 else array.take([0], axis)
            )
        if place in (0, 5, 6) and layouts[0] != layouts[1]:
            array = array.swapaxes(0, 1)
        found[place] = array
    return found


def _convolution(
    before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]
) -> dict[int, Array]:
    data, weights = _need(arrays, 0), _need(arrays, 1)
    groups = int(after.get("group", 1))
    kernel = tuple(after.get("kernel_shape", weights.shape[2:]))
    maps = -(-weights.shape[0] // groups) * groups
    shape = (maps, data.shape[1] // groups, *kernel)
    found = {1: np.resize(weights, shape)}
    if len(arrays) > 2 and arrays[2] is not None:
        found[2] = np.resize(arrays[2], (maps,))
    return found


def _deconvolution(
    before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]
) -> dict[int, Array]:
    weights = _need(arrays, 1)
    found = {1: np.resize(weights, (*weights.shape[:2], *after.get("kernel_shape", weights.shape[2:])))}
    if len(arrays) > 2 and arrays[2] is not None:
        found[2] = np.resize(arrays[2], (weights.shape[1] * int(after.get("group", 1)),))
    return found


def _norm(before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]) -> dict[int, Array]:
    data, axis = _need(arrays, 0), int(after.get("axis", -1))
    shape = data.shape[axis:]
    return {place: np.resize(one, shape) for place, one in enumerate(arrays) if place and one is not None}


def _gemm(before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]) -> dict[int, Array]:
    found = {}
    for place, name in enumerate(("transA", "transB")):
        array = arrays[place]
        if array is not None and bool(before.get(name, 0)) != bool(after.get(name, 0)):
            found[place] = array.T
    return found


def _scales(before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]) -> dict[int, Array]:
    data, axis, block = _need(arrays, 0), int(after.get("axis", 1)), int(after.get("block_size", 0))
    found = {}
    for place in (1, 2):
        array = arrays[place] if place < len(arrays) else None
        if array is not None and array.ndim:
            shape = list(data.shape)
            shape[axis] = -(-shape[axis] // block) if block else shape[axis]
            found[place] = np.resize(array, shape if block else (shape[axis],))
    return found


def _indices(before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]) -> dict[int, Array]:
    data, indices = _need(arrays, 0), _need(arrays, 1)
    size = data.shape[int(after.get("axis", 0))]
    return {1: np.where(indices < 0, -(-indices % size) or 0, indices % size)} if size else {}


def _lengths(before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]) -> dict[int, Array]:
    data, lengths = _need(arrays, 0), _need(arrays, 1)
    size = data.shape[int(after.get("time_axis", 0))]
    return {1: np.resize(np.minimum(lengths, size), (data.shape[int(after.get("batch_axis", 1))],))}


def _blocks(before: dict[str, Any], after: dict[str, Any], arrays: list[Array | None]) -> dict[int, Array]:
    data, size = _need(arrays, 0), int(after["blocksize"])
    shape = (data.shape[0], 2 * size * size, 2 * size, 3 * size)
    return {0: np.resize(np.arange(np.prod(shape)), shape)}


_FITS: dict[str, Fit] = {
    "LSTM": _recurrence,
    "GRU": _recurrence,
    "RNN": _recurrence,
    "Conv": _convolution,
    "ConvTranspose": _deconvolution,
    "LayerNormalization": _norm,
    "RMSNormalization": _norm,
    "Gemm": _gemm,
    "QuantizeLinear": _scales,
    "DequantizeLinear": _scales,
    "Gather": _indices,
    "GatherElements": _indices,
    "ScatterElements": _indices,
    "Scatter": _indices,
    "ReverseSequence": _lengths,
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
}
