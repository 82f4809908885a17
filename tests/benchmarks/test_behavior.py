"""benchmarks/behavior: two recordings of one state are equal, every kind of change shows, a crash is an entry."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from behavior import record
from behavior.actions import Entry
from behavior.differences import differences

from support.patience import PATIENCE

pytestmark = pytest.mark.slow


EVERY = 189  # of 1,884 node models: ten


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[record.Case], Entry]:
    models = record.cases(("node",), tmp_path_factory.mktemp("models"), every=EVERY)
    return models, recorded(models)


def recorded(models: list[record.Case]) -> Entry:
    scope = {"groups": ["node"], "verify": False, "every": EVERY}
    entries = record.record(models, jobs=2, timeout=PATIENCE)
    return {"format": record.FORMAT, "versions": record.versions(), "scope": scope, "models": entries}


def test_two_recordings_are_equal(recording: tuple[list[record.Case], Entry], tmp_path: Path) -> None:
    models, first = recording
    assert len(models) == 10
    assert any(entry["exact"]["applied"] for entry in first["models"].values())
    assert any(entry["check"]["findings"] for entry in first["models"].values())
    record.write(tmp_path / "second.json", recorded(models))
    assert differences(first, record.read(tmp_path / "second.json")) == {}


def with_findings(models: dict[str, Any]) -> Entry:
    found: Entry = next(entry["check"] for entry in models.values() if entry["check"]["findings"])
    return found


def other_bytes(models: dict[str, Any]) -> None:
    next(iter(models.values()))["exact"]["files"]["fixed.onnx"] = "0" * 64


def other_exit(models: dict[str, Any]) -> None:
    next(iter(models.values()))["numeric"]["exit"] = 3


def other_severity(models: dict[str, Any]) -> None:
    with_findings(models)["findings"][0][2] = "other"


def other_rung(models: dict[str, Any]) -> None:
    next(iter(models.values()))["exact"]["rungs"] = [["contract", "failed"]]


def crash(models: dict[str, Any]) -> None:
    next(iter(models.values()))["exact"] = {"ended": "crashed with exit code -11"}


def fewer(models: dict[str, Any]) -> None:
    models.popitem()


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (other_bytes, {"bytes": 1}),
        (other_exit, {"exit code": 1}),
        (other_severity, {"findings": 2}),
        (other_rung, {"rungs": 1}),
        (crash, {"ended": 1}),
        (fewer, {"models": 1}),
    ],
)
def test_a_changed_entry_is_reported(
    recording: tuple[list[record.Case], Entry],
    capsys: pytest.CaptureFixture[str],
    change: Any,
    kinds: dict[str, int],
) -> None:
    _, first = recording
    changed = copy.deepcopy(first)
    change(changed["models"])
    assert {kind: len(lines) for kind, lines in differences(first, changed).items()} == kinds
    assert record.compare(first, changed) == sum(kinds.values())
    assert f"\n{next(iter(kinds))}: " in capsys.readouterr().out


def test_recordings_of_other_scope_are_compared_where_they_meet(
    recording: tuple[list[record.Case], Entry],
) -> None:
    _, first = recording
    sparse = copy.deepcopy(first)
    sparse["scope"]["every"] *= 2
    fewer(sparse["models"])
    assert differences(first, sparse) == {}
    other_exit(sparse["models"])
    assert list(differences(first, sparse)) == ["exit code"]
