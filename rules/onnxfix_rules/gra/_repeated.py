"""Nodes that repeat the computation of an earlier one: each is looked up once, by its inputs."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache

from onnx import AttributeProto

from onnxfix.files import lazy
from onnxfix.rule import Node, Scope, Value
from onnxfix_rules.gra._random import RANDOM

LIMIT = 4096
"""Bytes: constants up to this size are told apart by what they hold, larger ones by their names."""
_KEPT = frozenset({"Identity", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Identity is GRA012's; TensorRT looks for a pair of QuantizeLinear and DequantizeLinear for each reader."""


class Pure:
    """Whether a node gives the same for the same inputs, as far as anybody knows."""

    def __init__(self) -> None:
        self._functions: dict[int, bool] = {}

    def __call__(self, node: Node) -> bool:
        """Random numbers, operators of other domains, and what calls them, are not."""
        function = node.function
        if function is None:
            return node.op_type not in RANDOM and (node.is_onnx or node.domain == "ai.onnx.ml")
        if id(function) not in self._functions:
            self._functions[id(function)] = False  # it calls itself
            nodes = [inner for scope in function.walk() for inner in scope.nodes]
            self._functions[id(function)] = all(map(self, nodes))
        return self._functions[id(function)]


class Repeated:
    """``firsts``: for each node that repeats another one of its scope, that one; the earlier ones first.

    ``names``: the name that an output gets because a repeated one must keep it.
    """

    def __init__(self, scope: Scope, pure: Pure) -> None:
        self.firsts: dict[Node, Node] = {}
        self.names: dict[Value, Value] = {}
        self._meant: dict[Value, Hashable] = {}
        self._seen: dict[Hashable, Node | dict[Hashable, Node]] = {}
        for node in scope.model.orders[scope]:
            if node.outputs and not node.subgraphs and node.op_type not in _KEPT and pure(node):
                self._visit(node)

    def _visit(self, node: Node) -> None:
        key = self._key(node)
        if key is None:
            return
        found = self._seen.setdefault(key, node)
        if found is node:
            return
        if not isinstance(
            found, dict
        ):  # the rest is compared where operator and inputs are the same: that is rare
            found = self._seen[key] = {_rest(found): found}
        first = found.setdefault(_rest(node), node)
        if first is node or not all(map(self._joins, first.outputs, node.outputs)):
            return
        self.firsts[node] = first
        for kept, value in zip(first.outputs, node.outputs, strict=True):
            if kept is not None and value is not None:
                self._meant[value] = self._meaning(kept)
                if not value.replaceable:
                    self.names[kept] = value

    def _key(self, node: Node) -> Hashable:
        """What a node computes from, of which ``_rest`` says how; None where nobody knows."""
        if node.op_type == "Constant" and node.is_onnx:
            output = node.output()
            return None if output is None else _content(output)
        inputs = [None if value is None else self._meaning(value) for value in node.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        return (node.op_type, *inputs)

    def _meaning(self, value: Value) -> Hashable:
        """The same for values that are the same."""
        found = self._meant.get(value)
        if found is None:
            content = _content(value) if value.is_constant else None
            found = self._meant[value] = value if content is None else content
        return found

    def _joins(self, first: Value | None, value: Value | None) -> bool:
        """Whether one output may stand for the other, under a name that all readers see."""
        if first is None or value is None:
            return first is value
        if value.replaceable:
            return _seen_by_readers(value, self.names.get(first, first))
        return (
            not value.pinned
            and first.replaceable
            and first not in self.names
            and _seen_by_readers(first, value)
        )


def _seen_by_readers(value: Value, other: Value) -> bool:
    """Whether the readers of ``value``, in subgraphs too, can read ``other`` by its name."""
    scope = other.scope
    return all(use.node.scope is scope or use.node.scope.lookup(other.name) is other for use in value.uses)


def _content(value: Value) -> Hashable:
    """A small constant's type, shape and bits; None for other values."""
    array = value.constant(LIMIT)
    if array is None or array.dtype == object:
        return None
    return (_named(array.dtype), array.shape, array.tobytes())


_named = cache(str)
"""The name of a numpy type, which takes longer to write than a constant's bytes to read."""


def _rest(node: Node) -> Hashable:
    """All else that decides what a node computes."""
    if node.op_type == "Constant" and node.is_onnx:
        return None  # its content is all there is
    given = tuple(value is not None for value in node.outputs)
    attributes = tuple(sorted((a.name, _stored(a)) for a in node.proto.attribute))
    return (node.domain, node.overload, given, attributes)


def _stored(attribute: AttributeProto) -> bytes:
    if attribute.doc_string:
        copy = AttributeProto()
        copy.CopyFrom(attribute)
        copy.doc_string = ""
        attribute = copy
    return lazy.keyed(bytes(attribute.SerializeToString(deterministic=True)))
