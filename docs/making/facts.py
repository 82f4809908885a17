"""Facts about rules, computed so that they are never outdated, and the table of all rules that is made of them.

Severities and safety come from running the rule's examples for every target, versions and evidence from its docstring.
This takes two seconds for a hundred rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from making.tables import cell
from onnxfix.errors import OnnxfixError
from onnxfix.report.catalogue import quotes_of
from onnxfix.rewrite.engine import Found, check
from onnxfix.rule import NO_MODEL, Example, Fix, Rule, Safety, Severity
from onnxfix.targets import TARGETS
from onnxfix.testing import model_of, overlay


@dataclass(frozen=True)
class Link:
    """A reference. ``url`` is empty for an issue of a repository without an owner in the text."""

    label: str
    url: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts about a rule.

    ``severities`` maps every target to the severities of its findings, the worst first; empty without findings.
    ``safeties`` are those of its fixes, the safest first; ``unfixed``: some findings have no fix. ``found`` and
    ``silent`` count examples. ``versions`` are the versions of TensorRT that the docstring names, ``quote`` is the
    first message of TensorRT or ONNX Runtime that it quotes.
    """

    severities: Mapping[str, tuple[Severity, ...]]
    safeties: tuple[Safety, ...]
    unfixed: bool
    found: int
    silent: int
    versions: tuple[str, ...]
    measured: bool
    quote: str
    links: tuple[Link, ...]


def facts_of(rule: Rule) -> Facts:
    """Run the rule's examples and read its docstring. Deterministic.

    Raises:
        OnnxfixError: an example is not a valid model, or the rule fails on it.
    """
    flagged = [example for example in rule.examples if example.found]
    reported = rule.per in NO_MODEL  # findings of TensorRT or onnx.checker, without a fix
    severities: dict[str, set[Severity]] = {name: {rule.severity} if reported else set() for name in TARGETS}
    fixes: list[Fix | None] = [None] if reported else []
    for target, found in (pair for example in flagged for pair in _found(rule, example)):
        severities[target].add(found.severity)
        fixes.append(found.match.fix)
    text = " ".join(rule.doc.split())
    return Facts(
        severities={name: tuple(sorted(found, reverse=True)) for name, found in severities.items()},
        safeties=tuple(sorted({fix.safety for fix in fixes if fix is not None})),
        unfixed=None in fixes,
        found=len(flagged),
        silent=len(rule.examples) - len(flagged),
        versions=tuple(dict.fromkeys(_versions(text))),
        measured=bool(_MEASURED.search(text)),
        quote=next(iter(quotes_of(rule)), ""),
        links=_once(_links(text)),
    )


def _found(rule: Rule, example: Example) -> list[tuple[str, Found]]:
    """What the rule finds in the example, with each target's name. The model is indexed once."""
    found = []
    try:
        model = overlay(model_of(example))
        for name, target in TARGETS.items():
            model.target = target
            found += [(name, one) for one in check(model, [rule])]
        return found
    except Exception as error:  # whatever a third party's rule raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise OnnxfixError(f"rule {rule.code}, example {example.why!r}: {reason}") from error


_MEASURED = re.compile(r"\bmeasured\b", re.IGNORECASE)
_VERSION = r"[1-9]\d*(?:\.(?:\d+|x))*"
_NAMED = re.compile(rf"TensorRT(-RTX)? ({_VERSION}(?: (?:and|to|or) {_VERSION})*)(?!\.?\d)")


def _versions(text: str) -> Iterator[str]:
    """``RTX 1.7.1`` and ``8.6 and 10.x`` from a text with TensorRT-RTX 1.7.1, TensorRT 8.6 and 10.x."""
    for product, versions in _NAMED.findall(text):
        yield f"RTX {versions}" if product else versions


_URL = re.compile(r"https?://[^\s)>,;]+[^\s)>,;:.\"]")
_ISSUE = re.compile(
    r"(?<![\w/.-])((?:[\w.-]+/)?[A-Za-z][\w.-]*)(?: (?:issues?|PRs?|pull requests?) #?| #)(\d+(?:(?:,| and) #?\d+\b)*)"
)


