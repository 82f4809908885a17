"""What an original computed is not computed again for the next candidate, and never taken for something else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix import backends
from onnxfix.verification import remote
from onnxfix.verification.compare.compare import Terms

FEED = {"x": np.arange(3.0, dtype=np.float32)}


class Session:
    """A model that multiplies by what its file says, and counts its runs."""

    outputs = ("y",)

    def __init__(self, path: str, runs: list[str]) -> None:
        self.factors = [float(word) for word in Path(path).read_text(encoding="utf-8").split()]
        self.name, self.runs = Path(path).name, runs

    def run(self, feed: dict[str, Any]) -> list[Any]:
        self.runs.append(self.name)
        factor = self.factors.pop(0) if len(self.factors) > 1 else self.factors[0]
        return [feed["x"] * np.float32(factor)]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is loaded (with a plus) and run, in order."""
    found: list[str] = []

    def load(name: str, path: str, **options: Any) -> Session:
        found.append(f"+{Path(path).name}")
        return Session(path, found)

    monkeypatch.setattr(backends, "load", load)
    yield found
    remote.drop()


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str, str]:
    for name, text in (("o", "2"), ("a", "3"), ("b", "2")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / "o"), str(tmp_path / "a"), str(tmp_path / "b")


def judged(original: str, fixed: str, scope: str = "run", **more: Any) -> list[str]:
    assert not remote.load("toy", original, fixed, scope=scope).stage
    how = {"again": False, "drawn": (), "terms": Terms(exact=True), "skip": ()} | more
    ran = remote.run(FEED, **how)
    assert not ran.stage
    remote.drop(scope)
    return [one.agreement for one in ran.metrics]


def test_another_run_another_feed_another_file_are_computed(
    seen: list[str], paths: tuple[str, str, str]
) -> None:
    original, wrong, right = paths
    judged(original, wrong)
    assert judged(original, right, scope="another") == ["identical"]
    assert judged(original, right, scope="") == ["identical"]
    assert seen.count("o") == 3
    judged(original, right)
    seen.clear()
    Path(original).write_text("5.0", encoding="utf-8")
    assert judged(original, right) == ["different"], "the file has changed"
    assert seen == ["+o", "+b", "o", "b"]
    remote.load("toy", original, right, scope="run")
    other = {"x": FEED["x"] + 1}
    assert remote.run(other, again=False, drawn=(), terms=Terms(exact=True), skip=()).metrics
    assert seen[-3:] == ["+o", "o", "b"], "it is loaded where it has to run"
    remote.load("other", original, right, scope="run")
    assert seen[-2:] == ["+o", "+b"], "another backend"


def test_what_draws_is_never_kept(seen: list[str], paths: tuple[str, str, str]) -> None:
    original, _, right = paths
    for _ in range(2):
        judged(original, right, again=True, drawn=("y",))
    assert seen.count("o") == 4
