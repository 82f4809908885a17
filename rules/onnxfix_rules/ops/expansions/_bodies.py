"""The bodies of ONNX's operators that are functions, and their place in the model instead of a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    defs,
    shape_inference,
)

from onnxfix.files import lazy, walk
from onnxfix.rule import AddNode, Draft, Edit, Node, Safety, Value, defined, least_inputs
from onnxfix.runtime.sandbox import forked
from onnxfix.targets.documented import names
from onnxfix_rules.ops import _nested
from onnxfix_rules.ops._nested import flat, rename
from onnxfix_rules.ops.expansions import _own

TIMEOUT_S = 20.0
MEMORY_MB = 2048
SIZE_LIMIT = 1 << 16
"""In bytes. A larger node carries weights or graphs and is not one of ONNX's functions."""
NODE_LIMIT = 400
"""Maximum nodes of a body, including those in its loops."""
_GRAPHS = frozenset({"Scan"})
"""Operators with subgraphs that bodies may contain. ONNX's Range, for example, is a Loop whose trip count is computed
from floats, which TensorRT rejects."""
_NO_BODY = ("AffineGrid",)
"""ONNX's body contains an If, and squeezes away a batch of 1."""
PREVIEW_OPSET = 18
"""The opset of bodies of the preview domain: they do not declare one, and their operators have not changed since."""


class Body(NamedTuple):
    """The decomposition of a node. ``nodes`` read ``inputs`` (by position of the call's) and define ``outputs``. No
    name is defined twice, including in the graphs of a Scan.
    ``types`` are the types of intermediate values and inputs, as far as inference finds them: TypeProtos as bytes.
    ``opset`` defines the operators' semantics.
    """

    nodes: tuple[NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, bytes]
    opset: int

    def elem_type(self, name: str) -> int:
        """The element type of a value; 0 where unknown."""
        return int(TypeProto.FromString(self.types.get(name, b"")).tensor_type.elem_type)

    def may_have_no_steps(self, nodes: Iterable[NodeProto]) -> bool:
        """Whether a Scan among the nodes may have no step: ONNX's bodies fail there."""
        scanned = []
        for node in nodes:
            if node.op_type == "Scan":
                count = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), len(node.input))
                scanned += node.input[-count:]
        kinds = [TypeProto.FromString(self.types.get(name, b"")).tensor_type for name in scanned]
        return any(not kind.shape.dim or kind.shape.dim[0].dim_value < 1 for kind in kinds)

    def live(self, wanted: Sequence[bool]) -> list[NodeProto]:
        """The nodes that the wanted outputs need, in order."""
        needed = {name for name, keep in zip(self.outputs, wanted, strict=False) if keep}
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(name for inner in _nested.every([node]) for name in inner.input)
                needed.update(info.name for graph in _nested.graphs(node) for info in graph.output)
        return kept[::-1]

    def inside(self, node: NodeProto) -> Body | None:
        """The body of one of its nodes."""
        call = NodeProto()
        call.CopyFrom(node)
        del call.input[:], call.output[:]
        call.name = call.doc_string = ""
        types = [self.types.get(name, b"") for name in node.input]
        return _of_call(call, node, types, (self.opset, self.opset), False)


def body_of(node: Node, *, allow_self: bool = False) -> Body | None:
    """The body of an ONNX operator where ``node`` stands; None where there is none with the same semantics there.

    ``itself``: the operator may occur in its own body, in a simpler form."""
    if any(True for sub in node.subgraphs for _ in sub.captures()):
        return None
    call = NodeProto(op_type=node.op_type, domain=node.domain)
    call.attribute.extend(
        a for a in map(node.attribute, [a.name for a in node.proto.attribute]) if a is not None
    )
    types = [_type_of(value) for value in node.inputs]
    return _of_call(call, node.proto, types, (node.opset, node.scope.opset()), allow_self)


def _of_call(
    call: NodeProto, source: NodeProto, types: Sequence[bytes], opsets: tuple[int, int], allow_self: bool
) -> Body | None:
    """The body of ``call``, whose inputs and outputs get names that do not depend on its position.

    ``opsets``: the version of the node's own domain, and that of ONNX's.
    """
    if not all(kind or not name for kind, name in zip(types, source.input, strict=True)):
        return None
    call.input.extend(f"in {index}" if name else "" for index, name in enumerate(source.input))
    call.output.extend(f"out {index}" if name else "" for index, name in enumerate(source.output))
    for tensor in walk.node_tensors([call]):
        where = lazy.range_of(tensor)
        if where is not None and where.length > SIZE_LIMIT:
            return None
        if where is not None:
            lazy.fill(tensor, where)
    data = call.SerializeToString(deterministic=True)
    if len(data) > SIZE_LIMIT:
        return None
    try:
        return _cached(data, tuple(types), opsets, allow_self)
    except _NoAnswer:
        return None


