"""The inputs and outputs of two models: which belong together."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto, ValueInfoProto

from onnxfix.diagnosis.graph import Graph
from onnxfix.errors import UsageError


def inputs_of(a: Graph, b: Graph) -> dict[str, str]:
    """B's inputs -> A's: by name, else by position.

    Raises:
        UsageError: their number, types or ranks differ.
    """
    return _partners("input", list(a.inputs.values()), list(b.inputs.values()))


def outputs_of(a: Graph, b: Graph) -> dict[str, str]:
    """B's outputs -> A's: by name, else by position.

    Raises:
        UsageError: their number, types or ranks differ.
    """
    return _partners("output", list(a.proto.graph.output), list(b.proto.graph.output))


def _partners(kind: str, ours: Sequence[ValueInfoProto], theirs: Sequence[ValueInfoProto]) -> dict[str, str]:
    if len(ours) != len(theirs):
        raise UsageError(f"the models have not the same interface: {len(ours)} {kind}s and {len(theirs)}")
    known = {info.name: info for info in ours}
    if set(known) == {info.name for info in theirs}:
        found = [(known[info.name], info) for info in theirs]
    else:
        found = list(zip(ours, theirs, strict=True))
    for one, other in found:
        why = _differs(one, other)
        if why:
            names = one.name if one.name == other.name else f"{one.name} and {other.name}"
            raise UsageError(f"the models have not the same interface: {kind} {names} {why}")
    return {other.name: one.name for one, other in found}


_CLASSES: dict[int, str] = {
    **dict.fromkeys(
        (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16), "float"
    ),
    **dict.fromkeys((TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64), "int"),
    **dict.fromkeys((TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64), "int"),
}
"""Types of which one may take another's place in the other model."""


def _differs(one: ValueInfoProto, other: ValueInfoProto) -> str:
    """How two declarations contradict each other; "" where they do not. Widths of a type may differ."""
    x, y = one.type, other.type
    if not x.WhichOneof("value") or not y.WhichOneof("value"):
        return ""
    if x.WhichOneof("value") != y.WhichOneof("value"):
        return "has another type"
    if not x.HasField("tensor_type"):
        return ""
    types = [kind.tensor_type.elem_type for kind in (x, y)]
    if all(types) and _CLASSES.get(types[0], types[0]) != _CLASSES.get(types[1], types[1]):
        return "has another type"
    if x.tensor_type.HasField("shape") and y.tensor_type.HasField("shape"):
        ranks = [len(kind.tensor_type.shape.dim) for kind in (x, y)]
        if ranks[0] != ranks[1]:
            return f"has rank {ranks[0]} and {ranks[1]}"
    return ""
