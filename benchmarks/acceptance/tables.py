"""Markdown tables of what was measured."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from pages import markdown, such_as

from acceptance.faults import MOST_LAYERS, lost, remarks, rescued
from acceptance.measure import Result, Row
from acceptance.reasons import OPERATORS, WHY
from acceptance.tools import AS_IS, EXACT, NUMERIC_RTX, ONNXFIX, Tool

# ---------------------------------------------------------------------------------------------------- summary


def summary(rows: Sequence[Row], tools: Sequence[Tool]) -> Iterator[str]:
    """A row a tool. Models that the tool fails on have no result, and so are not accepted."""
    head = (
        "",
        "builds",
        "counts",
        "rescued",
        "lost",
        "outputs wrong",
        "not judged",
        "interface changed",
        "no model",
        "s",
    )
    yield from markdown(head, (_summary(rows, tool) for tool in (AS_IS, *tools)))


def _summary(rows: Sequence[Row], tool: Tool) -> list[object]:
    results = [row.results[tool.name] for row in rows]
    accepted = [one for one in results if one.accepted]
    failed = Counter(one.made.status for one in results if one.made.status != "ok")
    gone, silent = (
        sum(lost(row, tool) and (row.results[tool.name].made.status == "ok") is made for row in rows)
        for made in (True, False)
    )
    return [
        tool.title,
        len(accepted),
        sum(one.counts for one in results),
        sum(rescued(row, tool) for row in rows),
        f"{gone} + {silent}" if silent else gone,
        _of_all(
            [one.outputs.verdict == "wrong" for one in accepted],
            [one.outputs.verdict == "wrong" for one in results],
        ),
        sum(one.outputs.verdict in ("not run", "no judge", "random") for one in accepted),
        _of_all([bool(one.interface) for one in accepted], [bool(one.interface) for one in results]),
        ", ".join(f"{count} {status}" for status, count in sorted(failed.items())) or 0,
        f"{sum(one.made.seconds for one in results):.0f}" if tool != AS_IS else "–",
    ]


def _of_all(accepted: list[bool], every: list[bool]) -> str:
    return f"{sum(accepted)} of {sum(every)}" if sum(every) else "0"


LEGEND = (
    "**builds**: TensorRT builds an engine. **counts**: builds, the interface is unchanged, and the outputs meet ONNX's"
    " expected ones within the case's tolerance, or the graph is the original's. **rescued**: refused as it is, and"
    " counts. **lost**: builds as it is and not afterwards (a second number: because the tool wrote no model)."
    " **outputs wrong** and **interface changed**: of the models that build, of all. **not judged**: builds, and no"
    " backend runs it, or each misses ONNX's outputs with the original too, or random values differ; these never count."
    " **s**: the tool's own seconds for all models, without imports."
)


# ---------------------------------------------------------------------------------------------------- rescues


def rescues(rows: Sequence[Row], tool: Tool) -> Iterator[str]:
    """What is rescued, by what TensorRT refused it for, and the layers that it costs; then the same by rule."""
    won = [row for row in rows if rescued(row, tool)]
    by_why: dict[str, list[Row]] = defaultdict(list)
    by_rule: dict[str, list[Row]] = defaultdict(list)
    for row in won:
        by_why[_why(row)].append(row)
        for code in row.results[tool.name].made.codes:
            by_rule[code].append(row)
    head = (
        "refused for",
        "models",
        "by exact fixes",
        "layers, median",
        "most",
        "rules that fixed something in them",
    )
    yield from markdown(
        head, ([*_cost(why, found, tool), _rules(found, tool)] for why, found in _by_size(by_why))
    )
    yield ""
    other = ("rule", "rescued models that it fixed", "by exact fixes", "layers, median", "most")
    yield from markdown(other, (_cost(code, found, tool) for code, found in _by_size(by_rule)))
    if won:
        many = sorted(((row.results[tool.name].layers, row.name) for row in won), reverse=True)
        large = [f"`{name}` {count:,}" for count, name in many if count > MOST_LAYERS]
        shown = f" ({', '.join(large[:12])}{', …' * (len(large) > 12)})" if large else ""
        middle = _median([count for count, _ in many])
        yield ""
        yield (
            f"{len(won):,} models, {middle} layers in the median, {many[0][0]:,} at most; more than {MOST_LAYERS} "
            f"layers: {len(large)}{shown}."
        )


def _by_size(groups: dict[str, list[Row]]) -> list[tuple[str, list[Row]]]:
    return sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))


def _why(row: Row) -> str:
    assert row.reason is not None
    return (
        row.reason.detail
        if row.reason.kind == "operator"
        else f"{WHY[row.reason.kind][0]}: {row.reason.detail}"
    )


def _cost(name: str, found: list[Row], tool: Tool) -> list[object]:
    layers = [row.results[tool.name].layers for row in found]
    exact = sum(EXACT.name in row.results and rescued(row, EXACT) for row in found)
    return [name, len(found), exact, _median(layers), max(layers)]


def _rules(found: list[Row], tool: Tool) -> str:
    codes = Counter(code for row in found for code in row.results[tool.name].made.codes)
    return ", ".join(f"{code} {count}" for code, count in codes.most_common())


def _median(numbers: Sequence[int]) -> str:
    return f"{statistics.median(numbers):,.0f}"


# --------------------------------------------------------------------------------------------- what is refused


def refusals(rows: Sequence[Row], tool: Tool) -> Iterator[str]:
    """What is refused still, by reason, with the words that TensorRT says most often."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    before: Counter[str] = Counter(row.reason.kind for row in rows if row.reason is not None)
    for row in rows:
        if row.reason is not None and not row.results[tool.name].accepted:
            kinds[row.reason.kind].append(row)
    lines = []
    for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        title, why = WHY[kind]
        details = Counter(row.reason.detail for row in found if row.reason is not None)
        shown = ", ".join(f"{name} {count}" for name, count in details.most_common())
        lines.append((title, before[kind], len(found), shown, why or "no rule for it"))
    yield from markdown(("reason", "refused", "still", "what", "why it stays"), lines)


