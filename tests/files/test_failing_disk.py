"""Each call of the system in a run fails once: one line, the input whole, the output whole or absent, nothing left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from onnxfix.options import Output, RunOptions, Verification
from onnxfix.verbs.fleet import work
from onnxfix.verbs.fleet.work import Task
from support import models
from support.failing_system import Failing
from support.folders import pass_unseen, snapshot
from support.models import external

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
