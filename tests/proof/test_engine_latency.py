"""The latency of engines: statistics, turns, launches, what is said of them. The device and its clock are fakes.

``test_trt_on_gpu.py`` asks a real one.
"""
# Long because: what is timed, how it is launched and how it is told are tested beside each other

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from onnxfix.tensorrt.cudart import Cuda, CudaError
from onnxfix.tensorrt.latency import NotRun, Tools, measure
from onnxfix.tensorrt.records import Profile, TrtBuild, TrtOptions
from onnxfix.tensorrt.timing import Latency, Limits, Timing, compared, interleave, timing
from support.cli import errors, output, run
from support.ended import ended
from support.fake_gpu import RTX, TRT, Context, Device, Engine, RtxEngine
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


# ----------------------------------------------------------------------------------------------------- on the device


X = {"x": np.array([1.0, 2.0, 3.0], np.float32)}
FEW = Limits(warm_runs=2, runs=10, block_runs=5, rounds=2)


def timed(device: Device, trt: Any, inputs: dict[str, Any] | None = None, **engines: Engine) -> Latency:
    for name, engine in engines.items():
        engine.name = name
    tools = Tools(device, trt, engines.__getitem__, lambda engine: inputs or X, lambda: "heard")  # type: ignore[arg-type]
    return measure({name: name for name in engines}, tools, clock=device.clock, limits=FEW)


def test_both_engines_by_graphs_that_tensorrt_rtx_captures() -> None:
    device = Device()
    found = timed(device, RTX, original=RtxEngine(device, ms=2.0), fixed=RtxEngine(device, ms=3.0, jit=100.0))
    original, fixed = found.original, found.fixed
    assert (found.launch, found.captured_by, found.fallback) == ("cuda-graph", "tensorrt", "")
    assert (original.median_ms, fixed.median_ms) == (pytest.approx(0.2), pytest.approx(0.3))
    assert (found.comparison, found.ratio) == ("slower", pytest.approx(1.5))
    assert original.runs == fixed.runs == 10
    assert (original.load_seconds, fixed.load_seconds) == (0.25, 0.25)
    assert original.jit_seconds == pytest.approx(0.502, abs=1e-3)
    assert fixed.jit_seconds == pytest.approx(0.103, abs=1e-3)
    assert found.shapes == (("x", (3,)),)
    assert "launch" not in device.log


def test_both_engines_by_graphs_that_are_captured_for_the_full_tensorrt() -> None:
    device = Device()
    found = timed(device, TRT, original=Engine(device), fixed=Engine(device))
    assert (found.launch, found.captured_by, found.fallback) == ("cuda-graph", "cuda", "")
    assert found.fixed.median_ms == pytest.approx(0.2)
    assert found.comparison == "same"
    first = device.log.index("record")
    assert not [one for one in device.log[first:] if one.startswith("enqueue")], "graphs alone are timed"


@pytest.mark.parametrize("which", ["original", "fixed"])
@pytest.mark.parametrize(
    ("trick", "words"),
    [
        ({"breaks": True}, "TensorRT does not run the engine; heard"),
        ({"hollow": True}, "the captured graph computes nothing; heard"),
    ],
)
def test_where_one_cannot_be_captured_both_are_streamed(
    which: str, trick: dict[str, Any], words: str
) -> None:
    device = Device()
    engines = {name: Engine(device, **(trick if name == which else {})) for name in ("original", "fixed")}
    found = timed(device, TRT, **engines)
    assert (found.launch, found.captured_by, found.fallback) == ("stream", "", words)
    assert found.original.median_ms == found.fixed.median_ms == pytest.approx(2.0)
    first = device.log.index("record")
    assert "launch" not in device.log[first:]
    assert {"enqueue original", "enqueue fixed"} <= set(device.log[first:])
    assert [len(one.contexts) for one in engines.values()] == [2, 2], (
        "not in one that a capture has failed in"
    )


def test_what_rtx_does_not_capture_is_captured_by_us_for_both() -> None:
    device = Device()
    engines = {"original": RtxEngine(device), "fixed": RtxEngine(device, capturable=False)}
    found = timed(device, RTX, **engines)
    assert (found.launch, found.captured_by) == ("cuda-graph", "cuda")
    for engine in engines.values():
        assert [one.config.cuda_graph_strategy for one in engine.contexts] == [1, 0], "not a graph in a graph"
        assert engine.contexts[0].addresses == engine.contexts[1].addresses
    assert (device.log.count("allocate"), device.log.count("upload")) == (4, 2)


def test_rtx_engines_that_nobody_captures() -> None:
    device = Device()
    found = timed(
        device, RTX, original=RtxEngine(device), fixed=RtxEngine(device, capturable=False, breaks=True)
    )
    assert found.launch == "stream"
    assert found.fallback == (
        "TensorRT says that the engine cannot be captured; heard; TensorRT does not run the engine; heard"
    )
    assert found.original.median_ms == pytest.approx(2.0), "in a context without graphs of its own"


@pytest.mark.parametrize("function", ["begin_capture", "end_capture", "instantiate", "nodes", ""])
def test_cuda_that_cannot_capture(function: str) -> None:
    device = Device(**({function: "operation not supported"} if function else {}))
    if function == "end_capture":
        device.begin_capture = lambda stream: setattr(device, "capturing", [])  # type: ignore[method-assign]
    if not function:
        device.nodes = lambda graph: 0  # type: ignore[method-assign]
    found = timed(device, TRT, fixed=Engine(device))
    why = f"{function}: operation not supported" if function else "the captured graph is empty"
    assert (found.launch, found.fallback) == ("stream", f"{why}; heard")
    assert device.held == []


