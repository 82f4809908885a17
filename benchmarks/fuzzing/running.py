"""Run cases, one after the other, and judge them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from fuzzing import harness, judging
from fuzzing.cases import Case, lay_out
from fuzzing.judging import Fault

PATIENCE, PATIENCE_VERIFIED = 120.0, 240.0
"""Seconds after which a run hangs. Other processes use the machine, so that this is far beyond the limits in processor
time; libraries that execute a model have limits of their own."""


CHECKED = 3
"""Of how many outputs one is given to onnx.checker, which takes as long as the run itself."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case. ``codes`` are the exit codes of its steps."""

    number: int
    model: str
    mutators: tuple[str, ...]
    command: str
    verified: bool
    codes: tuple[int, ...]
    bytes: int
    cpu: float
    wall: float
    memory: int
    said: str
    """The first line of the error output, without the file's name."""
    faults: tuple[Fault, ...]


def run(case: Case, tell: Callable[[harness.Ended], object] = id) -> Outcome:
    """Run a case's command in a folder that is deleted afterwards. ``tell`` is called with the end of each step."""
    root = Path(tempfile.mkdtemp(prefix="fuzzing-"))
    try:
        (root / "work").mkdir()
        (root / "scratch").mkdir()
        lay_out(case, root / "work")
        ended, faults = _steps(case, root)
        for one in ended:
            tell(one)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return Outcome(
        case.number,
        case.model,
        case.mutators,
        case.command.name,
        case.command.verified,
        tuple(one.code for one in ended),
        len(case.data),
        round(sum(one.cpu for one in ended), 3),
        round(sum(one.wall for one in ended), 3),
        max(one.memory for one in ended),
        ended[-1].err.decode("utf-8", "replace").partition("\n")[0].replace("model.onnx: ", "")[:200],
        tuple({(fault.kind, fault.sign): fault for fault in faults}.values()),
    )


def _steps(case: Case, root: Path) -> tuple[list[harness.Ended], list[Fault]]:
    command, work = case.command, root / "work"
    ended: list[harness.Ended] = []
    faults: list[Fault] = []
    size = len(case.data) + len(case.original)
    patience = PATIENCE_VERIFIED if command.verified else PATIENCE
    original = judging.files_in(root)
    for step, words in enumerate(command.steps):
        before = judging.files_in(root) if step else original
        ended.append(harness.run(words, work, root / "scratch", patience))
        faults += judging.faults(command, step, ended[-1], before, judging.files_in(root), size)
        if ended[-1].code not in (0, 1) and command.name == "apply twice":
            break
    faults += judging.reports_read(work, command.writes)
    if not faults and command.name == "check and apply":
        faults += judging.disagreement(*ended)
    if not faults and command.name == "apply twice":
        faults += judging.not_idempotent(work, ended)
    if not faults and ended[0].code in (0, 1) and case.number % CHECKED == 0:
        faults += _output(case, work)
    return ended, faults


def _output(case: Case, work: Path) -> Iterator[Fault]:
    """Whether the output passes onnx.checker where the input does. Both are asked in a fork: the checker crashes on
    some models."""
    names = [name for name in ("out.onnx", "lifted.onnx") if name in case.command.writes]
    for name in names:
        if not (work / name).is_file():
            if case.command.steps[0][0] == "apply":
                yield Fault("no output", name, f"{name} was not written")
        elif name == "out.onnx" and (reason := _worse(work / "model.onnx", work / name)):
            yield Fault("invalid output", reason[:60], reason)


def _worse(before: Path, after: Path) -> str:
    """What onnx.checker says of the second model, if it accepts the first; "" otherwise."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(20)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            onnx.checker.check_model(str(before))
            try:
                onnx.checker.check_model(str(after))
            except Exception as error:
                os.write(writer, str(error)[:4000].encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as stream:
        found = stream.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return found


def saved(case: Case, fault: Fault, folder: Path, note: dict[str, Any]) -> None:
    """Write a case into a folder: its files, the command, and what is wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    lay_out(case, folder / "work")
    about = {
        "command": case.command.text,
        **vars(fault),
        **note,
        "model": case.model,
        "mutators": case.mutators,
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
