"""The closed set of graph changes, and the only code that makes them.

Edits are data: a fix lists them, ``commit`` carries a fix out as a whole or refuses it as a whole. Names of new
values are fixed when the edit is written down, so the same fix always gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.shapes.ops.base import RANK_LIMIT

_MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class AddNode:
    """Put a node into ``scope``, before the node ``before`` or at the end (None). Its outputs are new names.

    Its subgraphs are added with it. Names that they define must not hide a value of an enclosing graph.
    """

    scope: Scope
    proto: NodeProto
    before: Node | None = None


@dataclass(frozen=True)
class RemoveNode:
    """Take a node out. Refused while one of its outputs is used, is a graph output, or is pinned."""

    node: Node


@dataclass(frozen=True)
class SetInput:
    """Make ``node.inputs[index]`` read ``name``; ``""`` omits the input. Can append at most one input."""

    node: Node
    index: int
    name: str


@dataclass(frozen=True)
class SetOutput:
    """Rename an output; every use follows. Refused for graph outputs and pinned values."""

    node: Node
    index: int
    name: str


@dataclass(frozen=True)
class ReplaceUses:
    """Make every consumer of ``value`` read ``name`` instead. Refused for graph outputs and pinned values."""

    value: Value
    name: str


@dataclass(frozen=True)
class SetAttribute:
    """Set the attribute ``name`` of ``node``, or remove it (None). Refused for graph attributes."""

    node: Node
    name: str
    attribute: AttributeProto | None


@dataclass(frozen=True)
class RenameNode:
    """Give a node another name."""

    node: Node
    name: str


@dataclass(frozen=True)
class AddInitializer:
    """Add a constant tensor to a graph or subgraph; its name is new."""

    scope: Scope
    tensor: TensorProto


@dataclass(frozen=True)
class RemoveInitializer:
    """Remove an initializer, dense or sparse. Refused while it is used, an output, pinned, or a graph input."""

    value: Value


@dataclass(frozen=True)
class SetValueInfo:
    """Replace (or, with ``info=None``, remove) the declared type of an inner value of ``scope``.

    A graph output without a type, or without an entry in ``value_info``, gets the new type itself.
    """

    scope: Scope
    name: str
    info: ValueInfoProto | None


@dataclass(frozen=True)
class SortNodes:
    """Sort the nodes of ``scope`` topologically, and move as few as possible."""

    scope: Scope


@dataclass(frozen=True)
class SetImport:
    """Make the model of ``scope`` import ``version`` of ONNX's operators. Nodes may mean something else in
    that version: the fix's other edits must update them, and no other fix shares the round."""

    scope: Scope
    version: int


Edit: TypeAlias = (
    AddNode
    | RemoveNode
    | SetInput
    | SetOutput
    | ReplaceUses
    | SetAttribute
    | RenameNode
    | AddInitializer
    | RemoveInitializer
    | SetValueInfo
    | SortNodes
    | SetImport
)


def defined(node: NodeProto) -> Iterator[str]:
    """The names that the subgraphs of a node define, at any depth."""
    for attribute in node.attribute[:]:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            yield from (info.name for info in graph.input)
            yield from (tensor.name for tensor in graph.initializer)
            yield from (sparse.values.name for sparse in graph.sparse_initializer)
            for inner in graph.node:
                yield from inner.output
                yield from defined(inner)


def least_inputs(node: NodeProto) -> int:
    """How many inputs a node must list, even if they are omitted: a Loop lists its trip count and condition.
    Other omitted inputs at the end are not listed, because ONNX Runtime refuses some nodes that list them."""
    return 2 if node.op_type == "Loop" and node.domain in ("", "ai.onnx") else 0


_UNIQUELY_NAMED = ("QuantizeLinear", "DequantizeLinear")
"""TensorRT names an unnamed node after its output, which two branches may share, and refuses equal names."""


def is_small(*shape: int) -> bool:
    """Whether a fix may create a constant of this shape: at most 2**20 elements and 32 dimensions. A model
    may declare any sizes, and numpy supports at most 64 dimensions."""
    return len(shape) <= RANK_LIMIT and math.prod(shape) <= _MOST_ELEMENTS


