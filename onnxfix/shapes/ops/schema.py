"""Attributes of a node, and the element types of its outputs by its operator's schema."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from onnx import AttributeProto, TensorProto, defs, helper

from onnxfix.shapes.ops.base import Call, Unknown


def decoded(attribute: AttributeProto | None) -> Any:
    """The attribute's value, bytes as str; None without one."""
    if attribute is None:
        return None
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.INTS:
        return list(attribute.ints)
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.TENSOR:
        return attribute.t
    try:
        return helper.get_attribute_value(attribute)
    except ValueError:
        raise Unknown from None


@lru_cache(maxsize=4096)
def _schema_rules(
    op: str, domain: str, opset: int
) -> tuple[tuple[int | None, ...], tuple[int | None, ...], bool]:
    """For each output of an operator, the input with the same type, or its fixed type; the last one may be variadic."""
    try:
        schema = defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return (), (), False
    takes: list[int | None] = []
    fixed: list[int | None] = []
    for output in schema.outputs:
        text = output.type_str
        same = [
            i for i, formal in enumerate(schema.inputs) if formal.type_str == text and formal.is_homogeneous
        ]
        takes.append(same[0] if same and output.is_homogeneous and "(" not in text else None)
        fixed.append(_TYPES.get(text))
    variadic = (
        bool(schema.outputs) and schema.outputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic
    )
    return tuple(takes), tuple(fixed), variadic


_TYPES = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()}


def schema_elem(call: Call, k: int) -> int | None:
    """An output's element type by the operator's schema, or None."""
    takes, fixed, variadic = _schema_rules(call.op, call.domain, call.opset)
    if not takes:
        return None
    at = min(k, len(takes) - 1) if variadic else k
    if at >= len(takes):
        return None
    if fixed[at] is not None:
        return fixed[at]
    source = takes[at]
    if source is None or call.info(source).kind != "tensor":
        return None
    return call.info(source).elem
