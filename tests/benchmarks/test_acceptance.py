"""benchmarks/acceptance: what it compares, and how it judges."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from acceptance import faults
from acceptance.cases import AS_IS, EXACT, Made
from acceptance.judging import interface_changes, misses, same_graph
from acceptance.measure import Judge, Outputs, Result, Row, Verdict

from onnxfix.runtime.sandbox import Outcome, Worker
from support.models import model

NAN, INF = float("nan"), float("inf")
ONE, TWO = np.array([1.0], np.float32), np.array([2.0], np.float32)
FAILS = Outcome("error", message="NOT_IMPLEMENTED")
BASE = "g (float[N,4] x, float[N,4] z) => (float[N,4] y) { y = Add(x, z) }"


@pytest.mark.parametrize(
    ("expected", "found", "kinds"),
    [
        (np.float32([1, NAN, INF, -INF, 0, 1e-8]), np.float32([1.0009, NAN, INF, -INF, -0.0, 9e-8]), []),
        (ONE, ONE * np.float32(1.002), ["values"]),
        (ONE, np.float32([NAN]), ["values"]),
        (np.float32([NAN]), ONE, ["values"]),
        (np.float32([INF]), np.float32([-INF]), ["values"]),
        (np.float32([0]), np.float32([1e-6]), ["values"]),
        (ONE, np.float32(1), ["structure"]),
        (ONE, ONE.astype(np.float64), ["structure"]),
        (ONE, [ONE], ["structure"]),
        (None, ONE, ["structure"]),
    ],
)
def test_what_misses_the_expected_values(expected: Any, found: Any, kinds: list[str]) -> None:
    assert [miss.kind for miss in misses([expected], [found], 1e-3, 1e-7)] == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (BASE.replace("Add(x, z)", "Add(x, a)  a = Neg(z)"), []),
        ("g (float[N,4] x) => (float[N,4] y) { y = Add(x, x) }", ["names"]),
        ("g (float[N,4] z, float[N,4] x) => (float[N,4] y) { y = Add(x, z) }", ["order"]),
        ("g (double[N,4] x, float[N,4] z) => (float[N,4] y) { y = Add(x, z) }", ["type"]),
        ("g (float[N,4] x, float[N,4] z) => (float y) { y = Add(x, z) }", ["shape"]),
    ],
)
def test_a_changed_interface_is_reported(text: str, kinds: list[str]) -> None:
    assert [line.partition(":")[0] for line in interface_changes(model(BASE), model(text))] == kinds


@pytest.mark.parametrize("call", ["Sub(x, z)", "Add(z, x)", "my.Add(x, z)", "Add<k = 1>(x, z)"])
def test_another_graph(call: str) -> None:
    assert not same_graph(model(BASE), model(BASE.replace("Add(x, z)", call)))


def judged(
    folder: Path,
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
    return Judge(worker, folder / "original", [{}], given, 1e-3, 1e-7, random, half).judge(folder / "fixed")


@pytest.mark.parametrize(
    ("original", "fixed", "verdict", "backend", "identical"),
    [
        ({"ort-cpu": ONE}, {"ort-cpu": ONE}, "right", "ort-cpu", True),
        ({"ort-cpu": ONE}, {"ort-cpu": ONE + 1e-5}, "right", "ort-cpu", False),
        ({"ort-cpu": ONE}, {"ort-cpu": TWO}, "wrong", "ort-cpu", False),
        ({"reference": ONE}, {"ort-cpu": TWO, "reference": ONE}, "wrong", "ort-cpu", True),
        ({"ort-cpu": ONE}, {}, "not run", "", None),
        # The backend misses ONNX's outputs with the original: it is no judge, and the next one is asked.
        ({"ort-cpu": TWO, "reference": ONE}, {"ort-cpu": TWO, "reference": ONE}, "right", "reference", True),
        ({"ort-cpu": TWO}, {"ort-cpu": TWO}, "no judge", "", True),
    ],
)
def test_the_verdict_on_outputs(
    tmp_path: Path, original: Any, fixed: Any, verdict: Verdict, backend: str, identical: bool | None
) -> None:
    outputs = judged(tmp_path, original, fixed)
    assert (outputs.verdict, outputs.backend, outputs.identical) == (verdict, backend, identical)


def test_random_values_are_forgiven_and_random_shapes_are_not(tmp_path: Path) -> None:
    for value, verdict in ((TWO, "random"), (np.ones(2, np.float32), "wrong")):
        outputs = judged(tmp_path, {"ort-cpu": ONE}, {"ort-cpu": value}, random=("Bernoulli",))
        assert outputs.verdict == verdict


def test_half_precision_is_judged_by_the_backend_that_rounds_as_onnx_says(tmp_path: Path) -> None:
    close = np.float32(1 + 1e-3) * ONE
    for reference, verdict in ((ONE, "right"), (close, "wrong")):
        fixed = {"ort-cpu": close, "reference": reference}
        outputs = judged(tmp_path, {"ort-cpu": ONE, "reference": ONE}, fixed, expected=None, half="float16")
        assert outputs.verdict == verdict


def result(verdict: Verdict = "right", *, status: str = "accepted", layers: int = 3, **more: Any) -> Result:
    made = more.pop("made", Made("ok", codes={"OPS001": 1}))
    outputs = Outputs(verdict, "ort-cpu", "why", more.pop("identical", True))
    return Result(made, outputs, status=status, layers=layers, **more)


@pytest.mark.parametrize(
    ("after", "before", "words"),
    [
        (result(status="refused"), "accepted", "lost"),
        (result(interface=("names: …",)), "accepted", "interface"),
        (result("wrong", status="refused"), "refused", "outputs wrong"),
        (result(identical=False), "accepted", "bit-identical"),
        (result(layers=201, nodes=9), "refused", "201 layers"),
        (result(made=Made("ok", problems=("a rule raised",))), "accepted", "a rule raised"),
        (Result(Made("crash", "killed by SIGSEGV"), Outputs("no model")), "refused", "SIGSEGV"),
    ],
)
def test_a_fault_of_onnxfix_is_reported_and_does_not_count(after: Result, before: str, words: str) -> None:
    row = Row("test_one", {AS_IS.name: result(status=before), EXACT.name: after})
    [fault] = faults.faults([row], [EXACT])
    assert words in fault
    assert not faults.rescued(row, EXACT) or "layers" in words


def test_a_model_that_was_refused_and_is_right_counts() -> None:
    row = Row("test_one", {AS_IS.name: result(status="refused"), EXACT.name: result()})
    assert faults.rescued(row, EXACT)
