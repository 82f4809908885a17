"""Operators that only move elements: they move hashes in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import Call, fold, operator
from onnxfix.proof.symbolic.tensor import (
    Tensor,
    computed,
    constant,
    derived,
    fill,
    hull,
    identify,
    strip,
    widest,
    with_table,
)

_Array = np.ndarray[Any, Any]


def reshape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape."""
    sizes = tuple(map(int, shape))
    if sizes == tensor.shape:
        return tensor
    if min(sizes, default=1) < 0 or math.prod(sizes) != tensor.size:
        raise ValueError(f"{list(tensor.shape)} cannot take the shape {list(sizes)}")
    same = strip(sizes) == strip(tensor.shape)
    result = _move(tensor, sizes, lambda array: array.reshape(len(array), *sizes), "reshape", same)
    kept, before = ([one for one in each if one != 1] for each in (sizes, tensor.shape))
    if tensor.table is None or kept != before:
        return result
    return with_table(result, tensor.table.reshape(tensor.shape, sizes))


def transpose(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The same elements with their axes in another order."""
    axes, shape = (0, *(axis + 1 for axis in order)), [tensor.shape[axis] for axis in order]
    return _move(tensor, tuple(shape), lambda array: array.transpose(axes), f"transpose {axes}")


def broadcast(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor, broadcast to a shape."""

    def move(array: _Array) -> _Array:
        return np.broadcast_to(hashes.aligned(array, len(shape)), (len(array), *shape))

    same = strip(shape) == strip(tensor.shape)
    return tensor if shape == tensor.shape else _move(tensor, shape, move, "expand", same)


def _move(
    tensor: Tensor, shape: tuple[int, ...], move: Callable[[_Array], _Array], how: str, same: bool = False
) -> Tensor:
    """The elements moved by a function of arrays, which have one axis more. ``same``: none moves."""
    if tensor.known is not None:
        return replace(tensor, known=move(tensor.known[None])[0], shape=shape)
    recipe = tensor.key if same else identify(how.encode(), str(strip(shape)).encode(), tensor.key)
    return replace(tensor, compute=lambda: move(tensor.words), recipe=recipe, atom="", shape=shape)


def pick(tensors: Sequence[Tensor], numbers: _Array) -> Tensor:
    """A tensor of the shape of ``numbers``, which count the elements of all tensors from 1 on; 0 stands for zero."""
    first = tensors[0]
    padded = bool(np.any(numbers == 0))
    parts = [*([fill(0, first.dtype, (1,))] if padded else []), *tensors]
    places = numbers if padded else numbers - 1
    if all(one.known is not None for one in parts):
        flat = np.concatenate([np.ravel(one.known) for one in parts if one.known is not None])
        return constant(flat[places], first.dtype)

    def compute() -> hashes.Words:
        rows = [one.words.reshape(2, -1) for one in parts]
        return (np.concatenate(rows, axis=1) if len(rows) > 1 else rows[0])[:, places]

    kind = np.int32 if sum(one.size for one in parts) < 1 << 31 else np.int64  # half of it is hashed sooner
    recipe = identify(
        b"pick",
        np.dtype(kind).str.encode(),
        np.ascontiguousarray(places, kind).data,
        *(one.key for one in parts),
        str(strip(numbers.shape)).encode(),
    )
    return computed(first.dtype, numbers.shape, recipe, compute, hull(parts), widest(parts))


def number(tensors: Sequence[Tensor]) -> list[_Array]:
    """For each tensor an array of its shape that numbers the elements of all, from 1 on."""
    arrays, begin = [], 1
    for one in tensors:
        arrays.append(np.arange(begin, begin + one.size, dtype=np.int64).reshape(one.shape))
        begin += one.size
    return arrays


@operator("Identity")
def _identity(call: Call) -> Any:
    return [call.inputs[0]]


@operator("Reshape")
def _reshape(call: Call) -> Tensor:
    tensor, shape = call.ring(0), call.integers(1, "shape") or []
    if not call.attributes.get("allowzero"):
        shape = [size or tensor.shape[axis] for axis, size in enumerate(shape)]
    if -1 in shape:
        shape[shape.index(-1)] = tensor.size // -math.prod(shape)
    return reshape(tensor, shape)


@operator("Flatten")
def _flatten(call: Call) -> Tensor:
    tensor, axis = call.ring(0), call.attributes["axis"]
    axis = call.axis(axis, len(tensor.shape) + (axis >= 0))
    return reshape(tensor, (math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])))


