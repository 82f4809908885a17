"""What TensorRT did: builds, imported layers, how it reads the model, engines and their latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onnxfix.report.render.html.changes import change_table
from onnxfix.report.render.html.markup import Content, Html, join, tag
from onnxfix.report.render.html.parts import chip, facts, many, row, seconds, section, size, table
from onnxfix.report.report import Report
from onnxfix.report.summary import Change
from onnxfix.trt.reading import Reading
from onnxfix.trt.records import TrtBuild
from onnxfix.trt.timing import Latency, Timing

_READS = {"agrees": "good", "differs": "bad", "refused": "bad"}
_LAUNCHES = {"cuda-graph": "CUDA graphs", "stream": "stream launches"}


def tensorrt_section(report: Report, ident: str) -> Content:
    """Everything of TensorRT's; nothing where it did not run."""
    parts = [
        _builds(report.builds),
        _layers(report.builds),
        _networks(report.networks),
        _executed(report),
        _latency(
            next((one.latency for one in report.verdict.rungs if one.latency), None)
            if report.verdict
            else None
        ),
    ]
    kept = [one for one in parts if one is not None]
    return section(ident, "TensorRT", kept) if kept else None


def _sides(count: int) -> tuple[str, ...]:
    return ("original", "new") if count > 1 else ("model",)


def _builds(builds: Sequence[TrtBuild]) -> Content:
    if not builds:
        return None
    rows = [
        row(
            name,
            chip("good" if one.accepted else "bad" if one.judged else "none", one.result),
            one.layer_count,
            tag("span", seconds(one.parse_seconds), class_="right"),
            tag("span", seconds(one.build_seconds) if one.build_seconds else "–", class_="right"),
            tag("span", size(one.engine_bytes) if one.engine_bytes else "–", class_="right"),
            len(one.warnings),
        )
        for name, one in zip(_sides(len(builds)), builds, strict=False)
    ]
    last = builds[-1]
    who = f"{last.package} {last.version}, compute capability {last.compute_capability or '?'}"
    head = ("Build", "Result", "#Layers", "#Parsing", "#Building", "#Engine", "#Warnings")
    return join(
        table(head, rows, who),
        [_issues(name, one) for name, one in zip(_sides(len(builds)), builds, strict=False)],
    )


def _issues(name: str, build: TrtBuild) -> Content:
    """TensorRT's own errors and warnings."""
    issues = (*build.errors, *build.warnings)
    if not issues:
        return None
    entries = [
        tag(
            "li",
            chip("bad" if one.severity == "error" else "warn", one.severity),
            " ",
            str(one),
            f" ({one.count} times)" if one.count > 1 else None,
        )
        for one in issues[:200]
    ]
    head = tag("summary", f"TensorRT's messages on the {name}: {many(len(issues), 'message')}")
    return tag("details", head, tag("ul", entries, class_="plain"), class_="feeds", open=bool(build.errors))


def _layers(builds: Sequence[TrtBuild]) -> Content:
    """Imported layers by kind."""
    if not builds or not builds[-1].layers:
        return None
    before, after = Counter(dict(builds[0].layers)), Counter(dict(builds[-1].layers))
    items = [Change(name, before[name], after[name]) for name in dict.fromkeys((*before, *after))]
    total = Change("all layers", before.total(), after.total())
    return join(
        tag("h3", "Imported layers"),
        change_table(items, [total], "Layers of TensorRT's network by kind", "Layer"),
    )


def _networks(networks: Sequence[Reading]) -> Content:
    if not networks:
        return None
    entries = []
    for name, one in zip(_sides(len(networks)), networks, strict=False):
        reason = one.reason or (str(one.grave[0]) if one.grave else "")
        entries.append((name, [chip(_READS.get(one.status, "none"), one.status), " ", reason]))
    return join(tag("h3", "Imported network, compared with the model"), facts(entries))


def _executed(report: Report) -> Content:
    found = report.executed
    if found is None:
        return None
    kinds = {"agree": "good", "repaired": "good", "alike": "warn", "unsteady": "warn", "wrong": "bad"}
    pairs: list[tuple[str, Content]] = [
        ("Outcome", [chip(kinds[found.outcome], found.outcome), " ", found.reason]),
        ("GPU", f"{found.gpu}, compute capability {found.compute_capability}"),
        ("Precision of products", found.precision),
    ]
    return join(tag("h3", "Executed engines"), facts(pairs))


def _latency(found: Latency | None) -> Content:
    if found is None:
        return None
    if found.fixed is None:
        return join(tag("h3", "Latency"), tag("p", f"Not measured: {found.reason}", class_="remark"))
    sides = [
        (name, one) for name, one in (("original", found.original), ("new", found.fixed)) if one is not None
    ]
    most = max(one.p95_ms for _, one in sides)
    rows = [_timing(name, one, most) for name, one in sides]
    head = ("Engine", "#Median", "#5 % to 95 %", "", "#Load", "#First run", "#Runs")
    kinds = {"faster": "good", "slower": "warn", "same": "none", "": "none"}
    words = f"{found.ratio:.2f}× the original's time" if found.ratio is not None else ""
    how = f"{_LAUNCHES.get(found.launch, '')}, noise {100 * (found.noise or 0.0):.1f} %"
    result = [chip(kinds[found.comparison], found.comparison or "measured"), " ", words, tag("small", how)]
    return join(tag("h3", "Latency"), tag("p", result), table(head, rows, "Latency of the engines"))


def _timing(name: str, one: Timing, most: float) -> Html:
    width, kind = 160, "was" if name == "original" else "is"
    bar = tag(
        "svg",
        tag("rect", x=0, y=4, width=f"{width * one.median_ms / most:.1f}", height=10, rx=2, class_=kind),
        tag("path", d=f"M{width * one.p5_ms / most:.1f} 9H{width * one.p95_ms / most:.1f}", class_="spread"),
        class_="share",
        width=width,
        height=18,
        viewBox=f"0 0 {width} 18",
        aria_hidden="true",
    )
    return row(
        name,
        tag("span", _ms(one.median_ms), class_="right"),
        tag("span", f"{_ms(one.p5_ms)} to {_ms(one.p95_ms)}", class_="right"),
        bar,
        tag("span", f"{one.load_seconds:.2f} s", class_="right"),
        tag("span", f"+{one.jit_seconds:.2f} s", class_="right"),
        one.runs,
    )


def _ms(value: float) -> str:
    return f"{value:.3f} ms" if value >= 0.1 else f"{value:.4f} ms"
