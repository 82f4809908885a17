"""What random operators, control flow and declared types mean for a rewrite."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import onnx
from onnx import TensorProto, TypeProto

from onnxfix.rule import Dim, Model, Node, Scope, Value, equal

T = TypeVar("T")

RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    }
)
"""By name, in any domain. Dropout draws in training mode only, but its mode is not checked."""


def draws(node: Node) -> bool:
    """Whether the node, one of its subgraphs, or a function that they call draws random numbers."""
    seen: set[int] = set()
    pending = [node, *(inner for sub in node.subgraphs for scope in sub.walk() for inner in scope.nodes)]
    while pending:
        inner = pending.pop()
        if inner.op_type in RANDOM:
            return True
        function = inner.function
        if function is not None and id(function) not in seen:
            seen.add(id(function))
            pending.extend(n for scope in function.walk() for n in scope.nodes)
    return False


LOOPS = frozenset(("Loop", "Scan"))
CONTROL = LOOPS | {"If", "LSTM", "GRU", "RNN"}
"""Operators that TensorRT imports as a loop or a conditional."""


def is_result(value: Value) -> bool:
    """Whether a loop or a conditional of TensorRT computes the value."""
    producer = value.producer
    return producer is not None and producer.is_onnx and producer.op_type in CONTROL


def is_handed_in(source: Value, reader: Node) -> bool:
    """Whether ``reader``, in the body of another loop, reads the result of a loop or a conditional (CTL016)."""
    scope: Scope | None = reader.scope
    while is_result(source) and scope is not None and scope is not source.scope:
        if scope.owner is not None and scope.owner.is_onnx and scope.owner.op_type in LOOPS:
            return True
        scope = scope.parent
    return False


def grouped(keys: Mapping[T, Iterable[Hashable]]) -> list[list[T]]:
    """Groups of items that share a key, themselves or through others, in order.

    Fixes that change the same node cannot share a round of the engine, and every round infers all shapes again: a
    Slice with four known inputs would take four.
    """
    leader = {item: item for item in keys}

    def find(item: T) -> T:
        while leader[item] is not item:
            leader[item] = leader[leader[item]]
            item = leader[item]
        return item

    first: dict[Hashable, T] = {}
    for item, own in keys.items():
        for key in own:
            leader[find(item)] = find(first.setdefault(key, item))
    groups: dict[T, list[T]] = {}
    for item in keys:
        groups.setdefault(find(item), []).append(item)
    return list(groups.values())


def contradicts(declared: TypeProto, value: Value, model: Model, *, negative: bool = False) -> bool:
    """Whether the declared type is proven wrong; False for unknown types, and for everything but tensors.

    ``negative``: a negative size is wrong where the size is known.
    """
    if declared.WhichOneof("value") != "tensor_type" or value.sparse:
        return False
    tensor = declared.tensor_type
    elem = model.shapes.elem_type(value)
    if elem is not None and tensor.elem_type not in (TensorProto.UNDEFINED, elem):
        return True
    shape = model.shapes.shape(value)
    if shape is None or not tensor.HasField("shape"):
        return False
    if len(shape) != len(tensor.shape.dim):
        return True
    return any(
        differs(claim, dim, negative=negative) for claim, dim in zip(tensor.shape.dim, shape, strict=True)
    )


def differs(claim: onnx.TensorShapeProto.Dimension, dim: Dim, *, negative: bool = True) -> bool:
    """Whether a declared size is proven wrong; with ``negative`` also one below 0, for a size that is known."""
    size = claim.dim_value
    if size == dim.value:
        return False
    # Some exporters write -1 for an unknown dimension.
    return claim.HasField("dim_value") and (
        equal(dim, size).no if size >= 0 else negative and dim.value is not None
    )


def is_data(value: Value, model: Model) -> bool:
    """Whether an integer is computed from values of an input, through nodes of which none reads a size."""
    pending, seen = [value], {value}
    while pending and len(seen) < 100:
        value = pending.pop()
        node = value.producer
        if value.is_constant:
            continue
        if node is None:
            return value.scope is model.main
        new = [] if node.op_type in ("Shape", "Size") else [one for one in node.inputs if one not in seen]
        pending += [one for one in new if one is not None]
        seen.update(pending)
    return False
