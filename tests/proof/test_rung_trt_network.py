"""Rung trt-network, with networks made by hand: judging, locating, noise, gaps, refusals and whose fault it is."""
# Long because: a pair of models for each way in which a reading can end, and for each way in which two can be compared.

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix.proof import validity
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.proof.verify import verify
from onnxfix.report.report import plain
from onnxfix.runtime.allowance import Effort
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.lift.records import Gap, Lifted
from support import networks
from support.ended import ended

CHAIN = "g (float[2,3] x) => (float[2,3] y) { a = Neg(x) b = Abs(a) y = Sqrt(b) }"
DYNAMIC = "g (float[N,3] x) => (float[N,3] y) { a = Neg(x) b = Abs(a) y = Sqrt(b) }"
WRONG = CHAIN.replace("Abs(a)", "Relu(a)")
#: What it computes hangs on the last bits of its input.
TOUCHY = "g (float[2,3] x, float k) => (float[2,3] y) { a = Mul(x, k) y = Sin(a) }"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: Worker) -> networks.Stage:
    return networks.Stage(tmp_path, monkeypatch, [], worker)


def kinds(rung: RungResult, number: int = -1) -> list[tuple[str, str]]:
    return [(one.kind, one.place.text) for one in rung.networks[number].misreads]


# ------------------------------------------------------------------------------------------------ one model


def test_what_agrees_passes_and_proves_nothing_about_two_models(stage: networks.Stage) -> None:
    rung = stage.climb((CHAIN, CHAIN))
    assert (rung.status, rung.inherited, kinds(rung)) == ("passed", False, [])
    assert rung.reason == (
        "the network that TensorRT-RTX 1.7.1 imported computes the same as the model: identical on 4 feeds, "
        "ONNX Runtime on the CPU (no engine was executed)"
    )
    (one,) = rung.networks
    assert (one.status, one.backend, one.feeds, one.shapes) == ("agrees", "ort-cpu", 4, 1)
    assert {feed.feed.kind for feed in rung.feeds if feed.feed} == {"normal", "edge"}
    verdict = Verdict((RungResult("contract", "passed"), RungResult("ort-cpu", "skipped"), rung))
    assert (verdict.compared, verdict.passed) == (False, False)
    assert Verdict((RungResult("contract", "passed"), rung)).passed  # nothing else was asked for


def test_a_model_of_dynamic_shape_is_compared_at_three(stage: networks.Stage) -> None:
    rung = stage.climb((DYNAMIC, DYNAMIC))
    (one,) = rung.networks
    assert (one.status, one.shapes) == ("agrees", 3)
    plans = [feed.feed for feed in rung.feeds if feed.feed]
    assert {plan.assignment["N"] for plan in plans if plan.kind == "normal"} == {1, 2, 3}
    narrow = (
        "g (float[N,3] x) => (float[M,3] y) <int64[2] s = {-1,12}> { a = Reshape(x, s) y = Reshape(a, t) }"
    )
    narrow = narrow.replace("{-1,12}>", "{-1,12}, int64[2] t = {-1,3}>")
    (one,) = stage.climb((narrow, narrow)).networks
    assert (one.status, one.shapes) == ("agrees", 3)  # sizes that it takes were looked for


def test_the_first_node_that_differs_is_named(stage: networks.Stage) -> None:
    rung = stage.climb((CHAIN, WRONG), inherit=False)
    (one,) = rung.networks[0].misreads
    assert (rung.status, one.kind, one.place.text, one.place.op_type) == ("failed", "value", "b", "Abs")
    assert (one.place.index, one.about, one.layers) == (1, "tensor b", ("RELU node_of_b",))
    assert one.index is not None
    assert float(one.onnx) == pytest.approx(abs(float(one.onnx)))
    assert float(one.tensorrt) == 0.0
    assert "elements are out of tolerance" in one.extent
    assert rung.reason.startswith("TensorRT-RTX 1.7.1 reads the model differently: b: Abs: tensor b at [")
    assert plain(rung)["networks"][0]["misreads"][0]["place"]["output"] == "b"


