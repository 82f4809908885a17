"""Each call of the system in a run fails once, or the folder of the result is deleted, moved or replaced in the
middle of a run: one line, the input whole, the output whole or absent, nothing left, and no file at a path that
nobody named."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnxfix.options import Output, RunOptions, Verification
from onnxfix.verbs.fleet import work
from onnxfix.verbs.fleet.work import Task
from support import models
from support.folders import pass_unseen, snapshot
from support.models import external

CALLS = (
    *("open", "write", "pread", "fsync", "replace", "rename", "link", "mkdir", "fchmod", "fchown"),
    *("ftruncate", "copy_file_range", "sendfile", "stat", "fstat", "listdir", "lseek"),
)
"""Functions of ``os`` that read and write files. Without those that clean up: what cannot be deleted is left."""


class Failing:
    """While ``failing``: the call number ``at`` (from 1) of those that ``concern`` fails with the error ``number``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, concern: Callable[[tuple[Any, ...]], bool]) -> None:
        self.at = self.number = self.count = 0
        self.name = ""
        self._on, self._concern = False, concern
        for name in CALLS:
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if self._on and self._concern(arguments):
                self.count += 1
                if self.count == self.at:
                    self.name = name
                    raise OSError(self.number, os.strerror(self.number))
            return real(*arguments, **more)

        return call

    @contextlib.contextmanager
    def failing(self, at: int, number: int) -> Iterator[None]:
        self.at, self.number, self.count, self.name, self._on = at, number, 0, "", True
        try:
            yield
        finally:
            self._on = False


MODEL = (
    "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Identity(x) b = Identity(a) y = Mul(b, w) }"
)
FIRST = [errno.EIO]
OTHERS = [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EMFILE, errno.ESTALE, errno.EAGAIN]


def made(folder: Path, *, data: bool) -> Path:
    (folder / "out").mkdir(parents=True)
    proto = models.model(MODEL, 18)
    if data:
        (folder / "w.bin").write_bytes(bytes(8))
        external(proto.graph.initializer[0], "w.bin", 0, 8)
    return models.write(folder / "m.onnx", proto)


@pytest.mark.slow
@pytest.mark.parametrize("number", [*FIRST, *[pytest.param(one, marks=pytest.mark.long) for one in OTHERS]])
@pytest.mark.parametrize("how", ["beside", "in place", "with data", "with data of its own", "over such data"])
def test_every_call_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, how: str
) -> None:
    pass_unseen(monkeypatch)
    data, in_place = "data" in how, how == "in place"
    near = how in ("with data of its own", "over such data")

    def prepared(folder: Path) -> None:
        made(folder, data=data)
        if how == "over such data":
            assert perform(folder).report is not None
            (folder / "w.bin").write_bytes(bytes(7) + b"@")

    def perform(folder: Path) -> work.Outcome:
        options = RunOptions(verification=Verification(enabled=False), output=Output(in_place=in_place))
        target = "" if in_place else str(folder / ("" if near else "out") / "fixed.onnx")
        return work.perform(Task(0, str(folder / "m.onnx"), target, "apply", options))

    for name in ("warm", "expected"):
        prepared(tmp_path / name)
        assert perform(tmp_path / name).report is not None
    whole = snapshot(tmp_path / "expected")
    system = Failing(monkeypatch, lambda given: not given or "/proc" not in str(given[0]))
    failed = 0
    for at in range(1, 500):
        folder = tmp_path / str(at)
        prepared(folder)
        before = snapshot(folder)
        with system.failing(at, number):
            outcome = perform(folder)
        if not system.name:
            break
        after, where = snapshot(folder), f"call {at}: {system.name}"
        if outcome.report is None:
            failed += 1
            assert outcome.error.count("\n") == 0, where
            assert "internal error" not in outcome.error, f"{where}: {outcome.error}"
            assert after in (before, whole), where
        else:
            assert outcome.report.exit_code == 0, where
            assert after == whole, where
        assert sorted(os.listdir(folder)) == sorted({one.partition("/")[0] for one in after} | {"out"}), where
    else:
        pytest.fail("the run never ended")
    assert at > 15
    assert failed > 10


def deleted(folder: Path) -> None:
    while folder.exists():  # a copy that is under way renames its file meanwhile
        shutil.rmtree(folder, ignore_errors=True)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replaced(folder: Path) -> None:
    moved(folder)
    folder.mkdir()


def made_a_file(folder: Path) -> None:
    deleted(folder)
    folder.touch()


def made_a_link(folder: Path) -> None:
    replaced(folder)
    folder.rmdir()
    other = folder.with_name("other")
    other.mkdir()
    folder.symlink_to(other)


@pytest.mark.parametrize("data", [False, True], ids=["alone", "with data"])
@pytest.mark.parametrize("way", [deleted, moved, replaced, made_a_file, made_a_link])
def test_the_folder_of_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Path], None], data: bool
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    out.mkdir()
    path = made(source, data=data)
    before = snapshot(source)
    pass_unseen(monkeypatch, lambda *_: way(out))
    options = RunOptions(verification=Verification(enabled=False))
    outcome = work.perform(Task(0, str(path), str(out / "o.onnx"), "apply", options))
    assert outcome.report is None
    # The data are copied meanwhile, and may come first.
    named = re.escape(f"{path}: {out}{os.sep}")
    assert re.fullmatch(named + r"(o\.onnx: not|w\.bin: (not|cannot be)) written: .+", outcome.error)
    assert snapshot(source) == before
    left = [name for _, _, names in os.walk(tmp_path) for name in names if name not in (*before, "out")]
    assert left == []
