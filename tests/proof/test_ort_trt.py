"""The check ort-trt where no TensorRT provider can run: it is asked for by name alone, and says why it does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxfix
from onnxfix.runtime.backends import ort_trt
from support.cli import output, reported
from support.models import write
from support.patience import PATIENCE

pytestmark = pytest.mark.skipif(ort_trt.missing() is None, reason="a TensorRT provider may run here")
MODEL = "m (float[2] x) => (float[2] y) { a = Identity(x) y = Relu(a) }"


def test_it_runs_only_by_name(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", MODEL)
    assert onnxfix.apply(model, rungs=None, timeout=60 * PATIENCE).check("ort-trt") is None
    check = onnxfix.apply(model, rungs=["ort-cpu", "ort-trt"]).check("ort-trt")
    assert check is not None
    assert check.status == "skipped"
    assert check.cause in ("no-gpu", "not-installed")
    assert check.reason == ort_trt.missing()


def test_required_it_must_run(tmp_path: Path) -> None:
    model, target = write(tmp_path / "m.onnx", MODEL), tmp_path / "fixed.onnx"
    arguments = ("apply", model, "-o", target, "--rungs", "ort-cpu", "--require", "ort-trt")
    assert "ort-trt was required and could not be run" in output(3, *arguments)
    assert not target.exists()
    code, report = reported(*arguments)
    assert code == 3
    assert [one["name"] for one in report["verdict"]["rungs"]][-1] == "ort-trt"


def test_the_child_says_why(tmp_path: Path) -> None:
    absent = ort_trt.unavailable()
    assert absent is not None
    assert absent.what
    assert absent.cause in ("no-gpu", "not-installed")