def test_independent_causes_are_each_named_and_five_at_most(stage: networks.Stage) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { a = Neg(x) b = Abs(a) y = Exp(b) c = Relu(x) z = Exp(c) }"
    other = text.replace("Abs(a)", "Relu(a)").replace("Relu(x)", "Abs(x)")
    assert kinds(stage.climb((text, other))) == [("value", "b"), ("value", "c")]
    many = "".join(f"a{n} = Abs(x) " for n in range(7))
    seven = f"g (float[4] x) => ({', '.join(f'float[4] a{n}' for n in range(7))}) {{ {many} }}"
    assert len(kinds(stage.climb((seven, seven.replace("Abs", "Relu"))))) == 5


def test_what_no_output_depends_on_is_of_no_interest(stage: networks.Stage) -> None:
    text = "g (float[2] x) => (float[2] y) { dead = Abs(x) b = Abs(x) c = Neg(b) y = Tanh(c) }"
    other = text.replace("dead = Abs", "dead = Relu").replace("b = Abs", "b = Relu")
    assert kinds(stage.climb((text, other))) == [("value", "b")]


def test_a_cause_that_tensorrt_does_not_name_shows_at_the_next_tensor(stage: networks.Stage) -> None:
    rung = stage.climb((CHAIN, WRONG), lifts={"names": {"x": "x", "a": "a", "y": "y"}})
    (one,) = rung.networks[0].misreads
    assert (one.place.text, one.unnamed, one.about) == ("y", 1, "output y")


def test_another_shape_and_another_number_of_outputs(stage: networks.Stage) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = Neg(x) y = Abs(a) }"
    flat = "g (float[2,3] x) => (float[3,2] y) { a = Neg(x) y = Transpose<perm = [1,0]>(a) }"
    (one,) = (
        stage.climb((text, flat)).networks[0].misreads
    )  # that the declared shape is wrong goes without saying
    assert (one.kind, one.onnx, one.tensorrt) == ("shape", "of shape (2, 3)", "shape (3, 2)")
    assert "is of shape (2, 3) in ONNX, and TensorRT reads shape (3, 2)" in one.words
    two = "g (float[2] x) => (float[2] y, float[2] z) { y = Abs(x) z = Neg(x) }"
    lone = "g (float[2] x) => (float[2] y) { y = Abs(x) }"
    assert kinds(stage.climb((two, lone))) == [("name", "z")]


def test_integers_are_compared_without_tolerance(stage: networks.Stage) -> None:
    text = "g (int32[2,3] x) => (int32[2,3] y) <int32 one = {1}> { y = Add(x, one) }"
    assert stage.climb((text, text)).status == "passed"
    rung = stage.climb((text, text.replace("{1}", "{2}")))
    assert kinds(rung) == [("value", "y")]
    assert "6 of 6 elements differ" in rung.reason


def test_half_precision_has_its_own_tolerance(stage: networks.Stage) -> None:
    text = """g (float[4] x) => (float[4] y) <float k = {1}> {
        h = Cast<to = 10>(x) w = Cast<to = 1>(h) y = Mul(w, k) }"""
    assert stage.climb((text, text.replace("{1}", "{1.004}"))).status == "passed"
    wide = text.replace("to = 10", "to = 1")
    assert stage.climb((wide, wide.replace("{1}", "{1.004}"))).status == "failed"


# ------------------------------------------------------------------------------------------------ noise


def test_noise_of_the_model_itself_is_allowed_for(stage: networks.Stage) -> None:
    other = TOUCHY.replace("a = Mul(x, k)", "h = Mul(x, t) a = Mul(h, d)").replace(
        "(float[2,3] y)", "(float[2,3] y) <H>"
    )
    other = other.replace("<H>", "<float t = {1000.0}, float d = {1000.0}>")
    fixed = TOUCHY.replace(", float k) => (float[2,3] y)", ") => (float[2,3] y) <float k = {1000000.0}>")
    rung = stage.climb((fixed, other.replace(", float k)", ")")))
    (one,) = rung.networks
    assert (rung.status, kinds(rung)) == ("passed", [])
    assert dict(one.noise)["y"] > 1e-3
    assert any("four times that was allowed, and is enough" in note for note in rung.notes)
    assert all(feed.status in ("identical", "within") for feed in rung.feeds)
    wrong = fixed.replace("Sin", "Cos")
    assert kinds(stage.climb((fixed, wrong))) == [("value", "y")]


def test_rounding_of_terms_that_cancel_out_is_no_difference(stage: networks.Stage) -> None:
    """Nothing can be moved, for there is no floating-point input."""
    text = """g (int32[4] x) => (float[4] y) <float k = {0.1}> {
        t = Equal(x, x) a = Cast<to = 1>(t) b = Add(a, k) c = Sub(b, a) y = Sub(c, k) }"""
    assert stage.climb((text, text.replace("Sub(c, k)", "Sub(c, c)"))).status == "passed"
    assert stage.climb((text, text.replace("Sub(c, k)", "Mul(c, k)"))).status == "failed"


