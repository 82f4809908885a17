"""The list of rules by family."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence

from making.tables import cell
from onnxfix.report.catalogue import Facts
from onnxfix.report.render.rules import fixes
from onnxfix.rule import Rule

_HEAD = """\
# Rules by family

A code is a family and a number. `--select` and `--ignore` take both: `--select PRC,CST001`. The severity is the highest
for TensorRT 11, the default target, and – is nothing; [the table by target](README.md) has the others, with the
evidence. *Fix* is **exact** (on by default), **numeric** (`--numeric-fixes`) or **unsafe** (`--unsafe-fixes`). If you
have a message of TensorRT and no code, see [rules by message](messages.md).
"""
_TARGET = "trt11"


def family_of(rule: Rule) -> str:
    """``OPS`` for OPS010."""
    return rule.code.rstrip("0123456789")


def families_of(rules: Sequence[Rule]) -> dict[str, str]:
    """What each family is about, by the first line of its package: ``{"CTL": "Conditions, loops and sequences."}``.

    Raises:
        ValueError: a package does not begin with its family.
    """
    found = {}
    for rule in rules:
        package = ".".join(rule.module.split(".")[:2])
        family, colon, about = (
            (importlib.import_module(package).__doc__ or "").partition("\n")[0].partition(": ")
        )
        if not colon or family != family_of(rule):
            raise ValueError(f"the docstring of {package} does not begin with {family_of(rule)!r}")
        found[family] = about[:1].upper() + about[1:]
    return found


def families_page(rules: Sequence[Rule], facts: Mapping[str, Facts]) -> str:
    """The page."""
    families = families_of(rules)
    lines = [_HEAD, "| family | what it looks for | rules |", "|---|---|---:|"]
    for family, about in families.items():
        count = sum(family_of(rule) == family for rule in rules)
        lines.append(f"| [{family}](#{family.lower()}) | {cell(about)} | {count} |")
    for family, about in families.items():
        lines += [
            "",
            f"## {family}",
            "",
            about,
            "",
            "| code | what it finds | severity | fix |",
            "|---|---|---|---|",
        ]
        lines += [row for rule in rules if family_of(rule) == family for row in _row(rule, facts[rule.code])]
    return "\n".join(lines) + "\n"


def _row(rule: Rule, facts: Facts) -> Iterator[str]:
    found = facts.severities.get(_TARGET, ())
    severity = found[0].name.lower() if found else "–"
    off = "" if rule.default else " (off by default)"
    yield f"| [{rule.code}]({rule.code}.md) | {cell(rule.summary)}{off} | {severity} | {fixes(facts)} |"
