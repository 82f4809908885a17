"""The catalog of the built-in rules says what the files say, and a run imports only the rules that it needs. A rule
pack in a folder of its own is found by its entry point, tested by onnxfix.testing, and run like any other."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import onnxfix
from onnxfix.graph.shared import elem_types, every_node
from onnxfix.model import Model
from onnxfix.rewrite import catalog
from onnxfix.rewrite.engine import check
from onnxfix.rewrite.registry import BUILT_IN, forget, registry, rules_of
from onnxfix.rule import Rule
from onnxfix.testing import check_contexts, check_example, model_of, overlay
from support import cli
from support.nested_models import nested, text
from support.paths import ROOT


def test_the_catalog_is_what_the_rules_say() -> None:
    rules = sorted(rules_of(BUILT_IN), key=lambda rule: rule.code)
    written = catalog.path_of(BUILT_IN).read_text(encoding="utf-8")
    assert written == catalog.text_of(rules), "python docs/make.py writes the catalog"
    listed = catalog.load(BUILT_IN)
    assert listed is not None
    for rule, entry in zip(rules, listed, strict=True):
        for field in fields(Rule):
            assert getattr(entry, field.name) == getattr(rule, field.name), (rule.code, field.name)


def test_without_a_catalog_all_rules_are_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalog, "path_of", lambda package: tmp_path / "catalog.json")
    assert catalog.load(BUILT_IN) is None


def test_a_rule_that_its_file_lacks_is_named() -> None:
    listed = registry().get("CST001")
    assert isinstance(listed, catalog.Listed)
    moved = replace(listed, module="onnxfix_rules.cst")
    vars(moved).pop("doc", None)
    with pytest.raises(ImportError, match=r"onnxfix_rules\.cst has no rule CST001"):
        _ = moved.doc


def test_types_rule_out_nothing_that_a_built_in_rule_would_find() -> None:
    """The types that a rule names are for speed: without them it finds the same, on the examples of all rules."""
    rules = list(rules_of(BUILT_IN))
    typed = [one for one in rules if one.types]
    assert {"PRC003", "OPS032", "INT006", "QDQ013", "IFC003"} <= {one.code for one in typed}
    untyped = [replace(one, types=()) for one in typed]
    operators = {operator for one in typed for operator in one.ops}
    compared = 0
    for family in rules:
        for example in family.examples[:: 1 if family.types else 3]:
            model = overlay(model_of(example), example.target)
            if family.types or not operators.isdisjoint(every_node(model).operators):
                compared += 1
                assert _said(model, typed) == _said(model, untyped), f"{family.code} ({example.why})"
    assert compared > 300


def _said(model: Model, rules: list[Rule]) -> list[tuple[str, str, str]]:
    return [(item.rule.code, item.match.place.text, item.match.message) for item in check(model, rules, [])]


def test_element_types_are_those_of_all_scopes_and_those_that_casts_ask_for() -> None:
    body = """g (float[N] x, bool c) => (float[N] y) { i = Cast<to = 7>(x)
        y = If(c)<then_branch = p () => (float[N] u) { h = Cast<to = 10>(x)  u = Cast<to = 1>(h) },
                  else_branch = q () => (float[N] v) { v = Cast<to = 1>(i) }> }"""
    types = elem_types(Model(text(body)))
    assert types == {TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64, TensorProto.FLOAT16}
    deep = nested(80)  # deeper than shapes are followed
    graph = deep.graph
    while graph.node[0].op_type == "If":
        graph = graph.node[0].attribute[1].g
    graph.node[0].CopyFrom(helper.make_node("Cast", ["x"], graph.node[0].output, to=TensorProto.INT8))
    model = Model(deep)
    assert {model.shapes.elem_type(value) for node in model.nodes() for value in node.outputs} == {None, 1}
    assert TensorProto.INT8 in elem_types(model)


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
