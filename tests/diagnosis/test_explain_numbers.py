"""Causes that lie in the numbers: range, precision, conditioning, kernels, and hazards that rules name; and what to
do about a culprit: fixes of rules, nodes to keep in float32, tolerances."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfix.diagnosis.advice import advise, keep_fp32, tolerance
from onnxfix.diagnosis.explain import explain
from onnxfix.diagnosis.findings import Hazard, collect
from onnxfix.diagnosis.records import Culprit, NodeError
from onnxfix.place import Place
from onnxfix.rule import Severity
from support.evidence import evidence, normal
from support.models import model

# ---------------------------------------------------------------------------------------------------- half precision


def with_element(value: float) -> Any:
    """Normal numbers, one of them this."""
    x = normal(2, 4)
    x[1, 2] = value
    return x


CENTERED = normal(4, 64) * np.float32(0.01) + 30
MEAN = CENTERED.mean(axis=1, keepdims=True, dtype=np.float32)
SMALL, TINY = (np.full((2, 4), value, np.float32) for value in (1e-4, 2e-8))
DIV = "g (float[2,4] x, float[2,4] d) => (float[2,4] y) { y = Div(x, d) }"
SUB = "g (float[4,64] x, float[4,1] d) => (float[4,64] y) { y = Sub(x, d) }"
MEANS = "g (float[4,64] x) => (float[4] y) { y = ReduceMean<keepdims = 0>(x, a) }"
ONE = "g (float[%s] x) => (float[%s] y) { y = %s }"

#: The model (or its shape and node), its inputs, a weight, the other side, the cause, and words of the reason.
LOW: list[Any] = [
    (("2,4", "Mul(x, x)"), [with_element(285.0)], {}, "fp16", "overflow",
     "float16 ends at 65504: the output reaches 81225 at [1, 2]"),
    (("2,4", "Mul(x, x)"), [with_element(285.0)], {}, "fp16", "overflow", "one value is beyond"),
    (("2,4", "Mul(x, c)"), [with_element(3e5)], {"c": np.float32(1e-3)}, "fp16", "overflow",
     "the input 'x' reaches 300000 at [1, 2]"),
    (("2,4", "Mul(x, x)"), [with_element(285.0)], {}, "bf16", "precision", "bfloat16"),
    (("2,4", "Add(x, e)"), [np.zeros((2, 4), np.float32)], {"e": np.float32(1e-8)}, "fp16", "underflow",
     "8 of them become 0"),
    (("2,64", "Mul(x, c)"), [normal(2, 64, scale=1e-6)], {"c": np.float32(0.77)}, "fp16", "underflow",
     "of the values of the output that are not 0 are below 6.1e-05"),
    (DIV, [normal(2, 4, seed=1) + 3, TINY], {}, "fp16", "overflow", ""),  # 3 / 2e-8 is beyond float16 as well
    (DIV, [SMALL, TINY], {}, "fp16", "underflow", "the input 'd'"),
    (DIV, [SMALL, TINY], {}, "fp16", "underflow", "8 of them become 0"),
    (SUB, [CENTERED, MEAN], {}, "fp16", "cancellation", "cancel out"),
    (SUB, [CENTERED, MEAN], {}, "fp16", "cancellation", "loses 3."),
    (MEANS, [np.abs(normal(4, 64))], {"a": np.array([1])}, "fp16", "precision", "roundings of float16"),
    (("2,64", "Sin(x)"), [normal(2, 64, scale=200.0)], {}, "fp16", "ill-conditioned", "move the truth itself by"),
    (("2,64", "Tanh(x)"), [normal(2, 64)], {}, "fp16", "precision", ""),
]  # fmt: skip


@pytest.mark.parametrize(("given", "inputs", "weights", "against", "cause", "words"), LOW)
def test_half_precision(given: Any, inputs: Any, weights: Any, against: Any, cause: str, words: str) -> None:
    text = given if isinstance(given, str) else ONE % (given[0], given[0], given[1])
    feed = dict(zip("xd", inputs, strict=False))
    found, reason = explain(evidence(model(text, **weights), feed, against=against))
    assert (found, words in reason) == (cause, True), reason


def test_a_conversion_that_saturates_is_overflow_and_a_larger_value_is_none():
    text = "g (float[2,4] x) => (float[2,4] y) { y = Mul(x, x) }"
    x = normal(2, 4)
    x[1, 2] = 285.0
    saturated = np.minimum(x * x, np.float32(65504))
    assert explain(evidence(model(text), {"x": x}, own={"y": saturated}, against="fp16"))[0] == "overflow"
    larger = (x.astype(np.float16).astype(np.float32) * np.float32(1.0001)) ** 2
    found = replace(evidence(model(text), {"x": x}, own={"y": larger}, against="trt-gpu"), types={"float16"})
    assert explain(found)[0] == "precision"


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


# ---------------------------------------------------------------------------------------------------------- kernels


def to_tf32(values):
    """Values with 10 bits after the leading one, as float64."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint64(0x1FFF)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


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
    assert "TF32: the error is" in reason


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


MASKED = """g (bool[2,4] m, float[2,4] x) => (float[2,4] y) <float low = {-3.4e38}>
{ w = Where(m, x, low)  y = Softmax(w) }"""
TRILU = "g (float[4,4] x) => (float[4,4] y) { y = Trilu(x) }"


