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
from onnxfix.files import lazy, loading, saving
from onnxfix.files.atomic import temporary_beside
from onnxfix.files.lazy import Pending
from onnxfix.model import Model
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.tensorrt.records import TrtBuild, TrtOptions
from support import eager
from support.cli import run
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


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def rewritten(path: Path) -> None:
    """In place, no byte more or less."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        file.write(b"12345678")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # a clock tick, however coarse the clock


def lengthened(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def deleted(path: Path) -> None:
    path.unlink()


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


WAYS: tuple[Callable[[Path], None], ...] = (
    replaced, replaced_by_the_same, replaced_as_of_then, truncated, emptied, rewritten, lengthened, touched, deleted,
    made_a_folder,
)  # fmt: skip
IN_PLACE = (truncated, emptied, rewritten, lengthened, touched)
"""Ways that leave the open file the one that is at the path."""


def listing(folder: Path) -> dict[str, bytes | None]:
    return {item.name: item.read_bytes() if item.is_file() else None for item in folder.rglob("*")}


@pytest.mark.parametrize("way", WAYS)
def test_between_load_and_save(tmp_path: Path, way: Callable[[Path], None]) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    path.write_bytes(model())
    loaded = loading.load(path)
    assert eager.stand_ins(loaded) == 1
    way(path)
    with pytest.raises(ModelError, match=f"m.onnx: {WORDS}"):
        loaded.check()
    for write in (lambda p: saving.save(loaded.proto, p), loaded.copy_to):
        before = listing(tmp_path)
        with temporary_beside(out) as temporary, pytest.raises(ModelError, match=f"m.onnx: {WORDS}"):
            write(temporary)
        assert listing(tmp_path) == before


@pytest.mark.parametrize("way", WAYS)
def test_between_load_and_reading(tmp_path: Path, way: Callable[[Path], None]) -> None:
    """Where another file is at the path, the one that was opened is read on; it has not changed."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    loaded = loading.load(path)
    overlay, tensor = Model(loaded.proto, tmp_path), loaded.proto.graph.initializer[0]
    value = overlay.main.values["w"]
    way(path)
    reads: tuple[Callable[[], Any], ...] = (
        lambda: value.constant(),
        lambda: lazy.with_payload(tensor),
        lambda: lazy.keyed(tensor.SerializeToString()),
        lambda: lazy.same(tensor, tensor_of("w")),
        lambda: Pending(loaded.proto, loaded).model(),
        lambda: saving.serialize(loaded.proto),
    )
    for read in reads:
        if way in IN_PLACE:
            with pytest.raises(ModelError, match=f"m.onnx: {WORDS}"):
                read()
        else:
            read()
    if way not in IN_PLACE:
        assert np.array_equal(value.constant(), WEIGHT)
        assert saving.serialize(loaded.proto) == model()


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
def test_while_tensorrt_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """What it says would be of another model than the findings; and an engine, of another than was proven."""
    path = tmp_path / "m.onnx"

    def built(*_: object) -> tuple[None, None, tuple[str, ...]]:
        touched(path)
        return None, None, ()

    path.write_bytes(model(WEIGHT[:size]))
    monkeypatch.setattr("onnxfix.verbs.checking._build", built)
    monkeypatch.setattr("onnxfix.verbs.checking._require_tensorrt", lambda plan: TrtOptions())
    with pytest.raises(ModelError, match=WORDS):
        onnxfix.check(path)

    def saved(model: Path, options: TrtOptions, known: TrtBuild, check: Callable[[], None], most: int) -> str:
        touched(path)
        check()
        return "engine"

    path.write_bytes(model(WEIGHT[:size]))
    monkeypatch.setattr("onnxfix.proof.rungs.builder.save_engine", saved)
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


@pytest.mark.parametrize("command", ["check", "apply"])
@pytest.mark.parametrize("way", [replaced, truncated, deleted])
def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, way: Callable[[Path], None]
) -> None:
    """One line and exit code 2."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    real = loading.load

    def load(source: Any, **options: Any) -> loading.Loaded:
        loaded = real(source, **options)
        if path in (source, Path(str(source))):
            way(path)
        return loaded

    monkeypatch.setattr(loading, "load", load)
    more = ["-o", tmp_path / "out.onnx", "--no-verify"] if command == "apply" else []
    code, out, err = run(command, path, *more)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert WORDS in " ".join(err.split())
    assert {item.name for item in tmp_path.iterdir()} <= {"m.onnx"}


def test_a_weight_that_changed_is_never_copied_for_an_equal_one(tmp_path: Path) -> None:
    """Two files of one name, one after the other: each has its own source."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    old = loading.load(path)
    replaced_by_the_same(path)
    with path.open("r+b") as file:
        file.seek(model().index(WEIGHT.tobytes()))
        file.write(WEIGHT[::-1].tobytes())
    new = loading.load(path)
    first, second = old.proto.graph.initializer[0], new.proto.graph.initializer[0]
    assert first.raw_data != second.raw_data
    assert not lazy.same(first, second)
    assert lazy.with_payload(first) == tensor_of("w", WEIGHT)
    assert lazy.with_payload(second) == tensor_of("w", WEIGHT[::-1])
