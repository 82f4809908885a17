"""Shared by the Cast rules: pairs of Casts, and what each step preserves."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from onnx import TensorProto

from onnxfix.rule import Model, Node, Severity, Value, dtypes, shared, target_of

CASTS = ("Cast", "CastLike")

NUMBERS = frozenset({*dtypes.INTEGERS, *dtypes.FLOATS})
"""Types that Cast converts by value. Strings are excluded: number formatting differs between backends."""

ORDINARY = frozenset(
    {
        TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
        TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
        TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE,
    }
)  # fmt: skip
"""Types that every backend casts directly between any two; float8, int4 and the like may need steps."""


class Pair(NamedTuple):
    """A Cast of ``source`` (type ``a``) to ``between`` (type ``b``), and ``node`` that casts it on to type ``c``."""

    first: Node
    node: Node
    source: Value
    between: Value
    a: int
    b: int
    c: int

    @property
    def chain(self) -> str:
        """``int32 → int64 → float``."""
        return _chain(self.a, self.b, self.c)

    @property
    def reads(self) -> tuple[Node | Value, ...]:
        """The values that a match of this pair depends on, besides its node."""
        producer = () if self.source.producer is None else (self.source.producer,)
        inputs = [value for value in self.first.inputs if value is not None]
        return (self.first, self.between, *inputs, *producer)


@cache
def _chain(*types: int) -> str:
    return " → ".join(map(dtypes.name_of, types))


def pair_at(node: Node, model: Model) -> Pair | None:
    """The two Casts that end in ``node``, all types proven; None if one is unknown or a Cast is a no-op."""
    pairs = shared(model, _pairs)
    if node not in pairs:
        pairs[node] = _pair_at(node, model)
    return pairs[node]


def _pairs(model: Model) -> dict[Node, Pair | None]:
    return {}


def _pair_at(node: Node, model: Model) -> Pair | None:
    between = node.input(0)
    first = between.producer if between is not None else None
    if between is None or first is None or not is_cast(first):
        return None
    source = first.input(0)
    # A subgraph may have another value of the source's name where the second Cast stands.
    if source is None or node.scope.lookup(source.name) is not source:
        return None
    a, b = types_at(first, model)
    c = types_at(node, model)[1]
    if a is None or b is None or c is None or not NUMBERS.issuperset((a, b, c)) or b in (a, c):
        return None
    return Pair(first, node, source, between, a, b, c)


def types_at(node: Node, model: Model) -> tuple[int | None, int | None]:
    """The input and output element types of a Cast or CastLike, None for each that is not proven."""
    known = shared(model, _types)
    found = known.get(node)
    if found is None:
        source = node.input(0)
        given = None if source is None else type_of(source, model)
        found = known[node] = (given, cast_type(node, model))
    return found


def _types(model: Model) -> dict[Node, tuple[int | None, int | None]]:
    return {}


def is_cast(node: Node) -> bool:
    """Whether this is ONNX's own Cast or CastLike."""
    return node.is_onnx and node.op_type in CASTS


def cast_type(node: Node, model: Model) -> int | None:
    """The element type that a Cast or CastLike produces, None if not proven."""
    if node.op_type == "Cast":
        targets = shared(model, _targets)
        if node not in targets:
            to = node.attr("to")
            targets[node] = to if isinstance(to, int) else None  # up to opset 5 it is a string
        return targets[node]
    like = node.input(1)
    return None if like is None else type_of(like, model)


def _targets(model: Model) -> dict[Node, int | None]:
    return {}


def type_of(value: Value, model: Model) -> int | None:
    """The proven element type of ``value``; known for a Cast's result even if its input type is unknown."""
    node = value.producer
    if node is not None and node.op_type == "Cast" and node.is_onnx:
        return cast_type(node, model)
    return model.shapes.elem_type(value)


@cache  # a model casts between the same few types everywhere
def same_values(a: int, b: int, c: int) -> bool:
    """Whether Cast(a→b)→Cast(b→c) equals Cast(a→c) for every value of type ``a``.

    Type ``b`` has to hold every value of ``a``. Even then floats that do not fit an integer type are undefined
    in ONNX, where integers wrap: an integer that travels as a float must fit at the end.
    """
    if not NUMBERS.issuperset((a, b, c)) or not dtypes.holds_exactly(b, a):
        return False
    return not (dtypes.is_float(b) and dtypes.is_integer(c)) or dtypes.holds_exactly(c, a)


def keeps_values(node: Node, elem_type: int) -> bool:
    """Whether a Cast to ``elem_type`` preserves each value of that type.

    All do but two. By default, a Cast to a float8 type turns infinity into the largest finite value (``saturate``),
    and float8e5m2 has infinities. The smallest float8e8m0, 2**-127, is no normal float, and ``onnx.reference`` makes
    2**-126 of it.
    """
    if elem_type == TensorProto.FLOAT8E5M2:
        return bool(node.attr("saturate", 1) == 0)
    return elem_type != TensorProto.FLOAT8E8M0


def removable(node: Node, source: Value) -> bool:
    """Whether ``node`` can be removed without an Identity in its place, which would be no better than a Cast."""
    output = node.output(0)
    if output is None:
        return False
    if output.replaceable:
        return True
    return (
        source.producer is not None
        and source.replaceable
        and not output.pinned
        and source.scope is output.scope
    )


def severity_of(pair: Pair) -> Severity:
    """How TensorRT takes the step in the middle, where a rewrite makes it go."""
    if pair.between.use_count > 1 or not pair.between.replaceable:
        return Severity.INFO  # the first Cast has to stay anyway
    target = target_of(pair.node.model)
    if not target.between(pair.b):
        return Severity.ERROR
    read = target.read_as(pair.b)
    loses = read != pair.b and not dtypes.holds_exactly(read, pair.a)
    return Severity.WARNING if loses else Severity.INFO
