"""Several engines of one model: what differs, and which is kept; TensorRT's builds beside other checks, with the
network read back from the same parse. Engines are ONNX models (``fake_engines``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfix.inputs.feeds.signature import signature
from onnxfix.place import Place
from onnxfix.proof.asking import Builds, compare_engines
from onnxfix.proof.checks import build as trt_build
from onnxfix.proof.checks import probe
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.checks.probe import Probe
from onnxfix.proof.readback import network
from onnxfix.proof.request import Request, networks
from onnxfix.proof.verdict import RungResult
from onnxfix.proof.verify import verify
from onnxfix.runtime import allowance
from onnxfix.runtime.nvidia import Gpu
from onnxfix.runtime.sandbox import Outcome, Posted, Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.reading import EngineLayer, LayerTable, NodeLayers
from onnxfix.tensorrt.records import Issue, Profile, TrtBuild, TrtOptions
from support import fake_engines
from support.fake_engines import save
from support.models import write
from support.patience import PATIENCE
from support.real_tensorrt import REAL

MODEL = "g (float[N,2] x) => (float[N,2] y) { y = Exp(x) }"


def off(share: float) -> str:
    """The model with an error of that share."""
    return f"g (float[N,2] x) => (float[N,2] y) <float f = {{{1 + share}}}> {{ a = Exp(x)  y = Mul(a, f) }}"


@dataclass
class Prepared:
    """Builds ``engines``, one after the other: the text of an ONNX model, its tricks, and a tactic; or a refusal."""

    engines: Sequence[tuple[str, dict[str, Any], str] | str]
    unfit: int = 0
    asked: list[Any] = field(default_factory=list)
    choice: Choice = field(default_factory=lambda: Choice("tensorrt", "10.9.0", "8.9", Gpu("L4", "8.9")))
    product: str = "TensorRT 10.9.0"
    options: TrtOptions = field(default_factory=TrtOptions)

    def layers(
        self, path: Path, profiles: Sequence[Profile] | None = None, *, save_engine: str = ""
    ) -> tuple[LayerTable, None]:
        self.asked.append(profiles)
        used = tuple(profiles or ())
        made = self.engines[int(Path(save_engine).stem) - 1]
        if len(self.asked) <= self.unfit:
            made = "kOPT values for profile 0 violate shape constraints"
        if isinstance(made, str):
            error = Issue("build", "error", made)
            return LayerTable(TrtBuild("refused", "build", errors=(error,), profiles=used)), None
        text, tricks, tactic = made
        save(Path(save_engine), text, **tricks)
        node = NodeLayers(Place((), "n", "Exp", "y"), "engine", layers=("n_0",), tactics=(tactic,))
        layer = EngineLayer("n_0", "kgen", tactic)
        return LayerTable(TrtBuild("accepted", profiles=used), (node,), (layer,), "log"), None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "model.onnx", MODEL)
    return tmp_path


def compared(folder: Path, worker: Worker, builder: Prepared) -> Builds:
    path = folder / "model.onnx"
    request = Request(path, path, signature(path), worker, False, 0, {}, None)
    return compare_engines(request, builder, folder, len(builder.engines))  # type: ignore[arg-type]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", lambda found: Probe(precision="float32", card=Gpu("L4", "8.9")))
    monkeypatch.setattr(probe, "RUN", fake_engines.__name__)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "probe", lambda found: Probe("no NVIDIA GPU found", "no-gpu"))


def test_without_a_gpu_layers_and_bytes_are_compared(folder: Path, worker: Worker, no_gpu: None) -> None:
    engines = [(MODEL, {}, "a"), (MODEL, {}, "a"), (off(0.5), {}, "b")]
    found = compared(folder, worker, Prepared(engines))
    assert (found.kept, found.unexecuted, found.trials) == (1, "no NVIDIA GPU found", 0)
    first, second, third = found.engines
    assert first.digest == second.digest != third.digest
    assert (second.differs, [one.output for one in third.differs]) == ((), ["y"])
    assert not found.alike
    assert compared(folder, worker, Prepared(engines[:2])).alike
    assert {one.outcome for one in found.engines} == {""}
    assert all(one.error is None and one.timing is None for one in found.engines)


def test_the_engine_with_the_smallest_error_is_kept(folder: Path, worker: Worker, gpu: None) -> None:
    engines = [(off(1e-4), {"ms": 1.0}, "a"), (off(1e-6), {"ms": 3.0}, "b"), (off(2e-4), {"ms": 2.0}, "c")]
    found = compared(folder, worker, Prepared(engines))
    assert [one.error for one in found.engines] == pytest.approx([1e-4, 1e-6, 2e-4], rel=0.2)
    assert [one.outcome for one in found.engines] == ["right"] * 3
    assert (found.kept, found.oracle, found.unexecuted) == (2, "ort-cpu", "")
    assert found.trials > 1
    assert found.best is found.engines[1]


@pytest.mark.parametrize(
    ("errors", "kept"),
    [((0, 0, 0), 2), ((1e-3, 1.05e-3, 1.2e-3), 2), ((1e-3, 1.3e-3, 1.3e-3), 1), ((0, 1e-6, 1e-6), 1)],
)
def test_latency_decides_between_errors_that_are_alike(
    folder: Path, worker: Worker, gpu: None, errors: tuple[float, ...], kept: int
) -> None:
    engines = [(off(error), {"ms": ms}, "a") for error, ms in zip(errors, (3.0, 1.0, 2.0), strict=True)]
    found = compared(folder, worker, Prepared(engines))
    assert [one.timing.median_ms for one in found.engines] == [3.0, 1.0, 2.0]
    assert found.kept == kept


def test_a_wrong_engine_is_not_kept_where_one_is_right(folder: Path, worker: Worker, gpu: None) -> None:
    nan = "g (float[N,2] x) => (float[N,2] y) { a = Neg(x)  b = Sub(a, a)  y = Div(b, b) }"
    found = compared(folder, worker, Prepared([(nan, {"ms": 1.0}, "a"), (MODEL, {"ms": 2.0}, "b")]))
    wrong, right = found.engines
    assert (wrong.outcome, wrong.error, right.outcome) == ("wrong", math.inf, "right")
    assert "y" in wrong.reason
    assert found.kept == 2
    alone = compared(folder, worker, Prepared([(off(0.5), {}, "a"), (off(0.6), {}, "a")]))
    assert ([one.outcome for one in alone.engines], alone.kept) == (["wrong", "wrong"], 1)


@pytest.mark.parametrize(
    "tricks", [{"refused": "no memory"}, {"fails": "an error of the device"}, {"dies": 1}]
)
def test_an_engine_that_fails_does_not_end_the_others(
    tricks: dict[str, Any], folder: Path, worker: Worker, gpu: None
) -> None:
    found = compared(folder, worker, Prepared([(MODEL, tricks, "a"), (MODEL, {}, "a")]))
    failed, right = found.engines
    assert (failed.outcome, failed.error, failed.timing) == ("failed", None, None)
    assert failed.reason
    assert (right.outcome, found.kept) == ("right", 2)


def test_a_refused_build_is_told(folder: Path, worker: Worker, gpu: None) -> None:
    found = compared(folder, worker, Prepared(["not supported", (MODEL, {}, "a")]))
    assert (found.engines[0].outcome, found.engines[0].reason) == ("failed", "not supported")
    assert found.kept == 2
    assert compared(folder, worker, Prepared(["not supported"] * 2)).kept == 0


def test_all_engines_have_the_profile_that_the_first_got(folder: Path, worker: Worker, gpu: None) -> None:
    builder = Prepared([(MODEL, {}, "a")] * 3, unfit=1)
    found = compared(folder, worker, builder)
    assert len(builder.asked) == 4
    assert builder.asked[0] != builder.asked[1] == builder.asked[2] == builder.asked[3]
    assert {one.outcome for one in found.engines} == {"right"}


def test_engines_run_without_the_variable_that_turns_tf32_off(
    folder: Path, worker: Worker, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's process has no such variable, and TensorRT-RTX loads no engine that was built under another."""
    made: list[dict[str, Any]] = []

    class Seen(Worker):
        def __init__(self, **options: Any) -> None:
            made.append(options)
            super().__init__(**options)

    monkeypatch.setattr("onnxfix.proof.asking.Worker", Seen)
    compared(folder, worker, replace(Prepared([(MODEL, {}, "a")])))
    assert made == [{"memory_mb": None}]


