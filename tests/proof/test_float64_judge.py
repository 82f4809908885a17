"""Float64 as a judge of rounding: what it excuses in float32, and what it never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxfix
from onnxfix.proof import copies
from onnxfix.proof.compare.compare import Metrics, compare
from onnxfix.proof.compare.tolerance import Precise
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.runtime.backends import reference
from support import networks

INF, NAN = float("inf"), float("nan")
MOST = float(np.finfo(np.float32).max)
CPU = ("contract", "reference", "ort-cpu")


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def f64(*values: float) -> Any:
    return np.array(values, np.float64)


def judged(original: Any, fixed: Any, precise: Precise, **more: Any) -> Metrics:
    (found,) = compare("y", original, fixed, exact=more.pop("exact", False), precise=precise, **more)
    return found


# ------------------------------------------------------------------------------------------------- comparison


def test_four_times_as_far_as_the_original_and_no_more() -> None:
    exact = f64(1, 2)
    for moved in ((), (f32(1, 2),), (f32(1, 2.5), f32(1, 2))):
        far = 0.5 if len(moved) == 2 else 0.1
        known = Precise(exact, exact, moved)
        for share, agreement in ((3.9, "within"), (4.2, "different")):
            found = judged(f32(1, 2.1), f32(1, 2 - share * far), known)
            assert found.agreement == agreement, (far, share)
            assert found.by_noise == (agreement == "within")


def test_element_by_element() -> None:
    """That one element is chaotic excuses no other."""
    known = Precise(f64(1, 2), f64(1, 2), (f32(9, 2),))
    assert judged(f32(5, 2), f32(7, 2), known).agreement == "within"
    assert judged(f32(5, 2), f32(5, 2.1), known).agreement == "different"


def test_models_that_differ_in_float64_are_not_excused() -> None:
    known = Precise(f64(1, 2), f64(1, 2.1), (f32(1, 9),))
    assert judged(f32(1, 2), f32(1, 2.1), known).agreement == "different"


def test_never_where_identical_bits_are_asked_for() -> None:
    known = Precise(f64(1), f64(1), (f32(2),))
    assert judged(f32(1), f32(2), known).agreement == "within"
    assert judged(f32(1), f32(2), known, exact=True).agreement == "different"


@pytest.mark.parametrize(
    ("original", "fixed", "exact", "agreement"),
    [
        (-MOST, -INF, -INF, "within"),
        (MOST, INF, INF, "within"),
        (MOST, -INF, -INF, "different"),
        (1.0, INF, INF, "different"),
        (1.0, INF, 1.0, "different"),
        (INF, 1.0, 1.0, "different"),
        (1.0, NAN, NAN, "different"),
    ],
)
def test_infinity_only_where_the_original_has_the_end_of_its_type_for_it(
    original: float, fixed: float, exact: float, agreement: str
) -> None:
    known = Precise(f64(2, exact), f64(2, exact), (f32(2, 9),))
    assert judged(f32(2, original), f32(2, fixed), known).agreement == agreement


def test_integers_must_be_those_of_the_original_once_its_inputs_move() -> None:
    one, two, three = (np.array([7, value], np.int64) for value in (1, 2, 3))
    assert judged(one, two, Precise(one, one, (one, two))).agreement == "within"
    assert judged(one, two, Precise(one, two, (one, two))).agreement == "different"
    assert judged(one, three, Precise(one, one, (one, two))).agreement == "different"
    assert judged(one, two, Precise(two, two, ())).agreement == "different", "what a Cast cuts off, say"


def test_another_shape_or_structure_is_no_judge() -> None:
    for value in (f64(1, 2), np.array([1]), None):
        assert judged(f32(1), f32(2), Precise(value, value, (f32(9),))).agreement == "different"
    parts = compare("y", [f32(1)], [f32(2)], exact=False, precise=Precise([f64(1)], [f64(1)], ([f32(9)],)))
    assert [part.agreement for part in parts] == ["within"]
    parts = compare("y", [f32(1)], [f32(2)], exact=False, precise=Precise([], [], ()))
    assert [part.agreement for part in parts] == ["different"]


# ------------------------------------------------------------------------------------------------- the ladder

ATTENTION = """g (float[2,3,4,8] Q, float[2,3,6,8] K, float[2,3,6,8] V{mask}, float[2,3,12,8] past_key,
    float[2,3,12,8] past_value) => (float[2,3,4,8] Y, float[2,3,18,8] present_key, float[2,3,18,8] present_value{out})
    {{ Y, present_key, present_value{out_name} = Attention{how}(Q, K, V, {mask_name}, past_key, past_value) }}"""
PLAIN = ATTENTION.format(mask="", out="", out_name="", how="", mask_name="")
BIASED = ATTENTION.format(
    mask=", float[2,1,4,18] attn_mask",
    out=", float[2,3,4,18] qk_matmul_output",
    out_name=", qk_matmul_output",
    how="<is_causal = 1, qk_matmul_output_mode = 1>",
    mask_name="attn_mask",
)


@pytest.mark.parametrize("text", [PLAIN, BIASED], ids=["plain", "causal with a mask and its scores"])
def test_attention_with_a_cache_is_not_withdrawn_for_scores_near_1e9(tmp_path: Path, text: str) -> None:
    path = networks.write(tmp_path / "m.onnx", networks.model(text, 23))
    report = onnxfix.apply(path, tmp_path / "out.onnx", numeric_fixes=True, rungs=CPU)
    assert [item.code for item in report.withdrawn] == []
    assert "OPS050" in [item.code for item in report.applied]
    rung = report.verdict.rung("ort-cpu")
    assert "decided by rounding in the original too" in rung.reason
    assert any(metric.by_noise for feed in rung.feeds for metric in feed.metrics)


def written_out(folder: Path) -> tuple[Path, ModelProto]:
    path = networks.write(folder / "a.onnx", networks.model(PLAIN, 23))
    onnxfix.apply(path, folder / "b.onnx", numeric_fixes=True, verify=False)
    return path, onnx.load(folder / "b.onnx")


def scaled(model: ModelProto, factor: float) -> ModelProto:
    """The model with its first product of two tensors that are computed multiplied by a factor."""
    node = next(one for one in model.graph.node if one.op_type == "MatMul")
    place, wanted = list(model.graph.node).index(node), node.output[0]
    node.output[0] = "mutated"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(factor), "factor"))
    model.graph.node.insert(place + 1, helper.make_node("Mul", ["mutated", "factor"], [wanted]))
    return model


def swapped(model: ModelProto) -> ModelProto:
    node = next(one for one in model.graph.node if one.op_type == "Concat" and "past_key" in one.input)
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return model


def along_another_axis(model: ModelProto) -> ModelProto:
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Softmax" else ():
            if attribute.name == "axis":
                attribute.i = -2
                return model
    node = next(one for one in model.graph.node if one.op_type == "Softmax")
    node.attribute.append(helper.make_attribute("axis", -2))
    return model


MUTANTS = {
    "scores a thousandth too large": lambda model: scaled(model, 1.001),
    "scores negated": lambda model: scaled(model, -1.0),
    "the cache behind what is new": swapped,
    "softmax along another axis": along_another_axis,
}


@pytest.mark.parametrize("mutate", MUTANTS.values(), ids=MUTANTS)
def test_a_wrong_attention_still_fails(tmp_path: Path, mutate: Any) -> None:
    path, model = written_out(tmp_path)
    onnx.save(mutate(model), tmp_path / "b.onnx")
    verdict = verify(path, tmp_path / "b.onnx", exact=False, rungs=("reference", "ort-cpu"))
    assert [rung.status for rung in verdict.rungs] == ["failed", "failed"]


def test_a_right_one_passes_unless_bits_are_asked_for(tmp_path: Path) -> None:
    path, _ = written_out(tmp_path)
    for exact, status in ((False, "passed"), (True, "failed")):
        verdict = verify(path, tmp_path / "b.onnx", exact=exact, rungs=("ort-cpu",))
        assert [rung.status for rung in verdict.rungs] == [status]


def rung(folder: Path, before: str, after: str, name: str, **more: Any) -> RungResult:
    for file, text in (("a.onnx", before), ("b.onnx", after)):
        networks.write(folder / file, networks.model(text, more.get("opset", 20)))
    more.pop("opset", None)
    return verify(folder / "a.onnx", folder / "b.onnx", exact=False, rungs=[name], **more).rungs[0]


BOTH = pytest.mark.parametrize("name", ["reference", "ort-cpu"])


@BOTH
def test_right_in_float64_and_far_worse_in_float32(tmp_path: Path, name: str) -> None:
    """The variance as a difference of two means of squares: the same number, and its digits cancel out."""
    head = "g (float[8] x) => (float[1] y) <int64[1] a = {0}> { m = ReduceMean(x, a)"
    before = f"{head} d = Sub(x, m) q = Mul(d, d) y = ReduceMean(q, a) }}"
    after = f"{head} q = Mul(x, x) n = ReduceMean(q, a) p = Mul(m, m) y = Sub(n, p) }}"
    feed = {"x": np.array([1000, 1001, 1002, 1000.5, 1001.25, 999, 1003, 1000], np.float32)}
    assert rung(tmp_path, before, after, name, inputs=[feed]).status == "failed"


@BOTH
def test_the_other_way_to_round_what_lies_in_the_middle(tmp_path: Path, name: str) -> None:
    before = "g (float[4] x) => (float[4] y) { y = Round(x) }"
    after = "g (float[4] x) => (float[4] y) <float h = {0.5}> { a = Add(x, h) y = Floor(a) }"
    assert rung(tmp_path, before, after, name, inputs=[{"x": f32(0.5, 1.5, 2.5, 3)}]).status == "failed"
    assert rung(tmp_path, before, after, name, inputs=[{"x": f32(0.6, 1.5, 2.4, 3)}]).status == "passed"


@BOTH
@pytest.mark.parametrize(
    ("kind", "value"), [("double", np.array([1 + 2.0**-30])), ("int64", np.array([2**24 + 1]))]
)
def test_what_a_cast_to_float32_rounds_away_is_what_the_model_says(
    tmp_path: Path, kind: str, value: Any, name: str
) -> None:
    number = 11 if kind == "double" else 7
    before = f"""g ({kind}[1] x, float[1] z) => (double[1] y) {{
        f = Cast<to = 1>(x) b = Cast<to = {number}>(f) d = Sub(x, b) y = Cast<to = 11>(d) }}"""
    after = f"g ({kind}[1] x, float[1] z) => (double[1] y) {{ d = Sub(x, x) y = Cast<to = 11>(d) }}"
    feed = {"x": value, "z": f32(1)}
    assert rung(tmp_path, before, after, name, inputs=[feed]).status == "failed"
    assert rung(tmp_path, before, before, name, inputs=[feed]).status == "passed"


# ------------------------------------------------------------------------------------------------- float64


def floats(model: ModelProto) -> set[int]:
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    infos = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    return {info.type.tensor_type.elem_type for info in infos}


def test_no_float32_is_left() -> None:
    text = """g (float[2] x, bool c, int64[1] n) => (float[2] y) <float[2] w = {1, 2}> {
        a = Constant<value_float = 0.5>() b = Constant<value_floats = [1.0, 2.0]>() z = ConstantOfShape(n)
        h = Cast<to = 1>(c) s = Mul(x, h) t = Add(s, a) u = Mul(t, b) v = Add(u, z)
        y = If(c)<then_branch = p () => (float[2] i) { k = Constant<value_float = 0.25>() i = Mul(v, k) },
                  else_branch = q () => (float[2] j) { j = Mul(v, w) }> }"""
    model = copies.doubled(networks.model(text))
    assert TensorProto.FLOAT not in floats(model)
    feed = {"x": f64(3, 5), "c": np.array(True), "n": np.array([2])}
    (found,) = reference.evaluator(model).run(None, feed)
    assert found.dtype == np.float64
    assert found.tolist() == [0.875, 2.75]


def test_the_evaluator_where_the_backend_has_no_kernels(tmp_path: Path) -> None:
    """QuantizeLinear of float64 is no operator of ONNX Runtime's; of the evaluator it is."""
    text = """g (float[2] x) => (float[2] y) <float s = {0.1}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    path = networks.write(tmp_path / "m.onnx", text)
    made = copies.load_doubled("ort-cpu", (path, path), str(tmp_path))
    first, second = made.run(copies.double_feed({"x": f32(1, 2)}))
    assert first["y"].dtype == np.float64
    assert np.allclose(first["y"], [1, 2])
    assert np.array_equal(first["y"], second["y"])


def test_without_it_a_difference_fails_as_before_and_the_notes_say_why(tmp_path: Path) -> None:
    """The evaluator has no operator of this domain, and ONNX Runtime none of float64."""
    head = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g (float[1,1,3] x) => (float[1,1,3] y)'
    before = f"{head} <float[1,1,1] w = {{1.5}}> {{ y = com.microsoft.FusedConv(x, w) }}"
    after = f"{head} <float[1,1,1] w = {{1.6}}> {{ y = com.microsoft.FusedConv(x, w) }}"
    found = rung(tmp_path, before, after, "ort-cpu")
    assert found.status == "failed"
    assert any("the original could not run in float64: " in note for note in found.notes)
