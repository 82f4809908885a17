"""The decomposed LayerNorm and RMSNorm: ``(x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon)``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from onnxfix.rule import Dim, Model, Node, Value, equal

from ._common import DOUBLE, FLOAT, HALF, NUMPY, producer, rank_of, scalar, type_of


@dataclass(frozen=True)
class Mean:
    """A mean over ``axes`` (None: all of them) that keeps the rank. ``node`` is the ReduceMean or ReduceSum; a
    ReduceSum is divided by the number of elements afterwards, and the reduced dimensions may be restored."""

    node: Node
    axes: tuple[int, ...] | None


@dataclass(frozen=True)
class Norm:
    """One norm. ``x`` is its input, before the Casts that widen it.

    ``mean`` is None for an RMSNorm, ``average`` is the mean of the squares. ``axes`` are as the model writes them,
    sorted (None: all of them), ``epsilon`` is the number that its type holds. ``last`` makes the quotient, or casts it
    back to ``x``'s type; ``inside`` are the nodes before it. ``types`` are those of what is squared and averaged, and
    ``work`` is the type to compute all of it in.
    """

    x: Value
    mean: Mean | None
    average: Mean
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
        value = self.last.require_output()
        return value

    @property
    def closed(self) -> bool:
        """Whether only the norm itself reads its intermediate results."""
        known = {*self.inside, self.last}
        made = [value for node in self.inside for value in node.outputs if value is not None]
        return all(v.replaceable and all(use.node in known for use in v.uses) for v in made)


def norm_at(root: Node, model: Model) -> Norm | None:
    """The norm whose square root, or reciprocal of it, is ``root``: Sqrt, or Pow with 0.5 or -0.5.

    None where there is none, or where something is not proven.

    Raises:
    """
    power = 0.5 if root.op_type == "Sqrt" else scalar(root.input(1), most=_most(root.input(0), model))
    if power not in (0.5, -0.5):
        return None
    inside: list[Node] = [root]
    total = producer(_through(root.input(0), inside), "Add")
    if total is None:
        return None
    for index in (0, 1):
        epsilon_value, other = total.input(index), total.input(1 - index)
        epsilon = scalar(epsilon_value, most=_most(other, model))
        if epsilon is None or epsilon_value is None:
            continue
        found = [*inside, total]
        average = mean_at(other, found, model)
        if average is None:
            return None
        return _of(root, average, epsilon, epsilon_value, found, model, inverse=power < 0)
    return None


def _most(other: Value | None, model: Model) -> int:
    """The allowed rank of a scalar operand beside ``other``. At least 1: ``_of`` checks the rank where it matters."""
    return max(1, rank_of(other, model))


def _of(
    root: Node,
    average: Mean,
    epsilon: float,
    epsilon_value: Value,
    inside: list[Node],
    model: Model,
    inverse: bool,
) -> Norm | None:
    """The norm around ``average``, the mean of the squares."""
    square = _square(_through(average.node.input(0), inside), model)
    axes = average.axes
    if square is None or (axes is None and not rank_of(square.input(0), model)):
        return None
    inside.append(square)
    data = square.input(0)
    types = {type_of(average.node.input(0), model), type_of(data, model)}
    centered = _centered(data, inside, axes, model)
    mean, x = centered or (None, widened(data))
    if mean is not None:
        types.add(type_of(mean.node.input(0), model))
    if x is None or root.scope.lookup(x.name) is not x:
        return None
    last = _quotient(root.output(), x if mean is None else None, inside, model, inverse)
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
    # Half precision's squares and sums fit into float32; double is for results and epsilons that are not.
    work = DOUBLE if type_of(last.output(), model) == DOUBLE or not np.float32(epsilon) else FLOAT
    return Norm(x, mean, average, axes, epsilon, epsilon_value, last, tuple(nodes), known, work)


def _centered(
    data: Value | None, inside: list[Node], axes: tuple[int, ...] | None, model: Model
) -> tuple[Mean, Value] | None:
    """The subtracted mean and its input, if ``data`` is ``x - mean(x)``, looking through Casts."""
    casts: list[Node] = []
    less = producer(_through(data, casts), "Sub")
    mean = None if less is None else mean_at(less.input(1), casts, model)
    x = None if less is None else widened(less.input(0))
    if less is None or mean is None or x is None or widened(mean.node.input(0)) is not x:
        return None
    if mean.axes != axes:
        return None  # a difference like any other
    inside.extend((*casts, less))
    return mean, x


def _through(value: Value | None, inside: list[Node]) -> Value | None:
    """The value before the Casts that produce ``value``; the Casts are added to ``inside``."""
    while (cast := producer(value, "Cast")) is not None and cast.attr("to") in NUMPY:
        inside.append(cast)
        value = cast.input(0)
    return value


def widened(value: Value | None) -> Value | None:
    """The value before the widening Casts that produce ``value``."""
    while (cast := producer(value, "Cast")) is not None and cast.attr("to") in (FLOAT, DOUBLE):
        value = cast.input(0)
    return value


def _square(value: Value | None, model: Model) -> Node | None:
    """``Pow(d, 2)`` or ``Mul(d, d)``."""
    node = producer(value, "Pow", "Mul")
    if node is None or len(node.inputs) != 2:
        return None
    if node.op_type == "Mul":
        return node if node.input(0) is node.input(1) else None
    return node if scalar(node.input(1), most=_most(node.input(0), model)) == 2.0 else None


def mean_at(value: Value | None, inside: list[Node], model: Model) -> Mean | None:
    """The mean that ``value`` is, looking through Casts; its nodes are added to ``inside``."""
    factor, put_back = None, None
    value = _through(value, inside)
    while (node := producer(value, "Unsqueeze", "Mul", "Div")) is not None:
        if node.op_type == "Unsqueeze" and put_back is None:
            put_back = node
            value = node.input(0)
        elif node.op_type != "Unsqueeze" and factor is None:
            factor, value = _factor(node, model)
            if factor is None:
                return None
        else:
            return None
        inside.append(node)
        value = _through(value, inside)
    node = producer(value, "ReduceMean" if factor is None else "ReduceSum")
    axes = () if node is None else axes_of(node, model)
    if node is None or axes == () or not _kept(node, put_back, axes, model):
        return None
    if factor is not None and not _is_share(factor, node, axes, model):
        return None
    inside.append(node)
    return Mean(node, axes)


def _factor(node: Node, model: Model) -> tuple[float | None, Value | None]:
    """The constant that a Mul or Div scales by, and what it scales."""
    for index in (0, 1) if node.op_type == "Mul" else (1,):
        data = node.input(1 - index)
        number = scalar(node.input(index), most=rank_of(data, model))
        if number:
            return (number if node.op_type == "Mul" else 1 / number), data
    return None, None


def _kept(node: Node, put_back: Node | None, axes: tuple[int, ...] | None, model: Model) -> bool:
    """Whether the reduced dimensions are kept with size 1 in the end."""
    if put_back is None:
        return bool(node.attr("keepdims", 1))
    rank = rank_of(node.input(0), model)
    given = put_back.attr("axes") if put_back.opset < 13 else _constant_axes(put_back)
    if node.attr("keepdims", 1) or not rank or given is None:
        return False
    return {axis % rank for axis in given} == {
        axis % rank for axis in (range(rank) if axes is None else axes)
    }


def _is_share(factor: float, node: Node, axes: tuple[int, ...] | None, model: Model) -> bool:
    """Whether ``factor`` is 1 / the number of summed elements, up to half-precision rounding."""
    shape = None if (data := node.input(0)) is None else model.shapes.shape(data)
    if shape is None:
        return False
    sizes = [dim.value for dim in (shape if axes is None else (shape[axis] for axis in axes))]
    known = [size for size in sizes if size is not None]
    return len(known) == len(sizes) and abs(factor * math.prod(known) - 1) < 2.0**-10


def _constant_axes(node: Node) -> list[int] | None:
    array = None if (value := node.input(1)) is None else value.constant()
    return None if array is None else [int(axis) for axis in array.reshape(-1)]


def axes_of(node: Node, model: Model) -> tuple[int, ...] | None:
    """A reduction's axes, negative if the rank is known; None for all axes, () if not understood."""
    since = 13 if node.op_type == "ReduceSum" else 18
    axes: list[int] | None = node.attr("axes") if node.opset < since else None
    if node.opset >= since and node.input(1) is not None:
        axes = _constant_axes(node)
        if axes is None:
            return ()
    if not axes:
        return () if node.attr("noop_with_empty_axes", 0) else None
    rank = rank_of(node.input(0), model)
    if rank:
        axes = [axis - rank if axis >= 0 else axis for axis in axes]
        if not -rank <= min(axes) <= max(axes) < 0:
            return ()
    return tuple(sorted(set(axes)))


