"""Quantized operators of ONNX Runtime's own domain (QDQ020, QDQ021): what the rules write against its own kernels."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfix.rule import Safety
from onnxfix.testing import fixed
from support.ort import run
from support.runtime_operators import MINE, agree, decomposed, feeds_of, model

QUANTIZED = [
    "QLinearAdd(x, s, z, w, t, z, u, z)",
    "QLinearMul(x, s, z, w, t, z, u, z)",
    "QLinearSigmoid(x, s, z, u, z)",
    "QLinearLeakyRelu<alpha = 0.3>(x, s, z, u, z)",
    "QLinearLeakyRelu(x, s, z, u, z)",
    "QLinearSoftmax<axis = 1, opset = 13>(x, s, z, v, z)",
    "QLinearSoftmax<axis = -1, opset = 9>(x, s, z, v, z)",
    "QLinearConcat<axis = 2>(u, z, x, s, z, w, t, z)",
    "QLinearAveragePool<kernel_shape = [3, 2], pads = [1, 0, 1, 1], strides = [2, 1]>(x, s, z, u, z)",
    "QLinearAveragePool<kernel_shape = [3, 2], pads = [1, 0, 1, 1], count_include_pad = 1>(x, s, z, u, z)",
    "QLinearGlobalAveragePool(x, s, z, u, z)",
]


@pytest.mark.parametrize(("kind", "zero"), [("int8", 0), ("int8", -7), ("uint8", 128), ("uint8", 3)])
@pytest.mark.parametrize("call", QUANTIZED)
def test_a_quantized_operator_is_off_by_one_step_at_most(call: str, kind: str, zero: int) -> None:
    proto = model(
        f"g ({kind}[2,4,6,6] x, {kind}[2,4,6,6] w) => ({kind}[A,B,C,D] y) <float s = {{0.011}}, float t = {{0.023}}, "
        f"float u = {{0.017}}, float v = {{0.0039}}, {kind} z = {{{zero}}}> {{ y = com.microsoft.{call} }}"
    )
    after, feeds = decomposed(proto), feeds_of(proto)
    got, wanted = (run(one, feeds)[0].astype(np.int64) for one in (after, proto))
    steps = np.abs(got - wanted)
    assert steps.max() <= 1
    # ONNX Runtime's Softmax divides integers and rounds down.
    assert (steps != 0).mean() < (0.15 if "Softmax" in call else 0.02)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_parts_of_one_scale_keep_their_bits(kind: str) -> None:
    proto = model(
        f"g ({kind}[2,4] x, {kind}[2,3] w) => ({kind}[2,7] y) <float s = {{0.011}}, {kind} z = {{5}}> "
        "{ y = com.microsoft.QLinearConcat<axis = -1>(s, z, x, s, z, w, s, z) }"
    )
    after, feeds = decomposed(proto, Safety.EXACT), feeds_of(proto)
    assert [node.op_type for node in after.graph.node] == ["Concat"]
    assert run(after, feeds)[0].tobytes() == run(proto, feeds)[0].tobytes()


def test_parts_whose_scale_a_caller_may_override_do_not() -> None:
    proto = model(
        "g (int8[2,4] x, float s) => (int8[2,8] y) <float s = {0.011}, int8 z = {5}> "
        "{ y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, x, s, z) }"
    )
    assert not fixed(MINE, proto, target="rtx")[1].applied
    assert "QuantizeLinear" in {node.op_type for node in decomposed(proto).graph.node}


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("bias", ["c", ""])
@pytest.mark.parametrize("ending", [", u, z", ""])
@pytest.mark.parametrize(
    "scales", ["float t = {0.023}, uint8 v = {7}", "float[3] t = {0.02, 0.03, 0.01}, uint8[3] v = {7, 8, 9}"]
)
def test_a_gemm_is_off_by_one_step_at_most(turned: int, bias: str, ending: str, scales: str) -> None:
    kind = "uint8" if ending else "float"
    inputs = f"x, s, z, w, t, v, {bias}{ending}".rstrip(", ")
    proto = model(
        f"g (uint8[5,3] x, uint8[3,3] w) => ({kind}[5,3] y) <float s = {{0.011}}, {scales}, float u = {{0.9}}, "
        f"uint8 z = {{128}}, int32[3] c = {{100, -700, 3}}> "
        f"{{ y = com.microsoft.QGemm<transB = {turned}, alpha = 0.5>({inputs}) }}"
    )
    after, feeds = decomposed(proto), feeds_of(proto)
    got, wanted = (run(one, feeds)[0].astype(np.float64) for one in (after, proto))
    np.testing.assert_allclose(got, wanted, atol=1 if ending else 1e-5, rtol=0 if ending else 1e-5)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(
    "inputs", ["x, w, s, t", "x, w, s, t, a, b", "x, w, s, t, , b", "x, w, s, t, a, , c"]
)
def test_a_product_of_integers_is_what_the_kernel_computes(inputs: str, kind: str) -> None:
    proto = model(
        f"g (uint8[4,5] x, {kind}[5,3] w, float s) => (float[4,3] y) <float[3] t = {{0.02, 0.03, 0.01}}, "
        f"uint8 a = {{9}}, {kind}[3] b = {{7, 8, 9}}, float[3] c = {{1, 2, 3}}> "
        f"{{ y = com.microsoft.MatMulIntegerToFloat({inputs}) }}"
    )
    agree(proto, decomposed(proto), feeds_of(proto))


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("inputs", ["x, w, t", "x, w, t, b", "x, w, t, , c", "x, w, t, b, c"])
def test_a_product_quantized_as_it_comes(inputs: str, kind: str) -> None:
    proto = model(
        f"g (float[4,5] x, {kind}[5,3] w) => (float[4,3] y) <float[3] t = {{0.02, 0.03, 0.01}}, "
        f"{kind}[3] b = {{7, 8, 9}}, float[3] c = {{1, 2, 3}}> "
        f"{{ y = com.microsoft.DynamicQuantizeMatMul({inputs}) }}",
        11,
    )
    agree(proto, decomposed(proto), feeds_of(proto))
