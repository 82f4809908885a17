"""The checks of a verification: what each of them found, how far each output is from the original's, what TensorRT did,
and what became of operators and layers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxfix.names import RUNGS
from onnxfix.report.render import ui
from onnxfix.report.render.details import (
    MEANINGS,
    build_lines,
    describe_exceptions,
    describe_outcome,
    network_lines,
)
from onnxfix.report.render.lines import counted, number, seconds
from onnxfix.report.render.proof import describe_left_out
from onnxfix.report.report import Report
from onnxfix.report.summary import Change, RungFact

if TYPE_CHECKING:
    from onnxfix.proof.compare.compare import Metrics
    from onnxfix.proof.compare.tolerance import ErrorHistogram
    from onnxfix.proof.verdict import FeedResult, RungResult

_FEEDS = 100
"""Inputs of one check that are listed."""
_OUTPUTS = 40
"""Outputs that are shown, and names of others."""
_LINES = 500
"""Lines about builds and networks, TensorRT's messages among them."""
_CHANGED = 6
"""Operators that a terminal lists."""
_AGREES = {"identical": "good", "within": "good", "different": "bad", "not counted": "none"}
_EXECUTED = {"agree": "good", "repaired": "good", "alike": "warn", "unsteady": "warn", "wrong": "bad"}


def check_section(report: Report) -> ui.Section | None:
    """Every check: its outcome, what was compared, the largest error, and why; None where none was requested."""
    if report.verdict is None:
        return None
    facts = {fact.name: fact for fact in report.summary.rungs}
    rows = [_check_row(report.check(name), facts.get(name), name) for name in RUNGS]
    head = ("Check", "Result", "Values", "#Feeds", "#Largest error", "#Time", "What was found")
    matrix = ui.Table(head, rows, "Checks, from the cheapest to the most informative", "matrix")
    feeds = [_feeds(check) for check in report.checks if check.feeds]
    required = report.verdict.required
    aside = f"required: {', '.join(required)}" if required else None
    return ui.Section("checks", "Checks", (matrix, *feeds), aside, brief=True)


def _check_row(check: RungResult | None, fact: RungFact | None, name: str) -> tuple[ui.Content, ...]:
    title = ui.name(name), ui.small(MEANINGS.get(name, ""))
    if check is None or fact is None:
        return (title, ui.NOT_REQUESTED, *[ui.DASH] * 4, "")
    values = error = ui.DASH
    if check.compares:  # TensorRT's network is compared with the model that it was imported from
        agreements = {"identical": "bit-identical", "within": f"within {fact.tolerance or 'tolerance'}"}
        different = any(feed.status == "different" for feed in check.feeds)
        values = "different" if different else agreements.get(fact.agreement, ui.DASH)
        from onnxfix.proof.compare.compare import largest  # lazy: start-up

        worst = largest(metric for feed in check.feeds for metric in feed.metrics)
        error = "0" if fact.agreement else ui.DASH
        if worst is not None and worst.max_abs:
            error = number(worst.max_abs)
    left_out = [f"left out: {describe_left_out(fact)}"] if fact.left_out else []
    notes = tuple(ui.Paragraph(note, "remark") for note in (*left_out, *check.notes))
    figures = values, fact.feeds or ui.DASH, error, seconds(check.seconds)
    return (title, describe_outcome(check), *figures, (check.reason, notes))


def _feeds(check: RungResult) -> ui.Fold:
    """The inputs that one check ran with."""
    shown = check.feeds[:_FEEDS]
    rows = [row for feed in shown for row in _feed_rows(feed)]
    for spared in check.left_out:
        cost = f"about {spared.seconds:,.1f} s"
        rows.append((spared.label, ui.Chip("none", "left out"), cost, *[ui.DASH] * 4))
    inputs = f"Inputs of {check.name}"
    head = (inputs, "Result", "Output", "#Differing", "#Largest error", "#Relative", "First difference")
    blocks: list[ui.Block] = [ui.Table(head, rows, f"Feeds of {check.name}")]
    if len(check.feeds) > len(shown):
        blocks.append(ui.Paragraph(f"and {counted(len(check.feeds) - len(shown), 'more feed')}", "remark"))
    blocks += [ui.Paragraph(text, "remark") for text in describe_exceptions(check)]
    title = f"{check.name}: {counted(len(check.feeds), 'feed')}", ui.small(f"seed {check.seed}")
    return ui.Fold(title, blocks)


def _feed_rows(feed: FeedResult) -> Iterator[tuple[ui.Content, ...]]:
    label: ui.Content = feed.label
    status: ui.Content = ui.Chip(_AGREES[feed.status], feed.status)
    if not feed.metrics:
        yield (label, status, feed.reason, *[ui.DASH] * 4)
    for metrics in feed.metrics:
        output = [ui.name(metrics.name), ui.small(metrics.reason or feed.reason)]
        differing = f"{metrics.mismatches:,} of {metrics.elements:,}" if metrics.elements else ui.DASH
        first: ui.Content = ui.DASH
        if metrics.at is not None and metrics.values is not None:
            first = ui.name(f"[{', '.join(map(str, metrics.at))}] {metrics.values[0]} → {metrics.values[1]}")
        errors = number(metrics.max_abs), number(metrics.relative)
        yield (label, status, output, differing, *errors, first)
        label = status = ""


