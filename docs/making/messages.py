"""The index of rules by the messages of TensorRT and ONNX Runtime that their pages quote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from making.facts import Facts, fixes
from making.tables import cell, code
from onnxfix.report.catalogue import quotes_of
from onnxfix.rule import Rule

_HEAD = """\
# Rules by message

TensorRT's parser and builder, NVIDIA's tools and ONNX Runtime say these, and the rule beside each explains the cause.
Search the page for a part of your message without names, numbers and shapes, which vary, or run
`onnxfix explain --search "..."`. `onnxfix check MODEL` names the node. `check --trt` lists what the installed TensorRT
says about your model, each message at its node and with its rule. *Fix* is as in [the list of rules](README.md): exact
fixes are on by default.
"""


def messages_page(rules: Sequence[Rule], facts: Mapping[str, Facts]) -> str:
    """The page, with the messages in alphabetical order."""
    lines = [_HEAD, "| message | rule | what it is about | fix |", "|---|---|---|---|"]
    for message, those in sorted(_by_message(rules).items(), key=lambda item: _order(item[0])):
        codes = "<br>".join(f"[{rule.code}]({rule.code}.md)" for rule in those)
        summaries = "<br>".join(cell(rule.summary) for rule in those)
        remedies = "<br>".join(fixes(facts[rule.code]) for rule in those)
        lines.append(f"| {code(message)} | {codes} | {summaries} | {remedies} |")
    return "\n".join(lines) + "\n"


def _by_message(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule, message in _said(rules):
        those = found.setdefault(message, [])
        if rule not in those:
            those.append(rule)
    return found


def _said(rules: Sequence[Rule]) -> Iterator[tuple[Rule, str]]:
    for rule in rules:
        for message in quotes_of(rule):
            yield rule, message


def _order(message: str) -> str:
    return "".join(letter for letter in message.lower() if letter.isalnum())
