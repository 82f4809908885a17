"""What a diagnosis says of a planted fault, and whether it is right."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.choosing import Fault

TIMED_OUT = 124
SHOWN = 5  # culprits that are kept
AMONG = 3


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code, what it wrote, seconds, and peak memory in MB of the largest of its processes."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    megabytes: float


def executed(command: Sequence[str], limit: float, cwd: Path | None = None) -> Ended:
    """Run a command and wait for it; after ``limit`` seconds it is killed, with its children, and the code is 124."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=cwd, start_new_session=True)
        late = False
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if not late and time.perf_counter() - began > limit:
                late = True
                os.killpg(process.pid, 9)
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    code = TIMED_OUT if late else process.returncode
    return Ended(code, texts[0], texts[1], time.perf_counter() - began, usage.ru_maxrss / 1024)


def is_right(culprit: Mapping[str, Any], fault: Fault) -> bool:
    """Whether it names the changed node, or what was put around it: by its output, or by its name."""
    return culprit.get("output") in fault.outputs or culprit.get("node") in fault.nodes


def place_of(culprits: Sequence[Mapping[str, Any]], fault: Fault) -> int:
    """The place of the first culprit that is right, from 1; 0 for none."""
    return next((place for place, one in enumerate(culprits, 1) if is_right(one, fault)), 0)


def entry(ended: Ended, fault: Fault | None) -> dict[str, Any]:
    """What is kept of a run of ``onnxfix diagnose``."""
    found: dict[str, Any] = {
        "exit": ended.code,
        "seconds": round(ended.seconds, 2),
        "megabytes": round(ended.megabytes),
    }
    try:
        said = json.loads(ended.stdout)
        culprits = said["culprits"]
    except (ValueError, LookupError, TypeError):
        words = f"no result in {ended.seconds:.0f} s" if ended.code == TIMED_OUT else ended.stderr[-400:]
        return {
            **found,
            "status": "error",
            "reason": words,
            "culprits": [],
            **({"place": 0} if fault is not None else {}),
        }
    if fault is not None:
        found["place"] = place_of(culprits, fault)
    shown = ("node", "op_type", "output", "own_error", "cause", "reason")
    return {
        **found,
        "status": said["status"],
        "reason": said.get("reason", ""),
        "runs": said.get("runs", 0.0),
        "complete": said.get("complete", True),
        "count": len(culprits),
        "begins": [one.get("output", "") for one in said.get("begins", ())[:AMONG]],
        "culprits": [{key: one.get(key) for key in shown} for one in culprits[:SHOWN]],
    }
