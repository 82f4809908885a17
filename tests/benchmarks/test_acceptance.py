"""benchmarks/acceptance: what it compares, how it judges, and a slice of the node models with the real TensorRT-RTX."""

# Long because: each way in which a model can fail to count has its own words, and none may pass for another.

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from acceptance import faults
from acceptance.cases import NodeCase, half_type
from acceptance.judging import interface_changes, misses, same_graph
from acceptance.measure import Result, Row, Settings, _One, measure_all
from acceptance.running import Judge, Outputs, Verdict
from acceptance.tools import AS_IS, EXACT, NUMERIC_RTX, Made, Tool
from machine import choice

from onnxfix.sandbox import Outcome, Worker
from support.models import model
from support.paths import ROOT
from support.patience import PATIENCE
from support.real_tensorrt import REAL


def missed(expected: Any, found: Any) -> list[str]:
    return [one.kind for one in misses([expected], [found], 1e-3, 1e-7)]


# ---------------------------------------------------------------------------------------------------- values

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([1.0, NAN, INF, -INF], [1.0009, NAN, INF, -INF]),
        ([0.0], [-0.0]),
        ([], []),
        ([1e-8], [9e-8]),
    ],
)
def test_floats_that_meet_the_expected_ones(expected: list[float], found: list[float]) -> None:
    assert not missed(np.array(expected, np.float32), np.array(found, np.float32))


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([1.0], [1.002]),
        ([1.0], [NAN]),
        ([NAN], [1.0]),
        ([INF], [1.0]),
        ([INF], [-INF]),
        ([1.0], [INF]),
        ([0.0], [1e-6]),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 2.0]),
    ],
)
def test_floats_that_miss_the_expected_ones(expected: list[float], found: list[float]) -> None:
    assert missed(np.array(expected, np.float32), np.array(found, np.float32)) == ["values"]


def test_the_tolerance_is_relative_to_the_expected_value() -> None:
    a, b = np.array([1000.0]), np.array([1001.0005])
    assert missed(a, b)
    assert not missed(b, a)


def test_integers_and_booleans_must_be_equal() -> None:
    assert missed(np.array([10_000]), np.array([10_001])) == ["values"]
    assert missed(np.array([True]), np.array([False])) == ["values"]
    assert not missed(np.array([10_000]), np.array([10_000]))


def test_shape_and_type_come_before_values() -> None:
    one = np.ones((1,), np.float32)
    assert missed(one, np.ones((), np.float32)) == ["structure"]
    assert missed(np.ones((2, 1)), np.ones((1, 2))) == ["structure"]
    assert missed(one, one.astype(np.float64)) == ["structure"]
    assert missed(one, [one]) == ["structure"]
    assert missed(None, one) == ["structure"]
    assert not missed(None, None)
    assert misses([one], [one, one], 1e-3, 1e-7)[0].kind == "structure"


def test_narrow_complex_and_text_types_are_compared() -> None:
    narrow = np.array([1.0, NAN], ml_dtypes.bfloat16)
    assert not missed(narrow, narrow.copy())
    assert missed(narrow, np.array([2.0, NAN], ml_dtypes.bfloat16)) == ["values"]
    assert missed(np.array([1 + 1j]), np.array([1 + 2j])) == ["values"]
    assert not missed(np.array([1 + 1j]), np.array([1 + 1j]))
    assert missed(np.array(["a", "b"], object), np.array(["a", "c"], object)) == ["values"]
    assert not missed(np.array([b"a"], object), np.array(["a"], object))


def test_sequences_and_maps_are_compared_element_by_element() -> None:
    one, two = np.ones(2), np.full(2, 2.0)
    assert not missed([one, two], [one, two])
    assert missed([one, two], [one]) == ["structure"]
    assert missed([one, two], [one, one]) == ["values"]
    assert missed({"a": one}, {"a": two}) == ["values"]
    assert missed({"a": one}, {"b": one}) == ["values"]
    assert not missed({"a": one}, {"a": one})