def test_what_is_no_number_at_the_edge_alone_is_told_and_no_more(stage: networks.Stage) -> None:
    text = "g (float[2,6] x) => (float[2,6] y) { y = LogSoftmax(x) }"
    rung = stage.climb((text, text.replace("y = LogSoftmax(x)", "s = Softmax(x) y = Log(s)")))
    (one,) = rung.networks[0].misreads
    assert (rung.status, one.kind, one.tensorrt, one.harmless) == ("passed", "value", "-inf", True)
    assert one.feed.startswith("edge values")
    rung = stage.climb((text, text.replace("y = LogSoftmax(x)", "s = Softmax(x) n = Neg(s) y = Log(n)")))
    assert [(one.kind, one.tensorrt, one.harmless) for one in rung.networks[0].misreads] == [
        ("value", "nan", False)
    ]


def test_no_number_beside_one_that_differs_at_the_edge_is_grave(stage: networks.Stage) -> None:
    text = "g (float[8,32] x) => (float[8,32] y) { y = Abs(x) }"
    lost = "b = Abs(x) c = Mul(b, b) d = Div(c, b)"  # NaN at 0
    mild = stage.climb((text, text.replace("y = Abs(x)", f"{lost} y = Abs(d)")))
    assert (mild.status, mild.networks[0].misreads[0].harmless) == ("passed", True)
    more = f"{lost} e = Sub(b, k) f = Relu(e) y = Add(d, f)"  # and another number beyond 100
    other = text.replace("y = Abs(x)", more).replace("y) {", "y) <float k = {100}> {")
    grave = stage.climb((text, other))
    (one,) = grave.networks[0].misreads
    assert (grave.status, one.tensorrt, one.harmless) == ("failed", "nan", False)
    assert "NaN or Inf at different positions (" in one.extent
    assert one.extent.endswith("others are out of tolerance")


def test_a_number_that_differs_at_the_edge_alone_is_grave(stage: networks.Stage) -> None:
    text = "g (float[2,6] x) => (float[2,6] y) { y = Abs(x) }"
    clipped = text.replace("y = Abs(x)", "c = Clip(x, a, b) y = Abs(c)")
    clipped = clipped.replace("(float[2,6] y)", "(float[2,6] y) <float a = {-50.0}, float b = {50.0}>")
    rung = stage.climb((text, clipped))
    assert (rung.status, kinds(rung)) == ("failed", [("value", "y")])
    assert {feed.feed.kind for feed in rung.feeds if feed.feed and feed.status == "different"} == {"edge"}


def test_a_kernel_that_overflows_is_not_blamed_on_tensorrt(stage: networks.Stage) -> None:
    """ONNX Runtime's Softplus of 100 in float16 is infinite; that of onnx.reference and of TensorRT is 100."""
    model = """<ir_version: 9, opset_import: ["": 18]>
        g (float16[2,4,6] x) => (float16[2,4,6] y) { y = Softplus(x) }"""
    right = model.replace("y = Softplus(x)", "a = Cast<to = 1>(x) b = Softplus(a) y = Cast<to = 10>(b)")
    rung = stage.climb((model, right))
    assert (rung.status, kinds(rung)) == ("passed", [])
    assert any("overflow differently" in note for note in rung.notes)
    wrong = right.replace("y = Cast", "c = Exp(b) y = Cast").replace("(b) }", "(c) }")
    assert kinds(stage.climb((model, wrong))) != []


def test_an_infinity_of_the_network_alone_is_tensorrts(stage: networks.Stage) -> None:
    """onnx.reference overflows in ReduceL2 of float16 on both sides, and so sees no difference."""
    model = """<ir_version: 9, opset_import: ["": 18]>
        g (float16[2,64] x) => (float16[2,1] y) <int64[1] a = {1}> { y = ReduceL2(x, a) }"""
    wrong = model.replace("{1}>", "{1}, float16 most = {25600}, float16 inf = {31744}>")
    wrong = wrong.replace(
        "y = ReduceL2(x, a)", "n = ReduceL2(x, a) b = Greater(n, most) y = Where(b, inf, n)"
    )
    x = np.ones((2, 64), np.float16)
    x[0] = 300
    assert kinds(stage.climb((model, wrong), inputs=[{"x": x}])) != []


