"""What TensorRT did: builds, imported layers, how it reads the model, engines and their latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onnxfix.report.render.proof import LAUNCHES, milliseconds
from onnxfix.report.render.sections import ui
from onnxfix.report.render.sections.changes import change_tables
from onnxfix.report.render.words import counted
from onnxfix.report.report import Report
from onnxfix.report.summary import Change
from onnxfix.trt.reading import Reading
from onnxfix.trt.records import TrtBuild
from onnxfix.trt.timing import Latency
from onnxfix.verification.verdict import Executed

_MESSAGES = 200
"""Messages of TensorRT's that are listed of one build."""


def tensorrt_section(report: Report) -> ui.Section | None:
    """Everything of TensorRT's; None where it did not run."""
    checks = report.verdict.rungs if report.verdict is not None else ()
    latency = next((one.latency for one in checks if one.latency), None)
    blocks = (
        *_builds(report.builds),
        *_layers(report.builds),
        *_networks(report.networks),
        *_executed(report.executed),
        *_latency(latency),
    )
    return ui.Section("tensorrt", "TensorRT", blocks) if blocks else None


def _sides(count: int) -> tuple[str, ...]:
    return ("original", "new") if count > 1 else ("model",)


def _builds(builds: Sequence[TrtBuild]) -> Iterator[ui.Block]:
    if not builds:
        return
    rows = tuple(
        (
            name,
            ui.Chip("good" if one.accepted else "bad" if one.judged else "none", one.result),
            one.layer_count,
            ui.seconds(one.parse_seconds),
            ui.seconds(one.build_seconds) if one.build_seconds else ui.DASH,
            ui.binary_size(one.engine_bytes) if one.engine_bytes else ui.DASH,
            len(one.warnings),
        )
        for name, one in zip(_sides(len(builds)), builds, strict=False)
    )
    last = builds[-1]
    who = f"{last.package} {last.version}, compute capability {last.compute_capability or '?'}"
    head = ("Build", "Result", "#Layers", "#Parsing", "#Building", "#Engine", "#Warnings")
    yield ui.Table(head, rows, who)
    for name, one in zip(_sides(len(builds)), builds, strict=False):
        issues = (*one.errors, *one.warnings)
        entries = [
            (
                ui.Chip("bad" if issue.severity == "error" else "warn", issue.severity),
                f" {issue}{f' ({issue.count} times)' if issue.count > 1 else ''}",
            )
            for issue in issues[:_MESSAGES]
        ]
        if entries:
            title = f"TensorRT's messages on the {name}: {counted(len(issues), 'message')}"
            yield ui.Fold(title, (ui.Items(entries),), open=bool(one.errors))


def _layers(builds: Sequence[TrtBuild]) -> Iterator[ui.Block]:
    """Imported layers by kind."""
    if not builds or not builds[-1].layers:
        return
    before, after = Counter(dict(builds[0].layers)), Counter(dict(builds[-1].layers))
    items = [Change(name, before[name], after[name]) for name in dict.fromkeys((*before, *after))]
    total = Change("all layers", before.total(), after.total())
    yield ui.Paragraph("Imported layers", "heading")
    yield from change_tables(items, [total], "Layers of TensorRT's network by kind", "Layer")


def _networks(networks: Sequence[Reading]) -> Iterator[ui.Block]:
    if not networks:
        return
    kinds = {"agrees": "good", "differs": "bad", "refused": "bad"}
    yield ui.Paragraph("Imported network, compared with the model", "heading")
    yield ui.given(
        [
            (
                name,
                [
                    ui.Chip(kinds.get(one.status, "none"), one.status),
                    " ",
                    one.reason or (str(one.grave[0]) if one.grave else ""),
                ],
            )
            for name, one in zip(_sides(len(networks)), networks, strict=False)
        ]
    )


def _executed(found: Executed | None) -> Iterator[ui.Block]:
    if found is None:
        return
    kinds = {"agree": "good", "repaired": "good", "alike": "warn", "unsteady": "warn", "wrong": "bad"}
    yield ui.Paragraph("Executed engines", "heading")
    yield ui.given(
        [
            ("Outcome", [ui.Chip(kinds[found.outcome], found.outcome), " ", found.reason]),
            ("GPU", f"{found.gpu}, compute capability {found.compute_capability}"),
            ("Precision of products", found.precision),
        ]
    )


def _latency(found: Latency | None) -> Iterator[ui.Block]:
    if found is None:
        return
    yield ui.Paragraph("Latency", "heading")
    if found.fixed is None:
        yield ui.Paragraph(f"Not measured: {found.reason}", "remark")
        return
    kinds = {"faster": "good", "slower": "warn", "same": "none", "": "none"}
    words = f" {found.ratio:.2f}× the original's time" if found.ratio is not None else " "
    how = f"{LAUNCHES.get(found.launch, '')}, noise {100 * (found.noise or 0.0):.1f} %"
    yield ui.Paragraph(
        [ui.Chip(kinds[found.comparison], found.comparison or "measured"), words, ui.small(how)]
    )
    sides = [("original", found.original), ("new", found.fixed)]
    timed = [(name, one) for name, one in sides if one is not None]
    most = max(one.p95_ms for _, one in timed)
    rows = tuple(
        (
            name,
            milliseconds(one.median_ms),
            f"{milliseconds(one.p5_ms)} to {milliseconds(one.p95_ms)}",
            ui.Spread(one.median_ms, one.p5_ms, one.p95_ms, most, "was" if name == "original" else "is"),
            f"{one.load_seconds:.2f} s",
            f"+{one.jit_seconds:.2f} s",
            one.runs,
        )
        for name, one in timed
    )
    head = ("Engine", "#Median", "#5 % to 95 %", "", "#Load", "#First run", "#Runs")
    yield ui.Table(head, rows, "Latency of the engines")
