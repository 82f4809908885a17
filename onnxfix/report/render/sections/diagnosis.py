"""The page of a diagnosis: which node, why, what to do; then errors along the model, outputs and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxfix._version import __version__
from onnxfix.diagnosis.records import Culprit, Diagnosis, Histogram, NodeError, OutputComparison
from onnxfix.report.render.diagnosis import (
    effort_of,
    facts_of,
    figures_of,
    node_name,
    outcome,
    own_of,
    where_of,
)
from onnxfix.report.render.sections import ui
from onnxfix.report.render.sections.checks import error_bars
from onnxfix.report.render.sections.report import version_pairs
from onnxfix.report.render.words import counted, share

_KINDS = {"agree": "good", "rounding": "good", "differ": "bad", "unexplained": "bad"}
_BINS = 12
"""Bins of a histogram of values; neighbors are joined."""
_OPEN = 3
"""Nodes to blame that are shown from the start."""
_OUTPUTS = 40
"""Outputs that are shown."""


def diagnosis_page(found: Diagnosis) -> ui.Page:
    """Everything that a diagnosis found."""
    if found.against in ("fp16", "bf16"):  # the other side's nodes are the same ones between Casts
        found = replace(
            found,
            culprits=tuple(replace(one, error=replace(one.error, nodes=())) for one in found.culprits),
            table=tuple(replace(one, nodes=()) for one in found.table),
        )
    head, _, rest = outcome(found).partition(": ")
    sections = (
        _culprits(found.culprits),
        _depths(found),
        _outputs(found.outputs),
        _beginnings(found.begins),
        _nodes(found.table),
        _markings(found),
        _kept(found.keep_fp32),
        _environment(found),
    )
    return ui.Page(
        found.path,
        found.other or found.against,
        ui.Chip(_KINDS.get(found.status, "warn"), head[:1].upper() + head[1:]),
        found.exit_code,
        tuple(_lead(found, rest)),
        sections=tuple(one for one in sections if one is not None),
    )


def _lead(found: Diagnosis, rest: str) -> Iterator[ui.Paragraph]:
    if rest:
        yield ui.Paragraph(rest, "proof")
    if found.status == "rounding" and found.tolerance is not None:
        tolerance = ui.command(f"{found.tolerance:.1g}")
        yield ui.Paragraph(["A tolerance of ", tolerance, " of each output's scale is right."])
    yield ui.Paragraph(f"{effort_of(found)}. Truth: {found.truth}.", "muted")
    yield from (ui.Paragraph(note, "remark") for note in found.notes)


def _culprits(found: Sequence[Culprit]) -> ui.Section | None:
    """The nodes that are to blame, worst first."""
    if not found:
        return None
    parts: list[ui.Block] = []
    for one in found:
        rule = [ui.command(f"onnxfix explain {one.rule}"), ui.small(one.fix)] if one.rule else None
        facts = ui.given(
            [
                ("Why", [ui.Chip("bad", one.cause), " ", one.reason]),
                ("What to do", one.advice),
                ("Rule", rule),
                ("Error", own_of(one.error)),
                ("Values", facts_of(one.error)),
            ]
        )
        parts.append(ui.Part(ui.name(where_of(one.error)), (facts,)))
    if len(parts) > _OPEN + 1:
        parts[_OPEN:] = [ui.Fold(f"{len(parts) - _OPEN} more", tuple(parts[_OPEN:]))]
    aside = counted(len(found), "node")
    return ui.Section("culprits", "Where it goes wrong", parts, aside, brief=True, folded=False)


def _depths(found: Diagnosis) -> ui.Section | None:
    """Errors along the model, and the numbers behind them."""
    if not found.depths:
        return None
    blamed = {one.error.place.output for one in found.culprits}
    points = tuple(
        ui.Point(
            one.number, one.own_error, one.output_error, f"{one.op_type} {one.output}", one.output in blamed
        )
        for one in found.depths
    )
    words = f"Errors along {counted(found.nodes, 'node')}, as shares of each tensor's scale"
    marks = [("dot whole", "error in the whole run"), ("dot own", "the node's own error")]
    marks += [("dot blame", "to blame")] if any(point.blamed for point in points) else []
    rows = tuple(
        (one.number, ui.name(one.output), one.op_type, share(one.own_error), share(one.output_error))
        for one in found.depths
    )
    table = ui.Table(("Node", "Output", "Operator", "#Own error", "#Error"), rows, words)
    blocks = (
        ui.Legend(marks),
        ui.Depths(points, found.nodes, words),
        ui.Fold("The numbers", (table,)),
    )
    return ui.Section("depth", "Error by depth", blocks, "share of each tensor's scale")


def _outputs(found: Sequence[OutputComparison]) -> ui.Section | None:
    if not found:
        return None
    ranked = sorted(found, key=lambda one: one.same)
    blocks: list[ui.Block] = [_output(one) for one in ranked[:_OUTPUTS]]
    if len(found) > _OUTPUTS:
        blocks.append(ui.Paragraph(f"and {counted(len(found) - _OUTPUTS, 'more output')}", "remark"))
    return ui.Section("outputs", "Outputs", blocks, brief=True, folded=False)


def _output(one: OutputComparison) -> ui.Part:
    shape = "" if one.shape is None else str(list(one.shape))
    heading = [ui.name(one.name), ui.small(f"{one.dtype}{shape}")]
    if one.same:
        return ui.Part(heading, (ui.Paragraph(ui.Chip("good", "identical")),))
    words = f"{one.differing:,} of {one.elements:,} elements differ"
    charts = (
        ("Absolute errors", tuple(error_bars([one.errors], 0, one.name))),
        ("Values: truth and other side", tuple(_value_bars(one.histogram, one.name))),
    )
    cards = ui.Cards(tuple((ui.strong(title), chart) for title, chart in charts if chart))
    return ui.Part(heading, (ui.Paragraph(ui.Chip("warn", words)), ui.Items(tuple(figures_of(one))), cards))


def _value_bars(found: Histogram | None, name: str) -> Iterator[ui.PairBars]:
    """The values of both sides between the same edges."""
    if found is None:
        return
    step = max(-(-len(found.truth) // _BINS), 1)
    truth, other = (
        [float(sum(side[at : at + step])) for at in range(0, len(side), step)]
        for side in (found.truth, found.other)
    )
    bars = tuple(zip(map(share, found.edges[::step]), truth, other, strict=False))
    yield ui.PairBars(bars, f"Values of {name} in the truth and on the other side, from {bars[0][0]} on")


def _beginnings(found: Sequence[NodeError]) -> ui.Section | None:
    if not found:
        return None
    head = ("Node", "#Error at its inputs", "#Error at its output")
    rows = tuple((_named(one), share(one.input_error), share(one.output_error)) for one in found)
    return ui.Section("begins", "Begins at", (ui.Table(head, rows, "The first nodes that differ"),))


def _named(one: NodeError) -> ui.Content:
    return [ui.name(" / ".join((*one.place.graph, node_name(one)))), ui.small(one.place.op_type)]


def _nodes(found: Sequence[NodeError]) -> ui.Section | None:
    if not found:
        return None
    figures = ("#Own error", "#Rounding", "#At inputs", "#At output", "#Amplified", "#Effect on outputs")
    rows = tuple((_named(one), *map(share, shares_of(one)), ui.small(facts_of(one))) for one in found)
    table = ui.Table(("Node", *figures, "Values"), rows, "Nodes with the largest own error")
    note = ui.Paragraph("Errors are shares of the output's scale, its largest magnitude.", "remark")
    return ui.Section("nodes", "Worst nodes", (table, note), brief=True)


def shares_of(one: NodeError) -> tuple[float | None, ...]:
    """The figures of a node, in the order of tables."""
    return one.own_error, one.noise, one.input_error, one.output_error, one.amplification, one.effect


def _markings(found: Diagnosis) -> ui.Section | None:
    if not found.markings:
        return None
    changed = {True: ui.Chip("good", "unchanged"), False: ui.Chip("warn", "changed")}
    rows = tuple((", ".join(one.tensors), changed[one.unchanged], one.reason) for one in found.markings)
    head = ("Tensors that became outputs", "The engine's own outputs", "Reason")
    table = ui.Table(head, rows, "Builds with inner tensors as outputs")
    return ui.Section("marked", "Marked builds", (table,))


def _kept(names: Sequence[str]) -> ui.Section | None:
    if not names:
        return None
    how = ui.Paragraph("--keep-fp32 FILE writes them.", "remark")
    return ui.Section("keep", "Keep in float32", (ui.Items(tuple(map(ui.command, names))), how))


def _environment(found: Diagnosis) -> ui.Section:
    pairs: list[tuple[str, ui.Content]] = [
        ("Command", "onnxfix diagnose"),
        ("Model", ui.name(found.path)),
        ("Against", ui.name(found.other or found.against)),
        ("Samples", str(found.samples)),
        *version_pairs({"onnxfix": __version__, **found.environment}),
    ]
    return ui.Section("environment", "Environment", (ui.given(pairs),))
