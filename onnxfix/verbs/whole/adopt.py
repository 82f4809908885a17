"""Takes over the graph that a tool wrote, and names what the tool may not lose.

What a model says of itself (metadata, producer, annotations, training information) stays as it was, and so do nodes
that the tool left alone, and weights that a script left alone. The others are the tool's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from onnxfix.files import tensors, walk
from onnxfix.verbs.difference.pairs import serialize_without

T = TypeVar("T", NodeProto, TensorProto)

_APART = {"graph", "input", "output", "value_info", "node", "initializer", "sparse_initializer"}


def adopt(
    original: ModelProto, result: ModelProto, unchanged: ModelProto | None, base_dir: Path
) -> tuple[ModelProto, list[str]]:
    """``original`` with the graph of ``result``, and what the tool lost, one line each.

    ``unchanged`` is the original as the tool writes it where the user's script changes nothing; None for onnxsim, which
    has no script. ``base_dir`` has the original's external data.
    """
    if unchanged is not None and _same(result, unchanged):
        return original, []
    merged = walk.copied(original)
    graph = merged.graph
    if unchanged is None:
        nodes = _in_old_order(result.graph.node, original.graph.node)
        # A node that differs only in name and description is the original's.
        old_nodes = {tuple(node.output): node for node in original.graph.node}
        pairs = ((old_nodes.get(tuple(node.output), node), node) for node in nodes)
        _fill(graph, "node", (old if _bare(old) == _bare(node) else node for old, node in pairs))
        _fill(graph, "initializer", _stored(original.graph, result.graph, base_dir))
        lost = [*_foreign_imports(original, result)]  # and calls: my::Identity need not be an Identity
        for name, count in sorted((_calls(original.graph) - _calls(result.graph)).items()):
            calls = f"it removed {count} call{'s' * (count > 1)}"
            lost.append(f"{calls} of {name}, which is not an operator of ONNX")
    else:
        lost = []
        old, new, kept = original.graph, result.graph, unchanged.graph
        _fill(graph, "node", _untouched(old.node, new.node, kept.node, lambda node: tuple(node.output)))
        weights = _untouched(old.initializer, new.initializer, kept.initializer, lambda tensor: tensor.name)
        _fill(graph, "initializer", weights)
        # Weights of the original that nodes read, and that the tool moved into their subgraphs.
        missing = _captures(graph) - walk.defined(graph)
        graph.initializer.extend(tensor for tensor in old.initializer if tensor.name in missing)
        inputs = {info.name for info in new.input}
        inputs.update(tensor.values.name for tensor in new.sparse_initializer)
        if not _captures(graph) <= {"", *walk.defined(graph), *inputs}:  # a node reads what the tool moved
            _fill(graph, "node", new.node)
            _fill(graph, "initializer", new.initializer)
        _take_changes(merged, result, unchanged)
        _take_changes(graph, result.graph, unchanged.graph)
    if merged.ir_version < 4:  # each weight must be an input too
        known = {tensor.name for tensor in original.graph.initializer}
        added = [tensor for tensor in graph.initializer if tensor.name not in known]
        constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in added]
        _fill(graph, "node", [*constants, *graph.node])
        _fill(graph, "initializer", [tensor for tensor in graph.initializer if tensor.name in known])
    _fill(graph, "sparse_initializer", result.graph.sparse_initializer)
    lost += _adopt_interface(graph, original.graph, result.graph, unchanged)
    named = _named_outside(merged)
    defined = walk.defined(graph)
    graph.initializer.extend(
        tensor for tensor in original.graph.initializer if tensor.name in named and tensor.name not in defined
    )
    removed = walk.defined(original.graph) - walk.defined(graph)
    declared = {info.name for info in (original if unchanged is None else result).graph.value_info} - removed
    _fill(graph, "value_info", [info for info in result.graph.value_info if info.name in declared])
    return merged, [
        *lost,
        *(f"{named[name]} names {name!r}, which was removed" for name in named if name in removed),
    ]


def _same(first: Any, second: Any) -> bool:
    """Whether two messages are equal field by field, to the bit."""
    return bool(first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True))


def _take_changes(merged: Any, result: Any, unchanged: Any) -> None:
    """Set what a script changed of a model, or of its graph, beside the contents and the interface."""
    for name in {field.name for field, _ in [*result.ListFields(), *unchanged.ListFields()]} - _APART:
        now = getattr(result, name)
        if now != getattr(unchanged, name):
            merged.ClearField(name)
            merged.MergeFrom(type(merged)(**{name: now}))


def _fill(message: Any, name: str, items: Iterable[Any]) -> None:
    """Set a repeated field to copies of these messages."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    message.ClearField(name)
    getattr(message, name).extend(copies)


def _untouched(
    original: Iterable[T], result: Iterable[T], unchanged: Iterable[T], key: Callable[[T], object]
) -> Iterator[T]:
    """The result's items; those that the script left alone as the original has them."""
    old, kept = ({key(item): item for item in items} for items in (original, unchanged))
    for item in result:
        twin = kept.get(key(item))
        yield old.get(key(item), item) if twin is not None and _same(twin, item) else item


def _bare(node: NodeProto) -> tuple[bytes, list[bytes]]:
    """A node without its name and description, and its attributes in one order."""
    attributes = sorted(one.SerializeToString(deterministic=True) for one in node.attribute)
    return serialize_without(node, "name", "doc_string", "metadata_props", "attribute"), attributes


