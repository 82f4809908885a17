"""Models with ONNX Runtime's own operators: made from text, decomposed by the rules, run by its own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import assert_interface_kept, fixed
from support.models import of_opset
from support.ort import run

RULES = {rule.code: rule for rule in registry().rules}
MINE = [
    RULES[code]
    for code in ("OPS089", "OPS090", "OPS091", "OPS092", "OPS093", "OPS094", "OPS095", "QDQ020", "QDQ021")
]


model = of_opset(17, 8, {"com.microsoft": 1})


def agree(proto: ModelProto, after: ModelProto, feeds: dict[str, Any], margin: float = 1e-5) -> None:
    """What the rules made computes what ONNX Runtime's kernel does."""
    for got, wanted in zip(run(after, feeds), run(proto, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=margin, atol=margin)


def foreign(proto: ModelProto) -> list[str]:
    """ONNX Runtime's own operators in the main graph."""
    return [
        node.op_type
        for node in proto.graph.node
        if node.domain not in ("", "ai.onnx") or node.op_type == "SimplifiedLayerNormalization"
    ]


def feeds_of(proto: ModelProto, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for info in proto.graph.input:
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        shape = [dim.dim_value or 3 for dim in info.type.tensor_type.shape.dim]
        if kind.kind in "iu":
            feeds[info.name] = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)
        else:
            feeds[info.name] = np.asarray(rng.standard_normal(shape) * 2).astype(kind)
    return feeds


def decomposed(proto: ModelProto, safety: Safety = Safety.NUMERIC, target: str = "rtx") -> ModelProto:
    after, done = fixed(MINE, proto, safety=safety, target=target)
    assert done.applied
    assert not done.problems
    assert_interface_kept(proto, after)
    assert not foreign(after)
    return after