# ------------------------------------------------------------------------------------------------- interfaces

BASE = "g (float[N,4] x, float[N,4] z) => (float[N,4] y) { y = Add(x, z) }"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("g (float[N,4] w, float[N,4] z) => (float[N,4] y) { y = Add(w, z) }", "names"),
        ("g (float[N,4] x) => (float[N,4] y) { y = Add(x, x) }", "names"),
        ("g (float[N,4] x, float[N,4] z) => (float[N,4] v) { v = Add(x, z) }", "names"),
        ("g (float[N,4] x, float[N,4] z) => (float[N,4] y, float[N,4] x) { y = Add(x, z) }", "names"),
        ("g (float[N,4] z, float[N,4] x) => (float[N,4] y) { y = Add(x, z) }", "order"),
        ("g (double[N,4] x, float[N,4] z) => (float[N,4] y) { y = Add(x, z) }", "type"),
        ("g (float[N,4] x, float[N,4] z) => (float16[N,4] y) { y = Add(x, z) }", "type"),
        ("g (float[M,4] x, float[N,4] z) => (float[N,4] y) { y = Add(x, z) }", "shape"),
        ("g (float[N,4] x, float[N,4] z) => (float[2,4] y) { y = Add(x, z) }", "shape"),
        ("g (float[N,4] x, float[N,4] z) => (float[] y) { y = Add(x, z) }", "shape"),
        ("g (float[N,4] x, float[N,4] z) => (float y) { y = Add(x, z) }", "shape"),
    ],
)
def test_a_changed_interface_is_told(text: str, kind: str) -> None:
    assert [line.partition(":")[0] for line in interface_changes(model(BASE), model(text))] == [kind]


def test_an_equal_interface_is_silent() -> None:
    changed = model(BASE.replace("y = Add(x, z)", "a = Neg(x)  b = Neg(a)  y = Add(b, z)"))
    changed.graph.input[0].doc_string = "words"
    changed.producer_name = "somebody"
    assert not interface_changes(model(BASE), changed)


def test_a_default_that_goes_is_told_and_a_sequences_shape_too() -> None:
    text = "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    without = model(text)
    del without.graph.initializer[:]
    assert interface_changes(model(text), without) == ["default: w has none any more"]
    sequence = model("g (seq(float[N]) x) => (seq(float[N]) y) { y = Identity(x) }")
    other = model("g (seq(float[2]) x) => (seq(float[N]) y) { y = Identity(x) }")
    assert [line.partition(":")[0] for line in interface_changes(sequence, other)] == ["shape"]


def test_a_scalar_is_not_a_tensor_without_a_shape() -> None:
    scalar = model(BASE)
    del scalar.graph.output[0].type.tensor_type.shape.dim[:]
    nothing = model(BASE)
    nothing.graph.output[0].type.tensor_type.ClearField("shape")
    assert [line.partition(":")[0] for line in interface_changes(scalar, nothing)] == ["shape"]


@pytest.mark.parametrize(
    "text",
    [
        BASE.replace("Add", "Sub"),
        BASE.replace("Add(x, z)", "Add(z, x)"),
        BASE.replace("y = Add(x, z)", "a = Neg(x)  y = Add(x, z)"),
        BASE.replace("Add(x", "my.Add(x"),
        BASE.replace("Add(x", "Add<k = 1>(x"),
        BASE.replace("float[N,4] y", "float[M,4] y"),
    ],
)
def test_another_graph(text: str) -> None:
    assert not same_graph(model(BASE), model(text))


def test_weights_operator_sets_and_subgraphs_make_another_graph() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    assert not same_graph(model(text), model(text.replace("{1, 2}", "{1, 3}")))
    older = model(BASE)
    older.opset_import[0].version = 19
    assert not same_graph(model(BASE), older)
    branch = (
        "g (bool c, float[2] x) => (float[2] y) { y = If<then_branch = t () => (float[2] a) { a = Neg(x) }, "
        "else_branch = e () => (float[2] b) { b = Abs(x) }>(c) }"
    )
    assert same_graph(model(branch), model(branch))
    assert not same_graph(model(branch), model(branch.replace("Abs", "Relu")))


