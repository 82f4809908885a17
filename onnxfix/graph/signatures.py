"""What ONNX's operators accept in each opset, by their schemas: element types, inputs, attributes.

A rule that adds a node for a value of any type checks here first: Squeeze accepts float8 from opset 21 on, although
QuantizeLinear produces it from opset 19 on.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from onnx import AttributeProto, TensorProto
from onnx.defs import OpSchema, SchemaError, get_schema

_NUMBERS = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()}
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


class Formal(NamedTuple):
    """One input or output of an operator.

    ``elems`` are the allowed element types (TensorProto numbers). Inputs and outputs with the same ``variable`` have
    the same type; it is "" if the type depends on no other one.
    """

    elems: frozenset[int]
    variable: str


class Signature(NamedTuple):
    """An operator's inputs and outputs. If it is variadic (``endless``), the last one counts for all that follow."""

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    endless: tuple[bool, bool]

    def input(self, index: int) -> Formal | None:
        """The formal input at ``index``, or None."""
        return _at(self.inputs, index, endless=self.endless[0])

    def output(self, index: int) -> Formal | None:
        """The formal output at ``index``, or None."""
        return _at(self.outputs, index, endless=self.endless[1])


@cache
def schema_of(op_type: str, opset: int, domain: str = "") -> OpSchema | None:
    """ONNX's definition of an operator in an opset; None if it is not one of ONNX's."""
    try:
        return get_schema(op_type, opset, domain)
    except SchemaError:
        return None


@cache
def signature(op_type: str, opset: int, domain: str = "") -> Signature | None:
    """The signature of ONNX's operator in an opset; None if ONNX does not define it there."""
    schema = schema_of(op_type, opset, domain)
    if schema is None:
        return None
    sides = [schema.inputs, schema.outputs]
    variadic = [bool(side) and side[-1].option == OpSchema.FormalParameterOption.Variadic for side in sides]
    inputs, outputs = (tuple(_formal(one) for one in side) for side in sides)
    return Signature(inputs, outputs, (variadic[0], variadic[1]))


class Demands(NamedTuple):
    """How many inputs and outputs an operator has, the attributes that it cannot do without, and all it has."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    first: int
    """How many of the first inputs cannot be left out."""
    attributes: frozenset[str]
    known: frozenset[str]
    """All attributes that it has."""


@cache
def demands(op_type: str, opset: int) -> Demands | None:
    """What ONNX's operator requires in an opset; None if ONNX does not define it there."""
    schema = schema_of(op_type, opset)
    if schema is None:
        return None
    needed = frozenset(name for name, one in schema.attributes.items() if one.required)
    inputs, outputs = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
    single = [one.option == OpSchema.FormalParameterOption.Single for one in schema.inputs]
    first = single.index(False) if False in single else len(single)
    return Demands(inputs, outputs, first, needed, frozenset(schema.attributes))


def input_names(op_type: str, opset: int, domain: str) -> list[str]:
    """The names of an operator's formal inputs; none if onnx has no schema for it."""
    schema = schema_of(op_type, opset, domain)
    return [one.name for one in schema.inputs] if schema is not None else []


def contradicted(op_type: str, version: int, name: str, stored: int) -> int | None:
    """The AttributeProto.AttributeType that ONNX defines for an attribute, if ``stored`` is another type.

    None if the types agree, or if ONNX does not define the attribute in this opset.
    """
    if version >= _COMMON_SINCE and _COMMON_TYPES.get(name) == stored:
        return None
    defined = _attribute_types(op_type, version).get(name)
    return None if defined == stored else defined


@cache
def _attribute_types(op_type: str, version: int) -> dict[str, int]:
    """The types of an operator's attributes by name; empty if ONNX does not define the operator."""
    schema = schema_of(op_type, version)
    attributes = schema.attributes.items() if schema is not None else ()
    return {name: int(one.type.value) for name, one in attributes}  # type: ignore[attr-defined]


def takes(op_type: str, opset: int, elem: int, index: int = 0) -> bool:
    """Whether ONNX's operator accepts this element type (TensorProto number) as input ``index`` in an opset."""
    known = signature(op_type, opset)
    formal = None if known is None else known.input(index)
    return formal is not None and elem in formal.elems


def _formal(parameter: OpSchema.FormalParameter) -> Formal:
    text = parameter.type_str
    elems = frozenset(_NUMBERS[name] for name in parameter.types if name in _NUMBERS)
    return Formal(elems, text if parameter.is_homogeneous and "(" not in text else "")


def _at(side: tuple[Formal, ...], index: int, *, endless: bool) -> Formal | None:
    if index < len(side):
        return side[index]
    return side[-1] if endless else None
