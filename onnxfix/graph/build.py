"""Builds the overlay's scopes from the protobuf, and refuses graphs with undefined or duplicate names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onnx import AttributeProto, FunctionProto, GraphProto, OperatorSetIdProto
from onnx.defs import onnx_opset_version

from onnxfix.errors import ModelError
from onnxfix.files import walk
from onnxfix.files.tensors import check_dims
from onnxfix.graph.overlay import Node, Scope, Use, Value
from onnxfix.graph.signatures import contradicted

if TYPE_CHECKING:
    from onnxfix.model import Model

MAX_NESTING = 900
"""Subgraph nesting that onnxfix follows; protobuf itself stops at about 100 when it parses."""


_SHOWN = 6
"""Maximum number of versions in a message."""


def scopes_of(model: Model) -> tuple[Scope, list[Scope]]:
    """The main scope and the function scopes of ``model``, linked."""
    _check_opset(model)
    main = Scope(model, model.proto.graph, "graph", "")
    for imported in model.proto.opset_import:
        _check_text(imported.domain, main)
    pending: list[Scope] = [main]
    functions = []
    for function in getattr(model.proto, "functions", ()):
        overload = getattr(function, "overload", "")
        name = f"fn {function.domain}::{function.name}" + (f":{overload}" if overload else "")
        _check_one_version(function.opset_import, name.removeprefix("fn "))
        functions.append(Scope(model, function, "function", name))
        texts = function.name, function.domain, overload, *function.input, *function.output
        for text in (*texts, *function.attribute, *(entry.domain for entry in function.opset_import)):
            _check_text(text, functions[-1])
    pending.extend(functions)
    fill(pending)
    for root in (main, *functions):
        link(root)
    _pin(model, main, functions)
    return main, functions


def call_key(scope: Scope) -> tuple[str, str, str]:
    """Domain, operator and overload of the nodes that call this function."""
    proto = scope.proto
    assert isinstance(proto, FunctionProto)
    return "" if proto.domain == "ai.onnx" else proto.domain, proto.name, getattr(proto, "overload", "")


MOST_VERSION = 2**31 - 1
"""The largest operator version that onnx can look up. A larger one raises an error."""


def _check_opset(model: Model) -> None:
    """Refuse operator sets that the installed onnx does not know: every finding would be a guess."""
    for imported in (
        *model.proto.opset_import,
        *(entry for function in model.proto.functions for entry in function.opset_import),
    ):
        if abs(imported.version) > MOST_VERSION:
            raise ModelError(
                f"version {imported.version} of {imported.domain!r} is imported; no such version exists"
            )
    versions = _versions(model.proto.opset_import)
    if not versions:
        # Before IR version 3 there was no opset_import, and a model of local function calls needs none.
        if model.proto.ir_version >= 3 and any(
            node.domain in ("", "ai.onnx") for node in model.proto.graph.node
        ):
            raise ModelError("the model imports no version of ONNX's operator set (opset_import is missing)")
        return
    _check_one_version(model.proto.opset_import)
    newest = onnx_opset_version()
    if not 1 <= versions[0] <= newest:
        raise ModelError(
            f"the model imports opset {versions[0]}; the installed onnx knows 1 to {newest}: "
            "install a newer onnx, or export for an older opset"
        )


def _versions(imports: Iterable[OperatorSetIdProto]) -> list[int]:
    """The versions of ONNX's own operators in stored order."""
    return [int(entry.version) for entry in imports if entry.domain in ("", "ai.onnx")]


def _check_one_version(imports: Sequence[OperatorSetIdProto], function: str = "") -> None:
    """Refuse a model or function that imports two versions of ONNX's operators.

    No reader rejects it, and readers choose differently (onnx 1.23.2, onnxruntime 1.32.0, TensorRT-RTX
    1.7.1). If all entries use the same domain name, all readers use the last entry. If entries use both
    names, onnx.checker uses the empty name, TensorRT ``ai.onnx``, and ONNX Runtime the last entry. In a
    function that imports 14 and then 12, onnx.checker uses 12 and ONNX Runtime 14.
    """
    versions = _versions(imports)
    distinct = [str(version) for version in dict.fromkeys(versions)]
    if len(distinct) < 2:
        return
    if len(distinct) > _SHOWN:
        distinct = [*distinct[:_SHOWN], "…"]
    names = " and ".join(
        dict.fromkeys(repr(entry.domain) for entry in imports if entry.domain in ("", "ai.onnx"))
    )
    what = f"function {function}" if function else "the model"
    raise ModelError(
        f"{what} imports ONNX's operator set (domain {names}) in different versions, {', '.join(distinct)}: readers "
        "differ in which they go by; keep the one that the nodes are written for"
    )


