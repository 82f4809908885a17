"""Nodes of a model as boxes and wires: what a picture of them shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from onnx import AttributeProto, helper

from onnxfix.dtypes import name_of
from onnxfix.graph.overlay import Node, Value
from onnxfix.graph.signatures import input_names
from onnxfix.model import Model
from onnxfix.report.neighborhood import Box, Kind, Mark, Neighborhood, Wire

LINES = 4
"""Lines of a box below its title."""
WIDE = 34
"""Characters of a line, and of a dimension's text together."""
_BYTES = 256
"""Constants up to this size are shown with their values."""


def neighborhood(
    model: Model, nodes: Collection[Node], focus: Collection[Node], mark: Callable[[Node], Mark] | None = None
) -> Neighborhood:
    """Boxes for nodes of one graph and for the graph's inputs and outputs next to them.

    Args:
        model: the model that the nodes are of.
        nodes: the nodes.
        focus: those of them that it is about.
        mark: what became of a node in another model.
    """
    kept = dict.fromkeys(nodes)
    ordered = [node for node in model.orders[next(iter(kept)).scope] if node in kept]
    sketch = _Sketch(model)
    numbers: dict[Node | tuple[str, str], int] = {}
    for value in dict.fromkeys(one for node in ordered for one in _reads(node)):
        if value.producer is None or value.scope is not ordered[0].scope:
            numbers["input", value.name] = sketch.end("input", value)
    for node in ordered:
        above = {
            one.producer for one in _reads(node) if one.producer is not None and one.producer not in kept
        }
        above = {one for one in above if one.scope is node.scope}
        below = {
            use.node for one in node.outputs if one is not None for use in one.uses if use.node not in kept
        }
        numbers[node] = len(sketch.boxes)
        name = node.name or node.first_output
        lines = tuple(_lines(node, model))
        marked = mark(node) if mark is not None else ""
        sketch.boxes.append(
            Box("node", node.op_type, name, lines, node in focus, marked, len(above), len(below))
        )
    for node in ordered:
        for value in dict.fromkeys(_reads(node)):
            source = numbers.get(("input", value.name))
            if source is None and value.producer in kept:
                source = numbers[value.producer]
            sketch.wire(source, numbers[node], value)
        for made in node.outputs:
            if made is not None and made.is_output:
                sketch.wire(numbers[node], sketch.end("output", made), made)
    return Neighborhood(tuple(sketch.boxes), tuple(sketch.wires))


class _Sketch:
    """Boxes and wires so far."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.boxes: list[Box] = []
        self.wires: list[Wire] = []

    def end(self, kind: Kind, value: Value) -> int:
        """A box for an input or an output of the graph."""
        self.boxes.append(Box(kind, value.name))
        return len(self.boxes) - 1

    def wire(self, source: int | None, target: int, value: Value) -> None:
        if source is not None:
            self.wires.append(Wire(source, target, value.name, type_text(self.model, value)))


def _reads(node: Node) -> Iterator[Value]:
    """The inputs of a node that are no constants."""
    return (value for value in node.inputs if value is not None and not value.is_constant)


def type_text(model: Model, value: Value) -> str:
    """Element type and shape, such as ``float[N,3,224,224]``; "" where neither is known."""
    info = model.shapes.info(value)
    if info.kind != "tensor":
        return info.kind
    elem = name_of(info.elem) if info.elem is not None else ""
    return f"{elem}{_dims(info.shape)}"


def _dims(shape: Sequence[Any] | None) -> str:
    if shape is None:
        return ""
    dims = [text if len(text := str(dim)) <= WIDE // 2 else "…" for dim in shape]
    return f"[{','.join(dims)}]"


def _lines(node: Node, model: Model) -> list[str]:
    """Attributes, and inputs that are constant; what does not fit is counted."""
    lines = [f"{one.name} = {_attribute_text(one)}" for one in node.proto.attribute]
    names = input_names(node.op_type, node.opset, node.domain)
    for index, value in enumerate(node.inputs):
        if value is not None and value.is_constant:
            name = names[min(index, len(names) - 1)] if names else f"input {index}"
            lines.append(f"{name}: {_constant_text(value, model)}")
    more = len(lines) - LINES
    return (
        [_cut(line) for line in lines]
        if more <= 0
        else [*map(_cut, lines[: LINES - 1]), f"… {more + 1} more"]
    )


def _cut(line: str) -> str:
    return line if len(line) <= WIDE else f"{line[: WIDE - 1]}…"


_LISTS = (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS)


def _attribute_text(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if attribute.type == AttributeProto.GRAPH:
        return f"{len(attribute.g.node)} nodes"
    if attribute.type == AttributeProto.TENSOR:
        return f"{name_of(attribute.t.data_type)}{_dims(attribute.t.dims)}"
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return _number_text(value)
    if isinstance(value, int) and attribute.name in ("to", "dtype"):
        return name_of(value)
    if isinstance(value, (int, str)):
        return str(value)
    if attribute.type not in _LISTS:  # graphs, types, sparse tensors; a damaged file may have none
        return AttributeProto.AttributeType.Name(attribute.type).lower()
    return f"[{', '.join(map(_number_text, list(value)[:WIDE]))}]"


def _number_text(value: Any) -> str:
    if value in (2**63 - 1, -(2**63)):  # what exporters write for "to the end"
        return "end" if value > 0 else "start"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _constant_text(value: Value, model: Model) -> str:
    """The type, and the values where they are few."""
    array = value.constant(_BYTES)
    if array is None:
        return type_text(model, value) or "constant"
    kind = type_text(model, value).partition("[")[0] or str(array.dtype)
    if array.ndim > 1:
        return f"{kind}[{','.join(map(str, array.shape))}]"
    numbers = [_number_text(one) for one in array.reshape(-1)[:WIDE].tolist()]
    return f"{kind} {numbers[0]}" if array.ndim == 0 else f"{kind} [{', '.join(numbers)}]"
