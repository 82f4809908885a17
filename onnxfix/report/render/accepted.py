"""Findings that a configuration or a baseline accepts, and known ones that are gone, in a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onnxfix.report.findings import Suppressed, Vanished
from onnxfix.report.render.findings import code_counts
from onnxfix.report.render.lines import Line, labeled, line
from onnxfix.report.render.numbers import counted

NAMED = 3
"""Findings that are gone and named by their place without ``--verbose``."""


def accepted_lines(
    suppressed: Sequence[Suppressed], vanished: Sequence[Vanished], verbose: bool = False
) -> Iterator[Line]:
    """A line for each reason to accept findings, with their counts, and one for known findings that are gone."""
    groups: dict[tuple[str, str, str, str], list[Suppressed]] = {}
    for one in suppressed:
        groups.setdefault((one.by, one.reason, one.origin, one.until), []).append(one)
    for (by, reason, origin, until), some in groups.items():
        counts = Counter(one.finding.code for one in some)
        day = f" (until {until})" if until else ""
        why = "" if by == "baseline" else f": {reason}{day}"
        label = "known" if by == "baseline" else "accepted"
        yield labeled(label, *code_counts(counts.most_common()), why, (f"  {origin}", "dim"), style="dim")
        if verbose:
            for one in some:
                yield line(f"    {one.finding.code} {one.finding.place.short}", hang=6)
    if vanished:
        shown = vanished if verbose else vanished[:NAMED]
        names = ", ".join(f"{one.code} at {one.place}" for one in shown)
        more = f" and {len(vanished) - len(shown)} more" if len(vanished) > len(shown) else ""
        text = f"{counted(len(vanished), 'known finding')} no longer there: {names}{more}"
        origin = vanished[0].origin
        yield labeled("gone", text, (f"  (update it with --write-baseline {origin})", "dim"), style="green")


def accepted_words(suppressed: Sequence[Suppressed]) -> str:
    """``5 accepted, 12 known``; "" for none."""
    counts = Counter("known" if one.by == "baseline" else "accepted" for one in suppressed)
    return ", ".join(f"{counts[name]:,} {name}" for name in ("accepted", "known") if counts[name])
