"""Damage to tensors, and to what a model holds beside its graph: functions, imports, versions, metadata."""

from __future__ import annotations

import random

from onnx import AttributeProto, FunctionProto, ModelProto, StringStringEntryProto, TensorProto, helper

from fuzzing.graphs import (
    DIMENSIONS,
    INTEGERS,
    NAMES,
    TYPES,
    Mutator,
    bodies,
    graphs_of,
    some_name,
    some_node,
)


def some_tensor(generator: random.Random, model: ModelProto) -> TensorProto:
    """An initializer or a tensor in an attribute; one that is added where there is none."""
    found = [tensor for graph in graphs_of(model.graph) for tensor in graph.initializer]
    found += [
        one.t for body in bodies(model) for node in body.node for one in node.attribute if one.HasField("t")
    ]
    if found and generator.random() < 0.9:
        return generator.choice(found)
    return model.graph.initializer.add(
        name=some_name(generator, model), data_type=1, dims=[2], raw_data=b"\0" * 8
    )


def tensor_type(generator: random.Random, model: ModelProto) -> None:
    """Another element type; the payload stays."""
    some_tensor(generator, model).data_type = generator.choice(TYPES)


def tensor_dims(generator: random.Random, model: ModelProto) -> None:
    """Other dimensions; the payload stays."""
    tensor = some_tensor(generator, model)
    if tensor.dims and generator.random() < 0.6:
        tensor.dims[generator.randrange(len(tensor.dims))] = generator.choice(DIMENSIONS)
    else:
        tensor.dims[:] = generator.choice(
            ([], [0], [0, 2**62], [1] * 80, [-1], [2**32, 2**32], [2**63 - 1] * 3)
        )


def tensor_payload(generator: random.Random, model: ModelProto) -> None:
    """A payload that is too short or too long, in the field of another type, or in two fields."""
    tensor = some_tensor(generator, model)
    how = generator.randrange(5)
    if how == 0:
        tensor.raw_data = tensor.raw_data[: generator.randrange(len(tensor.raw_data) + 1)]
    elif how == 1:
        tensor.raw_data = tensor.raw_data + b"\1" * generator.choice((1, 4, 3000))
    elif how == 2:
        tensor.float_data.append(1.0)
    elif how == 3:
        tensor.int32_data.extend([1, -1, 2**31 - 1])
    else:
        tensor.ClearField("raw_data")
        tensor.string_data.append(generator.choice((b"", b"\xff", b"a" * 5000)))


