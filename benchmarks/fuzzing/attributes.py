"""Damage to attributes, and to the graphs in them."""

from __future__ import annotations

import random
from collections.abc import Callable

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from fuzzing.graphs import FLOATS, INTEGERS, NAMES, Mutator, bodies, some_graph, some_name, some_node

KINDS = dict(AttributeProto.AttributeType.items())
CONTENT = {
    "FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "SPARSE_TENSOR": "sparse_tensor",
    "TYPE_PROTO": "tp", "FLOATS": "floats", "INTS": "ints", "STRINGS": "strings", "TENSORS": "tensors",
    "GRAPHS": "graphs", "SPARSE_TENSORS": "sparse_tensors", "TYPE_PROTOS": "type_protos",
}  # fmt: skip
"""The field of an attribute that a kind is about."""
KNOWN = (
    "axis", "axes", "perm", "to", "value", "value_int", "value_ints", "value_strings", "pads", "strides", "mode",
    "kernel_shape", "body", "then_branch", "allowzero", "keepdims", "epsilon", "alpha", "shape", "equation", "group",
    "num_scan_inputs", "saturate", "block_size", "dilations", "sparse_value", "num_outputs", "split", "dtype",
)  # fmt: skip


def some_attribute(generator: random.Random, model: ModelProto) -> AttributeProto:
    """An attribute anywhere; one that is added where there is none."""
    found = [one for body in bodies(model) for node in body.node for one in node.attribute]
    if found and generator.random() < 0.9:
        return generator.choice(found)
    return some_node(generator, model).attribute.add(
        name=generator.choice(KNOWN), type=AttributeProto.INT, i=1
    )


def small_tensor(generator: random.Random) -> TensorProto:
    """A tensor that may contradict itself."""
    kind = generator.choice((1, 7, 6, 9, 10, 8, 16, 22, 0, 99))
    dims = generator.choice(([], [0], [1], [2], [-1], [2**62, 4], [2**31], [1] * 70))
    tensor = TensorProto(name="t", data_type=kind, dims=dims)
    if generator.random() < 0.7:
        tensor.raw_data = b"\1" * generator.choice((0, 1, 4, 8, 9))
    if generator.random() < 0.3:
        tensor.int64_data.append(generator.choice(INTEGERS))
    return tensor


def filled(generator: random.Random, one: AttributeProto, kind: str) -> None:
    """Give an attribute a content of a kind; its declared type is left alone."""
    count = generator.choice((0, 1, 2, 4, 65))
    new: dict[str, Callable[[], object]] = {
        "FLOAT": lambda: setattr(one, "f", generator.choice(FLOATS)),
        "INT": lambda: setattr(one, "i", generator.choice(INTEGERS)),
        "STRING": lambda: setattr(
            one, "s", generator.choice((b"", b"\xff", b"linear", b"a\0b", b"ij,jk->ik"))
        ),
        "TENSOR": lambda: one.t.CopyFrom(small_tensor(generator)),
        "GRAPH": lambda: one.g.node.add(op_type="Neg", input=["x"], output=["y"]),
        "SPARSE_TENSOR": lambda: one.sparse_tensor.values.CopyFrom(small_tensor(generator)),
        "TYPE_PROTO": lambda: one.tp.CopyFrom(helper.make_tensor_type_proto(1, [-1])),
        "FLOATS": lambda: one.floats.extend(generator.choices(FLOATS, k=count)),
        "INTS": lambda: one.ints.extend(generator.choices(INTEGERS, k=count)),
        "STRINGS": lambda: one.strings.extend(generator.choices((b"", b"\xff", b"tanh"), k=count)),
        "TENSORS": lambda: one.tensors.extend([small_tensor(generator)] * min(count, 2)),
        "GRAPHS": lambda: one.graphs.extend([GraphProto()] * min(count, 2)),
        "SPARSE_TENSORS": lambda: one.sparse_tensors.add(),
        "TYPE_PROTOS": lambda: one.type_protos.add(),
    }
    new[kind]()


def retype(generator: random.Random, model: ModelProto) -> None:
    """The declared type is not that of the content, or missing."""
    one = some_attribute(generator, model)
    if generator.random() < 0.2:
        one.ClearField("type")
    else:
        one.type = generator.choice(list(KINDS.values()))


def refill(generator: random.Random, model: ModelProto) -> None:
    """Another content, of the same kind: extreme numbers, empty lists, tensors that contradict themselves."""
    one = some_attribute(generator, model)
    kind = AttributeProto.AttributeType.Name(one.type)
    if kind in CONTENT and CONTENT[kind] not in ("g", "graphs"):
        one.ClearField(CONTENT[kind])
        filled(generator, one, kind)


def replace(generator: random.Random, model: ModelProto) -> None:
    """Content and type of another kind."""
    one = some_attribute(generator, model)
    kind = generator.choice(list(CONTENT))
    for field in CONTENT.values():
        one.ClearField(field)
    filled(generator, one, kind)
    one.type = KINDS[kind]


def second(generator: random.Random, model: ModelProto) -> None:
    """A second content of another kind beside the first."""
    filled(generator, some_attribute(generator, model), generator.choice(list(CONTENT)))


