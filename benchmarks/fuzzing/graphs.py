"""Damage to a model's graph: inputs, outputs, nodes, initializers, types, shapes, attributes and subgraphs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper

Mutator = Callable[[random.Random, ModelProto], None]

NAMES = (
    "", " ", "x", "y", "\0", "\x1b[31mred", "a\nb", "\u202eabc", "\U0001f984", "../../etc/passwd", "%s{0}$(x)",
    "n" * 5000, "[bold]", "<script>", '"', "a/b", "e\u0301", "\u2028", "::", "0", "-1",
)  # fmt: skip
INTEGERS = (0, 1, -1, 2, 7, 64, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
DIMENSIONS = (0, 1, 2, 3, -1, -5, 65536, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
TYPES = (*TensorProto.DataType.values(), 24, 27, 99, 2**31 - 1, -1)
FLOATS = (0.0, -0.0, 1.5, -1.0, float("nan"), float("inf"), float("-inf"), 1e-45, 3.4e38)


def graphs_of(graph: GraphProto, depth: int = 0) -> Iterator[GraphProto]:
    """A graph and those in its nodes' attributes."""
    yield graph
    for node in graph.node if depth < 20 else ():
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from graphs_of(inner, depth + 1)


def bodies(model: ModelProto) -> list[Any]:
    """All that has nodes: graphs and functions."""
    return [*graphs_of(model.graph), *model.functions]


def some_graph(generator: random.Random, model: ModelProto) -> GraphProto:
    return generator.choice(list(graphs_of(model.graph)))


def some_node(generator: random.Random, model: ModelProto) -> NodeProto:
    """A node anywhere; one that is added where there is none."""
    nodes = [node for body in bodies(model) for node in body.node]
    return generator.choice(nodes) if nodes else model.graph.node.add(op_type="Identity")


def some_name(generator: random.Random, model: ModelProto) -> str:
    """A value's name in the model, or an odd one."""
    names = [name for body in bodies(model) for node in body.node for name in (*node.input, *node.output)]
    names += [one.name for one in (*model.graph.input, *model.graph.initializer)]
    return generator.choice(names) if names and generator.random() < 0.7 else generator.choice(NAMES)


def values_of(graph: GraphProto) -> list[Any]:
    return [*graph.input, *graph.output, *graph.value_info]


def some_tensor_type(generator: random.Random, model: ModelProto) -> TypeProto.Tensor:
    """The tensor type of a declared value; ``other`` kinds are entered."""
    declared = [value for graph in graphs_of(model.graph) for value in values_of(graph)]
    kind = (generator.choice(declared) if declared else model.graph.input.add(name="new")).type
    for _ in range(10):
        which = kind.WhichOneof("value")
        if which in (None, "tensor_type"):
            return kind.tensor_type
        if which == "sparse_tensor_type":
            return kind.sparse_tensor_type
        inner = getattr(kind, which)
        kind = inner.value_type if hasattr(inner, "value_type") else inner.elem_type
    return kind.tensor_type


def lists_of(graph: GraphProto) -> list[Any]:
    fields = ("node", "input", "output", "initializer", "value_info", "sparse_initializer")
    return [found for found in (getattr(graph, name) for name in fields) if len(found)]


# Whole parts


def drop(generator: random.Random, model: ModelProto) -> None:
    """An input, output, node, initializer or declaration is missing."""
    lists = lists_of(some_graph(generator, model))
    if lists:
        chosen = generator.choice(lists)
        del chosen[generator.randrange(len(chosen))]


def duplicate(generator: random.Random, model: ModelProto) -> None:
    """One of them comes twice or thrice, under the same name."""
    lists = lists_of(some_graph(generator, model))
    if lists:
        chosen = generator.choice(lists)
        for _ in range(generator.choice((1, 2))):
            chosen.add().CopyFrom(generator.choice(chosen))


def reorder(generator: random.Random, model: ModelProto) -> None:
    """They are in another order: nodes before what they read."""
    lists = lists_of(some_graph(generator, model))
    if lists:
        chosen = generator.choice(lists)
        shuffled = list(chosen)
        generator.shuffle(shuffled)
        copies = [type(one).FromString(one.SerializeToString()) for one in shuffled]
        del chosen[:]
        chosen.extend(copies)


def rename(generator: random.Random, model: ModelProto) -> None:
    """One of them has another name, and nobody else knows."""
    chosen = generator.choice(lists_of(some_graph(generator, model)) or [[model.graph]])
    one = generator.choice(chosen)
    name = some_name(generator, model)
    if isinstance(one, NodeProto) and generator.random() < 0.6:
        one.op_type = generator.choice(
            (name, "Identity", "Cast", "Reshape", "If", "Loop", "Concat", "Constant")
        )
    elif hasattr(one, "name"):
        one.name = name