def open_refusals(rows: Sequence[Row], tool: Tool) -> Iterator[str]:
    """TensorRT's words on what is refused for an operator or a use of it, by operator, and why it stays."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        result = row.results[tool.name]
        if row.reason is not None and row.reason.kind in ("operator", "crash") and not result.accepted:
            groups[row.reason.detail, _words(result)].append(row.name)
    head = ("operator", "models", "TensorRT", "such as", "why it stays")
    yield from markdown(
        head,
        (
            (name, len(found), words, such_as(found, 3), OPERATORS.get(name, "no rule for it"))
            for (name, words), found in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
        ),
    )


def _words(result: Result) -> str:
    if not result.words:
        return result.made.message or result.status
    place, _, rest = result.words.partition(f"{result.operator}: ")
    return " ".join((rest or place).split())[:140]


# ------------------------------------------------------------------------------------------------------ peers


def peers_names(rows: Sequence[Row], tools: Sequence[Tool]) -> Iterator[str]:
    """What each peer broke, by name: models that built, outputs, interfaces; and what it said where it failed."""
    for tool in (one for one in tools if one.peer):
        results = [(row.name, row.results[tool.name]) for row in rows]
        yield f"- {tool.title}"
        yield _broken("lost", [row.name for row in rows if lost(row, tool)])
        yield _broken("outputs wrong", [name for name, one in results if one.outputs.verdict == "wrong"])
        kinds = Counter(
            kind for _, one in results for kind in {text.partition(":")[0] for text in one.interface}
        )
        told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "–"
        only = [name for name, one in results if _but_for_shapes(one)]
        yield f"  - interface changed, models by kind: {told}"
        yield _broken("would count if declared shapes were no part of the interface", only)
        words = Counter(one.made.message[:120] for _, one in results if one.made.status != "ok")
        yield "  - failed: " + (
            "; ".join(f"{count} × `{text}`" for text, count in words.most_common(3)) or "–"
        )


def _broken(what: str, names: list[str]) -> str:
    return f"  - {what}, {len(names)}: {such_as(names, 6) or '–'}"


def _but_for_shapes(one: Result) -> bool:
    shapes = bool(one.interface) and all(text.startswith("shape:") for text in one.interface)
    return shapes and one.accepted and one.outputs.verdict in ("right", "same graph")


# ----------------------------------------------------------------------------------------------------- exports


def exports(rows: Sequence[Row], tools: Sequence[Tool]) -> Iterator[str]:
    """A row a model: nodes and TensorRT layers of each tool's result, and what is wrong with it."""
    head = ("model", *(f"{tool.title}" for tool in (AS_IS, *tools)))
    yield from markdown(
        head, ([f"`{row.name}`", *(_export(row, t) for t in (AS_IS, *tools))] for row in rows)
    )
    yield ""
    yield "Nodes / TensorRT layers. Afterwards:"
    yield ""
    head = ("", "built", "outputs within tolerance", "bit-identical", "interface unchanged", "s")
    yield from markdown(head, (_exports_of(rows, tool) for tool in tools))


def _export(row: Row, tool: Tool) -> str:
    result = row.results[tool.name]
    if result.made.status != "ok":
        return f"{result.made.status}: {result.made.message[:60]}"
    marks = [] if result.accepted else [f"**{result.status} ({result.stage})**"]
    if tool != AS_IS and result.outputs.verdict not in ("right", "same graph"):
        marks.append(f"**outputs {result.outputs.verdict}**")
    marks += ["**interface**"] if result.interface else []
    return " ".join([f"{result.nodes:,} / {result.layers:,}", *marks])


def _exports_of(rows: Sequence[Row], tool: Tool) -> list[object]:
    results = [row.results[tool.name] for row in rows]
    return [
        tool.title,
        sum(one.accepted for one in results),
        sum(one.outputs.verdict in ("right", "same graph") for one in results),
        sum(one.outputs.identical is True for one in results),
        sum(not one.interface for one in results if one.made.status == "ok"),
        f"{sum(one.made.seconds for one in results):.1f}",
    ]


def numbers(rows: Sequence[Row], tools: Sequence[Tool]) -> Iterator[str]:
    """Everything on the node models."""
    shown = NUMERIC_RTX if NUMERIC_RTX in tools else next(iter(one for one in tools if one in ONNXFIX), AS_IS)
    yield from summary(rows, tools)
    yield from ("", LEGEND, "", "### What the rescues cost", "", f"After {shown.title}:", "")
    yield from rescues(rows, shown)
    yield from ("", "### What is refused still", "", f"After {shown.title}:", "")
    yield from refusals(rows, shown)
    yield from (
        "",
        "Of these, operators and uses of them, in TensorRT's words:",
        "",
    )
    yield from open_refusals(rows, shown)
    yield from ("", "### What does not count", "")
    yield from list(remarks(rows, (AS_IS, *tools))) or ["Nothing that builds."]
    if any(one.peer for one in tools):
        yield from ("", "### What the peers break", "")
        yield from peers_names(rows, tools)