def _type_of(value: Value | None) -> bytes:
    """The value's type as a TypeProto's bytes, with its static dimensions; empty where unknown."""
    if value is None:
        return b""
    shapes = value.scope.model.shapes
    elem = shapes.elem_type(value)
    if not elem:
        return b""
    kind = TypeProto()
    kind.tensor_type.elem_type = elem
    shape = shapes.shape(value)
    if shape is not None:
        kind.tensor_type.shape.SetInParent()
        for dim in shape:
            added = kind.tensor_type.shape.dim.add()
            if dim.value is not None:
                added.dim_value = dim.value
    return kind.SerializeToString(deterministic=True)


class _NoAnswer(Exception):
    """The fork ran out of time or memory: this says nothing about the node and is not cached."""


@lru_cache(maxsize=512)
def _cached(data: bytes, types: tuple[bytes, ...], opsets: tuple[int, int], allow_self: bool) -> Body | None:
    outcome = forked(_build, data, types, opsets, allow_self, timeout=TIMEOUT_S, memory_mb=MEMORY_MB)
    if outcome.status in ("timeout", "memory"):
        raise _NoAnswer
    if outcome.status != "ok" or outcome.value is None:
        return None
    protos, inputs, outputs, known = outcome.value
    return Body(tuple(NodeProto.FromString(proto) for proto in protos), inputs, outputs, known, opsets[1])


# ------------------------------------------------------------------------------------------ in the fork


def _build(
    data: bytes, types: tuple[bytes, ...], opsets: tuple[int, int], allow_self: bool
) -> tuple[list[bytes], tuple[str, ...], tuple[str, ...], dict[str, bytes]] | None:
    """The body's nodes, its inputs and outputs, and its types; None where no body has the same semantics."""
    call = NodeProto.FromString(data)
    version, opset = opsets
    schema = defs.get_schema(call.op_type, version, call.domain)
    if any(attribute.name not in schema.attributes for attribute in call.attribute):
        return None  # an unknown attribute may have a meaning
    own = _own.function(call, types, version, allow_self=allow_self)
    function, written = (own, version) if own is not None else _function(call, schema, types, version)
    if function is None:
        return None
    _bind(function, call, schema)
    if not _has_same_meaning(function, written, opset):
        return None
    inputs = {name: kind for name, kind in zip(function.input, types, strict=False) if kind}
    nodes = list(function.node)
    every = list(_nested.every(nodes))
    if len(every) > NODE_LIMIT or any(_nested.graphs(n) and n.op_type not in _GRAPHS for n in every):
        return None
    for node in nodes:
        names = {name: f"{next(iter(node.output))} {name}" for name in defined(node)}
        for graph in _nested.graphs(node):
            _nested.rename_graph(graph, names)
    known = _inferred(nodes, inputs, opset)
    if not _well_typed(every, known, opset):
        return None
    return [n.SerializeToString() for n in nodes], tuple(function.input), tuple(function.output), known


def _function(
    call: NodeProto, schema: Any, types: tuple[bytes, ...], version: int
) -> tuple[FunctionProto | None, int]:
    """The function, and the opset that it is written in."""
    if call.op_type in _NO_BODY:
        return None, 0
    fixed, made = schema.function_opset_versions, schema.context_dependent_function_opset_versions
    usable = [v for v in (made if schema.has_context_dependent_function else fixed) if v <= version]
    if not usable:
        return None, 0
    if schema.has_context_dependent_function:
        found = schema.get_context_dependent_function_with_opset_version(
            max(usable), call.SerializeToString(), list(types)
        )
    else:
        found = schema.get_function_with_opset_version(max(usable))
    function = FunctionProto.FromString(found)
    written = {entry.domain: entry.version for entry in function.opset_import}
    return function, written.get("", PREVIEW_OPSET)


def _bind(function: FunctionProto, call: NodeProto, schema: Any) -> None:
    """Substitute the call's attributes, or their defaults, for the references in the body."""
    given = {a.name: a for a in getattr(function, "attribute_proto", ())}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type:
            given.setdefault(name, attribute.default_value)
    given.update((a.name, a) for a in call.attribute)
    for node in _nested.every(function.node):
        bound = []
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                bound.append(attribute)
            elif attribute.ref_attr_name in given:
                copy = AttributeProto()
                copy.CopyFrom(given[attribute.ref_attr_name])
                copy.name = attribute.name
                bound.append(copy)
        kept = [AttributeProto.FromString(a.SerializeToString()) for a in bound]
        del node.attribute[:]
        node.attribute.extend(kept)
    # An operator reads "" for an omitted optional input.
    present = {name for name, read in zip(function.input, call.input, strict=False) if read}
    missing = set(function.input) - present
    for node in _nested.every(function.node):
        for index, name in enumerate(node.input):
            if name in missing:
                node.input[index] = ""
        while len(node.input) > least_inputs(node) and not node.input[-1]:
            del node.input[-1]


