"""benchmarks/speed: what a process cost, and what counts as right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from speed import judge

from support.models import model
from support.paths import ROOT
from support.patience import PATIENCE

FOLDER = ROOT / "benchmarks" / "speed"


# ---------------------------------------------------------------------------------------------------- processes


def launched(code: str, tmp_path: Path, **limits: Any) -> dict[str, Any]:
    asked = {
        "command": [sys.executable, "-c", code],
        "timeout": PATIENCE,
        "memory_mb": 2000,
        "watch": False,
        "words": str(tmp_path / "words"),
        **limits,
    }
    command = [sys.executable, "-I", "-S", str(FOLDER / "launch.py"), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_process_and_its_children_are_counted(tmp_path: Path) -> None:
    child = "x = b'1' * (150 << 20); import time; time.sleep(2)"
    code = f"import subprocess, sys; print('hello'); subprocess.run([sys.executable, '-c', {child!r}])"
    found = launched(code, tmp_path, watch=True)
    assert (found["code"], found["status"]) == (0, "ended")
    assert found["wall"] > 0.2
    assert found["cpu"] > 0.0
    assert found["rss"] > 150 > found["parent"] > 5  # the greatest process is the child
    assert found["children"] > 150
    assert found["together"] > 150
    assert (tmp_path / "words").read_text() == "hello\n"


def test_what_takes_too_long_or_too_much_is_ended(tmp_path: Path) -> None:
    assert launched("import time; time.sleep(600)", tmp_path, timeout=0.5)["status"] == "timeout"
    hungry = "x = b'1' * (300 << 20); import time; time.sleep(600)"
    assert launched(hungry, tmp_path, watch=True, memory_mb=200)["status"] == "memory"


# ---------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("wanted", "found", "why"),
    [
        ([1.0, 2.0], [1.0, 2.0001], ""),
        ([1.0, 2.0], [1.0, 2.001], "differs by 5.0e-04 of the largest magnitude"),
        ([1.0, np.nan], [1.0, np.nan], ""),
        ([1.0, np.nan], [1.0, 2.0], "NaN or infinity in other places"),
        ([1.0, 2.0], [1.0, np.nan], "NaN or infinity in other places"),
        ([1.0, np.inf], [1.0, -np.inf], "NaN or infinity in other places"),
        ([0.0, 0.0], [0.0, 1e-30], "differs by inf of the largest magnitude"),
        ([np.nan], [np.nan], ""),
    ],
)
def test_what_counts_as_the_same(wanted: list[float], found: list[float], why: str) -> None:
    assert judge.difference(np.float32(wanted), np.float32(found))[1] == why


def test_types_shapes_and_integers_are_compared_as_they_are() -> None:
    assert "float16[2] instead of float32[2]" in judge.difference(np.zeros(2, "f4"), np.zeros(2, "f2"))[1]
    assert "float32[1, 2]" in judge.difference(np.zeros(2, "f4"), np.zeros((1, 2), "f4"))[1]
    assert judge.difference(np.arange(3), np.array([0, 1, 3]))[1] == "other int64"
    assert judge.difference(np.float16([1.0]), np.float16([1.005]))[1] == ""


def saved(folder: Path, scale: float) -> Path:
    """A model with its weights beside it."""
    folder.mkdir()
    made = model(f"g (float[N,2] x) => (float[N,2] y) <float[2] w = {{{scale}, 2.0}}> {{ y = Mul(x, w) }}")
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([scale, 2.0]), "w"))
    onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    return folder / "m.onnx"


@pytest.mark.parametrize(("scale", "right", "data"), [(3.0, True, "identical"), (3.1, False, "differs")])
def test_a_result_is_held_against_the_original(tmp_path: Path, scale: float, right: bool, data: str) -> None:
    known = tmp_path / "known.npz"
    for _ in range(2):  # the second time with what the first one kept
        asked = {"known": str(known), "feeds": 2, "threads": 1, "source": str(tmp_path / "a" / "m.onnx")}
        if not known.exists():
            saved(tmp_path / "a", 3.0)
            saved(tmp_path / "b", scale)
        row = judge.judge({**asked, "target": str(tmp_path / "b" / "m.onnx")})
        assert (row["right"], row["data"]) == (right, data)
        assert bool(row["why"]) is not right
    with np.load(known) as kept:
        assert {kept[key].shape for key in kept} == {(2, 2), (1, 2)}


def test_no_result_is_not_right(tmp_path: Path) -> None:
    source = saved(tmp_path / "a", 1.0)
    target = saved(tmp_path / "b", 1.0)
    broken = model("g (float[N,2] x) => (float[N,2] y) { y = Neg(x) }")
    broken.graph.node[0].input[0] = "nowhere"
    onnx.save(broken, target)
    known = str(tmp_path / "known.npz")
    row = judge.judge(
        {"source": str(source), "target": str(target), "known": known, "feeds": 1, "threads": 1}
    )
    assert not row["right"]
    assert row["why"]
    assert str(tmp_path) not in row["why"]
