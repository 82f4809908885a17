"""Both models with the int8 weights of their products of bytes as uint8: the same numbers, exactly computed everywhere.

ONNX Runtime multiplies uint8 by int8 with an instruction that cuts off sums at 16 bits on processors with AVX2 and
without VNNI; its products of uint8 by uint8 are exact on all of them. A weight and its zero point that both move by 128
are the same weight. Everything here runs in the sandbox's child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxfix import backends, walk
from onnxfix.backends import Session
from onnxfix.verification.compare.twin import element_types, opened

MOST_BYTES = 1 << 30
"""Bytes of weights; a larger model has no twin."""


class Operands(NamedTuple):
    """Which inputs of a product are the activation, its zero point, the weight, and its zero point. None: the operator
    itself quantizes the activation, to uint8."""

    activation: int | None
    zero: int | None
    weight: int
    weight_zero: int


_INTEGER, _LINEAR = Operands(0, 2, 1, 3), Operands(0, 2, 3, 5)
PRODUCTS = {
    ("", "MatMulInteger"): _INTEGER,
    ("", "ConvInteger"): _INTEGER,
    ("", "QLinearMatMul"): _LINEAR,
    ("", "QLinearConv"): _LINEAR,
    ("com.microsoft", "QGemm"): _LINEAR,
    ("com.microsoft", "DynamicQuantizeMatMul"): Operands(None, None, 1, 3),
    ("com.microsoft", "MatMulIntegerToFloat"): Operands(0, 4, 1, 5),
}
"""The products of bytes: domain and operator."""


def product(node: NodeProto) -> Operands | None:
    """The operands of a product of bytes; None for another node."""
    return PRODUCTS.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


@dataclass(frozen=True)
class Unsigned:
    """The original and the fixed model with unsigned weights."""

    original: Session
    fixed: Session


def load(backend: str, original: str, fixed: str, folder: str) -> Unsigned:
    """Write both models with unsigned weights into ``folder`` and load them.

    Raises:
        Unsupported: one is too large, or has products of uint8 and int8 that stay what they are.
        ModelError: its functions take too many nodes in place of their calls.
        Exception: whatever onnx, or the backend, raises for these models.
    """
    paths = [
        _written(path, Path(folder, f"unsigned{number}.onnx"))
        for number, path in enumerate((original, fixed))
    ]
    return Unsigned(*(backends.load(backend, str(path)) for path in paths))


def _written(path: str, target: Path) -> Path:
    model, _ = opened(Path(path), "int8", 1, MOST_BYTES)
    onnx.save(unsigned(model), target)
    return target


def unsigned(model: ModelProto) -> ModelProto:
    """``model`` itself, with unsigned weights in all products of uint8 and int8. Its external data must have been
    loaded, and its functions been put in place of their calls.

    Raises:
        Unsupported: the weight of such a product is not constant.
    """
    kinds, constants = element_types(model), dict(_constants(model))
    made: dict[str, str] = {}  # the new name of what was moved
    for graph in walk.graphs(model.graph):
        for node in graph.node:
            operands = product(node)
            if operands is not None and _mixed(node, operands, kinds):
                _move(model.graph, node, operands, constants, made)
    return model


def _mixed(node: NodeProto, operands: Operands, kinds: Mapping[str, int]) -> bool:
    """Whether a product is one of uint8 and int8."""
    if kinds.get(_input(node, operands.weight)) != TensorProto.INT8:
        return False
    if operands.activation is None or operands.zero is None:
        return True
    of = (kinds.get(_input(node, place)) for place in (operands.activation, operands.zero))
    return TensorProto.UINT8 in of


def _move(
    graph: GraphProto,
    node: NodeProto,
    operands: Operands,
    constants: Mapping[str, TensorProto],
    made: dict[str, str],
) -> None:
    """Let a node read its weight, and the weight's zero point, 128 higher."""
    for place in (operands.weight, operands.weight_zero):
        name = _input(node, place)
        if name not in made:
            tensor = constants.get(name)
            if name and tensor is None:
                raise backends.Unsupported(f"{name} is not constant")
            value = numpy_helper.to_array(tensor) if tensor is not None else np.zeros((), np.int8)
            moved = (value.astype(np.int16) + 128).astype(np.uint8)
            made[name] = f"{name}/onnxfix-unsigned"
            graph.initializer.append(numpy_helper.from_array(moved, made[name]))
        node.input.extend([""] * (place + 1 - len(node.input)))
        node.input[place] = made[name]


def _input(node: NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""


def _constants(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Initializers that no caller may set, and constants."""
    given = {info.name for info in model.graph.input}
    for graph in walk.graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.name not in given:
                yield tensor.name, tensor
        for node in graph.node:
            if node.op_type == "Constant" and node.output and node.domain in ("", "ai.onnx"):
                for attribute in node.attribute:
                    if attribute.name == "value":
                        yield node.output[0], attribute.t
