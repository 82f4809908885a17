"""A rung whose own code fails: a status of its own, which blames no fix, hides no other rung and is shown."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, Literal

import onnx
import pytest

import onnxfix
from onnxfix.proof import execution
from onnxfix.proof import verify as proving
from onnxfix.proof.checks import builder
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.readback import network
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.proof.verify import verify
from onnxfix.report.render.text import render_report, render_summary
from onnxfix.report.report import Report
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Outcome, Worker, forked, shared
from onnxfix.tensorrt.lift import emit, lift
from onnxfix.tensorrt.lift.records import Lifted
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import TrtOptions
from support import networks
from support.real_tensorrt import REAL

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
NOOP = "g (float[2,3] x) => (float[2,3] y) { a = Cast<to = 1>(x) y = Relu(a) }"


def stop(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("made up")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: Worker) -> networks.Stage:
    return networks.Stage(tmp_path, monkeypatch, [], worker)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TensorRT that is there, and breaks where its network is read."""
    choice = Choice("tensorrt-rtx", "1.7.1.116", "8.9", None)
    monkeypatch.setattr(network, "builder", lambda options: Builder(choice, options, shared("tensorrt")))
    monkeypatch.setattr(network.lift, "attempt", stop)
    network._LAST.clear()


# ------------------------------------------------------------------------------------------- what became of the child


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("error", ("broke", "broke", "fault")),
        ("crash", ("skipped", "unknown", "crash")),
        ("timeout", ("skipped", "unknown", "timeout")),
        ("memory", ("skipped", "unknown", "memory")),
        ("unstarted", ("skipped", "unknown", "not-loadable")),
        ("refused", ("skipped", "refused", "refused")),
        ("unlifted", ("skipped", "gap", "gap")),
    ],
)
def test_how_reading_back_ended_is_data(
    stage: networks.Stage, status: Any, expected: tuple[str, ...]
) -> None:
    rung = stage.climb((RELU, Lifted(status, "the words do not matter", package="tensorrt-rtx")))
    assert (rung.status, rung.networks[0].status, rung.cause) == expected
    assert rung.networks[0].cause == rung.cause
    assert "the words do not matter" in rung.reason
    assert not rung.refutes


@pytest.mark.parametrize(
    ("status", "expected"), [("error", "broke"), ("crash", "skipped"), ("memory", "skipped")]
)
def test_how_the_run_ended_is_data(
    stage: networks.Stage, monkeypatch: pytest.MonkeyPatch, status: Any, expected: str
) -> None:
    """The model runs, and the child ends where its network does."""
    real, loads = Worker.call, list[str]()

    def call(self: Worker, target: str, *, timeout: float, **kwargs: Any) -> Outcome:
        loads.extend([kwargs["path"]] if target.endswith("checks.sessions:load") else [])
        if target.endswith("checks.sessions:run") and len(loads) > 1:
            return Outcome(status, message="made up")
        return real(self, target, timeout=timeout, **kwargs)

    monkeypatch.setattr(Worker, "call", call)
    rung = stage.climb((RELU, RELU))
    assert (rung.status, rung.cause) == (expected, "fault" if status == "error" else status)
    assert "made up" in rung.reason


def lift_for_rtx(model: str, out: str) -> object:
    return lift(model, out, package="tensorrt-rtx")


