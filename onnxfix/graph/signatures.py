"""What ONNX's operators accept in each opset, by their schemas: element types, inputs, attributes.

A rule that adds a node for a value of any type checks here first: Squeeze accepts float8 from opset 21 on, although
QuantizeLinear produces it from opset 19 on.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from onnx import TensorProto
from onnx.defs import OpSchema, SchemaError, get_schema

_NUMBERS = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()}


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
def signature(op_type: str, opset: int) -> Signature | None:
    """The signature of ONNX's operator in an opset; None if ONNX does not define it there."""
    try:
        schema = get_schema(op_type, opset, "")
    except SchemaError:
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
    try:
        schema = get_schema(op_type, opset, "")
    except SchemaError:
        return None
    needed = frozenset(name for name, one in schema.attributes.items() if one.required)
    inputs, outputs = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
    single = [one.option == OpSchema.FormalParameterOption.Single for one in schema.inputs]
    first = single.index(False) if False in single else len(single)
    return Demands(inputs, outputs, first, needed, frozenset(schema.attributes))


def input_names(op_type: str, opset: int, domain: str) -> list[str]:
    """The names of an operator's formal inputs; none if onnx has no schema for it."""
    try:
        return [one.name for one in get_schema(op_type, opset, domain).inputs]
    except SchemaError:
        return []


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
