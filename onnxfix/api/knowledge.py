"""What onnxfix knows: its rules, and what this machine can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfix.api import keywords
from onnxfix.api.keywords import Names
from onnxfix.rewrite import packs as rule_packs

if TYPE_CHECKING:
    from onnxfix.rule import Rule
    from onnxfix.verbs.examination.records import Examination


class RuleList(tuple["Rule", ...]):
    """Rules. ``print`` shows them as the command line does, and a notebook as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        from onnxfix.report.render.rules import rules_lines  # lazy: start-up

        return "\n".join(line.plain for line in rules_lines(self))

    def __repr__(self) -> str:
        return f"RuleList({', '.join(rule.code for rule in self)})"

    def _repr_html_(self) -> str:
        from onnxfix.report.render.html.render import render_rules  # lazy: start-up

        return render_rules(self)


class RulePage(str):
    """A rule's page in Markdown, which a notebook lays out."""

    __slots__ = ()

    def _repr_markdown_(self) -> str:
        return str(self)


def rules(select: Names | None = None, *, search: str | None = None, packs: Names | None = None) -> RuleList:
    """The rules, by their codes, or those about something.

    Args:
        select: codes, code prefixes or names of those that are wanted (None: all, also those that are off by default).
        search: words, or a message that TensorRT printed: the rules that it is about, the best one first.
        packs: installed rule packs to load besides the built-in rules, as for ``check``.

    Raises:
        UsageError: a selector matches no rule, or a pack is not installed.
    """
    from onnxfix.rewrite.registry import registry  # lazy: start-up

    with rule_packs.chosen(keywords.names("packs", packs)):
        found = registry().matching(keywords.names("select", select))
    if search is None:
        return RuleList(found)
    from onnxfix.report import catalogue  # lazy: start-up, seldom used

    query = keywords.text("search", search, "INT64 weights")
    return RuleList(hit.rule for hit in catalogue.search(query, found))


def explain(rule: str | Rule, examples: int | None = 2) -> RulePage:
    """A rule's page in Markdown: what it finds, why that matters, how it is fixed, the evidence, examples.

    Args:
        rule: its code or name, or the rule itself.
        examples: how many to show at most (None: all).

    Raises:
        UsageError: there is no such rule.
    """
    from onnxfix.report.render.rules import rule_markdown  # lazy: start-up
    from onnxfix.rewrite.registry import registry  # lazy: start-up
    from onnxfix.rule import Rule  # lazy: start-up

    if isinstance(rule, str):
        rule = registry().get(rule)
    if not isinstance(rule, Rule):
        raise keywords.refused("rule", "a rule's code or name", rule)
    return RulePage(
        rule_markdown(rule, keywords.whole("examples", examples, 0) if examples is not None else None)
    )


def doctor() -> Examination:
    """Which checks this machine can run, why it cannot run the others, and how to enable them. Faults that it finds are
    results, never exceptions. Takes some seconds, since everything is tried in a process of its own."""
    from onnxfix.verbs.examination import examine  # lazy: start-up

    return examine()
