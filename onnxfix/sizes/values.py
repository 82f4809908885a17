"""Values of inputs that select a path through a model's control flow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onnx import ModelProto, TensorProto

from onnxfix.errors import ModelError
from onnxfix.graph.overlay import Node, Value
from onnxfix.model import Model

Pins = dict[str, int]
_INTEGERS = (
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip
#: Operators that pass a single number on.
_PASSES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_COMPARES = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_MOST = 4  # combinations of values: each has runs of its own


def deciding(proto: ModelProto) -> list[Pins]:
    """Values of inputs with one element that select a path through the control flow, by input name; [{}] if none does.

    For integers that are compared with constants: a value for each side of each comparison. The constant itself is a
    number that the model knows (a sampling rate); if there are only tests for equality, half of the smallest constant
    is tried for all other numbers. For booleans that are conditions of an If: both. Every value is used at least once;
    if there are few combinations, all of them are.
    """
    try:
        model = Model(proto)
    except ModelError:
        return [{}]
    single = [value for value in model.main.inputs if _is_single(value)]
    found = {value.name: _sides(value) if _elem(value) in _INTEGERS else _both(value) for value in single}
    named = {name: sides for name, sides in found.items() if sides}
    combined = list(itertools.islice(itertools.product(*named.values()), _MOST + 1))
    if len(combined) > _MOST:
        turns = range(min(_MOST, max(map(len, named.values()))))
        combined = [tuple(sides[turn % len(sides)] for sides in named.values()) for turn in turns]
    return [dict(zip(named, one, strict=True)) for one in combined]


def _is_single(value: Value) -> bool:
    """Whether it is a tensor of one integer or boolean, without a default."""
    declared = value.declared
    if declared is None or not declared.HasField("tensor_type") or value.initializer is not None:
        return False
    tensor = declared.tensor_type
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    known = tensor.elem_type in (*_INTEGERS, TensorProto.BOOL)
    return known and tensor.HasField("shape") and all(size == 1 for size in sizes)


def _elem(value: Value) -> int:
    return int(value.declared.tensor_type.elem_type) if value.declared is not None else 0


def _both(value: Value) -> list[int]:
    """True and False if the value is a condition of an If; else nothing."""
    pending, seen = [value], {value}
    while pending:
        for use in pending.pop().uses:
            if not use.node.is_onnx:
                continue
            if use.node.op_type == "If":
                return [1, 0]
            if use.node.op_type in _PASSES or use.node.op_type == "Not":
                fresh = [out for out in use.node.outputs if out is not None and out not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return []


def _sides(value: Value) -> list[int]:
    """For each constant that the value is compared with: the constant and a number on the other side."""
    known: dict[int, None] = {}
    for node, other in _compared(value):
        array = other.constant()
        if array is None or array.size != 1:
            continue
        number = int(array.reshape(-1)[0])
        known[number] = None
        if node.op_type in ("Greater", "LessOrEqual"):
            known[number + 1] = None
        elif node.op_type in ("Less", "GreaterOrEqual"):
            known[number - 1] = None
    if known and all(node.op_type == "Equal" for node, _ in _compared(value)):
        other_one = next((n for n in (min(known) // 2, max(known) + 1) if n not in known), None)
        known.update({} if other_one is None else {other_one: None})
    return list(known)


def _compared(value: Value) -> Iterator[tuple[Node, Value]]:
    """The comparisons that the value reaches, each with the other operand."""
    pending, seen = [value], {value}
    while pending:
        for use in pending.pop().uses:
            node = use.node
            if not node.is_onnx:
                continue
            if node.op_type in _COMPARES and len(node.inputs) == 2:
                other = node.inputs[1 - use.index]
                if other is not None:
                    yield node, other
            elif node.op_type in _PASSES and use.index == 0:
                fresh = [out for out in node.outputs if out is not None and out not in seen]
                seen.update(fresh)
                pending.extend(fresh)
