"""Finds nodes that compute the same as an earlier node of the graph, with one look-up per node by its inputs."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache

from onnx import AttributeProto

from onnxfix.files import lazy
from onnxfix.rule import Model, Node, Scope, Value
from onnxfix_rules.gra._random import RANDOM

LIMIT = 4096
"""Constants up to this many bytes are compared by content, larger ones by name."""
_KEPT = frozenset({"Identity", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""GRA012 handles Identity; TensorRT expects a pair of QuantizeLinear and DequantizeLinear for each reader."""


class Pure:
    """Whether a node is known to compute the same outputs from the same inputs."""

    def __init__(self, model: Model) -> None:
        self._functions: dict[Scope, bool] = {}
        for function in model.callees_first:
            self._functions[function] = all(self(node) for scope in function.walk() for node in scope.nodes)

    def __call__(self, node: Node) -> bool:
        """False for random numbers, operators of other domains, and functions that call either."""
        function = node.function
        if function is None:
            return node.op_type not in RANDOM and (node.is_onnx or node.domain == "ai.onnx.ml")
        return self._functions.get(function, False)  # missing: it calls itself


class Repeated:
    """``firsts``: for each repeated node of a scope, the first node that computes the same, in order.

    ``names``: for an output of a first node, the repeated output whose name it must take over.
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
        ):  # the attributes are compared only if operator and inputs are equal, which is rare
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
        """The operator and the inputs of a node (``_rest`` has the attributes); None if unknown."""
        if node.op_type == "Constant" and node.is_onnx:
            output = node.output()
            return None if output is None else _content(output)
        inputs = [None if value is None else self._meaning(value) for value in node.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        return (node.op_type, *inputs)

    def _meaning(self, value: Value) -> Hashable:
        """Equal for equal values."""
        found = self._meant.get(value)
        if found is None:
            content = _content(value) if value.is_constant else None
            found = self._meant[value] = value if content is None else content
        return found

    def _joins(self, first: Value | None, value: Value | None) -> bool:
        """Whether one output can replace the other, under a name that is visible to all readers."""
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
    """Whether all readers of ``value``, including those in subgraphs, can read ``other`` by its name."""
    scope = other.scope
    return all(use.node.scope is scope or use.node.scope.lookup(other.name) is other for use in value.uses)


def _content(value: Value) -> Hashable:
    """A small constant's type, shape and bits; None for other values."""
    array = value.constant(LIMIT)
    if array is None or array.dtype == object:
        return None
    return (_named(array.dtype), array.shape, array.tobytes())


_named = cache(str)
"""The name of a numpy type, cached because formatting it is slower than reading a small constant."""


def _rest(node: Node) -> Hashable:
    """Everything besides operator and inputs that decides what a node computes."""
    if node.op_type == "Constant" and node.is_onnx:
        return None  # the key already has its content
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
