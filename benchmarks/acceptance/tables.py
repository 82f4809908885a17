"""Markdown tables of what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pages import markdown, such_as

from acceptance.cases import AS_IS, Tool
from acceptance.faults import lost, remarks, rescued
from acceptance.measure import Row

# ---------------------------------------------------------------------------------------------------- summary


def summary(rows: Sequence[Row], tools: Sequence[Tool]) -> Iterator[str]:
    """A row a tool. Models that the tool fails on have no result, and so are not accepted."""
    head = ("", "builds", "counts", "rescued", "lost", "outputs wrong", "not judged", "interface changed")
    yield from markdown((*head, "no model", "s"), (_summary(rows, tool) for tool in (AS_IS, *tools)))


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


def page(rows: Sequence[Row], tools: Sequence[Tool]) -> Iterator[str]:
    """The summary, then by name what was lost, what is wrong, and what builds and does not count."""
    yield from summary(rows, tools)
    yield from ("", LEGEND, "", "### What does not count", "")
    yield from list(remarks(rows, (AS_IS, *tools))) or ["Nothing that builds."]
    yield from ("", "### What was broken", "")
    for tool in tools:
        results = [(row.name, row.results[tool.name]) for row in rows]
        words = Counter(one.made.message[:120] for _, one in results if one.made.status != "ok")
        told = "; ".join(f"{count} × `{text}`" for text, count in words.most_common(3)) or "–"
        yield f"- {tool.title}"
        yield _named("lost", [row.name for row in rows if lost(row, tool)])
        yield _named("outputs wrong", [name for name, one in results if one.outputs.verdict == "wrong"])
        yield _named("interface changed", [name for name, one in results if one.interface])
        yield f"  - failed: {told}"


def _named(what: str, names: list[str]) -> str:
    return f"  - {what}, {len(names)}: {such_as(names, 6) or '–'}"
