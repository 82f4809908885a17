"""The commands on a Linux that looks like Windows to them (support/bare_system): no forks, no folders by descriptor, no
alarm, no modes, and no way to replace or delete a file that a process has open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from support.paths import ROOT
from support.patience import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="makes Linux look like Windows"),
    pytest.mark.xdist_group("like-windows"),
]


def write_model(path: Path, **external: Any) -> Path:
    """A model with something to fix, and a weight that is large enough to stay in the file."""
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Identity", ["m"], ["i"]),
            helper.make_node("Relu", ["i"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 256])],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path, **external)
    return path


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python on such a system."""
    places = (ROOT / "tests" / "support" / "bare_system", ROOT, ROOT / "rules")
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "sitecustomize" not in done.stderr, done.stderr
    return done


def onnxfix(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ran(folder, "-m", "onnxfix", *arguments)


def apply(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = onnxfix(folder, "apply", *arguments, "--rungs", "contract,ort-cpu", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)["reports"]
    return found


def proven(report: dict[str, Any]) -> bool:
    return {rung["name"]: rung["status"] for rung in report["verdict"]["rungs"]} == {
        "contract": "passed",
        "ort-cpu": "passed",
    }


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_apply_proves_and_writes(tmp_path: Path) -> None:
    write_model(tmp_path / "a.onnx")
    write_model(tmp_path / "b.onnx", save_as_external_data=True, location="b.data", size_threshold=64)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for report in apply(tmp_path, "a.onnx", "b.onnx", "--output-dir", "out"):
        assert proven(report)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.onnx", "b.onnx", "b.onnx.data"]
    for name in ("a.onnx", "b.onnx"):
        assert operators(tmp_path / "out" / name) == ["MatMul", "Relu"]
    again = apply(tmp_path, "a.onnx", "--in-place")
    assert proven(again[0])
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "out" / "a.onnx").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.data", "b.onnx", "out"]


def test_a_journal_is_written_rewritten_and_read(tmp_path: Path) -> None:
    write_model(tmp_path / "a.onnx")
    os.utime(tmp_path / "a.onnx", (10**9, 10**9))  # a file of the last two seconds has no stamp yet
    arguments = ("apply", "a.onnx", "--output-dir", "out", "--resume", "--rungs", "contract")
    assert onnxfix(tmp_path, *arguments).returncode == 0
    journal = tmp_path / "out" / ".onnxfix-journal.jsonl"
    head, line = journal.read_bytes().splitlines()
    journal.write_bytes(b"\n".join([head, line, line, line, line, b""]))  # most of it is outdated
    done = onnxfix(tmp_path, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "unchanged, skipped" in done.stdout
    assert journal.read_bytes() == head + b"\n" + line + b"\n"


def test_what_is_lacking_is_known(tmp_path: Path) -> None:
    """Which ``onnxfix doctor`` says."""
    code = "from onnxfix import system; print(*(lack.value for lack in system.lacks()))"
    assert ran(tmp_path, "-c", code).stdout.split() == [
        "fork",
        "folder-descriptors",
        "memory-limits",
        "death-signal",
        "alarm",
        "replacing-open-files",
        "owners",
    ]
