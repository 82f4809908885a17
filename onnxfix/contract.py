"""The post-condition of every apply: the interface stands, and only what the fixes touched differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxfix.graph import tensors

_GRAPH_PARTS = ("node", "initializer", "sparse_initializer", "value_info", "input", "output")


def interface_changes(original: ModelProto, fixed: ModelProto) -> list[str]:
    """What a caller of the model would notice, one line each; empty where the contract holds.

    Inputs and outputs keep name, order, type, shape and symbolic dimensions; an input that has a default keeps
    it; operator set imports, IR version, metadata and everything else outside the graph's body stay.
    """
    found = []
    for kind in ("input", "output"):
        old, new = getattr(original.graph, kind), getattr(fixed.graph, kind)
        if [info.name for info in old] != [info.name for info in new]:
            found.append(
                f"the graph's {kind}s are {[i.name for i in new]} instead of {[i.name for i in old]}"
            )
        else:
            found += [
                f"{kind} {a.name!r} is declared differently" for a, b in zip(old, new, strict=True) if a != b
            ]
    found += _default_changes(original.graph, fixed.graph)
    found += [
        f"model field {name!r} changed" for name in _different_fields(original, fixed, ("graph", "functions"))
    ]
    found += [
        f"graph field {n!r} changed" for n in _different_fields(original.graph, fixed.graph, _GRAPH_PARTS)
    ]
    for before, after in zip(_functions(original), _functions(fixed), strict=False):
        skip = ("node", "value_info")
        found += [f"function {before.name!r}: {n!r} changed" for n in _different_fields(before, after, skip)]
    if len(_functions(original)) != len(_functions(fixed)):
        found.append("the number of local functions changed")
    return found


def _functions(model: ModelProto) -> list[FunctionProto]:
    return list(getattr(model, "functions", ()))


def _default_changes(original: GraphProto, fixed: GraphProto) -> Iterator[str]:
    """Initializers that a caller may override must still be there, with the same bytes."""
    inputs = {info.name for info in original.input}
    new = {tensor.name: tensor for tensor in fixed.initializer if tensor.name in inputs}
    for tensor in original.initializer:
        if tensor.name in inputs and tensor != new.pop(tensor.name, None):
            yield f"the default of input {tensor.name!r} changed or is gone"
    for name in new:
        yield f"input {name!r} has a default that it did not have"


def _different_fields(first: Any, second: Any, skip: Iterable[str]) -> list[str]:
    """Names of the message fields, unknown ones included, in which two messages differ."""
    skipped = set(skip)
    old = {field.name: value for field, value in first.ListFields() if field.name not in skipped}
    new = {field.name: value for field, value in second.ListFields() if field.name not in skipped}
    different = [
        name for name in sorted({*old, *new}) if name not in old or name not in new or old[name] != new[name]
    ]
    if _unknown(first) != _unknown(second):
        different.append("unknown fields")
    return different


def _unknown(message: Any) -> list[str]:
    unknown = UnknownFieldSet(message)
    fields = [unknown[index] for index in range(len(unknown))]
    return [f"{field.field_number}:{field.wire_type}:{field.data!r}" for field in fields]


def untouched_changes(original: ModelProto, fixed: ModelProto, touched: Set[str]) -> list[str]:
    """Nodes, initializers and declarations that differ although no fix named one of their values.

    ``touched`` are value names, as ``FixRun.touched`` gives them.
    """
    found = []
    before, after = _bodies(original), _bodies(fixed)
    known = {key[0] for key in before["initializer"]}
    for kind in ("node", "initializer", "value_info"):
        old, new = before[kind], after[kind]
        for names, _ in (old - new) | (new - old):
            added = kind == "initializer" and names not in known
            if not added and touched.isdisjoint(names):
                found.append(f"{kind} of {', '.join(names) or 'no name'} changed though no fix touched it")
    return found


def _bodies(model: ModelProto) -> dict[str, Counter[Any]]:
    """Every node, initializer and value_info of every scope, counted by names and bytes."""
    found: dict[str, Counter[Any]] = {"node": Counter(), "initializer": Counter(), "value_info": Counter()}
    pending: list[GraphProto | FunctionProto] = [model.graph, *_functions(model)]
    while pending:
        scope = pending.pop()
        for node in scope.node:
            found["node"][(tuple(node.output), _own_bytes(node))] += 1
            for attribute in node.attribute:
                pending.extend(_graphs(attribute))
        for info in getattr(scope, "value_info", ()):
            found["value_info"][((info.name,), info.SerializeToString(deterministic=True))] += 1
        if isinstance(scope, GraphProto):
            for tensor in scope.initializer:
                found["initializer"][((tensor.name,), tensors.digest(tensor))] += 1
    return found


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    return ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)


def _own_bytes(node: NodeProto) -> bytes:
    """The node without its subgraphs, whose nodes are counted on their own."""
    if not any(_graphs(attribute) for attribute in node.attribute):
        return bytes(node.SerializeToString(deterministic=True))
    copy = NodeProto()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        attribute.ClearField("g")
        attribute.ClearField("graphs")
    return bytes(copy.SerializeToString(deterministic=True))