def test_names_words_and_inner_shapes_make_no_other_graph() -> None:
    text = "g (float[N,4] x, float[N,4] z) => (float[N,4] y) { [n] y = Add(x, z) }"
    other = model(text.replace("[n]", "[m]"))
    other.graph.name, other.producer_name, other.ir_version = "h", "somebody", 9
    other.graph.node[0].doc_string = "words"
    other.graph.value_info.add().name = "x"
    assert same_graph(model(text), other)


# ------------------------------------------------------------------------------------------------------- judge

ONE, TWO = np.array([1.0], np.float32), np.array([2.0], np.float32)
FAILS = Outcome("error", message="NOT_IMPLEMENTED")


def judged(
    tmp_path: Path,
    *,
    original: dict[str, Any],
    fixed: dict[str, Any],
    expected: Any = ONE,
    random: tuple[str, ...] = (),
    half: str = "",
) -> Outputs:
    """What the judge says where the backends compute these values; a backend that is left out runs nothing."""

    def call(_: str, *, backend: str, path: str, **__: Any) -> Outcome:
        values = fixed if Path(path).name == "fixed" else original
        return Outcome("ok", [[values[backend]]]) if backend in values else FAILS

    worker = cast(Worker, SimpleNamespace(call=call))
    given = [] if expected is None else [[expected]]
    judge = Judge(worker, tmp_path / "original", [{}], given, 1e-3, 1e-7, random, half)
    return judge.judge(tmp_path / "fixed")


@pytest.mark.parametrize(
    ("original", "fixed", "verdict", "backend", "identical"),
    [
        ({"ort-cpu": ONE}, {"ort-cpu": ONE}, "right", "ort-cpu", True),
        ({"ort-cpu": ONE}, {"ort-cpu": ONE + 1e-5}, "right", "ort-cpu", False),
        ({"ort-cpu": ONE}, {"ort-cpu": TWO}, "wrong", "ort-cpu", False),
        ({"reference": ONE}, {"ort-cpu": ONE, "reference": ONE}, "right", "ort-cpu", True),
        ({"reference": ONE}, {"ort-cpu": TWO, "reference": ONE}, "wrong", "ort-cpu", True),
        ({}, {"ort-cpu": TWO}, "wrong", "ort-cpu", None),
        ({"reference": ONE}, {"reference": TWO}, "wrong", "reference", False),
        ({"ort-cpu": ONE}, {}, "not run", "", None),
        # The backend misses ONNX's outputs with the original: it is no judge, and the next one is asked.
        ({"ort-cpu": TWO, "reference": ONE}, {"ort-cpu": TWO, "reference": ONE}, "right", "reference", True),
        ({"ort-cpu": TWO}, {"ort-cpu": TWO}, "no judge", "", True),
        ({"ort-cpu": TWO, "reference": ONE}, {"ort-cpu": TWO, "reference": TWO}, "wrong", "reference", True),
    ],
)
def test_the_verdict_on_outputs(
    tmp_path: Path, original: Any, fixed: Any, verdict: Verdict, backend: str, identical: bool | None
) -> None:
    found = judged(tmp_path, original=original, fixed=fixed)
    assert (found.verdict, found.backend, found.identical) == (verdict, backend, identical)


def test_random_values_are_forgiven_and_random_shapes_are_not(tmp_path: Path) -> None:
    how: dict[str, Any] = {"original": {"ort-cpu": ONE}, "random": ("Bernoulli",)}
    assert judged(tmp_path, fixed={"ort-cpu": TWO}, **how).verdict == "random"
    assert judged(tmp_path, fixed={"ort-cpu": np.ones(2, np.float32)}, **how).verdict == "wrong"
    assert judged(tmp_path, fixed={"ort-cpu": ONE}, **how).verdict == "right"


