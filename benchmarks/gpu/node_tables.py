"""Markdown of what ONNX's node models do on the engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from acceptance.cases import NodeCase
from acceptance.reasons import WHY, reason_of
from acceptance.tables import markdown, such_as
from acceptance.tools import AS_IS, NUMERIC_RTX
from network.tables import cell

from gpu.outcomes import TOOLS, Result, Row, gained, lost

LEGEND = (
    "**right**: the engine's outputs meet ONNX's expected ones within the case's own tolerance, or (the number of "
    "these is in brackets) only within that of `onnxfix verify` for the type. **wrong**: neither. **parser**, "
    "**builder**: TensorRT refuses the model there. **fails**: the engine does not load, or its run ends in an error. "
    "**cannot be fed**: its inputs or outputs are not those that ONNX has data of. **no model**: the tool wrote none. "
    "**gained**: not right as it is, and right afterwards. **lost**: right as it is, and not right afterwards."
)
_LONGEST = 260


def page(
    stored: Mapping[str, Any],
    rows: Sequence[Row],
    why: Mapping[str, Sequence[str]],
    cases: Mapping[str, NodeCase],
) -> Iterator[str]:
    """Everything: the setting, the numbers, every wrong and lost model, and what the others stopped at."""
    for key, value in {**stored["setting"], **stored["versions"]}.items():
        yield f"- {key}: {value}"
    if stored.get("strange"):
        yield f"- {len(stored['strange'])} models are others in this onnx, and were not measured"
    tools = [tool.name for tool in TOOLS if any(tool.name in row.results for row in rows)]
    yield from ("", *summary(rows, tools), "", LEGEND)
    yield from _wrong(rows, tools, why)
    yield from _lost(rows, tools)
    for title, statuses in (
        ("Timed out or crashed", ("timeout", "crash")),
        ("The engine fails", ("failed",)),
        ("Cannot be fed", ("unfed",)),
    ):
        yield from _stopped(title, rows, tools, statuses)
    yield from _refused(rows, cases)


def summary(rows: Sequence[Row], tools: Sequence[str]) -> Iterator[str]:
    """A row a tool."""
    titles = {tool.name: tool.title for tool in TOOLS}
    columns = {
        "wrong": "wrong", "parser": "parser", "builder": "builder", "timed out": "timeout", "crashed": "crash",
        "fails": "failed", "cannot be fed": "unfed", "no model": "no model", "not measured": "not measured",
    }  # fmt: skip
    table = []
    for tool in tools:
        every = [row.results[tool] for row in rows if tool in row.results]
        counts = Counter(one.status for one in every)
        loose = sum(one.within == "type" for one in every)
        table.append(
            [
                titles[tool],
                f"{counts['right']:,} ({loose})",
                *(counts[status] for status in columns.values()),  # type: ignore[index]
                "–" if tool == AS_IS.name else sum(gained(row, tool) for row in rows),
                "–" if tool == AS_IS.name else sum(lost(row, tool) for row in rows),
            ]
        )
    yield from markdown(["", "right", *columns, "gained", "lost"], table)


def _wrong(rows: Sequence[Row], tools: Sequence[str], why: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Every wrong result once, with the tools that come to it."""
    groups: dict[str, list[str]] = defaultdict(list)
    results: dict[str, tuple[str, Result]] = {}
    for row in rows:
        for tool in tools:
            if row.results[tool].status == "wrong":
                key = f"{row.name}/{row.digests[tool]}"
                groups[key].append(tool)
                results[key] = row.name, row.results[tool]
    yield from ("", f"### Wrong: {len(groups)} models", "")
    if not groups:
        return
    head = ("model", "of", "largest error", "relative", "first difference", "why")
    yield from markdown(
        head,
        (
            [
                f"`{results[key][0]}`",
                ", ".join(groups[key]),
                "–" if results[key][1].structure else f"{results[key][1].largest:.2g}",
                "–" if results[key][1].structure else f"{results[key][1].relative:.2g}",
                cell(results[key][1].reason)[:_LONGEST],
                "; ".join(map(cell, why.get(key, ()))) or "**unknown**",
            ]
            for key in sorted(groups)
        ),
    )


def _lost(rows: Sequence[Row], tools: Sequence[str]) -> Iterator[str]:
    """Every model that a tool lost, by what became of it."""
    for tool in tools:
        groups: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if tool != AS_IS.name and tool in row.results and lost(row, tool):
                groups[row.results[tool].status].append(row.name)
        if groups:
            yield from ("", f"Lost by {tool}:", "")
            for status, names in sorted(groups.items()):
                yield f"- {status}, {len(names)}: {such_as(names, 12)}"


def _stopped(title: str, rows: Sequence[Row], tools: Sequence[str], statuses: Sequence[str]) -> Iterator[str]:
    groups: dict[tuple[str, str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for tool in tools:
            one = row.results[tool]
            if one.status in statuses:
                text = cell(one.reason)[:_LONGEST].replace(row.name, "…")
                groups[one.status, one.stage, text][row.name].append(tool)
    if not groups:
        return
    yield from ("", f"### {title}", "")
    yield from markdown(
        ("at", "TensorRT", "models", "such as"),
        (
            [f"{status}, {stage}" if stage else status, text, len(names), such_as(list(names), 4)]
            for (status, stage, text), names in sorted(groups.items(), key=lambda item: -len(item[1]))
        ),
    )


def _refused(rows: Sequence[Row], cases: Mapping[str, NodeCase]) -> Iterator[str]:
    """Why there is no engine, by the kinds of reason that the measurement without a GPU has."""
    counts: dict[str, Counter[str]] = {AS_IS.name: Counter(), NUMERIC_RTX.name: Counter()}
    for row in rows:
        for tool, found in counts.items():
            one = row.results.get(tool)
            if one is not None and one.status in ("parser", "builder") and row.name in cases:
                model = onnx.load_model_from_string(cases[row.name].data)
                found[reason_of(model, "refused", one.operator, one.reason).kind] += 1
    kinds = [kind for kind in WHY if any(found[kind] for found in counts.values())]
    if not kinds:
        return
    yield from ("", "### No engine", "")
    yield from markdown(
        ("", "as they are", "with numeric fixes for RTX"),
        ([WHY[kind][0], *(found[kind] for found in counts.values())] for kind in kinds),
    )
