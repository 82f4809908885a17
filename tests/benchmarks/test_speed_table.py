"""benchmarks/speed: what a process cost, what counts as right, which limits are met, and what the tables say."""

# Long because: it covers models, processes, judgment, limits and tables of one benchmark.

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from speed import judge, models, synthetic, tools, verdict
from speed.timing import Result

from support.models import model
from support.paths import ROOT
from support.patience import PATIENCE

FOLDER = ROOT / "benchmarks" / "speed"


# ---------------------------------------------------------------------------------------------------- models


def nodes(graph: onnx.GraphProto) -> int:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return len(graph.node) + sum(nodes(one) for one in inner)


@pytest.mark.parametrize("kind", models.KINDS)
def test_synthetic_models_are_valid_of_their_size_and_finite(kind: str) -> None:
    model = synthetic.made(f"{kind}.1k")
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, strict_mode=True), full_check=True)
    assert abs(nodes(model.graph) - 1_000) <= 60
    [value] = ReferenceEvaluator(model).run(None, {"x": np.full((2, 4), 8.0, np.float32)})
    assert value.shape == (2, 4)
    assert np.isfinite(value).all()
    assert synthetic.made(f"{kind}.1k").SerializeToString() == model.SerializeToString()


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


@pytest.mark.parametrize(
    ("graph", "note"),
    [
        ("g (float[N] x) => (float[N] y) { y = Neg(x) }", ""),
        ("g (float[N] x) => (float[N] y) { t = Neg(x) y = Identity(t) }", ""),
        ("g (float[M] x) => (float[N] y) { y = Neg(x) }", "input x: float[N] → float[M]"),
        ("g (float[N] x) => (float[3] y) { y = Neg(x) }", "output y: float[N] → float[3]"),
        ("g (float[N] x) => (float[N] z) { z = Neg(x) }", "outputs y → z"),
    ],
)
def test_changes_of_the_interface(graph: str, note: str) -> None:
    first = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    assert judge.interface(first, model(graph)) == ([note] if note else [])


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


# ---------------------------------------------------------------------------------------------------- limits


def costs(*walls: float, rss: float = 100.0, status: str = "ok") -> list[dict[str, Any]]:
    return [
        asdict(tools.Cost(status, "too bad" * (status != "ok"), w, w, rss, 80.0, 20.0, 90.0)) for w in walls
    ]


def export(check: float = 0.5, apply: float = 1.0, rss: float = 150.0, **rest: Any) -> Result:
    runs = {
        "start": costs(0.05, 0.05, 0.06),
        "import": costs(0.25, 0.25, 0.3),
        "check": costs(check, check, 9.0),
        "apply": costs(apply, apply * 1.1, apply * 0.9, rss=rss),
        "onnxsim": costs(1.0, status="timeout"),
        "onnxslim": costs(5.0, 5.0, 5.0, rss=4000.0),
        "onnxscript": costs(4.0, 4.0, 1.0, rss=1000.0),
    }
    return Result(
        "bert",
        "export",
        4 * 10**8,
        {"warm": runs, **rest},
        {"apply": costs(1.0)[0]},
        {"scan": 0.05, "shapes": 0.1, "nodes": 7},
        {"right": True, "data": "", "difference": 0.0},
    )


def met(results: list[Result], part: str) -> bool | None:
    [point] = [point for point in verdict.points(results) if part in point.text]
    return point.met


def test_a_wrong_result_is_a_missed_limit() -> None:
    wrong = export()
    wrong.judged = {"right": False, "why": "differs"}
    assert met([export(), wrong], "exports: what `apply` writes") is False
    assert met([export()], "exports: what `apply` writes") is True
