"""Operators that ONNX Runtime's optimizer writes (OPS088 to OPS092), and its quantized ones (QDQ020, QDQ021): what the
rules write against its own kernels, and what TensorRT-RTX says before and after. Their examples are run by
test_rules.py."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from onnxfix.rewrite.engine import check
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.testing import fixed, overlay
from onnxfix_rules.ops._runtimes import ADVICE, TOOLS
from support import models
from support.ort import run
from support.runtime_operators import MINE, agree, decomposed, feeds_of, model

ALL = registry().choose()


_UNARY = "g (TYPE[3,5,8] x) => (TYPE[3,5,8] y) { y = com.microsoft.CALL }"
_BIASED = "g (TYPE[3,5,8] x, TYPE[8] b) => (TYPE[3,5,8] y) { y = com.microsoft.CALL }"
_NORM = (
    "g (TYPE[3,5,8] x, TYPE[3,5,8] k, TYPE[8] s, TYPE[8] b, TYPE[8] c) => (TYPE[3,5,8] yREST) "
    "{ yNAMES = com.microsoft.CALL }"
)
ELEMENTWISE = [
    (_UNARY, "FastGelu(x)"),
    (_UNARY, "QuickGelu(x)"),
    (_UNARY, "QuickGelu<alpha = -0.7>(x)"),
    (_BIASED, "BiasGelu(x, b)"),
    (_BIASED, "FastGelu(x, b)"),
]
"""Models of one operator, as text with TYPE and CALL in it."""
NORMS = [
    "SkipLayerNormalization(x, k, s)",
    "SkipLayerNormalization<epsilon = 0.01>(x, k, s, b)",
    "SkipLayerNormalization<epsilon = 0.01>(x, k, s, , c)",
    "SkipLayerNormalization(x, k, s, b, c)",
]


def has_kernel(proto: ModelProto) -> bool:
    """Whether ONNX Runtime runs the model on the CPU."""
    try:
        run(proto, feeds_of(proto))
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return False
    except onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph:
        return False
    return True


@pytest.mark.parametrize("kind", ["float", "float16", "double"])
@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize(("text", "call"), ELEMENTWISE, ids=[call for _, call in ELEMENTWISE])
def test_a_gelu_is_what_the_kernel_computes(text: str, call: str, opset: int, kind: str) -> None:
    proto = model(text.replace("TYPE", kind).replace("CALL", call), opset)
    after = decomposed(proto)
    if not has_kernel(proto):
        assert kind != "float", "ONNX Runtime has no kernel to compare with"
        return
    agree(proto, after, feeds_of(proto), 4e-3 if kind == "float16" else 2e-6)


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("opset", [9, 17])
def test_gelu_for_a_target_without_one(opset: int, kind: str) -> None:
    proto = model(_UNARY.replace("TYPE", kind).replace("CALL", "Gelu(x)"), opset)
    after = decomposed(proto, target="trt8.6")
    if has_kernel(proto):
        agree(proto, after, feeds_of(proto), 4e-3 if kind == "float16" else 2e-6)


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("opset", [13, 17, 18, 23])
@pytest.mark.parametrize("extra", ["", "sum", "statistics"])
@pytest.mark.parametrize("call", NORMS)
def test_a_norm_is_what_the_kernel_computes(call: str, extra: str, opset: int, kind: str) -> None:
    rest = {
        "": ("", ""),
        "sum": (", TYPE[3,5,8] z", ", , , z"),
        "statistics": (", float[3,5,1] m, float[3,5,1] i", ", m, i"),
    }[extra]
    text = _NORM.replace("REST", rest[0]).replace("NAMES", rest[1])
    proto = model(text.replace("TYPE", kind).replace("CALL", call), opset)
    agree(proto, decomposed(proto), feeds_of(proto), 1e-2 if kind == "float16" else 1e-5)


@pytest.mark.parametrize("kind", ["float", "float16", "double"])
@pytest.mark.parametrize("opset", [13, 17, 23])
@pytest.mark.parametrize(
    "call",
    [
        "com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.01>(x, k, s)",
        "com.microsoft.SkipSimplifiedLayerNormalization(x, k, s, c)",
        "SimplifiedLayerNormalization(x, s)",
        "SimplifiedLayerNormalization<epsilon = 0.01, axis = 2>(x, s)",
    ],
)
def test_a_norm_without_the_mean(call: str, opset: int, kind: str) -> None:
    text = _NORM.replace("REST", "").replace("NAMES", "").replace("com.microsoft.CALL", call)
    proto = model(text.replace("TYPE", kind), opset)
    after = decomposed(proto, target="trt8.6")
    if kind == "double" and "Skip" in call:
        assert not has_kernel(proto)
        return
    agree(proto, after, feeds_of(proto), 1e-2 if kind == "float16" else 1e-5)


ACTIVATIONS = [
    'activation = "Relu"',
    'activation = "Sigmoid"',
    'activation = "Tanh"',
    'activation = "LeakyRelu", activation_params = [0.3]',
    'activation = "Clip", activation_params = [-0.1, 0.6]',
    'activation = "HardSigmoid", activation_params = [0.3, 0.4]',
]
SIZES = [
    ("2,8,17,19", "24,8,3,3", 1),
    ("1,8,9,9", "8,1,3,3", 8),
    ("1,16,5,5", "4,16,1,1", 1),
    ("1,3,300", "5,3,4", 1),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size[1])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_convolution_has_the_bits_of_the_kernel(activation: str, size: tuple[str, str, int]) -> None:
    data, filters, group = size
    dims = ",".join(f"D{number}" for number in range(data.count(",") + 1))
    call = f"com.microsoft.FusedConv<group = {group}, {activation}>(x, w)"
    proto = model(f"g (float[{data}] x, float[{filters}] w) => (float[{dims}] y) {{ y = {call} }}", 13)
    after, feeds = decomposed(proto, Safety.EXACT), feeds_of(proto)
    assert run(after, feeds)[0].tobytes() == run(proto, feeds)[0].tobytes()
    feeds["x"].reshape(-1)[::97] = np.nan
    feeds["x"].reshape(-1)[5::197] = np.inf
    np.testing.assert_array_equal(run(after, feeds)[0], run(proto, feeds)[0])


@pytest.mark.parametrize("bias", ["b", ""])
@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
def test_a_convolution_with_an_addend(activation: str, bias: str) -> None:
    call = (
        f"com.microsoft.FusedConv<pads = [1, 1, 1, 1]{', ' * bool(activation)}{activation}>(x, w, {bias}, z)"
    )
    proto = model(
        "g (float[N,4,5,5] x, float[6,4,3,3] w, float[6] b, float[N,6,5,5] z) => (float[N,6,5,5] y) "
        f"{{ y = {call} }}",
        10,
    )
    agree(proto, decomposed(proto), feeds_of(proto))


@pytest.mark.parametrize(
    "attributes",
    [
        'activation = "Relu", transB = 1',
        'activation = "LeakyRelu", activation_alpha = 0.3, alpha = 0.5, beta = 2.0',
        'activation = "Sigmoid"',
        'activation = "Tanh", transA = 1',
        'activation = "HardSigmoid", activation_alpha = 0.3, activation_beta = 0.4',
    ],
)
def test_a_product_with_an_activation(attributes: str) -> None:
    proto = model(
        "g (float[5,5] x, float[5,5] w, float[5] c) => (float[5,5] y) "
        f"{{ y = com.microsoft.FusedGemm<{attributes}>(x, w, c) }}"
    )
    agree(proto, decomposed(proto), feeds_of(proto))


@pytest.mark.parametrize("length", ["3", "S"])
@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(
    "inputs", ["i, t, w, p, e, s, b, k", "i, , w, p, , s, b, k", "i, t, w, p, e, s, b, k, o"]
)
def test_embeddings_are_what_the_kernel_computes(inputs: str, opset: int, length: str) -> None:
    proto = model(
        f"g (int32[2,{length}] i, int32[2,{length}] t, int32[2,{length}] k, int32[2,{length}] o, float[9,4] w, "
        "float[5,4] p, float[2,4] e, float[4] s, float[4] b) => (float[A,B,4] y, int32[C] m, float[A,B,4] z) "
        f"{{ y, m, z = com.microsoft.EmbedLayerNormalization<epsilon = 0.01>({inputs}) }}",
        opset,
    )
    feeds = feeds_of(proto)
    feeds |= {name: np.abs(feeds[name] % size) for name, size in (("i", 9), ("t", 2), ("k", 3), ("o", 5))}
    agree(proto, decomposed(proto), feeds)


def test_the_table_names_operators_that_onnx_runtime_has() -> None:
    assert set(TOOLS.values()) == ADVICE.keys()
    known = {schema.name for schema in onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()}
    assert len(TOOLS.keys() & known) > 60
    assert {name for name in TOOLS if name not in known} <= {"MatMulPacked"}


def test_a_finding_says_which_tool_wrote_the_operator_and_what_to_do() -> None:
    proto = model(
        "g (float[2,3] x, float[2,3] w) => (float[2,3] y) { y = com.microsoft.DynamicQuantizeLSTM(x, w) }"
    )
    (found,) = [item for item in check(overlay(proto, "rtx"), ALL) if item.severity is Severity.ERROR]
    assert found.rule.code == "OPS088"
    assert "quantize_dynamic" in found.match.message
    assert "QuantFormat.QDQ" in found.match.message


def test_a_namesake_says_so_too() -> None:
    text = (
        "g (float[1,8,3,3] x, float[8,8,1,1] w) => (float[1,8,3,3] y) { y = com.microsoft.nchwc.Conv(x, w) }"
    )
    proto = models.model(text, 17, 8, {"com.microsoft.nchwc": 1})
    (found,) = [item for item in check(overlay(proto, "rtx"), ALL) if item.severity is Severity.ERROR]
    assert found.rule.code == "OPS060"
    assert "ORT_ENABLE_BASIC" in found.match.message


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
