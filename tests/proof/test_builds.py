"""Several engines of one model: what differs, and which is kept. Engines are ONNX models (``fake_engines``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from onnxfix.inputs.feeds.signature import signature
from onnxfix.place import Place
from onnxfix.proof.asking import Builds, compare_engines
from onnxfix.proof.checks import probe
from onnxfix.proof.checks.probe import Probe
from onnxfix.proof.request import Request
from onnxfix.runtime.nvidia import Gpu
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.reading import EngineLayer, LayerTable, NodeLayers
from onnxfix.tensorrt.records import Issue, Profile, TrtBuild, TrtOptions
from support import fake_engines
from support.fake_engines import save

MODEL = "g (float[N,2] x) => (float[N,2] y) { y = Exp(x) }"


def off(share: float) -> str:
    """The model with an error of that share."""
    return f"g (float[N,2] x) => (float[N,2] y) <float f = {{{1 + share}}}> {{ a = Exp(x)  y = Mul(a, f) }}"


@dataclass
class Builder:
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


def compared(folder: Path, worker: Worker, builder: Builder) -> Builds:
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
    found = compared(folder, worker, Builder(engines))
    assert (found.kept, found.unexecuted, found.trials) == (1, "no NVIDIA GPU found", 0)
    first, second, third = found.engines
    assert first.digest == second.digest != third.digest
    assert (second.differs, [one.output for one in third.differs]) == ((), ["y"])
    assert not found.alike
    assert compared(folder, worker, Builder(engines[:2])).alike
    assert {one.outcome for one in found.engines} == {""}
    assert all(one.error is None and one.timing is None for one in found.engines)


def test_the_engine_with_the_smallest_error_is_kept(folder: Path, worker: Worker, gpu: None) -> None:
    engines = [(off(1e-4), {"ms": 1.0}, "a"), (off(1e-6), {"ms": 3.0}, "b"), (off(2e-4), {"ms": 2.0}, "c")]
    found = compared(folder, worker, Builder(engines))
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
    found = compared(folder, worker, Builder(engines))
    assert [one.timing.median_ms for one in found.engines] == [3.0, 1.0, 2.0]
    assert found.kept == kept


def test_a_wrong_engine_is_not_kept_where_one_is_right(folder: Path, worker: Worker, gpu: None) -> None:
    nan = "g (float[N,2] x) => (float[N,2] y) { a = Neg(x)  b = Sub(a, a)  y = Div(b, b) }"
    found = compared(folder, worker, Builder([(nan, {"ms": 1.0}, "a"), (MODEL, {"ms": 2.0}, "b")]))
    wrong, right = found.engines
    assert (wrong.outcome, wrong.error, right.outcome) == ("wrong", math.inf, "right")
    assert "y" in wrong.reason
    assert found.kept == 2
    alone = compared(folder, worker, Builder([(off(0.5), {}, "a"), (off(0.6), {}, "a")]))
    assert ([one.outcome for one in alone.engines], alone.kept) == (["wrong", "wrong"], 1)


@pytest.mark.parametrize(
    "tricks", [{"refused": "no memory"}, {"fails": "an error of the device"}, {"dies": 1}]
)
def test_an_engine_that_fails_does_not_end_the_others(
    tricks: dict[str, Any], folder: Path, worker: Worker, gpu: None
) -> None:
    found = compared(folder, worker, Builder([(MODEL, tricks, "a"), (MODEL, {}, "a")]))
    failed, right = found.engines
    assert (failed.outcome, failed.error, failed.timing) == ("failed", None, None)
    assert failed.reason
    assert (right.outcome, found.kept) == ("right", 2)


def test_a_refused_build_is_told(folder: Path, worker: Worker, gpu: None) -> None:
    found = compared(folder, worker, Builder(["not supported", (MODEL, {}, "a")]))
    assert (found.engines[0].outcome, found.engines[0].reason) == ("failed", "not supported")
    assert found.kept == 2
    assert compared(folder, worker, Builder(["not supported"] * 2)).kept == 0


def test_all_engines_have_the_profile_that_the_first_got(folder: Path, worker: Worker, gpu: None) -> None:
    builder = Builder([(MODEL, {}, "a")] * 3, unfit=1)
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
    compared(folder, worker, replace(Builder([(MODEL, {}, "a")])))
    assert made == [{"memory_mb": None}]
