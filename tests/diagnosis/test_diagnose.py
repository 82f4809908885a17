"""A diagnosis from end to end, on models of every kind: the status, the node, and how much was run for it. Own errors
that the largest difference, or noise at the wrong place, would hide; and differences that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import onnxfix
from onnxfix import UsageError
from onnxfix.diagnosis.records import Diagnosis
from support.models import model, write

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
CHAIN = """g (float[3,4] x) => (float[3,4] y) {
    a = Sin(x)
    b = Mul(a, w)
    c = Tanh(b)
    y = Add(c, a)
}"""


def compared(first: ModelProto, second: ModelProto, *samples: dict[str, Any]) -> Diagnosis:
    return onnxfix.diagnose(first, second, inputs=list(samples) or [{"x": X}])


def named(found: Diagnosis) -> list[str]:
    return [one.error.place.output for one in found.culprits]


def test_agreement() -> None:
    found = compared(model(CHAIN, w=np.float32(2)), model(CHAIN, w=np.float32(2)))
    assert (found.status, found.exit_code, named(found), found.begins) == ("agree", 0, [], ())
    assert (found.nodes, found.compared, found.samples, found.complete) == (4, 4, 1, True)
    assert found.runs <= 3


def test_rounding() -> None:
    """(x + w) * v against x * v + w * v: other roundings, and nothing wrong."""
    one = "g (float[3,4] x) => (float[3,4] y) { a = Add(x, w)  b = Mul(a, v)  y = Exp(b) }"
    two = "g (float[3,4] x) => (float[3,4] y) { c = Mul(x, v)  b = Add(c, u)  y = Exp(b) }"
    w, v = np.float32(1.1), np.float32(0.7)
    found = compared(model(one, w=w, v=v), model(two, u=np.float32(w * v), v=v))
    assert (found.status, found.exit_code, named(found)) == ("rounding", 0, [])
    assert found.tolerance is not None
    assert 0 < found.tolerance < 1e-5
    assert found.tolerance >= found.outputs[0].max_abs / found.outputs[0].scale


def test_a_difference() -> None:
    found = compared(model(CHAIN, w=np.float32(2)), model(CHAIN, w=np.float32(2.1)))
    assert (found.status, found.exit_code, named(found)) == ("differ", 1, ["b"])
    assert [one.place.output for one in found.begins] == ["b"]
    error = found.culprits[0].error
    assert error.own_error == pytest.approx(0.05, rel=1e-3)
    assert (error.input_error, error.output_error) == (0.0, pytest.approx(0.05, rel=1e-3))
    assert error.noise < 1e-5
    assert found.runs <= 12


def test_a_difference_that_no_output_shows() -> None:
    text = CHAIN.replace("y = Add(c, a)", "y = Mul(c, zero)")
    weights = {"zero": np.float32(0)}
    found = compared(model(text, w=np.float32(2), **weights), model(text, w=np.float32(2.1), **weights))
    assert (found.status, found.exit_code, named(found)) == ("agree", 0, ["b"])
    assert found.outputs[0].same
    assert not found.culprits[0].advice


def test_a_difference_that_no_matched_node_shows() -> None:
    """The output is constant on one side."""
    one = "g (float[3,4] x) => (float[3,4] y, float[1] z) { y = Sin(x)  z = Constant<value = float[1] {1.0}>() }"
    found = compared(model(one), model(one.replace("{1.0}", "{2.0}")))
    assert (found.status, found.exit_code, named(found)) == ("unexplained", 1, [])
    assert [output.name for output in found.outputs if not output.same] == ["z"]


def test_a_truth_that_does_not_run() -> None:
    broken = model(CHAIN.replace("Tanh(b)", "Reshape(b, s)"), w=np.float32(2), s=np.array([5, 5]))
    found = compared(broken, broken)
    assert (found.status, found.exit_code, found.cause, found.samples) == ("unknown", 3, "refused", 0)
    assert "Reshape" in found.reason


def test_another_side_that_does_not_run() -> None:
    broken = model(CHAIN.replace("Tanh(b)", "Reshape(b, s)"), w=np.float32(2), s=np.array([5, 5]))
    found = compared(model(CHAIN, w=np.float32(2)), broken)
    assert (found.status, found.exit_code, found.cause) == ("unknown", 3, "refused")
    assert any("stopped at Reshape c" in note for note in found.notes)
    assert found.compared == 4


def test_the_sample_that_shows_it() -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { a = Sin(x)  b = Clip(a, low, high)  y = Neg(b) }"
    right = model(text, low=np.float32(-9), high=np.float32(9))
    wrong = model(text, low=np.float32(-9), high=np.float32(0.5))
    small = {"x": X / 4}
    assert compared(right, wrong, small).status == "agree"
    found = compared(right, wrong, small, {"x": X}, small)
    assert (found.status, named(found), found.samples) == ("differ", ["b"], 3)
    assert found.culprits[0].error.feed == 1
    assert found.outputs[0].sample == 1
    assert found.outputs[0].elements == 36


def test_a_sample_that_the_truth_refuses_is_left_out() -> None:
    text = "g (float[3,4] x, int64[2] s) => (float[a,b] y) { a = Mul(x, w)  y = Reshape(a, s) }"
    one, two = model(text, w=np.float32(2)), model(text, w=np.float32(3))
    fit, unfit = np.array([4, 3]), np.array([5, 5])
    found = compared(one, two, {"x": X, "s": unfit}, {"x": X, "s": fit})
    assert (found.status, named(found), found.samples) == ("differ", ["a"], 1)
    assert any(note.startswith("sample 1: the truth does not run") for note in found.notes)


def test_random_numbers_are_no_difference() -> None:
    text = """g (float[3,4] x) => (float[3,4] y) {
        r = RandomNormalLike(x)
        a = Mul(r, w)
        y = Add(a, x)
    }"""
    assert compared(model(text, w=np.float32(2)), model(text, w=np.float32(2))).status == "agree"
    found = compared(model(text, w=np.float32(2)), model(text, w=np.float32(2.1)))
    assert (found.status, named(found)) == ("differ", ["a"])


FUNCTION = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
g (float[3,4] x) => (float[3,4] y) { a = local.twice(x)  b = Sin(a)  y = local.twice(b) }
<domain: "local", opset_import: ["" : 20]>
twice (v) => (o) { two = Constant<value = float {2.0}>()  o = Mul(v, two) }"""


