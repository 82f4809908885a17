"""The tensors of a sequence, if the graph determines them: one entry per tensor."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Dim, Draft, Model, Node, Value, equal

MAX_ITEMS = 256
_MOST_ROWS = 1 << 31


@dataclass(frozen=True)
class Item:
    """A tensor of a sequence: ``source`` itself, or its slice from ``start`` to ``stop`` along ``axis``.

    ``squeezed``: the slice has length 1, and the axis is removed. ``parts``: the sizes of all parts, where the axis is
    dynamic: a Split then checks their sum, as SplitToSequence does. ``sizes``: those sizes, where they are computed.
    """

    source: Value
    axis: int = 0
    start: int = -1
    stop: int = -1
    squeezed: bool = False
    parts: tuple[int, ...] = ()
    place: int = 0
    sizes: Value | None = None

    def write(self, draft: Draft) -> str:
        """Add the nodes that compute the tensor at the draft's anchor, and return its name."""
        if self.sizes is not None:
            return self._cut(draft, self.sizes)
        if self.start < 0:
            return self.source.name
        if self.squeezed:
            row = draft.integers(self.start, "row")
            return draft.add("Gather", [self.source, row], axis=self.axis)
        if self.parts:
            return draft.split(self.source, self.parts, self.axis, "part_{}")[self.place]
        numbers = ([self.start], [self.stop], [self.axis])
        return draft.add("Slice", [self.source, *(draft.integers(n) for n in numbers)])

    def _cut(self, draft: Draft, sizes: Value) -> str:
        """The slice behind the parts before it, whose sizes are computed."""
        zero, place, after = (draft.integers([n]) for n in (0, self.place, self.place + 1))
        start = zero
        if self.place:
            start = draft.sum(draft.add("Slice", [sizes, zero, place, zero]), [0], keepdims=True)
        end = draft.add("Add", [start, draft.add("Slice", [sizes, place, after, zero])])
        return draft.add("Slice", [self.source, start, end, draft.integers([self.axis])])


def items(value: Value, model: Model) -> tuple[list[Item], list[Node]] | None:
    """The tensors of a sequence and the nodes that make it; None if unknown."""
    chain: list[Node] = []
    while True:
        node = value.producer
        if node is None or not node.is_onnx or len(chain) >= MAX_ITEMS:
            return None
        chain.append(node)
        source = node.input(0)
        if node.op_type not in ("SequenceInsert", "SequenceErase", "Identity"):
            break
        if source is None:
            return None
        value = source
    held = _made(chain[-1], model)
    for node in chain[-2::-1]:
        held = None if held is None else _changed(held, node)
    return None if held is None else (held, chain)


def _made(node: Node, model: Model) -> list[Item] | None:
    if node.op_type == "SequenceEmpty":
        return []
    if node.op_type == "SequenceConstruct":
        held = [Item(value) for value in node.inputs if value is not None]
        return held if len(held) == len(node.inputs) <= MAX_ITEMS else None
    return _split(node, model) if node.op_type == "SplitToSequence" else None


def _changed(held: Sequence[Item], node: Node) -> list[Item] | None:
    """The tensors after an insertion or a removal at a constant position."""
    if node.op_type == "Identity":
        return list(held)
    insert = node.op_type == "SequenceInsert"
    at: int | None = len(held) if insert else len(held) - 1
    position = node.input(2 if insert else 1)
    if position is not None:
        at = index_of(position, len(held), len(held) + insert)
    if at is None or at < 0:
        return None
    if not insert:
        return [*held[:at], *held[at + 1 :]]
    tensor = node.input(1)
    return None if tensor is None else [*held[:at], Item(tensor), *held[at:]]


def index_of(position: Value, length: int, limit: int) -> int | None:
    """A constant position, normalized to 0 <= position < ``limit``; None if not constant or out of range."""
    array = position.constant(64)
    if array is None or array.size != 1 or array.dtype.kind != "i":
        return None
    at = int(array.reshape(-1)[0])
    at = at + length if at < 0 else at
    return at if 0 <= at < limit else None


def axis_of(node: Node, rank: int) -> int | None:
    """The non-negative axis of a SplitToSequence, or None if it is invalid."""
    axis = int(node.attr("axis", 0))
    return axis % rank if rank and -rank <= axis < rank else None