def test_empty_inputs_will_do(stage: networks.Stage) -> None:
    text = "g (float[4] x, float[0] e) => (float[4] y) { c = CastLike(x, e) y = Abs(c) }"
    assert stage.climb((text, text)).status == "passed"
    assert stage.climb((text, text.replace("Abs", "Neg"))).status == "failed"
    void = "g (float[0] x) => (float[0] y) { y = Abs(x) }"
    rung = stage.climb((void, void))
    assert (rung.status, rung.networks[0].reason) == (
        "skipped",
        "no output has a value that could be compared",
    )


@pytest.mark.parametrize("name", ["y[0]", "[red]y[/red]", "["])
def test_names_may_hold_brackets(stage: networks.Stage, name: str) -> None:
    pair = networks.model(CHAIN), networks.model(WRONG)
    for one in pair:
        one.graph.node[-1].output[0] = one.graph.output[0].name = name
    rung = stage.climb(pair)
    assert (rung.status, kinds(rung)) == ("failed", [("value", "b")])
    touchy = networks.model(TOUCHY)
    touchy.graph.node[-1].output[0] = touchy.graph.output[0].name = name
    rung = stage.climb((touchy, TOUCHY.replace("Sin(a)", "Cos(a)").replace("y", "z")))
    assert dict(rung.networks[0].noise).keys() == {name}


def test_outputs_of_nan_alone_prove_nothing(stage: networks.Stage) -> None:
    lost = "g (float[2,3] x) => (float[2,3] y{}) <float k = {{-1}}> {{ a = Abs(x) b = Sub(k, a) y = Sqrt(b) {} }}"
    alone, more = lost.format("", ""), lost.format(", float[2,3] z", "z = Neg(x)")
    rung = stage.climb((alone, alone.replace("Abs(x)", "Mul(x, x)")))
    assert (rung.status, rung.networks[0].status) == ("skipped", "unknown")
    words = "only NaN and infinity on all inputs, which would hide a difference: output y"
    assert words in rung.reason
    rung = stage.climb((more, more.replace("Abs(x)", "Mul(x, x)")))
    assert (rung.status, words in rung.notes) == ("passed", True)
    assert stage.climb((more, more.replace("Neg(x)", "Abs(x)"))).status == "failed"
    numbers = lost.replace("-1", "1e6").format("", "")
    assert stage.climb((numbers, numbers)).networks[0].notes == ()


def test_random_outputs_are_left_out(stage: networks.Stage) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { r = RandomUniformLike(x) y = Add(x, r) z = Abs(x) }"
    rung = stage.climb((text, text))
    assert (rung.status, rung.excluded) == ("passed", ("y",))
    assert "not compared, since they are random: y" in rung.notes
    assert kinds(stage.climb((text, text.replace("Abs", "Relu")))) == [("value", "z")]
    shape = """g (float[64] x) => (float[64] z) {
        p = RandomUniformLike(x) r = Bernoulli<dtype = 9>(p) s = Shape(r) a = Reshape(x, s) z = Abs(a) }"""
    other = shape.replace("Abs", "Relu").replace("dtype = 9", "dtype = 9, seed = 5.0")
    assert kinds(stage.climb((shape, other))) == [("value", "z")]  # not r, which is random
    rung = stage.climb((CHAIN, WRONG), lifts={"drawn": ("y",)})
    assert (rung.status, rung.excluded) == ("skipped", ("y",))


# ------------------------------------------------------------------------------------------------ what is declared


def test_double_is_float_and_harmless(stage: networks.Stage) -> None:
    text = "g (double[4] x) => (double[4] y) <double k = {1.1}> { y = Mul(x, k) }"
    rung = stage.climb((text, text.replace("double", "float")))
    assert (rung.status, rung.networks[0].status) == ("passed", "agrees")
    assert [(one.about, one.onnx, one.tensorrt, one.harmless) for one in rung.networks[0].misreads] == [
        ("input x", "double", "FLOAT", True),
        ("output y", "double", "FLOAT", True),
    ]
    assert rung.reason.endswith("; 2 harmless differences")


def test_another_type_is_grave_even_where_values_agree(stage: networks.Stage) -> None:
    text = "g (int64[4] x) => (int64[4] y) { y = Abs(x) }"
    rung = stage.climb((text, text.replace("int64", "int32")))
    assert (rung.status, kinds(rung)) == ("failed", [("type", "x"), ("type", "y")])


