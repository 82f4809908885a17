"""A rule pack in a folder of its own: found by its entry point, tested by onnxfix.testing, run like any other."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import onnxfix
from onnxfix.rewrite.registry import forget, registry
from onnxfix.rule import Rule
from onnxfix.testing import check_contexts, check_example, model_of
from support import cli
from support.paths import ROOT

PACK = ROOT / "tests" / "packs" / "double_negation"
SOURCE = PACK / "double_negation.py"


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rule]:
    """The pack as an installer leaves it: the module, and metadata with its entry points."""
    project = tomllib.loads((PACK / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = tmp_path / f"double_negation-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in groups.items()
        )
    )
    shutil.copy(SOURCE, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield registry().get("NEG001")
    sys.modules.pop("double_negation", None)
    forget()


def test_its_examples_hold_in_every_context(pack: Rule) -> None:
    for example in pack.examples:
        check_example(pack, example)
    check_contexts(pack)


def test_it_fixes_models_like_any_other(pack: Rule, tmp_path: Path) -> None:
    assert not registry().warnings
    path = tmp_path / "model.onnx"
    onnx.save(model_of(pack.examples[0]), path)
    report = onnxfix.apply(path, select=["NEG"])
    assert [fix.code for fix in report.applied] == ["NEG001"]
    assert report.model is not None
    assert [node.op_type for node in report.model.graph.node] == ["Exp", "Abs"]


def test_one_that_does_not_import_is_named_and_the_other_rules_stay(pack: Rule, tmp_path: Path) -> None:
    (tmp_path / SOURCE.name).write_text("import a_module_that_nobody_has\n")
    sys.modules.pop("double_negation", None)
    forget()
    out, err = cli.streams(0, "rules")
    (line,) = (line for line in err.splitlines() if "double_negation" in line)
    assert "a_module_that_nobody_has" in line
    assert "NEG001" not in out
    assert "CTL010" in out


def test_the_guide_shows_it() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert SOURCE.read_text(encoding="utf-8") in guide
    assert (PACK / "pyproject.toml").read_text(encoding="utf-8") in guide