def test_local_functions_are_looked_into() -> None:
    assert compared(model(FUNCTION), model(FUNCTION)).status == "agree"
    wrong = model(FUNCTION.replace("b = Sin(a)", "b = Cos(a)"))
    found = compared(model(FUNCTION), wrong)
    assert (found.status, named(found)) == ("differ", ["b"])
    found = compared(model(FUNCTION), model(FUNCTION.replace("float {2.0}", "float {2.5}")))
    assert (found.status, named(found)) == (
        "differ",
        ["o"],
    )  # one node of the function, measured in both calls
    assert [one.place.op_type for one in found.table] == ["Mul", "Mul"]


def test_a_model_without_inputs() -> None:
    text = "g () => (float[3,4] y) { a = Sin(v)  y = Mul(a, w) }"
    found = compared(model(text, v=X, w=np.float32(2)), model(text, v=X, w=np.float32(3)), {})
    assert (found.status, named(found)) == ("differ", ["y"])
    assert onnxfix.diagnose(model(text, v=X, w=np.float32(2)), against="fp16").status == "rounding"


def test_inputs_of_size_zero() -> None:
    text = CHAIN.replace("3,4", "N,4")
    empty = {"x": np.zeros((0, 4), np.float32)}
    assert compared(model(text, w=np.float32(2)), model(text, w=np.float32(3)), empty).status == "agree"


def test_whole_numbers() -> None:
    text = """g (int64[4] x) => (int64[4] y) {
        a = Add(x, big)
        b = Mul(a, one)
        y = Sub(b, x)
    }"""
    big, one = np.int64(2**60), np.int64(1)
    right = model(text, big=big, one=one)
    sample = {"x": np.arange(4)}
    assert compared(right, right, sample).status == "agree"
    found = compared(right, model(text, big=big + 1, one=one), sample)  # float64 does not see this
    assert (found.status, named(found)) == ("differ", ["a"])
    assert found.culprits[0].error.own_abs == 1.0


def test_strings() -> None:
    text = """g (string[3] x) => (string[3] y) {
        a = StringConcat(x, tail)
        y = StringConcat(a, x)
    }"""

    def tailed(tail: str) -> ModelProto:
        found = model(text)
        found.graph.initializer.append(numpy_helper.from_array(np.array([tail], object), "tail"))
        return found

    sample = {"x": np.array(["a", "b", "c"], object)}
    assert compared(tailed("!"), tailed("!"), sample).status == "agree"
    found = compared(tailed("!"), tailed("?"), sample)
    assert (found.status, found.exit_code) == ("differ", 1)
    assert named(found) == ["a"]


