"""What TensorRT did: builds, imported layers, how it reads the model, engines and their latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onnxfix.report.render.details import build_lines, network_lines
from onnxfix.report.render.proof import latency_lines
from onnxfix.report.render.sections import ui
from onnxfix.report.render.sections.changes import change_tables
from onnxfix.report.report import Report
from onnxfix.report.summary import Change
from onnxfix.trt.records import TrtBuild
from onnxfix.verification.verdict import Executed

_LINES = 500
"""Lines about builds and networks, TensorRT's messages among them."""


def tensorrt_section(report: Report) -> ui.Section | None:
    """Everything of TensorRT's, in the words of the command line; None where it did not run."""
    checks = report.checks
    latency = [line for check in checks if check.latency is not None for line in latency_lines(check.latency)]
    parts = (
        ("Builds", [*build_lines(report.builds)]),
        ("Imported network, compared with the model", [*network_lines(report.networks)]),
        ("Latency", [line.plain.removeprefix("  ") for line in latency]),
    )
    blocks: list[ui.Block] = []
    for title, lines in parts:
        if len(lines) > _LINES:
            lines[_LINES:] = [f"… and {len(lines) - _LINES:,} more lines (-v lists them)"]
        if lines:
            blocks += [ui.Paragraph(title, "heading"), ui.Lines(lines)]
    blocks += [*_executed(report.executed), *_layers(report.builds)]
    return ui.Section("tensorrt", "TensorRT", blocks) if blocks else None


def _executed(executed: Executed | None) -> Iterator[ui.Block]:
    if executed is None:
        return
    kinds = {"agree": "good", "repaired": "good", "alike": "warn", "unsteady": "warn", "wrong": "bad"}
    yield ui.Paragraph("Executed engines", "heading")
    yield ui.facts(
        [
            ("Outcome", (ui.Chip(kinds[executed.outcome], executed.outcome), " ", executed.reason)),
            ("GPU", f"{executed.gpu}, compute capability {executed.compute_capability}"),
            ("Precision of products", executed.precision),
        ]
    )


def _layers(builds: Sequence[TrtBuild]) -> Iterator[ui.Block]:
    """Imported layers by kind."""
    if not builds or not builds[-1].layers:
        return
    before, after = Counter(dict(builds[0].layers)), Counter(dict(builds[-1].layers))
    items = [Change(name, before[name], after[name]) for name in dict.fromkeys((*before, *after))]
    total = Change("all layers", before.total(), after.total())
    yield ui.Paragraph("Imported layers", "heading")
    yield from change_tables(items, [total], "Layers of TensorRT's network by kind", "Layer")
