"""A child that runs out of memory costs at most its check: the others prove the result, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import onnxfix.proof.validity  # noqa: F401 - its use of a fork is replaced
from onnxfix.options import RunOptions, Verification
from onnxfix.runtime.sandbox import close_shared
from onnxfix.verbs.fleet import work
from onnxfix.verbs.fleet.work import Task
from support import models
from support.failing_children import WAYS, Starving

pytestmark = [pytest.mark.slow, pytest.mark.trt, pytest.mark.usefixtures("new_children")]

MODEL = "g (float16[N, 2] x) => (float16[N, 2] y) { a = Identity(x) b = Identity(a) y = Relu(b) }"
RUNGS = ("contract", "reference", "ort-cpu", "trt-build")
STEPS = ("onnxfix.proof.validity:check", "onnxfix.tensorrt.lift:build_and_lift",
         "onnxfix.proof.remote:load", "onnxfix.proof.remote:run")  # fmt: skip


@pytest.mark.corpus(every=3)
@pytest.mark.parametrize("way", WAYS)
def test_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    system = Starving(monkeypatch)

    def perform(name: str) -> work.Outcome:
        close_shared()
        folder = tmp_path / name
        folder.mkdir()
        path = models.write(folder / "m.onnx", MODEL)
        before = path.read_bytes()
        options = RunOptions(verification=Verification(rungs=RUNGS))
        outcome = work.perform(Task(0, str(path), str(folder / "o.onnx"), "apply", options))
        assert path.read_bytes() == before
        assert sorted(os.listdir(folder)) == ["m.onnx", "o.onnx"]
        return outcome

    with system.starving(0, way):
        assert perform("expected").error == ""
    numbers = [system.calls.index(step) + 1 for step in STEPS if step in system.calls]
    assert len(numbers) >= 3
    whole = (tmp_path / "expected" / "o.onnx").read_bytes()
    for at in numbers:
        with system.starving(at, way):
            outcome = perform(str(at))
        assert system.called
        report = outcome.report
        assert report is not None, outcome.error
        assert report.exit_code == 0, system.called
        assert (tmp_path / str(at) / "o.onnx").read_bytes() == whole, system.called
        for rung in report.verdict.rungs:
            if rung.status != "passed":
                assert (rung.status, rung.cause, rung.reason.count("\n")) == ("skipped", "memory", 0)
                assert "ran out" in rung.reason or "MemoryError" in rung.reason
