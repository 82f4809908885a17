"""OPS095: ONNX Runtime's RotaryEmbedding against its own kernel, and what TensorRT-RTX says of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxfix.rule import Safety
from onnxfix.testing import fixed
from support.ort import run
from support.runtime_operators import MINE, agree, decomposed, feeds_of, model

#: Shapes of data, positions and tables, and attributes.
FORMS = {
    "4-D": ("2,3,5,8", "2,5", "9,4", ""),
    "4-D, one position": ("2,3,5,8", "1", "9,4", ""),
    "4-D, pairs": ("2,3,5,8", "2,5", "9,4", "<interleaved = 1>"),
    "4-D, a part": ("2,3,5,8", "2,5", "9,2", "<rotary_embedding_dim = 4, num_heads = 3>"),
    "4-D, a part in pairs": (
        "2,3,5,8",
        "2,5",
        "9,2",
        "<rotary_embedding_dim = 4, num_heads = 3, interleaved = 1>",
    ),
    "3-D": ("2,5,24", "2,5", "9,4", ""),
    "3-D, one position": ("2,5,24", "1", "9,4", ""),
    "3-D, heads": ("2,5,24", "2,5", "9,4", "<num_heads = 3>"),
    "3-D, pairs": ("2,5,24", "2,5", "9,4", "<num_heads = 3, interleaved = 1>"),
    "3-D, a part": ("2,5,24", "2,5", "9,2", "<num_heads = 3, rotary_embedding_dim = 4>"),
}
REFUSED = ("4-D, one position", "3-D", "3-D, one position")


def rotary(name: str, kind: str = "float", opset: int = 17) -> ModelProto:
    data, places, tables, attributes = FORMS[name]
    return model(
        f"g ({kind}[{data}] x, int64[{places}] p, {kind}[{tables}] c, {kind}[{tables}] s) => ({kind}[{data}] y) "
        f"{{ y = com.microsoft.RotaryEmbedding{attributes}(x, p, c, s) }}",
        opset,
    )


def feeds(proto: ModelProto, seed: int = 0) -> dict[str, Any]:
    made = feeds_of(proto, seed)
    made["p"] = np.random.default_rng(seed).integers(0, 5, made["p"].shape)
    return made


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("name", sorted(FORMS))
def test_what_is_decomposed_is_what_the_kernel_computes(name: str, opset: int, kind: str) -> None:
    proto = rotary(name, kind, opset)
    after = decomposed(proto, target="trt8.6")
    margin = 2e-2 if kind == "float16" else 1e-5
    for seed in range(2):
        agree(proto, after, feeds(proto, seed), margin)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_said_for_tensorrt_rtx_has_the_same_bits(name: str) -> None:
    proto = rotary(name)
    after, done = fixed(MINE, proto, safety=Safety.EXACT, target="rtx")
    assert done.applied
    made = feeds(proto, 3)
    assert run(after, made)[0].tobytes() == run(proto, made)[0].tobytes()