@operator("Squeeze")
def _squeeze(call: Call) -> Tensor:
    tensor, axes = call.ring(0), call.integers(1, "axes")
    if axes == []:
        raise call.stuck("whether no axes are all axes depends on the runtime")
    ones = [axis for axis, size in enumerate(tensor.shape) if size == 1]
    dropped = {call.axis(axis, len(tensor.shape)) for axis in (ones if axes is None else axes)}
    if not dropped.issubset(ones):
        raise call.stuck("it drops an axis whose size is not 1")
    return reshape(tensor, [size for axis, size in enumerate(tensor.shape) if axis not in dropped])


@operator("Unsqueeze")
def _unsqueeze(call: Call) -> Tensor:
    tensor, axes = call.ring(0), call.integers(1, "axes") or []
    rank = len(tensor.shape) + len(axes)
    new, sizes = {call.axis(axis, rank) for axis in axes}, iter(tensor.shape)
    if len(new) < len(axes):
        raise call.stuck("it adds an axis twice")
    return reshape(tensor, [1 if axis in new else next(sizes) for axis in range(rank)])


@operator("Transpose")
def _transpose(call: Call) -> Tensor:
    tensor = call.ring(0)
    return transpose(tensor, call.attributes.get("perm") or range(len(tensor.shape))[::-1])


@operator("Expand")
def _expand(call: Call) -> Tensor:
    tensor = call.ring(0)
    return broadcast(tensor, np.broadcast_shapes(tensor.shape, tuple(call.integers(1) or ())))


@operator("Shape")
def _shape(call: Call) -> Tensor:
    sizes = np.array(call.ring(0).shape, np.int64)
    return constant(sizes[slice(call.attributes.get("start", 0), call.attributes.get("end"))])


@operator("Size")
def _size(call: Call) -> Tensor:
    return constant(np.array(call.ring(0).size, np.int64))


@operator("Concat")
def _concat(call: Call) -> Tensor:
    tensors = [call.tensor(index) for index in range(len(call.inputs))]
    axis = call.axis(call.attributes.get("axis", 1), len(tensors[0].shape))
    return pick(tensors, np.concatenate(number(tensors), axis))


_MOVED = {
    **dict.fromkeys(("Slice", "Gather", "GatherND", "Split", "Tile", "DepthToSpace"), (0,)),
    **dict.fromkeys(("SpaceToDepth", "Trilu", "ReverseSequence", "Compress", "CenterCropPad"), (0,)),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter", "Pad"), (0, 2)),
    "Resize": (0,),
}
"""The operators that ONNX's reference implementation carries out on numbers of elements, and the inputs whose
elements they move; the other inputs must be known."""


@operator(*_MOVED)
def move_by_number(call: Call) -> Any:
    """Carry the call out on the numbers of elements, then fetch the elements."""
    attributes = call.attributes
    values = [attributes.get(one, 0.0) for one in ("value", "extrapolation_value")]
    if any(values) or any(map(np.signbit, values)) or attributes.get("reduction", "none") != "none":
        return None
    if attributes.get("mode") == "wrap" or (call.name == "Resize" and attributes.get("mode") != "nearest"):
        return None
    moved = [index for index in _MOVED[call.name] if call.has(index)]
    others = [index for index in range(len(call.inputs)) if index not in moved and call.has(index)]
    if any(call.tensor(index).known is None for index in others):
        return _gather(call) if call.name == "Gather" else None
    tensors = [call.ring(index) for index in moved]
    arrays: list[_Array | None] = [
        call.known(index) if index in others else None for index in range(len(call.inputs))
    ]
    for index, array in zip(moved, number(tensors), strict=True):
        arrays[index] = array
    results = fold(call, arrays)
    return [() if one is None else pick(tensors, np.asarray(one).astype(np.int64)) for one in results]


def _gather(call: Call) -> Tensor:
    """Gather by indices that are not known: a function of the rows and the index."""
    data, indices = call.tensor(0), call.tensor(1)
    axis = call.axis(call.attributes["axis"], len(data.shape))
    rest = (*data.shape[:axis], *data.shape[axis + 1 :])
    name = f"gather {data.shape[axis]}"

    def compute() -> hashes.Words:
        if data.atom:
            columns = hashes.atoms(f"columns of {data.atom} {data.shape} {axis}", rest)
        else:
            places = hashes.encode(np.arange(data.shape[axis])).reshape(2, -1, *[1] * (len(rest) - axis))
            columns = hashes.total(hashes.mix("row", data.words, places), (axis,))
        columns = columns.reshape(2, *rest[:axis], *[1] * len(indices.shape), *rest[axis:])
        return hashes.mix(name, columns, indices.words.reshape(2, *indices.shape, *[1] * (len(rest) - axis)))

    shape = (*rest[:axis], *indices.shape, *rest[axis:])
    return derived(data.dtype, shape, f"{name} {axis}", (data, indices), compute, data.bounds, data.within)
