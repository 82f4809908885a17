"""Decompose DynamicQuantizeLinear by its definition, in floats."""

from __future__ import annotations

import numpy as np

from onnxfix.rule import Node

from ._common import Workshop


def dynamic(shop: Workshop, node: Node) -> tuple[str, str]:
    """The float forms of (quantized data, zero point); the scale keeps its name.

    ONNX divides the range of the data, extended to 0, by 255. For all-zero data the range is empty: ONNX Runtime then
    uses scale 1, and so does this code; ONNX's function body divides by 0.
    """
    draft = shop.at(node)
    data, scale = node.input(0), node.output(1)
    assert data is not None

    def number(value: float) -> str:
        return shop.constant(node, np.array(value, dtype=np.float32), "number")

    least = draft.add("Min", [draft.add("ReduceMin", [data], keepdims=0), number(0.0)])
    most = draft.add("Max", [draft.add("ReduceMax", [data], keepdims=0), number(0.0)])
    span = draft.add("Sub", [most, least])
    ratio = draft.add("Div", [span, number(255.0)])
    empty = draft.add("Equal", [span, number(0.0)])
    step = draft.add("Where", [empty, number(1.0), ratio], output=scale.name if scale is not None else "")
    start = draft.add("Sub", [number(0.0), draft.add("Div", [least, step])])
    zero = draft.add("Round", [draft.add("Clip", [start, number(0.0), number(255.0)])], hint="zero_point")
    quantized = draft.add("Add", [draft.add("Round", [draft.add("Div", [data, step])]), zero])
    name = draft.add("Clip", [quantized, number(0.0), number(255.0)], hint="quantized")
    return name, zero
