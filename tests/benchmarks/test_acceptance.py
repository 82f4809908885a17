"""benchmarks/acceptance: what it compares, and how it judges."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from acceptance import faults
from acceptance.cases import AS_IS, EXACT, Made, Tool
from acceptance.judging import interface_changes, misses, same_graph
from acceptance.measure import Judge, Outputs, Result, Row, Verdict

from onnxfix.runtime.sandbox import Outcome, Worker
from support.models import model


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


def test_shape_and_type_come_before_values() -> None:
    one = np.ones((1,), np.float32)
    assert missed(one, np.ones((), np.float32)) == ["structure"]
    assert missed(np.ones((2, 1)), np.ones((1, 2))) == ["structure"]
    assert missed(one, one.astype(np.float64)) == ["structure"]
    assert missed(one, [one]) == ["structure"]
    assert missed(None, one) == ["structure"]
    assert not missed(None, None)
    assert misses([one], [one, one], 1e-3, 1e-7)[0].kind == "structure"


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


# ------------------------------------------------------------------------------------------- counts and faults


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
