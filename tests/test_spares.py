"""Children that a command forks before it reads a model are as good as new ones.

Each test runs a program of its own: a process with threads, such as a test run, is not forked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT
from support.patience import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux only"),
]

PRELUDE = """
import json, os, signal, sys, threading, time
from onnxfix.runtime import interrupts
from onnxfix.runtime import prefork
from onnxfix.runtime.sandbox import Worker
def told(worker, function, **given):
    outcome = worker.call(f"support.forked_children:{function}", timeout=60.0, **given)
    return outcome.value if outcome.ok else f"{outcome.status}: {outcome.message}"
def kind(worker):
    return type(worker._child.process).__name__
"""


def started(code: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "rules"), str(ROOT / "tests")))
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "",
            **variables,
        },
    )


def printed(code: str, folder: Path, **variables: str) -> str:
    process = started(code, folder, **variables)
    out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error
    return out


def told(code: str, folder: Path, **variables: str) -> Any:
    return json.loads(printed(code, folder, **variables).splitlines()[-1])


def test_a_fork_has_what_a_new_child_has(tmp_path: Path) -> None:
    """Not the handlers, files, streams and switches of its parent; and its modules."""
    (tmp_path / "private").write_text("secret", encoding="utf-8")
    forked, new = told(
        """
import gc, numpy
interrupts.listen()
gc.disable()
sys.path.insert(0, os.getcwd())
file = open("private")
prefork.fork(1)
with Worker() as worker, Worker() as other:
    print(json.dumps([told(worker, "state"), told(other, "state")]))
""",
        tmp_path,
        ONNXFIX_CONFINEMENT="off",
    )
    assert forked["numpy"]
    assert not new["numpy"]
    assert forked["handlers"] == {**new["handlers"], "SIGINT": str(signal.SIG_DFL)}
    assert not any("private" in file for file in forked["files"])
    assert forked["first"] != str(tmp_path)
    for same in ("parent", "blocked", "collecting", "threads", "folder", "session"):
        assert forked[same] == new[same], same


def test_a_fork_is_confined_as_a_new_child(tmp_path: Path) -> None:
    forked, new = told(
        """
prefork.fork(1)
with Worker() as worker, Worker() as other:
    ways = [one.call("onnxfix.runtime.confinement:in_force", timeout=60.0).value for one in (worker, other)]
    print(json.dumps([vars(way) for way in ways]))
""",
        tmp_path,
    )
    assert forked == new


def test_the_environment_is_that_of_the_call(tmp_path: Path) -> None:
    given = told(
        """
os.environ["OLD"] = "1"
prefork.fork(1)
del os.environ["OLD"]
os.environ["NEW"] = "2"
with Worker(variables={"OWN": "3"}) as worker:
    print(json.dumps(told(worker, "environment")))
""",
        tmp_path,
    )
    assert "OLD" not in given
    assert (given["NEW"], given["OWN"]) == ("2", "3")
    assert given["ORT_DISABLE_TELEMETRY"] == "1"


def test_its_memory_is_limited_beyond_what_it_shares(tmp_path: Path) -> None:
    little, much = told(
        """
held = bytearray(200 << 20)
prefork.fork(1)
with Worker(memory_mb=256) as worker:
    print(json.dumps([told(worker, "take", mebibytes=150), told(worker, "take", mebibytes=300)]))
""",
        tmp_path,
    )
    assert little == 150 << 20
    assert much.startswith("memory: ")


def gone(pids: list[int]) -> bool:
    """Whether processes have ended; whoever reaps orphans may take a while."""
    for _ in range(200):
        left = []
        for pid in pids:
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
                left += [pid] if state not in "ZX" else []
        if not left:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that has a fork in use and one that waits."""
    process = started(
        """
prefork.fork(2)
with Worker() as worker:
    told(worker, "take", mebibytes=1)
    print(json.dumps([worker.pid, prefork._State.waiting[0].pid]), flush=True)
    sys.stdin.readline()
""",
        tmp_path,
    )
    assert process.stdout is not None
    with process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_forks_end_with_a_parent_that_is_killed(waiting: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, pids = waiting
    process.kill()
    process.wait()
    assert gone(pids)
