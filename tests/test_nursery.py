"""Children that the nursery of the tests forks are as good as new ones: each answers like a new process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from onnxfix import allowance, forks, sandbox
from onnxfix.sandbox import Worker
from support import nursery
from support.patience import PATIENCE

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are forked on Linux only"
)

TOLD = "support.forked_children"


@pytest.fixture
def forked() -> Iterator[Worker]:
    """A child of the nursery."""
    with Worker() as worker:
        worker.start()
        assert is_forked(worker)
        yield worker


def is_forked(worker: Worker) -> bool:
    """Whether the child comes from the nursery."""
    assert worker._child is not None
    return type(worker._child.process).__name__ == "Spare"


def test_it_has_what_a_new_process_has(forked: Worker, request: pytest.FixtureRequest) -> None:
    own = forked.call(f"{TOLD}:state", timeout=PATIENCE).value
    request.getfixturevalue("new_children")
    with Worker() as other:
        new = other.call(f"{TOLD}:state", timeout=PATIENCE).value
        assert not is_forked(other)
    assert own["parent"] == new["parent"] == os.getpid()
    assert own.pop("numpy")
    assert not new.pop("numpy")
    for one in (own, new):
        one["files"] = [
            name for name in one["files"] if not name.startswith("/proc/")
        ]  # its pipes, by number
        del (
            one["first"],
            one["handlers"]["SIGINT"],
        )  # where modules are looked for first; who ends it when interrupted
    assert own == new


def test_each_is_another_process(forked: Worker) -> None:
    with Worker() as other:
        assert other.call("os:getpid", timeout=PATIENCE).value == other.pid
    assert forked.call("os:getpid", timeout=PATIENCE).value == forked.pid != other.pid


def test_its_end_is_told(forked: Worker) -> None:
    process = forked.pid
    assert process is not None
    ended = forked.call(f"{TOLD}:say", timeout=PATIENCE, text="last words", number=11)
    assert (ended.status, ended.printed) == ("crash", "last words")
    assert "SIGSEGV" in ended.message
    with pytest.raises(ChildProcessError):  # it was reaped
        os.waitpid(process, os.WNOHANG)


def test_changed_variables_and_paths_need_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with Worker(variables={"OWN": "1"}) as worker:
        assert worker.call(f"{TOLD}:environment", timeout=PATIENCE).value["OWN"] == "1"
        assert not is_forked(worker)
    monkeypatch.setenv("CHANGED", "1")
    with Worker() as worker:
        assert worker.call(f"{TOLD}:environment", timeout=PATIENCE).value["CHANGED"] == "1"
        assert not is_forked(worker)
    monkeypatch.delenv("CHANGED")
    monkeypatch.syspath_prepend("/nowhere")
    with Worker() as worker:
        worker.start()
        assert not is_forked(worker)


def test_functions_of_ours_run_in_such_children() -> None:
    assert forks._by_fork is nursery.forked
    assert forks.forked(allowance.memory_limit_mb, timeout=PATIENCE).ok
    assert forks.forked(lambda: os.getppid(), timeout=PATIENCE).value == os.getpid()  # nobody can import it


def test_changed_functions_run_in_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "memory_limit_mb", allowance.memory_limit_mb)
    assert not nursery.Here.instead_of_forks


def test_a_nursery_that_has_ended_is_replaced(forked: Worker) -> None:
    ended = nursery.Here.nursery
    assert ended is not None
    ended.process.kill()
    ended.process.wait()
    with pytest.raises(OSError):
        ended.child()
    assert nursery.Here.nursery is None
    with Worker() as other:
        assert other.call("os:getpid", timeout=PATIENCE).value == other.pid
        assert is_forked(other)
    assert forked.call("os:getpid", timeout=PATIENCE).value == forked.pid  # children outlive it