BEFORE = "g (float[N,3] x) => (float[N,3] y) { a = Neg(x)  b = Neg(a)  c = Exp(b)  y = Identity(c) }"
AFTER = "g (float[N,3] x) => (float[N,3] y) { y = Exp(x) }"
WRONG = AFTER.replace("Exp", "Sin")
PACKAGE = "tensorrt-rtx"
CHECKS = ("contract", "ort-cpu", "trt-build", "trt-network")


def written(folder: Path, **texts: str) -> list[Path]:
    return [write(folder / f"{name}.onnx", text, 17) for name, text in texts.items()]


def timeless(rung: RungResult) -> RungResult:
    builds = tuple(replace(one, parse_seconds=0.0, build_seconds=0.0) for one in rung.builds)
    read = tuple(replace(one, seconds=(0.0, 0.0, 0.0)) for one in rung.networks)
    return replace(rung, seconds=0.0, builds=builds, networks=read)


@REAL
@pytest.mark.slow
def test_builds_beside_other_rungs_show_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, verdicts = written(tmp_path, before=BEFORE, after=AFTER), []
    for cores in ("1", "2"):
        trt_build._LAST.clear()
        network._LAST.clear()
        monkeypatch.setenv(allowance.CORES, cores)
        verdicts.append(verify(*paths, exact=False, rungs=CHECKS))
    late, ahead = verdicts
    assert ahead.passed
    assert [*map(timeless, ahead.rungs)] == [*map(timeless, late.rungs)]
    assert [rung.name for rung in ahead.rungs] == [*CHECKS]
    assert [one.layer_count for one in ahead.rungs[2].builds] == [4, 1]
    (wrong,) = written(
        tmp_path, wrong=WRONG
    )  # the original's build is known: the next candidate's alone is begun
    refuted = verify(paths[0], wrong, exact=False, rungs=CHECKS)
    assert [rung.status for rung in refuted.rungs] == ["passed", "failed", "passed", "passed"]


