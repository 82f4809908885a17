"""Operators in the form that each opset defines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Node

from ._common import Workshop, scope_opset


def rounded(shop: Workshop, node: Node, name: str) -> str:
    """Round ``name`` to integers, half to even."""
    draft = shop.at(node)
    if scope_opset(node) >= 11:
        return draft.add("Round", [name])

    def number(value: float) -> str:
        return shop.constant(node, np.array(value, dtype=np.float32), "number")

    # Opset 10, where everything is float32. The fraction above the integer below, which is exact from 0.5 on,
    # decides; at exact halves an odd integer rounds up. Next to an odd integer floats are at least 2**-23 apart, so
    # 2**-26 affects nothing but a half.
    below = draft.add("Floor", [name])
    part = draft.add("Sub", [draft.add("Sub", [name, below]), number(0.5)])
    half = draft.add("Floor", [draft.add("Mul", [below, number(0.5)])])
    odd = draft.add("Sub", [below, draft.add("Mul", [half, number(2.0)])])
    part = draft.add("Add", [part, draft.add("Mul", [odd, number(2.0**-26)])])
    up = draft.add("Cast", [draft.add("Greater", [part, number(0.0)])], to=TensorProto.FLOAT)
    return draft.add("Add", [below, up])


def behind_ones(shop: Workshop, node: Node, name: str, count: int) -> str:
    """Append ``count`` dimensions of size 1 to a vector."""
    if not count:
        return name
    axes: Sequence[int] = range(1, count + 1)
    if scope_opset(node) >= 13:
        return shop.at(node).add(
            "Unsqueeze", [name, shop.constant(node, np.array(axes, dtype=np.int64), "axes")]
        )
    return shop.at(node).add("Unsqueeze", [name], axes=list(axes))
