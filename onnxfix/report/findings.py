"""Findings as records: those that are left, fixed, withdrawn, accepted and gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnxfix.place import Place


@dataclass(frozen=True)
class Finding:
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
class AppliedFix:
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
class Withdrawn:
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
    "confirmed", "on_engine",
)  # fmt: skip
"""The keys of a row."""


def row_of(status: str, one: Finding | AppliedFix | Withdrawn) -> dict[str, Any]:
    """A finding or a fix, with the fields of its place beside its own; "" for what it does not have. ``graph`` is the
    path of subgraphs and functions around the node, ``output`` the node's first output. The message of a withdrawn fix
    is why it was withdrawn."""
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
    return row | {name: getattr(one, name) for name in COLUMNS if hasattr(one, name)}
