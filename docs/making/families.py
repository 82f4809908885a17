"""The list of rules by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from making.facts import Facts, fixes
from making.tables import cell
from onnxfix.report.catalogue import families
from onnxfix.rule import Rule

_HEAD = """\
# Rules by family

A code is a family and a number. `--select` and `--ignore` take both: `--select PRC,CST001`. The severity is the highest
for TensorRT 11, the default target, and – is nothing; [the table by target](README.md) has the others, with the
evidence. *Fix* is **exact** (on by default), **numeric** (`--numeric-fixes`) or **unsafe** (`--unsafe-fixes`). If you
have a message of TensorRT and no code, see [rules by message](messages.md).
"""
_TARGET = "trt11"


def families_page(rules: Sequence[Rule], facts: Mapping[str, Facts]) -> str:
    """The page."""
    groups = families(rules)
    if unnamed := [family.name for family in groups if not family.about]:
        raise ValueError(
            f"the docstrings of the packages of {', '.join(unnamed)} do not begin with the family"
        )
    lines = [_HEAD, "| family | what it looks for | rules |", "|---|---|---:|"]
    for name, about, members in groups:
        lines.append(f"| [{name}](#{name.lower()}) | {cell(about)} | {len(members)} |")
    for name, about, members in groups:
        head = ["| code | what it finds | severity | fix |", "|---|---|---|---|"]
        lines += ["", f"## {name}", "", about, "", *head]
        lines += [_row(rule, facts[rule.code]) for rule in members]
    return "\n".join(lines) + "\n"


def _row(rule: Rule, facts: Facts) -> str:
    found = facts.severities.get(_TARGET, ())
    severity = found[0].name.lower() if found else "–"
    off = "" if rule.default else " (off by default)"
    return f"| [{rule.code}]({rule.code}.md) | {cell(rule.summary)}{off} | {severity} | {fixes(facts)} |"
