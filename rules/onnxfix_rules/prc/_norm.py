"""The decomposed LayerNorm and RMSNorm: ``(x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon)``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnxfix.graph.overlay import Model, Node, Value
from onnxfix.graph.symbols import Dim, equal

from ._common import DOUBLE, FLOAT, HALF, NUMPY, producer, scalar, type_of


@dataclass(frozen=True)
class Norm:
    """One norm. ``x`` is what it normalises, below the Casts that widen it.

    ``mean`` is None for an RMSNorm, ``average`` is the mean of the squares. ``axes`` are as the model writes them,
    sorted (None: all of them), ``epsilon`` is the number that its type holds. ``last`` makes the quotient, or casts it
    back to ``x``'s type; ``inside`` are the nodes before it. ``types`` are those of what is squared and averaged, and
    ``work`` is the type to compute all of it in.
    """

    x: Value
    mean: Node | None
    average: Node
    axes: tuple[int, ...] | None
    epsilon: float
    epsilon_value: Value
    last: Node
    inside: tuple[Node, ...]
    types: frozenset[int]
    work: int

    @property
    def kind(self) -> str:
        return "RMSNorm" if self.mean is None else "LayerNorm"

    @property
    def result(self) -> Value:
        value = self.last.output()
        assert value is not None
        return value

    @property
    def closed(self) -> bool:
        """Whether nothing but the norm itself reads what it computes on its way."""
        known = {*self.inside, self.last}
        made = [value for node in self.inside for value in node.outputs if value is not None]
        return all(v.replaceable and all(use.node in known for use in v.uses) for v in made)


def norm_at(root: Node, model: Model) -> Norm | None:
    """The norm whose square root is ``root``; None where there is none, or where something is not proven.

    Raises:
        UnknownAttribute: an attribute depends on the surrounding function.
    """
    inside: list[Node] = [root]
    total = producer(_through(root.input(0), inside), "Add")
    if total is None:
        return None
    for index in (0, 1):
        epsilon_value = total.input(index)
        epsilon = scalar(epsilon_value, most=1)
        if epsilon is None or epsilon_value is None:
            continue
        found = [*inside, total]
        average = producer(_through(total.input(1 - index), found), "ReduceMean")
        return None if average is None else _of(root, average, epsilon, epsilon_value, found, model)
    return None


def _of(
    root: Node, average: Node, epsilon: float, epsilon_value: Value, inside: list[Node], model: Model
) -> Norm | None:
    """The norm around ``average``, the mean of the squares."""
    inside.append(average)
    square = _square(_through(average.input(0), inside))
    axes = _axes(average, model)
    if square is None or axes == () or (axes is None and not _rank(square.input(0), model)):
        return None
    inside.append(square)
    data = square.input(0)
    types = {type_of(average.input(0), model), type_of(data, model)}
    centred = _centred(data, inside, axes, model)
    mean, x = centred or (None, widened(data))
    if mean is not None:
        types.add(type_of(mean.input(0), model))
    if x is None or root.scope.lookup(x.name) is not x:
        return None
    last = _quotient(root.output(), x if mean is None else None, inside)
    if last is None:
        return None
    nodes = list(dict.fromkeys(inside))
    if any(node.scope is not root.scope for node in (*nodes, last)):
        return None
    inner = [type_of(node.output(), model) for node in (*nodes, last)]
    if any(kind not in NUMPY for kind in inner):
        return None
    last = _narrowed(last, nodes, model)
    known = frozenset(kind for kind in types if kind is not None)
    work = DOUBLE if DOUBLE in inner else FLOAT
    return Norm(x, mean, average, axes, epsilon, epsilon_value, last, tuple(nodes), known, work)


def _centred(
    data: Value | None, inside: list[Node], axes: tuple[int, ...] | None, model: Model
) -> tuple[Node, Value] | None:
    """The mean that is subtracted and what it is the mean of, where ``data`` is ``x - mean(x)``, Casts apart."""
    casts: list[Node] = []
    less = producer(_through(data, casts), "Sub")
    mean = None if less is None else producer(_through(less.input(1), casts), "ReduceMean")
    x = None if less is None else widened(less.input(0))
    if less is None or mean is None or x is None or widened(mean.input(0)) is not x:
        return None
    if _axes(mean, model) != axes:
        return None  # a difference like any other
    inside.extend((*casts, less, mean))
    return mean, x


def _through(value: Value | None, inside: list[Node]) -> Value | None:
    """What stands before the Casts that make ``value``, which are noted in ``inside``."""
    while (cast := producer(value, "Cast")) is not None and cast.attr("to") in NUMPY:
        inside.append(cast)
        value = cast.input(0)
    return value


def widened(value: Value | None) -> Value | None:
    """What stands before the Casts to a wider type that make ``value``."""
    while (cast := producer(value, "Cast")) is not None and cast.attr("to") in (FLOAT, DOUBLE):
        value = cast.input(0)
    return value


def _square(value: Value | None) -> Node | None:
    """``Pow(d, 2)`` or ``Mul(d, d)``."""
    node = producer(value, "Pow", "Mul")
    if node is None or len(node.inputs) != 2:
        return None
    same = scalar(node.input(1), most=1) == 2.0 if node.op_type == "Pow" else node.input(0) is node.input(1)
    return node if same else None


def _axes(node: Node, model: Model) -> tuple[int, ...] | None:
    """The axes, counted from the end where the rank is known; None for all of them, () for what is not understood."""
    if not node.attr("keepdims", 1):
        return ()
    value = node.input(1)
    axes: list[int] | None = node.attr("axes") if node.opset < 18 else None
    if node.opset >= 18 and value is not None:
        array = value.constant()
        if array is None:
            return ()
        axes = [int(axis) for axis in array.reshape(-1)]
    if not axes:
        return () if node.attr("noop_with_empty_axes", 0) else None
    data = node.input(0)
    rank = None if data is None else model.shapes.rank(data)
    if rank is not None:
        axes = [axis - rank if axis >= 0 else axis for axis in axes]
    return tuple(sorted(set(axes)))


def _rank(value: Value | None, model: Model) -> int:
    """The rank, 0 where it is not known: a constant of rank 1 might give a scalar another rank."""
    return 0 if value is None else model.shapes.rank(value) or 0


def _quotient(value: Value | None, x: Value | None, inside: list[Node], inverse: bool = False) -> Node | None:
    """The node that divides by the root ``value``, or multiplies by its reciprocal.

    What is divided is ``x``, or without one the difference that is ``inside``.
    """
    for use in value.uses if value is not None else ():
        node = use.node
        if not node.is_onnx or node.output() is None:
            continue
        other = node.input(1 - use.index)
        cast = node.op_type == "Cast" and node.attr("to") in NUMPY
        turns = node.op_type == "Reciprocal" or (node.op_type == "Div" and _is_one(other, use.index))
        if cast or (turns and not inverse):
            found = _quotient(node.output(), x, [*inside, node], inverse or not cast)
            if found is not None:
                inside.append(node)
                return found
        elif (
            node.op_type == ("Mul" if inverse else "Div")
            and (inverse or use.index == 1)
            and _divided(other, x, inside)
        ):
            return node
    return None


def _is_one(value: Value | None, index: int) -> bool:
    return index == 1 and scalar(value, most=1) == 1.0


def _divided(value: Value | None, x: Value | None, inside: list[Node]) -> bool:
    """Whether ``value`` is ``x``, or without one the difference, Casts apart."""
    if x is not None:
        return widened(value) is x
    casts: list[Node] = []
    less = producer(_through(value, casts), "Sub")
    inside.extend(casts)
    return less is not None and less in inside


def _narrowed(last: Node, inside: list[Node], model: Model) -> Node:
    """``last``, or the Cast to half precision that alone reads it; ``last`` is inside then."""
    value = last.output()
    if value is None or not value.replaceable or value.use_count != 1 or type_of(value, model) == HALF:
        return last
    cast = value.uses[0].node
    if cast.is_onnx and cast.op_type == "Cast" and cast.attr("to") == HALF and cast.scope is last.scope:
        inside.append(last)
        return cast
    return last


def trailing(norm: Norm, model: Model) -> int | None:
    """How many dimensions are normalised where they are the last ones; None where they are not, or not known."""
    rank = model.shapes.rank(norm.x)
    if norm.axes is None:
        return rank or None
    count = len(norm.axes)
    return count if list(norm.axes) == list(range(-count, 0)) else None


def same_dims(value: Value | None, dims: Iterable[Dim], model: Model) -> bool:
    """Whether ``value`` has exactly this shape."""
    shape = None if value is None else model.shapes.shape(value)
    wanted = tuple(dims)
    return (
        shape is not None
        and len(shape) == len(wanted)
        and all(equal(a, b).yes for a, b in zip(shape, wanted, strict=True))
    )
