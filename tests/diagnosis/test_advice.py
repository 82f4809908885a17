"""What to do about a culprit: fixes of rules, nodes to keep in float32, tolerances; and where findings come from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfix.diagnosis.advice import advise, keep_fp32, tolerance
from onnxfix.diagnosis.explain import explain
from onnxfix.diagnosis.findings import collect
from onnxfix.diagnosis.records import Culprit, NodeError
from onnxfix.place import Place
from onnxfix.rule import Severity
from support.evidence import evidence, normal
from support.models import model

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
