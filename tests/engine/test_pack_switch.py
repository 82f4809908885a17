"""Installed rule packs run code when they are loaded: what may be loaded is the user's choice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.rewrite import packs
from onnxfix.rewrite.registry import forget, registry
from onnxfix.verbs.fleet.contents import versions
from support import cli, models

pytestmark = pytest.mark.slow

MODULE = "counted_rules"


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pack that leaves a file when its code runs; that file."""
    ran = tmp_path / "ran"
    info = tmp_path / "counted-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counted\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text(f"[{packs.GROUP}]\ncounted = {MODULE}\n")
    (tmp_path / f"{MODULE}.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(packs.VARIABLE, raising=False)
    forget()
    yield ran
    sys.modules.pop(MODULE, None)
    forget()


def configured(parent: Path, text: str) -> Path:
    """A folder with a configuration."""
    (parent / "work").mkdir()
    (parent / "work" / "onnxfix.toml").write_text(text)
    return parent / "work"


def test_without_the_switch_every_installed_pack_is_loaded(pack: Path) -> None:
    assert registry().rules
    assert pack.exists()


@pytest.mark.parametrize("setting", ["none", " none, ", "core"])
def test_the_variable_keeps_packs_out(pack: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv(packs.VARIABLE, setting)
    assert registry().rules  # the built-in ones are always there
    assert not pack.exists()
    assert f"source of {MODULE}" not in versions()
    monkeypatch.setenv(packs.VARIABLE, "counted")  # the registry follows the variable
    assert registry().rules
    assert pack.exists()
    assert f"source of {MODULE}" in versions()


def test_a_pack_that_is_not_installed_is_an_error(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is mistyped would leave rules out in silence."""
    monkeypatch.setenv(packs.VARIABLE, "countd")
    with pytest.raises(UsageError, match="no rule pack 'countd'; choose from core, counted, or none"):
        registry()
    cli.refused("rules")
    assert not pack.exists()
    assert "countd" in cli.run("doctor")[1]


def test_the_option_holds_for_one_command_and_rules_say_what_is_loaded(pack: Path) -> None:
    out = cli.output(0, "--packs", "none", "rules", "--select", "CST001")
    wanted = f"counted {MODULE} from counted 2.5 in {pack.parent} (not loaded)"
    assert wanted in " ".join(out.split())
    assert not pack.exists()
    _, out, _ = cli.run("rules", "--select", "CST001")
    assert "(not loaded)" not in out
    assert pack.exists()
    assert [one.loaded for one in packs.installed(origins=True)] == [True, True]


def test_a_keyword_holds_for_one_call(pack: Path) -> None:
    model = models.model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    onnxfix.check(model, packs="none")
    onnxfix.apply(model, packs=["core"], verify=False)
    onnxfix.rules("CST", packs=())
    assert not pack.exists()
    onnxfix.check(model)
    assert pack.exists()


@pytest.mark.parametrize("text", ['packs = "none"', "packs = []", 'packs = ["core"]'])
def test_a_file_keeps_packs_out_for_one_command(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Selectors are judged after the file was read, and would load what it keeps out."""
    folder = configured(tmp_path, f'{text}\nselect = "CST"\n')
    models.write(folder / "m.onnx", "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    monkeypatch.chdir(folder)
    assert cli.run("check", "m.onnx", "--ignore", "BRC")[0] == 0
    assert not pack.exists()
    assert packs.setting() == ""
    assert cli.run("--packs", "counted", "check", "m.onnx")[0] == 0
    assert pack.exists()


def test_a_pack_of_a_file_that_is_not_installed_is_one_line(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(configured(tmp_path, 'packs = ["countd"]\n'))
    err = cli.refused("check", "m.onnx")
    assert "onnxfix.toml: packs: " in err
    assert "no rule pack 'countd'" in err


def test_the_packs_of_a_file_are_those_of_its_worker_processes(pack: Path, tmp_path: Path) -> None:
    folder = configured(tmp_path, 'packs = "none"\n')
    for name in ("a", "b"):
        models.write(folder / f"{name}.onnx", "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    found = subprocess.run(
        [sys.executable, "-m", "onnxfix", "check", "a.onnx", "b.onnx", "--jobs", "2"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert not pack.exists()
