"""Restoring what a tool lost of a model from the original, and naming what cannot be restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxfix import walk
from onnxfix.pipeline.whole import merge

_BODY = ("node", "initializer", "sparse_initializer", "value_info", "input", "output")


def restore(
    original: ModelProto, result: ModelProto, faithful: ModelProto | None, base_dir: Path | None
) -> tuple[ModelProto, list[str]]:
    """``result`` with what the tool lost restored from ``original``, and what cannot be restored, one line each.

    ``faithful`` is the original as the tool writes it unchanged (see ``merge``); None for a tool that does not carry
    out edits of the user's. ``base_dir`` has the original's external data.
    """
    merged = ModelProto()
    merged.CopyFrom(original)
    if faithful is not None:
        _adopt(merged, result, faithful, ("graph", "functions"))
        _adopt(merged.graph, result.graph, faithful.graph, _BODY)
    _restore_functions(merged, original, result, faithful, base_dir)
    named = _named(merged)
    graph = faithful.graph if faithful is not None else None
    lost = _restore_graph(merged.graph, original.graph, result.graph, graph, base_dir, set(named))
    if faithful is None:
        lost += [*_foreign_imports(original, result), *_lost_calls(original.graph, result.graph)]
    if merged.ir_version < 4:
        _as_nodes(merged.graph, {tensor.name for tensor in original.graph.initializer})
    removed = walk.defined(original.graph) - walk.defined(merged.graph)
    return merged, [
        *lost,
        *(f"{named[name]} names {name!r}, which was removed" for name in named if name in removed),
    ]


def _adopt(merged: Any, result: Any, faithful: Any, skip: Iterable[str]) -> None:
    """Set the fields of ``merged`` in which ``result`` differs from ``faithful``: these changes were intended."""
    for field in merged.DESCRIPTOR.fields:
        name = field.name
        new = getattr(result, name)
        if name in skip or new == getattr(faithful, name):
            continue
        merged.ClearField(name)
        if hasattr(new, "extend"):
            getattr(merged, name).extend(new)
        elif hasattr(new, "CopyFrom"):
            getattr(merged, name).CopyFrom(new)
        else:
            setattr(merged, name, new)


def _restore_graph(
    merged: GraphProto,
    original: GraphProto,
    result: GraphProto,
    faithful: GraphProto | None,
    base_dir: Path | None,
    named: set[str],
) -> list[str]:
    """Fill in the lists of the main graph; returns what is lost. Weights in ``named`` are kept, read or not."""
    inputs, back, lost = _inputs(original, result, faithful)
    outputs = faithful.output if faithful is not None else None
    merge.fill(merged, "output", [*merge.declarations(original.output, result.output, outputs)])
    merge.fill(merged, "node", merge.graph_nodes(original, result, faithful, base_dir))
    merge.fill(merged, "sparse_initializer", merge.sparse(original, result, faithful))
    weights = merge.initializers(original, result, faithful, base_dir)
    defined = {name for node in merged.node for name in node.output} | {tensor.name for tensor in weights}
    missing = (back | named) - defined
    weights += [tensor for tensor in original.initializer if tensor.name in missing]
    merge.fill(merged, "initializer", weights)
    merge.fill(merged, "input", inputs)
    removed = walk.defined(original) - walk.defined(merged)
    merge.fill(merged, "value_info", merge.value_infos(original, result, faithful, removed))
    return lost


def _inputs(
    original: GraphProto, result: GraphProto, faithful: GraphProto | None
) -> tuple[list[ValueInfoProto], set[str], list[str]]:
    """The graph's inputs, the names of those that the tool had dropped, and what is lost.

    Tools drop inputs that nothing reads, and turn inputs with a default into constants. The former are restored; the
    latter where the initializer still exists, so that a caller's value still has an effect.
    """
    kept = faithful.input if faithful is not None else None
    declared = {info.name: info for info in merge.declarations(original.input, result.input, kept)}
    meant = {info.name for info in kept or ()}  # the tool keeps these, so that the user removed them
    back = {i.name for i in original.input if i.name not in declared and i.name not in meant}
    lost = [*_baked(original, result, back)]
    first = [i.name for i in original.input if i.name in declared or i.name in back]
    common = [name for name in first if name in declared]
    if [name for name in declared if name in common] != common:  # the order was changed on purpose
        first = list(declared) + [name for name in first if name in back]
    old = {info.name: info for info in original.input}
    names = first + [name for name in declared if name not in first]
    return [declared[name] if name in declared else old[name] for name in names], back, lost


def _baked(original: GraphProto, result: GraphProto, back: set[str]) -> Iterator[str]:
    """The dropped inputs that cannot be restored."""
    computed = {name for node in result.node for name in node.output}
    defaults = {tensor.name for tensor in original.initializer}
    before, after = _reads(original), _reads(result)
    for name in sorted(back):
        if name in computed:
            yield f"input {name!r} is computed instead of given"
        elif name in defaults and before[name] and not after[name]:
            yield f"the default of input {name!r} was built in, so that a caller's value would be ignored"


def _reads(graph: GraphProto) -> Counter[str]:
    """How often each name is read, in subgraphs too."""
    found: Counter[str] = Counter(info.name for info in graph.output)
    for node in graph.node:
        found.update(walk.reads(node))
    return found


def _restore_functions(
    merged: ModelProto,
    original: ModelProto,
    result: ModelProto,
    faithful: ModelProto | None,
    base_dir: Path | None,
) -> None:
    """Restore local functions, except for those that were changed on purpose."""
    if faithful is None:
        return
    new, kept = _by_name(result.functions), _by_name(faithful.functions)
    functions = []
    for key, before in _by_name(original.functions).items():
        now, twin = new.pop(key, None), kept.get(key)
        if now is None:
            if twin is None:
                functions.append(before)
        elif twin is not None and merge.same(twin, now):
            functions.append(before)
        else:
            functions.append(_function(before, now, twin, base_dir))
    functions += new.values()
    copies = [_copied(function) for function in functions]
    del merged.functions[:]
    merged.functions.extend(copies)


def _copied(function: FunctionProto) -> FunctionProto:
    copy = FunctionProto()
    copy.CopyFrom(function)
    return copy


def _by_name(functions: Iterable[FunctionProto]) -> dict[tuple[str, str, int], FunctionProto]:
    """Functions by domain, name and a number: not every tool distinguishes overloads."""
    count: Counter[tuple[str, str]] = Counter()
    found = {}
    for function in functions:
        name = (function.domain, function.name)
        found[(*name, count[name])] = function
        count[name] += 1
    return found


def _function(
    before: FunctionProto, now: FunctionProto, twin: FunctionProto | None, base_dir: Path | None
) -> FunctionProto:
    if twin is None:
        return now
    merged = _copied(before)
    _adopt(merged, now, twin, ("node",))
    copies = [_as_node(node) for node in merge.graph_nodes(before, now, twin, base_dir)]
    del merged.node[:]
    merged.node.extend(copies)
    return merged


def _as_node(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


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


def _lost_calls(original: GraphProto, result: GraphProto) -> Iterator[str]:
    """Calls of functions and of other domains' operators that were removed: not every tool checks the domain, and
    my::Identity need not be an Identity."""
    before, after = _calls(original), _calls(result)
    for name, count in sorted((before - after).items()):
        yield f"it removed {count} call{'s' * (count > 1)} of {name}, which is not an operator of ONNX"


def _calls(graph: GraphProto) -> Counter[str]:
    """How often live nodes of the main graph call operators outside of ONNX's own domain."""
    makers = {name: node for node in graph.node for name in node.output if name}
    needed = walk.ancestors(makers, [info.name for info in graph.output])
    live = {id(makers[name]): makers[name] for name in needed if name in makers}
    foreign = (node for node in live.values() if node.domain not in ("", "ai.onnx"))
    return Counter(f"{node.domain}::{node.op_type}" for node in foreign)


