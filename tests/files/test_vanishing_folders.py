"""The folder of the result is deleted, moved or replaced in the middle of a run: one line, and no file at a path that
nobody named."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxfix.options import RunOptions, Verification
from onnxfix.verbs.fleet import work
from onnxfix.verbs.fleet.work import Task
from support.folders import pass_unseen, snapshot
from test_failing_disk import made


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
