"""Which element types ONNX's operators take in each opset, by their schemas.

A rule that puts a node around a value of any type asks here first: Squeeze takes float8 from opset 21 on, although
QuantizeLinear makes it from opset 19 on.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from onnx import TensorProto
from onnx.defs import OpSchema, SchemaError, get_schema

_NUMBERS = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()}


class Formal(NamedTuple):
    """One input or output of an operator.

    ``elems`` are the element types (TensorProto numbers) that a tensor may have there. Inputs and outputs of the same
    ``variable`` have the same one; it is "" where the type depends on nothing else.
    """

    elems: frozenset[int]
    variable: str


class Signature(NamedTuple):
    """An operator's inputs and outputs; the last one of each counts for all that follow where it is variadic."""

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    endless: tuple[bool, bool]

    def input(self, index: int) -> Formal | None:
        """The input that stands at ``index``, or None."""
        return _at(self.inputs, index, endless=self.endless[0])

    def output(self, index: int) -> Formal | None:
        """The output that stands at ``index``, or None."""
        return _at(self.outputs, index, endless=self.endless[1])


@cache
def signature(op_type: str, opset: int) -> Signature | None:
    """The signature of ONNX's operator in an opset; None where ONNX does not define it there."""
    try:
        schema = get_schema(op_type, opset, "")
    except SchemaError:
        return None
    sides = [schema.inputs, schema.outputs]
    variadic = [bool(side) and side[-1].option == OpSchema.FormalParameterOption.Variadic for side in sides]
    inputs, outputs = (tuple(_formal(one) for one in side) for side in sides)
    return Signature(inputs, outputs, (variadic[0], variadic[1]))


def takes(op_type: str, opset: int, elem: int, index: int = 0) -> bool:
    """Whether ONNX's operator takes a tensor of this element type (TensorProto number) as an input in an opset."""
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
