"""TensorRT's engines on a real GPU: that outputs are read when they are there, and that latency is measured.

Everything else about ``trt-gpu`` is tested without one. Here a small engine is tried first, as the rung does; without a
GPU on which TensorRT loads it, all of this is skipped with the reason. ``pytest -m gpu`` runs nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import build as tensorrt
from onnxfix.tensorrt import engine as trt_run
from onnxfix.tensorrt import package as trt_package
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.timing import Latency
from support.models import write
from support.patience import PATIENCE

pytestmark = pytest.mark.gpu
VARIABLES = {"CUDA_VISIBLE_DEVICES": os.environ.get("ONNXFIX_TEST_GPUS", ""), **trt_package.TF32_OFF}
SIZE, DEEP = 4096, 30


class Machine:
    """A GPU, the package that serves it, and the sandboxes that build and execute engines."""

    def __init__(self, package: str, capability: str, builder: Worker, runner: Worker) -> None:
        self.package, self.capability = package, capability
        self.builder, self.runner = builder, runner

    def build(self, text: str, folder: Path, name: str = "model") -> Path:
        return self.engine(write(folder / f"{name}.onnx", text))

    def engine(self, path: Path) -> Path:
        target = path.with_suffix(".engine")
        done = tensorrt.attempt(
            self.builder,
            path,
            package=self.package,
            compute_capability=self.capability,
            save_engine=str(target),
        )
        assert done.accepted, done.reason
        return target

    def call(self, function: str, worker: Worker | None = None, **given: Any) -> Any:
        target = f"{trt_run.__name__}:{function}"
        outcome = (worker or self.runner).call(target, timeout=PATIENCE, package=self.package, **given)
        assert outcome.ok, outcome.message
        return outcome.value


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    packages = [name for name, module in trt_package.MODULES.items() if importlib.util.find_spec(module)]
    if not packages or importlib.util.find_spec("polygraphy") is None:
        pytest.skip("no TensorRT with Polygraphy is installed: pip install 'onnxfix[tensorrt-rtx]'")
    with Worker(variables=VARIABLES) as builder, Worker(variables=VARIABLES) as runner:
        cards = builder.call("onnxfix.runtime.nvidia:gpus", timeout=PATIENCE).value
        if not cards:
            pytest.skip("no NVIDIA GPU found, so no engine can be executed")
        chosen = builder.call(f"{trt_package.__name__}:choose", timeout=PATIENCE).value
        if not isinstance(chosen, trt_package.Choice) or chosen.gpu is None:
            note = getattr(chosen, "note", "") or getattr(chosen, "reason", chosen)
            pytest.skip(f"no engine can be executed on this GPU: {note}")
        found = Machine(chosen.package, chosen.capability, builder, runner)
        trial = tmp_path_factory.mktemp("trial") / "trial.onnx"
        trial.write_bytes(trt_package.trial_model())
        reason, _ = found.call("trial", path=str(found.engine(trial)))
        if reason:
            pytest.skip(f"no engine can be executed on this GPU: {reason}")
        yield found


def chain(count: int, rows: int = SIZE, size: int = SIZE) -> str:
    """Products that each wait for the one before: a run takes as long as all of them together."""
    steps = [
        f"p{number} = MatMul({f'r{number - 1}' if number else 'x'}, w)  r{number} = Tanh(p{number})"
        for number in range(count)
    ]
    body = "  ".join([*steps, f"y = Identity(r{count - 1})"])
    shape = f"float[{rows},{size}]"
    return f"g ({shape} x, float[{size},{size}] w) => ({shape} y) {{ {body} }}"


def feeds() -> list[dict[str, Any]]:
    """Two pairs of matrices and the first once more, of values that stay neither small nor at the limits of Tanh."""
    made = []
    for seed in (0, 1):
        source = np.random.default_rng(seed)
        x, w = (source.standard_normal((SIZE, SIZE), np.float32) for _ in range(2))
        made.append({"x": x, "w": w * np.float32(1.5 / SIZE**0.5)})
    return [*made, made[0]]


def test_outputs_of_a_long_run_are_read_after_it(machine: Machine, tmp_path: Path) -> None:
    """What is read too early is what the buffer held before: another feed's outputs, or part of them."""
    engine = machine.build(chain(DEEP), tmp_path)
    assert machine.call("load", name="long", path=str(engine)) == ""
    ran: list[Ran] = [machine.call("run", name="long", feed=feed) for feed in feeds()]
    assert [one.error for one in ran] == [""] * 3
    with Worker(
        variables={**VARIABLES, "CUDA_LAUNCH_BLOCKING": "1"}
    ) as blocking:  # each kernel is waited for
        assert machine.call("load", blocking, name="long", path=str(engine)) == ""
        waited: list[Ran] = [machine.call("run", blocking, name="long", feed=feed) for feed in feeds()[:2]]
    assert [one.error for one in waited] == [""] * 2
    outputs = [one.outputs["y"].tobytes() for one in (*ran, *waited)]
    assert outputs[0] != outputs[1], "the feeds differ, so a stale output would show"
    assert outputs[0] == outputs[2] == outputs[3]
    assert outputs[1] == outputs[4]


