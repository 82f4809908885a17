"""A call of a local function written out: the nodes of its body in the place of the call."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import AttributeProto, FunctionProto, NodeProto, defs

from onnxfix.rule import AddNode, Draft, Edit, Node, Scope, Value
from onnxfix_rules.ctl import _inline
from onnxfix_rules.ops import _nested

NODE_LIMIT = 1000
"""Nodes of a body, with those of the functions that it calls: a few functions can stand for billions."""
DEPTH_LIMIT = 100
"""Functions that call one another, one inside the other."""
_SINGLE = defs.OpSchema.FormalParameterOption.Single


def written_out(call: Node) -> list[Edit] | None:
    """The edits that put a function's body in the place of a call; None where it would not mean the same there.

    Inputs that the call leaves out are left out in the body; attributes are the call's, else the function's defaults.
    None too where a node of the body cannot do without one of them: such a call does not run.
    """
    body = call.function
    attributes = None if body is None else _attributes(call, body)
    if body is None or attributes is None or len(body.outputs) < len(call.outputs):
        return None
    if _size(body, {}, 0) > NODE_LIMIT:
        return None
    pairs = [(o, r) for o, r in zip(call.outputs, body.outputs, strict=False) if o is not None]
    nodes = _inline.needed(body, [result for _, result in pairs])
    if nodes is None or not all(_means_the_same(inner, call) for n in nodes for inner in _inline.inside(n)):
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
    """What the function's attributes are in this call; None where that is not known.

    An attribute that the call hands through from a function around it may be missing there: the body's default would
    apply, which a node of the body cannot say.
    """
    assert isinstance(body.proto, FunctionProto)
    found = {a.name: a for a in getattr(body.proto, "attribute_proto", ())}
    for attribute in call.proto.attribute:
        if attribute.ref_attr_name and attribute.name in found:
            return None
        found[attribute.name] = attribute
    return found


def _is_complete(node: NodeProto, scope: Scope) -> bool:
    """Whether a node, and those in its graphs, have the inputs and attributes that ONNX asks for."""
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
    """The values that the function returns, and those that subgraphs of its nodes return."""
    yield from (result for _, result in pairs)
    for node in nodes:
        for sub in node.subgraphs:
            for scope in sub.walk():
                yield from scope.outputs


def _means_the_same(node: Node, call: Node) -> bool:
    """Whether a node of a function means, where the call stands, what it means in the function."""
    old, new = node.opset, call.scope.opset(node.domain)
    if old == new or node.function is not None:
        return new > 0
    try:
        before, after = (defs.get_schema(node.op_type, version, node.domain) for version in (old, new))
    except defs.SchemaError:
        return False
    return bool(before.since_version == after.since_version)


def _size(body: Scope, known: dict[int, int], depth: int) -> int:
    """Nodes of a function with all that it calls; more than the limit where it calls itself."""
    if id(body) in known or depth > DEPTH_LIMIT:
        return known.get(id(body), NODE_LIMIT + 1)
    known[id(body)] = NODE_LIMIT + 1  # until it is counted: who finds it so is inside it
    total = 0
    for scope in body.walk():
        for node in scope.nodes:
            inner = node.function
            total += 1 if inner is None else _size(inner, known, depth + 1)
    known[id(body)] = total = min(total, NODE_LIMIT + 1)
    return total
