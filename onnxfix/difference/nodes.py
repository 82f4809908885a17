"""What changed in a node that two models have."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.difference.contents import attribute_text, constant_text, same_attribute, same_constant
from onnxfix.difference.matching import Pairs
from onnxfix.difference.records import Detail
from onnxfix.dtypes import name_of
from onnxfix.graph.overlay import Node, Value
from onnxfix.graph.signatures import input_names


def details(old: Node, new: Node, pairs: Pairs) -> Iterator[Detail]:
    """Operator, name, inputs, outputs and attributes that differ."""
    if (old.domain, old.op_type) != (new.domain, new.op_type):
        yield Detail("operator", operator_name(old), operator_name(new))
    yield from _inputs(old, new, pairs)
    outputs = list(old.proto.output), list(new.proto.output)
    for index in range(max(map(len, outputs))):
        before, after = (names[index] if index < len(names) else "" for names in outputs)
        if before != after:
            yield Detail(f"output {index}" if index else "output", before, after)
    yield from _attributes(old, new)
    if old.name != new.name:
        yield Detail("name", old.name, new.name)


def operator_name(node: Node) -> str:
    """The operator, with its domain where that is not ONNX's."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _attributes(old: Node, new: Node) -> Iterator[Detail]:
    before = {one.name: one for one in old.proto.attribute}
    after = {one.name: one for one in new.proto.attribute}
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if one is None or other is None or not same_attribute(one, other, (old, new)):
            yield Detail(name, attribute_text(one, old), attribute_text(other, new))


def _inputs(old: Node, new: Node, pairs: Pairs) -> Iterator[Detail]:
    names = input_names(new.op_type, new.opset, new.domain)
    for index in range(max(len(old.inputs), len(new.inputs))):
        before, after = old.input(index), new.input(index)
        if _same_value(before, after, pairs):
            continue
        label = names[min(index, len(names) - 1)] if names else f"input {index}"
        texts = _text(before, after), _text(after, before)
        if texts[0] == texts[1]:  # what differs is not shown: the names do
            computed = before is not None and not before.is_constant
            folded = computed and after is not None and after.is_constant
            texts = _name(before), texts[1] if folded else _name(after)
        yield Detail(label, *texts)


def _same_value(before: Value | None, after: Value | None, pairs: Pairs) -> bool:
    """Whether both are the same value; that its own contents differ is said where it is defined."""
    if before is None or after is None:
        return before is after
    if before.name == after.name or pairs.renamed.get(before.name) == after.name:
        return True
    return before.is_constant and after.is_constant and same_constant(before, after)


def _text(value: Value | None, other: Value | None) -> str:
    """A value for people: what is in it, where that and the other one's contents are known, or its name."""
    if value is None:
        return ""
    if value.is_constant:
        kind, _, values = (text := constant_text(value)).partition(" ")
        return values if values and other is not None and _kind(other) == kind else text
    if other is not None and other.is_constant:
        known = value.scope.model.shapes.value(value)
        if known is not None and len(known.shape) < 2:
            items = ",".join(map(str, known.data))
            return f"[{items}]" if known.shape else items
    return value.name


def _kind(value: Value) -> str:
    """The element type, "" where it is unknown."""
    elem = value.scope.model.shapes.elem_type(value)
    return name_of(elem) if elem is not None else ""


def _name(value: Value | None) -> str:
    return value.name if value is not None else ""