def test_a_run_is_as_long_as_the_test_above_needs(machine: Machine, tmp_path: Path) -> None:
    engine = machine.build(chain(DEEP), tmp_path)
    found: Latency = machine.call("latency", paths={"fixed": str(engine)}, feed=feeds()[0])
    assert found.reason == ""
    assert found.fixed is not None
    assert found.fixed.median_ms > 5, "longer than copying takes to begin"


def small() -> str:
    """Fifty small products: bound by launches."""
    return chain(50, rows=8, size=64)


def test_the_same_engine_twice_is_equally_fast(machine: Machine, tmp_path: Path) -> None:
    engine = machine.build(small(), tmp_path)
    source = np.random.default_rng(0)
    feed = {name: source.standard_normal((rows, 64), np.float32) / 8 for name, rows in (("x", 8), ("w", 64))}
    paths = {"original": str(engine), "fixed": str(engine)}
    found: Latency = machine.call("latency", paths=paths, feed=feed)
    print(json.dumps(found, default=vars, indent=1))
    assert found.reason == ""
    assert found.original is not None
    assert found.fixed is not None
    assert found.ratio == pytest.approx(1, abs=max(0.1, 3 * (found.noise or 0)))
    assert (found.launch, found.fallback) == ("cuda-graph", ""), "these kernels can be captured"
    assert found.shapes == (("x", (8, 64)), ("w", (64, 64)))
    assert min(found.original.runs, found.fixed.runs) >= 100
    assert found.original.p5_ms <= found.original.median_ms <= found.original.p95_ms
    assert min(found.original.load_seconds, found.fixed.load_seconds) > 0


def test_the_command_tells_the_latency(machine: Machine, tmp_path: Path) -> None:
    for name, extra in (("original", "a = Cast<to=1>(x)"), ("fixed", "a = Identity(x)")):
        text = f"g (float[N,64] x) => (float[N,64] y) {{ {extra}  y = Relu(a) }}"
        write(tmp_path / f"{name}.onnx", text)
    command = [sys.executable, "-m", "onnxfix", "verify", "original.onnx", "fixed.onnx", "--benchmark"]
    given: dict[str, Any] = {
        "cwd": tmp_path,
        "env": {**os.environ, "CUDA_VISIBLE_DEVICES": VARIABLES["CUDA_VISIBLE_DEVICES"]},
        "capture_output": True,
        "text": True,
        "timeout": PATIENCE,
    }
    done = subprocess.run([*command, "--rungs", "trt-gpu"], **given)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("  latency")]
    assert "original " in told
    assert " ms, new " in told
    assert "noise" in told
