"""What refactorings are held to, in benchmarks/: each script starts, and the oracles find nothing on a small sample."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing import seeds
from support.paths import ROOT
from support.patience import PATIENCE

BENCHMARKS = ROOT / "benchmarks"
TORCH = ("exports/make.py", "zoo/make.py")  # they run where PyTorch is
SCRIPTS = [
    path
    for path in sorted(BENCHMARKS.rglob("*.py"))
    if "ArgumentParser" in (text := path.read_text(encoding="utf-8")) or "parser_of(__doc__)" in text
    if "__main__" in text and path.relative_to(BENCHMARKS).as_posix() not in TORCH
]


def play(script: Path, *words: object) -> str:
    """What a script prints, in a process of its own."""
    paths = os.pathsep.join(str(ROOT / name) for name in (".", "rules", "benchmarks"))
    told = subprocess.run(
        [sys.executable, script, *map(str, words)],
        env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(BENCHMARKS).as_posix())
def test_a_script_says_how_it_is_called(script: Path) -> None:
    assert play(script, "--help").startswith("usage: ")


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the harness measures as Linux does")
def test_damaged_files(stride: int) -> None:
    """Those of a fixed seed; ``nox -s fuzz`` tries others."""
    count = 100 if stride == 1 else 40
    given = ("--seed", "ci", "--count", count, "--groups", ",".join(seeds.QUICK), "--verified", "0")
    out = play(BENCHMARKS / "fuzzing" / "run.py", *given)
    (row,) = [line for line in out.splitlines() if line.startswith("| all |")]
    tried, *codes, other, bad = [int(cell) for cell in row.strip("| ").split(" | ")[1:]]
    assert (tried, other, bad) == (count, 0, 0), out
    assert all(codes[:3]), "the files are of one kind"


@pytest.mark.slow
def test_random_models_keep_every_promise(tmp_path: Path, stride: int) -> None:
    """Each model that fails is drawn again by its number: ``run.py --seed 19 --without-node-models --only NUMBER``."""
    count = 300 if stride == 1 else 120
    given = ("--seed", "19", "--to", count, "--without-node-models", "--json", tmp_path / "rows")
    play(BENCHMARKS / "random_models" / "run.py", *given)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert sorted(row["number"] for row in rows) == list(range(count))
    assert sum(row["status"] == "run" for row in rows) >= 0.93 * count
    assert sum(row["changed"] for row in rows) >= 0.83 * count
    assert sum(bool(row["feeds"]) for row in rows) >= 0.8 * count