def test_nothing_is_copied_or_allocated_while_engines_are_timed() -> None:
    device = Device()
    timed(device, RTX, original=RtxEngine(device), fixed=RtxEngine(device))
    first, last = device.log.index("record"), len(device.log) - device.log[::-1].index("elapsed")
    assert set(device.log[first:last]) == {
        "record",
        "enqueue original",
        "enqueue fixed",
        "synchronize",
        "elapsed",
    }
    # Both have their input and output once, whatever contexts are made.
    assert device.log.count("allocate") == 4
    assert device.log.count("upload") == 2


def test_all_is_given_back() -> None:
    device = Device()
    timed(device, TRT, original=Engine(device), fixed=Engine(device))
    assert device.held == []
    broken = "an illegal memory access was encountered"
    device = Device(elapsed=broken)
    found = timed(device, TRT, original=Engine(device), fixed=Engine(device))
    assert found == Latency(reason=f"elapsed: {broken}")
    assert device.held == []


def test_a_context_goes_before_what_it_uses() -> None:
    """TensorRT-RTX reads memory that was freed otherwise."""
    gone: list[str] = []

    class Config:
        """One that the context does not hold, as TensorRT's does not."""

        cuda_graph_strategy = dynamic_shapes_kernel_specialization_strategy = 0

    class Watched(RtxEngine):
        def create_runtime_config(self) -> Any:
            return Config()

        def create_execution_context(self, config: Any = None) -> Context:
            context = Context(self, SimpleNamespace(cuda_graph_strategy=config.cuda_graph_strategy))
            kinds = {"context": context, "config": config}
            for name, one in kinds.items():
                weakref.finalize(one, gone.append, name)
            return context

    device = Device()
    assert timed(device, RTX, fixed=Watched(device, capturable=False, breaks=True)).launch == "stream"
    assert gone == ["context", "config"] * 3


@pytest.mark.parametrize(
    ("engine", "blocks"), [({"sizes": -1}, 2), ({"sizes": 0}, 2), ({"aliased": True}, 1)]
)
def test_outputs_have_room(engine: dict[str, Any], blocks: int) -> None:
    device = Device()
    found = timed(device, TRT, fixed=Engine(device, **engine))
    assert (found.reason, found.launch, found.original) == ("", "cuda-graph", None)
    assert device.log.count("allocate") == blocks


def test_why_nothing_was_timed_is_told() -> None:
    device = Device()
    found = timed(device, TRT, {"x": np.zeros((1, 3), np.float32)}, fixed=Engine(device))
    assert found.reason == "input x of shape [1, 3] does not fit the engine"
    device = Device(allocate="out of memory")
    assert timed(device, TRT, fixed=Engine(device)).reason == "allocate: out of memory"


def test_an_engine_that_does_not_run_is_tensorrts_to_explain() -> None:
    device = Device()
    with pytest.raises(NotRun, match="does not run"):
        timed(device, TRT, fixed=Engine(device, refuses=True))


def test_shapes_that_are_values_lie_in_the_hosts_memory() -> None:
    device = Device()
    engine = Engine(device)
    engine.is_shape_inference_io = lambda name: name == "x"  # type: ignore[method-assign]
    timed(device, TRT, fixed=engine)
    assert "upload" not in device.log
    assert engine.contexts[0].addresses["x"] == X["x"].ctypes.data


# --------------------------------------------------------------------------------------------------- the CUDA runtime


def test_cudas_own_words_are_passed_on() -> None:
    class Told:
        restype: Any = None

        def __call__(self, code: int) -> bytes:
            assert self.restype is ctypes.c_char_p
            return b"out of memory"

    cleared: list[int] = []
    library = SimpleNamespace(
        cudaMalloc=lambda *_: 2, cudaGetErrorString=Told(), cudaGetLastError=lambda: cleared.append(1)
    )
    with pytest.raises(CudaError, match=r"^cudaMalloc: out of memory$"):
        Cuda(library).allocate(4)
    assert cleared == [1]
    with pytest.raises(CudaError, match="this CUDA runtime has no cudaGraphLaunch"):
        Cuda(library).launch(1, 2)


def test_the_runtime_releases_the_last_first_whatever_it_says() -> None:
    released: list[str] = []
    library = SimpleNamespace(
        cudaGetLastError=lambda: 0,
        cudaGetErrorString=type("Words", (), {"__call__": lambda self, code: b"broken", "restype": None})(),
        **dict.fromkeys(("cudaMalloc", "cudaStreamCreateWithFlags"), lambda *_: 0),
        cudaFree=lambda *_: released.append("cudaFree") or 700,
        cudaStreamDestroy=lambda *_: released.append("cudaStreamDestroy") or 700,
    )
    cuda = Cuda(library)
    cuda.stream()
    cuda.allocate(4)
    cuda.close()
    cuda.close()
    assert released == ["cudaFree", "cudaStreamDestroy"]


# --------------------------------------------------------------------------- the real modules, up to the missing GPU


@REAL
def test_tensorrt_has_all_that_is_asked_of_it(worker: Worker) -> None:
    assert worker.call("support.fake_gpu:lacking", timeout=PATIENCE).value == []


@REAL
@NO_DRIVER
def test_without_a_gpu_timing_ends_with_a_reason(worker: Worker, tmp_path: Path) -> None:
    """Through Polygraphy and the real CUDA runtime, where one is installed."""
    given = {"paths": {"fixed": str(tmp_path / "none.engine")}, "feed": X, "package": "tensorrt-rtx"}
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
    monkeypatch.setattr(probe, "warm", lambda options: None)


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