@dataclass
class Draft:
    """Collects the edits of one fix around ``anchor``: new nodes go before it, new names derive from it.

    Example: ``d = Draft(node); y = d.add("Unsqueeze", [x, d.constant(np.array([0]))]); d.set_input(node, 0, y)``.
    """

    anchor: Node
    edits: list[Edit] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def name(self, hint: str) -> str:
        """A name that is free everywhere in the model."""
        base = f"{self.anchor.first_output}_{hint}"
        taken = self.anchor.model.names
        name, number = base, 1
        while name in self._names or name in taken:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    def constant(self, array: np.ndarray[Any, Any], hint: str = "const") -> str:
        """A new constant: an initializer, or a Constant node if the scope allows no initializers.

        Functions have no initializers, and up to IR version 3 an initializer must also be a graph input, which
        would change the interface.
        """
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), self.name(hint))
        return self.tensor(tensor)

    def integers(self, values: Any, hint: str = "const") -> str:
        """Like ``constant``, for integers or nested lists of them, as int64."""
        return self.constant(np.array(values, np.int64), hint)

    def tensor(self, tensor: TensorProto) -> str:
        """Like ``constant`` for a TensorProto whose name is already free."""
        scope = self.anchor.scope
        if scope.root.kind == "function" or scope.model.ir_version < 4:
            attribute = helper.make_attribute("value", tensor)
            node = NodeProto(op_type="Constant", output=[tensor.name], attribute=[attribute])
            self.edits.append(AddNode(scope, node, self.anchor))
        else:
            self.edits.append(AddInitializer(scope, tensor))
        return tensor.name

    def add(
        self,
        op_type: str,
        inputs: Sequence[Value | str | None],
        *,
        hint: str = "",
        output: str = "",
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """A new node before the anchor with one output, whose name is returned."""
        output = output or self.name(hint or op_type.lower())
        names = [v.name if isinstance(v, Value) else (v or "") for v in inputs]
        empty = [name for name, value in attributes.items() if isinstance(value, (list, tuple)) and not value]
        filled = {name: value for name, value in attributes.items() if name not in empty}
        proto = helper.make_node(op_type, names, [output], domain=domain or None, **filled)
        for name in empty:  # make_node cannot infer their type; all lists that rules copy hold integers
            proto.attribute.add(name=name, type=AttributeProto.INTS)
        scope = self.anchor.scope
        if scope.parent is not None and op_type in _UNIQUELY_NAMED:
            proto.name = f"{scope.path}/{output}"
        self.edits.append(AddNode(scope, proto, self.anchor))
        return output

    def copy_node(
        self,
        node: Node,
        op_type: str = "",
        inputs: Sequence[Value | str | None] | None = None,
        outputs: Sequence[str] | None = None,
        **attributes: Any,
    ) -> str:
        """A copy of ``node`` before it, without a name; returns the name of its first output.

        Operator, inputs and outputs default to the node's own. Its other attributes are copied; an attribute
        of None is dropped.
        """
        proto = NodeProto()
        proto.CopyFrom(node.proto)
        proto.op_type, proto.name = op_type or node.op_type, ""
        if inputs is not None:
            proto.input[:] = [v.name if isinstance(v, Value) else (v or "") for v in inputs]
        if outputs is not None:
            proto.output[:] = outputs
        copied = [attribute for attribute in proto.attribute if attribute.name not in attributes]
        del proto.attribute[:]
        proto.attribute.extend(copied)
        for name, value in attributes.items():
            if value is not None:
                proto.attribute.append(helper.make_attribute(name, value))
        self.edits.append(AddNode(node.scope, proto, node))
        return proto.output[0]

    def replace_node(
        self,
        node: Node,
        op_type: str = "",
        inputs: Sequence[Value | str | None] | None = None,
        outputs: Sequence[str] | None = None,
        **attributes: Any,
    ) -> str:
        """``copy_node`` in the place of ``node``, with its name; outputs of the same names keep their uses."""
        self.remove(node)
        output = self.copy_node(node, op_type, inputs, outputs, **attributes)
        added = self.edits[-1]
        assert isinstance(added, AddNode)
        added.proto.name = node.proto.name
        if not node.proto.HasField("name"):  # a file distinguishes an empty name from a missing one
            added.proto.ClearField("name")
        return output

    def set_input(self, node: Node, index: int, value: Value | str | None) -> None:
        self.edits.append(SetInput(node, index, value.name if isinstance(value, Value) else (value or "")))

    def set_attr(self, node: Node, name: str, value: Any) -> None:
        """Set an attribute from a Python value; ``None`` drops it."""
        attribute = None if value is None else helper.make_attribute(name, value)
        self.edits.append(SetAttribute(node, name, attribute))

    def replace_uses(self, old: Value, new: Value | str) -> None:
        self.edits.append(ReplaceUses(old, new.name if isinstance(new, Value) else new))

    def remove(self, node: Node) -> None:
        self.edits.append(RemoveNode(node))

    def bypass(self, node: Node, source: Value) -> None:
        """Replace a node with one output by ``source``. Graph outputs keep their names and have a producer.

        If the node's output must keep its name, the producer of ``source`` takes over the name. If it cannot,
        an Identity remains.
        """
        output = node.outputs[0]
        assert output is not None
        if output.replaceable:
            self.replace_uses(output, source)
            self.remove(node)
            return
        self.remove(node)
        producer = source.producer
        if producer is not None and source.replaceable and not output.pinned and source.scope is output.scope:
            self.edits.append(SetOutput(producer, source.output_index, output.name))
        else:
            self.add("Identity", [source], output=output.name)

    def replace_output(self, node: Node, value: Value | str) -> None:
        """Replace ``node`` by ``value`` at its first output. Its other outputs must be unused.

        The output keeps its name: if this draft creates ``value``, that node takes over the name. A value of
        the model replaces the output as in ``bypass``.
        """
        if isinstance(value, Value):
            self.bypass(node, value)
            return
        output = node.require_output()
        protos = {edit.proto.output[0]: edit.proto for edit in self.edits if isinstance(edit, AddNode)}
        self.edits.insert(0, RemoveNode(node))
        if value in protos:
            protos[value].output[0] = output.name
        else:
            self.add("Identity", [value], output=output.name)

    def cast(self, value: Value | str, elem_type: int, *, hint: str = "cast", output: str = "") -> str:
        """``value`` as another element type (a TensorProto number)."""
        return self.add("Cast", [value], hint=hint, output=output, to=elem_type)

    def squeeze(self, value: Value | str, axes: Sequence[int], *, output: str = "") -> str:
        """Remove axes of length 1."""
        return self.along("Squeeze", value, axes, output=output)

    def unsqueeze(self, value: Value | str, axes: Sequence[int]) -> str:
        """Add axes of length 1."""
        return self.along("Unsqueeze", value, axes)

    def sum(self, value: Value | str, axes: Sequence[int], *, keepdims: bool = False) -> str:
        """The sum along axes."""
        return self.along("ReduceSum", value, axes, hint="axis", keepdims=int(keepdims))

    def along(
        self,
        op_type: str,
        value: Value | str,
        axes: Sequence[int],
        *,
        hint: str = "axes",
        output: str = "",
        **attributes: Any,
    ) -> str:
        """An operator whose axes are an attribute in older opsets and an input, named by ``hint``, since then."""
        since = 18 if op_type.startswith("Reduce") and op_type != "ReduceSum" else 13
        if self.anchor.scope.opset() < since:
            return self.add(op_type, [value], output=output, axes=list(axes), **attributes)
        return self.add(op_type, [value, self.integers(list(axes), hint)], output=output, **attributes)

    def split(self, value: Value | str, sizes: Sequence[int], axis: int, hint: str = "part") -> list[str]:
        """The names of parts of these sizes along an axis; ``hint`` may number them (``part_{}``)."""
        names = [self.name(hint.format(number)) for number in range(len(sizes))]
        inputs = [value.name if isinstance(value, Value) else value]
        given: dict[str, Any] = {"split": list(sizes)}
        if self.anchor.scope.opset() >= 13:
            inputs, given = [*inputs, self.integers(list(sizes), "sizes")], {}
        proto = helper.make_node("Split", inputs, names, axis=axis, **given)
        self.edits.append(AddNode(self.anchor.scope, proto, self.anchor))
        return names

    def reshape(self, value: Value | str, shape: Sequence[int], *, hint: str = "", output: str = "") -> str:
        """``value`` reshaped to a static shape. -1 and 0 mean the same as in Reshape."""
        if self.anchor.scope.opset() < 5:
            return self.add("Reshape", [value], hint=hint, output=output, shape=list(shape))
        return self.add("Reshape", [value, self.integers(list(shape), "shape")], hint=hint, output=output)
