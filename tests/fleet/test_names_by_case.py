"""Results whose names are one name, or none, on some file systems: refused before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onnxfix.errors import UsageError
from onnxfix.runtime import system
from onnxfix.verbs.fleet.names import targets
from onnxfix.verbs.fleet.paths import Named


def without_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file system looks for names without regard to case, as those of Windows and macOS do."""
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        folder, name = os.path.split(path)
        found = [one for one in os.listdir(folder) if one.casefold() == name.casefold()]
        return real(os.path.join(folder, found[0] if found else name))

    monkeypatch.setattr(system.os, "lstat", lstat)


NEAR = [
    ("A.onnx", "a.onnx"),
    ("x/m.onnx", "X/m.onnx"),
    ("caf\u00e9.onnx", "cafe\u0301.onnx"),
    ("STRASSE.onnx", "stra\u00dfe.onnx"),
]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("pair", NEAR)
def test_two_results_that_differ_by_case_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str], there: bool
) -> None:
    models = [Named(f"in/{name}", name) for name in pair]
    out = tmp_path / "out"
    if there:
        out.mkdir()
        (out / "Earlier.onnx").touch()
    assert len(targets(models, None, str(out), False)) == 2
    without_case(monkeypatch)
    with pytest.raises(
        UsageError, match=r"two models would be written to .*: the file system takes it and"
    ) as refused:
        targets(models, None, str(out), False)
    assert "\n" not in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == (["out"] if there else [])
    assert len(targets([models[0], Named("in/b.onnx", "b.onnx")], None, str(out), False)) == 2


def test_names_that_windows_has_for_something_else() -> None:
    devices = ["NUL.onnx", "con", "Com1.fixed.onnx", "lpt\u00b2.onnx", "aux .onnx"]
    names = [*devices, "model.onnx.", "a:b.onnx", "console.onnx", "com10.onnx", ".hidden.onnx", ".."]
    assert [name for name in names if system.unusable(name, windows=True)] == names[:7]
    assert not any(system.unusable(name, windows=False) for name in names)
