"""A diagnosis: which node, why, what to do; then outputs, where it begins, and errors along the model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from importlib import metadata
from typing import Any

from onnxfix._version import __version__
from onnxfix.diagnosis.records import Culprit, Diagnosis, Histogram, NodeError, NonFinite, OutputComparison
from onnxfix.report.render import ui
from onnxfix.report.render.checks import error_bars
from onnxfix.report.render.lines import bound, cosine, counted, number, percent, places, share
from onnxfix.report.render.report import version_pairs
from onnxfix.report.report import plain

SCHEMA = 1
"""Version of the JSON; it increases when a field changes its meaning or is removed."""
MOST = 5
"""Outputs and nodes that a terminal shows without ``--verbose``."""
_OPEN = 3
"""Nodes to blame that are shown from the start."""
_OUTPUTS = 40
"""Outputs that a page shows."""
_BINS = 12
"""Bins of a histogram of values; neighbors are joined."""
_COMMAND = re.compile(r"onnxfix apply [^(;]*[^(; ]")
_KINDS = {"agree": "good", "rounding": "good", "differ": "bad", "unexplained": "bad"}
_LOW = ("fp16", "bf16")


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """The fields of ``Diagnosis`` as plain dicts, lists, strings, numbers and None, with ``schema``, ``exit_code`` and
    ``versions`` before them. Nodes (``culprits``, ``begins``, ``table``) have ``node``, ``op_type`` and ``output`` at
    their top. Numbers that are not finite are the strings "inf", "-inf" and "nan"."""
    versions = {"onnxfix": __version__, "onnx": metadata.version("onnx"), **diagnosis.environment}
    data = {"schema": SCHEMA, "exit_code": diagnosis.exit_code, "versions": versions}
    data.update({one.name: plain(getattr(diagnosis, one.name)) for one in fields(diagnosis)})
    data["outputs"] = [{**plain(one), "same": one.same} for one in diagnosis.outputs]
    data["culprits"] = [_culprit_data(one) for one in diagnosis.culprits]
    data["begins"] = [_node_data(one) for one in diagnosis.begins]
    data["table"] = [_node_data(one) for one in diagnosis.table]
    del data["environment"]
    return data


def _node_data(node: NodeError) -> dict[str, Any]:
    names = {"node": node_name(node), "op_type": node.place.op_type, "output": node.place.output}
    return {**names, **plain(node), "amplification": plain(node.amplification)}


def _culprit_data(culprit: Culprit) -> dict[str, Any]:
    error = _node_data(culprit.error)
    own = {key: value for key, value in plain(culprit).items() if key != "error"}
    first = {key: error.pop(key) for key in ("node", "op_type", "output", "own_error")}
    return {**first, **own, **error}


def diagnosis_page(diagnosis: Diagnosis) -> ui.Page:
    """Everything that a diagnosis found."""
    sections = (
        _culprits(diagnosis),
        _depths(diagnosis),
        _outputs(diagnosis.outputs),
        _beginnings(diagnosis.begins),
        _nodes(diagnosis),
        _markings(diagnosis),
        *_lists(diagnosis),
        _environment(diagnosis),
    )
    return ui.Page(
        diagnosis.path,
        diagnosis.other or diagnosis.against,
        ui.Chip(_KINDS.get(diagnosis.status, "warn"), _outcome(diagnosis)),
        diagnosis.exit_code,
        sections=[section for section in sections if section is not None],
    )


def _outcome(diagnosis: Diagnosis) -> str:
    """The status in a few words."""
    texts = {
        "agree": "agrees: every output is bit-identical",
        "rounding": "agrees up to rounding",
        "differ": "differs",
        "unexplained": f"differs: {diagnosis.reason}",
    }
    text = texts.get(diagnosis.status, f"could not be found out: {diagnosis.reason}")
    if diagnosis.status == "differ" and diagnosis.culprits:
        first, more = diagnosis.culprits[0], len(diagnosis.culprits) - 1
        text = f"differs: {node_name(first.error)} ({first.cause}){f' and {more} more' if more else ''}"
    return text if diagnosis.complete else f"{text} (interrupted; this was found until then)"


def _culprits(diagnosis: Diagnosis) -> ui.Section | None:
    """The nodes that are to blame, worst first: which, why, and what to do."""
    blocks: list[ui.Block] = [
        _culprit(one, _without_casts(one.error, diagnosis)) for one in diagnosis.culprits
    ]
    if len(blocks) > _OPEN + 1:
        blocks[_OPEN:] = [
            ui.Fold(f"… and {len(blocks) - _OPEN} more nodes", tuple(blocks[_OPEN:]), True, "always")
        ]
    if diagnosis.status == "rounding" and diagnosis.tolerance is not None:
        text = f"nothing: a tolerance of {number(diagnosis.tolerance)} of each output's scale is right"
        blocks.append(ui.facts([("do", text)]))
    aside = counted(len(diagnosis.culprits), "node") if diagnosis.culprits else None
    title = "Where it goes wrong" if diagnosis.culprits else "What to do"
    return ui.Section("culprits", title, blocks, aside, brief=True, folded=False) if blocks else None


def _culprit(culprit: Culprit, node: NodeError) -> ui.Part:
    advice: list[ui.Content] = []
    end = 0
    for match in _COMMAND.finditer(culprit.advice):
        advice += [culprit.advice[end : match.start()], ui.command(match[0])]
        end = match.end()
    advice += [culprit.advice[end:]] if culprit.advice else []
    rule = [ui.command(f"onnxfix explain {culprit.rule}"), ui.small(culprit.fix)] if culprit.rule else None
    pairs: list[tuple[str, ui.Content]] = [
        ("node", [ui.strong(_where(node)), f": {_own(node)}"]),
        ("why", culprit.reason),
        ("do", advice),
        ("cause", ui.Chip("bad", culprit.cause)),
        ("rule", rule),
        ("values", _facts(node)),
    ]
    return ui.Part(None, (ui.facts(pairs, brief=3),))


def _depths(diagnosis: Diagnosis) -> ui.Section | None:
    """Errors along the model, and the numbers behind them."""
    if not diagnosis.depths:
        return None
    blamed = {one.error.place.output for one in diagnosis.culprits}
    words = f"Errors along {counted(diagnosis.nodes, 'node')}, as shares of each tensor's scale"
    rows = [
        (one.number, ui.name(one.output), one.op_type, share(one.own_error), share(one.output_error))
        for one in diagnosis.depths
    ]
    table = ui.Table(("Node", "Output", "Operator", "#Own error", "#Error"), rows, words)
    chart = ui.Depths(diagnosis.depths, diagnosis.nodes, blamed, words)
    blocks = (chart, ui.Fold("The numbers", (table,)))
    return ui.Section("depth", "Error by depth", blocks, "share of each tensor's scale", shown="never")


def _beginnings(nodes: Sequence[NodeError]) -> ui.Section | None:
    entries = []
    for node in nodes:
        before = f", {share(node.input_error)} at its inputs" if node.input_error is not None else ""
        entries.append(f"{_where(node)}: error {_of_scale(node.output_error)}{before}")
    blocks = (ui.Items(entries, most=MOST, noun="node"),)
    return ui.Section("begins", "Begins at", blocks, titled=True) if entries else None


def _nodes(diagnosis: Diagnosis) -> ui.Section | None:
    rows: list[Sequence[ui.Content]] = []
    for node in diagnosis.table:
        name = [ui.strong(_name(node)), ui.small(f"({node.place.op_type or 'value'})")]
        errors = (
            node.own_error,
            node.noise,
            node.input_error,
            node.output_error,
            node.amplification,
            node.effect,
        )
        rows.append((name, *map(share, errors), ui.small(_facts(_without_casts(node, diagnosis)))))
    head = ("Node", "#Own", "#Rounding", "#In", "#Out", "#Amplified", "#Effect", "Values")
    table = ui.Table(head, rows, "Nodes with the largest own error", most=MOST, noun="node")
    note = ui.Paragraph("Errors are shares of the output's scale, its largest magnitude.", "remark")
    return ui.Section("nodes", "Worst nodes", (table, note), brief=True, titled=True) if rows else None


def _markings(diagnosis: Diagnosis) -> ui.Section | None:
    entries = []
    for mark in diagnosis.markings:
        change = "did not change" if mark.unchanged else "changed, so it is not believed"
        reason = f": {mark.reason}" if mark.reason else ""
        entries.append(f"{places(mark.tensors)}: the outputs {change}{reason} ({mark.seconds:.1f} s)")
    blocks = (ui.Items(entries),)
    return ui.Section("marked", "Marked builds", blocks, titled=True) if entries else None


def _lists(diagnosis: Diagnosis) -> Iterator[ui.Section]:
    """Nodes that should stay in float32, notes, and the effort."""
    if names := diagnosis.keep_fp32:
        more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
        text = f"in float32: {', '.join(names[:MOST])}{more} (--keep-fp32 FILE writes them)"
        every = [ui.Fold("All names", (ui.Items([*map(ui.name, names)]),))] if more else []
        yield ui.Section("keep", "Keep in float32", (ui.Items([text], "keep"), *every))
    yield from ui.listed("notes", "Notes", diagnosis.notes, "note")
    parts = [f"{diagnosis.compared} of {diagnosis.nodes} nodes compared"] if diagnosis.nodes else []
    parts += [counted(diagnosis.samples, "sample")] if diagnosis.samples else []
    parts += [f"{diagnosis.runs:.1f} runs of the model"] if diagnosis.runs else []
    truth = f". Truth: {diagnosis.truth}" if diagnosis.truth else ""
    text = f"{', '.join([*parts, f'{diagnosis.seconds:.1f} s'])}{truth}"
    effort = ui.Paragraph(text, "muted")
    yield ui.Section("effort", "Effort", (effort,), brief=True, folded=False)


def _environment(diagnosis: Diagnosis) -> ui.Section:
    pairs: list[tuple[str, ui.Content]] = [
        ("Command", "onnxfix diagnose"),
        ("Model", ui.name(diagnosis.path)),
        ("Against", ui.name(diagnosis.other or diagnosis.against)),
        *version_pairs({"onnxfix": __version__, **diagnosis.environment}),
    ]
    return ui.Section("environment", "Environment", (ui.facts(pairs),), shown="never")


def _outputs(outputs: Sequence[OutputComparison]) -> ui.Section | None:
    """The outputs, those that differ most first; a terminal shows few, and those that are identical only at the end."""
    if not outputs:
        return None
    ranked = sorted(outputs, key=_badness, reverse=True)  # stable: in the model's order where alike
    first = [one for one in ranked if not one.same][:MOST] or ranked[:1]
    rest = ranked[len(first) :]
    blocks: list[ui.Block] = [_output(one, one is first[0]) for one in first]
    if rest:
        same = sum(one.same for one in rest)
        which = "all identical" if same == len(rest) else f"{same} of them identical"
        hidden = counted(len(ranked) - _OUTPUTS, "more output") if len(ranked) > _OUTPUTS else ""
        shown = [_output(one) for one in rest[: _OUTPUTS - len(first)]]
        tail = [ui.Paragraph(f"and {hidden}", "remark")] if hidden else []
        title = f"… and {counted(len(rest), 'more output')}, {which}"
        blocks.append(ui.Fold(title, (*shown, *tail), True, "always"))
    return ui.Section("outputs", "Outputs", blocks, brief=True, folded=False, titled=True)


def _badness(output: OutputComparison) -> float:
    if output.same:
        return -1.0
    if output.differs or output.atol is None:
        return math.inf
    return output.max_abs / output.scale if output.scale else output.max_abs


def _output(output: OutputComparison, worst: bool = False) -> ui.Part:
    shape = "" if output.shape is None else f" [{', '.join(map(str, output.shape))}]"
    heading: list[ui.Content] = [ui.strong(output.name), f"  {output.dtype}{shape}  "]
    if output.same:
        return ui.Part([*heading, ui.Chip("good", "identical")], ())
    words = f"{output.differing:,} of {output.elements:,} elements differ"
    charts = (
        ("absolute errors", tuple(error_bars([output.errors], 0, output.name))),
        ("values: truth and other side", tuple(_value_bars(output.histogram, output.name))),
    )
    cards = [ui.Part(ui.strong(title), chart) for title, chart in charts if chart]
    return ui.Part([*heading, words], (ui.Items(tuple(_figures(output))), ui.Cards(cards, worst)))


def _figures(output: OutputComparison) -> Iterator[str]:
    """What was measured of an output that differs, line by line."""
    if output.differs:
        yield output.differs
    if output.errors is not None:
        rounding = f", rounding {number(output.noise)}" if output.noise else ""
        scale = f"  (scale {number(output.scale)}{rounding})"
        for what, kind, after in (("absolute error", "abs", scale), ("relative error", "rel", "")):
            figures = (
                f"{figure} {number(getattr(output, f'{figure}_{kind}'))}" for figure in ("max", "mean", "p99")
            )
            yield f"{what}  {'  '.join(figures)}{after}"
        similar = [f"cosine {cosine(output.cosine)}" if output.cosine is not None else ""]
        similar += [f"SNR {output.snr:.1f} dB" if output.snr is not None else ""]
        similar += [f"argmax agrees in {percent(output.argmax)} of rows" if output.argmax is not None else ""]
        if any(similar):
            yield ", ".join(filter(None, similar))
    if output.worst is not None and output.values is not None:
        sample = f" of sample {output.sample + 1}" if output.sample else ""
        truth, other = output.values
        yield f"worst at [{', '.join(map(str, output.worst))}]{sample}: {truth} in the truth, {other} on the other side"
    if output.truth_nonfinite != output.other_nonfinite or output.truth_nonfinite.first is not None:
        truth, other = _nonfinite(output.truth_nonfinite), _nonfinite(output.other_nonfinite)
        yield f"not finite: {truth} in the truth, {other} on the other side"
    limits = (("atol", output.atol), ("rtol", output.rtol))
    tolerances = [f"{name}={bound(value)}" for name, value in limits if value]
    if tolerances:
        yield f"passes with {' or '.join(tolerances)} alone"
    elif output.atol is None:
        yield "passes with no tolerance"


def _nonfinite(side: NonFinite) -> str:
    kinds = [f"{value:,} {name}" for name, value in (("NaN", side.nan), ("infinite", side.inf)) if value]
    first = f" from [{', '.join(map(str, side.first))}]" if side.first is not None else ""
    return f"{' and '.join(kinds) or 'none'}{first}"


def _value_bars(histogram: Histogram | None, name: str) -> Iterator[ui.Bars]:
    """The values of both sides between the same edges."""
    if histogram is None:
        return
    step = max(-(-len(histogram.truth) // _BINS), 1)
    truth, other = (
        [float(sum(side[at : at + step])) for at in range(0, len(side), step)]
        for side in (histogram.truth, histogram.other)
    )
    bars = tuple(zip(map(share, histogram.edges[::step]), truth, other, strict=False))
    yield ui.Bars(bars, f"Values of {name} in the truth and on the other side, from {bars[0][0]} on")


def node_name(node: NodeError) -> str:
    """A node's name, or that of its output where it has none."""
    return node.place.node or node.place.output or node.place.text


