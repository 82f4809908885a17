"""Where a traced batch was written into the model as a constant: found where it meets the batch of an input.

From the operand whose size is static, the search goes up through operators that keep the axis, to the constant that
made the size: repeats of a Tile, the shape of an Expand or ConstantOfShape, the limit of a Range, the end of a Slice,
the depth of a OneHot, or a weight that repeats one sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onnxfix.rule import Model, Node, Unknown, Value, every_node
from onnxfix.targets.documented import names

from ._common import MULTIDIRECTIONAL
from ._meet import Symbols, broadcasts, meetings

_UNARY = names(
    "Abs Cast Ceil Clip Dropout Erf Exp Floor Gelu Identity LayerNormalization LeakyRelu Log Neg Not Relu "
    "Sigmoid Sin Cos Softmax Sqrt Tanh"
)
_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
_ARGUMENTS = {"ConstantOfShape": 0, "Expand": 1, "OneHot": 1, "Range": 1, "Slice": 2, "Tile": 1}


class Baked(NamedTuple):
    """A size that should be the batch.

    ``node`` reads it as its input ``place``: as an argument, at ``position`` (None for a scalar), or, where
    ``is_weight``, as data that repeat one sample along the axis ``position``. ``reader`` is where ``size`` meets
    the batch ``symbol``.
    """

    node: Node
    place: int
    position: int | None
    is_weight: bool
    size: int
    symbol: str
    reader: Node


class BakedSizes:
    """All baked sizes of a model, and the nodes at which they meet the batch. Compute it with ``shared``."""

    def __init__(self, model: Model) -> None:
        self.found: dict[tuple[Node, int, int | None], Baked] = {}
        self.readers: set[Node] = set()
        symbols = Symbols(model)
        if not symbols.batch:
            return
        for reader, index, axis, name in _conflicts(model, symbols):
            for baked in _trace(model, reader, index, axis, name):
                self.found.setdefault(baked[:3], baked)
                self.readers.add(reader)


def _conflicts(model: Model, symbols: Symbols) -> Iterator[tuple[Node, int, int, str]]:
    """Reader, input, axis, and symbol: where a static size meets a batch that it is not repeated for."""
    for broadcast in broadcasts(model, lambda node, form: symbols.answers(form).is_open):
        for meeting in meetings(broadcast):
            sides = ((meeting.first, meeting.a), (meeting.second, meeting.b))
            for (operand, dim), (_, other) in (sides, sides[::-1]):
                name = symbols.batch_symbol(other)
                if name is not None and dim.value is not None and operand.place >= 0:
                    axis = meeting.axis - broadcast.rank + len(operand.shape)
                    yield broadcast.node, operand.place, axis, name
    for node in every_node(model).of(lambda operator: operator[1] in ("Concat", *_STATES)):
        try:
            joined = int(node.attr("axis", 1)) if node.op_type == "Concat" else None
        except Unknown:
            continue
        if node.is_onnx:
            yield from _equal_sizes(node, joined, model, symbols)


def _equal_sizes(
    node: Node, joined: int | None, model: Model, symbols: Symbols
) -> Iterator[tuple[Node, int, int, str]]:
    """Where a Concat along the axis ``joined``, or the states of an LSTM, GRU or RNN, have another batch."""
    shapes = [None if value is None else model.shapes.shape(value) for value in node.inputs]
    if joined is None:
        places, axes, known = (0, *_STATES[node.op_type]), range(1, 2), symbols.known
    else:
        places, axes, known = tuple(range(len(shapes))), range(len(shapes[0] or ())), set(symbols.batch)
    for axis in axes:
        if joined is not None and joined in (axis, axis - len(axes)):
            continue
        present = [(i, shapes[i]) for i in places if i < len(shapes)]
        dims = {i: shape[axis] for i, shape in present if shape is not None and axis < len(shape)}
        name = next((str(dim) for dim in dims.values() if str(dim) in known), None)
        for index, dim in dims.items():
            if name is not None and dim.value is not None:
                yield node, index, axis, name


def _trace(model: Model, reader: Node, index: int, axis: int, name: str) -> Iterator[Baked]:
    pending, seen = [(reader, index, axis)], set[tuple[Value, int]]()
    value = reader.require(index)
    shape = model.shapes.shape(value)
    size = None if shape is None else shape[axis].value
    if size is None:
        return
    for node, place, position in pending:
        value = node.require(place)
        shape = model.shapes.shape(value)
        if shape is None or not 0 <= position < len(shape) or shape[position].value != size:
            continue
        if (value, position) in seen or len(seen) > 1000:
            continue
        seen.add((value, position))
        producer = value.producer
        if value.is_constant:
            if _repeats(value, position):
                yield Baked(node, place, position, True, size, name, reader)
        elif producer is not None and producer.is_onnx and len(producer.outputs) >= 1:
            try:
                where = _written(producer, position, size, len(shape), model)
                if where is not None:
                    yield Baked(producer, *where, False, size, name, reader)
                else:
                    pending.extend(_sources(producer, position, len(shape), model))
            except Unknown:
                continue


def _repeats(value: Value, axis: int) -> bool:
    """Whether a constant of several dimensions is the same at all indices of an axis."""
    array = value.constant()
    if array is None or array.ndim < 2 or not array.size:
        return False
    return bool((array == array.take([0], axis)).all())


def _written(node: Node, axis: int, size: int, rank: int, model: Model) -> tuple[int, int | None] | None:
    """The input of ``node``, and the position in it, that sets the output's ``axis`` to ``size``."""
    index = _ARGUMENTS.get(node.op_type)
    array = None if index is None or (value := node.input(index)) is None else value.constant()
    if index is None or array is None or array.dtype.kind != "i":
        return None
    position: int | None = axis
    if node.op_type in ("Range", "OneHot"):
        position = None
        if node.op_type == "OneHot":
            fits = node.attr("axis", -1) in (axis, axis - rank)
        else:
            start, delta = (node.require(i).constant() for i in (0, 2))
            fits = (
                start is not None and delta is not None and int(start.item()) == 0 and int(delta.item()) == 1
            )
    elif node.op_type == "Slice":
        position = _sliced(node, axis, rank)
        fits = position is not None
    else:
        position = axis - rank + array.size
        data = None if node.op_type == "ConstantOfShape" else model.shapes.shape(node.require(0))
        own = axis - rank + len(data) if data is not None else -1
        fits = node.op_type == "ConstantOfShape" or (data is not None and (own < 0 or data[own].value == 1))
    elements = array.reshape(-1)
    return (index, position) if fits and int(elements[position or 0]) == size else None


