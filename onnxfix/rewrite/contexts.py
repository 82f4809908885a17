"""The surroundings in which ``onnxfix.testing`` repeats every example: what holds of a graph holds wherever it stands.

Each function returns a changed copy of a model, which need not be one that a backend can run: only rules see it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, MutableSequence, Sequence, Set
from typing import TypeAlias

from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    helper,
)

from onnxfix.files import walk

DOMAIN = "onnxfix.context"
"""The domain of what the surroundings add. No rule knows an operator of it."""
Operator: TypeAlias = tuple[str, str]
"""Domain, which is empty for ONNX's own, and name."""
Change: TypeAlias = Callable[[str], str]
MARK = "context"
"""Part of every name that the surroundings add."""
OPAQUE = "TRT_Shuffle"
"""The operator in ``DOMAIN`` of which rules know nothing: TensorRT's own, so that none reports it as unsupported."""


def renamed(proto: ModelProto) -> ModelProto:
    """The model with other names for all but the graph's inputs and outputs, and what training names."""
    copy = walk.copied(proto)
    kept = {info.name for info in (*copy.graph.input, *copy.graph.output)}
    for training in copy.training_info:
        for graph in (training.initialization, training.algorithm):
            kept |= {name for node in walk.nodes(graph.node) for name in node.input}
        kept |= {e.key for e in (*training.initialization_binding, *training.update_binding)}
    numbers = itertools.count(99_999, -1)  # each name before the last one in the alphabet

    def anew(_: str) -> str:
        return f"_{next(numbers)}_{MARK}"

    _rename(copy.graph, lambda name: name if name in kept else anew(name), anew)
    for function in copy.functions:
        _rename(function, anew, anew)
    names: dict[str, str] = {}
    for node in walk.model_nodes(copy):
        if node.name:  # equal names stay equal
            node.name = names.setdefault(node.name, anew(node.name))
    return copy


def in_branch(proto: ModelProto, *, captured: bool = False) -> ModelProto:
    """The graph as a branch of an If, which captures the graph's inputs; the other branch is an unknown operator.

    ``captured``: the initializers stay outside, too.
    """
    copy = walk.copied(proto)
    graph, branch = GraphProto(), copy.graph
    graph.name = branch.name
    inputs = {info.name for info in branch.input}
    outputs = [info.name for info in branch.output]
    graph.input.extend(branch.input)
    graph.output.extend(branch.output)
    outside = {*inputs, *(tensor.name for tensor in branch.initializer if captured)} - (set(outputs) - inputs)
    graph.initializer.extend(tensor for tensor in branch.initializer if tensor.name in outside)
    inner = [tensor for tensor in branch.initializer if tensor.name not in outside]
    del branch.input[:], branch.initializer[:]
    branch.initializer.extend(inner)
    other = GraphProto(name="other", output=branch.output)
    changed = {name: f"{name}_{MARK}" for name in set(outputs) - inputs}
    _rename(branch, lambda name: changed.get(name, name), lambda name: name)
    for info in other.output:
        info.name = f"{info.name}_other_{MARK}"
    other.node.add(op_type=OPAQUE, domain=DOMAIN, output=[info.name for info in other.output])
    graph.input.append(helper.make_tensor_value_info(f"condition_{MARK}", TensorProto.BOOL, []))
    node = graph.node.add(op_type="If", input=[f"condition_{MARK}"], output=_outside(outputs, inputs))
    node.attribute.append(helper.make_attribute("then_branch", branch))
    node.attribute.append(helper.make_attribute("else_branch", other))
    for info, name in zip(graph.output, node.output, strict=True):
        info.name = name
    copy.graph.CopyFrom(graph)
    _import(copy.opset_import)
    return copy


def not_captured(proto: ModelProto) -> ModelProto:
    """A model of ``in_branch`` with its initializers inside the branch."""
    copy = walk.copied(proto)
    graph = copy.graph
    inputs = {info.name for info in graph.input}
    branch = next(a.g for node in graph.node for a in node.attribute if node.input[0] == f"condition_{MARK}")
    moved = [tensor for tensor in graph.initializer if tensor.name not in inputs]
    kept = [tensor for tensor in graph.initializer if tensor.name in inputs]
    branch.initializer.extend(moved)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return copy


def in_function(proto: ModelProto) -> ModelProto:
    """The graph as the body of a local function that is called once. Its initializers become Constant nodes.

    Boolean inputs go through an unknown operator. One that an If reads may be a weight where the function is called,
    and then only one of the branches is imported.
    """
    copy = walk.copied(proto)
    graph, body = GraphProto(), copy.graph
    graph.name = body.name
    graph.input.extend(body.input)
    graph.output.extend(body.output)
    inputs = [info.name for info in body.input]
    graph.initializer.extend(tensor for tensor in body.initializer if tensor.name in inputs)
    outputs = [info.name for info in body.output]
    outer = _outside(outputs, set(inputs))
    for info, name in zip(graph.output, outer, strict=True):
        info.name = name
    function = copy.functions.add(name="Body", domain=DOMAIN)
    function.opset_import.extend(copy.opset_import)
    _import(function.opset_import)
    conditions = [i.name for i in body.input if i.type.tensor_type.elem_type == TensorProto.BOOL]
    function.input.extend(f"{name}_{MARK}" if name in conditions else name for name in inputs)
    function.output.extend(outputs)
    read = {name for node in walk.nodes(body.node) for name in node.input}
    for name in sorted(read.intersection(conditions)):
        function.node.add(op_type=OPAQUE, domain=DOMAIN, input=[f"{name}_{MARK}"], output=[name])
    function.node.extend(_constants(body, set(inputs)))
    function.node.extend(body.node)
    graph.node.add(op_type="Body", domain=DOMAIN, input=inputs, output=outer)
    copy.graph.CopyFrom(graph)
    _import(copy.opset_import)
    return copy


