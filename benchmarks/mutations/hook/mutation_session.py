"""A pytest plugin: collect the tests once, find which of them reach which mutant, and try each mutant in a fork.

It runs under run.py, which writes plan.json and reads results.json in the same folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import sitecustomize
from sitecustomize import FORKED, TESTS

BOARD = sitecustomize.switchboard
FOLDER = Path(BOARD.folder)
PLAN = json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))
MEMORY = 6 << 30
"""Bytes that a test run may hold: a mutant that fills the memory must not take the machine with it."""

BOARD.flag = FORKED  # here and in all forks
BOARD.at(0)  # what is reached while tests are collected


def say(text: str) -> None:
    """Progress; forks have no such output."""
    sys.__stderr__.write(f"{text}\n")
    sys.__stderr__.flush()


class Watch:
    """What becomes of tests."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.skipped = False
        self.seconds = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        if report.failed:
            self.failed = self.failed or report.nodeid
        self.skipped |= report.skipped


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """The same examples in every run, none kept, no shrinking: the first failure is enough."""
    with contextlib.suppress(ImportError):
        from hypothesis import Phase, settings

        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutations", settings.default, derandomize=True, database=None, phases=phases)
        settings.load_profile("mutations")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Instead of running the tests once."""
    if session.testsfailed:
        raise session.Failed(f"{session.testsfailed} errors during collection")
    assert len(session.items) < TESTS
    results = Mutants(session).results()
    (FOLDER / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return True


class Forks:
    """Forks of this process, some at a time, each with a folder for temporary files and a limit of time."""

    def __init__(self, jobs: int) -> None:
        self.free = list(range(1, jobs + 1))
        self.running: dict[int, tuple[int, float, Path, Any]] = {}

    def start(self, work: Callable[[], object], limit: float, key: Any, active: int = -1) -> None:
        """Call ``work`` in a fork."""
        slot = self.free.pop()
        scratch = Path(tempfile.mkdtemp(prefix="mutant-", dir=PLAN["scratch"]))
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            child(work, slot, active, scratch)
        self.running[pid] = (slot, time.monotonic() + limit, scratch, key)

    def ended(self) -> Iterator[tuple[Any, str]]:
        """Wait until some have ended: key and how, "" for well."""
        while self.running:
            found = [(pid, how) for pid in self.running if (how := self.state(pid)) is not None]
            for pid, how in found:
                slot, _, scratch, key = self.running.pop(pid)
                sweep(slot)
                shutil.rmtree(scratch, ignore_errors=True)
                self.free.append(slot)
                yield key, how
            if found:
                return
            time.sleep(0.02)

    def state(self, pid: int) -> str | None:
        """How a fork ended; None while it runs. One that is over a limit is killed."""
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"ended with {code}"
        over = "timeout" if time.monotonic() > self.running[pid][1] else "memory" if held(pid) > MEMORY else None
        if over is not None:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return over


def child(work: Callable[[], object], slot: int, active: int, scratch: Path) -> NoReturn:
    """In the fork: a session, an environment and output of its own."""
    code = 70
    try:
        os.setsid()
        for target, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
            os.dup2(os.open(os.devnull, flags), target)
        tempfile.tempdir = None
        os.environ.update(TMPDIR=str(scratch), PYTEST_DEBUG_TEMPROOT=str(scratch))
        random.seed(0)
        BOARD.use(slot, active)
        work()
        code = 0
    finally:
        os._exit(code)  # never the parent's exit handlers


def held(pid: int) -> int:
    """Bytes of memory of a process."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def sweep(slot: int) -> None:
    """Kill what a fork left running: by the folder and the slot in its environment."""
    marks = {f"MUTATIONS_FOLDER={FOLDER}".encode(), f"MUTATIONS_SLOT={slot}".encode()}
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marks <= set(entry.read_bytes().split(b"\0")) and int(entry.parent.name) != os.getpid():
                os.kill(int(entry.parent.name), signal.SIGKILL)


