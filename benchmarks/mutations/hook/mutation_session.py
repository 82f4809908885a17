"""A pytest plugin: collect the tests once, find which of them reach which mutant, and try each mutant in a fork.

It runs under run.py, which writes plan.json and reads results.json in the same folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sitecustomize
from mutation_forks import Forks
from sitecustomize import FORKED, TESTS

BOARD = sitecustomize.switchboard
FOLDER = Path(BOARD.folder)
PLAN = json.loads((FOLDER / "plan.json").read_text(encoding="utf-8"))
THOROUGH_SECONDS = 600.0
"""Of tests for a mutant that was killed before: only one that survives now takes them."""

BOARD.flag = FORKED  # here and in all forks
BOARD.at(0)  # what is reached while tests are collected


def say(text: str) -> None:
    """Progress; forks have no such output."""
    os.write(2, f"{text}\n".encode())


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
        settings.register_profile(
            "mutations", settings.default, derandomize=True, database=None, phases=phases
        )
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


@dataclass
class Attempt:
    """A mutant, and the tests that are still to be run."""

    number: int
    tests: list[int]
    done: int = 0
    began: float = 0.0
    seconds: float = 0.0


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
        open_ones = self.open_ones()
        say(f"{len(self.records)} tests in {time.monotonic() - began:.0f} s leave {len(open_ones)} mutants")
        if open_ones and later:
            hints = {PLAN["hints"][number] for number in open_ones}
            self.reach(self.by_hints(later, hints), time.monotonic() + PLAN["later_seconds"])
        reached = time.monotonic()
        found = self.tried([k for k in PLAN["wanted"] if self.covering(k)])
        failing = [self.items[at].nodeid for at, one in sorted(self.records.items()) if one["failed"]]
        return {
            "mutants": {PLAN["names"][k]: found.get(k) or self.uncovered(k) for k in PLAN["wanted"]},
            "tests": len(self.records),
            "of": len(self.items),
            "failing": failing,
            "seconds": {"reach": round(reached - began), "mutants": round(time.monotonic() - reached)},
        }

    def open_ones(self) -> list[int]:
        """The mutants that no test has reached yet."""
        return [number for number in range(self.count) if not self.covering(number)]

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
        """Run tests without a mutant, file by file, until the deadline or until they reach all mutants."""
        by_file: dict[str, list[int]] = {}
        for at in chosen:
            by_file.setdefault(self.items[at].nodeid.partition("::")[0], []).append(at)
        waiting = list(by_file.values())
        forks = Forks(PLAN["jobs"], PLAN["scratch"])

        def start(group: list[int]) -> None:
            limit = 3600.0 if deadline is None else max(30.0, deadline - time.monotonic())
            forks.start(lambda: self.recorded(group), limit, group)

        for group, how in forks.each(waiting, start):
            self.read(FOLDER / f"tests-{group[0]}")
            if deadline is not None and (time.monotonic() > deadline or not self.open_ones()):
                waiting.clear()
            if how:
                say(f"without a mutant, {self.items[group[0]].nodeid.partition('::')[0]}: {how}")

    def recorded(self, group: list[int]) -> None:
        """In a fork: run tests one after another, and write down each."""
        with open(FOLDER / f"tests-{group[0]}", "w", encoding="utf-8", buffering=1) as stream:
            for place, at in enumerate(group):
                BOARD.at(at + 1)
                watch = self.run(at, group[place + 1] if place + 1 < len(group) else None)
                passed = watch.failed is None and not watch.skipped
                entry = {
                    "at": at,
                    "passed": passed,
                    "failed": watch.failed is not None,
                    "seconds": watch.seconds,
                }
                stream.write(json.dumps(entry) + "\n")

    def read(self, path: Path) -> None:
        """What a fork wrote down."""
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
        """Tests for a mutant: one of each test function before the next of any, within limits. First come tests that
        are fast and reach few mutants: they are about this code."""
        by_function: dict[str, list[int]] = {}
        covering = [at for at in self.covering(number) if at not in unreliable]
        cost = {
            at: self.records[at]["seconds"] * (self.count - BOARD.row(at + 1).count(0)) for at in covering
        }
        for at in sorted(covering, key=cost.__getitem__):
            by_function.setdefault(self.items[at].nodeid.partition("[")[0], []).append(at)
        ranked = [(turn, at) for group in by_function.values() for turn, at in enumerate(group)]
        ranked.sort(key=lambda one: (one[0], cost[one[1]]))
        found: list[int] = []
        thorough = number in PLAN["thorough"]
        left = THOROUGH_SECONDS if thorough else PLAN["test_seconds"]
        for _, at in ranked if thorough else ranked[: PLAN["tests"] or None]:
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
        forks = Forks(PLAN["jobs"], PLAN["scratch"])

        def start(one: Attempt) -> None:
            one.began = time.monotonic()
            slow = max(self.records[at]["seconds"] for at in one.tests)
            forks.start(lambda: self.attempt(one), max(PLAN["limit"], 5 * slow), one, active=one.number)

        waiting = []
        for number in numbers:
            if tests := self.chosen(number, unreliable):
                waiting.append(Attempt(number, tests))
            else:
                found[number] = {"status": "not covered", "why": "only by tests that fail by themselves"}
        for one, how in forks.each(waiting, start):
            entry = self.verdict(one, how)
            if entry is None:
                waiting.insert(0, one)
                continue
            found[one.number] = entry
            say(f"{len(found)} of {len(numbers)}: {PLAN['names'][one.number]} {entry['status']}")
        return found

    def attempt(self, one: Attempt) -> None:
        """In a fork, with the mutant on: run tests until one fails. The last line tells which was run."""
        tests = one.tests
        with open(FOLDER / f"mutant-{one.number}", "w", encoding="utf-8", buffering=1) as stream:
            for place, at in enumerate(tests):
                stream.write(f"{at}\n")
                if self.run(at, tests[place + 1] if place + 1 < len(tests) else None).failed is not None:
                    stream.write("failed\n")
                    return

    def verdict(self, one: Attempt, how: str) -> dict[str, Any] | None:
        """What became of a mutant; None where time ran out between tests: then the rest of them is to be run."""
        number = one.number
        one.seconds += time.monotonic() - one.began
        path = FOLDER / f"mutant-{number}"
        lines = path.read_text(encoding="utf-8").split() if path.exists() else []
        ran = [int(line) for line in lines if line != "failed"]
        if how == "timeout" and len(ran) > 1:  # the one that it was at is the first of the next attempt
            one.tests = one.tests[len(ran) - 1 :]
            one.done += len(ran) - 1
            return None
        covering = self.covering(number)
        entry: dict[str, Any] = {
            "tests": one.done + len(ran),
            "of": len(covering),
            "seconds": round(one.seconds, 1),
        }
        if not any(BOARD.row(at + 1)[number] & FORKED for at in covering):
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
        forks = Forks(PLAN["jobs"], PLAN["scratch"])

        def start(at: int) -> None:
            forks.start(lambda: self.alone(at), PLAN["limit"], at)

        return {at: not how for at, how in forks.each(list(tests), start)}

    def alone(self, at: int) -> None:
        """In a fork: ends well where the test passes."""
        BOARD.at(at + 1)
        if self.run(at, None).failed is not None:
            os._exit(1)
