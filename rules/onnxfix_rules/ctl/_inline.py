"""Inlines the nodes of a subgraph at the node that owns it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from onnxfix.files import tensors
from onnxfix.rule import (
    AddNode,
    Dim,
    Draft,
    Edit,
    Fix,
    Model,
    Node,
    Scope,
    SetValueInfo,
    Unknown,
    Value,
    equal,
    is_read,
    least_inputs,
    shared,
    target_of,
)
from onnxfix_rules.ops import _nested

OPTIONAL_IDENTITY = 16
"""First opset whose Identity supports every type of value; it always supports tensors, and sequences since 14."""


def reads(node: Node) -> Iterator[Value]:
    """The values that a node reads from its graph: its inputs, and what its subgraphs capture."""
    yield from (value for value in node.inputs if value is not None)
    if node.subgraphs:
        captured = shared(node.model, _captured)
        for sub in node.subgraphs:
            yield from captured[sub]


def _captured(model: Model) -> dict[Scope, tuple[Value, ...]]:
    """The outer values that each subgraph captures, itself or through inner subgraphs, each value once.

    Computed for all at once: walking every subgraph separately is quadratic in the nesting depth.
    """
    found: dict[Scope, tuple[Value, ...]] = {}
    for scope in reversed(model.scopes):  # inner ones first
        read: dict[Value | None, None] = dict.fromkeys(scope.outputs)
        for node in scope.nodes:
            read.update(dict.fromkeys(node.inputs))
            for sub in node.subgraphs:
                read.update(dict.fromkeys(found[sub]))
        found[scope] = tuple(value for value in read if value is not None and value.scope is not scope)
    return found


def inside(node: Node) -> Iterator[Node]:
    """The node itself and all nodes of its subgraphs."""
    yield node
    for sub in node.subgraphs:
        for scope in sub.walk():
            yield from scope.nodes


def needed(body: Scope, wanted: Sequence[Value]) -> list[Node] | None:
    """The nodes of ``body`` that the wanted values need, producers first; None if one needs a sparse weight."""
    live: set[int] = set()
    pending = [value for value in wanted if value.scope is body]
    while pending:
        value = pending.pop()
        node = value.producer
        if value.sparse:
            return None
        if node is None or id(node) in live:
            continue
        live.add(id(node))
        pending.extend(v for v in reads(node) if v.scope is body)
    return [node for node in body.model.orders[body] if id(node) in live]


def visible(node: Node, values: Sequence[Value]) -> bool:
    """Whether these values are visible by their names in the graph of ``node``, not only in its subgraphs."""
    return all(node.scope.lookup(value.name) is value for value in values)


class Inliner:
    """Copies nodes of ``body`` to the anchor of ``draft``, once or several times, under new names.

    ``attributes`` replace a function's attributes in a copy of its body; references to missing ones are dropped.
    ``named``: the body is copied once, and where the anchor and a node have names, the copy has both in one.
    """

    def __init__(
        self,
        draft: Draft,
        body: Scope,
        attributes: Mapping[str, AttributeProto] | None = None,
        *,
        named: bool = False,
    ) -> None:
        self._named = named and bool(draft.anchor.name)
        self._draft = draft
        self._body = body
        self._attributes = attributes
        self._weights: dict[int, str] = {}

    def copy(
        self, nodes: Sequence[Node], given: Mapping[Value, str], targets: Mapping[Value, str]
    ) -> dict[Value, str]:
        """Add a copy of the nodes; ``given`` maps the body's inputs to names.

        ``targets`` maps results to names; other results get new ones. Returns the name of every value of the copy.
        """
        names = dict(given)
        for node in nodes:
            proto = NodeProto()
            proto.CopyFrom(node.proto)
            self._read(node, proto, names)
            if self._named and node.name:
                proto.name = f"{self._draft.anchor.name}/{node.name}"
            for index, value in enumerate(node.outputs):
                if value is not None:
                    names[value] = targets.get(value) or self._draft.name(value.name)
                    proto.output[index] = names[value]
            self._rename_inside(node, proto, names)
            self._draft.edits.append(AddNode(self._draft.anchor.scope, proto, self._draft.anchor))
        if any(node.domain not in ("", "ai.onnx") for node in nodes):
            self._declare(nodes, names, targets)
        return names

    def _declare(
        self, nodes: Sequence[Node], names: Mapping[Value, str], targets: Mapping[Value, str]
    ) -> None:
        """Declare the element types that the body declares: ONNX's shape inference knows none behind operators that are
        not ONNX's, and fails in some that are. Sizes stay out: a copy may have others than the next one."""
        scope = self._draft.anchor.scope
        if scope.kind == "function":
            return
        for value in (one for node in nodes for one in node.outputs if one is not None):
            declared = self._body.declared_types().get(value.name)
            elem = declared.tensor_type.elem_type if declared is not None else 0
            if elem and value not in targets:
                info = ValueInfoProto(name=names[value])
                info.type.tensor_type.elem_type = elem
                self._draft.edits.append(SetValueInfo(scope, info.name, info))

    def _read(self, node: Node, proto: NodeProto, names: Mapping[Value, str]) -> None:
        """Set the inputs of a copy, and replace its attribute references by the call's attributes."""
        proto.ClearField("name")  # another graph may use it, and names must be unique
        proto.input[:] = ["" if v is None else self.name(v, names) for v in node.inputs]
        while len(proto.input) > least_inputs(proto) and not proto.input[-1]:
            del proto.input[-1]
        if self._attributes is not None and any(a.ref_attr_name for a in proto.attribute):
            bound = [b for b in map(self._bound, proto.attribute) if b is not None]
            del proto.attribute[:]
            proto.attribute.extend(bound)

    def _bound(self, attribute: AttributeProto) -> AttributeProto | None:
        assert self._attributes is not None
        copy = AttributeProto()
        if not attribute.ref_attr_name:
            copy.CopyFrom(attribute)
            return copy
        given = self._attributes.get(attribute.ref_attr_name)
        if given is None:
            return None
        copy.CopyFrom(given)
        copy.name = attribute.name
        return copy

    def _rename_inside(self, node: Node, proto: NodeProto, names: dict[Value, str]) -> None:
        """Rename all definitions in the copy's subgraphs, so that they shadow no name at the new position."""
        stack = _paired(node, proto)
        while stack:
            scope, graph = stack.pop()
            names.update({value: self._draft.name(name) for name, value in scope.values.items()})
            self._rename_graph(scope, graph, names)
            for inner, copy in zip(scope.nodes, graph.node, strict=True):
                self._read(inner, copy, names)
                copy.output[:] = ["" if v is None else names[v] for v in inner.outputs]
                stack.extend(_paired(inner, copy))

    def _rename_graph(self, scope: Scope, graph: GraphProto, names: Mapping[Value, str]) -> None:
        """New names for everything in a graph but its nodes."""
        for infos, values in ((graph.input, scope.inputs), (graph.output, scope.outputs)):
            for info, value in zip(infos, values, strict=True):
                info.name = self.name(value, names)
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            tensor.name = names[scope.values[tensor.name]]
        known = [info for info in graph.value_info if info.name in scope.values]
        for info in known:
            info.name = names[scope.values[info.name]]
        kept = [ValueInfoProto.FromString(info.SerializeToString()) for info in known]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        for note in graph.quantization_annotation:
            note.tensor_name = self._renamed(scope, note.tensor_name, names)
            for entry in note.quant_parameter_tensor_names:
                entry.value = self._renamed(scope, entry.value, names)

    def _renamed(self, scope: Scope, name: str, names: Mapping[Value, str]) -> str:
        value = scope.lookup(name)
        return name if value is None else self.name(value, names)

    def name(self, value: Value, names: Mapping[Value, str]) -> str:
        """The outer name of a value of the body, or of one that it captures."""
        if value in names:
            return names[value]
        if value.scope is not self._body or value.initializer is None:
            return value.name
        if id(value) not in self._weights:
            tensor = TensorProto()
            tensor.CopyFrom(value.initializer)
            tensor.name = self._draft.name(value.name)
            self._weights[id(value)] = self._draft.tensor(tensor)
        return self._weights[id(value)]


