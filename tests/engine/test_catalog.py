"""The catalog of the built-in rules: it says what the files say, and a run imports only the rules that it needs."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from onnxfix.rewrite import catalog
from onnxfix.rewrite.registry import BUILT_IN, registry, rules_of
from onnxfix.rule import Rule


def test_the_catalog_is_what_the_rules_say() -> None:
    rules = sorted(rules_of(BUILT_IN), key=lambda rule: rule.code)
    written = catalog.path_of(BUILT_IN).read_text(encoding="utf-8")
    assert written == catalog.text_of(rules), "python docs/make.py writes the catalog"
    listed = catalog.load(BUILT_IN)
    assert listed is not None
    for rule, entry in zip(rules, listed, strict=True):
        for field in fields(Rule):
            assert getattr(entry, field.name) == getattr(rule, field.name), (rule.code, field.name)


def test_a_listed_rule_can_be_changed_and_knows_its_fields() -> None:
    listed = registry().get("CST001")
    assert replace(listed, default=False).default is False
    with pytest.raises(TypeError, match="missing or unknown fields of a rule: code, nonsense"):
        catalog.Listed(
            **{"nonsense": 1, **{name: value for name, value in vars(listed).items() if name != "code"}}
        )


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
