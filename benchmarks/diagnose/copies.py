"""One change of a copy of a model, by direct surgery on the protobuf.

Nothing of onnxfix's own edits is used, so that a mistake there does not hide one in what judges it. Models are read
lazily: weights that are not changed stay in their file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import tensors

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_MOST = 1 << 31  # bytes of a weight that is changed
_SUFFIX = "/planted"


class Graph:
    """Questions about the main graph of a model. ``folder`` is where its external data lies."""

    def __init__(self, model: ModelProto, folder: Path | None = None) -> None:
        self.model, self.folder = model, folder
        self.nodes = model.graph.node

    @cached_property
    def stored(self) -> dict[str, TensorProto]:
        """Initializers that are no graph inputs, and the tensors of Constant nodes, by name."""
        inputs = {one.name for one in self.model.graph.input}
        found = {one.name: one for one in self.model.graph.initializer if one.name not in inputs}
        for node in self.nodes:
            value = attribute(node, "value") if node.op_type == "Constant" else None
            if value is not None:
                found[node.output[0]] = value.t
        return found

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each tensor is read, graph outputs included."""
        found = Counter(name for node in self.nodes for name in node.input)
        found.update(one.name for one in self.model.graph.output)
        return found

    @cached_property
    def makers(self) -> dict[str, NodeProto]:
        """The node that computes each tensor."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def readers(self) -> dict[str, list[NodeProto]]:
        """The nodes that read each tensor."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                found.setdefault(name, []).append(node)
        return found

    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return next((one.version for one in self.model.opset_import if one.domain in ("", "ai.onnx")), 1)

    def array(self, name: str, most: int = _MOST) -> Any:
        """The constant of that name as numpy; None where it is none, or has more than ``most`` bytes."""
        tensor = self.stored.get(name)
        return None if tensor is None else tensors.to_array(tensor, self.folder, most)

    def count(self, name: str) -> int:
        """Elements of a constant; 0 where there is none of that name."""
        return tensors.element_count(self.stored[name].dims) if name in self.stored else 0

    def is_float(self, name: str) -> bool:
        """Whether it is a constant of floating-point numbers."""
        return name in self.stored and self.stored[name].data_type in FLOATS


def replaced(graph: Graph, node: NodeProto, operand: int, array: Any) -> list[str]:
    """Let one input of one node be another constant: in place where nobody else reads it, else one of its own.

    Returns:
        The names of the nodes that hold the changed constant: a Constant node, or none.
    """
    name = node.input[operand]
    fresh = numpy_helper.from_array(np.ascontiguousarray(array), name)
    if graph.uses[name] == 1:
        graph.stored[name].CopyFrom(fresh)
        return [name] if name in graph.makers else []
    fresh.name = f"{node.output[0]}{_SUFFIX}.{operand}"
    graph.model.graph.initializer.append(fresh)
    node.input[operand] = fresh.name
    return []


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """The attribute of that name; None where it is left to its default."""
    return next((one for one in node.attribute if one.name == name), None)


def set_attribute(node: NodeProto, name: str, value: Any) -> None:
    """Give an attribute a value."""
    old = attribute(node, name)
    if old is not None:
        node.attribute.remove(old)
    node.attribute.append(helper.make_attribute(name, value))


def insert(graph: Graph, at: NodeProto, before: Sequence[NodeProto], after: Sequence[NodeProto]) -> None:
    """Put nodes right before and right after a node."""
    place = next(number for number, node in enumerate(graph.nodes) if node is at or node == at)
    for number, node in enumerate(before):
        graph.nodes.insert(place + number, node)
    for number, node in enumerate(after):
        graph.nodes.insert(place + len(before) + 1 + number, node)


def cast(source: str, target: str, to: int) -> NodeProto:
    """A Cast node that is named like what it makes."""
    return helper.make_node("Cast", [source], [target], name=f"{target}{_SUFFIX}", to=to)


def named(name: str, what: str) -> str:
    """A name that no exporter gives."""
    return f"{name}{_SUFFIX}.{what}"


def half_around(graph: Graph, node: NodeProto, operands: Sequence[int], *, rounds: bool) -> None:
    """Let a float32 node compute in float16: Casts of its inputs and of its first output, which keeps its name.

    ``rounds``: the node itself stays in float32, and reads and writes numbers of float16.
    """
    before = []
    for operand in operands:
        source = node.input[operand]
        if not source:
            continue
        target = named(node.output[0], f"half.{operand}")
        before.append(cast(source, target, TensorProto.FLOAT16))
        if rounds:
            before.append(cast(target, f"{target}.back", TensorProto.FLOAT))
        node.input[operand] = before[-1].output[0]
    output = node.output[0]
    node.output[0] = named(output, "half")
    after = [cast(node.output[0], output, TensorProto.FLOAT)]
    if rounds:
        middle = named(output, "through")
        after = [cast(node.output[0], middle, TensorProto.FLOAT16), cast(middle, output, TensorProto.FLOAT)]
    insert(graph, node, before, after)


def cast_pair(graph: Graph, node: NodeProto, through: int, back: int) -> None:
    """Let a node's first output go through another type and back; the second Cast's output keeps its name."""
    output = node.output[0]
    node.output[0] = named(output, "exact")
    middle = named(output, "through")
    insert(graph, node, [], [cast(node.output[0], middle, through), cast(middle, output, back)])
