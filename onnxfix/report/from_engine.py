"""The rule engine's results as records of a report."""

from __future__ import annotations

from onnxfix.engine import Applied, Found
from onnxfix.packs import BUILT_IN
from onnxfix.report.report import AppliedFix, Finding
from onnxfix.rule import Rule

_PAGES = "docs/rules"


def finding_of(found: Found) -> Finding:
    """A match of the rule engine as a finding."""
    fix = found.match.fix
    return Finding(
        code=found.rule.code,
        name=found.rule.name,
        severity=found.severity.name.lower(),
        place=found.match.place,
        message=found.match.message,
        fix=fix.title if fix else "",
        safety=fix.safety.name.lower() if fix else "",
        rule_url=_page(found.rule),
    )


def applied_of(applied: Applied, rule: Rule) -> AppliedFix:
    """An applied fix of the rule engine as a record."""
    key = applied.key
    return AppliedFix(
        code=key.code,
        name=rule.name,
        severity=applied.severity.name.lower(),
        place=key.place,
        message=applied.message,
        fix=applied.title,
        safety=applied.safety.name.lower(),
        round=applied.round,
        rule_url=_page(rule),
    )


def _page(rule: Rule) -> str:
    return f"{_PAGES}/{rule.code}.md" if rule.module.split(".")[0] == BUILT_IN else ""
