"""Long runs of the original and the fixed model go side by side, and what goes wrong then is tried again in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix import backends
from onnxfix.sandbox import Outcome
from onnxfix.verification import pair, remote
from onnxfix.verification.compare.compare import Metrics, Terms
from onnxfix.verification.pair import LONG
from onnxfix.verification.progress import Progress
from onnxfix.verification.ran import BOTH, Ran

FEED = {"x": np.arange(3.0, dtype=np.float32)}
HOW: dict[str, Any] = {"again": False, "drawn": (), "terms": Terms(exact=True), "skip": ()}


class Meeting:
    """Two models of which each waits in its run until the other runs too; "bad" models fail."""

    outputs = ("y",)

    def __init__(self, path: str, place: threading.Barrier) -> None:
        self.name, self.place = Path(path).name, place

    def run(self, feed: dict[str, Any]) -> list[Any]:
        self.place.wait(timeout=10)
        if self.name.startswith("bad"):
            raise ValueError(self.name)
        return [feed["x"] * 2]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = threading.Barrier(2)
    for name in ("good", "also", "bad", "bad-too"):
        (tmp_path / name).touch()
    monkeypatch.setattr(backends, "load", lambda name, path, **options: Meeting(path, place))
    yield tmp_path
    remote.drop()


@pytest.mark.parametrize(
    ("original", "fixed", "stage"),
    [
        ("good", "also", ""),
        ("good", "bad", "fixed"),
        ("bad", "good", "original"),
        ("bad", "bad-too", "original"),
    ],
)
def test_both_run_at_once_and_errors_are_told_apart(
    models: Path, original: str, fixed: str, stage: str
) -> None:
    assert not remote.load("toy", str(models / original), str(models / fixed)).stage
    ran = remote.run(FEED, **HOW, beside=0.01)
    assert (ran.stage, ran.beside) == (stage, True)
    assert [one.agreement for one in ran.metrics] == ([] if stage else ["identical"])


class Quick:
    """A model whose runs take no time, and that says in which thread they were."""

    outputs = ("y",)

    def __init__(self, threads: list[str]) -> None:
        self.threads = threads

    def run(self, feed: dict[str, Any]) -> list[Any]:
        self.threads.append(threading.current_thread().name)
        return [feed["x"]]


def test_short_runs_stay_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    monkeypatch.setattr(backends, "load", lambda *_, **__: Quick(threads))
    remote.load("toy", str(tmp_path), str(tmp_path))
    began = time.monotonic()
    for _ in range(10):
        assert not remote.run(FEED, **HOW, beside=LONG).beside
    remote.drop()
    assert set(threads) == {threading.current_thread().name}
    assert time.monotonic() - began < 10 * LONG, "nothing waits for the time to end"


class Bench:
    """What stands for the request and its sandbox; answers calls with ``replies``, in order."""

    def __init__(self, *replies: Ran | str) -> None:
        self.replies, self.calls = list(replies), list[tuple[str, float | None]]()
        self.worker, self.generation, self.pid, self.limit_mb = self, 1, 1, None

    def __getattr__(self, name: str) -> Any:
        return {"step": 1.0, "without": (), "terms": Terms(), "scope": ""}.get(name)

    def call(self, function: str, *, beside: float | None = None, **more: Any) -> Outcome:
        function = function.rpartition(":")[2]
        self.calls.append((function, beside))
        if function == "load":
            return Outcome("ok", Ran())
        reply = self.replies.pop(0)
        if isinstance(reply, str):
            self.pid, self.generation = None, 2
            return Outcome("crash", message=reply, note=BOTH if beside is not None else "original")
        return Outcome("ok", replace(reply, beside=beside is not None and reply.beside))

    def starved(self, what: str) -> str:
        return f"the child {what}"

    def close(self) -> None:
        self.pid = None


SLOW, SHORT = Ran(seconds=4.0, beside=True), Ran(seconds=0.1)
WRONG = replace(SLOW, metrics=(Metrics("y", "different", "", "values", output="y"),))


def climbed(
    monkeypatch: pytest.MonkeyPatch, count: int, *replies: Ran | str, cores: int = 2
) -> tuple[Bench, list[Ran]]:
    monkeypatch.setattr(pair, "cores", lambda: cores)
    monkeypatch.setattr(pair.ort_weights, "weight_bytes", lambda model: 0)
    bench, seen = Bench(*replies), Progress()
    seen.generation = 1
    bench.known = type("Known", (), {"model": None, "drawn": None})
    both = pair.Pair(bench, "ort-cpu", seen)  # type: ignore[arg-type]
    return bench, [both.run(FEED)[1] for _ in range(count)]


def test_only_on_several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = climbed(monkeypatch, 3, SHORT, SLOW, SLOW)
    assert bench.calls == [("run", LONG), ("run", LONG), ("run", 0.0)]
    bench, _ = climbed(monkeypatch, 2, SLOW, SLOW, cores=1)
    assert bench.calls == [("run", None), ("run", None)]


@pytest.mark.parametrize("bad", [WRONG, replace(SLOW, stage="original", error="no memory", starved=True)])
def test_what_goes_wrong_at_once_is_judged_in_order(monkeypatch: pytest.MonkeyPatch, bad: Ran) -> None:
    bench, found = climbed(monkeypatch, 3, SLOW, bad, SLOW, SLOW)
    assert [one.stage for one in found] == ["", "", ""]
    assert not any(one.metrics for one in found)
    runs = [beside for function, beside in bench.calls if function == "run"]
    assert runs == [LONG, 0.0, None, None]  # and never at once again
    assert (("load", None) in bench.calls) is bad.starved


def test_what_was_in_order_is_not_judged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, found = climbed(monkeypatch, 2, replace(WRONG, beside=False), SLOW)
    assert [bool(one.metrics) for one in found] == [True, False]
    assert bench.calls == [("run", LONG)] * 2


def test_a_process_that_ends_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, found = climbed(
        monkeypatch, 2, SLOW, "killed", replace(SHORT, stage="fixed", error="it does not run")
    )
    assert found[1].stage == "fixed"
    assert bench.calls == [("run", LONG), ("run", 0.0), ("load", None), ("run", None)]
