"""The list of rules and a rule's page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from onnxfix.rule import Example, Rule


def rules_lines(rules: Sequence[Rule]) -> Iterator[Text]:
    """One line a rule: code, name, severity, safety, summary."""
    width = max((len(rule.name) for rule in rules), default=0)
    for rule in rules:
        safety = rule.safety.name.lower() if rule.safety is not None else "detect"
        off = "" if rule.default else " (off by default)"
        severity = rule.severity.name.lower()
        yield Text.assemble(
            (rule.code, "bold"), f"  {rule.name:<{width}}  {severity:<8}{safety:<8}{rule.summary}{off}"
        )


def rules_json(rules: Sequence[Rule]) -> str:
    """The same as JSON, documentation included."""
    return json.dumps(
        [
            {
                "code": rule.code,
                "name": rule.name,
                "severity": rule.severity.name.lower(),
                "safety": rule.safety.name.lower() if rule.safety is not None else None,
                "default": rule.default,
                "summary": rule.summary,
                "documentation": rule.doc,
            }
            for rule in rules
        ],
        indent=2,
    )


def rule_markdown(rule: Rule) -> str:
    """The rule's page as Markdown: docstring, then the examples that its tests run."""
    safety = f"{rule.safety.name} fix" if rule.safety is not None else "detected only"
    off = "" if rule.default else ", off by default"
    parts = [f"# {rule.code} {rule.name}", f"{rule.severity.name.lower()}, {safety}{off}", rule.doc]
    shown = [example for example in rule.examples if isinstance(example.before, str)]
    if shown:
        parts.append("## Examples")
    parts += [_example(example) for example in shown]
    return "\n\n".join(parts) + "\n"


def _example(example: Example) -> str:
    before = f"```\n{str(example.before).strip()}\n```"
    if example.after is not None:
        return f"**{example.why}**\n\n{before}\n\nbecomes\n\n```\n{example.after.strip()}\n```"
    return f"**{example.why}** ({'found' if example.detect else 'left alone'})\n\n{before}"


def render_rule(target: Console, rule: Rule) -> None:
    """The page, laid out on a terminal and as plain Markdown elsewhere."""
    text = rule_markdown(rule)
    if target.is_terminal:
        target.print(Markdown(text), soft_wrap=False)
    else:
        target.print(Text(text), end="")
