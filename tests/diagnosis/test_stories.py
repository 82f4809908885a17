"""What people reported, each as a small planted model: broadcasting at batch 1, a maximum error of 251 in half
precision, shapes from int64 parts, Reshape and attention, models of mixed precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import onnxfix
from onnxfix.diagnosis.records import Diagnosis
from support import ort
from support.evidence import normal
from support.models import model
from support.real_tensorrt import REAL
from support.rounded import rounded

pytestmark = pytest.mark.slow


def compared(first: ModelProto, second: ModelProto, **feed: Any) -> Diagnosis:
    return onnxfix.diagnose(first, second, inputs=[feed])


# -------------------------------------------------------------------------------------------- broadcast with batch 1

RIGHT = """g (float[N,4] x, float[N] w) => (float[N,4] y) <int64[1] one = {1}>
{ s = ReduceMax(x, one)  c = Unsqueeze(w, one)  p = Mul(s, c)  m = ReduceMean(p, one)  y = Add(x, m) }"""
TRACED = """g (float[N,4] x, float[N] w) => (float[N,4] y) <int64[1] one = {1}>
{ s = ReduceMax(x, one)  p = Mul(s, w)  m = ReduceMean(p, one)  y = Add(x, m) }"""


def test_a_broadcast_that_is_right_for_batch_1_only():
    first, second = model(RIGHT), model(TRACED)
    alone = compared(first, second, x=normal(1, 4), w=normal(1, seed=1))
    assert (alone.status, alone.exit_code) == ("agree", 0)
    found = compared(first, second, x=normal(3, 4), w=normal(3, seed=1))
    worst = found.culprits[0]
    assert (found.status, worst.error.place.output, worst.error.place.op_type) == ("differ", "c", "Unsqueeze")
    assert worst.reason == "Unsqueeze before 'c' is missing in the second model, where Mul reads 'w'"
    assert worst.rule == "BRC005"


# ------------------------------------------------------------------------------------ maximum error 251 in float16

NORM = """g (float[N,64] x) => (float[N,64] y)
{ m = ReduceMean(x, one)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean(q, one)  e = Add(v, eps)
  s = Sqrt(e)  n = Div(d, s)  y = Mul(n, g) }"""


def norm(x: Any) -> ModelProto:
    """A decomposed LayerNorm whose largest output is 251."""
    weights = {"one": np.array([1]), "two": np.float32(2), "eps": np.float32(1e-5)}
    plain = ort.run(model(NORM, opset=18, g=np.float32(1), **weights), {"x": x})[0]
    return model(NORM, opset=18, g=np.float32(251 / np.abs(plain).max()), **weights)


def test_a_maximum_error_of_251_in_half_precision():
    x = normal(2, 64, scale=100.0)
    x[0, 5] = 900.0
    first = norm(x)
    found = onnxfix.diagnose(first, against="fp16", inputs=[{"x": x}])
    assert found.status == "differ"
    assert found.outputs[0].max_abs == pytest.approx(251, rel=1e-3)
    worst = found.culprits[0]
    assert worst.cause == "overflow"
    assert worst.error.place.output == "q"
    assert "float16 ends at 65504: the output reaches" in worst.reason
    assert "q" in found.keep_fp32
    kept = rounded(first, "fp16", keep=found.keep_fp32)
    y, again = ort.run(first, {"x": x})[0], ort.run(kept, {"x": x})[0]
    assert np.abs(y - again).max() < 1.0  # from 251, with what the diagnosis keeps in float32


def test_the_same_norm_of_small_values_is_rounding():
    x = normal(2, 64)
    found = onnxfix.diagnose(norm(x), against="fp16", inputs=[{"x": x}])
    assert (found.status, found.culprits) == ("rounding", ())


# ------------------------------------------------------------------------------------------------ int64 shape parts

DYNAMIC = """g (float[N,S,8] x) => (float[N,K] y) <int64[1] rest = {-1}, int64 zero = {0}, int64[1] at = {0}>
{ h = Relu(x)  sh = Shape(h)  n = Gather(sh, zero)  n1 = Unsqueeze(n, at)  parts = Concat<axis = 0>(n1, rest)
  y = Reshape(h, parts) }"""
HARD = """g (float[N,S,8] x) => (float[N,K] y) <int64[2] parts = {2, -1}>
{ h = Relu(x)  y = Reshape(h, parts) }"""
WRONG = DYNAMIC.replace("int64 zero = {0}", "int64 zero = {1}")


def test_a_shape_from_int64_parts_that_was_traced():
    first, second = model(DYNAMIC), model(HARD)
    assert compared(first, second, x=normal(2, 3, 8)).status == "agree"
    found = compared(first, second, x=normal(4, 3, 8))
    worst = found.culprits[0]
    assert (worst.error.place.output, worst.cause) == ("y", "attribute")
    assert "shape of Reshape is [4, -1] in the first model and [2, -1] in the second model" in worst.reason
    assert "the output has the shape [2, 48] instead of [4, 24]" in worst.reason
    assert worst.rule.startswith("RSH")


def test_a_wrong_part_of_a_shape():
    found = compared(model(DYNAMIC), model(WRONG), x=normal(4, 3, 8))
    worst = found.culprits[0]
    assert (worst.error.place.output, worst.error.place.op_type, worst.cause) == ("n", "Gather", "weight")
    assert "the constant 'zero' is 0 in the first model and 1 in the other" in worst.reason


@REAL
def test_tensorrt_reads_shapes_from_int64_parts_right():
    found = onnxfix.diagnose(model(DYNAMIC), against="trt-network", inputs=[{"x": normal(4, 3, 8)}])
    assert (found.culprits, found.exit_code) == ((), 0)


# ------------------------------------------------------------------------------ Reshape and attention in Transformers

HEADS = """g (float[N,S,16] x) => (float[N,S,16] y)
{ q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
  q4 = Reshape(q, split)  k4 = Reshape(k, split)  v4 = Reshape(v, split)
  qt = Transpose<perm = [0, 2, 1, 3]>(q4)  kt = Transpose<perm = [0, 2, 3, 1]>(k4)
  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
  a = MatMul(qt, kt)  b = Mul(a, scale)  p = Softmax<axis = -1>(b)  o = MatMul(p, vt)
  ot = Transpose<perm = [0, 2, 1, 3]>(o)  o3 = Reshape(ot, join)  y = MatMul(o3, wo) }"""


def heads(text: str = HEADS, **more: Any) -> ModelProto:
    weights = {name: normal(16, 16, seed=i, scale=0.3) for i, name in enumerate(("wq", "wk", "wv", "wo"))}
    weights |= {"split": np.array([0, 0, 4, 4]), "join": np.array([0, 0, 16]), "scale": np.float32(0.5)}
    made = model(text, **(weights | more))
    used = {name for node in made.graph.node for name in node.input}
    for tensor in [one for one in made.graph.initializer if one.name not in used]:
        made.graph.initializer.remove(tensor)
    return made


def test_heads_that_are_split_by_a_reshape_alone():
    wrong = HEADS.replace("qt = Transpose<perm = [0, 2, 1, 3]>(q4)", "qt = Reshape(q, straight)")
    wrong = wrong.replace("q4 = Reshape(q, split)", "")
    second = heads(wrong, straight=np.array([0, 4, -1, 4]))
    found = compared(heads(), second, x=normal(2, 4, 16, seed=9))
    worst = found.culprits[0]
    assert (worst.error.place.output, worst.cause) == ("qt", "operator")
    assert worst.reason.startswith("Transpose before 'qt' is missing in the second model")
    assert len(found.culprits) == 1


def test_heads_that_are_joined_without_the_transpose():
    wrong = HEADS.replace("ot = Transpose<perm = [0, 2, 1, 3]>(o)", "").replace(
        "Reshape(ot, join)", "Reshape(o, join)"
    )
    second = heads(wrong, join=np.array([0, -1, 16]))
    found = compared(heads(), second, x=normal(2, 4, 16, seed=9))
    worst = found.culprits[0]
    assert worst.error.place.output == "ot"
    assert worst.reason.startswith("Transpose before 'ot' is missing in the second model")
    assert len(found.culprits) == 1


def test_a_scale_that_is_applied_twice():
    wrong = HEADS.replace("q4 = Reshape(q, split)", "qs = Mul(q, scale)  q4 = Reshape(qs, split)")
    found = compared(heads(), heads(wrong), x=normal(2, 4, 16, seed=9))
    worst = found.culprits[0]
    assert (worst.error.place.output, len(found.culprits)) == ("q4", 1)
    assert worst.cause in ("structure", "operator")


# ------------------------------------------------------------------------------------------------ mixed float16/float32

PLAIN = """g (float[N,16] x) => (float[N,16] y)
{ h = MatMul(x, w)  q = Mul(h, h)  s = ReduceSum(q, one)  e = Add(s, eps)  r = Sqrt(e)  n = Div(h, r)
  y = MatMul(n, w) }"""
MIXED = """g (float[N,16] x) => (float[N,16] y)
{ x_h = Cast<to = 10>(x)  w_h = Cast<to = 10>(w)  h_h = MatMul(x_h, w_h)  h = Cast<to = 1>(h_h)
  %s
  s = ReduceSum(q, one)  e = Add(s, eps)  r = Sqrt(e)  n = Div(h, r)
  n_h = Cast<to = 10>(n)  y_h = MatMul(n_h, w_h)  y = Cast<to = 1>(y_h) }"""
ISLAND, LOST = "q = Mul(h, h)", "q_h = Mul(h_h, h_h)  q = Cast<to = 1>(q_h)"


def mixed(square: str) -> ModelProto:
    return model(
        MIXED.replace("%s", square), opset=18, w=normal(16, 16), one=np.array([1]), eps=np.float32(1e-6)
    )


def plain() -> ModelProto:
    return model(PLAIN, opset=18, w=normal(16, 16), one=np.array([1]), eps=np.float32(1e-6))


def test_a_norm_that_lost_its_float32_island():
    x = normal(3, 16, seed=4, scale=100.0)
    assert np.abs(x @ normal(16, 16)).max() ** 2 > 65504
    found = compared(plain(), mixed(LOST), x=x)
    worst = found.culprits[0]
    assert (worst.error.place.output, worst.cause) == ("q", "overflow")
    assert "float16 ends at 65504" in worst.reason
    assert "in float32" in worst.advice


def test_a_norm_within_its_float32_island_differs_by_half_precision_only():
    x = normal(3, 16, seed=4, scale=100.0)
    found = compared(plain(), mixed(ISLAND), x=x)
    assert all(one.cause == "precision" for one in found.culprits)
    assert all(one.error.own_error < 2e-3 for one in found.culprits)
