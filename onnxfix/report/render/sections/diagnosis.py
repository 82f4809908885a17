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


def diagnosis_page(diagnosis: Diagnosis) -> ui.Page:
    """Everything that a diagnosis found."""
    if diagnosis.against in ("fp16", "bf16"):  # the other side's nodes are the same ones between Casts
        diagnosis = replace(
            diagnosis,
            culprits=tuple(replace(node, error=replace(node.error, nodes=())) for node in diagnosis.culprits),
            table=tuple(replace(node, nodes=()) for node in diagnosis.table),
        )
    head, _, rest = outcome(diagnosis).partition(": ")
    sections = (
        _culprits(diagnosis.culprits),
        _depths(diagnosis),
        _outputs(diagnosis.outputs),
        _beginnings(diagnosis.begins),
        _nodes(diagnosis.table),
        _markings(diagnosis),
        _kept(diagnosis.keep_fp32),
        _environment(diagnosis),
    )
    return ui.Page(
        diagnosis.path,
        diagnosis.other or diagnosis.against,
        ui.Chip(_KINDS.get(diagnosis.status, "warn"), head[:1].upper() + head[1:]),
        diagnosis.exit_code,
        tuple(_lead(diagnosis, rest)),
        sections=tuple(node for node in sections if node is not None),
    )


def _lead(diagnosis: Diagnosis, rest: str) -> Iterator[ui.Paragraph]:
    if rest:
        yield ui.Paragraph(rest, "proof")
    if diagnosis.status == "rounding" and diagnosis.tolerance is not None:
        tolerance = ui.command(f"{diagnosis.tolerance:.1g}")
        yield ui.Paragraph(["A tolerance of ", tolerance, " of each output's scale is right."])
    yield ui.Paragraph(f"{effort_of(diagnosis)}. Truth: {diagnosis.truth}.", "muted")
    yield from (ui.Paragraph(note, "remark") for note in diagnosis.notes)


def _culprits(culprits: Sequence[Culprit]) -> ui.Section | None:
    """The nodes that are to blame, worst first."""
    if not culprits:
        return None
    parts: list[ui.Block] = []
    for culprit in culprits:
        rule = (
            [ui.command(f"onnxfix explain {culprit.rule}"), ui.small(culprit.fix)] if culprit.rule else None
        )
        facts = ui.facts(
            [
                ("Why", [ui.Chip("bad", culprit.cause), ": ", culprit.reason]),
                ("What to do", culprit.advice),
                ("Rule", rule),
                ("Error", own_of(culprit.error)),
                ("Values", facts_of(culprit.error)),
            ]
        )
        parts.append(ui.Part(ui.name(where_of(culprit.error)), (facts,)))
    if len(parts) > _OPEN + 1:
        parts[_OPEN:] = [ui.Fold(f"{len(parts) - _OPEN} more", tuple(parts[_OPEN:]), brief=True)]
    aside = counted(len(culprits), "node")
    return ui.Section("culprits", "Where it goes wrong", parts, aside, brief=True, folded=False)


def _depths(diagnosis: Diagnosis) -> ui.Section | None:
    """Errors along the model, and the numbers behind them."""
    if not diagnosis.depths:
        return None
    blamed = {one.error.place.output for one in diagnosis.culprits}
    points = tuple(
        ui.Point(
            one.number, one.own_error, one.output_error, f"{one.op_type} {one.output}", one.output in blamed
        )
        for one in diagnosis.depths
    )
    words = f"Errors along {counted(diagnosis.nodes, 'node')}, as shares of each tensor's scale"
    marks = [("dot whole", "error in the whole run"), ("dot own", "the node's own error")]
    marks += [("dot blame", "to blame")] if any(point.blamed for point in points) else []
    rows = tuple(
        (one.number, ui.name(one.output), one.op_type, share(one.own_error), share(one.output_error))
        for one in diagnosis.depths
    )
    table = ui.Table(("Node", "Output", "Operator", "#Own error", "#Error"), rows, words)
    blocks = (
        ui.Legend(marks),
        ui.Depths(points, diagnosis.nodes, words),
        ui.Fold("The numbers", (table,)),
    )
    return ui.Section("depth", "Error by depth", blocks, "share of each tensor's scale")


