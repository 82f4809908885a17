"""What scripts share: their command lines, and onnxfix's command, run as a user runs it: in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "benchmarks" / "speed" / "launch.py"
TIMED_OUT = 124


def parser_of(document: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring."""
    return argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)


def exit_code(run: Callable[[], int]) -> int:
    """What ``run`` returns; 2 and one line where something that it needs is not there."""
    from onnxfix.errors import OnnxfixError  # here, for some scripts run where there is no onnxfix

    try:
        return run()
    except OnnxfixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def reported(*arguments: str | Path, limit: float | None = None) -> tuple[int, dict[str, Any], float]:
    """Run this checkout's ``onnxfix`` on one model: the exit code, the report (or ``stderr``, where there is none), and
    seconds.

    What takes longer than ``limit`` seconds is ended: the exit code is 124.
    """
    began = time.perf_counter()
    command = [sys.executable, "-m", "onnxfix", *map(str, arguments), "--format", "json"]
    path = filter(None, (str(ROOT), str(ROOT / "rules"), os.environ.get("PYTHONPATH")))
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=own)
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


def commit(checkout: Path, *paths: str, changing: bool = False) -> str:
    """The commit of a checkout, with "+" where the paths were changed since; "unknown" for no checkout. ``changing``:
    the last one that changed them."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(checkout), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        last = git("log", "-1", "--format=%H", *(("--", *paths) if changing else ()))
        return last + ("+" if git("status", "--porcelain", "--", *paths) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def launched(
    command: Sequence[str], words: Path, limits: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """What a run of a command costs, by speed/launch.py; the command's words are in the file ``words``."""
    asked = {"command": command, "words": str(words), **limits}
    launcher = [sys.executable, "-I", "-S", str(LAUNCH), json.dumps(asked)]
    done = subprocess.run(launcher, capture_output=True, text=True, check=True, **options)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rungs_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rungs of a report by name; none where nothing was verified."""
    return {one["name"]: one for one in (report.get("verdict") or {}).get("rungs", ())}