@REAL
@pytest.mark.slow
def test_a_model_parsed_once_is_built_and_read_as_if_parsed_twice(tmp_path: Path) -> None:
    (path,) = written(tmp_path, model=BEFORE)
    how: dict[str, Any] = {"package": PACKAGE, "timeout": PATIENCE}
    child = f"{lift.__name__}:build_and_lift"
    with Worker() as worker:
        apart = attempt(worker, path, **how), lift.attempt(worker, path, tmp_path / "apart.onnx", **how)
        outcome = worker.call(child, path=str(path), out=str(tmp_path / "once.onnx"), **how)
        again = worker.call(child, path=str(path), out=str(tmp_path / "again.onnx"), follow=True, **how)
    done, network = outcome.value
    assert (done.status, done.layers, done.profiles) == ("accepted", apart[0].layers, apart[0].profiles)
    assert done.engine_bytes == apart[0].engine_bytes
    assert network.names == apart[1].names
    assert (tmp_path / "once.onnx").read_bytes() == (tmp_path / "apart.onnx").read_bytes()
    assert done.profiles[0].derived
    assert again.value[0].profiles == done.profiles


@pytest.mark.parametrize(("note", "status"), [("lift", None), ("build", "crash")])
def test_where_a_build_died_decides_what_is_known(note: str, status: str | None) -> None:
    outcome = Outcome("crash", message="killed by SIGSEGV", died=True, note=note)
    worker = SimpleNamespace(collect=lambda posted: outcome, limit_mb=None)
    found = Builder(Choice(PACKAGE, "1.7.1", "8.9"), TrtOptions(), worker)  # type: ignore[arg-type]
    built = found.collect(Posted(PATIENCE), Path("m.onnx"))
    assert (built and built[0].status) == status


def test_a_build_that_nobody_waits_for_is_ended(worker: Worker) -> None:
    with suppress(KeyboardInterrupt), networks() as place:
        place.worker = worker
        place.begun[Path("m.onnx")] = worker.post("signal:pause", timeout=PATIENCE)
        raise KeyboardInterrupt
    assert worker.pid is None
    with networks() as place:  # what has ended does not cost the child
        place.worker = worker
        place.begun[Path("m.onnx")] = posted = worker.post("os:getpid", timeout=PATIENCE)
        worker.collect(posted)
    assert worker.pid is not None
