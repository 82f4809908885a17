"""``ort-cuda`` and ``trt-gpu`` with stand-ins for the GPU: what they find is looked for as on a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.proof.compare.compare import Metrics
from onnxfix.proof.verdict import FeedResult, RungResult
from onnxfix.reduction import checks
from onnxfix.runtime.sandbox import close_shared
from support import fake_cuda, models
from support.real_tensorrt import REAL

CHAIN = (
    "g (float[4] x) => (float[4] wild, float[4] y) { a = Exp(x)  b = Neg(a)  wild = Tanh(b)  y = Abs(wild) }"
)


@pytest.fixture
def fresh_sandboxes() -> Any:
    close_shared()
    yield
    close_shared()


@pytest.mark.usefixtures("fresh_sandboxes")
def test_values_that_differ_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the fake, an output called wild is twice as large as on the CPU."""
    fake_cuda.install(monkeypatch, tmp_path, "wobbles")
    path = models.write(tmp_path / "whole.onnx", CHAIN)
    found = onnxfix.reduce(path, tmp_path / "out", check="ort-cuda")
    assert (found.status, found.complete, found.operators) == ("reduced", True, ("Tanh",))
    assert (found.failure.kind, found.failure.place.output) == ("differs", "wild")
    expected, seen = (np.load(tmp_path / "out" / f"{name}.npz")["wild"] for name in ("expected", "seen"))
    assert (abs(seen) > 1.5 * abs(expected)).all()
    assert onnxfix.reproduce(tmp_path / "out") is not None


@pytest.mark.usefixtures("fresh_sandboxes")
def test_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch, tmp_path, "fails to load")
    path = models.write(tmp_path / "whole.onnx", CHAIN)
    found = onnxfix.reduce(path, tmp_path / "out", check="ort-cuda")
    assert (found.status, found.exit_code, found.cause) == ("unknown", 3, "not-loadable")
    assert not (tmp_path / "out").exists()


def engine(operator: str, kinds: list[str]) -> Any:
    """A rung whose engine computes something else of every output that depends on such a node. ``kinds`` collects
    whether it was given inputs."""

    def climb(request: Any) -> RungResult:
        graph = onnx.load(request.original).graph
        kinds.append("made" if request.given is None else "given")
        wrong: set[str] = set()
        for node in graph.node:
            if node.op_type == operator or wrong.intersection(node.input):
                wrong.update(node.output)
        metrics = tuple(
            Metrics(info.name, "different", "off", "values", output=info.name)
            for info in graph.output
            if info.name in wrong
        )
        feeds = (FeedResult("a feed", None, "different" if metrics else "identical", metrics=metrics),)
        return RungResult("trt-gpu", "failed" if metrics else "passed", "said", feeds)

    return climb


@REAL
def test_an_engine_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []
    monkeypatch.setattr(checks.gpu, "run", engine("Tanh", kinds))
    path = models.write(tmp_path / "whole.onnx", CHAIN.replace("wild", "w"))
    inputs = {"x": np.ones(4, np.float32)}
    found = onnxfix.reduce(path, tmp_path / "out", check="trt-gpu", inputs=inputs)
    assert found.operators == ("Tanh",)
    assert set(kinds) == {"given"}
    np.testing.assert_allclose(np.load(tmp_path / "out" / "inputs.npz")["b"], -np.exp(np.ones(1)), rtol=1e-6)


@REAL
def test_no_engine_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = RungResult("trt-gpu", "skipped", "no NVIDIA driver found", cause="no-gpu")
    monkeypatch.setattr(checks.gpu, "run", lambda request: skipped)
    path = models.write(tmp_path / "whole.onnx", CHAIN)
    found = onnxfix.reduce(path, tmp_path / "out", check="trt-gpu")
    assert (found.status, found.cause, found.reason) == ("unknown", "no-gpu", "no NVIDIA driver found")
