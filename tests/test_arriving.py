"""External data that is copied beside the output while the run goes on: who waits for it, and who does not."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxfix
from onnxfix import contract
from onnxfix.errors import OnnxfixError
from onnxfix.graph import wire
from onnxfix.verification import ladder
from test_cli import external_model

PATIENCE = 60.0
"""Seconds after which a test fails in which somebody waits who should not."""


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that onnx.checker was asked about, as it was asked."""
    asked: list[str] = []
    real = ladder._checker

    def checker(request: ladder.Request, path: Path, limits: ladder.Limits) -> Any:
        asked.append(path.name)
        return real(request, path, limits)

    monkeypatch.setattr(ladder, "_checker", checker)
    return asked


def copying(monkeypatch: pytest.MonkeyPatch, first: Callable[[], None]) -> None:
    """Have ``first`` called, in the copying thread, before external data is copied."""
    real = wire.copy_external

    def copy(proto: ModelProto, source: Path, destination: Path) -> list[Path]:
        first()
        return real(proto, source, destination)

    monkeypatch.setattr(wire, "copy_external", copy)


@pytest.mark.parametrize("verify", [False, True])
def test_the_candidate_is_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[str], verify: bool
) -> None:
    path, out = external_model(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    looked, real = threading.Event(), contract.interface_changes
    waited: list[bool] = []

    def interface_changes(*given: ModelProto) -> list[str]:
        looked.set()
        return real(*given)

    monkeypatch.setattr(contract, "interface_changes", interface_changes)
    copying(monkeypatch, lambda: waited.append(looked.wait(PATIENCE)))
    report = onnxfix.apply(path, out / "m.onnx", verify=verify)
    assert waited == [True]
    assert report.verdict is not None
    assert report.verdict.passed
    assert len(order) == 1
    fixed = onnx.load(out / "m.onnx")
    assert np.array_equal(numpy_helper.to_array(fixed.graph.initializer[0]), np.arange(256, dtype=np.float32))


def test_data_that_is_called_like_weights_that_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    """``OUTPUT.data`` is where weights go that do not fit: with such external data nothing is written before it."""
    path, out = external_model(tmp_path / "a"), tmp_path / "b"
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "weights/m.onnx.data"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "a/weights/w.bin").rename(tmp_path / "a/weights/m.onnx.data")
    out.mkdir()
    seen: list[list[str]] = []
    real = wire.save

    def slowly() -> None:
        time.sleep(1.0)  # longer than it takes to fix this model
        seen.append([*order])

    copying(monkeypatch, slowly)

    def save(*given: Any, **named: Any) -> bool:
        assert (out / "weights/m.onnx.data").is_file()
        return real(*given, **named)

    monkeypatch.setattr(wire, "save", save)
    assert onnxfix.apply(path, out / "m.onnx", verify=False).output
    assert seen == [[]]


def test_what_stands_in_the_way_is_said_late_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    path, out = external_model(tmp_path / "a"), tmp_path / "b"
    (out / "weights").mkdir(parents=True)
    (out / "weights/w.bin").write_bytes(b"another")
    with pytest.raises(OnnxfixError, match=r"w\.bin: another file"):
        onnxfix.apply(path, out / "m.onnx", verify=False)
    assert order == []
    assert sorted(item.name for item in out.rglob("*")) == ["w.bin", "weights"]
    assert (out / "weights/w.bin").read_bytes() == b"another"


@pytest.mark.parametrize("rungs", [("contract",), ("reference",), ("ort-cpu",)])
def test_every_rung_waits_for_the_fixed_models_data(tmp_path: Path, rungs: tuple[str, ...]) -> None:
    path, there = external_model(tmp_path / "a"), tmp_path / "b"
    there.mkdir()
    shutil.copy(path, there)

    def ready() -> None:
        shutil.copytree(tmp_path / "a/weights", there / "weights", dirs_exist_ok=True)

    lacking = ladder.verify(path, there / "m.onnx", exact=True, rungs=rungs, require=rungs)
    assert not lacking.passed
    assert ladder.verify(path, there / "m.onnx", exact=True, rungs=rungs, require=rungs, ready=ready).passed
