"""Somebody writes to the model, or to its data, while onnxfix works on it: it says so and writes nothing.

What was read and what lies there now are never mixed. ``WAYS`` are what another process may do to a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnxfix
from onnxfix.errors import ModelError
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.tensorrt.records import TrtBuild, TrtOptions
from support import eager
from support.hard_models import write_external
from test_lazy_weights import model_of, tensor_of

WORDS = "was changed or replaced while it was being read; run again when it is complete"
WEIGHT = np.arange(100_000, dtype=np.float32)
CHAIN = (helper.make_node("Cast", ["x"], ["a"], to=11), helper.make_node("Cast", ["a"], ["b"], to=1))
USED = helper.make_node("Neg", ["b"], ["z"])


def model(weight: Any = WEIGHT) -> bytes:
    """Casts to remove, a weight that is read by nobody, and with a long one so much that it stays in the file."""
    made = model_of(tensor_of("w", weight), nodes=(*CHAIN, USED))
    made.graph.output.add().CopyFrom(helper.make_tensor_value_info("z", 1, ["N"]))
    return bytes(made.SerializeToString())


def replaced(path: Path) -> None:
    """By a rename, as any careful program writes: same size, another file."""
    data = path.read_bytes()
    new = path.with_name("new")
    new.write_bytes(data[:-5] + bytes(5))
    os.replace(new, path)


def replaced_by_the_same(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    os.replace(new, path)


def replaced_as_of_then(path: Path) -> None:
    """By a copy that keeps the time, as ``cp -p`` and ``rsync`` make them: another file of one size and date."""
    before = path.stat()
    replaced(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewritten(path: Path) -> None:
    """In place, no byte more or less."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(b"12345678")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # a clock tick, however coarse the clock


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def deleted(path: Path) -> None:
    path.unlink()


WAYS: tuple[Callable[[Path], None], ...] = (
    replaced, replaced_by_the_same, replaced_as_of_then, truncated, rewritten, touched, deleted,
)  # fmt: skip


def listing(folder: Path) -> dict[str, bytes | None]:
    return {item.name: item.read_bytes() if item.is_file() else None for item in folder.rglob("*")}


def meddling(way: Callable[[Path], None], path: Path, moment: str) -> Callable[[str], None]:
    """A callback that does something to the file once, at that step of a run."""
    left = [path]

    def say(words: str) -> None:
        if words == moment and left:
            way(left.pop())

    return say


