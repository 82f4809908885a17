"""Operators that only move elements: they move hashes in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import Call, fold, operator
from onnxfix.proof.symbolic.tensor import (
    Tensor,
    computed,
    constant,
    hull,
    identify,
    made,
    numpy_type,
    strip,
    widest,
)

_Array = np.ndarray[Any, Any]


def reshape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape."""
    sizes = tuple(int(size) for size in shape)
    if sizes == tensor.shape:
        return tensor
    if tensor.known is not None:
        return replace(tensor, known=tensor.known.reshape(sizes), shape=sizes)
    same = strip(sizes) == strip(tensor.shape)
    recipe = tensor.key if same else identify(b"reshape", str(strip(sizes)).encode(), tensor.key)
    result = replace(
        tensor, compute=lambda: tensor.words.reshape(2, *sizes), recipe=recipe, atom="", shape=sizes
    )
    if tensor.table is not None and [one for one in sizes if one != 1] == [
        one for one in tensor.shape if one != 1
    ]:
        result.__dict__["table"] = tensor.table.reshape(tensor.shape, sizes)
    return result


def transpose(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The same elements with their axes in another order."""
    shape = tuple(tensor.shape[axis] for axis in order)
    if tensor.known is not None:
        return replace(tensor, known=tensor.known.transpose(order), shape=shape)
    recipe = identify(b"transpose", str((tuple(order), shape)).encode(), tensor.key)
    axes = (0, *(axis + 1 for axis in order))
    return replace(tensor, compute=lambda: tensor.words.transpose(axes), recipe=recipe, atom="", shape=shape)


def broadcast(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor, broadcast to a shape."""
    if shape == tensor.shape:
        return tensor
    if tensor.known is not None:
        return replace(tensor, known=np.broadcast_to(tensor.known, shape), shape=shape)
    recipe = (
        tensor.key
        if strip(shape) == strip(tensor.shape)
        else identify(b"expand", str(shape).encode(), tensor.key)
    )

    def compute() -> hashes.Words:
        return np.broadcast_to(hashes.aligned(tensor.words, len(shape)), (2, *shape))

    return replace(tensor, compute=compute, recipe=recipe, atom="", shape=shape)


def pick(tensors: Sequence[Tensor], numbers: _Array) -> Tensor:
    """A tensor of the shape of ``numbers``, which count the elements of all tensors from 1 on; 0 stands for zero."""
    first = tensors[0]
    zero = constant(np.zeros((1,), numpy_type(first.dtype)), first.dtype) if np.any(numbers == 0) else None
    parts = [*([zero] if zero is not None else []), *tensors]
    places = numbers if zero is not None else numbers - 1
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
    tensor = call.ring(0)
    shape = call.integers(1, "shape") or []
    if not call.attributes.get("allowzero"):
        shape = [
            tensor.shape[axis] if size == 0 and axis < len(tensor.shape) else size
            for axis, size in enumerate(shape)
        ]
    if -1 in shape:
        others = int(np.prod([size for size in shape if size != -1], dtype=np.int64))
        if not others or tensor.size % others:
            raise call.stuck(f"{list(tensor.shape)} cannot take the shape {shape}")
        shape = [tensor.size // others if size == -1 else size for size in shape]
    if int(np.prod(shape, dtype=np.int64)) != tensor.size:
        raise call.stuck(f"{list(tensor.shape)} cannot take the shape {shape}")
    return reshape(tensor, shape)


@operator("Flatten")
def _flatten(call: Call) -> Tensor:
    tensor, axis = call.ring(0), call.attributes["axis"]
    axis = call.axis(axis, len(tensor.shape) + 1) if axis >= 0 else call.axis(axis, len(tensor.shape))
    rows = int(np.prod(tensor.shape[:axis], dtype=np.int64))
    return reshape(tensor, (rows, int(np.prod(tensor.shape[axis:], dtype=np.int64))))


@operator("Squeeze")
def _squeeze(call: Call) -> Tensor:
    tensor, axes = call.ring(0), call.integers(1, "axes")
    rank = len(tensor.shape)
    if axes == []:
        raise call.stuck("whether no axes are all axes depends on the runtime")
    dropped = (
        {call.axis(axis, rank) for axis in axes}
        if axes is not None
        else {i for i, n in enumerate(tensor.shape) if n == 1}
    )
    if any(tensor.shape[axis] != 1 for axis in dropped):
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
    axis = call.attributes.get("axis", 1)
    if all(one.known is not None for one in tensors):
        return constant(
            np.concatenate([one.known for one in tensors if one.known is not None], axis), tensors[0].dtype
        )
    axis = call.axis(axis, len(tensors[0].shape))
    shape = list(tensors[0].shape)
    shape[axis] = sum(one.shape[axis] for one in tensors)
    recipe = identify(b"concat", str((axis, shape)).encode(), *(one.key for one in tensors))

    def compute() -> hashes.Words:
        return np.concatenate([one.words for one in tensors], axis + 1)

    return computed(tensors[0].dtype, shape, recipe, compute, hull(tensors), widest(tensors))


_MOVED = {
    **dict.fromkeys(("Slice", "Gather", "GatherND", "Split", "Tile", "DepthToSpace"), (0,)),
    **dict.fromkeys(("SpaceToDepth", "Trilu", "ReverseSequence", "Compress", "CenterCropPad"), (0,)),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter", "Pad"), (0, 2)),
    **dict.fromkeys(("Resize", "Upsample"), (0,)),
}
"""The operators that ONNX's reference implementation carries out on numbers of elements, and the inputs whose
elements they move; the other inputs must be known."""


@operator("GatherElements")
def _gather_elements(call: Call) -> Tensor | None:
    tensor, indices = call.tensor(0), call.tensor(1)
    if indices.known is None:
        return None
    axis = call.axis(call.attributes["axis"], len(tensor.shape))
    places = list(np.indices(indices.shape))
    places[axis] = indices.known
    return pick([tensor], number([tensor])[0][tuple(places)])


@operator(*_MOVED)
def move_by_number(call: Call) -> Any:
    """Carry the call out on the numbers of elements, then fetch the elements."""
    attributes = call.attributes
    values = [attributes.get(one, 0.0) for one in ("value", "extrapolation_value")]
    if (
        any(values)
        or any(map(np.signbit, values))
        or attributes.get("reduction", "none") != "none"
        or attributes.get("mode") == "wrap"
    ):
        return None
    if call.name in ("Resize", "Upsample") and attributes.get("mode") != "nearest":
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
    if data.atom:
        columns = hashes.atoms(f"columns of {data.atom} {data.shape} {axis}", rest)
    else:
        rows = np.moveaxis(data.words, axis + 1, -1)
        positions = hashes.encode(np.arange(rows.shape[-1], dtype=np.int64)).reshape(2, *[1] * len(rest), -1)
        columns = hashes.total(hashes.mix("row", rows, positions), (len(rest),))[..., 0]
    shape = (*rest[:axis], *[1] * len(indices.shape), *rest[axis:])
    rows_of = indices.words.reshape(2, *[1] * axis, *indices.shape, *[1] * (len(rest) - axis))
    words = hashes.mix(f"gather {data.shape[axis]}", columns.reshape(2, *shape), rows_of)
    return made(data.dtype, words, data.bounds, data.within)
