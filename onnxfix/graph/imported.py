"""The nodes that TensorRT's parser imports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.graph.overlay import Node, Scope
from onnxfix.graph.shared import Listing, every_node, shared

if TYPE_CHECKING:
    from onnxfix.model import Model


def imported(model: Model) -> Listing:
    """The nodes that the parser certainly imports, dead ones included.

    Measured with TensorRT-RTX 1.7.1: it imports every node of the graph, of loop bodies and of functions that are
    called, and both branches of an If, or only the branch taken if its condition is a weight.
    """
    return shared(model, _imported)


def imported_nodes(model: Model) -> frozenset[Node]:
    """The same as a set."""
    return shared(model, _imported_nodes)


def _imported_nodes(model: Model) -> frozenset[Node]:
    return frozenset(imported(model))


def _imported(model: Model) -> Listing:
    if len(model.scopes) == 1:
        return every_node(model)
    return Listing(_walk(model))


def _walk(model: Model) -> Iterator[Node]:
    bodies = dict(model.called)
    stack = [model.main]
    while stack:
        for node in stack.pop().nodes:
            yield node
            body = bodies.pop((node.domain, node.op_type, node.overload), None) if bodies else None
            if body is not None:
                stack.append(body)
            stack.extend(sub for sub in node.subgraphs if _entered(node, sub))


def _entered(node: Node, sub: Scope) -> bool:
    """Whether the parser certainly imports this subgraph."""
    if node.op_type != "If":
        return True
    condition = node.input(0)
    if condition is None:
        return False
    if condition.producer is not None and condition.producer.op_type != "Constant":
        return True
    if condition.initializer is None and condition.is_input and condition.scope is node.scope.model.main:
        return True
    # A weight; a function's own input may be one too, where the function is called.
    value = condition.constant()
    return value is not None and value.size == 1 and sub.attr == _taken(bool(value.reshape(-1)[0]))


def _taken(condition: bool) -> str:
    return "then_branch" if condition else "else_branch"