def model_scopes(main: Scope, functions: list[Scope]) -> list[Scope]:
    """All scopes below the given roots."""
    return [scope for root in (main, *functions) for scope in root.walk()]


def fill(scopes: list[Scope]) -> None:
    """Create the values and nodes of the scopes and of all subgraphs inside them.

    Raises:
        ModelError: a name is defined twice, or a node is malformed.
    """
    pending = list(scopes)
    while pending:
        pending.extend(_fill(pending.pop()))


def _fill(scope: Scope) -> list[Scope]:
    """Create the values and nodes that ``scope`` defines; returns its subgraphs, still empty."""
    proto = scope.proto
    if isinstance(proto, FunctionProto):
        for name in proto.input:
            value = define(scope, name, "an input of the function")
            value.is_input = True
            scope.inputs.append(value)
    else:
        _fill_graph(scope, proto)
    subgraphs: list[Scope] = []
    version = scope.imports().get("", 0)
    for node_proto in proto.node[:]:
        node = Node(node_proto, scope)
        attributes = node_proto.attribute[:]
        for text in (node.op_type, node.domain, node_proto.name):
            if type(text) is not str:
                _check_text(text, scope)
        if attributes and node.domain == "" and version:
            _check_attributes(node, attributes, version)
        scope.nodes.append(node)
        add_outputs(node)
        if attributes:
            subgraphs.extend(add_subgraphs(node, attributes))
    return subgraphs


def _check_attributes(node: Node, attributes: Sequence[AttributeProto], version: int) -> None:
    """Refuse an attribute stored as another type than ONNX defines, such as a list for ``Cast.to``."""
    for attribute in attributes:
        stored = attribute.type
        expected = contradicted(node.op_type, version, attribute.name, stored)
        # Before IR version 2 the type was not stored.
        untyped = stored == AttributeProto.UNDEFINED
        if expected is not None and not (
            untyped and (attribute.ref_attr_name or node.scope.model.proto.ir_version < 2)
        ):
            expected_kind = AttributeProto.AttributeType.Name(expected).lower()
            stored_kind = (
                "nothing: its type is missing"
                if untyped
                else AttributeProto.AttributeType.Name(stored).lower()
            )
            label = node.name or next(iter(node.proto.output), "") or node.op_type
            raise ModelError(
                f"attribute {attribute.name!r} of node {label!r}{_within(node.scope)} is stored as "
                f"{stored_kind}; {node.op_type} has {expected_kind}"
            )


def _fill_graph(scope: Scope, proto: GraphProto) -> None:
    for info in proto.input:
        value = define(scope, info.name, "a graph input")
        value.is_input = True
        scope.inputs.append(value)
    for tensor in proto.initializer:
        value = scope.values.get(tensor.name) or define(scope, tensor.name, "an initializer")
        if value.initializer is not None:
            raise ModelError(
                f"two initializers are named {tensor.name!r}{_within(scope)}; names must be unique"
            )
        value.initializer = tensor
    for sparse in proto.sparse_initializer:
        check_dims(sparse)
        name = sparse.values.name
        value = scope.values.get(name) or define(scope, name, "an initializer")
        value.sparse = True


def define(scope: Scope, name: str, what: str) -> Value:
    """A new value of ``scope``.

    Raises:
        ModelError: the name is empty or taken.
    """
    if not name:
        raise ModelError(f"{what}{_within(scope)} has no name")
    if type(name) is not str:
        _check_text(name, scope)
    if name in scope.values:
        raise ModelError(
            f"the name {name!r} is defined twice{_within(scope)}; names must be unique (SSA form)"
        )
    value = scope.values[name] = Value(name, scope)
    return value


def _check_text(text: object, scope: Scope) -> None:
    """Refuse a string that is not UTF-8, which protobuf returns as bytes: no other reader could use it."""
    if isinstance(text, bytes):
        raise ModelError(f"the name {text!r}{_within(scope)} is not UTF-8; the file is damaged")