def test_an_input_of_another_name_is_fed_all_the_same(stage: networks.Stage) -> None:
    rung = stage.climb((CHAIN, CHAIN.replace(" x)", " x_in)").replace("Neg(x)", "Neg(x_in)")))
    (one,) = rung.networks[0].misreads
    assert (one.kind, one.onnx, one.tensorrt, rung.networks[0].feeds) == (
        "name",
        "called x",
        "the name x_in",
        4,
    )


def test_an_input_without_a_shape_is_a_scalar(stage: networks.Stage) -> None:
    loose = networks.model("g (float[] x) => (float[] y) { y = Abs(x) }")
    for info in (*loose.graph.input, *loose.graph.output):
        info.type.tensor_type.ClearField("shape")
    rung = stage.climb((loose, "g (float[] x) => (float[] y) { y = Abs(x) }"))
    assert (rung.status, kinds(rung)) == ("failed", [("shape", "x")])
    assert rung.networks[0].misreads[0].tensorrt == "a scalar"


def test_lies_that_change_nothing_are_harmless(stage: networks.Stage) -> None:
    text = "g (float[2,3] x) => (float[2,4] y) { y = Abs(x) }"
    rung = stage.climb((text, text.replace("[2,4]", "[2,3]")))
    (one,) = rung.networks[0].misreads
    assert (rung.status, one.kind, one.harmless, one.onnx) == ("passed", "shape", True, "declared [2, 4]")
    rung = stage.climb((CHAIN, CHAIN), lifts={"types": {"a": "INT32"}})
    assert rung.networks[0].misreads == ()  # of a nothing is declared
    told = CHAIN.replace("(float[2,3] y)", "(float[2,3] y) <float[2,3] a, float[2,3] b>")
    told = told.replace("float[2,3] b", "bool[2,3] b, float[2,3] c")
    told, other = (
        one.replace("Sqrt(b)", "Sqrt(c)").replace("y =", "c = Abs(a) y =") for one in (told, CHAIN)
    )
    told, other = (one.replace("b = Abs(a)", "b = IsNaN(a)") for one in (told, other))
    rung = stage.climb((told, other), lifts={"types": {"a": "INT32", "b": "FLOAT", "c": "HALF"}})
    assert [(one.about, one.harmless) for one in rung.networks[0].misreads] == [("tensor a", True)]


# ------------------------------------------------------------------------------------------------ nothing learnt


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("refused", "does not import the model: no importer"),
        ("crash", "it is unknown how TensorRT-RTX 1.7.1 reads the model: killed by SIGSEGV"),
        ("unlifted", "the network of the model cannot be read back: NMS layer n of ONNX node y: not known"),
    ],
)
def test_without_a_network_the_rung_is_skipped(stage: networks.Stage, status: str, told: str) -> None:
    words = {
        "refused": "no importer",
        "crash": "killed by SIGSEGV",
        "unlifted": str(Gap("NMS", "n", "y", "not known")),
    }
    rung = stage.climb((CHAIN, Lifted(status, words[status])))  # type: ignore[arg-type]
    assert rung.status == "skipped"
    assert told in rung.reason
    assert not rung.networks[0].judged


def test_a_network_that_nobody_can_run_is_no_difference(stage: networks.Stage) -> None:
    broken = networks.model(CHAIN)
    broken.graph.node[1].op_type = "NoSuchOperator"
    rung = ended("skipped", stage.climb((CHAIN, broken)))
    assert "the network that was read back does not load" in rung.reason


def test_where_onnx_runtime_has_no_kernel_the_reference_is_asked(stage: networks.Stage) -> None:
    text = "g (bfloat16[4] x) => (bfloat16[4] y) { a = Neg(x) y = Abs(a) }"
    rung = stage.climb((text, text))
    assert (rung.status, rung.networks[0].backend) == ("passed", "reference")
    rung = stage.climb((text, text.replace("Abs", "Neg")))
    assert kinds(rung) == [("value", "y")]


def test_inputs_of_another_size_are_not_told_twice(stage: networks.Stage) -> None:
    rung = stage.climb((CHAIN, CHAIN.replace("[2,3]", "[2,4]")))
    assert kinds(rung) == [("shape", "x"), ("shape", "y")]
    assert all(feed.reason.startswith("the network fails: ") for feed in rung.feeds)