def test_without_expected_outputs_the_original_is_expected(tmp_path: Path) -> None:
    how: dict[str, Any] = {"original": {"ort-cpu": TWO}, "expected": None}
    assert judged(tmp_path, fixed={"ort-cpu": TWO}, **how).verdict == "right"
    assert judged(tmp_path, fixed={"ort-cpu": ONE}, **how).verdict == "wrong"
    assert judged(tmp_path, original={}, fixed={"ort-cpu": ONE}, expected=None).verdict == "not run"


def test_half_precision_is_judged_by_who_rounds_as_onnx_says(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "original": {"ort-cpu": ONE, "reference": ONE},
        "expected": None,
        "half": "float16",
    }
    close = np.float32(1 + 1e-3) * ONE
    found = judged(tmp_path, fixed={"ort-cpu": close, "reference": ONE}, **how)
    assert (found.verdict, found.backend, found.identical) == ("right", "ort-cpu", True)
    far = judged(tmp_path, fixed={"ort-cpu": TWO, "reference": ONE}, **how)
    assert (far.verdict, far.identical) == ("wrong", True)
    unproven = judged(tmp_path, fixed={"ort-cpu": close, "reference": close}, **how)
    assert (unproven.verdict, unproven.identical) == ("wrong", False)
    assert judged(tmp_path, fixed={"ort-cpu": close}, **how).verdict == "wrong"
    single = judged(tmp_path, fixed={"ort-cpu": close, "reference": ONE}, **{**how, "half": ""})
    assert (single.verdict, single.identical) == ("wrong", False)


def test_which_models_compute_in_half_precision() -> None:
    plain = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
    cast = "g (float[2] x) => (float[2] y) { a = Cast<to = 10>(x)  y = Cast<to = 1>(a) }"
    both = "g (float16[2] x) => (bfloat16[2] y) { y = Cast<to = 16>(x) }"
    assert [half_type(model(text)) for text in (plain, cast, both)] == ["", "float16", "bfloat16"]


def test_a_case_has_the_profile_of_its_data() -> None:
    feed = {"x": np.zeros((2, 3), np.float32), "s": np.array([4, 5])}
    profile = NodeCase("n", b"", (feed,), (), 1e-3, 1e-7).profile
    assert profile is not None
    assert (profile.shapes["x"], profile.values) == (((2, 3),) * 3, {"s": ((4, 5),) * 3})
    assert NodeCase("n", b"", (), (), 1e-3, 1e-7).profile is None


# ------------------------------------------------------------------------------------------- counts and faults

PEER = Tool("onnxsim", "onnxsim", peer=True)


def result(verdict: Verdict = "right", *, status: str = "accepted", layers: int = 3, **more: Any) -> Result:
    made = more.pop("made", Made("ok", codes={"OPS001": 1}))
    identical = more.pop("identical", True)
    return Result(made, Outputs(verdict, "ort-cpu", "why", identical), status=status, layers=layers, **more)


def row(tool: Tool, after: Result, *, before: str = "accepted") -> Row:
    return Row("test_one", {AS_IS.name: result(status=before), tool.name: after})


NO_MODEL = Result(Made("crash", "killed by SIGSEGV"), Outputs("no model"))


@pytest.mark.parametrize(
    ("after", "counts"),
    [
        (result(), True),
        (result("same graph"), True),
        (result("wrong"), False),
        (result("not run"), False),
        (result("no judge"), False),
        (result("random"), False),
        (result(status="refused"), False),
        (result(interface=("names: …",)), False),
        (NO_MODEL, False),
    ],
)
def test_what_counts(after: Result, counts: bool) -> None:
    assert after.counts is counts
    refused = row(EXACT, after, before="refused")
    assert faults.rescued(refused, EXACT) is counts
    assert not faults.rescued(row(EXACT, after), EXACT)


