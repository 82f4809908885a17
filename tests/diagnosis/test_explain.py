"""Every cause, from small models that ONNX Runtime computes: what is planted is what is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfix.diagnosis.explain import explain
from onnxfix.diagnosis.facts import Evidence
from onnxfix.diagnosis.findings import Hazard
from onnxfix.diagnosis.rounding import to_tf32
from onnxfix.place import Place
from onnxfix.rule import Severity
from support.evidence import evidence
from support.models import model

LINEAR = "g (float[4,16] x) => (float[4,8] y) { y = MatMul(x, w) }"
BIASED = "g (float[4,16] x) => (float[4,8] y) { y = Gemm(x, w, b) }"
NORM = "g (float[2,3,16] x) => (float[2,3,16] y) { y = LayerNormalization<epsilon = 1e-05>(x, s, b) }"
CONV = "g (float[1,2,8,8] x) => (float[1,4,a,b] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w, b) }"


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def two(
    before: str,
    after: str,
    feed: dict[str, Any],
    mine: dict[str, Any],
    theirs: dict[str, Any] | None = None,
    **how: Any,
) -> Evidence:
    """Two models with weights of their own."""
    opset, other_opset = how.get("opset", 20), how.get("other_opset", how.get("opset", 20))
    other = model(after, opset=other_opset, **(mine if theirs is None else theirs))
    return evidence(model(before, opset=opset, **mine), feed, other)


# ------------------------------------------------------------------------------------------------------ two models


def test_a_scaled_weight_is_named_with_its_factor():
    w = normal(16, 8)
    found = two(LINEAR, LINEAR, {"x": normal(4, 16, seed=1)}, {"w": w}, {"w": w * np.float32(1.01)})
    cause, reason = explain(found)
    assert cause == "weight"
    assert "'w' is the first model's times 1.01 (128 elements)" in reason


def test_one_element_of_a_weight_is_named_with_both_values():
    w = normal(16, 8)
    changed = w.copy()
    changed[3, 5] = 7.5
    cause, reason = explain(two(LINEAR, LINEAR, {"x": normal(4, 16, seed=1)}, {"w": w}, {"w": changed}))
    assert cause == "weight"
    assert f"1 of 128 elements differs at [3, 5]: {w[3, 5]:.5g} here and 7.5 there" in reason


def test_a_transposed_square_weight_is_named():
    w = normal(16, 16)
    text = "g (float[4,16] x) => (float[4,16] y) { y = MatMul(x, w) }"
    cause, reason = explain(two(text, text, {"x": normal(4, 16, seed=1)}, {"w": w}, {"w": w.T.copy()}))
    assert (cause, "is transposed" in reason) == ("weight", True)


def test_a_bias_that_is_zero_on_the_other_side():
    b = normal(8, seed=3)
    given = {"x": normal(4, 16, seed=1)}
    w = normal(16, 8)
    cause, reason = explain(two(BIASED, BIASED, given, {"w": w, "b": b}, {"w": w, "b": b * 0}))
    assert (cause, "the bias 'b' is all zeros" in reason) == ("weight", True)


def test_a_bias_that_the_other_side_does_not_have():
    without = "g (float[1,2,8,8] x) => (float[1,4,a,b] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w) }"
    weights = {"w": normal(4, 2, 3, 3), "b": normal(4, seed=2)}
    found = two(CONV, without, {"x": normal(1, 2, 8, 8, seed=1)}, weights, {"w": weights["w"]})
    cause, reason = explain(found)
    assert cause == "weight"
    assert "the input b of Conv (b, 4 elements" in reason
    assert "only in the first model" in reason


def test_a_constant_node_is_a_weight_too_and_its_form_does_not_matter():
    constant = "g (float[4,16] x) => (float[4,8] y) { w = Constant<value = float[16,8] w0 {%s}>()  y = MatMul(x, w) }"
    w = normal(16, 8)
    digits = ", ".join(f"{float(value)!r}" for value in w.reshape(-1))
    given = {"x": normal(4, 16, seed=1)}
    same = two(LINEAR, constant.replace("%s", digits), given, {"w": w}, {})
    assert explain(same)[0] == "rounding"
    other = ", ".join(f"{float(np.float32(value * np.float32(0.5)))!r}" for value in w.reshape(-1))
    cause, reason = explain(two(LINEAR, constant.replace("%s", other), given, {"w": w}, {}))
    assert (cause, "times 0.5" in reason) == ("weight", True)


def test_a_weight_behind_a_transpose_is_compared_as_what_it_is():
    turned = "g (float[4,16] x) => (float[4,8] y) { t = Transpose<perm = [1, 0]>(v)  y = MatMul(x, t) }"
    w, given = normal(16, 8), {"x": normal(4, 16, seed=1)}
    assert explain(two(LINEAR, turned, given, {"w": w}, {"v": w.T.copy()}))[0] == "rounding"
    changed = w.T.copy()
    changed[2, 9] += 1
    cause, reason = explain(two(LINEAR, turned, given, {"w": w}, {"v": changed}))
    assert (cause, "at [9, 2]" in reason) == ("weight", True)


def test_a_weight_in_another_operator_is_found():
    gemm = "g (float[4,16] x) => (float[4,8] y) { y = Gemm<transB = 1>(x, v) }"
    changed = normal(16, 8).T.copy()
    changed[2, 9] += 1
    cause, reason = explain(
        two(LINEAR, gemm, {"x": normal(4, 16, seed=1)}, {"w": normal(16, 8)}, {"v": changed})
    )
    assert (cause, "the weight 'w' differs: 1 of 128" in reason) == ("weight", True)


def test_the_constant_of_a_commutative_operator_may_be_on_either_side():
    before = "g (float[4] x) => (float[4] y) { y = Mul(x, c) }"
    after = "g (float[4] x) => (float[4] y) { y = Mul(c, x) }"
    given, c = {"x": normal(4, seed=1)}, normal(4)
    assert explain(two(before, after, given, {"c": c}))[0] == "rounding"
    cause, reason = explain(two(before, after, given, {"c": c}, {"c": c * np.float32(2)}))
    assert (cause, "'c' is the first model's times 2" in reason) == ("weight", True)


def test_a_mask_value_is_named():
    text = "g (bool[2,4] m, float[2,4] x) => (float[2,4] y) { y = Where(m, x, v) }"
    given = {"m": np.array([[True, False] * 2] * 2), "x": normal(2, 4)}
    mine, theirs = {"v": np.float32(-np.inf)}, {"v": np.float32(-1e4)}
    cause, reason = explain(two(text, text, given, mine, theirs))
    assert cause == "weight"
    assert "-inf here and -10000 there" in reason


@pytest.mark.parametrize(
    ("before", "after", "shape", "weights", "expected"),
    [
        (NORM, NORM.replace("1e-05", "0.1"), (2, 3, 16), {"s": normal(16), "b": normal(16)},
         "epsilon of LayerNormalization is 1e-05 in the first model and 0.1"),
        (
            "g (float[4,4,4] x) => (float[4,4,4] y) { y = Transpose<perm = [0, 2, 1]>(x) }",
            "g (float[4,4,4] x) => (float[4,4,4] y) { y = Transpose<perm = [1, 0, 2]>(x) }",
            (4, 4, 4), {}, "perm of Transpose is [0, 2, 1] in the first model and [1, 0, 2]",
        ),
        (
            "g (float[4,4] x) => (float[4,4] y) { y = Transpose(x) }",
            "g (float[4,4] x) => (float[4,4] y) { y = Transpose<perm = [0, 1]>(x) }",
            (4, 4), {}, "perm of Transpose is [1, 0] in the first model and [0, 1]",
        ),
        (
            "g (float[4,4] x) => (float[4,4] y) { y = Softmax<axis = 0>(x) }",
            "g (float[4,4] x) => (float[4,4] y) { y = Softmax(x) }",
            (4, 4), {}, "axis of Softmax is 0 in the first model and 1",
        ),
        (CONV, CONV.replace("pads = [1, 1, 1, 1]", "pads = [2, 0, 1, 1]"), (1, 2, 8, 8),
         {"w": normal(4, 2, 3, 3), "b": normal(4)}, "pads of Conv is [1, 1, 1, 1] in the first model and [2, 0, 1, 1]"),
        (
            "g (float[4,4] x) => (float[4,4] y) { y = Clip(x, low, high) }",
            "g (float[4,4] x) => (float[4,4] y) { y = Clip(x, low) }",
            (4, 4), {"low": np.float32(-1), "high": np.float32(0.5)},
            "max of Clip is 0.5 in the first model and not given",
        ),
    ],
    ids=["epsilon", "perm", "default-perm", "default-axis", "pads", "clip"],
)  # fmt: skip
def test_an_attribute_is_named_with_both_values(before, after, shape, weights, expected):
    used = {name: value for name, value in weights.items() if name in after}
    cause, reason = explain(two(before, after, {"x": normal(*shape, seed=5)}, weights, used))
    assert cause == "attribute"
    assert expected in reason


def test_a_shape_that_differs_is_said():
    before = "g (float[4,6] x) => (float[a,b] y) { y = ReduceSum<keepdims = 1>(x, axes) }"
    found = two(before, before, {"x": normal(4, 6)}, {"axes": np.array([0])}, {"axes": np.array([1])})
    cause, reason = explain(found)
    assert cause == "attribute"
    assert "axes of ReduceSum is [0] in the first model and [1]" in reason
    assert "the shape [4, 1] instead of [1, 6]" in reason


def test_stated_defaults_and_axes_from_the_end_are_no_difference():
    before = "g (float[4,6] x) => (float[4,6] y) { y = Softmax(x) }"
    after = "g (float[4,6] x) => (float[4,6] y) { y = Softmax<axis = 1>(x) }"
    far = two(before, after, {"x": normal(4, 6)}, {})
    assert explain(wrong_by(far, 0.1))[0] == "unknown"
    explicit = CONV.replace(
        "pads", 'auto_pad = "NOTSET", dilations = [1, 1], group = 1, strides = [1, 1], pads'
    )
    weights = {"w": normal(4, 2, 3, 3), "b": normal(4)}
    far = two(CONV, explicit, {"x": normal(1, 2, 8, 8)}, weights)
    assert explain(wrong_by(far, 0.1))[0] == "unknown"


def test_an_attribute_of_an_old_opset_is_an_input_of_a_new_one():
    before = "g (float[4,6] x) => (float[4,1] y) { y = ReduceSum<axes = [1]>(x) }"
    after = "g (float[4,6] x) => (float[4,1] y) { y = ReduceSum(x, axes) }"
    given, axes = {"x": normal(4, 6)}, {"axes": np.array([-1])}
    same = two(before, after, given, {}, axes, opset=11, other_opset=13)
    assert explain(wrong_by(same, 0.5))[0] == "unknown"
    before = "g (float[4,4] x) => (float[a,b] y) { y = Pad<pads = [0, 1, 0, 0], value = 2.0>(x) }"
    after = "g (float[4,4] x) => (float[a,b] y) { y = Pad(x, pads, v) }"
    pads = np.array([0, 1, 0, 0])
    found = two(
        before, after, {"x": normal(4, 4)}, {}, {"pads": pads, "v": np.float32(3)}, opset=10, other_opset=13
    )
    cause, reason = explain(found)
    assert (cause, "constant_value of Pad is 2 in the first model and 3" in reason) == ("attribute", True)


def wrong_by(found: Evidence, amount: float) -> Evidence:
    """The evidence with one element of what the other side computed moved."""
    name = next(iter(found.truth))
    own = np.array(found.own[name])
    own.reshape(-1)[3] += np.asarray(amount, own.dtype)
    return replace(found, own={name: own})


def test_another_operator_and_another_structure_are_told_apart():
    relu = "g (float[4,16] x) => (float[4,16] y) { y = Relu(x) }"
    gelu = "g (float[4,16] x) => (float[4,16] y) { y = Gelu(x) }"
    given = {"x": normal(4, 16)}
    cause, reason = explain(two(relu, gelu, given, {}))
    assert (cause, "Relu in the first model is computed by Gelu" in reason) == ("operator", True)
    several = "g (float[4,16] x) => (float[4,16] y) { s = Sigmoid(x)  y = Mul(x, s) }"
    cause, reason = explain(two(relu, several, given, {}))
    assert (cause, "computed by Sigmoid, Mul" in reason) == ("structure", True)


def test_a_node_that_the_other_side_leaves_out():
    add = "g (float[4,16] x) => (float[4,16] y) { y = Add(x, c) }"
    none = "g (float[4,16] x) => (float[4,16] y) { y = Identity(x) }"
    cause, reason = explain(two(add, none, {"x": normal(4, 16)}, {"c": normal(16, seed=2)}, {}))
    assert cause == "operator"
    assert "returns the input 'x' of Add unchanged without 'c'" in reason


def test_swapped_operands():
    before = "g (float[4] a, float[4] b) => (float[4] y) { y = Sub(a, b) }"
    after = "g (float[4] a, float[4] b) => (float[4] y) { y = Sub(b, a) }"
    cause, reason = explain(two(before, after, {"a": normal(4), "b": normal(4, seed=1)}, {}))
    assert (cause, "the operands of Sub are swapped" in reason) == ("operator", True)


def test_a_lower_precision_in_the_second_model_is_seen_by_its_casts():
    wrapped = (
        "g (float[4,16] x) => (float[4,8] y) { h = Cast<to = 10>(x)  v = Cast<to = 10>(w)  z = MatMul(h, v)"
        "  y = Cast<to = 1>(z) }"
    )
    for scale, expected in ((1.0, "precision"), (5e4, "overflow")):
        x, w = normal(4, 16, scale=scale), normal(16, 8)
        found = two(LINEAR, wrapped, {"x": x}, {"w": w})
        with np.errstate(all="ignore"):  # ONNX Runtime removes such Casts on a CPU
            own = (x.astype(np.float16) @ w.astype(np.float16)).astype(np.float32)
        cause, reason = explain(replace(found, own={"y": own}))
        assert cause == expected
        assert "float16" in reason


def test_the_same_in_other_words_is_rounding():
    before = "g (float[8,64] x) => (float[8,64] y) { y = Softmax<axis = 1>(x) }"
    after = (
        "g (float[8,64] x) => (float[8,64] y) { m = ReduceMax(x, a)  d = Sub(x, m)  e = Exp(d)  s = ReduceSum(e, a)"
        "  y = Div(e, s) }"
    )
    cause, reason = explain(two(before, after, {"x": normal(8, 64, scale=3)}, {}, {"a": np.array([1])}))
    assert (cause, "rounding of float32" in reason) == ("rounding", True)


# ---------------------------------------------------------------------------------------------------- half precision


def low(text: str, feed: dict[str, Any], against: Any = "fp16", **weights: Any) -> tuple[str, str]:
    return explain(evidence(model(text, **weights), feed, against=against))


def test_a_square_that_float16_cannot_hold():
    x = normal(2, 4)
    x[1, 2] = 285.0
    cause, reason = low("g (float[2,4] x) => (float[2,4] y) { y = Mul(x, x) }", {"x": x})
    assert cause == "overflow"
    assert "float16 ends at 65504: the output reaches 81225 at [1, 2]" in reason
    assert "one value is beyond" in reason


def test_an_input_that_float16_cannot_hold_is_named():
    x = normal(2, 4)
    x[0, 1] = 3e5
    cause, reason = low("g (float[2,4] x) => (float[2,4] y) { y = Mul(x, c) }", {"x": x}, c=np.float32(1e-3))
    assert cause == "overflow"
    assert "the input 'x' reaches 300000 at [0, 1]" in reason


def test_bfloat16_does_not_overflow_there():
    x = normal(2, 4)
    x[1, 2] = 285.0
    cause, reason = low("g (float[2,4] x) => (float[2,4] y) { y = Mul(x, x) }", {"x": x}, "bf16")
    assert (cause, "bfloat16" in reason) == ("precision", True)


def test_an_epsilon_that_float16_rounds_to_zero():
    given = {"x": np.zeros((2, 4), np.float32)}
    cause, reason = low("g (float[2,4] x) => (float[2,4] y) { y = Add(x, e) }", given, e=np.float32(1e-8))
    assert cause == "underflow"
    assert "8 of them become 0" in reason


def test_a_divisor_that_float16_rounds_to_zero():
    given = {"x": normal(2, 4, seed=1) + 3, "d": np.full((2, 4), 2e-8, np.float32)}
    cause, reason = low("g (float[2,4] x, float[2,4] d) => (float[2,4] y) { y = Div(x, d) }", given)
    assert cause == "overflow"  # 3 / 2e-8 is beyond float16 as well
    given = {"x": np.full((2, 4), 1e-4, np.float32), "d": np.full((2, 4), 2e-8, np.float32)}
    cause, reason = low("g (float[2,4] x, float[2,4] d) => (float[2,4] y) { y = Div(x, d) }", given)
    assert cause == "underflow"
    assert "the input 'd'" in reason
    assert "8 of them become 0" in reason


def test_a_mean_that_is_far_larger_than_the_deviation_cancels_out():
    x = normal(4, 64) * np.float32(0.01) + 30
    mean = x.mean(axis=1, keepdims=True, dtype=np.float32)
    text = "g (float[4,64] x, float[4,1] m) => (float[4,64] y) { y = Sub(x, m) }"
    cause, reason = low(text, {"x": x, "m": mean})
    assert cause == "cancellation"
    assert "cancel out" in reason
    assert "loses 3." in reason


def test_a_sum_that_cancels_out_in_float32():
    x = normal(4, 1000, scale=1000.0)
    x[:, 500:] = -x[:, :500] + normal(4, 500, seed=2, scale=1e-3)
    text = "g (float[4,1000] x) => (float[4] y) { y = ReduceSum<keepdims = 0>(x, a) }"
    truth = model(text, a=np.array([1]))
    other = x[:, np.random.default_rng(1).permutation(1000)].astype(np.float32)
    summed = np.zeros(4, np.float32)
    for column in other.T:
        summed += column
    cause, reason = explain(evidence(truth, {"x": x}, own={"y": summed}, against="ort-cpu"))
    assert (cause, "cancel out" in reason) == ("cancellation", True)


def test_a_sum_without_cancellation_is_precision():
    text = "g (float[4,64] x) => (float[4] y) { y = ReduceMean<keepdims = 0>(x, a) }"
    cause, reason = low(text, {"x": np.abs(normal(4, 64))}, a=np.array([1]))
    assert (cause, "roundings of float16" in reason) == ("precision", True)


def test_a_function_that_amplifies_rounding_is_ill_conditioned():
    cause, reason = low(
        "g (float[2,64] x) => (float[2,64] y) { y = Sin(x) }", {"x": normal(2, 64, scale=200.0)}
    )
    assert cause == "ill-conditioned"
    assert "move the truth itself by" in reason


def test_a_function_of_known_conditioning_is_not():
    cause, _ = low("g (float[2,64] x) => (float[2,64] y) { y = Tanh(x) }", {"x": normal(2, 64)})
    assert cause == "precision"


# ----------------------------------------------------------------------------------------------------------- ranges


def test_a_cast_of_what_int32_cannot_hold():
    text = "g (float[4] x) => (int64[4] y) { y = Cast<to = 7>(x) }"
    x = np.array([1, 2, 3e9, 4], np.float32)
    clamped = np.array([1, 2, 2**31 - 1, 4])
    cause, reason = explain(evidence(model(text), {"x": x}, own={"y": clamped}, against="trt-network"))
    assert cause == "saturation"
    assert "int32 holds -2147483648 to 2147483647: Cast gets 3e+09 at [2]" in reason


def test_integers_beyond_int32():
    text = "g (int64[3] x) => (int64[3] y) { y = Mul(x, x) }"
    x = np.array([1, 70000, 3])
    wrapped = (x * x).astype(np.int32).astype(np.int64)
    cause, reason = explain(evidence(model(text), {"x": x}, own={"y": wrapped}, against="trt-gpu"))
    assert (cause, "int32 ends at 2147483647" in reason) == ("saturation", True)


def test_a_quantizer_that_saturates_at_another_value():
    text = "g (float[4] x) => (uint8[4] y) { y = QuantizeLinear(x, s, z) }"
    truth = model(text, s=np.float32(0.1), z=np.uint8(0))
    x = np.array([1.0, 5.0, 20.0, 2.0], np.float32)
    as_int8 = np.clip(np.round(x / 0.1), -128, 127).astype(np.int8)
    cause, reason = explain(evidence(truth, {"x": x}, own={"y": as_int8}, against="trt-network"))
    assert cause == "saturation"
    assert "20 at [2] is 200.0 steps" in reason


def test_a_quantizer_within_its_range_is_no_saturation():
    text = "g (float[4] x) => (uint8[4] y) { y = QuantizeLinear(x, s, z) }"
    truth = model(text, s=np.float32(0.1), z=np.uint8(0))
    x = np.array([1.0, 5.0, 6.0, 2.0], np.float32)
    off = np.array([10, 50, 90, 20], np.uint8)
    assert explain(evidence(truth, {"x": x}, own={"y": off}, against="trt-network"))[0] == "import"


# ---------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv"])
def test_products_of_tensor_float_32_are_recognized(op):
    if op == "Conv":
        text = "g (float[1,8,9,9] x) => (float[1,4,a,b] y) { y = Conv<pads = [1, 0, 2, 1], strides = [2, 1]>(x, w) }"
        x, w = normal(1, 8, 9, 9, seed=1), normal(4, 8, 3, 3)
    else:
        text = f"g (float[16,64] x) => (float[16,8] y) {{ y = {op}(x, w) }}"
        x, w = normal(16, 64, seed=1), normal(64, 8)
    truth = model(text, w=w)
    rounded = model(text, w=to_tf32(w).astype(np.float32))
    own = evidence(truth, {"x": to_tf32(x).astype(np.float32)}, rounded).own
    cause, reason = explain(evidence(truth, {"x": x}, own=own, against="trt-gpu"))
    assert cause == "kernel"
    assert "TF32: rounding the factors to 10 bits gives" in reason


def test_another_order_of_sums_is_a_kernel_and_not_tf32():
    x, w = normal(8, 4096, seed=1), normal(4096, 4)
    text = "g (float[8,4096] x) => (float[8,4] y) { y = MatMul(x, w) }"
    own = np.zeros((8, 4), np.float32)
    for k in range(4096):
        own += x[:, k : k + 1] * w[k]
    found = evidence(model(text, w=w), {"x": x}, own={"y": own}, against="trt-gpu")
    found = replace(found, error=replace(found.error, noise=0.0))
    cause, reason = explain(found)
    assert cause in ("kernel", "rounding")
    assert "TF32" not in reason


def test_tf32_is_no_excuse_on_a_cpu_or_for_a_wrong_weight():
    text = "g (float[16,64] x) => (float[16,8] y) { y = MatMul(x, w) }"
    x, w = normal(16, 64, seed=1), normal(64, 8)
    own = (to_tf32(x) @ to_tf32(w)).astype(np.float32)
    found = evidence(model(text, w=w), {"x": x}, own={"y": own}, against="ort-cpu")
    assert explain(found)[0] == "unknown"
    own = x @ (w * np.float32(1.01))
    found = evidence(model(text, w=w), {"x": x}, own={"y": own}, against="trt-gpu")
    assert explain(found)[0] == "unknown"


def test_products_near_each_other_are_rounding():
    text = "g (float[16,64] x) => (float[16,8] y) { y = MatMul(x, w) }"
    x, w = normal(16, 64, seed=1), normal(64, 8)
    own = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    assert explain(evidence(model(text, w=w), {"x": x}, own={"y": own}, against="trt-gpu"))[0] == "rounding"


# ---------------------------------------------------------------------------------------------------------- hazards


def hazard(code: str, severity: Severity, **more: Any) -> Hazard:
    return Hazard(code, "some-rule", severity, Place((), "", "Relu", "y", 0), "is read differently", **more)


def test_a_known_hazard_comes_first_where_tensorrt_reads_the_model():
    truth = model("g (float[4,16] x) => (float[4,16] y) { y = Relu(x) }")
    x = normal(4, 16)
    for against in ("trt-network", "trt-gpu"):
        found = evidence(
            truth, {"x": x}, own={"y": x}, against=against, findings=[hazard("OPS010", Severity.ERROR)]
        )
        cause, reason = explain(found)
        assert cause == "hazard"
        assert reason.startswith("OPS010 some-rule: is read differently")
    # In two models, what TensorRT would read differently explains nothing.
    found = evidence(truth, {"x": x}, own={"y": x}, findings=[hazard("OPS010", Severity.ERROR)])
    assert explain(found)[0] == "operator"


def test_a_finding_of_no_consequence_is_no_cause():
    truth = model("g (float[4,16] x) => (float[4,16] y) { y = Relu(x) }")
    some = [hazard("GRA011", Severity.INFO)]
    own = {"y": normal(4, 16, seed=9)}
    found = evidence(truth, {"x": normal(4, 16)}, own=own, against="trt-network", findings=some)
    assert explain(found)[0] == "import"


def test_equal_values_are_equal():
    x = normal(4, 16)
    found = evidence(
        model("g (float[4,16] x) => (float[4,16] y) { y = Relu(x) }"),
        {"x": x},
        own={"y": np.maximum(x, 0)},
        against="ort-cpu",
    )
    assert explain(found) == ("rounding", "both sides compute the same from the same inputs")
