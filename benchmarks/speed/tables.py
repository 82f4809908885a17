"""What was measured, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from speed.models import SYNTHETIC
from speed.screening import Screened
from speed.timing import Cache, Result
from speed.tools import NAMED, PEERS
from speed.verdict import Point

_PEERS = [tool.name for tool in PEERS]
_NONE = "–"


def page(
    results: Sequence[Result], screened: Screened, points: Sequence[Point], machine: Mapping[str, str]
) -> Iterator[str]:
    """Everything between the markers of the page."""
    yield from (f"- {key}: {value}" for key, value in machine.items())
    yield from ("", "### Limits", "")
    yield from verdict(points)
    exports = [result for result in results if result.kind == "export"]
    large = [result for result in results if result.kind == "large"]
    synthetic = [result for result in results if result.kind == "synthetic"]
    if exports:
        yield from ("", "### Full-size exports, files in memory (warm)", "")
        yield from timed(exports, "warm")
        yield from ("", "### The parts of a check", "")
        yield from parts(exports)
    if cold := [result for result in (*exports, *large) if "cold" in result.runs]:
        held = max(result.resident for result in cold)
        yield from ("", "### Files not in memory (cold)", "")
        yield f"At most {held:.1%} of the pages of a model's files were in memory before a run."
        yield ""
        yield from timed(cold, "cold")
    if large:
        yield from ("", "### More than 2 GB, weights in a file of their own", "")
        yield from timed(large, "warm")
        yield ""
        yield from weights(large)
    if synthetic:
        yield from ("", "### Synthetic models", "")
        yield from by_size(synthetic)
    if screened:
        yield from ("", "### Every peer, once", "")
        yield from peers(screened)
        yield from ("", "#### Changes of the interface", "")
        yield from interfaces(screened)


def verdict(points: Sequence[Point]) -> Iterator[str]:
    """One line for each limit."""
    yield "| limit | measured | |"
    yield "|---|---|---|"
    for point in points:
        word = {True: "met", False: "**missed**", None: "not measured"}[point.met]
        yield f"| {cell(point.text)} | {cell(point.found)} | {word} |"


def timed(results: Sequence[Result], cache: Cache) -> Iterator[str]:
    """One line for each model: onnxfix beside the fastest peer, then the others that were timed."""
    yield (
        "| model | MB | check, s | apply, s | fastest right peer, s | check to it | apply to it | check, peak MB "
        "| apply, peak MB (parent, child) | peer, peak MB | apply to it | other peers, s |"
    )
    yield "|---" * 12 + "|"
    for result in results:
        peer = result.fastest(_PEERS, cache)
        theirs = None if peer is None else result.median(peer, cache=cache)
        their_peak = None if peer is None else result.peak(peer)
        others = [name for name in result.runs[cache] if name in _PEERS and name != peer]
        seen = result.peaks.get("apply", {})
        cells = [
            f"`{result.name}`",
            f"{result.bytes / 1e6:,.0f}",
            seconds(result, "check", cache),
            seconds(result, "apply", cache),
            _NONE if peer is None else f"{peer}: {seconds(result, peer, cache)}",
            _ratio(result.median("check", cache=cache), theirs),
            _ratio(result.median("apply", cache=cache), theirs),
            _megabytes(result.peak("check")),
            f"{_megabytes(result.peak('apply'))} ({seen.get('parent', 0):,.0f}, {seen.get('children', 0):,.0f})",
            _megabytes(their_peak),
            _ratio(result.peak("apply"), their_peak),
            "; ".join(f"{name}: {seconds(result, name, cache)}" for name in others) or _NONE,
        ]
        yield f"| {' | '.join(cells)} |"


def parts(results: Sequence[Result]) -> Iterator[str]:
    """One line for each model: what the parts of a check take, and what a check takes."""
    yield (
        "| model | nodes | interpreter, s | import onnx besides, s | wire scan, s | C++ shapes, s | sum, s | check, s "
        "| check to the sum |"
    )
    yield "|---" * 9 + "|"
    for result in results:
        start, both, whole = result.median("start"), result.median("import"), result.parts_seconds()
        if start is None or both is None or whole is None:
            continue
        cells = [
            f"`{result.name}`",
            f"{result.parts['nodes']:,}",
            f"{start:.3f}",
            f"{both - start:.3f}",
            f"{result.parts['scan']:.3f}",
            f"{result.parts['shapes']:.3f}",
            f"{whole:.3f}",
            seconds(result, "check", "warm"),
            _ratio(result.median("check"), whole),
        ]
        yield f"| {' | '.join(cells)} |"


def weights(results: Sequence[Result]) -> Iterator[str]:
    """What of the result was held against the original."""
    for result in results:
        row = result.judged
        agrees = (
            f"differs by at most {row['difference']:.1e}"
            if row.get("right")
            else code(row.get("why", "not written"))
        )
        yield f"- `{result.name}`: weights {row.get('data', _NONE)}; in ONNX Runtime the result {agrees}"


def by_size(results: Sequence[Result]) -> Iterator[str]:
    """One line for each synthetic model."""
    yield "| model | apply, s | processor, s | apply, peak MB | result in ONNX Runtime |"
    yield "|---|---|---|---|---|"
    for result in sorted(results, key=lambda one: SYNTHETIC.index(one.name)):
        processor = result.median("apply", "cpu")
        why = "" if result.name.endswith(".1m") else str(result.judged.get("why", "nothing written"))
        right = "right" if result.judged.get("right") else code(why) if why else _NONE
        shown = _NONE if processor is None else f"{processor:.2f}"
        cells = [
            f"`{result.name}`",
            seconds(result, "apply", "warm"),
            shown,
            _megabytes(result.peak("apply")),
            right,
        ]
        yield f"| {' | '.join(cells)} |"


def peers(screened: Screened) -> Iterator[str]:
    """One line for each model: seconds and GB of a single run of each peer, or why it does not count."""
    yield f"| model | {' | '.join(NAMED[name].title for name in _PEERS)} |"
    yield "|---" * (1 + len(_PEERS)) + "|"
    for model in sorted(screened):
        if not screened[model].keys() & set(_PEERS):
            continue
        cells = []
        for name in _PEERS:
            row = screened[model].get(name)
            if row is None:
                cells.append(_NONE)
                continue
            cost = f"{row['wall']:.1f} s, {row['rss'] / 1024:.2f} GB"
            why = row["message"] or row.get("why", "")
            cells.append(
                cost
                if row.get("right")
                else f"{row['status'] if row['message'] else 'wrong'}: {code(why[:120])} ({cost})"
            )
        yield f"| `{model}` | {' | '.join(cells)} |"


def interfaces(screened: Screened) -> Iterator[str]:
    """Each tool with the models whose interface it changes, and how."""
    changed: dict[tuple[str, str], list[str]] = {}
    for model in sorted(screened):
        for name, row in screened[model].items():
            for note in row.get("interface", ()):
                changed.setdefault((name, note), []).append(f"`{model}`")
    yield "| tool | change | models |"
    yield "|---|---|---|"
    for (name, note), models in sorted(changed.items()):
        yield f"| {NAMED[name].title} | {code(note)} | {len(models)}: {' '.join(models)} |"


def seconds(result: Result, tool: str, cache: Cache) -> str:
    """``median (least–greatest)``, or why there is none."""
    values, median = result.values(tool, "wall", cache), result.median(tool, cache=cache)
    if median is None:
        rows = result.runs.get(cache, {}).get(tool, [])
        why = next((row["message"] for row in rows if row["status"] != "ok"), "")
        return code(why) if why else _NONE
    return f"{median:.2f} ({min(values):.2f}–{max(values):.2f})"


def runs(results: Sequence[Result]) -> str:
    """``5 (cold: 5; models of a million nodes: 1)``: how many runs the medians are of."""
    counts: dict[str, set[int]] = {}
    for result in results:
        for cache, tools in result.runs.items():
            what = "million" if result.name.endswith(".1m") else cache
            counts.setdefault(what, set()).update(len(rows) for rows in tools.values())
    shown = {what: " or ".join(map(str, sorted(found))) for what, found in counts.items()}
    words = {"cold": "cold", "million": "models of a million nodes"}
    rest = "; ".join(f"{word}: {shown[what]}" for what, word in words.items() if what in shown)
    return f"{shown.get('warm', 'none')} ({rest})" if rest else shown.get("warm", "none")


def spread(results: Sequence[Result]) -> float:
    """The median over everything that was timed of greatest to least."""
    wide = []
    for result in results:
        for cache, tools in result.runs.items():
            for tool in tools:
                values = result.values(tool, "wall", "cold" if cache == "cold" else "warm")
                if len(values) > 1:
                    wide.append(max(values) / min(values))
    return statistics.median(wide) if wide else 1.0


def code(text: str) -> str:
    """What a tool said, as code: it may look like Markdown or HTML."""
    return f"`{cell(text).replace('`', chr(39))}`"


def cell(text: str) -> str:
    """Text that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _ratio(a: float | None, b: float | None) -> str:
    return _NONE if a is None or not b else f"{a / b:.2f}"


def _megabytes(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f}"