def nudge(generator: random.Random, model: ModelProto) -> None:
    """A number of an attribute is another one."""
    one = some_attribute(generator, model)
    if one.ints:
        one.ints[generator.randrange(len(one.ints))] = generator.choice(INTEGERS)
    elif one.HasField("f"):
        one.f = generator.choice(FLOATS)
    elif one.type == AttributeProto.INT:
        one.i = generator.choice(INTEGERS)
    elif one.HasField("s"):
        one.s = generator.choice((b"", b"\xff\xfe", one.s + b"\0", b"SAME_UPPER", b"...", b"i" * 300))


def remove(generator: random.Random, model: ModelProto) -> None:
    """An attribute is missing, or all of a node's are."""
    node = some_node(generator, model)
    if node.attribute and generator.random() < 0.8:
        del node.attribute[generator.randrange(len(node.attribute))]
    else:
        node.ClearField("attribute")


def twice(generator: random.Random, model: ModelProto) -> None:
    """A node has an attribute twice, or that of another node."""
    node = some_node(generator, model)
    copied = AttributeProto()
    copied.CopyFrom(some_attribute(generator, model))  # which may hold the node
    node.attribute.append(copied)


def rename(generator: random.Random, model: ModelProto) -> None:
    """An attribute has another name."""
    some_attribute(generator, model).name = generator.choice((*KNOWN, *NAMES))


def refer(generator: random.Random, model: ModelProto) -> None:
    """An attribute refers to one of the function around it, where there may be none."""
    one = some_attribute(generator, model)
    one.ref_attr_name = generator.choice((one.name, "k", *NAMES[:6]))
    if generator.random() < 0.5:
        for field in CONTENT.values():
            one.ClearField(field)


# Graphs in attributes


def holders(model: ModelProto) -> list[AttributeProto]:
    """The attributes that hold a graph."""
    return [
        one for body in bodies(model) for node in body.node for one in node.attribute if one.HasField("g")
    ]


def some_control(generator: random.Random, model: ModelProto) -> NodeProto:
    """An If, Loop or Scan; one that is added where there is none."""
    found = [
        node
        for body in bodies(model)
        for node in body.node
        if any(one.HasField("g") for one in node.attribute)
    ]
    if found and generator.random() < 0.8:
        return generator.choice(found)
    node = model.graph.node.add(op_type=generator.choice(("If", "Loop", "Scan")))
    node.input.extend(some_name(generator, model) for _ in range(generator.choice((1, 2, 3))))
    node.output.extend(["new1", "new2"][: generator.choice((1, 2))])
    body = GraphProto(name="body")
    body.node.add(op_type="Neg", input=[some_name(generator, model)], output=["inner"])
    body.output.add(name="inner")
    for name in {"If": ("then_branch", "else_branch")}.get(node.op_type, ("body",)):
        node.attribute.add(name=name, type=AttributeProto.GRAPH, g=body)
    return node


def branch(generator: random.Random, model: ModelProto) -> None:
    """A branch is missing, empty, or that of another node."""
    node = some_control(generator, model)
    place = generator.randrange(len(node.attribute))
    how = generator.randrange(3)
    if how == 0:
        del node.attribute[place]
    elif how == 1:
        node.attribute[place].g.Clear()
    else:
        graph = GraphProto()
        graph.CopyFrom(some_graph(generator, model))
        node.attribute[place].g.CopyFrom(graph)


def shadow(generator: random.Random, model: ModelProto) -> None:
    """An inner value has the name of an outer one, or reads one that is not there."""
    graph = generator.choice(
        [one.g for one in holders(model)] or [some_control(generator, model).attribute[0].g]
    )
    name = some_name(generator, model)
    if graph.node and generator.random() < 0.5:
        node = generator.choice(graph.node)
        names = generator.choice((node.input, node.output))
        names[:] = [name, *list(names)[1:]]
    elif generator.random() < 0.5:
        graph.input.add(name=name)
    else:
        graph.initializer.add(name=name, data_type=1, dims=[1], raw_data=b"\0\0\0\0")


def nest(generator: random.Random, model: ModelProto) -> None:
    """A graph in itself, several times, or graphs as deep as nobody needs."""
    node = some_control(generator, model)
    target = generator.choice(
        [one for one in node.attribute if one.HasField("g")] or [node.attribute.add(name="body")]
    )
    for _ in range(generator.choice((1, 2, 12))):
        inner = GraphProto()
        inner.CopyFrom(target.g)
        if inner.ByteSize() > 20_000:
            break
        target.g.node.add(op_type="If", input=["c"], output=["inner"]).attribute.add(
            name="then_branch", type=AttributeProto.GRAPH, g=inner
        )


def signature(generator: random.Random, model: ModelProto) -> None:
    """A body has other inputs or outputs than its node passes."""
    graph = generator.choice(
        [one.g for one in holders(model)] or [some_control(generator, model).attribute[0].g]
    )
    values = generator.choice((graph.input, graph.output))
    if values and generator.random() < 0.5:
        del values[generator.randrange(len(values))]
    else:
        values.add(name=some_name(generator, model))


MUTATORS: tuple[Mutator, ...] = (
    retype, refill, refill, replace, second, nudge, nudge, remove, twice, rename, refer, branch, shadow, nest,
    signature,
)  # fmt: skip
