"""A tolerance that the user gives: it stands in for that of the type, and never for identical bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.options import Verification
from onnxfix.proof.compare.compare import compare
from onnxfix.proof.compare.tolerance import EXACT, Allowed, tolerance_for
from onnxfix.report.render.text import render_report
from onnxfix.rule import Safety
from support.cli import run
from support.cli_models import FIXABLE, write
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
    report = onnxfix.apply(write(tmp_path / "m.onnx", FIXABLE), rtol=0.5, rungs=["reference"])
    assert report.applied
    assert report.verdict.allowed is None
    assert report.summary.rungs[-1].agreement == "identical"


def test_verify_with_it(tmp_path: Path) -> None:
    first = write(tmp_path / "a.onnx", "g (float[4] x) => (float[4] y) <float k = {2}> { y = Mul(x, k) }")
    second = write(
        tmp_path / "b.onnx", "g (float[4] x) => (float[4] y) <float k = {2.001}> { y = Mul(x, k) }"
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
    path = write(tmp_path / "m.onnx", text)
    how = {"numeric_fixes": True, "atol": 10.0, "rungs": ["reference"]}
    report = onnxfix.apply(path, tmp_path / "o.onnx", **how)
    assert [one.code for one in report.applied] == ["AAA002"]
    assert [one.code for one in report.withdrawn] == ["AAA001"]
    assert report.verdict.passed
    without = onnxfix.apply(path, tmp_path / "o.onnx", **(how | {"atol": None}))
    assert {one.code for one in without.withdrawn} == {"AAA001", "AAA002"}
