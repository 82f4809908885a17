"""OPS093 and OPS094: ONNX Runtime's kinds of attention against its own kernels, and what TensorRT-RTX says of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxfix.rule import Safety
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import fixed
from support import runtime_operators
from support.ort import run
from support.real_tensorrt import FACT, REAL, built
from support.runtime_operators import MINE, decomposed, feeds_of, model

#: Attributes, inputs behind the first three, declarations of those.
ATTENTION = {
    "plain": ("", "", ""),
    "scale": (", scale = 0.3", "", ""),
    "causal": (", unidirectional = 1", "", ""),
    "raw mask": ("", ", m", ", int32[3,5] m"),
    "raw mask and causal": (", unidirectional = 1", ", m", ", int32[3,5] m"),
    "filter": (", mask_filter_value = -5.0", ", m", ", int32[3,5] m"),
    "lengths": ("", ", n", ", int32[3] n"),
    "lengths and causal": (", unidirectional = 1", ", n", ", int32[3] n"),
    "a mask for each query": ("", ", q", ", int32[3,5,5] q"),
    "bias of scores": ("", ", , , a", ", float[3,2,5,5] a"),
    "bias of all": ("", ", m, , a", ", int32[3,5] m, float[1,1,5,5] a"),
}
SEVERAL = {
    "plain": ("", "", ""),
    "scale": (", scale = 0.3", "", ""),
    "bias": ("", ", b", ", float[24] b"),
    "lengths": ("", ", , n", ", int32[3] n"),
    "raw mask": ("", ", , m", ", int32[3,7] m"),
    "raw mask, filter, bias": (", mask_filter_value = -3.0", ", b, m", ", int32[3,7] m, float[24] b"),
    "bias of scores": ("", ", , , a", ", float[3,2,5,7] a"),
    "bias of all": ("", ", b, m, a", ", float[24] b, int32[3,7] m, float[1,2,5,7] a"),
}
WEIGHTED = """g (float[D0,D1,8] x, float[8,24] w, float[24] c{more}) => (float[E,F,8] y) {{
    y = com.microsoft.Attention<num_heads = 2{attributes}>(x, w, c{inputs}) }}"""
HEADED = """g (float[3,5,8] x, float[3,7,8] k, float[3,7,8] v{more}) => (float[3,5,8] y) {{
    y = com.microsoft.MultiHeadAttention<num_heads = 2{attributes}>(x, k, v{inputs}) }}"""
ALIKE = HEADED.replace("3,7,8", "3,5,8")


def masked(feeds: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """The feeds with masks of 0 and 1 and lengths that fit."""
    rng = np.random.default_rng(seed)
    for name, array in feeds.items():
        if name in ("m", "q"):
            feeds[name] = rng.integers(0, 2, array.shape).astype(array.dtype)
        elif name == "n":
            feeds[name] = rng.integers(0, 6, array.shape).astype(array.dtype)
    return feeds


agree = partial(runtime_operators.agree, margin=2e-5)


@pytest.mark.parametrize(("opset", "dims"), [(11, "3,5"), (13, "B,S"), (17, "3,5"), (17, "B,S")])
@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_attention_is_what_the_kernel_computes(name: str, opset: int, dims: str) -> None:
    attributes, inputs, more = ATTENTION[name]
    more = more.replace("3,5", dims) if "int32[3,5,5]" not in more else more
    if dims != "3,5" and name.startswith("lengths"):
        more = more.replace("int32[3]", "int32[B]")
    text = WEIGHTED.replace("D0,D1", dims).format(attributes=attributes, inputs=inputs, more=more)
    proto = model(text, opset)
    after = decomposed(proto)
    for seed in range(3):
        feeds = feeds_of(proto, seed)
        agree(proto, after, masked(feeds if dims == "3,5" else sized(proto, seed), seed))


def sized(proto: ModelProto, seed: int) -> dict[str, Any]:
    """Feeds at batch 3 and length 5."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for info in copy.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = {"B": 3, "S": 5}[dim.dim_param]
    return feeds_of(copy, seed)