CHOOSING = (
    "g (float[1,4] x) => (float[1,3] y) <float[1,4] bias = {BIAS}, float zero = {0}, int64[1] k = {3},"
    " float[4] table = {9, 5, 1, 7}> "
    "{ z = Mul(x, zero) s = Add(z, bias) best, which = TopK <largest=LARGEST> (s, k) y = Gather(table, which) }"
)


def choosing(bias: str, largest: int = 1) -> str:
    return CHOOSING.replace("BIAS", bias).replace("LARGEST", str(largest))


@pytest.mark.parametrize("bias", ["2, 2, 1, 0", "2, 2.0000002, 1, 0"])
def test_what_hangs_on_rounding_is_no_choice_of_tensorrts(stage: networks.Stage, bias: str) -> None:
    rung = stage.climb(
        (choosing(bias), choosing("2.0000002, 2, 1, 0" if "." in bias else "2, 2.0000002, 1, 0"))
    )
    assert (rung.status, rung.cause, kinds(rung)) == ("skipped", "choice", [])
    assert "which elements TopK chooses hangs on rounding" in rung.reason


TIES = (
    "g (float[2,4] x) => (float[2] y) <float[2,1] mask = {0, 1}, float[1] three = {3}, float[1] third = {0.33333334}, "
    "float[4] table = {9, 5, 1, 7}> { d = DIVIDED z = Mul(d, mask) "
    "which = ArgMax <axis = 1, keepdims = 0, select_last_index = LAST> (z) y = Gather(table, which) }"
)


def test_rounding_in_one_row_excuses_no_other(stage: networks.Stage) -> None:
    model = TIES.replace("DIVIDED", "Div(x, three)").replace("LAST", "1")
    rung = stage.climb((model, TIES.replace("DIVIDED", "Mul(x, third)").replace("LAST", "0")))
    assert (rung.status, len(kinds(rung))) == ("failed", 1)


@pytest.mark.parametrize("network", [choosing("2, 2, 1, 0", largest=0), choosing("2, 2.1, 1, 0")])
def test_a_choice_of_other_elements_is_tensorrts(stage: networks.Stage, network: str) -> None:
    rung = stage.climb((choosing("2, 2, 1, 0"), network))
    assert (rung.status, len(kinds(rung))) == ("failed", 1)


def test_a_network_that_fails_where_the_model_runs(stage: networks.Stage) -> None:
    text = "g (float[N,3] x) => (float[N,3] y) { y = Abs(x) }"
    frozen = "g (float[N,3] x) => (float[N,3] y) <int64[2] s = {1,3}> { a = Abs(x) y = Reshape(a, s) }"
    (one,) = stage.climb((text, frozen)).networks[0].misreads
    assert (one.kind, one.place.text, one.layers) == ("fails", "y", ("RESHAPE node_of_y",))
    assert "Reshape" in one.tensorrt


# ------------------------------------------------------------------------------------------------ refusals


STATIC = "g (float[2,3] x) => (float[2,1] y) <int64[1] i = {7}> { a = Abs(x) y = Gather<axis = 1>(a, i) }"
CLIPPED = STATIC.replace("{7}", "{2}")


def test_a_node_that_onnx_runtime_never_takes(stage: networks.Stage) -> None:
    (one,) = stage.climb((STATIC, CLIPPED)).networks[0].misreads
    assert (one.kind, one.place.text, one.layers) == ("refused", "y", ("GATHER node_of_y",))
    assert "indices element out of data bounds, idx=7" in one.onnx


