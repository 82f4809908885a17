"""Topological orders: of the nodes of a graph and everything inside it, and of functions that call each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from onnx import defs

from onnxfix.errors import ModelError

if TYPE_CHECKING:
    from onnxfix.graph.overlay import Node, Scope, Value


def orders(root: Scope) -> dict[Scope, list[Node]]:
    """For ``root`` and every scope inside it its nodes, producers first; the stored order where that holds.

    Linear in nodes and inputs, however deep the scopes are nested.

    Raises:
        ModelError: a graph has a cycle.
    """
    scopes = list(root.walk())
    if len(scopes) == 1 and _is_sorted(root):
        return {root: root.nodes}
    needs = _producers(scopes)
    return {scope: _after(scope.nodes, lambda node: needs.get(node, ()), _cycle) for scope in scopes}


def _is_sorted(scope: Scope) -> bool:
    """Whether every node of a scope without others inside stands after what it reads."""
    before: set[Node] = set()
    for node in scope.nodes:
        for value in node.inputs:
            producer = None if value is None or value.scope is not scope else value.producer
            if producer is not None and producer not in before:
                return False
        before.add(node)
    return True


def _reads(scopes: Sequence[Scope]) -> Iterator[tuple[Scope, Node, Sequence[Value | None]]]:
    """``(scope, node of it, values)``: what each node reads, directly or in its subgraphs.

    Values of other scopes than ``scope`` are to be ignored: they come again with their own scope.
    """
    owners: dict[Scope, Node] = {}
    """For every scope around the present one, outer first: its node that contains the present one."""
    for scope in scopes:
        if scope.parent is not None and scope.owner is not None and scope is not scopes[0]:
            owners[scope.parent] = scope.owner
        for node in scope.nodes:
            yield scope, node, node.inputs
            for value in node.inputs:
                if value is not None and value.scope is not scope and value.scope in owners:
                    yield value.scope, owners[value.scope], (value,)
        for value in scope.outputs:
            if value.scope is not scope and value.scope in owners:
                yield value.scope, owners[value.scope], (value,)


def _producers(scopes: Sequence[Scope]) -> dict[Node, list[Node]]:
    """For each node, the nodes of its own scope whose outputs it reads, directly or in its subgraphs."""
    found: dict[Node, list[Node]] = {}
    for scope, node, values in _reads(scopes):
        known = found.setdefault(node, [])
        known.extend(
            v.producer for v in values if v is not None and v.producer is not None and v.scope is scope
        )
    return found


def _cycle(circle: Sequence[Node]) -> ModelError:
    return ModelError(f"the graph has a cycle through {circle[-1].place}; ONNX graphs must be acyclic")


def callees_first(functions: Sequence[Scope], called: Mapping[tuple[str, str, str], Scope]) -> list[Scope]:
    """The functions, each after those that it calls by a name that ONNX does not have; else in stored order.

    ``called`` has the bodies by domain, name and overload.

    Raises:
        ModelError: one calls itself, directly or not. ONNX forbids that, and parsers of it die.
    """
    return _after(functions, lambda function: _callees(function, called), _recursion)


_Item = TypeVar("_Item")


def _after(
    items: Iterable[_Item],
    needs: Callable[[_Item], Iterable[_Item]],
    circular: Callable[[Sequence[_Item]], ModelError],
) -> list[_Item]:
    """The items and what they need, each after what it needs itself; else in their order.

    Raises:
        ModelError: made by ``circular`` of items of which each needs the next; the last one is the first one again.
    """
    order: list[_Item] = []
    done: dict[_Item, bool] = {}
    for root in items:
        if root in done:
            continue
        stack = [(root, iter(needs(root)))]
        done[root] = False
        while stack:
            item, others = stack[-1]
            for other in others:
                mark = done.get(other)
                if mark is False:
                    circle = [one for one, _ in stack]
                    raise circular([*circle[circle.index(other) :], other])
                if mark is None:
                    done[other] = False
                    stack.append((other, iter(needs(other))))
                    break
            else:
                done[item] = True
                order.append(item)
                stack.pop()
    return order


def _callees(function: Scope, called: Mapping[tuple[str, str, str], Scope]) -> Iterator[Scope]:
    for scope in function.walk():
        for node in scope.nodes:
            body = called.get((node.domain, node.op_type, node.overload))
            # In a function with the name of one of ONNX's operators that name may mean the operator: OPS060 reports it.
            if body is not None and not (node.domain == "" and defs.has(node.op_type)):
                yield body


def _recursion(circle: Sequence[Scope]) -> ModelError:
    names = [scope.path.removeprefix("fn ") for scope in circle]
    if len(names) > _SHOWN:
        names = [*names[: _SHOWN - 2], "…", names[-1]]
    return ModelError(f"a function calls itself, which ONNX forbids: {' → '.join(names)}")


_SHOWN = 6
"""Names of functions in a message."""
