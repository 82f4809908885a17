"""Findings and fixes as flat rows, for tables of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxfix.report.report import AppliedFix, Finding, Withdrawn

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