def test_sequences_between_nodes_and_as_outputs() -> None:
    text = """g (float[3,4] x) => (seq(float[3,4]) s, float[6,4] y) {
        a = Sin(x)
        b = Mul(a, w)
        s = SequenceConstruct(a, b)
        c = ConcatFromSequence<axis = 0>(s)
        y = Neg(c)
    }"""
    right = model(text, w=np.float32(2))
    assert compared(right, right).status == "agree"
    found = compared(right, model(text, w=np.float32(2.5)))
    assert (found.status, named(found)) == ("differ", ["b"])
    assert {one.name: one.same for one in found.outputs} == {"s": False, "y": False}


def test_what_is_not_finite_on_one_side_only() -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { a = Mul(x, w)  b = Exp(a)  y = Neg(b) }"
    found = compared(model(text, w=np.float32(50)), model(text, w=np.float32(500)))
    assert found.status == "differ"
    assert named(found)[0] == "a"
    assert found.outputs[0].other_nonfinite.inf > 0


def test_an_input_with_a_default_is_not_replaced() -> None:
    text = "g (float[3,4] x, float w) => (float[3,4] y) { y = Mul(x, w) }"
    one = model(text, w=np.float32(2))
    assert compared(one, one).status == "agree"
    with pytest.raises(UsageError, match="input w has a default"):
        compared(one, one, {"x": X, "w": np.float32(3)})


def layered(scale: dict[int, float]) -> ModelProto:
    """40 layers of three nodes; a layer's product is scaled."""
    proto = model("g (float[8,16] x) => (float[8,16] y) { y = Neg(x) }")
    del proto.graph.node[:]
    drawn = np.random.default_rng(0)
    last = "x"
    for i in range(40):
        weight = drawn.standard_normal((16, 16)).astype(np.float32) / 4 * np.float32(scale.get(i, 1.0))
        proto.graph.initializer.append(numpy_helper.from_array(weight, f"w{i}"))
        proto.graph.node.extend(
            [
                helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]),
                helper.make_node("Tanh", [f"m{i}"], [f"t{i}"]),
                helper.make_node("Add", [f"t{i}", last], [f"r{i}" if i < 39 else "y"]),
            ]
        )
        last = f"r{i}"
    return proto


@pytest.mark.parametrize(("layers", "most"), [((17,), 12), ((0,), 12), (tuple(range(2, 40, 5)), 20)])
def test_how_much_is_run(layers: tuple[int, ...], most: int) -> None:
    """Two generated samples, each walked through with both sides; the effects run what depends on a node."""
    found = onnxfix.diagnose(layered({}), layered(dict.fromkeys(layers, 1.05)))
    assert found.samples == 2
    assert set(named(found)) == {f"m{i}" for i in layers}
    assert found.runs <= most
    if len(layers) > 1:
        effects = [one.error.effect for one in found.culprits]
        assert all(effect is not None and effect > 0 for effect in effects)
        assert effects == sorted(effects, reverse=True)


def test_the_effect_of_a_node_is_that_of_the_whole_model_with_it_alone() -> None:
    both = onnxfix.diagnose(layered({}), layered({5: 1.05, 30: 1.01}), seed=3)
    for layer, scale in ((5, 1.05), (30, 1.01)):
        alone = onnxfix.diagnose(layered({}), layered({layer: scale}), seed=3)
        effect = next(one.error.effect for one in both.culprits if one.error.place.output == f"m{layer}")
        share = alone.outputs[0].max_abs / alone.outputs[0].scale
        assert effect is not None
        assert effect == pytest.approx(share, rel=0.5)


# ONNX Runtime has no recurrences of layout 1 on a CPU.
RECURRENT = """g (float[2,3,4] x, float[1,5,4] w, float[1,5,5] r) => (float[2,1,5] y) {
  scale = Constant<value = float {SCALE}>()
  scaled = Mul(x, scale)
  all, last = RNN<hidden_size = 5, layout = 1>(scaled, w, r)
  y = Tanh(last)
}"""


def written(path: Path, scale: str, text: str = RECURRENT) -> Path:
    return write(path, text.replace("SCALE", scale), 22)


def test_the_reference_evaluator_stands_in_for_a_kernel(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.onnx", "0.5"), written(tmp_path / "b.onnx", "0.75")
    found = onnxfix.diagnose(first, second)
    assert (found.status, [one.error.place.output for one in found.culprits]) == ("differ", ["scaled"])
    assert any("reference evaluator" in note for note in found.notes)
    assert found.outputs[0].differing


def test_where_all_kernels_are_there_it_is_not_used(tmp_path: Path) -> None:
    text = RECURRENT.replace("layout = 1", "layout = 0").replace("float[2,1,5] y", "float[1,3,5] y")
    path = written(tmp_path / "a.onnx", "0.5", text)
    found = onnxfix.diagnose(path, path)
    assert (found.status, [note for note in found.notes if "evaluator" in note]) == ("agree", [])


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
