"""Local functions in place of their calls: how many nodes that makes, and the model itself.

Each of 40 functions that calls the next one twice makes 2**40 nodes of a few kilobytes. ONNX's shape inference and its
inliner go through all of them, so that their number is known before either begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import FunctionProto, ModelProto, NodeProto

from onnxfix.errors import ModelError
from onnxfix.files import walk

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