@REAL
def test_the_layer_is_named_where_code_for_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork, so that the child knows the function that fails."""
    onnx.save(
        networks.model("g (float[2,3] x) => (float[2,3] y) { [here] y = Relu(x) }"), tmp_path / "m.onnx"
    )
    monkeypatch.setitem(emit.table(), "ACTIVATION", stop)
    arguments = (str(tmp_path / "m.onnx"), str(tmp_path / "out.onnx"))
    outcome = forked(lift_for_rtx, *arguments, timeout=120.0)
    assert outcome.status == "error"
    assert outcome.message.startswith("ACTIVATION layer here of ONNX node here: ZeroDivisionError: made up")
    assert "(test_failing_rungs.py:" in outcome.message


# ------------------------------------------------------------------------------------------------- no TensorRT at all


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = builder.builder(TrtOptions())
    assert isinstance(found, Missing)
    assert found.cause == "not-installed"
    networks.write(tmp_path / "m.onnx", RELU)
    rungs = ["trt-build", "trt-network", "trt-gpu"]
    verdict = verify(tmp_path / "m.onnx", tmp_path / "m.onnx", exact=True, rungs=rungs)
    assert [(rung.status, rung.cause) for rung in verdict.rungs] == [("skipped", "not-installed")] * 3


# ------------------------------------------------------------------------------------------------------- the ladder


@pytest.mark.parametrize("name", ["reference", "ort-cpu"])
def test_one_rung_breaks_and_the_others_are_climbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Literal["reference", "ort-cpu"]
) -> None:
    real = execution.run_check
    monkeypatch.setattr(
        execution, "run_check", lambda request, rung: stop() if rung == name else real(request, rung)
    )
    path = networks.write(tmp_path / "m.onnx", RELU)
    found = verify(path, path, exact=True, rungs=["reference", "ort-cpu"])
    (broken,) = found.broken
    assert (broken.name, broken.status, broken.cause) == (name, "broke", "fault")
    assert broken.reason.startswith("ZeroDivisionError: made up (test_failing_rungs.py:")
    assert [rung.status for rung in found.rungs].count("passed") == 1
    assert (found.passed, found.failed) == (True, False)


def test_a_fault_in_the_child_breaks_the_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks.write(tmp_path / "m.onnx", RELU)
    monkeypatch.setattr(proving, "REMOTE", "onnxfix.proof.outputs")  # which has no ``load`` of a pair
    monkeypatch.setattr("onnxfix.proof.pair.REMOTE", "onnxfix.proof.outputs")
    found = verify(tmp_path / "m.onnx", tmp_path / "m.onnx", exact=True, rungs=["ort-cpu"])
    assert [(rung.status, rung.cause) for rung in found.rungs] == [("broke", "fault")]
    assert not found.passed, "nothing was proven"
    assert not found.failed


# ------------------------------------------------------------------------------------------------------ whole runs


@pytest.mark.usefixtures("chosen")
def test_no_fix_is_withdrawn_for_it_and_the_model_is_written(tmp_path: Path) -> None:
    networks.write(tmp_path / "m.onnx", NOOP)
    out = tmp_path / "out.onnx"
    report = onnxfix.apply(tmp_path / "m.onnx", out, rungs=["contract", "ort-cpu", "trt-network"])
    assert report.applied
    assert report.withdrawn == ()
    assert out.is_file()
    assert report.exit_code == 0
    rung = next(one for one in report.to_json()["verdict"]["rungs"] if one["name"] == "trt-network")
    assert (rung["status"], rung["cause"]) == ("broke", "fault")
    assert [one["status"] for one in rung["networks"]] == ["broke", "broke"], "each model is asked about"
    for quiet in (False, True):
        text = "\n".join(map(str, render_report(report, quiet=quiet)))
        assert "trt-network" in text
        assert "broke" in text
        assert "ZeroDivisionError: made up" in text
        assert "please report it" in text
    assert "1 with a broken check" in "\n".join(map(str, render_summary([report], [])))


@pytest.mark.usefixtures("chosen")
def test_where_it_is_required_nothing_is_written(tmp_path: Path) -> None:
    path, out = networks.write(tmp_path / "m.onnx", NOOP), tmp_path / "out.onnx"
    report = onnxfix.apply(path, out, rungs=["contract", "ort-cpu"], require=["trt-network"])
    assert (report.exit_code, out.exists()) == (3, False)
    assert report.withdrawn == (), "no fix is to blame"
    text = "\n".join(map(str, render_report(report)))
    assert "trt-network was required and broke" in text


def test_nothing_but_a_broken_rung_proves_nothing() -> None:
    rungs = (RungResult("contract", "passed"), RungResult("ort-cpu", "broke", "x", cause="fault"))
    report = Report("m.onnx", "apply", "trt11", verdict=Verdict(rungs))
    assert report.exit_code == 3
    text = "\n".join(map(str, render_report(report)))
    assert "no check could run the model, and ort-cpu broke" in text


@REAL
@pytest.mark.usefixtures("chosen")
def test_a_check_with_tensorrt_has_a_problem(tmp_path: Path) -> None:
    networks.write(tmp_path / "m.onnx", RELU)
    report = onnxfix.check(tmp_path / "m.onnx", trt=TrtOptions(package="tensorrt-rtx"))
    assert (report.network.status, report.network.cause) == ("broke", "fault")
    assert [one for one in report.problems if "ZeroDivisionError: made up" in one.text]
    assert report.exit_code == 2
    assert json.dumps(report.to_json())