def _by_output(report: Report) -> dict[str, dict[str, list[Metrics]]]:
    """Every output under every check that compared it with the original's."""
    by_output: dict[str, dict[str, list[Metrics]]] = {}
    for check in report.checks:
        for feed in check.feeds:
            for metric in feed.metrics if check.compares and feed.status != "not counted" else ():
                checks = by_output.setdefault(metric.output or metric.name, {})
                checks.setdefault(check.name, []).append(metric)
    return by_output


def worst_section(report: Report) -> ui.Section | None:
    """The output with the largest error, as a share of its scale, under the check that found it."""
    pairs = [(name, *pair) for name, checks in _by_output(report).items() for pair in checks.items()]
    apart = [pair for pair in pairs if not _same(pair[2])]
    if not apart:
        return None
    name, check, metrics = max(apart, key=lambda pair: max(one.relative for one in pair[2]))
    title = f"Absolute errors of {name}, the output with the largest"
    return ui.Section("worst", title, (_card(name, check, metrics),), titled=True)


def output_section(report: Report) -> ui.Section | None:
    """Every output under every check that compared it with the original's."""
    by_output = _by_output(report)
    if not by_output:
        return None
    same = [name for name, checks in by_output.items() if all(map(_same, checks.values()))]
    apart = [(name, checks) for name, checks in by_output.items() if name not in same]
    blocks: list[ui.Block] = [_output(name, checks) for name, checks in apart[:_OUTPUTS]]
    if len(apart) > _OUTPUTS:
        blocks.append(ui.Paragraph(f"and {counted(len(apart) - _OUTPUTS, 'more output')}", "remark"))
    if same:
        more = f" and {len(same) - _OUTPUTS:,} more" if len(same) > _OUTPUTS else ""
        words = f"{counted(len(same), 'output')} bit-identical in every check"
        names = ui.name(", ".join(same[:_OUTPUTS]) + more)
        blocks.append(ui.Part(None, (ui.Paragraph(ui.Chip("good", words)), ui.Paragraph(names))))
    aside = "absolute errors against the original, over all feeds"
    return ui.Section("outputs", "Outputs", blocks, aside)


def _same(metrics: Sequence[Metrics]) -> bool:
    """Whether an output is bit-identical under a check, on every feed."""
    return not any(metric.mismatches or metric.agreement == "different" for metric in metrics)


def _output(name: str, checks: Mapping[str, Sequence[Metrics]]) -> ui.Part:
    first = next(iter(checks.values()))[0]
    kind = f"{first.dtype}{list(first.shape) if first.shape is not None else ''}"
    cards = [_card(name, check, metrics) for check, metrics in checks.items()]
    return ui.Part([ui.name(name), ui.small(kind)], (ui.Cards(cards),))


def _card(output: str, check: str, metrics: Sequence[Metrics]) -> ui.Part:
    """The errors of an output under one check."""
    elements, off = sum(metric.elements for metric in metrics), sum(metric.mismatches for metric in metrics)
    if _same(metrics):
        words = f"bit-identical in all {counted(elements, 'element')}"
        return ui.Part(ui.strong(check), (ui.Paragraph(ui.Chip("good", words)),))
    worst = max(metrics, key=lambda metric: metric.max_abs)
    wrong = any(metric.agreement == "different" for metric in metrics)
    chip = ui.Chip("bad", "different") if wrong else ui.Chip("good", "within tolerance")
    figures = ui.facts(
        [
            ("Differing", f"{off:,} of {elements:,} elements"),
            ("Largest error", f"{number(worst.max_abs)} (scale {number(worst.scale)})"),
            ("Largest relative", number(max(metric.max_rel for metric in metrics))),
            ("Out of tolerance, excused", ", ".join(_excused(metrics))),
            ("Why", next((metric.reason for metric in metrics if metric.reason), "")),
        ]
    )
    # An output that is identical as a whole has no histogram.
    identical = (one for one in metrics if one.errors is None and one.agreement == "identical")
    equal = sum(metric.elements for metric in identical)
    bars = error_bars([metric.errors for metric in metrics], equal, f"{output}, {check}")
    return ui.Part([ui.strong(check), " ", chip], (figures, *bars))


def _excused(metrics: Sequence[Metrics]) -> Iterator[str]:
    """Elements that agree with the original by other measures than its own values."""
    twin, noise = sum(metric.by_twin for metric in metrics), sum(metric.by_noise for metric in metrics)
    if twin:
        yield f"{twin:,} agree with the original in higher precision"
    if noise:
        yield f"{noise:,} differ no more than the original from itself in float64"


