"""The table of what proofs cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from pages import markdown

MOST = 2.0
"""How many times the sum of its parts a proof may take."""
_BUILDS = ("trt-build", "trt-network", "trt-gpu")


def ratio(row: dict[str, Any]) -> float:
    """Seconds of ``apply`` in those of its parts."""
    return statistics.median(row["apply"]) / statistics.median(row["bare"])


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown: a line for each model, and their median."""
    heads = ("model", "MB", "parts, s", "apply, s", "apply to parts", "ort-cpu, s", "TensorRT's rungs, s")
    heads += ("feeds", "peak, MB")
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
    yield from (f"`{row['name']}`", f"{row['bytes'] / 1e6:.1f}")
    yield from (f"{statistics.median(row[key]):.2f}" for key in ("bare", "apply"))
    yield f"{ratio(row):.2f}"
    for names in (("ort-cpu",), _BUILDS):
        yield f"{sum(row['rungs'].get(name, 0.0) for name in names):.1f}"
    yield from (str(row["feeds"]), f"{row['peak']:,.0f}")