def test_an_operator_of_a_foreign_domain(stage: networks.Stage) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my.dom" : 1]>
        g (float[2] x) => (float[2] y) { y = my.dom.Relu(x) }"""
    rung = stage.climb((text, "g (float[2] x) => (float[2] y) { y = Relu(x) }"))
    assert kinds(rung) == [("refused", "y")]
    known = text.replace("my.dom", "com.microsoft").replace("Relu", "NewerThanThis")
    assert stage.climb((known, "g (float[2] x) => (float[2] y) { y = Relu(x) }")).status == "skipped"


def test_a_model_of_wrong_types_is_judged_by_the_reference(stage: networks.Stage) -> None:
    lie = CHAIN.replace("(float[2,3] y)", "(float[2,3] y) <int64[2,3] a>")
    (one,) = stage.climb((lie, CHAIN)).networks
    assert (one.status, one.backend) == ("agrees", "reference")
    assert [(misread.kind, misread.harmless) for misread in one.misreads] == [("refused", True)]
    assert kinds(stage.climb((lie, WRONG))) == [("value", "b"), ("refused", "a")]


INVALID = {
    "an attribute that the operator does not have": "y = Sqrt<foo = 3>(a)",
    "too many inputs": "y = Sqrt(a, a)",
    "an attribute of an older version": "y = Squeeze<axes = [1]>(a)",
    "types that do not match": "y = Add(a, k)",
    "a type that the operator does not take": "y = Reshape(a, j)",
    "attributes that do not fit the rank": "y = MaxPool<kernel_shape = [2,2,2], strides = [1]>(a)",
}


@pytest.mark.parametrize("node", INVALID.values(), ids=INVALID)
def test_of_an_invalid_model_nothing_is_learnt(stage: networks.Stage, node: str) -> None:
    """ONNX Runtime refuses it, and TensorRT makes something of it: nobody says what it means."""
    text = """g (float[1,1,2,2] x) => (float[A,B,C,D] y) <int64[1] k = {1}, int32[4] j = {1,1,2,2}> { a = Abs(x) %s }"""
    network = "g (float[1,1,2,2] x) => (float[1,1,2,2] y) { a = Abs(x) y = Sqrt(a) }"
    invalid = networks.model(text % node)
    rung = ended("skipped", stage.climb((invalid, network)))
    assert rung.reason.startswith(
        "it is unknown how TensorRT-RTX 1.7.1 reads the model: it is not valid ONNX: "
    )
    (reading,) = rung.networks
    assert (reading.status, reading.misreads) == ("unknown", ())
    rung = ended("passed", stage.climb((invalid, network), (network, network)))
    assert [one.status for one in rung.networks] == ["unknown", "agrees"]


def test_a_checker_that_dies_makes_no_model_invalid(
    stage: networks.Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validity, "violation", lambda *_: os.abort())
    network = "g (float[2] x) => (float[2] y) { y = Sqrt(x) }"
    rung = stage.climb((network.replace("(x) }", "<foo = 3>(x) }"), network))
    assert kinds(rung) == [("refused", "y")]


def test_what_the_network_does_not_run_either_is_no_difference(stage: networks.Stage) -> None:
    rung = stage.climb((STATIC, STATIC))
    assert (rung.status, kinds(rung)) == ("skipped", [])


def test_inputs_that_do_not_fit_are_nobodys_fault(stage: networks.Stage) -> None:
    chosen = """g (float[2,3] x, int64[1] n) => (float[2,1] y) <int64 k = {50}> {
        m = Mul(n, n) i = Add(m, k) y = Gather<axis = 1>(x, i) }"""
    rung = stage.climb((chosen, chosen.replace("Add(m, k)", "Sub(m, m)")))
    assert (rung.status, kinds(rung)) == ("skipped", [])
    assert "the model fails on all inputs tried" in rung.reason
    loose = STATIC.replace("float[2,3] x", "float[2,M] x")
    rung = stage.climb((loose, loose))
    assert (rung.status, kinds(rung)) == ("passed", [])  # a size with eight elements was found


def test_given_inputs_are_used(stage: networks.Stage) -> None:
    feeds = [{"x": np.full((2, 3), -4.0, np.float32)}]
    rung = stage.climb((CHAIN, WRONG), inputs=feeds)
    assert [feed.label for feed in rung.feeds] == ["inputs 1 of 1"]
    assert rung.networks[0].misreads == () or rung.networks[0].feeds == 1
    positive = [{"x": np.full((2, 3), -4.0, np.float32)}]
    assert stage.climb((CHAIN, WRONG), inputs=positive).status == "passed"  # Relu and Abs agree on 4
    negative = [{"x": np.full((2, 3), 4.0, np.float32)}]
    assert stage.climb((CHAIN, WRONG), inputs=negative).status == "failed"


# ------------------------------------------------------------------------------------------------ whose fault


def test_a_fix_that_tensorrt_reads_differently_is_refuted(stage: networks.Stage) -> None:
    rung = stage.climb((CHAIN, CHAIN), (CHAIN, WRONG))
    assert (rung.status, rung.inherited, rung.refutes) == ("failed", False, True)
    assert rung.reason.endswith(", and the original correctly")
    assert [one.status for one in rung.networks] == ["agrees", "differs"]


def test_a_fix_that_repairs_it_passes_and_says_what(stage: networks.Stage) -> None:
    rung = ended("passed", stage.climb((CHAIN, WRONG), (CHAIN, CHAIN)))
    assert "TensorRT reads the original differently: b: Abs: tensor b at" in rung.reason
    assert {feed.label.split(":")[0] for feed in rung.feeds} == {"original", "fixed"}


def test_what_both_have_is_inherited(stage: networks.Stage) -> None:
    rung = stage.climb((CHAIN, WRONG), (CHAIN, WRONG))
    assert (rung.status, rung.inherited, rung.refutes) == ("failed", True, False)
    assert not stage.climb((CHAIN, WRONG), (CHAIN, WRONG), inherit=False).inherited
    assert stage.climb((CHAIN, WRONG)).inherited  # one model, in which nothing was changed


def test_a_second_cause_behind_one_that_is_gone_is_inherited(stage: networks.Stage) -> None:
    both = WRONG.replace("Sqrt(b)", "Exp(b)")
    rung = stage.climb((CHAIN, both), (CHAIN, CHAIN.replace("Sqrt(b)", "Exp(b)")))
    assert (kinds(rung, 0), kinds(rung, 1)) == ([("value", "b")], [("value", "y")])
    assert rung.inherited


def test_another_place_is_the_fixes_fault(stage: networks.Stage) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { y = Abs(x) z = Neg(x) }"
    rung = stage.climb((text, text.replace("Abs", "Relu")), (text, text.replace("Neg", "Relu")))
    assert (rung.status, rung.inherited) == ("failed", False)


@pytest.mark.parametrize(
    ("fixed", "inherited"), [(CHAIN, True), (CHAIN.replace("b =", "n =").replace("(b)", "(n)"), False)]
)
def test_of_an_original_that_is_not_read_the_nodes_are_known(
    stage: networks.Stage, fixed: str, inherited: bool
) -> None:
    wrong = fixed.replace("Abs", "Relu")
    rung = stage.climb((CHAIN, Lifted("refused", "no importer")), (fixed, wrong))
    assert (rung.status, rung.inherited) == ("failed", inherited)
    assert "the original is unknown: no importer" in rung.reason


def test_the_fixed_model_may_have_another_interface(stage: networks.Stage) -> None:
    other = "g (float[4,5] v) => (float[4,5] y) { y = Abs(v) }"
    rung = ended("passed", stage.climb((CHAIN, CHAIN), (other, other)))
    assert rung.networks[1].feeds == 4


def test_the_original_is_read_again_where_it_or_its_inputs_changed(stage: networks.Stage) -> None:
    stage.climb((CHAIN, CHAIN), (CHAIN, WRONG))
    paths = stage.folder / "original.onnx", stage.folder / "fixed.onnx"

    def read(**more: Any) -> list[str]:
        stage.asked.clear()
        verify(*paths, exact=False, rungs=["trt-network"], worker=stage.worker, **more)
        return stage.asked

    networks.write(paths[1], CHAIN)
    assert read() == ["fixed.onnx"]
    for value, again in ((1.0, True), (1.0, False), (2.0, True)):  # the user's inputs are another question
        assert ("original.onnx" in read(inputs=[{"x": np.full((2, 3), value, np.float32)}])) == again
    networks.write(paths[0], WRONG)
    assert read() == ["original.onnx", "fixed.onnx"]


def test_inputs_beyond_the_budget_are_left_out_and_reported(stage: networks.Stage) -> None:
    whole = stage.climb((DYNAMIC, DYNAMIC))
    bare = stage.climb((DYNAMIC, DYNAMIC), effort=Effort("", 0.0, 0.0))
    assert (whole.left_out, whole.networks[0].feeds) == ((), len(whole.feeds))
    assert (bare.status, len(bare.feeds), bare.networks[0].feeds) == ("passed", 1, 1)
    assert [one.feed for one in bare.left_out] == [one.feed for one in whole.feeds[1:]]
    assert all(one.seconds > 0 for one in bare.left_out)
    wrong = stage.climb(
        (DYNAMIC, DYNAMIC), (DYNAMIC, DYNAMIC.replace("Abs", "Relu")), effort=Effort("", 0.0, 0.0)
    )
    assert (wrong.status, [one.feed for one in wrong.left_out]) == (
        "failed",
        [one.feed for one in bare.left_out],
    )
