"""A diagnosis as a page: which node, why, and what to do; then the error along the model, the outputs and the nodes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

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
from onnxfix.report.render.html.charts import pair_bars, power, svg
from onnxfix.report.render.html.environment import versions
from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.html.outputs import error_chart
from onnxfix.report.render.html.page import page
from onnxfix.report.render.html.parts import chip, code, facts, many, right, row, section, table
from onnxfix.report.render.numbers import number, share

_KINDS = {"agree": "good", "rounding": "good", "differ": "bad", "unexplained": "bad"}
_ROWS = 12
"""Bins of a histogram of values; neighbors are joined."""
_OPEN = 3
"""Nodes to blame that are shown from the start."""
_MOST = 40
"""Outputs that are shown."""


def render_diagnosis_html(found: Diagnosis) -> str:
    """One page on a diagnosis, which loads nothing from elsewhere."""
    if found.against in ("fp16", "bf16"):  # the other side's nodes are the same ones between Casts
        found = replace(
            found,
            culprits=tuple(replace(one, error=replace(one.error, nodes=())) for one in found.culprits),
            table=tuple(replace(one, nodes=()) for one in found.table),
        )
    title = f"{found.path} against {found.other or found.against}"
    body = [
        tag("h1", found.path, tag("small", f" against {found.other or found.against}")),
        _hero(found),
        _culprits(found.culprits),
        _depths(found),
        _outputs(found.outputs),
        _beginnings(found.begins),
        _nodes(found.table),
        _markings(found),
        _kept(found.keep_fp32),
        _environment(found),
    ]
    return page(f"{title} – onnxfix diagnose", tag("article", body, class_="model"), title)


def _hero(found: Diagnosis) -> Html:
    words = outcome(found)
    head, _, rest = words.partition(": ")
    return tag(
        "div",
        tag(
            "p",
            chip(_KINDS.get(found.status, "warn"), head.capitalize()),
            tag("span", f"exit code {found.exit_code}", class_="muted"),
            class_="outcome",
        ),
        tag("p", rest, class_="proof") if rest else None,
        tag("p", "A tolerance of ", code(f"{found.tolerance:.1g}"), " of each output's scale is right.")
        if found.status == "rounding" and found.tolerance is not None
        else None,
        tag("p", f"{effort_of(found)}. Truth: {found.truth}.", class_="muted"),
        [tag("p", note, class_="remark") for note in found.notes],
        class_=f"card hero {_KINDS.get(found.status, 'warn')}",
    )


def _culprits(found: Sequence[Culprit]) -> Content:
    """The nodes that are to blame, worst first."""
    if not found:
        return None
    entries = []
    for one in found:
        rule = [code(f"onnxfix explain {one.rule}"), tag("small", one.fix)] if one.rule else None
        pairs: list[tuple[str, Content]] = [
            ("Why", [chip("bad", one.cause), " ", one.reason]),
            ("What to do", one.advice),
            ("Rule", rule),
            ("Error", own_of(one.error)),
            ("Values", facts_of(one.error)),
        ]
        head = tag("h3", tag("span", where_of(one.error), class_="mono"))
        entries.append(tag("div", head, facts(pairs), class_="output"))
    rest = None
    if len(entries) > _OPEN + 1:
        rest = tag("details", tag("summary", f"{len(entries) - _OPEN} more"), entries[_OPEN:], class_="feeds")
        entries = entries[:_OPEN]
    return section("culprits", "Where it goes wrong", entries, rest, aside=many(len(found), "node"))


def _depths(found: Diagnosis) -> Content:
    """Errors along the model, and the numbers behind them."""
    if not found.depths:
        return None
    blamed = {one.error.place.output for one in found.culprits}
    marked = [one.number for one in found.depths if one.output in blamed]
    points = [
        Point(one.number, one.own_error, one.output_error, f"{one.op_type} {one.output}")
        for one in found.depths
    ]
    words = f"Errors along {many(found.nodes, 'node')}, as shares of each tensor's scale"
    legend = tag(
        "p",
        tag("span", tag("i", class_="dot whole"), "error in the whole run"),
        tag("span", tag("i", class_="dot own"), "the node's own error"),
        tag("span", tag("i", class_="dot blame"), "to blame") if marked else None,
        class_="legend",
    )
    rows = [
        row(
            one.number,
            tag("span", one.output, class_="mono"),
            one.op_type,
            right(share(one.own_error)),
            right(share(one.output_error)),
        )
        for one in found.depths
    ]
    numbers = tag(
        "details",
        tag("summary", "The numbers"),
        table(("Node", "Output", "Operator", "#Own error", "#Error"), rows, words),
        class_="feeds",
    )
    chart = tag("div", depth_chart(points, max(found.nodes, 1), marked, words), class_="scroll")
    return section("depth", "Error by depth", legend, chart, numbers, aside="share of each tensor's scale")


def _outputs(found: Sequence[OutputComparison]) -> Content:
    if not found:
        return None
    ranked = sorted(found, key=lambda one: one.same)
    more = (
        tag("p", f"and {many(len(found) - _MOST, 'more output')}", class_="remark")
        if len(found) > _MOST
        else None
    )
    return section("outputs", "Outputs", [_output(one) for one in ranked[:_MOST]], more)


def _output(one: OutputComparison) -> Html:
    shape = "" if one.shape is None else str(list(one.shape))
    head = tag("h3", tag("span", one.name, class_="mono"), tag("small", f"{one.dtype}{shape}"))
    if one.same:
        return tag("div", head, chip("good", "identical"), class_="output")
    words = f"{one.differing:,} of {one.elements:,} elements differ"
    figures = tag("ul", [tag("li", text) for text in figures_of(one)], class_="plain")
    charts = [
        _figure("Absolute errors", error_chart([one.errors], 0, one.name)),
        _figure("Values: truth and other side", _values(one.histogram, one.name)),
    ]
    return tag(
        "div",
        head,
        tag("p", chip("warn", words)),
        figures,
        tag("div", charts, class_="checks"),
        class_="output",
    )


def _figure(title: str, chart: Content) -> Content:
    return tag("figure", tag("figcaption", tag("b", title)), chart, class_="check") if chart else None


def _values(found: Histogram | None, name: str) -> Content:
    """The values of both sides between the same edges."""
    if found is None:
        return None
    step = max(-(-len(found.truth) // _ROWS), 1)
    truth, other = (_joined(side, step) for side in (found.truth, found.other))
    items = list(zip(map(share, found.edges[::step]), truth, other, strict=False))
    return pair_bars(items, f"Values of {name} in the truth and on the other side, from {items[0][0]} on")


def _joined(counts: Sequence[int], step: int) -> list[float]:
    return [float(sum(counts[at : at + step])) for at in range(0, len(counts), step)]


def _beginnings(found: Sequence[NodeError]) -> Content:
    if not found:
        return None
    head = ("Node", "#Error at its inputs", "#Error at its output")
    rows = [_named(one, right(share(one.input_error)), right(share(one.output_error))) for one in found]
    return section("begins", "Begins at", table(head, rows, "The first nodes that differ"))


def _named(one: NodeError, *cells: Content) -> Html:
    where = " / ".join((*one.place.graph, node_name(one)))
    return row([tag("span", where, class_="mono"), tag("small", one.place.op_type)], *cells)


def _nodes(found: Sequence[NodeError]) -> Content:
    if not found:
        return None
    head = (
        "Node",
        "#Own error",
        "#Rounding",
        "#At inputs",
        "#At output",
        "#Amplified",
        "#Effect on outputs",
        "Values",
    )
    rows = [_named(one, *map(right, map(share, _shares(one))), tag("small", facts_of(one))) for one in found]
    note = tag("p", "Errors are shares of the output's scale, its largest magnitude.", class_="remark")
    return section("nodes", "Worst nodes", table(head, rows, "Nodes with the largest own error"), note)


def _shares(one: NodeError) -> tuple[float | None, ...]:
    return one.own_error, one.noise, one.input_error, one.output_error, one.amplification, one.effect


def _markings(found: Diagnosis) -> Content:
    if not found.markings:
        return None
    words = {True: ("good", "unchanged"), False: ("warn", "changed")}
    rows = [row(", ".join(one.tensors), chip(*words[one.unchanged]), one.reason) for one in found.markings]
    head = ("Tensors that became outputs", "The engine's own outputs", "Reason")
    return section("marked", "Marked builds", table(head, rows, "Builds with inner tensors as outputs"))


def _kept(names: Sequence[str]) -> Content:
    if not names:
        return None
    entries = tag("ul", [tag("li", code(name)) for name in names], class_="plain")
    return section(
        "keep", "Keep in float32", entries, tag("p", "--keep-fp32 FILE writes them.", class_="remark")
    )


def _environment(found: Diagnosis) -> Content:
    pairs: list[tuple[str, Content]] = [
        ("Command", "onnxfix diagnose"),
        ("Model", tag("span", found.path, class_="mono")),
        ("Against", tag("span", found.other or found.against, class_="mono")),
        ("Samples", str(found.samples)),
        *versions({"onnxfix": __version__, **found.environment}),
    ]
    return section("environment", "Environment", facts(pairs))


# ---------------------------------------------------------------------------------- the error along the model


WIDTH, HEIGHT = 1060, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 58
_APART = 18
"""Pixels between the scale and the lines of 0 and infinity."""
_SMALLEST = 1e-12
"""Errors below this are drawn as this."""


class Point(NamedTuple):
    """A node by its number: its own error, the error at its output, and its name."""

    node: int
    own: float | None
    whole: float | None
    name: str


def depth_chart(points: Sequence[Point], total: int, blamed: Collection[int], label: str) -> Html:
    """The errors of nodes; ``label`` says what it is for those who do not see it.

    Args:
        points: in the order of computation.
        total: nodes of the model.
        blamed: numbers of the nodes that are to blame.
        label: what is shown.
    """
    scale = _Scale(points, total)
    blame = [_line(scale.x(one), _TOP - _APART, HEIGHT - _BOTTOM + _APART) for one in blamed]
    line = [f"{scale.x(one.node):.1f} {scale.y(one.whole):.1f}" for one in points if one.whole is not None]
    curve = tag("path", d=Html(f"M{'L'.join(line)}"), class_="whole") if len(line) > 1 else None
    parts = [*scale.marks(), *blame, *([curve] if curve else []), *_dots(points, scale, blamed)]
    return svg(WIDTH, HEIGHT, label, parts)


class _Scale:
    """Where nodes and errors are in the picture. 0 and infinity have lines of their own."""

    def __init__(self, points: Sequence[Point], total: int) -> None:
        every = [value for one in points for value in (one.own, one.whole) if value is not None]
        values = [max(value, _SMALLEST) for value in every if value and math.isfinite(value)]
        self.endless = not all(map(math.isfinite, every))
        self.low = math.floor(math.log10(min(values, default=1e-7)))
        self.high = max(math.ceil(math.log10(max(values, default=1.0))), self.low + 1)
        self.last = max(total - 1, 1)

    def x(self, node: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * node / self.last

    def y(self, value: float) -> float:
        if not value:
            return HEIGHT - _BOTTOM + _APART
        if not math.isfinite(value):
            return _TOP - _APART
        where = math.log10(min(max(value, 10.0**self.low), 10.0**self.high))
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (self.high - where) / (self.high - self.low)

    def marks(self) -> Iterator[Html]:
        """Lines and labels of both axes."""
        step = max(1, (self.high - self.low) // 6)
        for exponent in range(self.low, self.high + 1, step):
            yield from self._level(10.0**exponent, power(exponent), "grid")
        yield from self._level(0.0, "0", "grid apart")
        if self.endless:
            yield from self._level(math.inf, "∞", "grid apart")
        for quarter in range(5):
            at = self.last * quarter // 4
            yield tag("text", f"{at:,}", x=f"{self.x(at):.1f}", y=HEIGHT - 18, class_="tick")
        yield tag("text", "node, in the order of computation", x=WIDTH // 2, y=HEIGHT - 2, class_="tick")

    def _level(self, value: float, name: str, kind: str) -> Iterator[Html]:
        y = self.y(value)
        yield tag("path", d=f"M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}", class_=kind)
        yield tag("text", name, x=_LEFT - 8, y=f"{y + 4:.1f}", class_="tick end")


def _line(x: float, top: float, bottom: float) -> Html:
    return tag("path", d=f"M{x:.1f} {top}V{bottom}", class_="blame")


def _dots(points: Sequence[Point], scale: _Scale, blamed: Collection[int]) -> Iterator[Html]:
    for one in points:
        for value, kind, what in ((one.whole, "whole", "error"), (one.own, "own", "own error")):
            if value is not None:
                hover = tag("title", f"{one.name}: {what} {number(value)}")
                place = {"cx": f"{scale.x(one.node):.1f}", "cy": f"{scale.y(value):.1f}"}
                yield tag("circle", hover, r=3.5 if one.node in blamed else 2.2, class_=kind, **place)
