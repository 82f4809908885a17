"""All differences between two models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from onnx import FunctionProto, GraphProto

from onnxfix.difference.contents import constant_text, same_constant, type_text
from onnxfix.difference.matching import Pairs
from onnxfix.difference.nodes import details
from onnxfix.difference.reasons import Reasons
from onnxfix.difference.records import Detail, ModelChange, ModelDifference, Sign, Subject
from onnxfix.errors import decoded
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.model import Model
from onnxfix.place import NOWHERE, Place


def difference(
    before: Model, after: Model, names: tuple[str, str], applied: Iterable[tuple[str, Place]] = ()
) -> ModelDifference:
    """What differs between two models. The order of nodes alone, documentation and declared types of inner values are
    no difference.

    Args:
        before: the first model.
        after: the second one.
        names: what the two are called.
        applied: code and place in ``before`` of each fix that is known to be in ``after``.

    Raises:
        ModelError: a file of weights was changed, or is not where it should be.
    """
    reasons = Reasons(applied)
    scopes = {scope.trail: scope for scope in after.scopes}
    parts: list[Iterable[ModelChange]] = [_about(before, after), _functions(before, after)]
    for scope in before.scopes:
        other = scopes.get(scope.trail)
        if other is not None:
            parts.append(_in_scope(Pairs(scope, other), reasons))
    return ModelDifference(*names, tuple(chain.from_iterable(parts)))


def _about(before: Model, after: Model) -> Iterator[ModelChange]:
    """What stands beside the graph."""
    if before.ir_version != after.ir_version:
        detail = Detail("IR version", str(before.ir_version), str(after.ir_version))
        yield ModelChange("changed", "model", NOWHERE, (detail,))
    old, new = (
        {decoded(one.key): decoded(one.value) for one in model.proto.metadata_props}
        for model in (before, after)
    )
    found = [
        Detail(f"metadata {key}", old.get(key, ""), new.get(key, ""))
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]
    if found:
        yield ModelChange("changed", "model", NOWHERE, tuple(found))
    yield from _opsets(before.main, after.main)


def _opsets(before: Scope, after: Scope) -> Iterator[ModelChange]:
    old, new = before.imports(), after.imports()
    for domain in dict.fromkeys((*old, *new)):
        if old.get(domain) != new.get(domain):
            one, other = (str(some[domain]) if domain in some else "" for some in (old, new))
            place = Place(before.trail, output=domain or "ai.onnx")
            yield ModelChange(_sign(one, other), "opset", place, (Detail("version", one, other),))


def _sign(before: object, after: object) -> Sign:
    return "changed" if before and after else "removed" if before else "added"


def _functions(before: Model, after: Model) -> Iterator[ModelChange]:
    """Local functions that one model has; the contents of those of both are compared as graphs are."""
    old, new = ({scope.trail: scope for scope in model.functions} for model in (before, after))
    for trail in dict.fromkeys((*old, *new)):
        one, other = old.get(trail), new.get(trail)
        if one is None or other is None:
            body = one if one is not None else other
            assert body is not None
            text = f"{len(body.nodes)} nodes"
            detail = Detail("body", text if one is not None else "", text if other is not None else "")
            yield ModelChange(_sign(one, other), "function", Place(output=" / ".join(trail)), (detail,))
        else:
            yield from _opsets(one, other)


def _in_scope(pairs: Pairs, reasons: Reasons) -> Iterator[ModelChange]:
    yield from _ends("input", pairs)
    yield from _ends("output", pairs)
    yield from _initializers(pairs, reasons)
    yield from _nodes(pairs, reasons)


def _ends(subject: Subject, pairs: Pairs) -> Iterator[ModelChange]:
    """Inputs or outputs of a graph: which there are, their types, and their order."""
    old, new = (_declared(scope.proto, subject) for scope in (pairs.before, pairs.after))
    inner = bool(pairs.before.trail)  # whose names may change with those of the nodes that make them
    if inner:
        old = {pairs.renamed.get(name, name): kind for name, kind in old.items()}
    for name in dict.fromkeys((*old, *new)):
        one, other = old.get(name), new.get(name)
        found = []
        if one is None or other is None or (one != other and not inner):
            found.append(Detail("type", one or "", other or ""))
        if one is not None and other is not None and len(old) == len(new):
            at = list(old).index(name), list(new).index(name)
            if at[0] != at[1]:
                found.append(Detail("position", str(at[0]), str(at[1])))
        if found:
            sign: Sign = "added" if one is None else "removed" if other is None else "changed"
            yield ModelChange(sign, subject, Place(pairs.before.trail, output=name), tuple(found))


def _declared(proto: GraphProto | FunctionProto, subject: Subject) -> dict[str, str]:
    """Names and types."""
    if isinstance(proto, FunctionProto):
        return dict.fromkeys(proto.input if subject == "input" else proto.output, "")
    given = {one.name for one in proto.initializer}
    return {
        one.name: type_text(one.type) + (" with a default" if one.name in given else "")
        for one in (proto.input if subject == "input" else proto.output)
    }


def _initializers(pairs: Pairs, reasons: Reasons) -> Iterator[ModelChange]:
    old, new = (
        {name: value for name, value in scope.values.items() if value.initializer is not None or value.sparse}
        for scope in (pairs.before, pairs.after)
    )
    for name in dict.fromkeys((*old, *new)):
        one, other = old.get(name), new.get(name)
        if one is not None and other is not None and _same_initializer(one, other):
            continue
        texts = [constant_text(value) if value is not None else "" for value in (one, other)]
        if texts[0] == texts[1]:
            texts = [texts[0], f"{texts[1]} with other values"]
        rules = {
            *(reasons.of_value(one, pairs, old=True) if one is not None else ()),
            *(reasons.of_value(other, pairs, old=False) if other is not None else ()),
        }
        place = Place(pairs.before.trail, output=name)
        detail = Detail("value", *texts)
        yield ModelChange(_sign(one, other), "initializer", place, (detail,), tuple(sorted(rules)))


def _same_initializer(one: Value, other: Value) -> bool:
    if one.sparse or other.sparse:
        return one.sparse and other.sparse and _sparse(one) == _sparse(other)
    return same_constant(one, other)


def _sparse(value: Value) -> bytes:
    rows = getattr(value.scope.proto, "sparse_initializer", ())
    found: bytes = next(one for one in rows if one.values.name == value.name).SerializeToString(
        deterministic=True
    )
    return found


def _nodes(pairs: Pairs, reasons: Reasons) -> Iterator[ModelChange]:
    """The nodes in the order of the first graph; a new one stands before the next one that is in both."""
    new_before = _anchors(pairs)
    for node in pairs.before.nodes:
        twin = pairs.to.get(node)
        yield from (_one(new, "added", reasons.of_added(new, pairs)) for new in new_before.get(node, ()))
        if twin is None:
            yield _one(node, "removed", reasons.of_removed(node, pairs))
            continue
        found = tuple(details(node, twin, pairs))
        if found:
            subject: Subject = "constant" if _is_constant(node) and _is_constant(twin) else "node"
            yield ModelChange("changed", subject, node.at, found, reasons.of_pair(node, twin))
    yield from (_one(new, "added", reasons.of_added(new, pairs)) for new in new_before.get(None, ()))


def _anchors(pairs: Pairs) -> dict[Node | None, Sequence[Node]]:
    """The nodes that only the second graph has, by the next node of the first one; None: at the end."""
    found: dict[Node | None, list[Node]] = {}
    waiting: list[Node] = []
    for node in pairs.after.nodes:
        old = pairs.back.get(node)
        if old is None:
            waiting.append(node)
        elif waiting:
            found[old] = waiting
            waiting = []
    found[None] = waiting
    return dict(found)


def _one(node: Node, sign: Sign, rules: tuple[str, ...]) -> ModelChange:
    """A node that only one model has."""
    if not _is_constant(node):
        return ModelChange(sign, "node", node.at, (), rules)
    value = next((one for one in node.outputs if one is not None), None)
    text = constant_text(value) if value is not None and value.is_constant else ""
    detail = Detail("value", text, "") if sign == "removed" else Detail("value", "", text)
    return ModelChange(sign, "constant", node.at, (detail,), rules)


def _is_constant(node: Node) -> bool:
    return node.is_onnx and node.op_type == "Constant"