def _has_same_meaning(function: FunctionProto, written: int, opset: int) -> bool:
    """Whether the body's operators have the same semantics in ``opset`` as in the version they are written in."""
    return written <= opset and all(
        node.domain in ("", "ai.onnx") and _is_compatible(node, written, opset)
        for node in _nested.every(function.node)
    )


def _is_compatible(node: NodeProto, old: int, new: int) -> bool:
    """Whether an operator only gained types, optional inputs and attributes, and lost none that it uses here."""
    try:
        before, after = defs.get_schema(node.op_type, old, ""), defs.get_schema(node.op_type, new, "")
    except defs.SchemaError:
        return False
    if before.since_version == after.since_version:
        return True
    first, second = [[(i.name, i.option) for i in s.inputs] for s in (before, after)]
    optional = defs.OpSchema.FormalParameterOption.Optional
    if second[: len(first)] != first or any(option != optional for _, option in second[len(first) :]):
        return False
    used = {attribute.name for attribute in node.attribute}
    removed = [a for name, a in before.attributes.items() if name not in after.attributes]
    both = [(a, after.attributes[name]) for name, a in before.attributes.items() if name in after.attributes]
    return (
        [o.name for o in before.outputs] == [o.name for o in after.outputs]
        and not any(a.required or a.default_value.type or a.name in used for a in removed)
        and all(a.type == b.type and a.default_value == b.default_value for a, b in both)
        and not any(a.required for name, a in after.attributes.items() if name not in before.attributes)
    )


def _well_typed(nodes: Sequence[NodeProto], types: Mapping[str, bytes], opset: int) -> bool:
    """Whether inputs that must share a type do: ONNX's MeanVarianceNormalization adds float32 to float16."""
    for node in nodes:
        bound: dict[str, int] = {}
        formal = defs.get_schema(node.op_type, opset, "").inputs
        for index, name in enumerate(node.input):
            parameter = formal[min(index, len(formal) - 1)]
            elem = TypeProto.FromString(types.get(name, b"")).tensor_type.elem_type
            if not name or not elem:
                continue
            allowed = parameter.types
            if f"tensor({TensorProto.DataType.Name(elem).lower()})" not in allowed:
                return False
            if parameter.is_homogeneous and bound.setdefault(parameter.type_str, elem) != elem:
                return False
    return True


def _inferred(nodes: Sequence[NodeProto], inputs: Mapping[str, bytes], opset: int) -> dict[str, bytes]:
    """The types of the values, as TypeProtos' bytes."""
    graph = GraphProto(name="body")
    for name, kind in inputs.items():
        graph.input.add(name=name).type.CopyFrom(TypeProto.FromString(kind))
    graph.node.extend(nodes)
    model = ModelProto(ir_version=10, graph=graph)
    model.opset_import.add(domain="", version=opset)
    found = shape_inference.infer_shapes(model, data_prop=True).graph
    types = {info.name: info.type.SerializeToString() for info in (*found.value_info, *found.input)}
    for node in _nested.every(found.node):
        for inner in _nested.graphs(node):
            infos = (*inner.value_info, *inner.input, *inner.output)
            types.update((info.name, info.type.SerializeToString()) for info in infos)
    return types


_DATA_MOVING = names(
    "Concat Constant ConstantOfShape Expand Flatten Gather GatherElements Identity Neg Pad Reshape Shape Size Slice "
    "Split Squeeze Transpose Unsqueeze"
)
_EXACT_TYPES = frozenset(
    {TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8}
)


def safety_of(body: Body, nodes: list[NodeProto]) -> Safety:
    """Exact where the body computes only with integers, and otherwise only moves data."""
    is_exact = all(
        node.op_type in _DATA_MOVING
        or all(body.elem_type(name) in _EXACT_TYPES for name in (*node.input, *node.output) if name)
        for node in flat(nodes)
    )
    return Safety.EXACT if is_exact else Safety.NUMERIC


def edits_for(node: Node, body: Body, nodes: list[NodeProto], wanted: list[bool]) -> list[Edit]:
    """Replace the node by the body's nodes, under new names; the outputs keep theirs."""
    draft = Draft(node)
    draft.remove(node)
    renamed = {"": ""}
    for name, value in zip(body.inputs, node.inputs, strict=False):
        renamed[name] = "" if value is None else value.name
    produced = {name for inner in nodes for name in inner.output}
    copies = []
    for name, output, keep in zip(body.outputs, node.proto.output, wanted, strict=False):
        if keep and name in produced and name not in renamed:
            renamed[name] = output
        elif keep:  # an input, or another output again
            copies.append((name, output))
    for inner in nodes:
        copy = NodeProto()
        copy.CopyFrom(inner)
        copy.name = copy.doc_string = ""
        for name in (*copy.output, *defined(copy)):
            if name not in renamed:
                renamed[name] = draft.name(name.replace(" ", "_"))
        rename(copy, renamed)
        draft.edits.append(AddNode(node.scope, copy, node))
    for name, output in copies:
        draft.add("Identity", [renamed[name]], output=output)
    return draft.edits
