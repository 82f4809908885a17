"""A model as the rules see it: its scopes, their nodes and values, and what is known of its shapes."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from onnxfix.files import tensors
from onnxfix.graph import build, order
from onnxfix.graph.overlay import Node, Scope
from onnxfix.shapes.knowledge import Knowledge
from onnxfix.shapes.shapes import Shapes

SHARED_LIMIT = 128
"""Bytes of a Constant's attribute up to which equal ones are looked for."""


class Model:
    """A ``ModelProto`` with its index. Build it by ``Model(proto, base_dir)``; the protobuf is used, not copied.

    Raises:
        ModelError: names are defined twice or not at all, or the graph has a cycle.
    """

    def __init__(self, proto: ModelProto, base_dir: Path | None = None) -> None:
        self.proto = proto
        self.base_dir = base_dir
        self.target: Any = None
        self._scopes: list[Scope] | None = None
        self._orders: dict[Scope, list[Node]] | None = None
        self.knowledge: Knowledge | None = None
        """What passes over the model learned that outlives edits; theirs alone."""
        self._names: set[str] | None = None
        self._constants: dict[bytes, np.ndarray[Any, Any]] = {}
        self.function_names = {
            ("" if f.domain == "ai.onnx" else f.domain, f.name) for f in getattr(proto, "functions", ())
        }
        self.called: dict[tuple[str, str, str], Scope] = {}
        """Bodies of the local functions, by domain, name and overload."""
        # A third of the time of building a large index goes to the garbage collector, in vain.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self.main, self.functions = build.scopes_of(self)
            self.called = {build.call_key(scope): scope for scope in self.functions}
        finally:
            if collecting:
                gc.enable()

    @property
    def ir_version(self) -> int:
        return int(self.proto.ir_version)

    @property
    def scopes(self) -> list[Scope]:
        """Every scope: the main graph and its subgraphs, then the functions and theirs."""
        if self._scopes is None:  # looking through a hundred thousand nodes for subgraphs takes its time
            self._scopes = [scope for root in (self.main, *self.functions) for scope in root.walk()]
        return list(self._scopes)

    def nodes(self) -> Iterator[Node]:
        """Every node of every scope, in stored order."""
        for scope in self.scopes:
            yield from scope.nodes

    @property
    def node_count(self) -> int:
        """How many nodes there are, in subgraphs and functions too."""
        return sum(len(scope.nodes) for scope in self.scopes)

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

    def constant_of(self, node: NodeProto, max_bytes: int) -> np.ndarray[Any, Any] | None:
        """As ``tensors.constant_node_array``; exporters write the same few by the thousand, which share an array."""
        attributes = node.attribute[:]
        if len(attributes) != 1 or attributes[0].ByteSize() > SHARED_LIMIT:
            return tensors.constant_node_array(node, self.base_dir, max_bytes)
        stored = attributes[0].SerializeToString()
        array = self._constants.get(stored)
        if array is None:
            array = tensors.constant_node_array(node, self.base_dir, max_bytes)
            if array is not None:
                self._constants[stored] = array
        return array if array is None or array.nbytes <= max_bytes else None

    @property
    def orders(self) -> Mapping[Scope, list[Node]]:
        """For every scope its nodes, producers first, in the stored order where that holds; until the next edit.

        Raises:
            ModelError: a graph has a cycle.
        """
        if self._orders is None:
            return self.keep_orders((self.main, *self.functions))
        return self._orders

    def keep_orders(self, roots: Iterable[Scope]) -> dict[Scope, list[Node]]:
        """Work out ``orders`` of these scopes and all that is in them."""
        self._orders = {scope: nodes for root in roots for scope, nodes in order.orders(root).items()}
        return self._orders

    @cached_property  # rules ask for it at every other step
    def shapes(self) -> Shapes:
        """Symbolic shapes of the model as it is now; computed on demand, dropped by every edit."""
        if self.knowledge is None:
            self.knowledge = Knowledge()
        return Shapes(self)

    def forget_shapes(self) -> None:
        """Drop what was inferred; called by the code that edits, after each round of edits."""
        vars(self).pop("shapes", None)
        self._scopes = self._orders = None
        for root in (self.main, *self.functions):
            root._imports = None