def add_outputs(node: Node) -> None:
    """Define the outputs of a node in its scope."""
    scope = node.scope
    for index, name in enumerate(node.proto.output[:]):
        if not name:
            node.outputs.append(None)
            continue
        if type(name) is str and name not in scope.values:
            value = scope.values[name] = Value(name, scope)
        else:
            value = define(scope, name, f"an output of node {node.name or node.op_type!r}")
        value.producer = node
        value.output_index = index
        node.outputs.append(value)


def add_subgraphs(node: Node, attributes: Sequence[AttributeProto]) -> list[Scope]:
    """Empty scopes for the graphs in the ``attributes`` of ``node``, in stored order."""
    scope = node.scope
    for attribute in attributes:
        graphs = walk.attribute_graphs(attribute)
        if not graphs:
            continue
        single = attribute.HasField("g") or attribute.type == AttributeProto.GRAPH
        for index, graph in enumerate(graphs):
            label = attribute.name if index < single else f"{attribute.name}[{index - single}]"
            scope_name = f"{node.name or node.first_output or node.op_type}.{label}"
            node.subgraphs.append(Scope(scope.model, graph, "subgraph", scope_name, scope, node, label))
    if node.subgraphs and scope.depth > MAX_NESTING:
        raise ModelError(f"subgraphs are nested deeper than {MAX_NESTING} levels at {node.place}")
    return node.subgraphs


def link(root: Scope) -> None:
    """Connect the inputs and outputs of ``root`` and its subgraphs to the values that they name.

    Raises:
        ModelError: a name is not defined.
    """
    for scope in root.walk():
        for node in scope.nodes:
            _connect(node)
        proto = scope.proto
        names = proto.output[:] if isinstance(proto, FunctionProto) else [info.name for info in proto.output]
        for name in names:
            value = scope.lookup(name)
            if value is None:
                raise ModelError(
                    f"the output {name!r}{_within(scope)} is produced by no node, input or initializer"
                )
            if value.scope is scope:
                value.is_output = True
            else:
                value.pins += 1  # a branch returns an outer value: its name must stay
            scope.outputs.append(value)


def _connect(node: Node) -> None:
    """Resolve the input names of ``node`` and register its uses.

    Raises:
        ModelError: an input names nothing that is visible here.
    """
    for index, name in enumerate(node.proto.input[:]):
        if not name:
            node.inputs.append(None)
            continue
        value = node.scope.lookup(name)
        if value is None:
            raise ModelError(
                f"input {name!r} of node {node.place} ({node.op_type}) is produced by no node, input or initializer"
            )
        node.inputs.append(value)
        value._uses[Use(node, index)] = None


def _pin(model: Model, main: Scope, functions: list[Scope]) -> None:
    """Pin values that training graphs or annotations name, and the last results of graphs without outputs."""
    names: set[str] = set()
    for info in model.proto.training_info:
        for binding in (*info.initialization_binding, *info.update_binding):
            names.update((binding.key, binding.value))
        for graph in (info.initialization, info.algorithm):
            names.update(name for node in graph.node for name in walk.reads(node))
            names.update(output.name for output in graph.output)
    for scope in model_scopes(main, functions):
        for value in named_without_use(scope):
            value.pins += 1
        if not scope.outputs:
            _pin_ends(scope)
    for name in names:
        named = main.lookup(name)
        if named is not None:
            named.pins += 1


def _pin_ends(scope: Scope) -> None:
    """Pin the last results of a graph without outputs, or all of its nodes would be dead."""
    for node in scope.nodes:
        values = [value for value in node.outputs if value is not None]
        if not any(value._uses for value in values):
            for value in values:
                value.pins += 1


def named_without_use(scope: Scope) -> list[Value]:
    """The values that a graph names outside of its nodes: in quantization annotations (once for each
    annotation), and as inputs of a branch of an If. ONNX defines no such inputs, but TensorRT and
    onnx.reference treat them as the outer values of the same names."""
    proto, owner, parent = scope.proto, scope.owner, scope.parent
    if not isinstance(proto, GraphProto):
        return []
    names = [
        name
        for entry in proto.quantization_annotation
        for name in dict.fromkeys((entry.tensor_name, *(e.value for e in entry.quant_parameter_tensor_names)))
    ]
    values = [*map(scope.lookup, names)]
    if parent is not None and owner is not None and owner.is_onnx and owner.op_type == "If":
        values += [parent.lookup(info.name) for info in proto.input]
    return [value for value in values if value is not None]


def _within(scope: Scope) -> str:
    return f" in {scope.path}" if scope.path else ""