def _is_squeezed(node: Node) -> bool | None:
    """Whether a SplitToSequence removes the axis; None where ONNX Runtime differs from ONNX.

    ONNX ignores ``keepdims`` beside ``split``; ONNX Runtime does not if ``split`` is the scalar 1 (measured with 1.32).
    PyTorch writes unbind so, and means what ONNX Runtime does.
    """
    split = node.input(1)
    if node.attr("keepdims", 1) or split is None:
        return not node.attr("keepdims", 1)
    sizes = split.constant(64)
    return None if sizes is None or (sizes.ndim == 0 and sizes == 1) else False


def _split(node: Node, model: Model) -> list[Item] | None:
    data, split = node.input(0), node.input(1)
    shape = None if data is None else model.shapes.shape(data)
    axis = None if shape is None else axis_of(node, len(shape))
    size = None if shape is None or axis is None else shape[axis].value
    if data is None or axis is None or shape is None:
        return None
    parts: Sequence[int] | None = [1] * size if size is not None and size <= MAX_ITEMS else None
    if split is not None:
        parts = _sizes(split, shape[axis])
    if parts is None or len(parts) > MAX_ITEMS:
        return None
    squeezed = _is_squeezed(node)
    if squeezed is None:
        return None
    ends = np.cumsum([0, *parts]).tolist()
    checked = tuple(parts) if size is None else ()
    return [
        Item(data, axis, a, b, squeezed, checked, place)
        for place, (a, b) in enumerate(itertools.pairwise(ends))
    ]


def _sizes(split: Value, dim: Dim) -> list[int] | None:
    """The sizes of the parts: as listed, or equal with a smaller last one, where the size is known."""
    array = split.constant(8 * MAX_ITEMS)
    if array is None or array.dtype.kind != "i":
        return None
    if array.ndim == 1:
        sizes: list[int] = array.tolist()
        return sizes if not equal(dim, sum(sizes)).no and min(sizes, default=-1) >= 0 else None
    size, step = dim.value, int(array) if array.ndim == 0 else 0
    if step < 1 or size is None or size < 1 or size > step * MAX_ITEMS:
        return None
    return [min(step, size - start) for start in range(0, size, step)]


def part(value: Value, position: Value, model: Model) -> tuple[Item, Node] | None:
    """The part at a constant position of a tensor that is split into parts of one size, however many, or of computed
    sizes; None if unknown.

    Where there is no such part, which the sequence operators refuse, the item is empty or out of range.
    """
    node = value.producer
    data = None if node is None or node.op_type != "SplitToSequence" or not node.is_onnx else node.input(0)
    at = index_of(position, 0, MAX_ITEMS)  # a negative one depends on the number of parts
    if node is None or data is None or at is None:
        return None
    axis, split, step = axis_of(node, model.shapes.rank(data) or 0), node.input(1), 1
    if axis is not None and split is not None and model.shapes.rank(split) == 1 and not split.is_constant:
        is_long = model.shapes.elem_type(split) == TensorProto.INT64
        return (Item(data, axis, place=at, sizes=split), node) if is_long else None
    if split is not None:
        array = split.constant(64)
        step = int(array) if array is not None and array.dtype.kind == "i" and array.ndim == 0 else 0
    if axis is None or not 1 <= step <= _MOST_ROWS:
        return None
    squeezed = _is_squeezed(node)
    return None if squeezed is None else (Item(data, axis, at * step, (at + 1) * step, squeezed), node)


def whole(value: Value, axis: int, stack: bool, model: Model) -> tuple[Value, Node] | None:
    """The tensor that was split along ``axis``, if concatenating the sequence restores it; else None."""
    node = value.producer
    data = None if node is None or node.op_type != "SplitToSequence" or not node.is_onnx else node.input(0)
    if node is None or data is None:
        return None
    rank = model.shapes.rank(data)
    first, second = (None, None) if not rank else (axis_of(node, rank), axis + rank if axis < 0 else axis)
    squeezed = _is_squeezed(node)
    if first is None or first != second or squeezed != stack:
        return None
    shape = model.shapes.shape(data)
    # An empty axis gives no parts, and an empty sequence cannot be concatenated.
    return (data, node) if shape is not None and equal(shape[first], 0).no else None
