"""Histograms as bars of text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from onnxfix.diagnosis.records import Histogram
from onnxfix.report.render.words import count, number
from onnxfix.verification.compare.decades import ErrorHistogram

ROWS = 8
"""Lines of a histogram of values; bins are joined."""


def value_lines(found: Histogram | None, width: int) -> Iterator[str]:
    """The values of both sides, between the same edges; nothing where none is finite."""
    if found is None:
        return
    step = max(len(found.truth) // ROWS, 1)
    starts = range(0, len(found.truth), step)
    edges = [found.edges[start] for start in starts] + [found.edges[-1]]
    sides = [[sum(side[start : start + step]) for start in starts] for side in (found.truth, found.other)]
    room = max((width - 28) // 2 - 12, 8)
    most = max(*sides[0], *sides[1], 1)
    labels = _labels(edges)
    yield f"{'values':<{len(labels[0])}}  {'truth':<{room + 12}}{'other side'}"
    for label, one, two in zip(labels, *sides, strict=True):
        left = f"{_bar(one, most, room)} {count(one) if one else ''}"
        yield f"{label}  {left:<{room + 12}}{_bar(two, most, room)} {count(two) if two else ''}".rstrip()


def error_lines(found: ErrorHistogram | None, width: int) -> Iterator[str]:
    """The absolute errors, by powers of 10; nothing where there is none."""
    if found is None or not found.counts:
        return
    labels = _labels(found.edges)
    rows = [*zip(labels, found.counts, strict=True)]
    if found.zeros:
        rows.insert(0, (f"{'none':<{len(labels[0])}}", found.zeros))
    most, room = max(value for _, value in rows), max(width - 40, 8)
    yield "errors"
    for label, value in rows:
        yield f"{label}  {_bar(value, most, room)} {count(value) if value else ''}".rstrip()


def _labels(edges: Sequence[float]) -> list[str]:
    """``low to high`` for each bin, in columns."""
    texts = [number(edge) for edge in edges]
    wide = max(map(len, texts))
    return [f"{low:>{wide}} to {high:<{wide}}" for low, high in itertools.pairwise(texts)]


def _bar(value: int, most: int, room: int) -> str:
    """At least one sign for what is not nothing."""
    return "#" * (max(round(room * value / most), 1) if value else 0)