def _name(node: NodeError) -> str:
    return " / ".join((*node.place.graph, node_name(node)))


def _where(node: NodeError) -> str:
    """The node with its output, unless that has the node's name, or continues it as PyTorch's exporter does."""
    output = node.place.output
    named = f", output {output}" if output and not output.startswith(node_name(node)) else ""
    return f"{_name(node)} ({node.place.op_type or 'value'}{named})"


def _own(node: NodeError) -> str:
    if math.isfinite(node.own_error) or not node.nonfinite:
        return f"own error {_of_scale(node.own_error)}"
    return f"{node.nonfinite:,} element{'s are' if node.nonfinite > 1 else ' is'} finite on one side only"


def _of_scale(value: float | None) -> str:
    """An error that is not finite: values of another shape, not finite, or where the truth is all zeros."""
    return "beyond measure" if value == math.inf else f"{share(value)} of its scale"


def _facts(node: NodeError) -> str:
    """Type, shape, range of the true values, and what computes it on the other side."""
    facts = [f"{node.dtype} [{', '.join(map(str, node.shape))}]"] if node.dtype else []
    facts.append(f"{number(node.low)} to {number(node.high)}")
    if node.nonfinite:
        facts.append(f"{node.nonfinite:,} finite on one side only")
    if node.nodes not in ((), (node_name(node),)):
        facts.append(f"other side: {places(node.nodes)}")
    return ", ".join(facts)


def _without_casts(node: NodeError, diagnosis: Diagnosis) -> NodeError:
    """In half precision the other side's nodes are the same ones between Casts, which say nothing."""
    return replace(node, nodes=()) if diagnosis.against in _LOW else node
