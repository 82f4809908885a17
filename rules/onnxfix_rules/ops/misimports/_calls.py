"""Inlining a call of a local function: the nodes of its body replace the call."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import AttributeProto, FunctionProto, NodeProto, defs

from onnxfix.rule import AddNode, Draft, Edit, Fix, Match, Node, Scope, Value
from onnxfix_rules.ctl import _inline
from onnxfix_rules.ops import _nested

NODE_LIMIT = 1000
"""Maximum nodes of a body, including the functions it calls: a few nested functions can expand to billions."""
DEPTH_LIMIT = 100
"""Maximum nesting of function calls."""
_SINGLE = defs.OpSchema.FormalParameterOption.Single


def match(call: Node, message: str) -> Match:
    """A finding at a node, which inlining its function mends, if it has one."""
    edits, body = inlined(call), call.function
    return Match(
        message,
        node=call,
        fix=None if edits is None else Fix("inline the function", edits),
        reads=() if body is None else tuple(inner for scope in body.walk() for inner in scope.nodes),
    )


def inlined(call: Node) -> list[Edit] | None:
    """The edits that replace a call by the function's body; None where the body would compute something else there.

    Inputs that the call omits are omitted in the body. Attributes come from the call, else from the function's
    defaults. Also None where a node of the body requires an omitted input or attribute: such a call cannot run.
    """
    body = call.function
    attributes = None if body is None else _attributes(call, body)
    if body is None or attributes is None or len(body.outputs) < len(call.outputs):
        return None
    if _size(body, {}, 0) > NODE_LIMIT:
        return None
    pairs = [(o, r) for o, r in zip(call.outputs, body.outputs, strict=False) if o is not None]
    nodes = _inline.needed(body, [result for _, result in pairs])
    if nodes is None or not all(_has_same_meaning(inner, call) for n in nodes for inner in _inline.inside(n)):
        return None
    names = [*call.proto.input, *[""] * len(body.inputs)]
    given = dict(zip(body.inputs, names, strict=False))
    if any(not given.get(value, "given") for value in _returned(nodes, pairs)):
        return None
    draft = Draft(call)
    draft.remove(call)
    targets: dict[Value, str] = {}
    for output, result in pairs:
        if result.producer is not None:
            targets.setdefault(result, output.name)
    copies = _inline.Inliner(draft, body, attributes).copy(nodes, given, targets)
    if not all(_is_complete(edit.proto, call.scope) for edit in draft.edits if isinstance(edit, AddNode)):
        return None
    for output, result in pairs:
        if targets.get(result) != output.name and not _inline.deliver(draft, output, copies[result], output):
            return None
    return draft.edits


def _attributes(call: Node, body: Scope) -> dict[str, AttributeProto] | None:
    """The values of the function's attributes in this call; None where they are unknown.

    An attribute that the call forwards from an enclosing function may be missing there. The body's default would then
    apply, which a node of the body cannot express.
    """
    assert isinstance(body.proto, FunctionProto)
    found = {a.name: a for a in getattr(body.proto, "attribute_proto", ())}
    for attribute in call.proto.attribute:
        if attribute.ref_attr_name and attribute.name in found:
            return None
        found[attribute.name] = attribute
    return found


def _is_complete(node: NodeProto, scope: Scope) -> bool:
    """Whether a node, and the nodes in its subgraphs, have the inputs and attributes that ONNX requires."""
    for one in _nested.every([node]):
        domain = "" if one.domain == "ai.onnx" else one.domain
        try:
            schema = defs.get_schema(one.op_type, scope.opset(domain), domain)
        except defs.SchemaError:
            continue  # another domain, or a function
        needed = [i for i, formal in enumerate(schema.inputs) if formal.option == _SINGLE]
        given = {attribute.name for attribute in one.attribute}
        if any(index >= len(one.input) or not one.input[index] for index in needed):
            return False
        if any(a.required and name not in given for name, a in schema.attributes.items()):
            return False
    return True


def _returned(nodes: Iterable[Node], pairs: Iterable[tuple[Value, Value]]) -> Iterable[Value]:
    """The values that the function returns and those that subgraphs of its nodes return."""
    yield from (result for _, result in pairs)
    for node in nodes:
        for sub in node.subgraphs:
            for scope in sub.walk():
                yield from scope.outputs


def _has_same_meaning(node: Node, call: Node) -> bool:
    """Whether a node of a function computes the same at the call site, under the caller's opset."""
    old, new = node.opset, call.scope.opset(node.domain)
    if old == new or node.function is not None:
        return new > 0
    try:
        before, after = (defs.get_schema(node.op_type, version, node.domain) for version in (old, new))
    except defs.SchemaError:
        return False
    return bool(before.since_version == after.since_version)


def _size(body: Scope, known: dict[int, int], depth: int) -> int:
    """The number of nodes of a function, including its callees; more than the limit for a recursive function."""
    if id(body) in known or depth > DEPTH_LIMIT:
        return known.get(id(body), NODE_LIMIT + 1)
    known[id(body)] = NODE_LIMIT + 1  # placeholder while counting: a lookup that finds it is recursive
    total = 0
    for scope in body.walk():
        for node in scope.nodes:
            inner = node.function
            total += 1 if inner is None else _size(inner, known, depth + 1)
    known[id(body)] = total = min(total, NODE_LIMIT + 1)
    return total
