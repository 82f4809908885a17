"""The sandbox: what crashes, hangs, eats memory or prints must not reach the parent."""
# Long because: each way to die needs its own function in the child

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onnxfix.errors import UsageError, explained
from onnxfix.runtime import sandbox
from onnxfix.runtime.sandbox import Outcome, Worker, forked, note
from support.paths import ROOT
from support.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("new_children")]

HERE = __name__
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses /proc")


# ---- what is called in the child


def echo(value: Any = None) -> Any:
    return value


def segfault() -> None:
    ctypes.string_at(0)


def abort_with_words() -> None:
    os.write(2, b"first line\nterminate called: boom\n")
    os.abort()


def abort_for_memory() -> None:
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def fail_silently(megabytes: int) -> None:
    """As code in C does that ignores a lack of memory."""
    held = bytearray(megabytes << 20)
    raise SystemError("error return without exception set", len(held))


def leave() -> None:
    os._exit(7)


def hang() -> None:
    time.sleep(600)


def hang_after_note() -> None:
    note("first")
    note("second")
    time.sleep(600)


def slow_with_notes() -> str:
    for step in range(4):
        note(str(step))
        time.sleep(1.0)
    return "done"


def one_big_block() -> None:
    bytearray(1 << 40)


def many_blocks() -> None:
    blocks = []
    while True:
        blocks.append(bytearray(1 << 22))


def print_garbage() -> int:
    print("x" * 100_000)
    os.write(1, b"\x00\x00\x00\x00\x00\x00\x00\x05abcde" * 5000)
    sys.stdout.flush()
    return 3


def read_stdin() -> bytes:
    return os.read(0, 10)


def unpicklable() -> Any:
    return lambda: 0


def exit_by_exception() -> None:
    sys.exit(3)


def fail() -> None:
    raise ValueError("one\n  two")


def fail_politely() -> None:
    raise UsageError("no such thing")


def start_grandchild() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def start_grandchild_and_crash(path: str) -> None:
    Path(path).write_text(str(start_grandchild()), encoding="utf-8")
    os.abort()


class Unloadable:
    """Pickles, and does not unpickle: it would call a function here."""

    def __reduce__(self) -> Any:
        return (_refuse, ())


def _refuse() -> None:
    raise RuntimeError("not here")


def unloadable() -> Any:
    return Unloadable()


CASES = [
    ("segfault", "crash", "killed by SIGSEGV"),
    ("abort_with_words", "crash", "killed by SIGABRT: terminate called: boom"),
    ("abort_for_memory", "memory", "ran out of memory"),
    ("leave", "crash", "exited with status 7"),
    ("one_big_block", "memory", "MemoryError"),
    ("many_blocks", "memory", "MemoryError"),
    ("unpicklable", "error", "unpicklable"),
    ("unloadable", "error", "the reply cannot be read"),
    ("exit_by_exception", "error", "SystemExit: 3"),
    ("fail", "error", "ValueError: one two"),
    ("fail_politely", "error", "no such thing"),
]


def run_once(target: str, *, timeout: float, memory_mb: int | None = None, **given: Any) -> Outcome:
    with Worker(memory_mb=memory_mb) as worker:
        return worker.call(target, timeout=timeout, **given)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(memory_mb=600) as started:
        yield started


def call(worker: Worker, name: str, timeout: float = PATIENCE, **kwargs: Any) -> Outcome:
    return worker.call(f"{HERE}:{name}", timeout=timeout, **kwargs)


@pytest.mark.parametrize(("name", "status", "message"), CASES)
def test_worker_survives(worker: Worker, name: str, status: str, message: str) -> None:
    outcome = call(worker, name)
    assert (outcome.status, outcome.value, outcome.ok) == (status, None, False)
    assert message in outcome.message
    assert "\n" not in outcome.message
    assert call(worker, "echo", value=[1, "a"]) == Outcome("ok", [1, "a"])


@pytest.mark.parametrize(("name", "status", "message"), CASES)
def test_fork_survives(name: str, status: str, message: str) -> None:
    outcome = forked(globals()[name], timeout=PATIENCE, memory_mb=600)
    assert (outcome.status, outcome.value) == (status, None)
    assert message in outcome.message


def test_last_words_belong_to_their_call(worker: Worker) -> None:
    for _ in range(5):
        call(worker, "print_garbage")
        assert call(worker, "leave").message == "exited with status 7"


