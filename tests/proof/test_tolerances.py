"""A tolerance that the user gives: it stands in for that of the type, and never for identical bits. Half precision:
the reference evaluator judges bits, ONNX Runtime's CPU provider only the order of magnitude."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.options import Verification
from onnxfix.proof.compare.compare import compare
from onnxfix.proof.compare.tolerance import EXACT, Allowed, tolerance_for
from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import RungResult, verify
from onnxfix.report.render.text import render_report
from onnxfix.rule import Safety
from support.cli import run
from support.cli_models import FIXABLE
from support.models import write
from support.toy_rules import use, writes

A = np.array([1.0, 100.0, 0.0], np.float32)


def agreement(b: list[float], **how: object) -> str:
    (found,) = compare("y", A, np.array(b, np.float32), exact=bool(how.pop("exact", False)), **how)  # type: ignore[arg-type]
    return found.agreement


def test_it_is_held_to_element_by_element() -> None:
    off = [1.0005, 100.0, 0.0]
    assert agreement(off) == "within"  # 1e-5 of the largest magnitude
    assert agreement([1.002, 100.0, 0.0]) == "different"
    assert agreement([1.002, 100.0, 0.0], allowed=Allowed(rtol=1e-2)) == "within"
    assert agreement(off, allowed=Allowed(rtol=1e-6, atol=0.0)) == "different"
    # atol is in the unit of the output, and takes the place of the share of the largest magnitude.
    assert agreement([1.0, 100.0, 0.01], allowed=Allowed(rtol=0.5, atol=0.0)) == "different"
    assert agreement([1.0, 100.0, 0.01], allowed=Allowed(rtol=0.5, atol=0.02)) == "within"
    assert agreement(off, allowed=Allowed(rtol=0.5, atol=1.0), exact=True) == "different"
    assert agreement(off, allowed=Allowed(rtol=0.0, atol=0.0)) == "different"
    assert agreement([1.0, 100.0, np.nan], allowed=Allowed(rtol=1.0, atol=1e9)) == "different"


def test_integers_have_none() -> None:
    assert tolerance_for("int64", allowed=Allowed(1.0, 1.0)) == EXACT
    (found,) = compare("y", np.array([1]), np.array([2]), exact=False, allowed=Allowed(1.0, 9.0))
    assert found.agreement == "different"


def test_what_is_not_given_is_that_of_the_type() -> None:
    of_type = tolerance_for("float16")
    assert tolerance_for("float16", allowed=Allowed(rtol=0.5)).atol == of_type.atol
    assert tolerance_for("float16", allowed=Allowed(atol=0.5)).rtol == of_type.rtol
    assert tolerance_for("float32", coarse="float16", allowed=Allowed(0.0, 0.0)) == EXACT


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_numbers_that_are_none(number: float) -> None:
    with pytest.raises(UsageError, match="not a finite number of 0 or more"):
        Verification(rtol=number)
    with pytest.raises(UsageError, match="not a finite number"):
        Verification(atol=number)
    with pytest.raises(UsageError, match="rtol is a number, not '1'"):
        onnxfix.verify("m.onnx", rtol="1")  # type: ignore[arg-type]


def test_identical_bits_have_no_tolerance() -> None:
    with pytest.raises(UsageError, match="contradicts exact"):
        Verification(exact=True, atol=1.0)
    assert run("verify", "m.onnx", "--exact", "--rtol", "1")[0] == 2


def test_exact_fixes_are_held_to_identical_bits(tmp_path: Path) -> None:
    report = onnxfix.apply(write(tmp_path / "m.onnx", FIXABLE, 18), rtol=0.5, rungs=["reference"])
    assert report.applied
    assert report.verdict.allowed is None
    assert report.summary.rungs[-1].agreement == "identical"


def test_verify_with_it(tmp_path: Path) -> None:
    first = write(tmp_path / "a.onnx", "g (float[4] x) => (float[4] y) <float k = {2}> { y = Mul(x, k) }", 18)
    second = write(
        tmp_path / "b.onnx", "g (float[4] x) => (float[4] y) <float k = {2.001}> { y = Mul(x, k) }", 18
    )
    rungs = {"rungs": ["reference", "ort-cpu"], "require": ["reference"]}
    assert onnxfix.verify(first, second, **rungs).exit_code == 3
    report = onnxfix.verify(first, second, rtol=1e-3, **rungs)
    assert report.exit_code == 0
    assert report.verdict.allowed == Allowed(1e-3)
    reasons = [rung.reason for rung in report.verdict.rungs if rung.name != "contract"]
    assert all(one.startswith("within rtol 0.001 on ") for one in reasons)
    assert "reference, ort-cpu within rtol 0.001 (" in "\n".join(line.plain for line in render_report(report))
    code, out, _ = run(
        "verify", first, second, "--rtol", "1e-5", "--atol", "0", "--rungs", "reference", "-q", "--isolated"
    )
    assert (code, "FAILED" in out) == (3, True)


@pytest.mark.slow
def test_no_tolerance_hides_a_fix_that_claims_identical_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = writes("AAA001", "Tanh", "Sigmoid")
    coarse = writes("AAA002", "Sin", "Cos", Safety.NUMERIC)  # off by no more than 2
    use(monkeypatch, [wrong, coarse])
    text = "g (float[4] x) => (float[4] y, float[4] z) { y = Tanh(x)  z = Sin(x) }"
    path = write(tmp_path / "m.onnx", text, 18)
    how = {"numeric_fixes": True, "atol": 10.0, "rungs": ["reference"]}
    report = onnxfix.apply(path, tmp_path / "o.onnx", **how)
    assert [one.code for one in report.applied] == ["AAA002"]
    assert [one.code for one in report.withdrawn] == ["AAA001"]
    assert report.verdict.passed
    without = onnxfix.apply(path, tmp_path / "o.onnx", **(how | {"atol": None}))
    assert {one.code for one in without.withdrawn} == {"AAA001", "AAA002"}


# Casts up and down again are exact, yet ONNX Runtime rounds here and not there (issue 17565).
ROUND_TRIP = """g (float[N, 8] x) => (float[N, 8] y) {
    a = Cast<to = 10>(x) b = Cast<to = 1>(a) c = Cast<to = 10>(b) d = Exp(c) y = Cast<to = 1>(d) }"""
STRAIGHT = """g (float[N, 8] x) => (float[N, 8] y) {
    a = Cast<to = 10>(x) d = Exp(a) y = Cast<to = 1>(d) }"""
WRONG = STRAIGHT.replace("y = Cast<to = 1>(d)", "e = Add(d, d) y = Cast<to = 1>(e)")
UNROUNDED = "g (float[N, 8] x) => (float[N, 8] y) { y = Exp(x) }"
SINGLE = "g (float[N, 8] x) => (float[N, 8] y) { y = Exp(x) }"


def rungs(folder: Path, before: str, after: str, **more: object) -> dict[str, RungResult]:
    paths = write(folder / "a.onnx", before, 18), write(folder / "b.onnx", after, 18)
    verdict = verify(*paths, exact=True, **{"rungs": CPU_RUNGS, **more})  # type: ignore[arg-type]
    return {rung.name: rung for rung in verdict.rungs}


def test_exact_rewrite_passes_although_onnxruntime_rounds_elsewhere(tmp_path: Path) -> None:
    found = rungs(tmp_path, ROUND_TRIP, STRAIGHT)
    assert found["reference"].status == "passed"
    assert found["reference"].exact
    assert found["ort-cpu"].status == "passed"
    assert not found["ort-cpu"].exact, "it must not say that it asked for identical bits"
    assert "within half precision's tolerance" in found["ort-cpu"].reason
    assert any("half precision" in note for note in found["ort-cpu"].notes)


def test_a_proof_for_all_values_is_as_good_as_the_reference(tmp_path: Path) -> None:
    found = rungs(tmp_path, ROUND_TRIP, STRAIGHT, rungs=["symbolic", "ort-cpu"])
    assert {name: rung.exact for name, rung in found.items()} == {"symbolic": True, "ort-cpu": False}
    assert {rung.status for rung in found.values()} == {"passed"}
    assert rungs(tmp_path, STRAIGHT, UNROUNDED, rungs=["symbolic", "ort-cpu"])["symbolic"].status == "skipped"
    assert rungs(tmp_path, ROUND_TRIP, WRONG, rungs=["symbolic", "ort-cpu"])["ort-cpu"].status == "failed"


def test_nothing_is_forgiven_without_the_reference(tmp_path: Path) -> None:
    found = rungs(tmp_path, ROUND_TRIP, STRAIGHT, rungs=["ort-cpu"])
    assert found["ort-cpu"].status == "failed"


def test_dropped_rounding_is_seen_by_the_reference(tmp_path: Path) -> None:
    """ONNX Runtime computes both alike: it drops the roundings of the original itself."""
    found = rungs(tmp_path, STRAIGHT, UNROUNDED)
    assert found["reference"].status == "failed"


def test_wrong_values_fail_all_the_same(tmp_path: Path) -> None:
    found = rungs(tmp_path, STRAIGHT, WRONG)
    assert found["reference"].status == "failed"
    assert found["ort-cpu"].status == "failed"


@pytest.mark.parametrize("text", [SINGLE, SINGLE.replace("Exp", "Neg")])
def test_single_precision_is_not_forgiven(tmp_path: Path, text: str) -> None:
    found = rungs(tmp_path, text, text)
    assert found["ort-cpu"].exact
    assert not any("half precision" in note for note in found["ort-cpu"].notes)


def test_half_weights_alone_count_as_half_precision(tmp_path: Path) -> None:
    text = "g (float16[N, 1] x) => (float16[N, 1] y) <float16[1] w = {15872}> { y = Mul(x, w) }"
    found = rungs(tmp_path, text, text)
    assert not found["ort-cpu"].exact
    assert onnx.load(tmp_path / "a.onnx").graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