def test_what_comes_out_beside_the_result() -> None:
    proto = model(
        """g (float[3,5,8] x, float[8,24] w, float[24] c) => (float[3,5,8] y, float[2,3,2,5,4] z) {
        y, z = com.microsoft.Attention<num_heads = 2>(x, w, c) }"""
    )
    agree(proto, decomposed(proto), feeds_of(proto))
    proto = model(
        """g (float[3,5,8] x, float[3,7,8] k, float[3,7,8] v) => (float[3,5,8] y, float[3,2,7,4] z, float[3,2,7,4] u) {
        y, z, u = com.microsoft.MultiHeadAttention<num_heads = 2>(x, k, v) }"""
    )
    agree(proto, decomposed(proto), feeds_of(proto))


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("attributes", ["", ", unidirectional = 1"])
@pytest.mark.parametrize(("inputs", "more"), [("", ""), ("m", ", int32[3,9] m")])
def test_states_of_the_past(attributes: str, inputs: str, more: str, opset: int) -> None:
    proto = model(
        f"""g (float[3,5,8] x, float[8,24] w, float[24] c, float[2,3,2,4,4] p{more}) => (float[3,5,8] y,
        float[2,3,2,9,4] z) {{ y, z = com.microsoft.Attention<num_heads = 2{attributes}>(x, w, c, {inputs}, p) }}""",
        opset,
    )
    after = decomposed(proto)
    for seed in range(3):
        agree(proto, after, masked(feeds_of(proto, seed), seed))


@FACT
@REAL
def test_tensorrt_builds_attention_with_a_past_of_any_length(worker: Worker, tmp_path: Path) -> None:
    proto = model(
        """g (float[B,S,8] x, float[8,24] w, float[24] c, float[2,B,2,P,4] p) => (float[B,S,8] y, float[2,B,2,T,4] z) {
        y, z = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, c, , p) }"""
    )
    assert built(worker, decomposed(proto), tmp_path).accepted


def test_values_of_another_width() -> None:
    proto = model(
        """g (float[3,5,8] x, float[8,20] w, float[20] c) => (float[3,5,4] y) {
        y = com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [8, 8, 4]>(x, w, c) }"""
    )
    agree(proto, decomposed(proto), feeds_of(proto))
    proto = model(
        """g (float[3,5,8] x, float[3,7,8] k, float[3,7,6] v) => (float[3,5,6] y) {
        y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, k, v) }"""
    )
    agree(proto, decomposed(proto, target="trt8.6"), feeds_of(proto))


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("name", sorted(SEVERAL))
def test_several_heads_are_what_the_kernel_computes(name: str, opset: int) -> None:
    attributes, inputs, more = SEVERAL[name]
    proto = model(HEADED.format(attributes=attributes, inputs=inputs, more=more), opset)
    after = decomposed(proto, target="trt8.6")
    for seed in range(3):
        agree(proto, after, masked(feeds_of(proto, seed), seed))


@pytest.mark.parametrize("more", ["", "bias", "raw mask"])
def test_several_heads_that_look_back(more: str) -> None:
    _, inputs, declared = SEVERAL[more or "plain"]
    declared = declared.replace("3,7", "3,5")
    proto = model(ALIKE.format(attributes=", unidirectional = 1", inputs=inputs, more=declared))
    after = decomposed(proto, target="trt8.6")
    for seed in range(3):
        agree(proto, after, masked(feeds_of(proto, seed), seed))


def test_the_last_query_sees_more_where_there_are_more_keys() -> None:
    """Which is nothing to copy: who decomposes it would have to say what ONNX Runtime leaves out."""
    proto = model(HEADED.format(attributes=", unidirectional = 1", inputs="", more=""))
    _, done = fixed(MINE, proto, safety=Safety.NUMERIC, target="trt8.6")
    assert not done.applied
    feeds = feeds_of(proto)
    before = run(proto, feeds)[0]
    feeds["v"][:, 6] += 1
    after = run(proto, feeds)[0]
    assert (before[:, :4] == after[:, :4]).all()
    assert (before[:, 4] != after[:, 4]).any()


def test_keys_that_have_their_heads_already() -> None:
    proto = model(
        """g (float[3,5,8] x, float[3,2,7,4] k, float[3,2,7,4] v) => (float[3,5,8] y) {
        y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, k, v) }"""
    )
    agree(proto, decomposed(proto, target="trt8.6"), feeds_of(proto))


def test_one_batch_and_one_length_cannot_be_told_apart() -> None:
    """A mask of one number: a length, or the starts and ends of nothing."""
    text = WEIGHTED.replace("D0,D1", "1,5").format(attributes="", inputs=", n", more=", int32[1] n")
    _, done = fixed(MINE, model(text), safety=Safety.NUMERIC, target="rtx")
    assert not done.applied


# ---- OPS095: ONNX Runtime's RotaryEmbedding against its own kernel, and what TensorRT-RTX says of it

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
        runtime_operators.agree(proto, after, feeds(proto, seed), margin)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_said_for_tensorrt_rtx_has_the_same_bits(name: str) -> None:
    proto = rotary(name)
    after, done = fixed(MINE, proto, safety=Safety.EXACT, target="rtx")
    assert done.applied
    made = feeds(proto, 3)
    assert run(after, made)[0].tobytes() == run(proto, made)[0].tobytes()
