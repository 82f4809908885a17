"""Types of attributes, as ONNX's operator schemas define them."""

from __future__ import annotations

from functools import cache

from onnx import AttributeProto
from onnx.defs import SchemaError, get_schema

_COMMON_TYPES: dict[str, int] = {
    name: kind
    for kind, names in (
        (
            AttributeProto.INT,
            "allowzero antialias axis batch_dims ceil_mode count_include_pad dtype end exclude_outside exclusive fmod "
            "group hidden_size is_causal k keepdims largest noop_with_empty_axes num_outputs reverse saturate "
            "select_last_index sorted start stash_type storage_order to transA transB value_int",
        ),
        (
            AttributeProto.INTS,
            "axes dilations kernel_shape output_padding output_shape pads perm split strides value_ints",
        ),
        (AttributeProto.FLOAT, "alpha beta cubic_coeff_a epsilon extrapolation_value momentum value_float"),
        (
            AttributeProto.STRING,
            "approximate auto_pad coordinate_transformation_mode direction equation keep_aspect_ratio_policy mode "
            "nearest_mode reduction",
        ),
        (AttributeProto.GRAPH, "body else_branch then_branch"),
        (AttributeProto.TENSOR, "value"),
    )
    for name in names.split()
}
_COMMON_SINCE = 11
"""From this opset on, an attribute with one of these names has the same type in all operators. Most models
use no other attributes. They need no schema: the first lookup makes onnx create all schemas."""


def contradicted(op_type: str, version: int, name: str, stored: int) -> int | None:
    """The AttributeProto.AttributeType that ONNX defines for an attribute, if ``stored`` is another type.

    None if the types agree, or if ONNX does not define the attribute in this opset.
    """
    if version >= _COMMON_SINCE and _COMMON_TYPES.get(name) == stored:
        return None
    defined = _types(op_type, version).get(name)
    return None if defined == stored else defined


@cache
def _types(op_type: str, version: int) -> dict[str, int]:
    """The types of an operator's attributes by name; empty if ONNX does not define the operator."""
    try:
        schema = get_schema(op_type, version, "")
    except SchemaError:
        return {}
    return {name: int(attribute.type.value) for name, attribute in schema.attributes.items()}  # type: ignore[attr-defined]
