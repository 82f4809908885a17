"""ONNX's own (C++) shape inference in a sandbox, for operators that onnxfix has no transfer function for.

It may hang (malformed Einsum), crash (SequenceMap) or allocate without bound (data propagation), and it trusts all
declarations in a file. So it gets a copy of the model without weights and declared shapes, in a child process with a
time and memory limit, and only its static dimensions and ranks are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    shape_inference,
)

from onnxfix.files import lazy, tensors, walk
from onnxfix.graph import unfolding
from onnxfix.graph.overlay import Value
from onnxfix.runtime.forks import forked
from onnxfix.shapes.ops.base import Unknown
from onnxfix.shapes.ops.linalg import einsum_terms

if TYPE_CHECKING:
    from onnxfix.model import Model

TIMEOUT_S = 20.0
MEMORY_MB = 2048
SMALL_BYTES = 1024
SKIPPED_DOMAIN = "onnxfix.skipped"
DANGEROUS = (b"SequenceMap", b"Einsum")
"""Names of the operators for ``dangerous``, as they occur in a model's bytes."""
MAX_NESTING = 100
"""Maximum nesting of subgraphs. Protobuf passes no deeper message to C++, and a subgraph takes several levels."""

Found = tuple[int | None, tuple[int | None, ...] | None]


def infer(model: Model) -> Mapping[Value, Found]:
    """``(element type, dimensions)`` by value of the main graph and its subgraphs; empty if inference fails."""
    if any(scope.depth > MAX_NESTING for scope in model.scopes):
        return {}
    if unfolding.too_many(model.proto):
        return {}
    outcome = forked(_infer, skeleton(model.proto), timeout=TIMEOUT_S, memory_mb=MEMORY_MB)
    if outcome.status != "ok" or outcome.value is None:
        return {}
    scopes = list(model.main.walk())
    if len(scopes) != len(outcome.value):
        return {}
    result: dict[Value, Found] = {}
    for scope, types in zip(scopes, outcome.value, strict=True):
        for name, found in types.items():
            value = scope.values.get(name)
            if value is not None:
                result[value] = found
    return result


def _infer(model: ModelProto) -> list[dict[str, Found]]:
    """Infer in the child process."""
    inferred = shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=False)
    return [_types(graph) for graph in walk.graphs(inferred.graph)]  # in the order of `Scope.walk`


def _types(graph: GraphProto) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for info in (*graph.value_info, *graph.output):
        if info.type.WhichOneof("value") != "tensor_type":
            continue
        tensor = info.type.tensor_type
        dims = None
        if tensor.HasField("shape"):
            dims = tuple(
                d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
                for d in tensor.shape.dim
            )
        found[info.name] = (tensor.elem_type or None, dims)
    return found


def skeleton(proto: ModelProto) -> ModelProto:
    """A copy without weights, value_info and declared outputs, and with dangerous nodes in a foreign domain."""
    copy = ModelProto(ir_version=proto.ir_version)
    copy.opset_import.extend(proto.opset_import)
    copy.opset_import.add(domain=SKIPPED_DOMAIN, version=1)
    for function in getattr(proto, "functions", ()):
        _copy_function(function, copy.functions.add())
    _copy_graph(proto.graph, copy.graph, main=True)
    return copy


def _copy_function(source: FunctionProto, target: FunctionProto) -> None:
    for name in ("name", "domain", "overload"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
    for name in ("input", "output", "attribute", "attribute_proto", "opset_import"):
        getattr(target, name).extend(getattr(source, name, ()))
    target.opset_import.add(domain=SKIPPED_DOMAIN, version=1)
    _copy_nodes(source.node, target)


def _copy_graph(source: GraphProto, target: GraphProto, *, main: bool) -> None:
    if isinstance(source.name, str):  # one that is not UTF-8 is bytes, which cannot be set
        target.name = source.name
    for info in source.input:
        if main:
            target.input.add().CopyFrom(info)
        else:
            target.input.add().name = info.name  # the declared inputs of a subgraph may be wrong as well
    for info in source.output:
        target.output.add().name = info.name
    for tensor in source.initializer:
        _copy_tensor(tensor, target.initializer.add())
    target.sparse_initializer.extend(source.sparse_initializer)
    _copy_nodes(source.node, target)


def _copy_nodes(nodes: Iterable[NodeProto], target: GraphProto | FunctionProto) -> None:
    for node in nodes:
        copy = target.node.add(op_type=node.op_type, domain=node.domain, name=node.name)
        copy.input.extend(node.input)
        copy.output.extend(node.output)
        if getattr(node, "overload", ""):
            copy.overload = node.overload
        if dangerous(node):
            copy.domain = SKIPPED_DOMAIN
        for attribute in node.attribute:
            _copy_attribute(attribute, copy.attribute.add())


def _copy_attribute(source: AttributeProto, target: AttributeProto) -> None:
    if source.HasField("g") or source.graphs:
        target.name, target.type = source.name, source.type
        if source.HasField("g"):
            _copy_graph(source.g, target.g, main=False)
        for graph in source.graphs:
            _copy_graph(graph, target.graphs.add(), main=False)
    elif source.HasField("t"):
        target.name, target.type = source.name, source.type
        _copy_tensor(source.t, target.t)
    else:
        target.CopyFrom(source)


def _copy_tensor(source: TensorProto, target: TensorProto) -> None:
    """Copy small tensors completely (they may be shapes), others without their bytes."""
    if tensors.nbytes(source) <= SMALL_BYTES and not tensors.is_external(source):
        target.CopyFrom(lazy.with_payload(source))
        return
    target.name, target.data_type = source.name, source.data_type
    target.dims.extend(source.dims)


def dangerous(node: NodeProto) -> bool:
    """Whether shape inference may hang or crash at this node."""
    if node.op_type == "SequenceMap":
        return True
    if node.op_type != "Einsum":
        return False
    equation: Any = next((a.s for a in node.attribute if a.name == "equation"), b"")
    try:
        einsum_terms(equation.decode("utf-8", "replace"))
    except Unknown:
        return True
    return False
