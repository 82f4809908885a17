"""A Scan of few iterations written out: the engine adds nodes, not graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TypeProto, helper, numpy_helper

ITERATIONS = 16
"""Each is about ten layers; more than that costs more than it gives."""

Types = Mapping[str, bytes]
"""TypeProtos as bytes, by value name."""


def unrolled(nodes: Sequence[NodeProto], types: Types) -> list[NodeProto] | None:
    """The nodes with every Scan written out; None where one has too many iterations, or nobody knows how many.

    Scans over axis 0, forward, are meant: what ONNX's functions use.
    """
    result: list[NodeProto] = []
    for node in nodes:
        if node.op_type != "Scan":
            result.append(node)
            continue
        steps = _steps(node, types)
        if steps is None or not 1 <= steps <= ITERATIONS:
            return None
        result.extend(_written_out(node, steps))
    return result


def _attributes(node: NodeProto) -> dict[str, object]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _steps(node: NodeProto, types: Types) -> int | None:
    attributes = _attributes(node)
    scanned = attributes.get("num_scan_inputs")
    if set(attributes) != {"num_scan_inputs", "body"} or not isinstance(scanned, int) or scanned < 1:
        return None  # other axes or directions
    found = set()
    for name in node.input[-scanned:]:
        dims = TypeProto.FromString(types.get(name, b"")).tensor_type.shape.dim
        if dims and dims[0].HasField("dim_value"):
            found.add(int(dims[0].dim_value))
    return found.pop() if len(found) == 1 else None


def _written_out(node: NodeProto, steps: int) -> list[NodeProto]:
    attributes = _attributes(node)
    scanned, body = attributes["num_scan_inputs"], attributes["body"]
    assert isinstance(scanned, int)
    assert isinstance(body, GraphProto)
    start = f"{node.output[0] or node.output[-1]} step"
    carried = len(node.input) - scanned
    state = list(node.input[:carried])
    made: list[NodeProto] = []
    axis = f"{start} axis"
    made.append(
        helper.make_node("Constant", [], [axis], value=numpy_helper.from_array(np.zeros(1, np.int64)))
    )
    pieces: list[list[str]] = [[] for _ in body.output[carried:]]
    for step in range(steps):
        names = dict(zip([i.name for i in body.input[:carried]], state, strict=True))
        index = f"{start} {step}"
        made.append(helper.make_node("Constant", [], [index], value=numpy_helper.from_array(np.array(step))))
        for info, source in zip(body.input[carried:], node.input[carried:], strict=True):
            names[info.name] = f"{start} {step} {info.name}"
            made.append(helper.make_node("Gather", [source, index], [names[info.name]], axis=0))
        for tensor in body.initializer:
            names[tensor.name] = f"{start} {step} {tensor.name}"
            made.append(helper.make_node("Constant", [], [names[tensor.name]], value=tensor))
        for inner in body.node:
            names.update((name, f"{start} {step} {name}") for name in inner.output if name)
            copy = NodeProto()
            copy.CopyFrom(inner)
            for field in (copy.input, copy.output):
                field[:] = [names.get(name, name) for name in field]
            made.append(copy)
        state = [names.get(o.name, o.name) for o in body.output[:carried]]
        for place, output in zip(pieces, body.output[carried:], strict=True):
            piece = f"{start} {step} piece {output.name}"
            made.append(helper.make_node("Unsqueeze", [names.get(output.name, output.name), axis], [piece]))
            place.append(piece)
    for name, value in zip(node.output, state, strict=False):
        if name:
            made.append(helper.make_node("Identity", [value], [name]))
    for name, place in zip(node.output[carried:], pieces, strict=False):
        if name:
            made.append(helper.make_node("Concat", place, [name], axis=0))
    return made
