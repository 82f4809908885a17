"""Attention masks that the low type cannot represent: their constants become its lowest number instead of infinity.

Rule PRC003 recognizes them: a constant beyond the type's range that ends in a Softmax. Left alone, they would keep
every Softmax and what is added before it in float32, between Casts in the middle of attention.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.diagnosis.lowered import ELEMENT, Low, lowerable
from onnxfix.dtypes import FLOATS
from onnxfix.engine import check
from onnxfix.files import tensors
from onnxfix.lowering.convert import converted
from onnxfix.lowering.kinds import MOVES
from onnxfix.model import Model
from onnxfix.record import record
from onnxfix.registry import registry

_RULE = "PRC003"
_PASSES = frozenset({*MOVES, "Add", "Cast", "Mul", "Sub"})
"""Operators that hand a mask on."""
_LARGEST = 1 << 28


@record
class Masks:
    """``constants`` are the names of mask constants; ``nodes`` are those that a mask goes through, the Softmax
    included, by index: large magnitudes are meant there."""

    constants: frozenset[str] = frozenset()
    nodes: frozenset[int] = frozenset()


def masks(model: ModelProto, base_dir: Path | None) -> Masks:
    """The masks of the main graph.

    Raises:
        OnnxfixError: the rules could not be loaded.
    """
    able = lowerable(model, "fp16", base_dir, strict=True)
    low = converted(model, able, frozenset(able.slots), base_dir=base_dir, weights=False).proto
    overlay = Model(low, None)
    constants: set[str] = set()
    starts: set[str] = set()
    for found in check(overlay, registry().choose([_RULE])):
        node = found.match.node
        if node is None or node.op_type == "Cast" or node.scope is not overlay.main:
            continue
        names = {_original(getattr(value, "name", "")) for value in found.match.reads}
        constants |= {name for name in names if _beyond(_constant(model, name, base_dir), 65504.0)}
        starts.update(_original(name) for name in node.proto.output)
    if not constants:
        return Masks()
    return Masks(frozenset(constants), _path(model, starts))


def _original(name: str) -> str:
    return name.removesuffix("/fp16")


def _path(model: ModelProto, starts: Collection[str]) -> frozenset[int]:
    """The nodes from these tensors to the next Softmax; nodes are in order."""
    reached, found = set(starts), set()
    for index, node in enumerate(model.graph.node):
        if reached.isdisjoint((*node.input, *node.output)):
            continue
        if node.op_type in _PASSES:
            reached.update(node.output)
            found.add(index)
        elif node.op_type == "Softmax":
            found.add(index)
    return frozenset(found)


def saturate(model: ModelProto, names: Collection[str], to: Low, base_dir: Path | None) -> None:
    """Replace, in place, what is finite and beyond the low type's range in these constants by its limit."""
    for owner, tensor in _holders(model, names):
        array = tensors.to_array(tensor, base_dir, _LARGEST)
        if array is None or not _beyond(array, _limit(to)):
            continue
        limit = np.float32(_limit(to))
        made = numpy_helper.from_array(
            np.where(np.isfinite(array), np.clip(array, -limit, limit), array).astype(np.float32), tensor.name
        )
        if isinstance(owner, NodeProto):
            del owner.attribute[:]
            owner.attribute.append(helper.make_attribute("value", made))
        else:
            tensor.CopyFrom(made)


def _limit(to: Low) -> float:
    return FLOATS[ELEMENT[to]].highest


def _beyond(array: Any, limit: float) -> bool:
    if array is None or array.dtype != np.float32:
        return False
    return bool((np.isfinite(array) & (np.abs(array) > limit)).any())


def _constant(model: ModelProto, name: str, base_dir: Path | None) -> Any:
    for _, tensor in _holders(model, [name]):
        return tensors.to_array(tensor, base_dir, _LARGEST)
    return None


def _holders(model: ModelProto, names: Collection[str]) -> list[tuple[NodeProto | None, TensorProto]]:
    """The constants of these names, with their Constant nodes."""
    inputs = {info.name for info in model.graph.input}
    found: list[tuple[NodeProto | None, TensorProto]] = [
        (None, tensor)
        for tensor in model.graph.initializer
        if tensor.name in names and tensor.name not in inputs
    ]
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output and node.output[0] in names:
            array = tensors.constant_node_array(node, None, _LARGEST)
            if array is not None:
                found.append((node, numpy_helper.from_array(np.asarray(array), node.output[0])))
    return found
