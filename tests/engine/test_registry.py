"""Choosing rules: defaults, families, names, and rules that are off until somebody names them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.rewrite.registry import Registry, _loaded, registry, rules_of
from onnxfix.rule import Match, Rule, rule


def make(code: str, name: str, default: bool = True) -> Rule:
    def generate(node: Node, model: Model) -> Iterator[Match]:
        yield from ()

    generate.__name__ = name
    return rule(code, ops=["Neg"], default=default)(generate)


RULES = Registry(
    (
        make("AAA001", "first"),
        make("AAA002", "second"),
        make("AAA003", "third", False),
        make("BBB001", "other"),
    ),
    (),
)


@pytest.mark.parametrize(
    ("select", "ignore", "codes"),
    [
        (None, None, "AAA001 AAA002 BBB001"),
        ([], None, "AAA001 AAA002 BBB001"),
        (["AAA"], None, "AAA001 AAA002"),
        (["aaa"], None, "AAA001 AAA002"),
        (["ALL"], None, "AAA001 AAA002 BBB001"),
        (["AAA003"], None, "AAA003"),
        (["third"], None, "AAA003"),
        (["AAA", "AAA003"], None, "AAA001 AAA002 AAA003"),
        (None, ["AAA"], "BBB001"),
        (None, ["first"], "AAA002 BBB001"),
        (["AAA"], ["AAA002"], "AAA001"),
        (["AAA002"], ["AAA"], "AAA002"),
        (["AAA002"], ["ALL"], "AAA002"),
        (["AAA"], ["AAA"], ""),
        (["ALL"], ["BBB"], "AAA001 AAA002"),
    ],
)
def test_choose(select: list[str] | None, ignore: list[str] | None, codes: str) -> None:
    assert " ".join(rule.code for rule in RULES.choose(select, ignore)) == codes


@pytest.mark.parametrize("selector", ["CCC", "AAA004", "nobody", "", "A A"])
def test_unknown_selectors_are_refused(selector: str) -> None:
    for choose in (lambda: RULES.choose([selector]), lambda: RULES.choose(None, [selector])):
        with pytest.raises(UsageError, match="no rule matches"):
            choose()


def test_lists_show_rules_that_are_off() -> None:
    assert [rule.code for rule in RULES.matching()] == ["AAA001", "AAA002", "AAA003", "BBB001"]
    assert [rule.code for rule in RULES.matching(["AAA"])] == ["AAA001", "AAA002", "AAA003"]


def test_a_pack_may_list_a_rule_of_another_one_and_not_take_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = registry().get("CTL010")
    own = replace(built_in, module="pack_of_test_registry", name="of-its-own")
    again = replace(built_in)
    assert again is not built_in
    module = ModuleType("pack_of_test_registry")
    entry = EntryPoint("mine", "pack_of_test_registry:RULES", "onnxfix.rules")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("onnxfix.rewrite.packs.metadata.entry_points", lambda group: [entry])
    for listed, wanted in (
        ([again], ()),
        ([own], (f"rule pack 'mine': CTL010 is taken by {built_in.module}",)),
    ):
        module.RULES = listed  # type: ignore[attr-defined]
        assert _loaded.__wrapped__("").warnings == wanted


def test_entry_point_may_name_a_module_an_attribute_or_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_pack.py").write_text(
        "from onnxfix.rule import rule\n"
        "@rule('CCC001', ops=['Neg'])\n"
        "def one(node, model):\n    yield from ()\n"
        "everything = [one]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        for entry in ("some_pack", "some_pack:one", "some_pack:everything"):
            assert [found.code for found in rules_of(entry)] == ["CCC001"]
    finally:
        sys.modules.pop("some_pack", None)


def test_codes_and_names_are_unique() -> None:
    names = [found.name for found in registry().rules]
    assert len(names) == len(set(names))


def test_without_the_built_in_rules_nothing_is_found_and_nothing_is_said_to_be_fine() -> None:
    told = "rule pack 'core' (onnxfix_rules) cannot be loaded: SyntaxError: x"
    found = Registry(RULES.rules[:1], (told,), told)
    with pytest.raises(OnnxfixError, match="cannot be loaded"):
        found.choose()
    other = Registry(RULES.rules[:1], ("rule pack 'theirs' (their_rules) cannot be loaded: ImportError: x",))
    assert other.choose() == list(RULES.rules[:1])