class Mutants:
    """All mutants of the plan and the tests of a session."""

    def __init__(self, session: pytest.Session) -> None:
        self.items = session.items
        self.count = len(PLAN["names"])
        self.records: dict[int, dict[str, Any]] = {}
        """Of tests that were run without a mutant: index, whether it passed, and seconds."""

    def results(self) -> dict[str, Any]:
        began = time.monotonic()
        later = {at for at, item in enumerate(self.items) if any(map(item.get_closest_marker, PLAN["later"]))}
        self.reach([at for at in range(len(self.items)) if at not in later], None)
        open_ones = [k for k in range(self.count) if not self.covering(k)]
        say(f"{len(self.records)} tests in {time.monotonic() - began:.0f} s leave {len(open_ones)} mutants")
        if open_ones and later:
            hints = {word for number in open_ones for word in PLAN["hints"][number]}
            self.reach(self.by_hints(later, hints), time.monotonic() + PLAN["later_seconds"])
        reached = time.monotonic()
        found = self.tried([k for k in range(self.count) if self.covering(k)])
        failing = [self.items[at].nodeid for at, one in sorted(self.records.items()) if not one["passed"]]
        return {
            "mutants": {PLAN["names"][k]: found.get(k) or self.uncovered(k) for k in range(self.count)},
            "tests": len(self.records),
            "of": len(self.items),
            "failing": failing,
            "seconds": {"reach": round(reached - began), "mutants": round(time.monotonic() - reached)},
        }

    def by_hints(self, chosen: Iterable[int], hints: set[str]) -> list[int]:
        """Tests in the order of how many hints of what is not reached yet their files hold."""
        texts: dict[Path, int] = {}
        for at in chosen:
            path = self.items[at].path
            if path not in texts:
                text = path.read_text(encoding="utf-8")
                texts[path] = sum(hint in text for hint in hints)
        return sorted(chosen, key=lambda at: (-texts[self.items[at].path], at))

    def reach(self, chosen: list[int], deadline: float | None) -> None:
        """Run tests without a mutant, file by file, until the deadline."""
        by_file: dict[str, list[int]] = {}
        for at in chosen:
            by_file.setdefault(self.items[at].nodeid.partition("::")[0], []).append(at)
        waiting = list(by_file.values())
        forks = Forks(PLAN["jobs"])
        while waiting or forks.running:
            while waiting and forks.free and (deadline is None or time.monotonic() < deadline):
                group = waiting.pop(0)
                limit = 3600.0 if deadline is None else max(30.0, deadline - time.monotonic())
                forks.start(lambda group=group: self.recorded(group), limit, group)  # type: ignore[misc]
            if not forks.running:
                break
            for group, how in forks.ended():
                self.read(group)
                if how:
                    say(f"without a mutant, {self.items[group[0]].nodeid.partition('::')[0]}: {how}")

    def recorded(self, group: list[int]) -> None:
        """In a fork: run tests one after another, and write down each."""
        with open(FOLDER / f"tests-{group[0]}", "w", encoding="utf-8", buffering=1) as stream:
            for place, at in enumerate(group):
                BOARD.at(at + 1)
                watch = self.run(at, group[place + 1] if place + 1 < len(group) else None)
                passed = watch.failed is None and not watch.skipped
                entry = {"at": at, "passed": passed, "skipped": watch.skipped, "seconds": watch.seconds}
                stream.write(json.dumps(entry) + "\n")

    def read(self, group: list[int]) -> None:
        path = FOLDER / f"tests-{group[0]}"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            entry = json.loads(line)
            self.records[entry["at"]] = entry

    def run(self, at: int, after: int | None) -> Watch:
        """A test, by all of pytest's hooks."""
        item = self.items[at]
        watch = Watch()
        item.config.pluginmanager.register(watch)
        try:
            upcoming = None if after is None else self.items[after]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=upcoming)
        finally:
            item.config.pluginmanager.unregister(watch)
        return watch

    def covering(self, number: int) -> list[int]:
        """The tests that passed and reach a mutant."""
        return [at for at in self.records if self.records[at]["passed"] and BOARD.row(at + 1)[number]]

    def uncovered(self, number: int) -> dict[str, Any]:
        if any(BOARD.row(at + 1)[number] for at in self.records):
            return {"status": "not covered", "why": "only by tests that fail without a mutant"}
        if BOARD.row(0)[number]:
            return {"status": "not covered", "why": "only while tests are collected"}
        return {"status": "not covered", "why": "no test reaches it"}

    def chosen(self, number: int, unreliable: set[int]) -> list[int]:
        """Tests for a mutant: one of each test function before the next of any, the fastest first, within limits."""
        by_function: dict[str, list[int]] = {}
        covering = [at for at in self.covering(number) if at not in unreliable]
        for at in sorted(covering, key=lambda at: self.records[at]["seconds"]):
            by_function.setdefault(self.items[at].nodeid.partition("[")[0], []).append(at)
        ranked = [(turn, at) for group in by_function.values() for turn, at in enumerate(group)]
        ranked.sort(key=lambda one: (one[0], self.records[one[1]]["seconds"]))
        found: list[int] = []
        left = PLAN["test_seconds"]
        for _, at in ranked[: PLAN["tests"] or None]:
            left -= self.records[at]["seconds"]
            if found and left < 0:
                break
            found.append(at)
        return found

    def tried(self, numbers: list[int]) -> dict[int, dict[str, Any]]:
        """What becomes of mutants. A test that fails without one as well kills none: then others are asked."""
        found: dict[int, dict[str, Any]] = {}
        unreliable: set[int] = set()
        waiting = numbers
        while waiting:
            found.update(self.round(waiting, unreliable))
            killers = {found[k]["at"] for k in waiting if found[k].get("at") is not None}
            bad = {at for at, passed in self.controls(sorted(killers)).items() if not passed}
            unreliable |= bad
            waiting = [k for k in waiting if found[k].get("at") in bad]
            if bad:
                say(f"{len(bad)} tests fail by themselves without a mutant; {len(waiting)} mutants again")
        for entry in found.values():
            entry.pop("at", None)
        return found

    def round(self, numbers: list[int], unreliable: set[int]) -> dict[int, dict[str, Any]]:
        """Each mutant in a fork."""
        found: dict[int, dict[str, Any]] = {}
        forks = Forks(PLAN["jobs"])
        waiting = list(numbers)
        while waiting or forks.running:
            while waiting and forks.free:
                number = waiting.pop(0)
                tests = self.chosen(number, unreliable)
                if not tests:
                    found[number] = {"status": "not covered", "why": "only by tests that fail by themselves"}
                    continue
                limit = max(PLAN["limit"], 3 * sum(self.records[at]["seconds"] for at in tests))
                work = lambda number=number, tests=tests: self.attempt(number, tests)  # noqa: E731
                forks.start(work, limit, (number, tests, time.monotonic()), active=number)  # type: ignore[misc]
            for (number, tests, began), how in forks.ended():
                found[number] = self.verdict(number, tests, how, time.monotonic() - began)
                say(f"{len(found)} of {len(numbers)}: {PLAN['names'][number]} {found[number]['status']}")
        return found

    def attempt(self, number: int, tests: list[int]) -> None:
        """In a fork, with the mutant on: run tests until one fails. The last line tells which was run."""
        with open(FOLDER / f"mutant-{number}", "w", encoding="utf-8", buffering=1) as stream:
            for place, at in enumerate(tests):
                stream.write(f"{at}\n")
                if self.run(at, tests[place + 1] if place + 1 < len(tests) else None).failed is not None:
                    stream.write("failed\n")
                    return

    def verdict(self, number: int, tests: list[int], how: str, seconds: float) -> dict[str, Any]:
        path = FOLDER / f"mutant-{number}"
        lines = path.read_text(encoding="utf-8").split() if path.exists() else []
        ran = [int(line) for line in lines if line != "failed"]
        covering = self.covering(number)
        entry: dict[str, Any] = {"tests": len(ran), "of": len(covering), "seconds": round(seconds, 1)}
        if all(BOARD.row(at + 1)[number] != FORKED for at in covering):
            entry["spawned"] = True  # reached only in Python processes that tests start
        if "failed" in lines:
            return {"status": "killed", "by": self.items[ran[-1]].nodeid, "at": ran[-1], **entry}
        if how:
            status = "timeout" if how == "timeout" else "killed"
            by = self.items[ran[-1]].nodeid if ran else ""
            return {"status": status, "by": by, "how": how, **entry}
        return {"status": "survived", **entry}

    def controls(self, tests: list[int]) -> dict[int, bool]:
        """Whether tests pass without a mutant, each by itself."""
        passed: dict[int, bool] = {}
        forks = Forks(PLAN["jobs"])
        waiting = list(tests)
        while waiting or forks.running:
            while waiting and forks.free:
                at = waiting.pop(0)
                forks.start(lambda at=at: self.alone(at), PLAN["limit"], at)  # type: ignore[misc]
            for at, how in forks.ended():
                passed[at] = not how
        return passed

    def alone(self, at: int) -> None:
        """In a fork: ends well where the test passes."""
        if self.run(at, None).failed is not None:
            os._exit(1)
