"""Every example of every installed rule holds, and each exact fix is proven for all values but for those in a table."""

from __future__ import annotations

import json
import re

import pytest
from onnx import ModelProto

from onnxfix.files import walk
from onnxfix.proof.checks.symbolic import find_obstacle
from onnxfix.report.render.rules import PROOFS as NAME
from onnxfix.report.render.rules import rule_markdown, rules_json
from onnxfix.rewrite import catalog, contexts
from onnxfix.rewrite.registry import BUILT_IN, registry
from onnxfix.rule import NO_MODEL, Example, Rule, Safety
from onnxfix.testing import check_contexts, check_example, fixed, model_of

FIXING = [r for r in registry().rules if any(example.after is not None for example in r.examples)]
PROOFS = json.loads(catalog.path_of(BUILT_IN).with_name(NAME).read_text(encoding="utf-8"))
"""``undecided``: reason -> rule -> exact examples ("*": all) or their places; ``exact``: rule -> numeric examples."""

CASES = [
    pytest.param(rule, example, id=f"{rule.code}-{number}-{example.why[:50]}")
    for rule in registry().rules
    for number, example in enumerate(rule.examples)
]


def is_undecided(rule: Rule, example: Example, place: str = "") -> bool:
    """Whether the table says that an example, or it in a place, is not proven."""
    if example.safety == Safety.NUMERIC:
        return example.why not in PROOFS["exact"].get(rule.code, ())
    wanted = {f"{place}: {example.why}"} if place else {example.why, "*"}
    return any(not wanted.isdisjoint(codes.get(rule.code, ())) for codes in PROOFS["undecided"].values())


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule: Rule, example: Example) -> None:
    check_example(rule, example, proven=example.safety == Safety.EXACT and not is_undecided(rule, example))


@pytest.mark.parametrize("rule", [r for r in registry().rules if r.examples], ids=lambda rule: rule.code)
def test_examples_hold_in_every_context(rule: Rule) -> None:
    check_contexts(rule)


def reveal(proto: ModelProto) -> ModelProto:
    """A model of ``contexts`` with unknown operators as Identity, and with the If's first branch as the other, too."""
    copy = ModelProto.FromString(proto.SerializeToString())
    for node in walk.model_nodes(copy):
        if (node.domain, node.op_type) == (contexts.DOMAIN, contexts.OPAQUE):
            node.domain, node.op_type = "", "Identity"
        elif node.op_type == "If" and node.input[0] == f"condition_{contexts.MARK}":
            node.attribute[1].g.CopyFrom(node.attribute[0].g)
    return copy


def find_obstacles(rule: Rule, example: Example) -> dict[str, str]:
    """Why an example's fix is not proven for all values (empty: it is), by the place in which the rule applies it."""
    proto, found = model_of(example), {}
    around = {"": proto, "in a branch": contexts.in_branch(proto, captured=True)}
    around["in a function"] = contexts.in_function(proto)
    for place, model in around.items():
        result, run = fixed([rule], model, safety=example.safety, target=example.target)
        if run.applied:
            found[place] = find_obstacle(reveal(model), reveal(result))
    return found


@pytest.mark.corpus(every=4)
@pytest.mark.parametrize("rule", FIXING, ids=lambda rule: rule.code)
def test_the_table_of_proofs_lists_what_is_not_proven(rule: Rule) -> None:
    for example in rule.examples:
        if example.after is not None and example.safety != Safety.UNSAFE:
            obstacles = find_obstacles(rule, example)
            elsewhere = example.safety == Safety.EXACT and not obstacles[""]
            for place in obstacles if elsewhere else [""]:
                listed, obstacle = is_undecided(rule, example, place), obstacles[place]
                assert bool(obstacle) == listed, (
                    f"{rule.code} ({example.why}), {place}: {obstacle}; see {NAME}"
                )
    tables = (*PROOFS["undecided"].values(), PROOFS["exact"])
    names = {
        re.sub("^in a (branch|function): ", "", name) for codes in tables for name in codes.get(rule.code, ())
    }
    assert names <= {"*", *(example.why for example in rule.examples)}


def test_a_page_says_on_how_many_examples_the_fix_is_proven() -> None:
    rows = {row["code"]: row["proof"] for row in json.loads(rules_json(FIXING))}
    assert (
        rows.keys()
        >= {code for codes in PROOFS["undecided"].values() for code in codes} | PROOFS["exact"].keys()
    )
    for code, form in {
        "GRA001": r"proven for all values on (\d+) of \1 examples",
        "GRA007": r"proven for all values on 0 of 2 examples",
        "PRC004": rf"exact in {len(PROOFS['exact']['PRC004'])} of \d examples",
        "BRC001": r"proven for all values on (\d+) of \1 exact examples; exact in 1 of 1 numeric ones",
    }.items():
        assert re.fullmatch(form, rows[code])
        assert f"\n\nProof: {rows[code]}.\n\n" in rule_markdown(registry().get(code))


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
