"""The table of what proofs cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from pages import markdown

MOST = 2.0
"""How many times the sum of its parts a proof may take."""
LEEWAY = 1.03
"""Peaks of the same command differ by up to this factor."""
_BUILDS = ("trt-build", "trt-network", "trt-gpu")


def ratio(row: dict[str, Any]) -> float:
    """Seconds of ``apply`` in those of its parts."""
    return statistics.median(row["apply"]) / statistics.median(row["bare"])


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown: a line for each model, and their median."""
    heads = ("model", "MB", "parts, s", "apply, s", "before, s", "apply to parts", "before to parts")
    heads += ("ort-cpu, s (before)", "TensorRT's rungs, s (before)", "feeds (before)", "peak, MB (before)")
    reasons = (
        [f"`{row['name']}`", row["reason"], *[""] * (len(heads) - 2)] for row in rows if row.get("reason")
    )
    yield from markdown(heads, [*(list(_cells(row)) for row in rows if not row.get("reason")), *reasons])
    judged = [row for row in rows if not row.get("reason")]
    if judged:
        ratios = sorted(map(ratio, judged))
        yield ""
        within = sum(one <= MOST for one in ratios)
        yield (
            f"`apply` to the sum of its parts: median {statistics.median(ratios):.2f} ({ratios[0]:.2f} to "
            f"{ratios[-1]:.2f}), at most {MOST:.0f} in {within} of {len(ratios)}."
        )


def _cells(row: dict[str, Any]) -> Iterator[str]:
    bare, ours = statistics.median(row["bare"]), statistics.median(row["apply"])
    before = statistics.median(row["base"]) if row.get("base") else None
    yield f"`{row['name']}`"
    yield f"{row['bytes'] / 1e6:.1f}"
    yield f"{bare:.2f}"
    yield f"{ours:.2f}"
    yield "–" if before is None else f"{before:.2f}"
    yield f"{ours / bare:.2f}"
    yield "–" if before is None else f"{before / bare:.2f}"
    yield _both(*(_spent(row[key], ("ort-cpu",)) for key in ("rungs", "rungs before")), ".1f")
    yield _both(*(_spent(row[key], _BUILDS) for key in ("rungs", "rungs before")), ".1f")
    yield _both(row["feeds"], row["feeds before"] or None, "d")
    yield _both(row["peaks"]["apply"], row["peaks"].get("base"), ",.0f")


def _spent(rungs: dict[str, float], names: Sequence[str]) -> float | None:
    return sum(rungs.get(name, 0.0) for name in names) if rungs else None


def _both(now: float | None, before: float | None, form: str) -> str:
    shown = ["–" if one is None else format(one, form) for one in (now, before)]
    return shown[0] if before is None else f"{shown[0]} ({shown[1]})"