def test_garbage_on_stdout_does_not_corrupt(worker: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(worker, "print_garbage") == Outcome("ok", 3)
    assert forked(print_garbage, timeout=PATIENCE) == Outcome("ok", 3)
    assert capfd.readouterr() == ("", "")


def test_stdin_is_empty(worker: Worker) -> None:
    assert call(worker, "read_stdin").value == b""
    assert forked(read_stdin, timeout=PATIENCE).value == b""


def test_a_hang_is_killed_in_time(worker: Worker) -> None:
    began = time.monotonic()
    outcome = call(worker, "hang", timeout=0.4)
    assert (outcome.status, outcome.message) == ("timeout", "took more than 0.4 s and was stopped")
    assert forked(hang, timeout=0.4).status == "timeout"
    assert time.monotonic() - began < PATIENCE / 2, "it would have ended by itself"


@pytest.mark.slow
def test_the_last_note_tells_where_it_died(worker: Worker) -> None:
    call(worker, "echo")  # what comes next is timed, and starting takes longer on a busy machine
    assert call(worker, "hang_after_note", timeout=3.0).note == "second"
    assert call(worker, "echo").note == ""


@pytest.mark.slow
def test_a_note_restarts_the_clock(worker: Worker) -> None:
    call(worker, "echo")
    outcome = call(worker, "slow_with_notes", timeout=3.5)  # less than all steps, and far more than each
    assert (outcome.status, outcome.value, outcome.note) == ("ok", "done", "3")


def test_large_values_travel_both_ways(worker: Worker) -> None:
    value = bytes(range(256)) * (1 << 15)
    assert call(worker, "echo", value=value).value == value
    assert forked(echo, value, timeout=PATIENCE).value == value


def test_what_does_not_exist_is_an_error(worker: Worker) -> None:
    worker.start()  # this may be the first test that uses it
    pid = worker.pid
    assert "no attribute 'nowhere'" in call(worker, "nowhere").message
    assert worker.call("no_such_module_here:f", timeout=PATIENCE).status == "error"
    assert "cannot be sent" in call(worker, "echo", value=lambda: 0).message
    assert call(worker, "echo", value=Unloadable()).status == "error"
    assert worker.pid == pid, "none of this costs a child"


def test_an_idle_child_that_died_is_replaced() -> None:
    with Worker() as worker:
        call(worker, "echo")
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        assert wait_for_end(worker.pid)
        assert call(worker, "echo", value=1).value == 1


@linux
def test_a_failure_without_a_reason_is_a_lack_of_memory_where_there_is_none() -> None:
    for megabytes, status in ((230, "memory"), (1, "error")):
        outcome = run_once(f"{HERE}:fail_silently", timeout=60.0, memory_mb=256, megabytes=megabytes)
        assert outcome.status == status, outcome


def test_a_system_that_starts_no_more_threads_is_no_fault_of_ours() -> None:
    """In a process of its own: CPython 3.11 keeps a state of the thread, which gets the time limits of another one."""
    code = (
        "import threading\n"
        "from onnxfix.errors import explained\n"
        "threading.stack_size(1 << 46)  # more than there is\n"
        "try:\n"
        "    threading.Thread(target=print).start()\n"
        "except RuntimeError as error:\n"
        "    print(explained(error, 'm.onnx'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith("m.onnx: the system starts no more threads: ")


def test_without_fork_a_subprocess_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert forked(echo, 4, timeout=PATIENCE).value == 4
    assert forked(segfault, timeout=PATIENCE).status == "crash"


def test_a_worker_started_in_a_thread_outlives_it() -> None:
    with Worker() as worker:
        thread = threading.Thread(target=call, args=(worker, "echo"))
        thread.start()
        thread.join()
        time.sleep(0.3)
        assert call(worker, "echo", value=2).value == 2
        assert worker.generation == 1


def test_the_memory_limit_has_a_sane_default() -> None:
    limit = sandbox.default_memory_mb()
    assert limit is not None
    assert 256 <= limit < 1 << 30


# ---- nothing may be left behind


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def children() -> list[int]:
    """Processes whose parent is this one, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == os.getpid():
                found.append(int(entry.name))
    return found


@linux
def test_no_zombies_and_no_descriptors_are_left() -> None:
    sandbox.shared().start()
    before, processes = descriptors(), set(children())
    for _ in range(3):
        with Worker() as worker:
            call(worker, "leave")
            call(worker, "echo")
            call(worker, "hang", timeout=0.2)
        forked(segfault, timeout=PATIENCE)
        forked(hang, timeout=0.1)
        forked(echo, timeout=PATIENCE)
    assert set(children()) == processes
    assert descriptors() <= before


@linux
def test_the_whole_family_is_killed(worker: Worker, tmp_path: Path) -> None:
    alive = call(worker, "start_grandchild").value
    assert is_running(alive)
    worker.close()
    assert wait_for_end(alive)
    call(worker, "start_grandchild_and_crash", path=str(tmp_path / "pid"))
    assert wait_for_end(int((tmp_path / "pid").read_text()))


PARENT = """
import os, sys, time
from onnxfix.runtime.sandbox import forked
from onnxfix.runtime.sandbox import Worker
{body}
"""


def start_parent(body: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return subprocess.Popen(
        [sys.executable, "-c", PARENT.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@linux
@pytest.mark.parametrize(
    "work",
    ["worker.call('subprocess:run', timeout=600, args=['sleep', '600'])", "time.sleep(600)"],
    ids=["busy", "idle"],
)
def test_the_child_dies_with_its_parent(work: str) -> None:
    parent = start_parent(f"worker = Worker(); worker.start(); print(worker.pid, flush=True); {work}")
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.5)
    assert is_running(child)
    parent.kill()
    parent.wait()
    assert wait_for_end(child)


@linux
def test_a_fork_dies_with_its_parent(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    body = f"""
def wait():
    open({str(mark)!r}, "w").write(str(os.getpid()))
    time.sleep(600)
forked(wait, timeout=600)
"""
    parent = start_parent(body)
    deadline = time.monotonic() + PATIENCE
    while (not mark.exists() or not mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    child = int(mark.read_text())
    parent.kill()
    parent.wait()
    assert wait_for_end(child)


@linux
@pytest.mark.parametrize("how", ["worker", "fork"])
def test_an_interrupt_kills_the_child(how: str) -> None:
    body = """
import signal, threading
def interrupt():
    me = os.getpid()
    while not open(f"/proc/{me}/task/{me}/children").read():
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(me, signal.SIGINT)
threading.Thread(target=interrupt).start()
worker = Worker()
try:
    if HOW == "worker":
        worker.call("subprocess:run", timeout=600, args=["sleep", "600"])
    else:
        forked(time.sleep, 600, timeout=600)
except KeyboardInterrupt:
    print("interrupted", worker.pid, flush=True)
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no children")
""".replace("HOW", repr(how))
    parent = start_parent(body)
    out, err = parent.communicate(timeout=PATIENCE)
    assert out.splitlines() == ["interrupted None", "no children"], err


@linux
def test_a_fork_of_the_owner_does_not_kill_the_worker() -> None:
    with Worker() as worker:
        call(worker, "echo")
        pid = os.fork()
        if pid == 0:
            worker.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert call(worker, "echo", value=3).value == 3
        assert worker.generation == 1


def test_the_users_folder_shadows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    outcome = run_once("os:getcwd", timeout=PATIENCE)
    assert outcome == Outcome("ok", str(tmp_path))


class Unspeakable(Exception):
    """Its text does not fit into memory."""

    def __str__(self) -> str:
        raise MemoryError


def fail_unspeakably() -> None:
    raise Unspeakable


def test_an_exception_whose_text_does_not_fit_into_memory_is_a_lack_of_memory() -> None:
    limit = run_once(f"{HERE}:fail_unspeakably", timeout=PATIENCE, memory_mb=256)
    assert (limit.status, limit.message) == (
        "memory",
        "MemoryError (memory is limited to 256 MiB: --memory-limit sets it)",
    )
    if hasattr(os, "fork"):
        assert forked(fail_unspeakably, timeout=PATIENCE).status == "memory"


def test_a_process_that_the_system_refuses_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(BlockingIOError) as raised, Worker() as worker:
        worker.call(f"{HERE}:echo", timeout=PATIENCE)
    assert explained(raised.value, "m.onnx") == (
        "m.onnx: the system starts no more processes: its limit of processes (ulimit -u) or of memory is reached"
    )
    busy = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), "w.bin")
    assert explained(busy, "m.onnx") == f"w.bin: {os.strerror(errno.EAGAIN)}"