def error_bars(histograms: Iterable[ErrorHistogram | None], equal: int, name: str) -> Iterator[ui.Bars]:
    """Several histograms of absolute errors as one, by powers of 10; nothing where there is no error."""
    zeros = float(equal)
    counts: dict[int, float] = {}
    for histogram in histograms:
        if histogram is None:
            continue
        zeros += histogram.zeros * histogram.step
        for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
            if count:  # the first bin may be wide: what counts is its upper end
                exponent = round(math.log10(high)) - 1 if math.isfinite(high) else round(math.log10(low))
                counts[exponent] = counts.get(exponent, 0.0) + count * histogram.step
    if counts:
        bars = [("0", zeros)] if zeros else []
        bars += [(power(one), counts.get(one, 0.0)) for one in range(min(counts), max(counts) + 1)]
        words = ", ".join(f"{count:,.0f} {'equal' if low == '0' else f'from {low}'}" for low, count in bars)
        yield ui.Bars(bars, f"Absolute errors of {name}: {words}")


_DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(exponent: int) -> str:
    """A power of 10."""
    return f"10{str(exponent).translate(_DIGITS)}"


def tensorrt_section(report: Report) -> ui.Section | None:
    """Builds, imported layers, how TensorRT reads the model, and engines; None where it did not run."""
    parts = (
        ("Builds", [*build_lines(report.builds)]),
        ("Imported network, compared with the model", [*network_lines(report.networks)]),
    )
    blocks: list[ui.Block] = []
    for title, lines in parts:
        if len(lines) > _LINES:
            lines[_LINES:] = [f"… and {len(lines) - _LINES:,} more lines (--report r.json has all)"]
        if lines:
            blocks += [ui.Paragraph(title, "heading"), ui.Lines(lines)]
    if (ran := report.executed) is not None:
        facts = [
            ("Outcome", (ui.Chip(_EXECUTED[ran.outcome], ran.outcome), " ", ran.reason)),
            ("GPU", f"{ran.gpu}, compute capability {ran.compute_capability}"),
            ("Precision of products", ran.precision),
        ]
        blocks += [ui.Paragraph("Executed engines", "heading"), ui.facts(facts)]
    if report.builds and report.builds[-1].layers:
        before, after = (Counter(dict(build.layers)) for build in (report.builds[0], report.builds[-1]))
        kinds = [Change(name, before[name], after[name]) for name in dict.fromkeys((*before, *after))]
        total = Change("all layers", before.total(), after.total())
        caption = "Layers of TensorRT's network by kind"
        blocks += [
            ui.Paragraph("Imported layers", "heading"),
            *change_tables(kinds, [total], caption, "Layer"),
        ]
    return ui.Section("tensorrt", "TensorRT", blocks) if blocks else None


def operator_section(report: Report) -> ui.Section | None:
    """Nodes by operator, before and after; Constant nodes, which compute nothing, apart. On a terminal only where a
    number changed."""
    summary = report.summary
    counts = (summary.compute, summary.constants, summary.layers)
    totals = [one for one in counts if one is not None and (one.before or one.after)]
    if not totals:
        return None
    title = "Operators" if report.command == "check" else "Operators before and after"
    blocks = tuple(change_tables(summary.operators, totals, "Nodes by operator", "Operator"))
    changed = any(change.changed for change in (*totals, *summary.operators))
    return ui.Section("operators", title, blocks, shown="always" if changed else "never")


def change_tables(
    items: Sequence[Change], totals: Sequence[Change], caption: str, what: str
) -> Iterator[ui.Block]:
    """The totals and what changed most, first; what did not change on request. One column where nothing changed."""
    compared = any(change.changed for change in (*items, *totals))
    ranked = sorted(
        items, key=lambda one: (-abs(one.after - one.before) if compared else -one.after, one.name)
    )
    most = max((max(change.before, change.after) for change in items), default=1)
    head = (what, "#Before", "#After", "#Change", "") if compared else (what, "#Nodes", "")

    def row(change: Change, longest: int) -> tuple[ui.Content, ...]:
        bar = ui.Shares(change.before if compared else 0, change.after, longest) if longest else ""
        if not compared:
            return change.name, change.after, bar
        return change.name, change.before, change.after, difference(change), bar

    sums = [row(change, 0) for change in totals]
    main = [row(change, most) for change in ranked if change.changed or not compared]
    rest = [row(change, most) for change in ranked if compared and not change.changed]
    shown = len(sums) + (_CHANGED if len(main) > _CHANGED + 1 else len(main))
    yield ui.Table(head, [*sums, *main], caption, "changes", len(sums), shown, what.lower())
    if rest:
        yield ui.Fold(
            f"{len(rest)} unchanged", (ui.Table(head, rest, f"{caption}, unchanged"),), shown="never"
        )


def difference(change: Change) -> ui.Text:
    """The difference between two counts."""
    value = change.after - change.before
    kind = "down" if value < 0 else "up" if value else "even"
    return ui.Text(f"{value:+,}".replace("-", "−") if value else "0", kind)
