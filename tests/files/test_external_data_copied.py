"""External data that is copied beside the output while the run goes on: who waits for it, and who does not."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxfix
from onnxfix.errors import OnnxfixError
from onnxfix.files import arriving, copying
from onnxfix.files.arriving import Arriving
from onnxfix.pipeline import contract
from onnxfix.verification import ladder, validity
from support.cli_models import external_model
from support.patience import PATIENCE


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that onnx.checker was asked about, as it was asked."""
    asked: list[str] = []
    real = validity.ask

    def ask(paths: Sequence[Path], **limits: Any) -> tuple[validity.Checked, ...]:
        asked.extend(path.name for path in paths)
        return real(paths, **limits)

    monkeypatch.setattr(validity, "ask", ask)
    return asked


def while_copying(monkeypatch: pytest.MonkeyPatch, first: Callable[[], None]) -> None:
    """Have ``first`` called, in the copying thread, before external data is copied."""
    real = arriving.bring

    def bring(*given: Any) -> None:
        first()
        real(*given)

    monkeypatch.setattr(arriving, "bring", bring)


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
    while_copying(monkeypatch, lambda: waited.append(looked.wait(PATIENCE)))
    report = onnxfix.apply(path, out / "m.onnx", verify=verify)
    assert waited == [True]
    assert report.verdict is not None
    assert report.verdict.passed
    assert len(order) == 2  # the original and the candidate
    fixed = onnx.load(out / "m.onnx")
    assert np.array_equal(numpy_helper.to_array(fixed.graph.initializer[0]), np.arange(256, dtype=np.float32))


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


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_while_somebody_waits_leaves_nothing_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, times: int
) -> None:
    """Whoever waits gives up at once, but what is on its way then must not stay: nobody would delete it."""
    # A command that ran in this process leaves a handler that raises once in a while only.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    path, out = external_model(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    asked, real, main = threading.Event(), Arriving.wait, threading.get_ident()

    def wait(self: Arriving) -> None:
        asked.set()
        real(self)

    def interrupted() -> None:
        assert asked.wait(PATIENCE)
        for _ in range(times):
            time.sleep(0.2)
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)

    monkeypatch.setattr(Arriving, "wait", wait)
    while_copying(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        onnxfix.apply(path, out / "m.onnx", verify=False)
    assert [item for item in out.rglob("*") if item.is_file()] == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("onnxfix-copy")]


def test_an_odd_failure_of_the_copy_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = external_model(tmp_path / "a"), tmp_path / "b"
    out.mkdir()

    def odd() -> None:
        raise FileExistsError("odd")

    while_copying(monkeypatch, odd)
    with pytest.raises(FileExistsError) as told:
        onnxfix.apply(path, out / "m.onnx", verify=False)
    assert told.value.__context__ is None
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_stands_where_a_folder_goes_is_refused(tmp_path: Path, kind: str) -> None:
    """A link to a folder would have the data written somewhere else, where onnx would not read it anyway."""
    path, out, other = external_model(tmp_path / "a"), tmp_path / "b", tmp_path / "other"
    out.mkdir()
    other.mkdir()
    if kind == "file":
        (out / "weights").write_bytes(b"no folder")
    else:
        (out / "weights").symlink_to(other)
    with pytest.raises(
        OnnxfixError, match="weights: is not a folder, and the model's external data needs one"
    ):
        onnxfix.apply(path, out / "m.onnx", verify=False)
    assert [item.name for item in out.iterdir()] == ["weights"]
    assert list(other.iterdir()) == []


def test_a_copy_that_nobody_wants_any_more_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = external_model(tmp_path / "a"), tmp_path / "b"
    out.mkdir()
    copied: list[int] = []
    begun, given_up = threading.Event(), threading.Event()
    real, wait = copying._copy_range, futures.wait

    def copy_range(source: int, start: int, length: int, destination: int) -> None:
        copied.append(length)
        begun.set()
        assert given_up.wait(PATIENCE)
        real(source, start, length, destination)

    def wait_for(copies: Any) -> Any:
        given_up.set()
        return wait(copies)

    def broken(*given: Any) -> list[str]:
        assert begun.wait(PATIENCE)  # a busy machine starts the copying thread late
        raise KeyboardInterrupt

    monkeypatch.setattr(copying, "_STEP", 256)
    monkeypatch.setattr(copying, "_WORTH_IT", 1)
    monkeypatch.setattr(copying, "_copy_range", copy_range)
    monkeypatch.setattr(futures, "wait", wait_for)
    monkeypatch.setattr(contract, "interface_changes", broken)
    with pytest.raises(KeyboardInterrupt):
        onnxfix.apply(path, out / "m.onnx", verify=False)
    assert copied == [256]  # of 1024
    assert [item for item in out.rglob("*") if item.is_file()] == []


def test_a_file_is_copied_whole_whatever_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 3, 1000, 2000):
        monkeypatch.setattr(copying, "_STEP", step)
        for size in (0, 1, 999, 1000, 1001):
            (tmp_path / "a").write_bytes(bytes(number % 251 for number in range(size)))
            copying.copy_file(tmp_path / "a", tmp_path / "b")
            assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