def _captures(graph: GraphProto) -> set[str]:
    """What nodes read of the graph itself, from within their subgraphs too."""
    return {name for node in graph.node for name in walk.captures(node)}


def _stored(original: GraphProto, result: GraphProto, base_dir: Path) -> Iterator[TensorProto]:
    """The result's weights; external data stay where they are."""
    outside = {tensor.name: tensor for tensor in original.initializer if tensors.is_external(tensor)}
    for tensor in result.initializer:
        old = outside.get(tensor.name)
        if old is None or (old.data_type, old.dims) != (tensor.data_type, tensor.dims):
            yield tensor
        else:
            yield old if tensors.embedded(old, base_dir).raw_data == tensor.raw_data else tensor


def _in_old_order(nodes: Iterable[NodeProto], original: Iterable[NodeProto]) -> list[NodeProto]:
    """The nodes in their old order, as far as dependencies allow; a new one stays behind its neighbor.

    onnxsim returns Constant nodes in another order each time, and a second run must give the same bytes.
    """
    found = list(nodes)
    places = {tuple(node.output): place for place, node in enumerate(original)}
    rank, last = [], -1
    for node in found:
        last = places.get(tuple(node.output), last)
        rank.append(last)
    return [found[number] for number in walk.order(found, rank)]


def _adopt_interface(
    graph: GraphProto, original: GraphProto, result: GraphProto, unchanged: ModelProto | None
) -> list[str]:
    """Set inputs and outputs: declared as in the original, unless a script changed them. Returns what is lost.

    Tools drop inputs that nothing reads, and inputs whose default they built in.
    """
    kept = unchanged.graph if unchanged is not None else None
    outputs = kept.output if kept is not None else ()
    _fill(graph, "output", _declared(original.output, result.output, outputs))
    inputs = _declared(original.input, result.input, kept.input if kept is not None else ())
    ours, meant = (
        {info.name for info in inputs},
        {info.name for info in kept.input} if kept is not None else set(),
    )
    back = [info for info in original.input if info.name not in ours | meant]
    if back:
        order = {info.name: place for place, info in enumerate(original.input)}
        inputs = sorted([*inputs, *back], key=lambda info: order.get(info.name, len(order)))
    _fill(graph, "input", inputs)
    defaults = {tensor.name: tensor for tensor in original.initializer}
    held = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(
        defaults[info.name] for info in back if info.name in defaults and info.name not in held
    )
    return [*_baked(original, result, sorted(info.name for info in back))]


def _declared(
    original: Iterable[ValueInfoProto], result: Iterable[ValueInfoProto], unchanged: Iterable[ValueInfoProto]
) -> list[ValueInfoProto]:
    """Inputs or outputs in the result's order. One of the original's name is declared as there, unless the script
    changed it: a tool drops names of dimensions, and descriptions."""
    old, kept = ({info.name: info for info in infos} for infos in (original, unchanged))
    return [
        old[info.name] if info.name in old and (not kept or _same(kept.get(info.name, info), info)) else info
        for info in result
    ]


def _baked(original: GraphProto, result: GraphProto, back: Iterable[str]) -> Iterator[str]:
    """The dropped inputs that cannot be restored."""
    computed = {name for node in result.node for name in node.output}
    defaults = {tensor.name for tensor in original.initializer}
    before, after = _reads(original), _reads(result)
    for name in back:
        if name in computed:
            yield f"input {name!r} is computed instead of given"
        elif name in defaults and name in before and name not in after:
            yield f"the default of input {name!r} was built in, so that a caller's value would be ignored"


def _reads(graph: GraphProto) -> set[str]:
    found = {info.name for info in graph.output}
    return found.union(*(walk.reads(node) for node in graph.node))


def _foreign_imports(original: ModelProto, result: ModelProto) -> Iterator[str]:
    """Operator sets that the tool changed the version of, or added."""
    old = {entry.domain or "ai.onnx": entry.version for entry in original.opset_import}
    new = {entry.domain or "ai.onnx": entry.version for entry in result.opset_import}
    used = {node.domain or "ai.onnx" for node in result.graph.node}
    for domain, version in new.items():
        if domain in old and old[domain] != version:
            yield f"it wrote operator set {version} of {domain} instead of {old[domain]}"
        elif domain not in old and domain in used:
            yield f"it uses operators of {domain}, which the model does not import"


def _calls(graph: GraphProto) -> Counter[str]:
    """How often live nodes of the main graph call operators outside of ONNX's own domain."""
    makers = {name: node for node in graph.node for name in node.output if name}
    needed = walk.ancestors(makers, [info.name for info in graph.output])
    live = {id(makers[name]): makers[name] for name in needed if name in makers}
    foreign = (node for node in live.values() if node.domain not in ("", "ai.onnx"))
    return Counter(f"{node.domain}::{node.op_type}" for node in foreign)


def _named_outside(model: ModelProto) -> dict[str, str]:
    """Values that are named outside of the graph's body, and by what."""
    annotation, training = "a quantization annotation", "training information"
    named = {entry.tensor_name: annotation for entry in model.graph.quantization_annotation}
    for one in model.graph.quantization_annotation:
        named.update((entry.value, annotation) for entry in one.quant_parameter_tensor_names)
    for info in model.training_info:
        for binding in (*info.initialization_binding, *info.update_binding):
            named[binding.key] = training
    return named