def rename_everywhere(generator: random.Random, model: ModelProto) -> None:
    """A value has an odd name, consistently."""
    old, new = some_name(generator, model), generator.choice(NAMES)
    for body in bodies(model):
        for node in body.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
        if isinstance(body, GraphProto):
            for one in (*values_of(body), *body.initializer):
                one.name = new if one.name == old else one.name


def empty_graph(generator: random.Random, model: ModelProto) -> None:
    """A graph without nodes, inputs or outputs, or none at all."""
    graph = some_graph(generator, model)
    generator.choice(
        (
            lambda: graph.ClearField("node"),
            lambda: graph.ClearField("output"),
            lambda: graph.ClearField("input"),
            graph.Clear,
            lambda: model.ClearField("graph"),
        )
    )()


def many(generator: random.Random, model: ModelProto) -> None:
    """Very many parts of one kind."""
    graph = some_graph(generator, model)
    count = generator.choice((300, 3000))
    for place in range(count):
        generator.choice(
            (
                lambda place=place: graph.node.add(
                    op_type="Neg", input=[f"m{place}"], output=[f"m{place + 1}"]
                ),
                lambda place=place: graph.value_info.add(name=f"v{place}"),
                lambda place=place: graph.initializer.add(name=f"i{place}", data_type=1),
            )
        )()


# Nodes


def rewire(generator: random.Random, model: ModelProto) -> None:
    """A node reads another value, its own output among them, or writes one that another writes."""
    node = some_node(generator, model)
    names = generator.choice((node.input, node.output))
    name = some_name(generator, model)
    if names and generator.random() < 0.8:
        names[generator.randrange(len(names))] = name
    else:
        names.append(name)


def arity(generator: random.Random, model: ModelProto) -> None:
    """A node has too few or too many inputs or outputs."""
    node = some_node(generator, model)
    names = generator.choice((node.input, node.output))
    names[:] = generator.choice(
        ([], list(names)[:-1], [*names, ""], [*names, *names], ["", *names], [""] * 3)
    )


def domain(generator: random.Random, model: ModelProto) -> None:
    """A node is another domain's."""
    some_node(generator, model).domain = generator.choice(
        ("", "ai.onnx", "com.microsoft", "ai.onnx.ml", "own", "trt.plugins", *NAMES[:8])
    )


def bypass(generator: random.Random, model: ModelProto) -> None:
    """A graph's input, or an initializer, is its output."""
    graph = some_graph(generator, model)
    sources = [*graph.input, *graph.initializer]
    if sources and graph.output:
        generator.choice(graph.output).name = generator.choice(sources).name


# Types and shapes


def element_type(generator: random.Random, model: ModelProto) -> None:
    some_tensor_type(generator, model).elem_type = generator.choice(TYPES)


def dimension(generator: random.Random, model: ModelProto) -> None:
    """A dimension of another size, or another symbol."""
    shape = some_tensor_type(generator, model).shape
    one = generator.choice(shape.dim) if shape.dim else shape.dim.add()
    if generator.random() < 0.5:
        one.dim_value = generator.choice(DIMENSIONS)
    elif generator.random() < 0.7:
        one.dim_param = generator.choice((*NAMES, "N", "N+1", "2*N", "floor(N/0)", "N" * 200, "N-" * 300))
    else:
        one.Clear()


def rank(generator: random.Random, model: ModelProto) -> None:
    """More or fewer dimensions, or none that are known."""
    tensor = some_tensor_type(generator, model)
    if generator.random() < 0.3:
        tensor.ClearField("shape")
    elif generator.random() < 0.5 and tensor.shape.dim:
        del tensor.shape.dim[generator.randrange(len(tensor.shape.dim))]
    else:
        for _ in range(generator.choice((1, 3, 9, 70))):
            tensor.shape.dim.add(dim_value=generator.choice((1, 2, 3)))


def other_type(generator: random.Random, model: ModelProto) -> None:
    """A value is declared as a sequence, an optional, a map, an opaque thing, or nothing."""
    declared = [value for graph in graphs_of(model.graph) for value in values_of(graph)]
    kind = (generator.choice(declared) if declared else model.graph.output.add(name="new")).type
    tensor = helper.make_tensor_type_proto(generator.choice(TYPES[:16]), ["N", 2])
    new = generator.choice(
        (
            helper.make_sequence_type_proto(tensor),
            helper.make_optional_type_proto(tensor),
            helper.make_optional_type_proto(helper.make_sequence_type_proto(tensor)),
            helper.make_map_type_proto(generator.choice((7, 8, 1, 99)), tensor),
            helper.make_sparse_tensor_type_proto(1, [2, "N"]),
            TypeProto(sequence_type=TypeProto.Sequence()),
            TypeProto(),
            TypeProto(denotation="IMAGE"),
        )
    )
    kind.CopyFrom(new)


MUTATORS: tuple[Mutator, ...] = (
    drop, duplicate, reorder, rename, rename_everywhere, empty_graph, many, rewire, rewire, arity, domain, bypass,
    element_type, dimension, dimension, rank, other_type,
)  # fmt: skip
