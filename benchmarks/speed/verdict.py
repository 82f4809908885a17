"""Whether what was measured is within the limits that onnxfix sets itself."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speed.models import BASE, KINDS
from speed.timing import Cache, Result
from speed.tools import PEERS

CHECK_TO_PEER = 1 / 6
CHECK_TO_PARTS = 1.5
APPLY_TO_PEER = 1 / 3
PEAK_TO_PEER = 1 / 5
CHECK_MB, APPLY_MB = 200.0, 300.0
SECONDS_100K = 15.0
MB_1M = 8192.0
GROWTH = 12.0

_PEERS = [tool.name for tool in PEERS]


@dataclass(frozen=True)
class Point:
    """One limit. ``met`` is None where nothing was measured that it is about."""

    text: str
    found: str
    met: bool | None


def ratios(
    results: Sequence[Result], tool: str, what: str = "wall", cache: Cache = "warm"
) -> dict[str, float]:
    """Model -> the tool's median to that of the fastest peer; ``what`` is ``wall`` or ``peak``."""
    found = {}
    for result in results:
        peer = result.fastest(_PEERS, cache)
        mine = result.peak(tool) if what == "peak" else result.median(tool, what, cache)
        if peer is None or mine is None:
            continue
        theirs = result.peak(peer) if what == "peak" else result.median(peer, what, cache)
        if theirs:
            found[result.name] = mine / theirs
    return found


def to_parts(results: Sequence[Result]) -> dict[str, float]:
    """Model -> the seconds of a check to those of its parts."""
    found = {}
    for result in results:
        check, whole = result.median("check"), result.parts_seconds()
        if check is not None and whole:
            found[result.name] = check / whole
    return found


def growth(results: Sequence[Result], kind: str) -> list[float]:
    """The growth of processor seconds from 1k to 10k and to 100k nodes, less those of a model of two nodes."""
    known = {result.name: result.median("apply", "cpu") for result in results}
    base = known.get(BASE)
    spent = [known.get(f"{kind}.{size}") for size in ("1k", "10k", "100k")]
    if base is None or None in spent:
        return []
    net = [max(1e-3, float(one) - base) for one in spent if one is not None]
    return [later / earlier for earlier, later in itertools.pairwise(net)]


def points(results: Sequence[Result]) -> list[Point]:
    """All limits, in order."""
    return [*_exports(results), *_large(results), *_synthetic(results)]


def _exports(results: Sequence[Result]) -> Iterator[Point]:
    exports = [result for result in results if result.kind == "export"]
    yield _right("exports: what `apply` writes computes what the original does", exports)
    for cache in ("warm", "cold"):
        for tool, limit in (("check", CHECK_TO_PEER), ("apply", APPLY_TO_PEER)):
            found = ratios(exports, tool, cache=cache)
            text = f"exports, {cache} cache: `{tool}` to the fastest right peer, median"
            yield _at_median(text, found, limit)
    yield _at_median(
        "exports: peak memory of `apply` to the fastest right peer's, median",
        ratios(exports, "apply", "peak"),
        PEAK_TO_PEER,
    )
    yield _at_median("exports: `check` to the sum of its parts, median", to_parts(exports), CHECK_TO_PARTS)


def _large(results: Sequence[Result]) -> Iterator[Point]:
    large = [result for result in results if result.kind == "large"]
    for result in large:
        yield _limit(f"{result.name}: `check`, MB at its peak", result.peak("check"), CHECK_MB)
        yield _limit(f"{result.name}: `apply`, MB at its peak", result.peak("apply"), APPLY_MB)
        data = result.judged.get("data")
        yield Point(f"{result.name}: the weights come out byte for byte", str(data), data == "identical")
        if found := ratios([result], "apply"):
            yield _limit(
                f"{result.name}: `apply` to the fastest right peer", found[result.name], APPLY_TO_PEER
            )
    yield _right("large: what `apply` writes computes what the original does", large)


def _synthetic(results: Sequence[Result]) -> Iterator[Point]:
    known = {result.name: result for result in results if result.kind == "synthetic"}
    yield _right(
        "synthetic: what `apply` writes computes what the original does",
        [result for result in known.values() if not result.name.endswith(".1m")],
    )
    for kind in KINDS:
        if one := known.get(f"{kind}.100k"):
            yield _limit(f"{one.name}: `apply`, seconds", one.median("apply"), SECONDS_100K)
        if one := known.get(f"{kind}.1m"):
            yield _limit(f"{one.name}: `apply`, MB at its peak", one.peak("apply"), MB_1M)
        if steps := growth(results, kind):
            shown = ", ".join(f"{step:.1f}" for step in steps)
            text = f"{kind}: growth of processor seconds from 1k to 10k to 100k nodes"
            yield Point(f"{text}, at most {GROWTH:g} a step", shown, max(steps) <= GROWTH)


def _at_median(text: str, found: dict[str, float], limit: float) -> Point:
    if not found:
        return Point(f"{text}, at most {limit:.3g}", "not measured", None)
    median = statistics.median(found.values())
    inside = sum(value <= limit for value in found.values())
    shown = f"{median:.3f} ({min(found.values()):.3f} to {max(found.values()):.3f}; within: {inside} of {len(found)})"
    return Point(f"{text}, at most {limit:.3g}", shown, median <= limit)


def _limit(text: str, found: float | None, limit: float) -> Point:
    shown = "did not end well" if found is None else f"{found:,.3g}" if found < 100 else f"{found:,.0f}"
    return Point(
        f"{text}, at most {limit:,.3g}" if limit < 100 else f"{text}, at most {limit:,.0f}",
        shown,
        found is not None and found <= limit,
    )


def _right(text: str, results: Sequence[Result]) -> Point:
    if not results:
        return Point(text, "not measured", None)
    wrong = [
        f"{result.name}: {result.judged.get('why') or 'nothing written'}"
        for result in results
        if not result.judged.get("right")
    ]
    return Point(text, "; ".join(wrong) or f"{len(results)} of {len(results)}", not wrong)
