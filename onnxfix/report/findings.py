"""Findings as records: those that are left, fixed, withdrawn, accepted and gone; and what identifies them.

A fingerprint identifies a finding from one run to the next, for baselines and for tools that track findings. It depends
on the rule and on the place by name: the graphs around it, the node, its first output, or TensorRT's layer. It does not
depend on positions, messages, severities or versions, so that it stands while other parts of the model, the target, or
the wording change. What is about no place, such as a warning of TensorRT's about the model as a whole, is told apart by
its message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from onnxfix.place import Place
from onnxfix.rewrite.packs import BUILT_IN
from onnxfix.source import Source

if TYPE_CHECKING:
    from onnxfix.rewrite.engine import Applied, Found
    from onnxfix.rule import Rule

SEVERITIES = ("error", "warning", "info")
"""The worst first."""
SAFETIES = ("exact", "numeric", "unsafe")
"""The safest first."""
OPTIONS = {"exact": "", "numeric": "--numeric-fixes", "unsafe": "--unsafe-fixes"}
"""The option of ``apply`` that fixes of a safety require."""
LENGTH = 32
"""Hexadecimal digits of a fingerprint."""
VERSION = 1
"""Increases when what goes into a fingerprint changes, so that old ones match nothing by accident."""


class AtPlace:
    """What is at a place of a model."""

    place: Place

    @property
    def source(self) -> Source | None:
        """The code that the node there comes from; None where the model does not say it."""
        return self.place.source


@dataclass(frozen=True)
class Finding(AtPlace):
    """A hazard at a place. ``fix`` and ``safety`` are empty if there is no fix.

    ``confirmed`` is TensorRT's own message about the same thing at the same place, "" if there is none. ``on_engine``:
    an engine of the model was executed, and was wrong because of this. ``pointer`` says which rule helps with a finding
    of TensorRT's. ``rule_url`` is the rule's page in onnxfix's repository, "" for the rule of another pack.
    """

    code: str
    name: str
    severity: str
    place: Place
    message: str
    fix: str = ""
    safety: str = ""
    confirmed: str = ""
    on_engine: bool = False
    pointer: str = ""
    rule_url: str = ""


@dataclass(frozen=True)
class AppliedFix(AtPlace):
    """A fix that is in the result. ``confirmed`` is TensorRT's message about the original at that place, or "".

    ``on_engine``: engines were executed; that of the original was wrong because of what this fix repairs, and that of
    the result is right.
    """

    code: str
    name: str
    severity: str
    place: Place
    message: str
    fix: str
    safety: str
    round: int
    confirmed: str = ""
    on_engine: bool = False
    rule_url: str = ""


@dataclass(frozen=True)
class Withdrawn(AtPlace):
    """A fix that was withdrawn because the model did not verify with it."""

    code: str
    place: Place
    fix: str
    reason: str


@dataclass(frozen=True)
class Suppressed:
    """A finding that does not fail the run. ``by`` is "configuration" or "baseline", ``origin`` the file that says so.

    ``reason`` is the user's; ``until`` the last day on which it holds, as ISO 8601 writes it, "" for good.
    """

    finding: Finding
    by: str
    reason: str = ""
    origin: str = ""
    until: str = ""


@dataclass(frozen=True)
class Vanished:
    """A known finding of a baseline that is no longer there. ``place`` is for people."""

    code: str
    place: str
    fingerprint: str
    origin: str = ""


COLUMNS = (
    "status", "code", "name", "severity", "graph", "node", "op_type", "output", "message", "fix", "safety",
    "confirmed", "on_engine", "source",
)  # fmt: skip
"""The keys of a row."""


def row_of(status: str, one: Finding | AppliedFix | Withdrawn) -> dict[str, Any]:
    """A finding or a fix, with the fields of its place beside its own; "" for what it does not have. ``graph`` is the
    path of subgraphs and functions around the node, ``output`` the node's first output, ``source`` the code that it
    comes from. The message of a withdrawn fix is why it was withdrawn."""
    place = one.place
    row = dict.fromkeys(COLUMNS, "") | {
        "status": status,
        "graph": " / ".join(place.graph),
        "node": place.node,
        "op_type": place.op_type,
        "output": place.output,
        "on_engine": False,
        "message": getattr(one, "reason", ""),
    }
    row |= {name: getattr(one, name) for name in COLUMNS if hasattr(one, name)}
    return row | {"source": place.source.text if place.source is not None else ""}


def required_option(safety: str) -> str:
    """The option that a fix of this safety requires, as the end of a sentence; "" for an exact fix."""
    return f", with {OPTIONS[safety]}" if OPTIONS.get(safety) else ""


# --------------------------------------------------------------------------------------- results of the rule engine


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
    return AppliedFix(
        code=applied.key.code,
        name=rule.name,
        severity=applied.severity.name.lower(),
        place=applied.key.place,
        message=applied.message,
        fix=applied.title,
        safety=applied.safety.name.lower(),
        round=applied.round,
        rule_url=_page(rule),
    )


def _page(rule: Rule) -> str:
    return f"docs/rules/{rule.code}.md" if rule.module.split(".")[0] == BUILT_IN else ""


# --------------------------------------------------------------------------------------------------- fingerprints


class Located(Protocol):
    """A finding, an applied fix, or anything else that a rule says about a place."""

    @property
    def code(self) -> str: ...

    @property
    def place(self) -> Place: ...


def fingerprints(findings: Iterable[Located], path: str = "") -> tuple[str, ...]:
    """The fingerprint of each finding of one model, in order; all differ.

    ``path`` names the model where several share one document; with "", they say nothing of the file. Several findings
    of a rule at one place are counted: the first keeps its fingerprint when another one comes after it.
    """
    import hashlib  # lazy: start-up (loads OpenSSL, which small runs do not need)

    seen: Counter[tuple[str, ...]] = Counter()
    digests = []
    for finding in findings:
        place = finding.place
        key = (
            path.replace("\\", "/"),
            finding.code,
            *(f"graph {name}" for name in place.graph),
            f"output {place.label}",
            f"node {'' if place.node == place.output else place.node}",
            f"layer {place.layer}",
            *(() if place.known else (f"message {getattr(finding, 'message', '')}",)),
        )
        # Lengths keep the parts apart, whatever is in a name; names may be no valid Unicode.
        text = "".join(f"{len(part)}:{part}" for part in (str(VERSION), *key, str(seen[key])))
        digests.append(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH])
        seen[key] += 1
    return tuple(digests)
