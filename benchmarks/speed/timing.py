"""Whole processes in turn, A B C A B C …, of every model: what each run cost."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from speed.models import Case, evict, judged, parts, say, warm
from speed.tools import APPLY, CHECK, IMPORT, OURS, PARTS, Bench, Tool

Cache = Literal["warm", "cold"]

SHORT = 1.0
"""Seconds: synthetic models that take less are run three times as often. The seconds of a model of two nodes are taken
off theirs, and what is left of a run that is mostly start-up is little beside what such runs differ."""


@dataclass
class Result:
    """All that was measured of a model.

    ``runs``: cache -> tool -> the cost of each run (``Cost.row``). ``peaks``: of one watched run of onnxfix more, warm.
    ``parts``: of parts.py. ``judged``: what judge.py says of the last result of onnxfix. ``resident``: the greatest
    share of the model's files that the kernel still held before a cold run.
    """

    name: str
    kind: str
    bytes: int
    runs: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    peaks: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    judged: dict[str, Any] = field(default_factory=dict)
    resident: float = 0.0

    def values(self, tool: str, what: str, cache: Cache = "warm") -> list[float]:
        """A figure of every run that ended well."""
        rows = self.runs.get(cache, {}).get(tool, [])
        return [float(row[what]) for row in rows if row["status"] == "ok"]

    def median(self, tool: str, what: str = "wall", cache: Cache = "warm") -> float | None:
        """The median of a figure; None where a run did not end well, or none was made."""
        values = self.values(tool, what, cache)
        whole = len(values) == len(self.runs.get(cache, {}).get(tool, []))
        return statistics.median(values) if values and whole else None

    def peak(self, tool: str) -> float | None:
        """MB: the greatest process of any run, or where they were seen, of all processes together if that is more."""
        values = self.values(tool, "rss")
        if not values:
            return None
        seen = self.peaks.get(tool, {})
        return max(*values, float(seen.get("rss", 0.0)), float(seen.get("together", 0.0)))

    def fastest(self, tools: Iterable[str], cache: Cache = "warm") -> str | None:
        """The tool of the least median."""
        timed = {tool: median for tool in tools if (median := self.median(tool, cache=cache)) is not None}
        return min(timed, key=lambda tool: timed[tool], default=None)

    def parts_seconds(self) -> float | None:
        """Interpreter and import of onnx (one process does both), wire scan, C++ shapes."""
        begun = self.median(IMPORT.name)
        return None if begun is None or not self.parts else begun + self.parts["scan"] + self.parts["shapes"]


def read(path: Path) -> dict[str, Result]:
    """The results of a file; none where there is no file."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: Result(**row) for name, row in kept.items() if name != "machine"}


def time_model(bench: Bench, case: Case, peers: Sequence[Tool], runs: int, cold: int) -> Result:
    """Watch onnxfix once, then run all in turn: ``runs`` times with the model's files in memory, ``cold`` without.

    Of a million nodes the watched run is the only one, and ONNX Runtime does not load them in any useful time.
    """
    found = Result(case.name, case.kind, case.bytes)
    folder = Path(tempfile.mkdtemp(dir=bench.scratch))
    job = case.job(folder)
    million = case.name.endswith(".1m")
    bench = replace(bench, timeout=5 * bench.timeout) if million else bench
    ours = OURS if case.kind != "synthetic" else (APPLY,)
    tools = [*(PARTS if case.kind == "export" else ()), *ours, *peers]
    try:
        warm(case)
        for tool in ours:
            found.peaks[tool.name] = bench.run(tool, job, watch=True).row()
        if million:
            found.runs["warm"] = {tool.name: [found.peaks[tool.name]] for tool in ours}
            runs = cold = 0
        elif case.kind == "synthetic" and found.peaks[APPLY.name]["wall"] < SHORT:
            runs *= 3
        if not million and found.peaks[APPLY.name]["status"] == "ok":
            found.judged = judged(bench, case, job)
            warm(case)
        if case.kind == "export":
            found.parts = parts(bench, case)
        for _ in range(runs):
            for tool in tools:
                found.runs.setdefault("warm", {}).setdefault(tool.name, []).append(bench.run(tool, job).row())
        for _ in range(cold):
            for tool in (CHECK, APPLY, *peers[:1]):
                found.resident = max(found.resident, evict(case))
                found.runs.setdefault("cold", {}).setdefault(tool.name, []).append(bench.run(tool, job).row())
    finally:
        shutil.rmtree(folder)
    say(f"{case.name}: " + ", ".join(_shown(found, tool.name, "warm") for tool in tools))
    if cold:
        say(f"{case.name}, cold: " + ", ".join(_shown(found, tool, "cold") for tool in found.runs["cold"]))
    return found


def _shown(found: Result, tool: str, cache: Cache) -> str:
    median = found.median(tool, cache=cache)
    if median is None:
        return f"{tool} {found.runs[cache][tool][-1]['message']}"
    return f"{tool} {median:.2f} s"
