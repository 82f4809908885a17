"""The result of ``view`` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.report.render.lines import Line, labeled, line
from onnxfix.report.render.stream import as_json
from onnxfix.report.render.words import counted
from onnxfix.report.report import plain

if TYPE_CHECKING:
    from onnxfix.pipeline.viewing import View

MOST = 5
"""Places of other findings that are listed as text."""


def view_json(found: View) -> str:
    """One document: the record. In ASCII."""
    return as_json(plain(found))


def view_lines(found: View) -> Iterator[Line]:
    """What was written, the finding if it is about one, and where the rule finds more."""
    yield line(
        (found.path, "bold"),
        f"  {counted(found.nodes, 'node')} → {found.output}",
        hang=2,
    )
    finding = found.finding
    if finding is not None:
        yield labeled("finding", (finding.code, "bold"), f" {finding.name}", style="")
        place, message = finding.place.short, finding.message
        yield line("    ", (f"{place}:", "cyan"), f" {message}", hang=6)
    for other in found.others[:MOST]:
        yield labeled("--place", other.short, style="")
    if len(found.others) > MOST:
        yield labeled("", f"and {len(found.others) - MOST:,} more (onnxfix check lists them)")
    if found.complaint:
        yield labeled("checker", found.complaint, style="yellow")
