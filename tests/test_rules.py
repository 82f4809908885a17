"""Every example of every installed rule holds."""

from __future__ import annotations

import pytest

from onnxfix.rewrite.registry import registry
from onnxfix.rule import NO_MODEL, Example, Rule
from onnxfix.testing import check_contexts, check_example

CASES = [
    pytest.param(rule, example, id=f"{rule.code}-{number}-{example.why[:50]}")
    for rule in registry().rules
    for number, example in enumerate(rule.examples)
]


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule: Rule, example: Example) -> None:
    check_example(rule, example)


@pytest.mark.parametrize("rule", [r for r in registry().rules if r.examples], ids=lambda rule: rule.code)
def test_examples_hold_in_every_context(rule: Rule) -> None:
    check_contexts(rule)


def test_all_packs_load() -> None:
    assert not registry().warnings
    assert registry().rules


@pytest.mark.parametrize("rule", registry().rules, ids=lambda rule: rule.code)
def test_rule_is_documented(rule: Rule) -> None:
    assert "## Why it matters" in rule.doc
    assert "## Fix" in rule.doc
    assert rule.name not in ("", rule.code)
    if rule.per in NO_MODEL:  # what others say: test_confirm.py, test_trt004_readback.py, test_validity.py
        assert not rule.examples
        return
    assert any(not e.found for e in rule.examples), "no silent example"
    assert any(e.found for e in rule.examples), "no flagged example"
