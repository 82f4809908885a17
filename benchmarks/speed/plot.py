"""Draw the two plots; run by a Python that has matplotlib.

    python plot.py RESULTS.json SCREENING.json FOLDER

``exports.svg``: seconds of every export, onnxfix beside its parts and the peers. ``nodes.svg``: seconds by number of
nodes of the synthetic models; peers as they were screened, a single run each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from speed import screening, timing
from speed.models import KINDS, SIZES
from speed.tools import PEERS

matplotlib.use("svg")
import matplotlib.pyplot as plt

_COLORS = {"check": "#1b7837", "apply": "#5aae61", "parts": "#bbbbbb"}
_PEER_COLORS = dict(
    zip([tool.name for tool in PEERS], ("#d6604d", "#f4a582", "#4393c3", "#762a83", "#b35806"), strict=True)
)


def exports(results: list[timing.Result], screened: screening.Screened) -> Any:
    """A row of dots for each export."""
    shown = sorted((r for r in results if r.kind != "synthetic"), key=lambda r: r.median("apply") or 0.0)
    figure, axes = plt.subplots(figsize=(7.5, 0.24 * len(shown) + 1.4))
    for tool, color in _PEER_COLORS.items():
        known = [(r.median(tool), screened.get(r.name, {}).get(tool, {})) for r in shown]
        timed = [(x, n) for n, (x, _) in enumerate(known) if x is not None]
        once = [(row["wall"], n) for n, (x, row) in enumerate(known) if x is None and row.get("right")]
        _draw(axes, timed, "o", tool, color, ms=4.5)
        _draw(axes, once, "o", "_" if timed else tool, color, mfc="none", ms=4)
    for key, marker, size in (("parts", "|", 9), ("check", "D", 5), ("apply", "s", 5)):
        values = [r.parts_seconds() if key == "parts" else r.median(key) for r in shown]
        label = "parts of a check" if key == "parts" else f"onnxfix {key}"
        points = [(x, n) for n, x in enumerate(values) if x is not None]
        _draw(axes, points, marker, label, _COLORS[key], ms=size)
    axes.set_yticks(range(len(shown)), [f"{r.name}, {r.bytes / 1e6:,.0f} MB" for r in shown], fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel(
        "seconds, whole process, files in memory (filled: medians; hollow: a single run)", fontsize=8
    )
    axes.grid(axis="x", color="#eeeeee")
    axes.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False)
    return figure


def nodes(results: list[timing.Result], screened: screening.Screened) -> Any:
    """A line for each kind of synthetic model, and one for each peer on chains."""
    figure, axes = plt.subplots(figsize=(5.5, 3.8))
    known = {r.name: r.median("apply") for r in results}
    for kind, marker in zip(KINDS, "osD^", strict=True):
        values = [(count, known.get(f"{kind}.{size}")) for size, count in SIZES.items()]
        points = [(x, y) for x, y in values if y is not None]
        _draw(axes, points, f"-{marker}", f"onnxfix apply, {kind}", _COLORS["check"], ms=4, lw=1)
    for tool, color in _PEER_COLORS.items():
        row = [(count, screened.get(f"chain.{size}", {}).get(tool)) for size, count in SIZES.items()]
        points = [(x, one["wall"]) for x, one in row if one and one.get("right")]
        _draw(axes, points, "--o", f"{tool}, chain", color, mfc="none", ms=4, lw=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("nodes", fontsize=8)
    axes.set_ylabel("seconds, whole process", fontsize=8)
    axes.grid(color="#eeeeee")
    axes.legend(fontsize=6.5, frameon=False)
    return figure


def _draw(axes: Any, points: list[tuple[Any, Any]], form: str, label: str, color: str, **style: Any) -> None:
    """Points as matplotlib's ``plot`` draws them; none, and no entry of the legend, where there are none."""
    if points:
        axes.plot([x for x, _ in points], [y for _, y in points], form, label=label, color=color, **style)


def main() -> None:
    """Run as the module's docstring says."""
    results = list(timing.read(Path(sys.argv[1])).values())
    screened = screening.read(Path(sys.argv[2]))
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "onnxfix", "font.family": "sans-serif"})
    for name, draw in (("exports", exports), ("nodes", nodes)):
        figure = draw(results, screened)
        figure.savefig(Path(sys.argv[3]) / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
