"""Topological orders: of the nodes of a graph and all inside it, and of functions that call each other; and local
functions in place of their calls: how many nodes that makes, and the model itself.

Each of 40 functions that calls the next one twice makes 2**40 nodes of a few kilobytes. ONNX's shape inference and its
inliner go through all of them, so that their number is known before either begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from onnx import FunctionProto, ModelProto, NodeProto, defs

from onnxfix.errors import ModelError
from onnxfix.files import walk

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


MOST = 1 << 20
"""Nodes with functions in place of their calls; inference takes 3 µs for the simplest of them."""

_Key = tuple[str, str, str]


def too_many(model: ModelProto) -> str:
    """Why a model's functions cannot take the place of their calls, in a few words; empty where they can."""
    return (
        f"with its functions in place of their calls it has more than {MOST:,} nodes" if _many(model) else ""
    )


def unfolded(model: ModelProto) -> ModelProto:
    """The model with its local functions in place of their calls; the model itself where there are none.

    Raises:
        ModelError: it would have more than ``MOST`` nodes.
    """
    from onnx import inliner  # lazy: seldom used

    if not model.functions:
        return model
    if reason := too_many(model):
        raise ModelError(reason)
    return inliner.inline_local_functions(model)


def _many(model: ModelProto) -> bool:
    functions = {_key(one.domain, one.name, one.overload): one for one in getattr(model, "functions", ())}
    if not functions:
        return False
    sizes: dict[_Key, int] = {}
    for key in _callees_first(functions):
        sizes[key] = _sum(functions[key].node, sizes)
    return _sum(model.graph.node, sizes) > MOST


def _callees_first(functions: dict[_Key, FunctionProto]) -> Iterator[_Key]:
    """The functions, each after those that it calls; a call of one that is not finished counts as a node."""
    done: set[_Key] = set()
    for root in functions:
        stack = [] if root in done else [(root, _calls(functions[root]))]
        done.add(root)
        while stack:
            key, calls = stack[-1]
            callee = next((one for one in calls if one in functions and one not in done), None)
            if callee is None:
                stack.pop()
                yield key
            else:
                done.add(callee)
                stack.append((callee, _calls(functions[callee])))


def _calls(function: FunctionProto) -> Iterator[_Key]:
    return (_key(node.domain, node.op_type, node.overload) for node in walk.nodes(function.node))


def _sum(nodes: Iterable[NodeProto], sizes: dict[_Key, int]) -> int:
    """How many nodes these are with what they call; more than ``MOST`` where it is more."""
    found = 0
    for node in walk.nodes(nodes):
        found += 1 + sizes.get(_key(node.domain, node.op_type, node.overload), 0)
        if found > MOST:
            break
    return found


def _key(domain: str, name: str, overload: str) -> _Key:
    return walk.domain_of(domain), name, overload
