"""Time limits: the earliest of nested ones holds, for this process and for its children."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import pytest

from onnxfix.runtime import deadline
from onnxfix.runtime.deadline import Expired
from onnxfix.runtime.sandbox import Worker, forked, note
from support.patience import PATIENCE


def hang() -> None:
    time.sleep(PATIENCE)


def hang_not() -> None:
    """Nothing."""


def note_for_ever() -> None:
    while True:
        note("another step")
        time.sleep(0.05)


def test_the_earliest_of_nested_limits_holds() -> None:
    assert deadline.left() is None
    assert deadline.least(7.0) == 7.0
    with deadline.within(100.0), deadline.within(1000.0), deadline.within(None):
        assert 99.0 < (deadline.left() or 0.0) <= 100.0
        assert deadline.least(7.0) == 7.0
        assert 99.0 < deadline.least(700.0) <= 100.0
        with deadline.within(0.0):
            assert deadline.over()
            with pytest.raises(Expired):
                deadline.check()
            with pytest.raises(Expired):
                deadline.least(7.0)
        assert not deadline.over()
    assert deadline.left() is None


def test_a_limit_is_no_failure_that_others_handle() -> None:
    """A rule that fails is reported, and the others go on; a run whose time is over ends."""
    assert not issubclass(Expired, Exception)


def count_for_ever() -> None:
    number = 0
    while True:
        number += 1


def alarm() -> None:
    """The last resort of a child."""
    os.kill(os.getpid(), signal.SIGALRM)
    hang()


def test_code_that_does_not_look_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "GRACE", 0.02)
    with pytest.raises(Expired), deadline.within(0.02), deadline.watched():
        count_for_ever()


@pytest.mark.slow
def test_code_that_ends_in_time_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "GRACE", 0.02)
    for _ in range(12):  # ends as the watch fires, before, and after
        with deadline.within(0.0):
            try:
                with deadline.watched():
                    time.sleep(0.019)
            except Expired:
                continue
    time.sleep(0.1)  # nothing is on its way any more


def count_twice() -> None:
    with contextlib.suppress(Expired), deadline.within(0.02), deadline.watched():
        count_for_ever()
    count_for_ever()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no alarms")
def test_the_limit_around_another_one_still_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "GRACE", 0.02)
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(Expired), deadline.within(0.3), deadline.watched():
        count_twice()
    assert signal.getsignal(signal.SIGALRM) is handler


class Rung(Exception):
    """The alarm of the program around this one."""


def ring(*_: object) -> None:
    raise Rung


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no alarms")
def test_an_alarm_of_the_program_rings_when_it_should() -> None:
    """A program that limits a call by its own alarm is not kept waiting until the call's limit."""
    handler = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Rung), deadline.within(PATIENCE), deadline.watched():
            time.sleep(1.0)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)
        with deadline.within(0.0), contextlib.suppress(Expired), deadline.watched():
            hang_not()
        assert min(signal.setitimer(signal.ITIMER_REAL, 0.0)) > 0.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)


def test_a_fork_inside_a_limit_still_ends_by_its_own_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    with deadline.within(PATIENCE), deadline.watched():
        assert forked(alarm, timeout=PATIENCE).status == "timeout"


@pytest.mark.slow
@pytest.mark.parametrize("endless", [hang, note_for_ever])
def test_a_child_is_stopped_at_the_limit_of_the_caller(endless: Callable[[], None]) -> None:
    """However long its own limit is, and although a note restarts that."""
    with Worker() as worker:
        worker.start()
        began = time.monotonic()
        with deadline.within(1.5), pytest.raises(Expired):
            worker.call(f"{__name__}:{endless.__name__}", timeout=PATIENCE)
        assert worker.pid is None
        assert time.monotonic() - began < PATIENCE / 2
        assert worker.call("os:getpid", timeout=PATIENCE).ok  # it serves again


def test_a_child_that_exceeds_its_own_limit_is_an_outcome() -> None:
    with deadline.within(PATIENCE):
        assert forked(hang, timeout=0.05).status == "timeout"


def test_a_fork_is_stopped_at_the_limit_of_the_caller() -> None:
    with deadline.within(0.05), pytest.raises(Expired):
        forked(hang, timeout=PATIENCE)


def test_a_limit_without_end() -> None:
    """Python's ``timeout=math.inf`` and ``--timeout inf`` are limits that nothing reaches."""
    with deadline.within(float("inf")), deadline.watched():
        rest = deadline.left()
    assert rest is not None
    assert 1e7 < rest < float("inf")