def of_unknown_inputs(proto: ModelProto) -> ModelProto:
    """The graph behind operators that nobody knows: what rules see of a function's inputs.

    Its initializers become Constant nodes, as in a function. ``of_known_inputs`` is the way back.
    """
    copy = walk.copied(proto)
    graph = copy.graph
    constants = _constants(graph, {info.name for info in graph.input})
    nodes = [*constants, *graph.node]
    defaults = [t for t in graph.initializer if t.name in {info.name for info in graph.input}]
    del graph.node[:], graph.initializer[:], graph.sparse_initializer[:]
    for info in graph.input:
        outside = f"{info.name}_{MARK}"
        for tensor in defaults:
            if tensor.name == info.name:
                tensor.name = outside
        graph.node.add(op_type=OPAQUE, domain=DOMAIN, input=[outside], output=[info.name])
        info.name = outside
    graph.initializer.extend(defaults)
    graph.node.extend(nodes)
    _import(copy.opset_import)
    return copy


def of_known_inputs(proto: ModelProto) -> ModelProto:
    """What ``of_unknown_inputs`` was made of."""
    copy = walk.copied(proto)
    graph = copy.graph
    added = {info.name for info in graph.input}
    nodes = [n for n in graph.node if not (n.domain == DOMAIN and added.issuperset(n.input))]
    del graph.node[:]
    graph.node.extend(nodes)
    for info in graph.input:
        info.name = info.name.removesuffix(f"_{MARK}")
    for tensor in graph.initializer:
        if tensor.name in added:
            tensor.name = tensor.name.removesuffix(f"_{MARK}")
    return copy


def with_foreign(
    proto: ModelProto, nodes: Sequence[int], other: Operator, *, body: bool = True
) -> ModelProto:
    """With calls of a local function ``other`` for these nodes (by their index in ``operators``).

    Its body is an unknown operator. Without ``body`` there is no function, so that ``other`` is unknown itself.
    """
    copy = walk.copied(proto)
    called = [node for index, node in enumerate(walk.model_nodes(copy)) if index in nodes]
    for node in called:
        node.domain, node.op_type = other
    if body:
        function = copy.functions.add(domain=other[0], name=other[1])
        function.input.extend(f"i{k}" for k in range(max(len(node.input) for node in called)))
        function.output.extend(f"o{k}" for k in range(max(len(node.output) for node in called)))
        function.attribute.extend(sorted({a.name for node in called for a in node.attribute}))
        function.node.add(op_type=OPAQUE, domain=DOMAIN, input=function.input, output=function.output)
    for imports in (copy.opset_import, *(one.opset_import for one in copy.functions)):
        _import(imports)
        if other[0]:
            _import(imports, other[0])
    return copy


def operators(proto: ModelProto) -> list[Operator]:
    """The operators of all nodes, at any depth."""
    return [(walk.domain_of(node.domain), node.op_type) for node in walk.model_nodes(proto)]


def _import(imports: MutableSequence[OperatorSetIdProto], domain: str = DOMAIN) -> None:
    if not any(entry.domain == domain for entry in imports):
        imports.append(helper.make_opsetid(domain, 1))


def _outside(outputs: list[str], inputs: Set[str]) -> list[str]:
    """Names for the outputs outside: their own, unless the graph returns an input."""
    return [f"{name}_{MARK}" if name in inputs else name for name in outputs]


def _constants(graph: GraphProto, inputs: set[str]) -> list[NodeProto]:
    found = []
    for tensor in graph.initializer:
        if tensor.name not in inputs:
            value = helper.make_attribute("value", tensor)
            found.append(NodeProto(op_type="Constant", output=[tensor.name], attribute=[value]))
    for sparse in graph.sparse_initializer:
        value = helper.make_attribute("sparse_value", sparse)
        found.append(NodeProto(op_type="Constant", output=[sparse.values.name], attribute=[value]))
    return found


def _rename(
    graph: GraphProto | FunctionProto,
    change: Change,
    inside: Change,
    outer: Mapping[str, str] | None = None,
) -> None:
    """Rename what ``graph`` defines by ``change``, and what the graphs in it define by ``inside``."""
    own: list[str] = []
    if isinstance(graph, GraphProto):
        own += [info.name for info in graph.input] + [tensor.name for tensor in graph.initializer]
        own += [sparse.values.name for sparse in graph.sparse_initializer]
    else:
        own += graph.input
    own += [name for node in graph.node for name in node.output if name]
    names = {**(outer or {}), **{name: change(name) for name in dict.fromkeys(own)}}
    for sub in rename_own(graph, lambda name: names.get(name, name)):
        _rename(sub, inside, inside, names)


def rename_own(graph: GraphProto | FunctionProto, new: Change) -> list[GraphProto]:
    """Rename all values that a graph has, but not those of the graphs in its nodes, which are returned."""
    if isinstance(graph, GraphProto):
        for info in (*graph.input, *graph.output):
            info.name = new(info.name)
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            tensor.name = new(tensor.name)
        for annotation in graph.quantization_annotation:
            annotation.tensor_name = new(annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                entry.value = new(entry.value)
    else:
        graph.input[:] = map(new, graph.input)
        graph.output[:] = map(new, graph.output)
    for info in graph.value_info:
        info.name = new(info.name)
    for node in graph.node:
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
    return [sub for node in graph.node for sub in walk.subgraphs(node)]
