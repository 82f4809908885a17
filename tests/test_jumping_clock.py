"""The system's clock is set days forward and back during a run: the result is the same, and no limit is over early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cli_models import FIXABLE, write

pytestmark = pytest.mark.slow

#: In PYTHONPATH, so that all processes of the run have it. Each leaves a file, since it would be missed by nobody.
JUMPING = """
import itertools, os, time

_real, _jumps = time.time_ns, itertools.cycle((0, 86_400, -86_400, 100_000_000))

def _now():
    return _real() + next(_jumps) * 10**9

time.time_ns, time.time = _now, lambda: _now() / 1e9
open(os.path.join(os.environ["CLOCKS"], str(os.getpid())), "w").close()
"""


def applied(folder: Path, *, jumping: bool) -> tuple[list[dict[str, Any]], list[bytes], int]:
    """The reports, the results, and the number of processes whose clock jumped, of a run over two models at once."""
    clocks, out = folder / "clocks", folder / "out"
    clocks.mkdir(parents=True)
    if jumping:
        (folder / "sitecustomize.py").write_text(JUMPING, encoding="utf-8")
    models = [write(folder / f"{name}.onnx", FIXABLE) for name in "ab"]
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "onnxfix", "apply", *models, "--output-dir", out, "--jobs", "2", "--format", "json",
         "--timeout", "3600", "--rung-timeout", "3600", "--rungs", "contract,reference,ort-cpu"],
        env=dict(os.environ, CLOCKS=str(clocks), PYTHONPATH=os.pathsep.join(paths)),
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)["reports"]
    return reports, [(out / path.name).read_bytes() for path in models], len(list(clocks.iterdir()))


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    steady, files, none = applied(tmp_path / "steady", jumping=False)
    jumped, others, processes = applied(tmp_path / "jumping", jumping=True)
    assert others == files
    assert none == 0
    assert processes >= 3, "the command, a worker, and its sandbox"
    for one, other in zip(jumped, steady, strict=True):
        rungs = [
            [(rung["name"], rung["status"]) for rung in found["verdict"]["rungs"]] for found in (one, other)
        ]
        assert rungs[0] == rungs[1]
        assert {status for _, status in rungs[0]} == {"passed"}
        assert 0 <= one["seconds"] < 3600