def _paired(node: Node, proto: NodeProto) -> list[tuple[Scope, GraphProto]]:
    """The graphs of a node, and those of its copy.

    Raises:
        Unknown: the copy has others, which a function's call sets.
    """
    graphs = _nested.graphs(proto)
    if len(graphs) != len(node.subgraphs):
        raise Unknown(f"{node.place}: a graph that is set elsewhere")
    return list(zip(node.subgraphs, graphs, strict=True))


def movable(nodes: Sequence[Node], results: Sequence[Value], body: Scope, owner: Node) -> bool:
    """Whether copies work in the graph of ``owner``: captured values are visible there, and weights can be copied."""
    read = dict.fromkeys((*(v for node in nodes for v in reads(node)), *results))
    captured = [v for v in read if v.scope is not body]
    weights = [v for v in read if v.scope is body and v.initializer is not None]
    return visible(owner, captured) and not any(
        v.sparse or v.is_input or (v.initializer is not None and tensors.is_external(v.initializer))
        for v in weights
    )


def deliver(draft: Draft, output: Value, source: str, of: Value) -> bool:
    """Replace the anchor's ``output`` by ``source``, a name in the anchor's graph.

    ``of`` is the value of ``source``, for its type. Returns False if the output must keep its name and no Identity
    supports the type. The caller removes the anchor.
    """
    if output.replaceable:
        draft.replace_uses(output, source)
        return True
    if not may_keep_name(draft.anchor, of):
        return False
    draft.add("Identity", [source], output=output.name)
    return True


