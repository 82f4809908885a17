"""``onnxfix layers`` on a real GPU: what the inspector says, and engines that are executed. ``pytest -m gpu``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from onnxfix.runtime.sandbox import Worker
from support.paths import FIXTURES
from support.patience import PATIENCE

pytestmark = pytest.mark.gpu
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": os.environ.get("ONNXFIX_TEST_GPUS", "")}
MODELS = pytest.mark.parametrize(
    "name", ["vit.legacy.op17", "mixed_precision.legacy.op17", "bert.legacy.op17"]
)


def layers(path: Path, *options: str | Path) -> dict[str, Any]:
    """The command's document, from a process that sees the GPU."""
    command = [sys.executable, "-m", "onnxfix", "layers", str(path), "--format", "json", *map(str, options)]
    run = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert run.returncode in (0, 1, 3), run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@cache
def unexecuted() -> str:
    """Why no engine runs here; "" where one does."""
    with Worker(variables={"CUDA_VISIBLE_DEVICES": ENVIRONMENT["CUDA_VISIBLE_DEVICES"]}) as worker:
        if not worker.call("onnxfix.runtime.nvidia:gpus", timeout=PATIENCE).value:
            return "no NVIDIA GPU found"
    found = layers(FIXTURES / "mixed_precision.legacy.op17.onnx", "--builds", "2")["builds"]
    return str(found["unexecuted"])


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if unexecuted():
        pytest.skip(unexecuted())


@MODELS
def test_the_inspector_reads_the_engine(name: str) -> None:
    found = layers(FIXTURES / f"{name}.onnx")
    assert (found["status"], found["source"]) == ("accepted", "log")
    assert not [text for text in found["unknown"] if "inspector" in text]


@MODELS
def test_engines_are_executed_and_compared(name: str, tmp_path: Path) -> None:
    engine = tmp_path / "best.engine"
    found = layers(FIXTURES / f"{name}.onnx", "--builds", "3", "--save-engine", engine)
    builds = found["builds"]
    assert builds["trials"] > 0
    assert [one["outcome"] for one in builds["engines"]] == ["right"] * 3
    assert all(one["error"] is not None and one["median_ms"] > 0 for one in builds["engines"])
    least = min(one["error"] for one in builds["engines"])
    [kept] = [one for one in builds["engines"] if one["number"] == builds["kept"]]
    assert kept["error"] <= 1.1 * least
    assert engine.stat().st_size == kept["engine_bytes"]


def test_a_process_of_the_users_loads_the_engine(tmp_path: Path) -> None:
    """It has no variable that turns TF32 off; TensorRT-RTX loads no engine that was built under one."""
    engine = tmp_path / "best.engine"
    found = layers(FIXTURES / "vit.legacy.op17.onnx", "--builds", "2", "--save-engine", engine)
    module = "tensorrt_rtx" if found["package"] == "tensorrt-rtx" else "tensorrt"
    code = (
        f"import sys, {module} as trt\n"
        "engine = trt.Runtime(trt.Logger()).deserialize_cuda_engine(open(sys.argv[1], 'rb').read())\n"
        "assert engine is not None and engine.create_execution_context() is not None"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(engine)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.returncode == 0, run.stderr
