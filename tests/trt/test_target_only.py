"""What the target has and the TensorRT at hand lacks is a note: an operator, a plugin, a type of the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxfix
from onnxfix.proof.checks.build import judge
from onnxfix.proof.checks.builder import Builder
from onnxfix.rewrite.registry import registry
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import Issue, TargetOnly, TrtBuild, TrtOptions
from support.models import write
from support.paths import FIXTURES
from support.real_tensorrt import REAL
from support.reports import trt_findings

CASES = FIXTURES / "cases"


@REAL
def test_what_only_the_judge_lacks_is_a_note() -> None:
    """For the target that has it; for TensorRT-RTX itself it is an error. A plugin is in test_judged_in_part.py."""
    path = CASES / "masked_assignment.onnx"
    report = onnxfix.check(path, target="trt11", trt=True)
    [said] = [finding for finding in report.findings if finding.code == "TRT001"]
    assert (said.severity, said.place.op_type) == ("info", "NonZero")
    assert "lacks it; the target TensorRT 11.x has it" in said.message
    assert report.exit_code == 0
    assert onnxfix.check(path, target="rtx", trt=True).exit_code == 1


@REAL
def test_what_the_target_lacks_too_is_an_error(tmp_path: Path) -> None:
    det = write(tmp_path / "det.onnx", "m (float[3,3] x) => (float y) { y = Det(x) }")
    assert onnxfix.check(det, target="trt11", trt=True).exit_code == 1


@REAL
def test_types_choose_the_capability_unless_the_user_does(tmp_path: Path) -> None:
    model = CASES / "nvfp4_weights.onnx"
    report = onnxfix.check(model, trt=True)
    assert report.exit_code == 0
    assert report.build is not None
    assert report.build.accepted
    assert report.build.compute_capability.startswith("12.")
    mine = TrtOptions(compute_capability="8.9")
    assert onnxfix.check(model, trt=mine).exit_code == 1
    applied = onnxfix.apply(model, tmp_path / "out.onnx")
    assert [(one.accepted, one.compute_capability[:3]) for one in applied.builds] == [(True, "12.")]


@pytest.mark.parametrize(("before", "status"), [("accepted", "failed"), ("refused", "skipped")])
def test_a_fix_that_brings_such_an_operator_fails(before: str, status: str) -> None:
    """Where TensorRT built the original, the result is to be built as well."""
    unsupported = TrtBuild("refused", "parse", (TargetOnly("parse", "error", "not here"),))
    first = TrtBuild("accepted") if before == "accepted" else unsupported
    builder = Builder(Choice("tensorrt-rtx", "1.7.1", "8.9"), TrtOptions(target="trt11"), Worker())
    result = judge((first, unsupported), builder, inherit=True)
    assert (result.status, result.inherited) == (status, False)


def test_beside_an_error_about_the_model_it_is_still_a_note() -> None:
    errors = TargetOnly("build", "error", "not here"), Issue("build", "error", "wrong")
    found = trt_findings(TrtBuild("refused", "build", errors), registry().rules)
    assert [(one.code, one.severity, one.message) for one in found] == [
        ("TRT001", "info", "not here"),
        ("TRT002", "error", "wrong"),
    ]


def test_one_error_about_the_model_makes_it_refused() -> None:
    unsupported, other = TargetOnly("parse", "error", "not here"), Issue("parse", "error", "wrong")
    assert not TrtBuild("refused", "parse", (unsupported,)).judged
    assert TrtBuild("refused", "parse", (unsupported, other)).judged