def replace(node: Node, branch: Scope) -> Fix | None:
    """A fix that replaces the If by the branch's nodes; None if that is not possible."""
    pairs = [
        (o, r) for o, r in zip(node.outputs, branch.outputs, strict=False) if o is not None and is_read(o)
    ]
    results = [result for _, result in pairs]
    nodes = needed(branch, results)
    if nodes is None or not movable(nodes, results, branch, node):
        return None
    kept = {output for output, _ in pairs if not output.replaceable}
    targets: dict[Value, str] = {}
    for output, result in pairs:
        if output in kept and result.producer is not None and result.scope is branch:
            targets.setdefault(result, output.name)
    renamed = [result for output, result in pairs if output in kept and targets.get(result) != output.name]
    if not all(may_keep_name(node, result) for result in renamed):
        return None

    def write() -> list[Edit]:
        draft = Draft(node)
        draft.remove(node)
        # TensorRT names a node without a name by its output, and two branches may have the same one: it then refuses
        # some.
        inliner = Inliner(draft, branch, named=True)
        names = inliner.copy(nodes, {}, targets)
        for output, result in pairs:
            source = inliner.name(result, names)
            if output not in kept:
                draft.replace_uses(output, source)
            elif targets.get(result) != output.name:
                draft.add("Identity", [source], output=output.name)
        return draft.edits

    # A fix of an outer If copies the inner ones too, so the copy is made only when the fix is applied.
    return Fix(f"replace the If by its {branch.attr.split('_')[0]} branch", write, replaces=node)


def may_keep_name(anchor: Node, of: Value) -> bool:
    """Whether an Identity in the graph of ``anchor`` supports the type of the value."""
    return anchor.scope.opset() >= OPTIONAL_IDENTITY or is_tensor(of)


def is_tensor(value: Value) -> bool:
    """Whether the value is certainly a tensor."""
    return value.scope.model.shapes.elem_type(value) is not None


def known(condition: Value, model: Model) -> bool | None:
    """The constant value of a condition, or None."""
    array = condition.constant()
    if array is not None:
        return bool(array.reshape(-1)[0]) if array.size == 1 and array.dtype == bool else None
    symbolic = model.shapes.value(condition)
    static = None if symbolic is None else symbolic.static
    return bool(static[0]) if static is not None and len(static) == 1 else None


def share_a_size(first: Sequence[Dim], second: Sequence[Dim]) -> bool:
    """Whether two shapes of one rank have a dynamic size in common, and others that are not certainly equal."""
    same = [equal(d, e).yes for d, e in zip(first, second, strict=True)]
    return not all(same) and any(d.value is None for d, yes in zip(first, same, strict=True) if yes)


def of_compiler(model: Model) -> bool:
    """Whether the target compiles branches as TensorRT-RTX does, where this was measured."""
    target = target_of(model)
    return target.package == "tensorrt-rtx" or target.oldest >= (11,)


def needs_one_shape(model: Model) -> bool:
    """Whether the target requires the same shape of both branches: TensorRT before 10.11."""
    target = target_of(model)
    return target.package == "tensorrt" and target.oldest < (10, 11)