def tensor_values(generator: random.Random, model: ModelProto) -> None:
    """Other values of the same number: zeros, ones, large ones, NaN. Shapes and axes are made of them."""
    tensor = some_tensor(generator, model)
    pattern = generator.choice(
        (b"\0", b"\xff", b"\x7f", b"\1\0\0\0\0\0\0\0", b"\0\0\xc0\x7f", generator.randbytes(8))
    )
    tensor.raw_data = (pattern * (len(tensor.raw_data) // len(pattern) + 1))[: len(tensor.raw_data)]
    if tensor.int64_data:
        tensor.int64_data[:] = [generator.choice(INTEGERS) for _ in tensor.int64_data]


def external(generator: random.Random, model: ModelProto) -> None:
    """A tensor's data are in a file: somewhere else, beyond its end, at no number, under no name."""
    tensor = some_tensor(generator, model)
    tensor.data_location = TensorProto.EXTERNAL
    if generator.random() < 0.7:
        tensor.ClearField("raw_data")
    if generator.random() < 0.5 or not tensor.external_data:
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=generator.choice(LOCATIONS))
    key = generator.choice(("offset", "length", "checksum", "location", "basepath", ""))
    value = generator.choice(
        ("0", "4", "-1", "", "1e3", " 8", "0x10", "٣", "9" * 30, "9" * 5000, str(2**63), "nan")
    )
    tensor.external_data.add(key=key, value=value)
    if generator.random() < 0.3:
        tensor.data_location = TensorProto.DEFAULT


LOCATIONS = (
    "weights.bin", "weights.bin", "model.onnx", "missing.bin", "", ".", "..", "/etc/passwd", "/dev/zero",
    "../outside.bin", "sub/weights.bin", "link.bin", "loop.bin", "hard.bin", "fifo.bin", "sub", "a\0b", "n" * 300,
    "sub/" * 2000 + "w", "weights.bin/", "./weights.bin", "sub/../weights.bin", "C:\\w.bin", "file:///etc/passwd",
)  # fmt: skip
"""Names of files, some of which ``cases.surroundings`` makes."""


def no_payload(generator: random.Random, model: ModelProto) -> None:
    """A tensor without a payload, large or small."""
    tensor = some_tensor(generator, model)
    for field in (
        "raw_data",
        "float_data",
        "int32_data",
        "int64_data",
        "double_data",
        "uint64_data",
        "string_data",
    ):
        tensor.ClearField(field)
    tensor.dims[:] = generator.choice((list(tensor.dims), [2**40], [1000, 1000, 1000], [3]))


def sparse(generator: random.Random, model: ModelProto) -> None:
    """A sparse initializer whose parts contradict each other."""
    one = model.graph.sparse_initializer.add()
    if generator.random() < 0.9:
        one.values.CopyFrom(some_tensor(generator, model))
    if generator.random() < 0.9:
        indices = generator.choice(([0], [5, 5], [-1], [2**62]))
        one.indices.CopyFrom(helper.make_tensor("at", TensorProto.INT64, [len(indices)], indices))
    one.dims[:] = generator.choice(([], [4], [2**40], [2**40, 2**40], [-1], [0]))
    if generator.random() < 0.5:
        one.values.name = some_name(generator, model)


def annotate(generator: random.Random, model: ModelProto) -> None:
    """A quantization annotation of something, or of nothing."""
    one = model.graph.quantization_annotation.add(tensor_name=some_name(generator, model))
    for _ in range(generator.choice((0, 1, 2, 300))):
        key = generator.choice(("SCALE_TENSOR", "ZERO_POINT_TENSOR", "", "AXIS"))
        one.quant_parameter_tensor_names.add(key=key, value=some_name(generator, model))


# Beside the graph


def imports(generator: random.Random, model: ModelProto) -> None:
    """Missing, repeated, unknown, huge or negative versions of operators."""
    owners = [model, *model.functions]
    owner = generator.choice(owners)
    how = generator.randrange(4)
    if how == 0:
        del owner.opset_import[:]
    elif how == 1 and owner.opset_import:
        generator.choice(owner.opset_import).version = generator.choice(
            (*INTEGERS, 5, 6, 9, 11, 13, 18, 24, 27, 99)
        )
    elif how == 2:
        owner.opset_import.add(
            domain=generator.choice(("", "ai.onnx", "com.microsoft", "own", *NAMES)),
            version=generator.choice((*INTEGERS, 13)),
        )
    elif owner.opset_import:
        generator.choice(owner.opset_import).domain = generator.choice(("ai.onnx", "own", *NAMES))


def versions(generator: random.Random, model: ModelProto) -> None:
    """Another version of the format, or of the model."""
    model.ir_version = generator.choice((0, 1, 2, 3, 4, 7, 9, 10, 13, 14, 99, 2**31, 2**63 - 1, -1))
    if generator.random() < 0.3:
        model.model_version = generator.choice(INTEGERS)
        model.ClearField("ir_version")


def metadata(generator: random.Random, model: ModelProto) -> None:
    """Odd texts: producer, names of graphs, documentation, metadata with repeated keys."""
    text = generator.choice(NAMES)
    node = some_node(generator, model)
    places = [model, model.graph, node, *model.graph.input, *model.graph.initializer, *model.functions]
    place = generator.choice(places)
    if generator.random() < 0.4:
        model.producer_name = model.producer_version = model.domain = text
    place.doc_string = text
    if not isinstance(place, ModelProto):
        place.name = text
    if hasattr(place, "metadata_props"):
        entry = StringStringEntryProto(
            key=generator.choice(("", "a", "tensor_name", "rewritten")), value=text
        )
        place.metadata_props.extend([entry] * generator.choice((1, 2)))


def function(generator: random.Random, model: ModelProto) -> None:
    """Local functions: of some nodes, of a node's name, unused, twice, with an overload, without imports."""
    node = some_node(generator, model)
    made = FunctionProto(
        name=generator.choice((node.op_type, "F", *NAMES[:5])),
        domain=generator.choice((node.domain, "own", "")),
        overload=generator.choice(("", "", "o1")),
        input=list(node.input) or ["x"],
        output=list(node.output) or ["y"],
    )
    made.node.extend([node] if generator.random() < 0.6 else [])
    made.attribute.extend(generator.choice(([], ["k"], ["k", "k"], ["", "axis"])))
    if generator.random() < 0.6:
        made.opset_import.extend(model.opset_import)
    model.functions.extend([made] * generator.choice((1, 1, 2)))
    if generator.random() < 0.7:
        node.op_type, node.domain, node.overload = (
            made.name,
            made.domain,
            generator.choice(("", made.overload, "o2")),
        )


def recursion(generator: random.Random, model: ModelProto) -> None:
    """Functions that call each other: themselves, in a circle, in a long chain, each the next one twice."""
    count, times = generator.choice(((1, 1), (2, 1), (5, 2), (40, 2), (100, 1), (1500, 1)))
    circle = generator.random() < 0.5
    for place in range(count):
        made = model.functions.add(domain="own", name=f"R{place}", input=["a"], output=["b"])
        made.opset_import.add(domain="own", version=1)
        made.opset_import.add(domain="", version=18)
        following = f"R{(place + 1) % count}"
        last = place + 1 == count and not circle
        for step in range(times):
            names = {"input": ["a" if step == 0 else "t"], "output": ["b" if step == times - 1 else "t"]}
            made.node.add(op_type="Neg" if last else following, domain="" if last else "own", **names)
    model.opset_import.add(domain="own", version=1)
    node = some_node(generator, model)
    node.op_type, node.domain = "R0", "own"


def function_body(generator: random.Random, model: ModelProto) -> None:
    """A function without inputs, outputs, nodes or name, or with others; attributes with defaults that clash."""
    if not model.functions:
        function(generator, model)
        return
    one = generator.choice(model.functions)
    how = generator.randrange(5)
    if how == 0:
        one.ClearField(generator.choice(("input", "output", "node", "name", "domain", "opset_import")))
    elif how == 1:
        generator.choice((one.input, one.output)).append(some_name(generator, model))
    elif how == 2:
        one.attribute_proto.add(name=generator.choice(("k", "", "axis")), type=AttributeProto.INT, i=1)
    elif how == 3:
        one.overload = generator.choice(NAMES)
    else:
        one.name, one.domain = generator.choice((("Add", ""), ("Cast", "ai.onnx"), ("", ""), ("F", "own")))


MUTATORS: tuple[Mutator, ...] = (
    tensor_type, tensor_dims, tensor_payload, tensor_values, external, external, no_payload, sparse, annotate, imports,
    imports, versions, metadata, function, recursion, function_body,
)  # fmt: skip
