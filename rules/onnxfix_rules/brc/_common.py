"""Shared by the broadcasting rules: the inputs of an operator that broadcast, and their broadcast dimensions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from onnxfix.rule import Dim, Model, Node, Value, shared
from onnxfix.shapes.shapes import Shapes
from onnxfix.shapes.symbols import as_dim, is_one

MULTIDIRECTIONAL: dict[str, int] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater"), 7),
    **dict.fromkeys(("Min", "Max", "Sum", "Mean"), 8),
    "Where": 9,
    "Mod": 10,
    "BitShift": 11,
    **dict.fromkeys(("LessOrEqual", "GreaterOrEqual"), 12),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), 18),
}
"""Operators whose inputs all broadcast against each other, and the first opset in which they do (ONNX's
Operators.md; before opset 7, Add and similar operators had `axis` and `broadcast` attributes with another meaning)."""

BROADCASTING = (*MULTIDIRECTIONAL, "PRelu", "Gemm", "MatMul", "Expand")
"""All operators that broadcast."""

Shape = tuple[Dim, ...]


class Operand(NamedTuple):
    """One side of a broadcast, with the dimensions that take part in it.

    ``place`` is the index of the node's input, or -1 for a side that is not an input (Gemm's product, Expand's
    target). ``stretches`` is False for a side that must not be repeated (ONNX's unidirectional broadcasting).
    """

    place: int
    value: Value | None
    shape: Shape
    stretches: bool = True


class Broadcast(NamedTuple):
    """A node with its operands."""

    node: Node
    operands: tuple[Operand, ...]
    form: Form

    @property
    def rank(self) -> int:
        """Number of dimensions of the result's broadcast part."""
        return self.form.rank

    def dim(self, operand: Operand, axis: int) -> Dim | None:
        """The operand's dimension at the result's ``axis``; None if its rank is too low."""
        position = axis - (self.rank - len(operand.shape))
        return operand.shape[position] if 0 <= position < len(operand.shape) else None


class Form:
    """Properties that depend only on the operands' shapes: a model has thousands of broadcasts, but few forms."""

    def __init__(self, operands: tuple[Operand, ...]) -> None:
        self.operands = operands
        self.rank = max(len(operand.shape) for operand in operands)
        self.is_short = any(len(operand.shape) < self.rank for operand in operands)
        """Whether an operand has a lower rank than the result."""

    @cached_property
    def is_two_sided(self) -> bool:
        """Whether no operand has the result's shape, so that all of them are repeated.

        Dimensions that may differ without either being 1 do not count: another rule (BRC004) covers them.
        """
        axes = range(self.rank)
        ones = [[is_static_one(self.dim(operand, axis)) for axis in axes] for operand in self.operands]
        wide = [not all(one[axis] for one in ones) for axis in axes]
        return not any(all(not (one[axis] and wide[axis]) for axis in axes) for one in ones)

    def dim(self, operand: Operand, axis: int) -> Dim | None:
        """As ``Broadcast.dim``, for an operand of ``operands``."""
        position = axis - (self.rank - len(operand.shape))
        return operand.shape[position] if 0 <= position < len(operand.shape) else None


class _Known:
    """A cache of the forms of a model's broadcasts."""

    def __init__(self, model: Model) -> None:
        self.forms: dict[Node, Form | None] = {}
        self._shapes = model.shapes
        self._of_shapes: dict[tuple[int, ...], Form] = {}
        self._of_operands: dict[tuple[object, ...], Form] = {}

    def find(self, node: Node) -> Form | None:
        if node.op_type not in MULTIDIRECTIONAL:
            return self._form(_operands(node, self._shapes))
        shapes = [None if value is None else self._shapes.shape(value) for value in node.inputs]
        # Shapes are interned as long as ``_shapes`` exists, so equal shapes are nearly always the same object.
        key = tuple(map(id, shapes))
        form = self._of_shapes.get(key)
        if form is None or node.opset < MULTIDIRECTIONAL[node.op_type]:
            form = self._form(_operands(node, self._shapes))
            if form is not None:
                self._of_shapes[key] = form
        return form

    def _form(self, operands: Operands) -> Form | None:
        if operands is None or len(operands) < 2:
            return None
        # Dimensions are interned: an expression is the same object as long as it is referenced.
        key = tuple([(tuple(map(id, operand.shape)), operand.stretches) for operand in operands])
        form = self._of_operands.get(key)
        if form is None:
            form = self._of_operands[key] = Form(operands)
        return form


def form_of(node: Node, model: Model) -> Form | None:
    """The form of a node's broadcast, which for most nodes shows that no rule applies.

    None as for ``broadcast_of``.
    """
    known = shared(model, _Known)
    if node in known.forms:
        return known.forms[node]
    form = known.forms[node] = known.find(node) if node.is_onnx else None
    return form


def broadcast_of(node: Node, model: Model) -> Broadcast | None:
    """How the inputs of ``node`` broadcast; None if they do not, or if a shape is unknown."""
    form = form_of(node, model)
    operands = None if form is None else _operands(node, model.shapes)
    return None if form is None or operands is None else Broadcast(node, operands, form)


def _operands(node: Node, shapes: Shapes) -> Operands:
    since = MULTIDIRECTIONAL.get(node.op_type)
    if since is not None:
        return _all_inputs(node, shapes) if node.opset >= since else None
    special = _SPECIAL.get(node.op_type)
    return special(node, shapes) if special is not None else None


Operands = tuple[Operand, ...] | None


def _all_inputs(node: Node, shapes: Shapes) -> Operands:
    operands = []
    for index, value in enumerate(node.inputs):
        shape = shapes.shape(value) if value is not None else None
        if shape is None:
            return None
        operands.append(Operand(index, value, shape))
    return tuple(operands)


def _pair(node: Node, shapes: Shapes) -> tuple[Value, Shape, Value, Shape] | None:
    first, second = node.input(0), node.input(1)
    if first is None or second is None:
        return None
    a, b = shapes.shape(first), shapes.shape(second)
    return (first, a, second, b) if a is not None and b is not None else None


def _prelu(node: Node, shapes: Shapes) -> Operands:
    """None before opset 7, where a slope per channel is aligned with the channel axis."""
    pair = _pair(node, shapes)
    if pair is None or node.opset < 7 or len(pair[3]) > len(pair[1]):
        return None
    return Operand(0, pair[0], pair[1], stretches=False), Operand(1, pair[2], pair[3])


def _gemm(node: Node, shapes: Shapes) -> Operands:
    """C broadcasts to the product's shape (M, N), not vice versa."""
    pair, addend = _pair(node, shapes), node.input(2)
    shape = shapes.shape(addend) if addend is not None else None
    if pair is None or shape is None or node.opset < 7:
        return None
    if not len(pair[1]) == len(pair[3]) == 2 or len(shape) > 2:
        return None
    rows = pair[1][1 if node.attr("transA", 0) else 0]
    columns = pair[3][0 if node.attr("transB", 0) else 1]
    return Operand(-1, None, (rows, columns), stretches=False), Operand(2, addend, shape)


def _matmul(node: Node, shapes: Shapes) -> Operands:
    """Only the dimensions before the matrices broadcast. None for vectors, which add and remove a dimension."""
    pair = _pair(node, shapes)
    if pair is None or len(pair[1]) < 2 or len(pair[3]) < 2:
        return None
    return Operand(0, pair[0], pair[1][:-2]), Operand(1, pair[2], pair[3][:-2])


def _expand(node: Node, shapes: Shapes) -> Operands:
    """The target is a side like the data: Expand broadcasts in both directions, despite its name."""
    data, target = node.input(0), node.input(1)
    if data is None or target is None:
        return None
    shape, wanted = shapes.shape(data), shapes.value(target)
    if shape is None or wanted is None or len(wanted.shape) != 1:
        return None
    return Operand(0, data, shape), Operand(-1, None, tuple(as_dim(dim) for dim in wanted.data))


_SPECIAL: dict[str, Callable[[Node, Shapes], Operands]] = {
    "PRelu": _prelu,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Expand": _expand,
}


def short_of_rank(broadcast: Broadcast) -> list[tuple[Operand, Value, int]]:
    """Operands of a lower rank than the result, with the number of missing dimensions.

    The right matrix of a MatMul is excluded: that is a linear layer, every runtime has a kernel for it, and one
    product of many rows is not bit-equal to many products of few.
    """
    found = []
    for operand in broadcast.operands:
        missing = broadcast.rank - len(operand.shape)
        if operand.value is None or missing == 0:
            continue
        if broadcast.node.op_type == "MatMul" and operand.place == 1 and not operand.shape:
            continue
        found.append((operand, operand.value, missing))
    return found


def is_static_one(dim: Dim | None) -> bool:
    """Whether the dimension is missing or always 1, so that it is repeated as needed."""
    return dim is None or dim.value == 1 or (dim.value is None and is_one(dim).yes)


def text(shape: Shape) -> str:
    """``[N, 3]``."""
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


def label(operand: Operand) -> str:
    """The operand's name in messages, with a trailing space; "" for a side that is not an input."""
    return f"{operand.value.name!r} " if operand.value is not None else ""