@pytest.mark.parametrize(
    ("noise", "expected"),
    [(1e-6, 5e-6), (1.2e-6, 5e-6), (1.3e-6, 1e-5), (2.4e-4, 1e-3), (0.0, 1e-7), (math.inf, math.inf)],
)
def test_a_tolerance_is_four_times_the_noise_rounded_up(noise, expected):
    assert tolerance(noise) == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------------- findings


def test_findings_are_by_the_outputs_of_their_nodes():
    found = collect(model(TRILU))
    (one,) = found.at(["y"])
    assert (one.code, one.severity, one.safety, one.half) == ("OPS010", Severity.ERROR, "exact", False)
    assert found.at(["x"]) == ()


def test_findings_inside_a_branch_are_those_of_the_node_around_it():
    text = """g (bool c, float[4,4] x) => (float[4,4] y) {
      y = If (c) <then_branch = a () => (float[4,4] p) { p = Trilu(x) },
                  else_branch = b () => (float[4,4] q) { q = Neg(x) }>
    }"""
    assert [one.code for one in collect(model(text)).at(["y"])] == ["OPS010"]


def test_rules_about_half_precision_see_the_model_as_it_would_be():
    made = model(MASKED)
    before = made.SerializeToString()
    assert not [one for one in collect(made).at(["w"]) if one.code == "PRC003"]
    found = collect(made, low="float16").at(["w"])
    assert [(one.code, one.half, one.safety) for one in found if one.code.startswith("PRC")] == [
        ("PRC003", True, "unsafe")
    ]
    assert not [one for one in collect(made, low="bfloat16").at(["w"]) if one.half]
    assert made.SerializeToString() == before


# --------------------------------------------------------------------------------------------------------- advice


def test_a_fix_of_onnxfix_is_the_advice_where_tensorrt_misreads_a_node():
    made = model(TRILU)
    x = normal(4, 4)
    found = evidence(
        made, {"x": x}, own={"y": np.tril(x)}, against="trt-network", findings=collect(made).at(["y"])
    )
    cause, _ = explain(found)
    advice = advise(cause, found, "model.onnx")
    assert (cause, advice.rule, advice.fix) == ("hazard", "OPS010", "exact")
    assert advice.text.startswith("onnxfix apply model.onnx --select OPS010 (")


def test_a_mask_in_half_precision_gets_the_rule_and_the_way_out():
    where = "g (bool[2,4] m, float[2,4] x) => (float[2,4] w) { w = Where(m, x, low) }"
    feed = {"m": np.array([[True, False] * 2] * 2), "x": normal(2, 4)}
    hazards = collect(model(MASKED), low="float16").at(["w"])
    found = evidence(model(where, low=np.float32(-3.4e38)), feed, against="fp16", findings=hazards)
    cause, _ = explain(found)
    advice = advise(cause, found)
    assert (cause, advice.rule, advice.fix) == ("overflow", "PRC003", "unsafe")
    assert "--select PRC003 --unsafe-fixes (use -65504)" in advice.text
    assert "keep the node of 'w' in float32" in advice.text


def advice_for(own: Any, against: Any = "ort-cpu") -> str:
    made = model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    found = evidence(made, {"x": np.ones(4, np.float32)}, own={"y": own}, against=against)
    return advise(explain(found)[0], found).text


def test_rounding_gets_a_tolerance_above_the_error():
    text = advice_for(np.ones(4, np.float32) + np.float32(2e-7))
    assert text == "this is rounding: a tolerance of 1e-06 of the scale is right"


def test_what_is_unknown_is_to_be_reduced():
    assert "onnxfix reduce" in advice_for(np.zeros(4, np.float32))


def test_kernels_of_a_gpu_are_asked_without_tf32_first():
    truth = model("g (float[4,8] x) => (float[4,4] y) { y = MatMul(x, w) }", w=normal(8, 4))
    found = evidence(
        truth, {"x": normal(4, 8, seed=1)}, own={"y": np.zeros((4, 4), np.float32)}, against="trt-gpu"
    )
    text = advise("kernel", replace(found, error=replace(found.error, own_error=2e-4, noise=1e-7))).text
    assert "NVIDIA_TF32_OVERRIDE=0" in text
    assert "a tolerance of 0.001 of the scale" in text


# ---------------------------------------------------------------------------------------------------- keep in float32


def culprit(name: str, output: str, cause: Any, around: Place | None = None) -> Culprit:
    return Culprit(NodeError(Place((), name, "Mul", output, 0, around), 1.0), cause, "")


def test_nodes_that_only_round_are_not_kept_where_others_overflow():
    some = [culprit("/a", "a", "overflow"), culprit("/b", "b", "precision"), culprit("", "c", "cancellation")]
    assert keep_fp32(some) == ("/a", "c")
    assert keep_fp32([some[1], culprit("/w", "w", "weight")]) == ("/b",)
    assert keep_fp32([culprit("/w", "w", "weight")]) == ()


def test_a_node_inside_a_branch_keeps_the_node_around_it():
    outer = Place((), "/if", "If", "y", 3)
    assert keep_fp32([culprit("/inner", "i", "overflow", outer)]) == ("/if",)