def _links(text: str) -> Iterator[Link]:
    """Issues, then pages, in the order of the text."""
    for repository, numbers in _ISSUE.findall(text):
        for number in re.findall(r"\d+", numbers):
            yield _issue(repository, number)
    for url in _URL.findall(text):
        issue = re.match(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)", url)
        yield _issue(issue[1], issue[2]) if issue else Link(_label(url), url)


def _once(links: Iterator[Link]) -> tuple[Link, ...]:
    """Each reference once, with its address if it has one."""
    named = {link.label: link for link in links}
    known = {label.partition("/")[2] for label, link in named.items() if link.url}
    return tuple(link for label, link in named.items() if link.url or label not in known)


def _issue(repository: str, number: str) -> Link:
    """GitHub redirects from an issue's address to the pull request with that number."""
    url = f"https://github.com/{repository}/issues/{number}" if "/" in repository else ""
    return Link(f"{repository} #{number}", url)


def _label(url: str) -> str:
    """``ONNX Trilu``, ``onnx-tensorrt operators.md``, or the site's name and the page's."""
    operator = re.search(r"onnx\.ai/onnx/operators/onnx__(\w+)\.html", url)
    if operator:
        return f"ONNX {operator[1]}"
    parts = url.partition("://")[2].rstrip("/").split("/")
    site = parts[2] if parts[0] == "github.com" and len(parts) > 3 else parts[0].removeprefix("www.")
    return f"{site} {parts[-1].removesuffix('.html')}" if len(parts) > 1 else site


def rules_markdown(rules: Sequence[Rule], facts: Sequence[Facts]) -> str:
    """The table of the docs, one row a rule, with links to pages beside it; ``facts`` in the order of ``rules``."""
    titles = ", ".join(f"`{target.name}` is {target.title}" for target in TARGETS.values())
    rows = "".join(f"{_row(rule, known)}\n" for rule, known in zip(rules, facts, strict=True))
    return f"# Rules\n\n{_LEGEND.format(titles=titles)}\n\n{_HEAD}\n{rows}"


_LEGEND = """\
Severities are what the rule finds in its own examples under each target, and – is nothing: {titles}.

Fixes are **exact** (the same bits; on by default), **numeric** (within tolerance; `--numeric-fixes`) or **unsafe**
(behavior or interface may change; `--unsafe-fixes`), as the examples show them; *none* is a finding without a fix.
Versions are those of TensorRT that the rule's page names. Evidence is the first message that the page quotes, whether
something was measured, and what it refers to."""
_COLUMNS = ("code", "name", *TARGETS, "fix", "versions", "evidence")
_HEAD = f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"
_QUOTED = 100
"""Characters of a message in the table; the page has all of it."""


def _row(rule: Rule, facts: Facts) -> str:
    """The rule's row of that table."""
    cells = (
        f"[{rule.code}]({rule.code}.md)",
        rule.name if rule.default else f"{rule.name} (off by default)",
        *(", ".join(grave.name.lower() for grave in facts.severities[name]) or "–" for name in TARGETS),
        fixes(facts),
        ", ".join(facts.versions) or "–",
        _evidence(facts) or "–",
    )
    return f"| {' | '.join(map(cell, cells))} |"


def fixes(facts: Facts) -> str:
    """``exact, unsafe or none``: the safety of a rule's fixes, the safest first."""
    names = ", ".join(safety.name.lower() for safety in facts.safeties)
    return f"{names} or none" if names and facts.unfixed else names or "none"


def _evidence(facts: Facts) -> str:
    quote = facts.quote if len(facts.quote) <= _QUOTED else facts.quote[: _QUOTED - 1].rstrip() + "…"
    marks = "``" if "`" in quote else "`"
    parts = [f"{marks}{quote}{marks}"] if quote else []
    if facts.measured:
        parts.append("measured")
    parts += [f"[{link.label}]({link.url})" if link.url else link.label for link in facts.links]
    return ", ".join(parts)
