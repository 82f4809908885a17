"""How far each output is from the original's: figures and a histogram of errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from onnxfix.report.render.html.charts import bars, power
from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.html.parts import chip, facts, many, section
from onnxfix.report.render.numbers import number
from onnxfix.report.report import Report
from onnxfix.verification.compare.compare import Metrics
from onnxfix.verification.compare.decades import ErrorHistogram
from onnxfix.verification.verdict import ALONE

MOST = 40
"""Outputs that are shown, and names of others."""


def output_section(report: Report, ident: str) -> Content:
    """Every output under every check that compared it with the original's."""
    if report.verdict is None:
        return None
    found: dict[str, list[tuple[str, list[Metrics]]]] = {}
    for rung in report.verdict.rungs:
        if rung.name in ALONE:
            continue
        by_name: dict[str, list[Metrics]] = {}
        for feed in rung.feeds:
            for one in feed.metrics if feed.status != "not counted" else ():
                by_name.setdefault(one.output or one.name, []).append(one)
        for name, metrics in by_name.items():
            found.setdefault(name, []).append((rung.name, metrics))
    if not found:
        return None
    same = [name for name, checks in found.items() if all(map(_same, (one for _, one in checks)))]
    apart = [(name, checks) for name, checks in found.items() if name not in same]
    entries: list[Content] = [_output(name, checks) for name, checks in apart[:MOST]]
    if len(apart) > MOST:
        entries.append(tag("p", f"and {many(len(apart) - MOST, 'more output')}", class_="remark"))
    if same:
        names = ", ".join(same[:MOST]) + (f" and {len(same) - MOST:,} more" if len(same) > MOST else "")
        words = chip("good", f"{many(len(same), 'output')} bit-identical in every check")
        entries.append(tag("div", tag("p", words), tag("p", names, class_="mono"), class_="output"))
    return section(ident, "Outputs", entries, aside="absolute errors against the original, over all feeds")


def _same(metrics: Sequence[Metrics]) -> bool:
    """Whether an output is bit-identical under a check, on every feed."""
    return not any(one.mismatches or one.agreement == "different" for one in metrics)


def _output(name: str, checks: Sequence[tuple[str, Sequence[Metrics]]]) -> Html:
    first = checks[0][1][0]
    kind = f"{first.dtype}{list(first.shape) if first.shape is not None else ''}"
    heading = tag("h3", tag("span", name, class_="mono"), tag("small", kind))
    return tag(
        "div", heading, tag("div", [_check(name, *one) for one in checks], class_="checks"), class_="output"
    )


def _check(output: str, rung: str, metrics: Sequence[Metrics]) -> Html:
    elements, off = sum(one.elements for one in metrics), sum(one.mismatches for one in metrics)
    if _same(metrics):
        words = f"bit-identical in all {many(elements, 'element')}"
        return tag("figure", tag("figcaption", tag("b", rung)), tag("p", chip("good", words)), class_="check")
    worst = max(metrics, key=lambda one: one.max_abs)
    wrong = any(one.agreement == "different" for one in metrics)
    head = chip("bad", "different") if wrong else chip("good", "within tolerance")
    reason = next((one.reason for one in metrics if one.reason), "")
    figures = facts(
        [
            ("Differing", f"{off:,} of {elements:,} elements"),
            ("Largest error", f"{number(worst.max_abs)} (scale {number(worst.scale)})"),
            ("Largest relative", number(max(one.max_rel for one in metrics))),
            ("Out of tolerance, excused", ", ".join(_excused(metrics))),
            ("Why", reason),
        ]
    )
    chart = error_chart(
        [one.errors for one in metrics], sum(_equal(one) for one in metrics), f"{output}, {rung}"
    )
    return tag("figure", tag("figcaption", tag("b", rung), head), figures, chart, class_="check")


def _excused(metrics: Sequence[Metrics]) -> Iterator[str]:
    """Elements that agree with the original by other measures than its own values."""
    twin, noise = sum(one.by_twin for one in metrics), sum(one.by_noise for one in metrics)
    if twin:
        yield f"{twin:,} agree with the original in higher precision"
    if noise:
        yield f"{noise:,} differ no more than the original from itself in float64"


def _equal(one: Metrics) -> int:
    """Elements of a feed on which the output is identical as a whole, which has no histogram."""
    return one.elements if one.errors is None and one.agreement == "identical" else 0


def error_chart(found: Iterable[ErrorHistogram | None], equal: int, name: str) -> Content:
    """Several histograms of absolute errors as one, by powers of 10; nothing where there is no error."""
    counts: dict[int | None, float] = {None: float(equal)} if equal else {}
    for one in found:
        for exponent, count in _bins(one) if one is not None else ():
            counts[exponent] = counts.get(exponent, 0.0) + count
    exponents = [one for one in counts if one is not None]
    if not exponents:
        return None
    items = [("0", counts.get(None, 0.0))] if None in counts else []
    items += [(power(one), counts.get(one, 0.0)) for one in range(min(exponents), max(exponents) + 1)]
    words = ", ".join(
        f"{count:,.0f} from {bin_name}" if bin_name != "0" else f"{count:,.0f} equal"
        for bin_name, count in items
    )
    kinds = ["zero" if bin_name == "0" else "bar" for bin_name, _ in items]
    return bars(items, f"Absolute errors of {name}: {words}", kinds=kinds)


def _bins(one: ErrorHistogram) -> Iterator[tuple[int | None, float]]:
    """The exponent of each bin's lower edge, and how many elements it stands for."""
    if one.zeros:
        yield None, float(one.zeros * one.step)
    for low, high, count in zip(one.edges, one.edges[1:], one.counts, strict=False):
        if count:  # the first bin may be wide: what counts is its upper end
            exponent = round(math.log10(high)) - 1 if math.isfinite(high) else round(math.log10(low))
            yield exponent, float(count * one.step)
