"""Who judges engines, and by what: the trial of a machine, the truth, the measured rounding, and what is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix.proof.checks import gpu, probe
from onnxfix.proof.checks.judge import REPAIRED, Terms, judge
from onnxfix.proof.checks.probe import Probe
from onnxfix.proof.checks.trials import key_of
from onnxfix.runtime.nvidia import Gpu
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import package
from onnxfix.tensorrt.engine import Ran
from support.ended import ended
from support.patience import PATIENCE
from test_rung_trt_gpu import RELU, RELU_CAST, Rung, on_a_gpu, request


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rung]:
    with on_a_gpu(monkeypatch, tmp_path) as made:
        yield made


# ------------------------------------------------------------------------------------------------------- the trial


def test_a_product_tells_what_it_was_computed_in() -> None:
    feed = package.trial_feed()
    product = feed["a"] @ feed["b"]
    assert package.trial_precision({"y": product}) == "float32"
    bits = np.ascontiguousarray(feed["a"]).view(np.uint32)
    tf32 = ((bits + 0x1000) & 0xFFFFE000).view(np.float32)  # 10 bits of fraction are left, rounded to nearest
    assert package.trial_precision({"y": tf32 @ feed["b"]}) == "tf32"
    assert package.trial_precision({"y": product * 2}) == ""


def test_what_nvidia_lists_is_data() -> None:
    assert package.listed("tensorrt", "9.0")
    assert not package.listed("tensorrt-rtx", "9.0")


def test_tf32_that_stays_on_is_said_and_judged_so(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    one = "g (float[N,2] x) => (float[N,2] y) <float k = {1}> { y = Mul(x, k) }"
    rung.engines = {"original": one, "fixed": one.replace("{1}", "{1.001}")}
    told = Probe(precision="tf32", card=Gpu("L4", "8.9"))
    monkeypatch.setattr(probe, "probe", lambda found: told)
    result = ended("passed", rung(one, one + " "))
    assert any("TF32 could not be turned off here" in note for note in result.notes)
    assert result.executed.precision == "tf32"


# ------------------------------------------------------------------------------------------------------- the truth

BATCHED = """g (float[2,3,2] x) => (float[2,3,1,4] y)
    <float[1,4,2] w = {1, 0, 0, 1, 1, 1, 0.5, -1}, float[1,4,4] r = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}>
    { y, z = RNN <hidden_size = 4, layout = 1> (x, w, r) }"""
TURNED = """g (float[2,3,2] x) => (float[2,3,1,4] y)
    <float[1,4,2] w = {1, 0, 0, 1, 1, 1, 0.5, -1}, float[1,4,4] r = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}>
    { t = Transpose <perm = [1, 0, 2]> (x)  a, z = RNN <hidden_size = 4> (t, w, r)
      y = Transpose <perm = [2, 0, 1, 3]> (a) }"""
IGNORED = TURNED.replace("t = Transpose <perm = [1, 0, 2]> (x)", "t = Identity(x)").replace(
    "y = Transpose <perm = [2, 0, 1, 3]> (a)", "y = Transpose <perm = [0, 2, 1, 3]> (a)"
)


def test_the_reference_evaluator_is_asked_where_onnx_runtime_has_no_kernel(rung: Rung) -> None:
    """ONNX Runtime refuses ``layout=1``. An engine that ignores it is wrong, and the fix that needs none is right."""
    rung.engines = {"original": IGNORED, "fixed": TURNED}
    result = ended("passed", rung(BATCHED, TURNED))
    assert "the new model's engine agrees with the reference evaluator" in result.reason
    assert REPAIRED in result.reason
    assert result.executed.outcome == "repaired"
    rung.engines = {"original": TURNED, "fixed": IGNORED}
    gpu._LAST.clear()
    assert rung(BATCHED, TURNED, inherit=True).refutes


def sides(expected: Any, before: Any, after: Any) -> list[Ran]:
    return [Ran({"y": np.asarray(one, np.float32)}) for one in (expected, before, after)]


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        ([2, 2, 2, 2], [2, 2, 2, 2], "alike"),
        ([2, 2, 2, 2], [1, 1, 1, 1], "repaired"),
        ([2, 2, 2, 2], [1.5, 1.5, 1.5, 1.5], "alike"),  # nearer
        ([1.1, 1.1, 1.1, 1.1], [1.3, 1.3, 1.3, 1.3], "wrong"),  # three times as far
        ([2, 1, 1, 1], [1, 2, 1, 1], "wrong"),  # as far, and wrong where the original's engine is right
        ([np.inf, 1, 1, 1], [np.inf, 1, 1, 1], "alike"),
        ([2, 2, 2, 2], [np.nan, 2, 2, 2], "wrong"),
        ([1, 1, 1, 1], [1.1, 1, 1, 1], "wrong"),
    ],
)
def test_a_fix_is_refuted_where_its_engine_is_further_from_the_truth(
    before: Any, after: Any, finding: str
) -> None:
    assert judge(Terms(["y"]), "", None, *sides([1, 1, 1, 1], before, after)).finding == finding


def test_another_shape_than_the_truths_is_further() -> None:
    expected, before, after = sides([1, 1], [2, 2], [1, 1])
    after = replace(after, outputs={"y": np.ones((2, 1), np.float32)})
    assert judge(Terms(["y"]), "", None, expected, before, after).finding == "wrong"


# ---------------------------------------------------------------------------------------------------- the rounding

CANCELS = "g (float[N,2] x) => (float[N,2] y) <float k = {20000}> { a = Add(x, k)  y = Sub(a, k) }"


def test_differences_that_rounding_explains_are_no_failure(rung: Rung) -> None:
    """The original has steps of 2e-3; engines that add in another order have none, and are as right."""
    direct = "g (float[N,2] x) => (float[N,2] y) { y = Identity(x) }"
    rung.engines = {"original": direct, "fixed": direct}
    result = ended("passed", rung(CANCELS, CANCELS + " "))
    assert (result.executed.outcome, [name for name, _ in result.executed.noise]) == ("agree", ["y"])
    assert any("the original's own rounding" in note for note in result.notes)


@pytest.mark.parametrize("factor", ["1.2", "-1"])
def test_more_than_rounding_is(rung: Rung, factor: str) -> None:
    scaled = f"g (float[N,2] x) => (float[N,2] y) <float k = {{{factor}}}> {{ y = Mul(x, k) }}"
    rung.engines["fixed"] = scaled
    assert rung(CANCELS, CANCELS + " ").status == "failed"


# ------------------------------------------------------------------------------------------------- what is kept


def test_the_originals_engine_is_built_and_run_once_for_all_candidates(rung: Rung) -> None:
    """When fixes are withdrawn, only the candidates change."""
    assert rung(RELU, RELU_CAST).status == "passed"
    assert [name for name, _ in rung.asked] == ["original", "fixed"]
    rung.asked.clear()
    rung.engines = {"original": "not even built", "fixed": RELU.replace("Relu", "Abs")}
    same = request(rung.folder, rung.worker, RELU, RELU_CAST)
    gpu._LAST[:] = [(key_of(same, rung), gpu._LAST[0][1])]  # the files were written again
    assert gpu.run(same).status == "failed"
    assert [name for name, _ in rung.asked] == ["fixed", "fixed"], "a second one, before the fix is blamed"


def test_the_original_is_built_again_where_no_engine_of_the_first_candidate_was(rung: Rung) -> None:
    rung.refusals["fixed"] = "no importer for Cast"
    assert rung(RELU, RELU_CAST, inherit=True).refutes
    rung.refusals.clear()
    same = request(rung.folder, rung.worker, RELU, RELU_CAST, inherit=True)
    gpu._LAST[:] = [(key_of(same, rung), gpu._LAST[0][1])]  # the files were written again
    result = gpu.run(same)
    assert (result.status, result.executed.outcome if result.executed else "") == ("passed", "agree")
    assert "the engines of the original and of the new model agree" in result.reason


# ------------------------------------------------------------------------------------ engines that are not steady


def test_an_engine_that_changes_is_no_fixs_fault(rung: Rung) -> None:
    rung.tricks["fixed"] = {"unsteady": 2.0}
    result = rung(RELU, RELU_CAST, inherit=True)
    assert (result.status, result.refutes) == ("passed", False), result.reason
    said = "the new model's engine is not reproducible: 3 of 6 contexts are wrong on the same inputs"
    assert result.reason.startswith(f"no fix is to blame: {said}")
    assert (result.executed.outcome, result.executed.output) == ("unsteady", "y")


def test_engines_that_are_wrong_alike_and_right_when_loaded_again(rung: Rung) -> None:
    rung.tricks["original"] = rung.tricks["fixed"] = {"unsteady": 2.0}
    result = rung(RELU, RELU_CAST, inherit=True)
    assert (result.status, result.refutes) == ("passed", False), result.reason
    assert "the new model's engine is not reproducible: 2 of 3 contexts are wrong" in result.reason
    assert result.executed.outcome == "unsteady"


@pytest.mark.parametrize("trick", [{"unsteady": 2.0}, {"dies": 1}])
def test_the_originals_engine_excuses_none_that_is_always_wrong(rung: Rung, trick: dict[str, Any]) -> None:
    rung.engines["fixed"] = RELU.replace("Relu", "Abs")
    rung.tricks["original"] = trick
    assert rung(RELU, RELU_CAST, inherit=True).refutes


def test_an_engine_that_changes_is_excused_for_these_inputs_alone(rung: Rung) -> None:
    """It is right on the first inputs each second time, and never on the others."""
    turned = """g (float[N,2] x) => (float[N,2] y) <float h = {9}> {
        a = Relu(x)  b = Greater(a, h)  c = Neg(a)  y = Where(b, c, a) }"""
    rung.engines["fixed"] = turned
    rung.tricks["fixed"] = {"unsteady": 2.0}
    given = [{"x": np.full((3, 2), value, np.float32)} for value in (1, 200)]
    assert rung(RELU, RELU_CAST, inherit=True, given=given).refutes


# ---------------------------------------------------------------------------------------------------- the sandbox


def test_what_was_posted_is_collected_in_any_order() -> None:
    with Worker() as worker:
        posted = [worker.post("operator:neg", timeout=PATIENCE, **wrong) for wrong in ({}, {"a": 1})]
        pid = worker.post("os:getpid", timeout=PATIENCE)
        found = worker.collect(pid)
        assert found.value == worker.pid
        assert [one.outcome.status for one in posted if one.outcome is not None] == ["error", "error"]
        assert worker.collect(pid) is found, "it is kept"
        last = worker.post("os:getppid", timeout=PATIENCE)
        assert worker.call("os:getpid", timeout=PATIENCE).value == found.value
        assert last.outcome is not None, "a call waits for what was posted"
        assert last.outcome.value == os.getpid()


def test_what_a_child_that_died_did_not_begin_is_lost() -> None:
    with Worker() as worker:
        died, lost = (worker.post(name, timeout=PATIENCE) for name in ("os:abort", "os:getpid"))
        assert worker.collect(lost) is None
        assert died.outcome.status == "crash"
        slow = worker.post("signal:pause", timeout=60.0)
        worker.close()
        assert worker.collect(slow) is None, "it was ended"
        slow = worker.post("signal:pause", timeout=0.2)
        ended("timeout", worker.collect(slow))
