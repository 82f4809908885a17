"""The command, run as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMED_OUT = 124


def reported(*arguments: str | Path, limit: float | None = None) -> tuple[int, dict[str, Any], float]:
    """Run ``onnxfix`` on one model: the exit code, the report (or ``stderr``, where there is none), and seconds.

    What takes longer than ``limit`` seconds is ended: the exit code is 124.
    """
    began = time.perf_counter()
    command = [sys.executable, "-m", "onnxfix", *map(str, arguments), "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return TIMED_OUT, {"stderr": f"no result in {limit} s"}, time.perf_counter() - began
    seconds = time.perf_counter() - began
    try:
        return done.returncode, json.loads(done.stdout)["reports"][0], seconds
    except (ValueError, LookupError):
        return done.returncode, {"stderr": done.stderr[-400:]}, seconds


def divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before a "--", and those after it, which are options of another command."""
    place = [*words, "--"].index("--")
    return [*words[:place]], [*words[place + 1 :]]


def rungs_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rungs of a report by name; none where nothing was verified."""
    return {one["name"]: one for one in (report.get("verdict") or {}).get("rungs", ())}
