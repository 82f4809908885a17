"""Facts about a rule for the docs, computed so that they are never outdated.

Severities and safety come from running the rule's examples for every target, versions and evidence from its docstring.
This takes two seconds for a hundred rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxfix.errors import OnnxfixError
from onnxfix.rewrite.engine import Found
from onnxfix.rule import NO_MODEL, Example, Rule, Safety, Severity
from onnxfix.targets import TARGETS
from onnxfix.testing import findings, model_of


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
    severities: dict[str, tuple[Severity, ...]] = {}
    safeties: set[Safety] = set()
    unfixed = reported = rule.per in NO_MODEL  # findings of TensorRT or onnx.checker, without a fix
    for target in TARGETS:
        found = [item for example in flagged for item in _found(rule, example, target)]
        grave = {item.severity for item in found} or ({rule.severity} if reported else set())
        severities[target] = tuple(sorted(grave, reverse=True))
        safeties |= {item.match.fix.safety for item in found if item.match.fix is not None}
        unfixed |= any(item.match.fix is None for item in found)
    text = " ".join(rule.doc.split())
    return Facts(
        severities=severities,
        safeties=tuple(sorted(safeties)),
        unfixed=unfixed,
        found=len(flagged),
        silent=len(rule.examples) - len(flagged),
        versions=tuple(dict.fromkeys(_versions(text))),
        measured=bool(_MEASURED.search(text)),
        quote=next(iter(quotes_of(rule)), ""),
        links=_once(_links(text)),
    )


def _found(rule: Rule, example: Example, target: str) -> list[Found]:
    try:
        return findings(rule, model_of(example), target)
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


_QUOTE = re.compile(r"(?<!`)(`{1,2})(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_CODE = re.compile(r"→|^[\w.]+\(|^[^A-Za-z]|\*\*|=[^=]*=| [*/+@] ")
_WORD = re.compile(r"(?<!\S)[A-Za-z']{2,}[.,:;!]?(?!\S)")
_WORDS = 3


def quotes_of(rule: Rule) -> tuple[str, ...]:
    """The messages of TensorRT and ONNX Runtime that a rule's section "Why it matters" quotes, in one line each."""
    return tuple(_quotes(rule.doc.partition("## Why it matters")[2].partition("\n## ")[0]))


def _quotes(section: str) -> Iterator[str]:
    """Quoted texts of several words that are not code."""
    for _, quoted in _QUOTE.findall(section):
        line = " ".join(quoted.split())
        if len(_WORD.findall(line)) >= _WORDS and not _CODE.search(line):
            yield line


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