@pytest.mark.parametrize("size", [100_000, 3], ids=["lazy", "small"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_place", [True, False], ids=["in-place", "output"])
def test_during_apply(tmp_path: Path, way: Callable[[Path], None], size: int, in_place: bool) -> None:
    path, wanted = tmp_path / "m.onnx", tmp_path / "wanted.onnx"
    for moment in ("fixing", "verifying", "writing"):
        for item in (path, wanted):
            if item.is_dir():
                item.rmdir()
            item.write_bytes(model(WEIGHT[:size]))
        way(wanted)
        say = meddling(way, path, moment)
        with pytest.raises(ModelError, match=f"m.onnx: {WORDS}"):
            onnxfix.apply(
                path,
                None if in_place else tmp_path / "out.onnx",
                in_place=in_place,
                verify=False,
                progress=say,
            )
        left = listing(tmp_path)
        assert left.pop("m.onnx", None) == left.pop("wanted.onnx", None), "what the other one wrote is gone"
        assert not left


@pytest.mark.parametrize("size", [100_000, 3], ids=["lazy", "small"])
@pytest.mark.parametrize("way", [replaced, truncated, deleted])
@pytest.mark.parametrize("moment", ["fixing", "verifying"])
def test_during_apply_that_verifies(
    tmp_path: Path, way: Callable[[Path], None], size: int, moment: str
) -> None:
    """The rungs read the original once more, which is not the original any longer."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model(WEIGHT[:size]))
    with pytest.raises(ModelError) as caught:
        onnxfix.apply(path, tmp_path / "out.onnx", progress=meddling(way, path, moment))
    assert str(path) in str(caught.value)
    assert {item.name for item in tmp_path.iterdir()} <= {"m.onnx"}


@pytest.mark.parametrize("size", [100_000, 3], ids=["lazy", "small"])
def test_without_anything_to_fix(tmp_path: Path, size: int) -> None:
    """The copy of an unchanged model is of the model that was checked, or there is none."""
    path = tmp_path / "m.onnx"
    for way in (replaced, truncated, rewritten, deleted):
        path.write_bytes(model_of(tensor_of("w", WEIGHT[:size])).SerializeToString())
        with pytest.raises(ModelError, match=WORDS):
            onnxfix.apply(
                path,
                tmp_path / "out.onnx",
                ignore=["GRA"],
                verify=False,
                progress=meddling(way, path, "writing"),
            )
        assert {item.name for item in tmp_path.iterdir()} <= {"m.onnx"}


@pytest.mark.parametrize("way", WAYS)
def test_during_check(tmp_path: Path, way: Callable[[Path], None]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    with pytest.raises(ModelError, match=f"m.onnx: {WORDS}"):
        onnxfix.check(path, progress=meddling(way, path, "checking"))


@pytest.mark.parametrize("size", [100_000, 3], ids=["lazy", "small"])
def test_while_tensorrt_builds_the_engine_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """It would be of another model than was proven."""
    path = tmp_path / "m.onnx"

    def saved(model: Path, options: TrtOptions, known: TrtBuild, check: Callable[[], None], most: int) -> str:
        touched(path)
        check()
        return "engine"

    monkeypatch.setattr("onnxfix.proof.checks.builder.save_engine", saved)
    passed = Verdict((RungResult("trt-build", "passed", builds=(TrtBuild("accepted"),)),))
    monkeypatch.setattr("onnxfix.verbs.verifying.run_checks", lambda *_, **__: passed)
    monkeypatch.setattr("onnxfix.verbs.prove.run_checks", lambda *_, **__: passed)
    for run_it in (onnxfix.verify, onnxfix.apply):
        path.write_bytes(model(WEIGHT[:size]))
        with pytest.raises(ModelError, match=WORDS):
            run_it(path, trt=TrtOptions(save_engine=str(tmp_path / "m.engine")))


@pytest.mark.parametrize("way", [replaced, rewritten, touched])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("size", [100_000, 3], ids=["lazy", "small"])
def test_during_verify(tmp_path: Path, way: Callable[[Path], None], which: int, size: int) -> None:
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path in paths:
        path.write_bytes(model(WEIGHT[:size]))
    say = meddling(way, paths[which], "verifying")
    with pytest.raises(ModelError, match=f"{paths[which].name}: {WORDS}"):
        onnxfix.verify(*paths, rungs=["contract"], progress=say)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("elsewhere", [True, False])
def test_external_data(tmp_path: Path, way: Callable[[Path], None], elsewhere: bool) -> None:
    """Data that the output refers to, or that was copied to its folder."""
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    write_external(home)
    target = (out if elsewhere else home) / "out.onnx"
    data = home / "model.onnx.data"
    with pytest.raises(ModelError, match=f"model.onnx.data: {WORDS}"):
        onnxfix.apply(home / "model.onnx", target, verify=False, progress=meddling(way, data, "writing"))
    assert not list(out.iterdir()), "a copy of the data was left behind"
    assert {item.name for item in home.iterdir()} <= {"model.onnx", "model.onnx.data"}


def test_the_model_of_a_report_is_whole_or_none(tmp_path: Path) -> None:
    """Whoever asks twice must not get what the first time came as far as."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    report = onnxfix.check(path)
    touched(path)
    for _ in range(2):
        with pytest.raises(ModelError, match=WORDS):
            _ = report.model


def test_the_result_of_a_run_outlives_what_replaces_its_input(tmp_path: Path) -> None:
    """In place, the input is replaced by onnxfix itself; the report's model still has its weights."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    report = onnxfix.apply(path, in_place=True, verify=False)
    assert report.applied
    assert report.model is not None
    assert eager.written(report.model) == path.read_bytes()