def _sliced(node: Node, axis: int, rank: int) -> int | None:
    """The entry of a Slice that cuts ``axis`` from its start in steps of one."""
    starts, axes, steps = (None if (v := node.input(i)) is None else v.constant() for i in (1, 3, 4))
    if starts is None or node.opset < 10:
        return None
    if (axes is None and node.input(3)) or (steps is None and node.input(4)):
        return None
    listed = list(range(starts.size)) if axes is None else [int(one) % rank for one in axes]
    if axis not in listed:
        return None
    entry = listed.index(axis)
    return entry if int(starts[entry]) == 0 and (steps is None or int(steps[entry]) == 1) else None


def _sources(node: Node, axis: int, rank: int, model: Model) -> Iterator[tuple[Node, int, int]]:
    """The inputs of ``node`` that have the output's axis, as in ``_trace``."""
    op = node.op_type
    if op in MULTIDIRECTIONAL or op in ("MatMul", "Expand"):
        if op == "MatMul" and axis >= rank - 2:
            return
        for index, value in enumerate(node.inputs if op != "Expand" else node.inputs[:1]):
            shape = None if value is None else model.shapes.shape(value)
            if shape is not None:
                yield node, index, axis - rank + len(shape)
    elif op in _UNARY or op in ("Slice", "Tile"):
        yield node, 0, axis
    elif op == "Transpose":
        perm = node.attr("perm") or range(rank)[::-1]
        yield node, 0, perm[axis]
    elif op == "Concat":
        if node.attr("axis", 1) not in (axis, axis - rank):
            yield from ((node, index, axis) for index in range(len(node.inputs)))
    elif op in ("Squeeze", "Unsqueeze"):
        listed = node.input(1) if node.opset >= 13 else None
        array = listed.constant() if listed is not None else node.attr("axes")
        data = model.shapes.shape(node.require(0))
        if array is None or data is None:
            return
        whole = rank if op == "Unsqueeze" else len(data)
        added = {int(one) % whole for one in array}
        kept = [one for one in range(whole) if one not in added]
        if op == "Squeeze":
            yield node, 0, kept[axis]
        elif axis in kept:
            yield node, 0, kept.index(axis)
