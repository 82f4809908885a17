"""Types of attributes, as ONNX's operator schemas define them."""

from __future__ import annotations

from functools import cache

from onnx import AttributeProto
from onnx.defs import SchemaError, get_schema

_USUAL: dict[str, int] = {
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
_USUAL_SINCE = 11
"""From this opset on, an attribute of one of these names has the same type in all operators. Most models have no other
attributes and need no schema then: the first access to one makes onnx create those of all operators."""


def contradicted(op_type: str, version: int, name: str, stored: int) -> int | None:
    """The type (AttributeProto.AttributeType) that ONNX defines for an attribute, if it is ``stored`` as another one.

    None if the types agree, or if ONNX does not define the attribute in this opset.
    """
    if version >= _USUAL_SINCE and _USUAL.get(name) == stored:
        return None
    wanted = _types(op_type, version).get(name)
    return None if wanted == stored else wanted


@cache
def _types(op_type: str, version: int) -> dict[str, int]:
    """The types of an operator's attributes by name; empty if ONNX does not define the operator."""
    try:
        schema = get_schema(op_type, version, "")
    except SchemaError:
        return {}
    return {name: int(attribute.type.value) for name, attribute in schema.attributes.items()}  # type: ignore[attr-defined]
