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


def test_the_case_of_a_folder_without_letters_is_that_of_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Named" / "12").mkdir(parents=True)
    (tmp_path / "Named" / "12" / "34").touch()
    place = str(tmp_path / "Named" / "12" / "not" / "there")
    assert not system.ignores_case(place)
    without_case(monkeypatch)
    assert system.ignores_case(place)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("NUL.onnx", True),
        ("con", True),
        ("Com1.fixed.onnx", True),
        ("lpt\u00b2.onnx", True),
        ("aux .onnx", True),
        ("model.onnx.", True),
        ("a:b.onnx", True),
        ("a\tb.onnx", True),
        ("console.onnx", False),
        ("com10.onnx", False),
        ("nul-1.onnx", False),
        (".hidden.onnx", False),
        ("..", False),
    ],
)
def test_names_that_windows_has_for_something_else(name: str, bad: bool) -> None:
    assert system.unusable(name, windows=True) == bad
    assert not system.unusable(name, windows=False)


def test_a_result_that_would_be_a_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [Named("memory://b/aux/m.onnx", "aux/m.onnx")]
    assert targets(models, None, str(tmp_path), False)
    real = system.unusable
    monkeypatch.setattr(system, "unusable", lambda name: real(name, windows=True))
    with pytest.raises(UsageError, match="this system has no files named aux; write elsewhere by --output"):
        targets(models, None, str(tmp_path), False)
    assert targets(models, None, "memory://out", False)
