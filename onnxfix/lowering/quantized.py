"""Scales of Q and DQ in the low type, and the operator set that has such scales.

The type of its scale decides what a DQ writes. With half-precision scales, a quantized product keeps its Q/DQ nodes,
and all around it is in half precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.files import walk
from onnxfix.files.dtypes import FLOATS
from onnxfix.graph.overlay import Node, Value

QUANTIZERS = frozenset({"DequantizeLinear", "QuantizeLinear"})
SCALES, IR_VERSION = 19, 9
"""The first operator set with scales in half precision, and the IR version that came with it."""
_OLDEST = 13
"""The first operator set that is raised to it."""
_LARGEST = 1 << 30


def represents(node: Node, to: int) -> bool:
    """Whether the type ``to`` has the scale of a Q or DQ but for the last bit: what float16 dequantizes from INT8 then
    moves by at most 1/16 of a step. Scales below its range lose more bits, or become 0."""
    scale = node.input(1)
    if scale is None or node.model.shapes.elem_type(scale) != TensorProto.FLOAT:
        return scale is not None
    values = _magnitudes(scale)
    if values is None:
        return False
    with np.errstate(all="ignore"):
        rounding = np.abs(values.astype(helper.tensor_dtype_to_np_dtype(to)).astype(np.float32) - values)
    return bool((rounding <= values * 2.0 ** -FLOATS[to].precision).all())


def _magnitudes(value: Value) -> npt.NDArray[Any] | None:
    """Of a constant, or of one that a Cast converts or a DQ with a single scale dequantizes: scales of blocks."""
    array = value.constant(_LARGEST)
    if array is not None:
        return np.asarray(np.abs(array.astype(np.float32)))
    node = value.producer
    if node is None or node.op_type not in ("Cast", "DequantizeLinear") or node.input(2) is not None:
        return None
    data = _magnitudes(node.require(0))
    scale = np.ones(1, np.float32) if node.op_type == "Cast" else _magnitudes(node.require(1))
    return data * scale if data is not None and scale is not None and scale.size == 1 else None


def opset_of(model: ModelProto) -> int:
    """The version of ONNX's operator set that the model imports; 0 where it imports none."""
    return next((one.version for one in model.opset_import if walk.domain_of(one.domain) == ""), 0)


def obstacle(model: ModelProto) -> str:
    """Why the model cannot have half-precision scales: it cannot be raised to operator set 19. "" where it can."""
    opset = opset_of(model)
    if opset >= SCALES:
        return ""
    if opset < _OLDEST:
        return f"the model imports operator set {opset}"
    if model.functions:
        return "local functions import operator sets of their own"
    # From 13 on, all other operators only got types, inputs, and attributes that default to what they did, or are those
    # that ``raise_opset`` rewrites.
    for node in walk.nodes(model.graph.node):
        rounds_up = any(one.name == "ceil_mode" and one.i for one in node.attribute)
        changed = (
            (node.op_type in ("AveragePool", "LpPool") and rounds_up)
            or (node.op_type == "BatchNormalization" and any(node.output[1:]))
            or (node.op_type == "RoiAlign" and opset < 16)
        )
        if changed and not walk.domain_of(node.domain):
            return f"{node.op_type} has another form in operator set {opset}"
    return ""


def raise_opset(model: ModelProto, names: set[str]) -> None:
    """Raise a model without ``obstacle`` to operator set 19, in place. ``names`` are taken, and get new ones."""
    opset = opset_of(model)
    for node in walk.nodes(model.graph.node):
        if walk.domain_of(node.domain):
            continue
        if node.op_type == "Split" and opset < 18 and len(node.input) < 2:
            node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
        moved = [one for one in node.attribute if one.name == "axes" and node.op_type.startswith("Reduce")]
        for axes in moved:
            name = fresh(names, f"{node.output[0]}/axes")
            model.graph.initializer.append(numpy_helper.from_array(np.array(axes.ints, np.int64), name))
            node.input.append(name)
            node.attribute.remove(axes)
    for one in model.opset_import:
        if walk.domain_of(one.domain) == "":
            one.version = SCALES
    model.ir_version = max(model.ir_version, IR_VERSION)


def fresh(taken: set[str], wanted: str) -> str:
    """``wanted``, with a number where it is taken; the result is taken afterwards."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name
