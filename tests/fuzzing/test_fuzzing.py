"""benchmarks/fuzzing: the same number is the same case, every kind of misbehavior shows, and 100 files show none."""

from __future__ import annotations

import json
import os
import random
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


@pytest.mark.slow
def test_a_number_is_always_the_same_case() -> None:
    first = [cases.drawn("a", number, seeds.QUICK) for number in range(1, 40)]
    assert first == [cases.drawn("a", number, seeds.QUICK) for number in range(1, 40)]
    assert len({case.data for case in first}) > 35
    assert [case.data for case in first] != [cases.drawn("b", n, seeds.QUICK).data for n in range(1, 40)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({**cases.STRUCTURE, **cases.BYTES}))
def test_every_mutator_changes_most_models(name: str) -> None:
    models = [data for _, data in seeds.handmade()]
    made = [cases.mutated(random.Random(n), name, data, models[0]) for n, data in enumerate(models * 3)]
    assert sum(new != old for new, old in zip(made, models * 3, strict=True)) >= len(made) // 3


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


def test_check_and_apply_must_agree() -> None:
    def said(findings: list[str], applied: list[str], changed: bool) -> Ended:
        items = {name: [{"code": code, "place": {}, "round": 1} for code in codes]
                 for name, codes in (("findings", findings), ("applied", applied))}  # fmt: skip
        return replace(FINE, out=json.dumps({"reports": [{**items, "changed": changed}]}).encode())

    assert not list(judging.disagreement(said(["A", "B"], [], False), said(["B"], ["A"], True)))
    assert list(judging.disagreement(said(["A"], [], False), said([], ["A", "B"], True)))
    assert list(judging.disagreement(said(["A"], [], False), said(["A", "B"], [], False)))
    assert list(judging.disagreement(replace(FINE, code=2), said([], [], False)))


MISBEHAVIOR = """
import os, subprocess, sys, time
from pathlib import Path
from fuzzing import harness
import onnxfix.__main__
harness.adopt_orphans()
def run(does, seconds=60.0):
    onnxfix.__main__.main = does
    return harness.run(["check"], Path("."), Path("."), seconds)
def ends(): print(sys.argv, os.environ["TMPDIR"]); sys.exit(3)
def raises(): raise KeyError("x")
def sleeps(): time.sleep(60)
def grows(): len(bytearray(90 << 20)); sys.exit(0)
def works():
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
def leaves(): subprocess.Popen(["sleep", "60"], start_new_session=True)
def dies(): os.abort()
for one in (ends, raises, grows, works, leaves, dies):
    found = run(one)
    traced, grown, busy = b"Traceback" in found.err, found.memory >> 20 > 80, 0.25 < found.cpu < 5
    print(one.__name__, found.code, grown, busy, found.orphans, traced, found.out)
print("sleeps", run(sleeps, 0.3).hung)
"""


@LINUX
@pytest.mark.slow
def test_the_harness_sees_what_a_run_does(tmp_path: Path) -> None:
    assert played(["-c", MISBEHAVIOR], tmp_path).splitlines() == [
        "ends 3 False False 0 False b\"['onnxfix', 'check'] .\\n\"",
        "raises 1 False False 0 True b''",
        "grows 0 True False 0 False b''",
        "works 0 False True 0 False b''",
        "leaves 0 False False 1 False b''",
        "dies -6 False False 0 False b''",
        "sleeps True",
    ]


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