def _as_nodes(graph: GraphProto, known: set[str]) -> None:
    """Turn new weights into Constant nodes: before IR version 4 a weight must be an input as well."""
    inputs = {info.name for info in graph.input}
    new = [tensor for tensor in graph.initializer if tensor.name not in inputs | known]
    nodes = [_constant(tensor) for tensor in new]
    nodes += [_as_node(node) for node in graph.node]
    weights: list[TensorProto] = [t for t in graph.initializer if t.name in inputs | known]
    merge.fill(graph, "initializer", weights)
    merge.fill(graph, "node", nodes)


def _constant(tensor: TensorProto) -> NodeProto:
    node = NodeProto(op_type="Constant", output=[tensor.name])
    attribute = node.attribute.add()
    attribute.name, attribute.type = "value", AttributeProto.TENSOR
    attribute.t.CopyFrom(tensor)
    return node


def _named(model: ModelProto) -> dict[str, str]:
    """Values that are named outside of the graph's body, and by what."""
    annotation, training = "a quantization annotation", "training information"
    named = {entry.tensor_name: annotation for entry in model.graph.quantization_annotation}
    for one in model.graph.quantization_annotation:
        named.update((entry.value, annotation) for entry in one.quant_parameter_tensor_names)
    for info in model.training_info:
        for binding in (*info.initialization_binding, *info.update_binding):
            named[binding.key] = training
    return named
