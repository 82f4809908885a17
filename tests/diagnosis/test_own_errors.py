"""Own errors that the largest difference, or noise at the wrong place, would hide; and differences that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.diagnosis.records import Diagnosis
from support.models import model, write


def diagnosed(folder: Path, first: str, second: str, opset: int = 18, **inputs: object) -> Diagnosis:
    for name, text in (("first", first), ("second", second)):
        onnx.save(model(text, opset=opset), folder / f"{name}.onnx")
    np.savez(folder / "inputs.npz", **inputs)
    return onnxfix.diagnose(folder / "first.onnx", folder / "second.onnx", inputs=folder / "inputs.npz")


def first_culprit(found: Diagnosis) -> str:
    assert found.culprits, found.reason
    return found.culprits[0].error.place.output


SCORES = """g (float[3,4,8] x, bool[3,1,8] keep) => (float[3,4,8] y) {
zero = Constant<value = float {0.0}>()  low = Constant<value = float {-3.4e38}>()
m = Where(keep, zero, low)  a = Add(x, m)  s = Softmax<axis = AXIS>(a)  y = Mul(s, x) }"""


def test_a_wrong_axis_beside_a_row_that_is_masked_throughout(tmp_path: Path) -> None:
    """In that row a rounding of the scores, near 1e38, decides: its noise is 1."""
    rng = np.random.default_rng(0)
    keep = np.ones((3, 1, 8), bool)
    keep[2] = False
    x = rng.normal(size=(3, 4, 8)).astype(np.float32)
    texts = [SCORES.replace("AXIS", axis) for axis in ("-1", "-2")]
    assert first_culprit(diagnosed(tmp_path, *texts, x=x, keep=keep)) == "s"


@pytest.mark.parametrize("through", [onnx.TensorProto.FLOAT16, onnx.TensorProto.INT64])
def test_a_rounding_that_the_other_model_has_not(tmp_path: Path, through: int) -> None:
    """One rounding of the rounded number is as much as what is missing; one of what was rounded is much less. What is
    named is the second Cast, or, where the Mul of the second model is taken for that of the first, what reads it."""
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32) * 5
    first = f"""g (float[8,16] x) => (float[8,16] y) {{
    e = Tanh(x)  f = Mul(e, x)  h = Cast<to = {through}>(f)  r = Cast<to = 1>(h)  y = Exp(r) }}"""
    second = "g (float[8,16] x) => (float[8,16] y) { e = Tanh(x)  r = Mul(e, x)  y = Exp(r) }"
    assert first_culprit(diagnosed(tmp_path, first, second, x=x)) in ("r", "y")


def test_sizes_that_a_resize_reads_are_computed_elsewhere(tmp_path: Path) -> None:
    text = """g (float[1,1,N,M] x) => (float[1,1,P,Q] y) {
    s = Shape(x)  two = Constant<value_ints = [1, 1, 2, 2]>()  n = Mul(s, two)  a = Exp(x)
    y = Resize<mode = "MODE">(a, , , n) }"""
    x = np.random.default_rng(0).normal(size=(1, 1, 3, 4)).astype(np.float32)
    texts = [text.replace("MODE", mode) for mode in ("nearest", "linear")]
    assert first_culprit(diagnosed(tmp_path, *texts, x=x)) == "y"


def test_half_precision_among_neighbors_is_no_culprit(tmp_path: Path) -> None:
    """Among others ONNX Runtime computes these nodes without rounding between them, so that 300 squared is finite;
    alone it is not. Only the node that differs is named."""
    text = """g (float16[2,8] x) => (float16[2,8] y) {
    two = Constant<value = float16 {16384}>()  p = Pow(x, two)  v = ReduceMean<axes = [-1]>(p)
    q = Sqrt(v)  d = Div(x, q)  y = LAST(d) }"""
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float16)
    x[0, 0] = 300
    found = diagnosed(tmp_path, *(text.replace("LAST", last) for last in ("Tanh", "Erf")), opset=17, x=x)
    assert [one.error.place.output for one in found.culprits] == ["y"]


def test_bfloat16_needs_an_opset_that_has_it(tmp_path: Path) -> None:
    path = write(tmp_path / "old.onnx", model("g (float[4] x) => (float[4] y) { y = Exp(x) }", opset=11))
    found = onnxfix.diagnose(path, against="bf16")
    assert (found.status, found.cause, found.exit_code) == ("unknown", "refused", 3)
    assert "opset 13" in found.reason
    assert onnxfix.diagnose(path, against="fp16").status == "rounding"


@pytest.mark.parametrize("inside", [False, True])
def test_casts_after_a_node_belong_to_its_name(tmp_path: Path, inside: bool) -> None:
    """The tensor before the Casts equals the other model's tensor without them; the names say which is which."""
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32) * 5
    plain = "g (float[8,16] x) => (float[8,16] y) { e = Tanh(x)  r = Mul(e, x)  n = Neg(r)  y = Exp(n) }"
    rounded = """g (float[8,16] x) => (float[8,16] y) {
    e = Tanh(x)  f = Mul(e, x)  h = Cast<to = 10>(f)  r = Cast<to = 1>(h)  n = Neg(r)  y = Exp(n) }"""
    texts = (plain, rounded) if inside else (rounded, plain)
    assert first_culprit(diagnosed(tmp_path, *texts, x=x)) == "r"
