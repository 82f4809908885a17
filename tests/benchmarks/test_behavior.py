"""benchmarks/behavior: two recordings of one state are equal, every kind of change shows, a crash is an entry."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from behavior import record
from behavior.actions import Entry
from behavior.differences import differences

from support.patience import PATIENCE

pytestmark = pytest.mark.slow
EVERY = 189  # of 1,884 node models: ten


def recorded(models: list[record.Case]) -> Entry:
    scope = {"groups": ["node"], "verify": False, "every": EVERY}
    entries = record.record(models, jobs=2, timeout=PATIENCE)
    return {"format": record.FORMAT, "versions": record.versions(), "scope": scope, "models": entries}


def test_a_recording_is_repeated_and_every_change_of_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = record.cases(("node",), tmp_path, every=EVERY)
    first = recorded(models)
    assert any(entry["exact"]["applied"] for entry in first["models"].values())
    record.write(tmp_path / "second.json", recorded(models))
    assert differences(first, record.read(tmp_path / "second.json")) == {}

    changed = copy.deepcopy(first)
    entries = list(changed["models"].values())
    finding = next(entry["check"]["findings"][0] for entry in entries if entry["check"]["findings"])
    finding[2] = "another severity"
    entries[0]["exact"]["files"]["fixed.onnx"] = "0" * 64
    entries[0]["numeric"]["exit"] = 3
    entries[1]["exact"]["rungs"] = [["contract", "failed"]]
    entries[2]["exact"] = {"ended": "crashed with exit code -11"}
    changed["models"].popitem()
    kinds = {"findings": 2, "bytes": 1, "exit code": 1, "rungs": 1, "ended": 1, "models": 1}
    assert {kind: len(lines) for kind, lines in differences(first, changed).items()} == kinds
    assert record.compare(first, changed) == sum(kinds.values())
    assert "\nexit code: " in capsys.readouterr().out

    changed["scope"]["every"] *= 2  # a sample of the models: that others are missing is no difference
    assert "models" not in differences(first, changed)
