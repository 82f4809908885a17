"""The checks of a verification as a matrix, and what each of them measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.names import RUNGS
from onnxfix.report.render.html.markup import Content, Html, join, tag
from onnxfix.report.render.html.parts import DASH, STATUSES, chip, many, row, seconds, section, table
from onnxfix.report.render.numbers import number
from onnxfix.report.render.proof import left_out_words, random_words
from onnxfix.report.report import Report
from onnxfix.report.summary import RungFact, Summary
from onnxfix.verification.compare.compare import largest
from onnxfix.verification.verdict import ALONE, FeedResult, RungResult

MOST_FEEDS = 100
"""Inputs of one check that are listed."""
_MEANINGS = {
    "contract": "interface unchanged, onnx.checker",
    "reference": "ONNX's reference evaluator",
    "ort-cpu": "ONNX Runtime on the CPU",
    "ort-cuda": "ONNX Runtime on the GPU",
    "trt-build": "TensorRT's parser and builder",
    "trt-network": "TensorRT's import, compared with the model",
    "trt-gpu": "TensorRT's engines on the GPU",
}
_FEEDS = {"identical": "good", "within": "good", "different": "bad", "not counted": "none"}


def rung_section(report: Report, summary: Summary, ident: str) -> Content:
    """Every check: its outcome, what was compared, the largest error, and why. Nothing where none was requested."""
    if report.verdict is None:
        return None
    facts = {one.name: one for one in summary.rungs}
    rows = [_row(report.verdict.rung(name), facts.get(name), name) for name in RUNGS]
    required = report.verdict.required
    head = ("Check", "Result", "Values", "#Feeds", "#Largest error", "#Time", "What was found")
    matrix = table(head, rows, "Checks, from the cheapest to the most informative", "matrix")
    details = [one for rung in report.verdict.rungs if (one := _details(rung)) is not None]
    aside = f"required: {', '.join(required)}" if required else None
    return section(ident, "Checks", matrix, details, aside=aside)


def _row(rung: RungResult | None, fact: RungFact | None, name: str) -> Html:
    title = join(tag("span", name, class_="mono"), tag("small", _MEANINGS.get(name, "")))
    if rung is None or fact is None:
        return row(title, chip("none", "not requested"), DASH, DASH, DASH, DASH, "")
    notes = [*([f"left out: {left_out_words(fact)}"] if fact.left_out else []), *rung.notes]
    values = error = DASH
    if name not in ALONE:  # TensorRT's network is compared with the model that it was imported from
        values, error = _compared(rung, fact)
    return row(
        title,
        status_chip(rung.status),
        values,
        fact.feeds or DASH,
        tag("span", error, class_="right"),
        tag("span", seconds(rung.seconds), class_="right"),
        [rung.reason, [tag("p", note, class_="remark") for note in notes]],
    )


def _compared(rung: RungResult, fact: RungFact) -> tuple[str, str]:
    """How far values agree, and the largest error."""
    agreements = {"identical": "bit-identical", "within": f"within {fact.tolerance or 'tolerance'}"}
    values = agreements.get(fact.agreement, DASH)
    if any(feed.status == "different" for feed in rung.feeds):
        values = "different"
    worst = largest(metric for feed in rung.feeds for metric in feed.metrics)
    if worst is not None and worst.max_abs:
        return values, number(worst.max_abs)
    return values, "0" if fact.agreement else DASH


def status_chip(status: str) -> Html:
    """The status of a check."""
    return chip(STATUSES.get(status, "none"), "not run" if status == "skipped" else status)


def _details(rung: RungResult) -> Content:
    """The inputs that one check ran with."""
    if not rung.feeds:
        return None
    shown = rung.feeds[:MOST_FEEDS]
    rows = [one for feed in shown for one in _feed_rows(feed)]
    for spared in rung.left_out:
        cost = f"about {spared.seconds:,.1f} s"
        rows.append(row(spared.label, chip("none", "left out"), cost, DASH, DASH, DASH, DASH))
    head = ("Inputs", "Result", "Output", "#Differing", "#Largest error", "#Relative", "First difference")
    left = len(rung.feeds) - len(shown)
    more = tag("p", f"and {many(left, 'more feed')}", class_="remark") if left else None
    caption = f"Feeds of {rung.name}"
    summary = tag(
        "summary", f"{rung.name}: {many(len(rung.feeds), 'feed')}", tag("small", f"seed {rung.seed}")
    )
    excluded = f"not compared, since the original is not deterministic: {', '.join(rung.excluded)}"
    return tag(
        "details",
        summary,
        table(head, rows, caption),
        more,
        tag("p", random_words(rung), class_="remark") if rung.random else None,
        tag("p", excluded, class_="remark") if rung.excluded else None,
        class_="feeds",
    )


def _feed_rows(feed: FeedResult) -> Iterator[Html]:
    status = chip(_FEEDS[feed.status], feed.status)
    if not feed.metrics:
        yield row(feed.label, status, feed.reason, DASH, DASH, DASH, DASH)
    for index, one in enumerate(feed.metrics):
        differing = f"{one.mismatches:,} of {one.elements:,}" if one.elements else DASH
        yield row(
            feed.label if not index else "",
            status if not index else "",
            [tag("span", one.name, class_="mono"), tag("small", one.reason or feed.reason)],
            tag("span", differing, class_="right"),
            tag("span", number(one.max_abs), class_="right"),
            tag("span", number(one.relative), class_="right"),
            _first(one.at, one.values),
        )


def _first(index: Sequence[int] | None, values: tuple[str, str] | None) -> Content:
    if index is None or values is None:
        return DASH
    return tag("span", f"[{', '.join(map(str, index))}] {values[0]} → {values[1]}", class_="mono")