def _quotient(
    value: Value | None, x: Value | None, inside: list[Node], model: Model, inverse: bool = False
) -> Node | None:
    """The node that divides by the root ``value``, or multiplies by its reciprocal.

    What is divided is ``x``, or without one the difference that is ``inside``.
    """
    for use in value.uses if value is not None else ():
        node = use.node
        if not node.is_onnx or node.output() is None:
            continue
        other = node.input(1 - use.index)
        cast = node.op_type == "Cast" and node.attr("to") in NUMPY
        one = node.op_type == "Div" and use.index == 1 and scalar(other, most=_most(value, model)) == 1.0
        if cast or ((node.op_type == "Reciprocal" or one) and not inverse):
            found = _quotient(node.output(), x, [*inside, node], model, inverse or not cast)
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


def _divided(value: Value | None, x: Value | None, inside: list[Node]) -> bool:
    """Whether ``value`` is ``x``, or without one the difference, looking through Casts."""
    if x is not None:
        return widened(value) is x
    casts: list[Node] = []
    less = producer(_through(value, casts), "Sub")
    inside.extend(casts)
    return less is not None and less in inside


def _narrowed(last: Node, inside: list[Node], model: Model) -> Node:
    """``last``, or the Cast to half precision that is its only reader; ``last`` is then inside."""
    value = last.output()
    if value is None or not value.replaceable or value.use_count != 1 or type_of(value, model) == HALF:
        return last
    cast = value.uses[0].node
    if cast.is_onnx and cast.op_type == "Cast" and cast.attr("to") == HALF and cast.scope is last.scope:
        inside.append(last)
        return cast
    return last


def trailing(norm: Norm, model: Model) -> int | None:
    """How many trailing dimensions are normalized; None if they are not the last ones, or unknown."""
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
