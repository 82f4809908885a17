"""The latency of engines: statistics, turns, and what is said of them. Engines are ONNX models (``fake_engines``).

``test_trt_on_gpu.py`` times real ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxfix
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.proof.checks import gpu, probe
from onnxfix.proof.checks.trials import usual
from onnxfix.proof.request import Trial
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.report.render.proof import latency_lines
from onnxfix.report.render.text import render_report
from onnxfix.report.report import Report
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import engine as trt_run
from onnxfix.tensorrt.records import Profile, TrtBuild, TrtOptions
from onnxfix.tensorrt.timing import Latency, Limits, Timing, compared, interleave, timing
from support.cli import errors, output, run
from support.ended import ended
from support.patience import PATIENCE
from test_rung_trt_gpu import ABS, NO_DRIVER, REAL, RELU, RELU_CAST, Rung, on_a_gpu, request, save

# ----------------------------------------------------------------------------------------------------- the statistics


def test_an_engines_statistics() -> None:
    found = timing([[1.0, 1.0, 2.0], [3.0, 3.0, 9.0]], load_seconds=0.5, first_seconds=1.002)
    assert (found.median_ms, found.p5_ms, found.p95_ms) == (2.5, 1.0, 7.5)
    assert (found.runs, found.blocks) == (6, 2)
    assert found.noise == pytest.approx(0.9 / 2.5), "medians 1 and 3: half of the distance from 1.1 to 2.9"
    assert (found.load_seconds, found.jit_seconds) == (0.5, pytest.approx(0.9995))
    assert timing([[2.0]], first_seconds=0.001).jit_seconds == 0


@pytest.mark.parametrize(
    ("median", "noise", "comparison"),
    [
        (2.1, 0.04, "slower"),
        (2.1, 0.06, "same"),
        (1.9, 0.04, "faster"),
        (1.9, 0.06, "same"),
        (2.01, 0.0, "same"),
        (2.03, 0.0, "slower"),
    ],
)
@pytest.mark.parametrize("side", ["original", "fixed"])
def test_what_is_slower_by_more_than_the_noise(
    median: float, noise: float, comparison: str, side: str
) -> None:
    one, other = Timing(2.0, 2.0, 2.0, 9, 3, 0.0), Timing(median, median, median, 9, 3, 0.0)
    noisy = replace(one, noise=noise) if side == "original" else one
    found = compared(noisy, replace(other, noise=noise) if side == "fixed" else other)
    assert (found.comparison, found.noise) == (comparison, noise)
    assert found.ratio == pytest.approx(median / 2)


# --------------------------------------------------------------------------------------------------------- the turns


class Turns:
    """Two engines whose runs take ``ms``, on a clock that only they move."""

    def __init__(self, **ms: float) -> None:
        self.now, self.order = 0.0, ""
        self.engines = {name: self._run(name, value) for name, value in ms.items()}

    def _run(self, name: str, ms: float) -> Callable[[], float]:
        def run() -> float:
            self.order += name
            self.now += ms / 1000
            return ms

        return run

    def __call__(self, **limits: Any) -> dict[str, list[list[float]]]:
        return interleave(self.engines, clock=lambda: self.now, limits=Limits(**limits))


def test_engines_take_turns_and_the_order_alternates() -> None:
    turns = Turns(a=1.0, b=1.0)
    blocks = turns(warm_runs=1, runs=8, block_runs=2, rounds=1)
    assert turns.order == "ab" + "aaabbb" + "bbbaaa" + "aaabbb" + "bbbaaa"
    assert blocks == {name: [[1.0] * 2] * 4 for name in "ab"}, "the first run of each block is not counted"


def test_runs_are_bounded_by_count_and_by_time() -> None:
    assert [len(one) for one in Turns(a=0.1, b=0.1)()["a"]] == [25] * 20
    turns = Turns(a=10.0, b=10.0)
    assert {len(one) for one in turns()["a"]} == {10}, "a block lasts a tenth of a second"
    assert 4.0 <= turns.now < 5.0
    assert len(Turns(a=1.0, b=20.0)()["a"][0]) == 5, "as long as the slower engine allows"
    assert [*Turns(a=1000.0, b=3000.0)().values()] == [[[1000.0]] * 4, [[3000.0]] * 4], (
        "the least that shows noise"
    )
    assert len(Turns(a=0.0, b=0.0)(runs=100)["a"][0]) == 25, "a clock that is too coarse stops nothing"
    slow = Turns(a=200.0, b=1.0)
    slow(warm_runs=50, warm_seconds=0.3, runs=1, block_runs=1, rounds=1)
    assert slow.order.startswith("aab"), "warming up is bounded, too"


# --------------------------------------------------------------------------- the real modules, up to the missing GPU


@REAL
def test_tensorrt_has_all_that_is_asked_of_it(worker: Worker) -> None:
    assert worker.call("support.fake_gpu:lacking", timeout=PATIENCE).value == []


@REAL
@NO_DRIVER
def test_without_a_gpu_timing_ends_with_a_reason(worker: Worker, tmp_path: Path) -> None:
    """Through Polygraphy and the real CUDA runtime, where one is installed."""
    feed = {"x": np.array([1.0, 2.0, 3.0], np.float32)}
    given = {"paths": {"fixed": str(tmp_path / "none.engine")}, "feed": feed, "package": "tensorrt-rtx"}
    outcome = worker.call(f"{trt_run.__name__}:latency", timeout=PATIENCE, **given)
    assert outcome.ok, outcome.message
    found: Latency = outcome.value
    assert found == Latency(reason=found.reason)
    assert "cudaStreamCreateWithFlags: " in found.reason or "libcudart" in found.reason


# ---------------------------------------------------------------------------------------------------------- the rung


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Rung]:
    with on_a_gpu(monkeypatch, tmp_path) as made:
        yield made


ASKED = TrtOptions(benchmark=True)


def test_engines_that_agree_are_timed(rung: Rung) -> None:
    rung.tricks = {"fixed": {"ms": 3.0}}
    result = rung(RELU, RELU_CAST, trt=ASKED)
    found = result.latency
    assert (result.status, result.refutes) == ("passed", False), "slower is no failure"
    assert (found.reason, found.comparison, found.ratio) == ("", "slower", 1.5)
    assert found.original is not None
    assert found.fixed is not None
    assert [one.engine_bytes > 50 for one in (found.original, found.fixed)] == [True, True]
    (profile,) = result.builds[-1].profiles
    assert found.shapes == (("x", profile.shapes["x"][1]),), "the usual shape"


def test_a_refuted_fix_is_not_timed(rung: Rung) -> None:
    rung.engines["fixed"] = ABS
    result = ended("failed", rung(RELU, RELU_CAST, trt=ASKED))
    assert result.latency == Latency(reason="the new model's engine is wrong")


@pytest.mark.parametrize("refused", [True, False])
def test_one_engine_has_no_ratio(rung: Rung, refused: bool) -> None:
    if refused:
        rung.refusals["original"] = "no such plugin"
    latency = rung(RELU, RELU_CAST if refused else RELU, trt=ASKED).latency
    assert (latency.original, latency.ratio, latency.reason) == (None, None, "")
    assert latency.fixed.median_ms > 0


def test_the_originals_engine_of_a_rung_before_is_built_again(rung: Rung) -> None:
    """What it computed is kept for later candidates, its file is not. That one rung is timed and another is not, as
    where a culprit is looked for, makes no other original of it."""
    rung.texts = {"original": RELU, "fixed": RELU_CAST}
    asked = request(rung.folder, rung.worker, RELU, RELU_CAST)
    assert gpu.run(asked).latency is None
    rung.options = ASKED
    for times in (1, 2):
        found = gpu.run(replace(asked, trt=ASKED)).latency
        assert found.ratio == 1.0
        assert [name for name, _ in rung.asked] == ["original", "fixed", *["fixed", "original"] * times]
    assert rung.asked[3] == rung.asked[0], "with the same profiles"
    rung.refusals["original"] = "no memory left"
    found = gpu.run(replace(asked, trt=ASKED)).latency
    assert found == Latency(reason="the engine of the original could not be rebuilt: no memory left")


def test_what_goes_wrong_is_a_reason_and_no_failure(rung: Rung) -> None:
    rung.tricks = {"fixed": {"untimed": "out of memory"}}
    result = rung(RELU, RELU_CAST, trt=ASKED)
    assert (result.status, result.latency) == ("passed", Latency(reason="out of memory"))
    child = probe.engines(rung.choice, TrtOptions(), 1.0)._worker
    assert child.pid is None, "what a device is left in by a failure is nobody's to use"
    rung.tricks = {"fixed": {"dies_timed": True}}
    result = ended("passed", rung(RELU, f"{RELU_CAST} ", trt=ASKED))
    assert "SIGABRT" in result.latency.reason
    rung.tricks = {}
    assert rung(RELU, f"{RELU_CAST}  ", trt=ASKED).latency != result.latency, "the next child is a new one"


def test_the_usual_trial() -> None:
    def trial(rows: int) -> Trial:
        return Trial(str(rows), Feed({}, "normal", 0), {"x": np.zeros((rows, 2)), "k": np.array([rows])})

    trials = [trial(1), trial(4), trial(2)]
    assert usual(trials, ()).label == "2"
    assert usual(trials, [Profile({"x": ((1, 2), (4, 2), (8, 2))})]).label == "4"
    assert usual(trials, [Profile({"x": ((1, 2), (7, 2), (8, 2))})]).label == "2", (
        "none is: the last that fits"
    )
    assert usual(trials, [Profile({"x": ((1, 2), (7, 2), (1, 2))})]).label == "1"
    assert usual(trials, [Profile({}, {"k": ((1,), (4,), (4,))})]).label == "4"


# ------------------------------------------------------------------------------------------------- how it is told

SIDE = Timing(1.377, 1.3, 1.5, 500, 20, 0.01, 0.102, 0.414, 3.1, 12_897_485)
BOTH = replace(
    compared(SIDE, replace(SIDE, median_ms=1.297, load_seconds=0.09, jit_seconds=0.38, build_seconds=3.0)),
    launch="cuda-graph",
    captured_by="tensorrt",
    shapes=(("x", (1, 128)),),
)


def lines(found: Latency) -> list[str]:
    return [one.plain for one in latency_lines(found)]


SLOWER = compared(SIDE, replace(SIDE, median_ms=1.5, noise=0.0234))
ALONE = compared(None, replace(SIDE, median_ms=0.0123, runs=1))


@pytest.mark.parametrize(
    ("latency", "told"),
    [
        (BOTH, ["original 1.377 ms, new 1.297 ms (0.94x, CUDA graphs, 500 runs each; noise 1 %)",
                "loaded in 0.10 → 0.09 s; first run 0.41 → 0.38 s more; built in 3.10 → 3.00 s; "
                "engine 12.30 → 12.30 MiB"]),
        (replace(SLOWER, launch="stream", fallback="the engine cannot be captured"),
         ["original 1.377 ms, new 1.500 ms (1.09x, slower, stream launches, 500 runs each; noise 2.3 %)",
          "no CUDA graphs: the engine cannot be captured",
          "loaded in 0.10 → 0.10 s; first run 0.41 → 0.41 s more; built in 3.10 → 3.10 s; "
          "engine 12.30 → 12.30 MiB"]),
        (replace(ALONE, launch="cuda-graph"),
         ["0.0123 ms (CUDA graphs, 1 run; noise 1 %)",
          "loaded in 0.10 s; first run 0.41 s more; built in 3.10 s; engine 12.30 MiB"]),
        (Latency(reason="no engine was executed: no NVIDIA GPU found"),
         ["not measured: no engine was executed: no NVIDIA GPU found"]),
    ],
)  # fmt: skip
def test_the_lines(latency: Latency, told: list[str]) -> None:
    assert lines(latency) == ["  latency   " + told[0], *(" " * 12 + one for one in told[1:])]


def test_a_report_has_it_in_text_and_in_json() -> None:
    result = RungResult("trt-gpu", "passed", "it agrees", latency=BOTH)
    report = Report(path="m.onnx", command="verify", target="", verdict=Verdict((result,)))
    for verbose in (False, True):
        assert set(lines(BOTH)) <= {one.plain for one in render_report(report, verbose=verbose)}
    data = json.loads(json.dumps(report.to_json()))["verdict"]["rungs"][0]["latency"]
    assert (data["comparison"], data["launch"], data["shapes"]) == ("faster", "cuda-graph", [["x", [1, 128]]])
    assert data["original"]["median_ms"] == 1.377
    plain_report = replace(report, verdict=Verdict((replace(result, latency=None),)))
    assert plain_report.to_json()["verdict"]["rungs"][0]["latency"] is None
    assert not any("latency" in one.plain for one in render_report(plain_report))


# ------------------------------------------------------------------------------------------- the command and Python

NO_TENSORRT = "nothing is installed: pip install it"


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "builder", lambda options: Missing(NO_TENSORRT, "not-installed"))


@pytest.mark.parametrize("command", ["verify", "apply"])
def test_without_a_gpu_one_line_says_why(nothing: None, tmp_path: Path, command: str) -> None:
    save(tmp_path / "m.onnx", RELU_CAST)
    given = [command, tmp_path / "m.onnx", "--benchmark", "--rungs", "ort-cpu,trt-gpu"]
    out = output(0, *given)
    assert out.count("latency") == 1
    assert f"\n  latency   not measured: no engine was executed: {NO_TENSORRT}\n" in out
    _, out, _ = run(*given, "--format", "json")
    rungs = {one["name"]: one for one in json.loads(out)["reports"][0]["verdict"]["rungs"]}
    assert rungs["trt-gpu"]["latency"]["reason"] == f"no engine was executed: {NO_TENSORRT}"
    assert rungs["ort-cpu"]["latency"] is None
    assert "latency" not in run(*given[:2], *given[3:])[1]


def test_without_the_rung_one_note_says_so(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", RELU_CAST)
    given = ["verify", tmp_path / "m.onnx", "--rungs", "ort-cpu"]
    note = "note      no latency was measured: the check trt-gpu did not run"
    assert note in run(*given, "--benchmark")[1]
    assert "latency" not in run(*given)[1]


def test_a_rung_that_broke_has_a_note(monkeypatch: pytest.MonkeyPatch, nothing: None, tmp_path: Path) -> None:
    def stop(request: Any) -> RungResult:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(gpu, "run", stop)
    path = save(tmp_path / "m.onnx", RELU)
    report = onnxfix.verify(path, rungs=["trt-gpu"], benchmark=True)
    assert report.notes == ("no latency was measured: the check trt-gpu broke",)


def test_no_verify_contradicts_it(tmp_path: Path) -> None:
    err = errors(2, "apply", save(tmp_path / "m.onnx", RELU), "--no-verify", "--benchmark")
    assert "--no-verify contradicts" in err
    assert "--benchmark" in err


def test_builds_are_told_with_the_engines(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rung.build

    def build(path: Path, *given: Any, **more: Any) -> TrtBuild:
        seconds = {"original": 3.0, "fixed": 2.0}[path.stem]
        return replace(real(path, *given, **more), build_seconds=seconds, engine_bytes=int(seconds) << 20)

    monkeypatch.setattr(rung, "build", build)
    found = rung(RELU, RELU_CAST, trt=ASKED).latency
    assert (found.original.build_seconds, found.original.engine_bytes) == (3.0, 3 << 20)
    assert (found.fixed.build_seconds, found.fixed.engine_bytes) == (2.0, 2 << 20)