@pytest.mark.parametrize(
    ("after", "before", "words"),
    [
        (result(status="refused"), "accepted", "lost"),
        (result(interface=("names: …",)), "accepted", "interface"),
        (result("wrong"), "accepted", "outputs wrong"),
        (result("wrong", status="refused"), "refused", "outputs wrong"),
        (result(identical=False), "accepted", "bit-identical"),
        (result(layers=201, nodes=9), "refused", "201 layers"),
        (result(made=Made("ok", problems=("a rule raised",))), "accepted", "a rule raised"),
        (NO_MODEL, "refused", "SIGSEGV"),
    ],
)
def test_a_fault_of_onnxfix_is_told(after: Result, before: str, words: str) -> None:
    found = faults.faults([row(EXACT, after, before=before)], [EXACT])
    assert len(found) == 1
    assert words in found[0]


def test_what_is_no_fault() -> None:
    assert not faults.faults([row(EXACT, result())], [EXACT])
    assert not faults.faults([row(EXACT, result(status="refused"), before="refused")], [EXACT])
    assert not faults.faults([row(EXACT, result(layers=200, nodes=9), before="refused")], [EXACT])
    assert not faults.faults([row(EXACT, result(layers=201, nodes=9))], [EXACT])  # it built before
    assert not faults.faults([row(EXACT, result(layers=201), before="refused")], [EXACT])  # no node was added
    assert not faults.faults([row(EXACT, result(identical=None))], [EXACT])
    assert not faults.faults([row(EXACT, result("random", identical=False))], [EXACT])
    assert not faults.faults([row(NUMERIC_RTX, result(identical=False))], [NUMERIC_RTX])
    assert not faults.faults([row(NUMERIC_RTX, result(layers=201, nodes=9), before="refused")], [NUMERIC_RTX])
    assert not faults.faults([row(PEER, NO_MODEL)], [PEER])


# ------------------------------------------------------------------------------------------------ peers, files


def test_a_tool_that_writes_no_model_has_a_result_without_one(tmp_path: Path) -> None:
    case = NodeCase("one", model(BASE).SerializeToString(), (), (), 1e-3, 1e-7)
    one = _One(cast(Any, SimpleNamespace(runner=None)), case, tmp_path / "original.onnx")
    found = one.result(tmp_path / "none.onnx", Made("crash", "killed by SIGSEGV"))
    assert (found.accepted, found.counts, found.outputs.verdict) == (False, False, "no model")


@pytest.mark.slow
@REAL
def test_the_originals_data_are_the_profile(tmp_path: Path) -> None:
    text = (
        "g (float[N] x, int64[2] s, float[3,4] w) => (float[A,4] z) { y = Reshape(x, s)  z = MatMul(y, w) }"
    )
    feed = {"x": np.ones(6, np.float32), "s": np.array([2, 3]), "w": np.ones((3, 4), np.float32)}
    expected = [np.full((2, 4), 3, np.float32)]
    data = model(text).SerializeToString()
    with_data = NodeCase("with", data, (feed,), (expected,), 1e-3, 1e-7)
    settings = Settings(choice("tensorrt-rtx", None), (EXACT,), None)
    found = measure_all([with_data], 1, settings, lambda _: None)[0].results[AS_IS.name]
    assert (found.status, found.outputs.verdict, found.nodes) == ("accepted", "right", 2), found.words


@REAL
@pytest.mark.long
def test_a_slice_of_the_node_models(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "acceptance" / "node_models.py"
    command = [
        sys.executable,
        str(script),
        "--no-peers",
        "--every",
        "94",
        "--json",
        str(tmp_path / "found.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["models"]
    assert len(found) > 15
    for name in ("as-is", "exact", "numeric-rtx", "numeric"):
        results = [one["results"][name] for one in found]
        assert any(one["status"] == "accepted" for one in results)
        assert any(one["status"] == "refused" for one in results)
        assert {one["outputs"]["verdict"] for one in results} <= {
            "right",
            "same graph",
            "not run",
            "no judge",
            "random",
        }
    changed = [
        one["results"]["numeric-rtx"] for one in found if one["results"]["numeric-rtx"]["made"]["changed"]
    ]
    assert any(one["outputs"]["verdict"] == "right" and one["status"] == "accepted" for one in changed)