def _outputs(outputs: Sequence[OutputComparison]) -> ui.Section | None:
    if not outputs:
        return None
    ranked = sorted(outputs, key=lambda output: output.same)
    blocks: list[ui.Block] = [_output(output) for output in ranked[:_OUTPUTS]]
    if len(outputs) > _OUTPUTS:
        blocks.append(ui.Paragraph(f"and {counted(len(outputs) - _OUTPUTS, 'more output')}", "remark"))
    return ui.Section("outputs", "Outputs", blocks, brief=True, folded=False)


def _output(output: OutputComparison) -> ui.Part:
    shape = "" if output.shape is None else str(list(output.shape))
    heading = [ui.name(output.name), ui.small(f"{output.dtype}{shape}")]
    if output.same:
        return ui.Part(heading, (ui.Paragraph(ui.Chip("good", "identical")),))
    words = f"{output.differing:,} of {output.elements:,} elements differ"
    charts = (
        ("Absolute errors", tuple(error_bars([output.errors], 0, output.name))),
        ("Values: truth and other side", tuple(_value_bars(output.histogram, output.name))),
    )
    cards = ui.Cards(tuple((ui.strong(title), chart) for title, chart in charts if chart))
    return ui.Part(
        heading, (ui.Paragraph(ui.Chip("warn", words)), ui.Items(tuple(figures_of(output))), cards)
    )


def _value_bars(histogram: Histogram | None, name: str) -> Iterator[ui.PairBars]:
    """The values of both sides between the same edges."""
    if histogram is None:
        return
    step = max(-(-len(histogram.truth) // _BINS), 1)
    truth, other = (
        [float(sum(side[at : at + step])) for at in range(0, len(side), step)]
        for side in (histogram.truth, histogram.other)
    )
    bars = tuple(zip(map(share, histogram.edges[::step]), truth, other, strict=False))
    yield ui.PairBars(bars, f"Values of {name} in the truth and on the other side, from {bars[0][0]} on")


def _beginnings(nodes: Sequence[NodeError]) -> ui.Section | None:
    if not nodes:
        return None
    head = ("Node", "#Error at its inputs", "#Error at its output")
    rows = tuple((_named(node), share(node.input_error), share(node.output_error)) for node in nodes)
    return ui.Section("begins", "Begins at", (ui.Table(head, rows, "The first nodes that differ"),))


def _named(node: NodeError) -> ui.Content:
    return [ui.name(" / ".join((*node.place.graph, node_name(node)))), ui.small(node.place.op_type)]


def _nodes(nodes: Sequence[NodeError]) -> ui.Section | None:
    if not nodes:
        return None
    figures = ("#Own error", "#Rounding", "#At inputs", "#At output", "#Amplified", "#Effect on outputs")
    rows = tuple((_named(node), *map(share, shares_of(node)), ui.small(facts_of(node))) for node in nodes)
    table = ui.Table(("Node", *figures, "Values"), rows, "Nodes with the largest own error")
    note = ui.Paragraph("Errors are shares of the output's scale, its largest magnitude.", "remark")
    return ui.Section("nodes", "Worst nodes", (table, note), brief=True)


def shares_of(node: NodeError) -> tuple[float | None, ...]:
    """The figures of a node, in the order of tables."""
    return node.own_error, node.noise, node.input_error, node.output_error, node.amplification, node.effect


def _markings(diagnosis: Diagnosis) -> ui.Section | None:
    if not diagnosis.markings:
        return None
    changed = {True: ui.Chip("good", "unchanged"), False: ui.Chip("warn", "changed")}
    rows = [
        (", ".join(marking.tensors), changed[marking.unchanged], marking.reason)
        for marking in diagnosis.markings
    ]
    head = ("Tensors that became outputs", "The engine's own outputs", "Reason")
    table = ui.Table(head, rows, "Builds with inner tensors as outputs")
    return ui.Section("marked", "Marked builds", (table,))


def _kept(names: Sequence[str]) -> ui.Section | None:
    if not names:
        return None
    how = ui.Paragraph("--keep-fp32 FILE writes them.", "remark")
    return ui.Section("keep", "Keep in float32", (ui.Items(tuple(map(ui.command, names))), how))


def _environment(diagnosis: Diagnosis) -> ui.Section:
    pairs: list[tuple[str, ui.Content]] = [
        ("Command", "onnxfix diagnose"),
        ("Model", ui.name(diagnosis.path)),
        ("Against", ui.name(diagnosis.other or diagnosis.against)),
        ("Samples", str(diagnosis.samples)),
        *version_pairs({"onnxfix": __version__, **diagnosis.environment}),
    ]
    return ui.Section("environment", "Environment", (ui.facts(pairs),))
