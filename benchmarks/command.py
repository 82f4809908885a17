"""The command, run as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def reported(*arguments: str | Path) -> tuple[int, dict[str, Any], float]:
    """Run ``onnxfix`` on one model: the exit code, the report (or ``stderr``, where there is none), and seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "onnxfix", *map(str, arguments), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    try:
        return done.returncode, json.loads(done.stdout)["reports"][0], seconds
    except (ValueError, LookupError):
        return done.returncode, {"stderr": done.stderr[-400:]}, seconds


def rungs_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rungs of a report by name; none where nothing was verified."""
    return {one["name"]: one for one in (report.get("verdict") or {}).get("rungs", ())}
