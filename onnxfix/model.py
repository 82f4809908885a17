"""A model as the rules see it: its scopes, their nodes and values, and what is known of its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from onnx import ModelProto, ValueInfoProto, helper

from onnxfix.graph import build, order
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.shapes.shapes import Shapes


class Model:
    """A ``ModelProto`` with its index. Build it by ``Model(proto, base_dir)``; the protobuf is used, not copied.

    What is computed from it is kept in two ways. ``scopes``, ``orders``, ``callees_first``, ``imports``, ``shapes``
    and what ``graph.shared`` computes (``derived``) describe one state of the model: they are computed on demand, and
    ``invalidate`` drops them all when a transaction closes. ``names`` and the declared types of each scope
    outlive a transaction: each edit keeps them right (:mod:`onnxfix.rewrite.changes`).

    Raises:
        ModelError: a name is defined twice or never, the graph has a cycle, or a function calls itself.
    """

    def __init__(self, proto: ModelProto, base_dir: Path | None = None) -> None:
        self.proto = proto
        self.base_dir = base_dir
        self.target: Any = None
        self._names: set[str] | None = None
        self.function_names = {
            ("" if f.domain == "ai.onnx" else f.domain, f.name) for f in getattr(proto, "functions", ())
        }
        self.called: dict[tuple[str, str, str], Scope] = {}
        """Bodies of the local functions, by domain, name and overload."""
        self.main, self.functions = build.scopes_of(self)
        self.called = {build.call_key(scope): scope for scope in self.functions}
        _ = self.orders, self.callees_first  # which raise on a cycle

    def invalidate(self) -> None:
        """Drop what was computed from the present state of the model; for the code that edits."""
        for name in _DERIVED:
            vars(self).pop(name, None)

    @cached_property
    def derived(self) -> dict[Callable[[Model], Any], Any]:
        """Results of ``graph.shared.shared``, by function."""
        return {}

    @property
    def ir_version(self) -> int:
        return int(self.proto.ir_version)

    @cached_property  # looking through a hundred thousand nodes for subgraphs takes its time
    def scopes(self) -> tuple[Scope, ...]:
        """Every scope: the main graph and its subgraphs, then the functions and theirs."""
        return tuple(scope for root in (self.main, *self.functions) for scope in root.walk())

    def nodes(self) -> Iterator[Node]:
        """Every node of every scope, in stored order."""
        for scope in self.scopes:
            yield from scope.nodes

    @property
    def node_count(self) -> int:
        """How many nodes there are, in subgraphs and functions too."""
        return sum(len(scope.nodes) for scope in self.scopes)

    def describe(self, value: Value) -> ValueInfoProto:
        """A value with its type and dimensions, as far as they are known."""
        if value.initializer is not None:
            tensor = value.initializer
            return helper.make_tensor_value_info(value.name, tensor.data_type, list(tensor.dims))
        known = self.shapes.info(value)
        if known.kind == "tensor" and known.elem is not None:
            dims = (
                None if known.shape is None else [str(d) if d.value is None else d.value for d in known.shape]
            )
            if dims is not None or value.declared is None:
                return helper.make_tensor_value_info(value.name, known.elem, dims)
        info = ValueInfoProto(name=value.name)
        if value.declared is not None:
            info.type.CopyFrom(value.declared)
        return info

    def opset(self, domain: str = "") -> int:
        """Version of ``domain`` that the model imports; 0 when it does not."""
        return self.main.opset(domain)

    @property
    def names(self) -> set[str]:
        """Every value name of every scope, defined or merely mentioned: what a new name must avoid."""
        if self._names is None:
            self._names = {name for scope in self.scopes for name in scope.values}
            for scope in self.scopes:
                self._names.update(scope.declared_types())
        return self._names

    @cached_property
    def imports(self) -> Mapping[Scope, Mapping[str, int]]:
        """Domain to version, for the main scope and for each function (which imports its own)."""
        return {root: root.imports() for root in (self.main, *self.functions)}

    @cached_property
    def orders(self) -> Mapping[Scope, list[Node]]:
        """Each scope's nodes, producers first; in the stored order if that is valid.

        Raises:
            ModelError: a graph has a cycle.
        """
        roots = (self.main, *self.functions)
        return {scope: nodes for root in roots for scope, nodes in order.orders(root).items()}

    @cached_property
    def callers(self) -> Mapping[Scope, Node]:
        """The first node that calls each local function."""
        nodes = self.nodes() if self.called else ()
        return {body: node for node in reversed([*nodes]) if (body := node.function) is not None}

    @cached_property
    def callees_first(self) -> tuple[Scope, ...]:
        """The bodies of the local functions, each after those that it calls by a name that ONNX does not have.

        Raises:
            ModelError: one calls itself, directly or not.
        """
        return tuple(order.callees_first(self.functions, self.called))

    @cached_property
    def shapes(self) -> Shapes:
        """Symbolic shapes of the model as it is now."""
        return Shapes(self)


_DERIVED = ("callees_first", "callers", "derived", "imports", "orders", "scopes", "shapes")
"""The properties that describe one state of a model."""
