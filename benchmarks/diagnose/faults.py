"""What a fault is: its kind, its place in a model, and the two models that differ by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from onnx import ModelProto

from onnxfix.replies import accept

Kind = Literal[
    "weight scaled", "weight element", "epsilon", "axis", "perm", "pads", "lost Cast", "mask value", "lost bias",
    "half precision", "shape constant", "operands", "operator",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)


@accept
@dataclass(frozen=True)
class Site:
    """Where a fault is planted: the number of a node in the main graph, one of its operands, and a number that a kind
    with several possibilities chooses by."""

    kind: Kind
    node: int
    operand: int = 0
    choice: int = 0


@accept
@dataclass(frozen=True)
class Planted:
    """Two models that differ by one fault.

    ``truth`` is the original itself except for "lost Cast", where it is the original with a pair of Casts, and
    ``other`` is the original. ``output`` is the first tensor that differs; ``nodes`` and ``outputs`` are the names by
    which naming it is right: the changed node, the nodes around it that are part of the change, and what they compute.
    """

    truth: ModelProto
    other: ModelProto
    output: str
    op_type: str
    nodes: tuple[str, ...]
    outputs: tuple[str, ...]
    what: str


@accept
@dataclass(frozen=True)
class Seen:
    """What a run of the model showed of a tensor: its shape and the name of its numpy type."""

    shape: tuple[int, ...]
    dtype: str
