"""Which peers write a right model, and how fast about: one run of each, kept in a file."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from speed.models import Case, measured, say
from speed.tools import Bench, Tool

Screened = dict[str, dict[str, dict[str, Any]]]


def read(path: Path) -> Screened:
    """What is known: model -> tool -> one run's cost and what was judged; empty where there is no file."""
    found: Screened = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def screen(
    bench: Bench, models: Sequence[Case], tools: Sequence[Tool], path: Path, jobs: int, again: bool
) -> Screened:
    """Run each tool once on each model that the file does not know yet, and judge its result by ONNX Runtime."""
    known = read(path)
    lock = threading.Lock()

    def one(case: Case) -> None:
        folder = Path(tempfile.mkdtemp(dir=bench.scratch))
        try:
            for tool in tools:
                if tool.name in known.get(case.name, {}) and not again:
                    continue
                cost, right = measured(bench, tool, case, folder, watch=True)
                with lock:
                    known.setdefault(case.name, {})[tool.name] = {**cost.row(), **right}
                    unfinished = path.with_suffix(".part")
                    unfinished.write_text(json.dumps(known, indent=1, sort_keys=True))
                    unfinished.replace(path)
                why = cost.message or right.get("why", "")
                state = "right" if right.get("right") else f"{cost.status}, does not count: {why}"
                say(f"{case.name} {tool.name}: {cost.wall:.1f} s, {cost.rss / 1024:.2f} GB, {state}")
        finally:
            shutil.rmtree(folder)

    small = [case for case in models if case.kind != "large"]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, small))
    for case in models:
        if case.kind == "large":  # one at a time: a peer may take five times the file in memory
            one(case)
    return known


def fastest(screened: Screened, case: Case, tools: Sequence[Tool], count: int, near: float) -> list[Tool]:
    """The fastest of the tools that wrote a right model: ``count`` at most, all within ``near`` times the first one.

    By processor seconds: while others work on the same machine, as with two jobs, a clock says little of one run.
    """
    rows = screened.get(case.name, {})
    right = [tool for tool in tools if rows.get(tool.name, {}).get("right")]
    spent = {tool.name: float(rows[tool.name]["cpu"]) for tool in right}
    limit = near * min(spent.values(), default=0.0)
    inside = [tool for tool in right if spent[tool.name] <= limit]
    return sorted(inside, key=lambda tool: spent[tool.name])[:count]
