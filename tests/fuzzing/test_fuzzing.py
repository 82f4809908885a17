"""benchmarks/fuzzing: the same number is the same case, every kind of misbehavior shows, and 100 files show none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fuzzing.harness import Ended

from fuzzing import cases, judging, seeds
from support.paths import ROOT
from support.patience import PATIENCE

SCRIPT = ROOT / "benchmarks" / "fuzzing" / "run.py"
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness measures as Linux does")
FINE = Ended(0, b"model.onnx  0 warnings\n", b"", 0.1, 0.1, 1 << 20, False, 0)
CHECK = cases.Command("check", (("check", "model.onnx", "--format", "text"),))


@pytest.mark.parametrize(
    ("kind", "ended"),
    [
        ("exit code", replace(FINE, code=-11)),
        ("exit code", replace(FINE, code=130)),
        ("hang", replace(FINE, code=-9, hung=True)),
        (
            "bug",
            replace(FINE, code=2, err=b'Traceback (most recent call last):\n  File "a/b.py", line 3, in f\n'),
        ),
        (
            "bug",
            replace(
                FINE, code=2, err=b"onnxfix: m: internal error of onnxfix, please report it: X (b.py:3)\n"
            ),
        ),
        ("bug", replace(FINE, code=2, out=b"problem   rule CTL020 failed at b: TypeError: int()\n")),
        ("time", replace(FINE, cpu=30.0)),
        ("memory", replace(FINE, memory=900 << 20)),
        ("process left", replace(FINE, orphans=1)),
        ("silent", replace(FINE, code=2)),
        ("not UTF-8", replace(FINE, out=b"\xff")),
        ("control character", replace(FINE, out=b"\x1b[31m")),
    ],
)
def test_what_a_run_must_not_do(kind: str, ended: Ended) -> None:
    assert [one.kind for one in judging.faults(CHECK, 0, ended, {}, {}, 1000)] == [kind]
    assert not list(judging.faults(CHECK, 0, FINE, {}, {}, 1000))


@LINUX
@pytest.mark.slow
def test_a_hundred_damaged_files(tmp_path: Path) -> None:
    """Those of a fixed seed; ``nox -s fuzz`` tries others."""
    out = played([str(SCRIPT), "--seed", "ci", "--count", "100", "--groups", ",".join(seeds.QUICK), "--verified", "0"],
                 tmp_path)  # fmt: skip
    (row,) = [line for line in out.splitlines() if line.startswith("| all |")]
    tried, *codes, other, bad = [int(cell) for cell in row.strip("| ").split(" | ")[1:]]
    assert (tried, other, bad) == (100, 0, 0), out
    assert all(codes[:3]), "the files are of one kind"


def played(words: list[str], folder: Path) -> str:
    """The output of Python with these words, in a process of its own."""
    paths = [str(ROOT / name) for name in (".", "rules", "benchmarks")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    yield
    assert not list(tmp_path.glob("fuzzing-*"))
