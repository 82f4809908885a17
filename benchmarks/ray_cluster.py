"""A fleet on a Ray cluster of two nodes, one of which dies half-way: is every model reported, is every output right?

    python benchmarks/ray_cluster.py [--models 500] [--jobs 4]

Makes the models, runs ``onnxfix apply`` over them on this machine (``--jobs``) and on a cluster of two ``ray start``
processes with two CPUs each, kills one node's processes (SIGKILL) when half of the models are done, and compares: each
model reported once and in order, the same findings, and every output byte for byte. Exit code 1 for any difference.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent))
from ray_nodes import Cluster, Node

PATTERN = "*/*.onnx"
TIMEOUT = 1800.0


def make_model(number: int) -> onnx.ModelProto:
    """A small model of its own weights, with two to six hazards: biases of a lower rank, and Casts that do nothing."""
    random = np.random.default_rng(number)
    layers = 2 + number % 5
    nodes, weights, last = [], [], "x"
    for layer in range(layers):
        matrix = random.standard_normal((16, 16)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        weights.append(numpy_helper.from_array(random.standard_normal(16).astype(np.float32), f"b{layer}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Cast", [f"m{layer}"], [f"c{layer}"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Add", [f"c{layer}", f"b{layer}"], [f"a{layer}"]))
        last = f"a{layer}"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16]) for name in "xy"]
    graph = helper.make_graph(nodes, f"model{number}", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def make_models(folder: Path, count: int) -> None:
    """``count`` models in folders of a hundred."""
    for number in range(count):
        path = folder / f"{number // 100}" / f"model{number:04}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(make_model(number), path)


def command(models: Path, output: Path, *more: str) -> list[str]:
    """``onnxfix apply`` over all models, with the report as JSON on standard output."""
    there = ["--output-dir", str(output), "--format", "json", "--fail-on", "never"]
    return [sys.executable, "-m", "onnxfix", "apply", str(models / PATTERN), *there, *more]


def written(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Run:
    """A run of the command: its exit code, its JSON, what it said on standard error, and its seconds."""

    code: int
    report: dict[str, Any]
    words: str
    seconds: float

    def models(self) -> list[str]:
        """The models reported, in order, and those that ended in an error."""
        done = [report["path"] for report in self.report["reports"]]
        return done + [error["path"] for error in self.report["errors"]]

    def results(self, output: Path) -> list[Any]:
        """What must not hang on where a model was done."""
        keys = ("path", "findings", "applied", "withdrawn", "problems", "changed", "rounds")
        return [
            [*(report[key] for key in keys), str(Path(report["output"]).relative_to(output))]
            for report in self.report["reports"]
        ]


def run_local(models: Path, output: Path, jobs: int) -> Run:
    """On this machine."""
    began = time.monotonic()
    done = subprocess.run(
        command(models, output, "--jobs", str(jobs)), capture_output=True, text=True, check=False
    )
    return _run(done.returncode, done.stdout, done.stderr, began)


def run_ray(models: Path, output: Path, cluster: Cluster, victim: Node, kill_at: int) -> Run:
    """On the cluster; ``victim`` is killed when ``kill_at`` outputs are there."""
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        tempfile.TemporaryFile("w+", encoding="utf-8") as words,
    ):
        asked = command(models, output, "--ray", cluster.address)
        process = subprocess.Popen(asked, env=cluster.environ, stdout=said, stderr=words)
        try:
            while sum(1 for _ in output.glob("*/*.onnx")) < kill_at:
                if process.poll() is not None or time.monotonic() - began > TIMEOUT:
                    break
                time.sleep(0.02)
            busy = process.poll() is None
            victim.kill()
            process.wait(max(1.0, TIMEOUT - (time.monotonic() - began)))
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        words.seek(0)
        if not busy:
            raise RuntimeError(f"the run ended before the node was killed: {words.read()}")
        return _run(process.returncode, said.read(), words.read(), began)


def _run(code: int, said: str, words: str, began: float) -> Run:
    try:
        return Run(code, json.loads(said), words, time.monotonic() - began)
    except ValueError:
        raise RuntimeError(
            f"exit code {code}, and standard output is no JSON: {said[:2000]}\n{words}"
        ) from None


def differences(models: Path, local: tuple[Run, Path], ray: tuple[Run, Path]) -> list[str]:
    """What is wrong with the cluster's run, in words."""
    expected = [str(path) for path in sorted(models.glob(PATTERN))]
    found = []
    for name, (run, output) in (("local", local), ("ray", ray)):
        if run.models() != expected:
            found.append(
                f"{name}: {len(run.models())} models are reported in another order, of {len(expected)}"
            )
        found += [f"{name}: {error['message']}" for error in run.report["errors"]]
        if run.code != 0:
            found.append(f"{name}: exit code {run.code}: {run.words}")
        missing = {str(Path(path).relative_to(models)) for path in expected} ^ set(written(output))
        found += [f"{name}: {path}: an output is missing or too many" for path in sorted(missing)]
    if local[0].results(local[1]) != ray[0].results(ray[1]):
        found.append("the reports differ")
    ours, theirs = written(local[1]), written(ray[1])
    found += [f"{path}: differs" for path in sorted(set(ours) & set(theirs)) if ours[path] != theirs[path]]
    return found


def main() -> int:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=4, help="of the local run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = folder / "models"
        make_models(models, asked.models)
        local = run_local(models, folder / "local", asked.jobs)
        print(f"local, --jobs {asked.jobs}: {local.seconds:.1f} s", flush=True)
        began = time.monotonic()
        with Cluster(nodes=2, cpus=2) as cluster:
            print(f"cluster of two nodes: up after {time.monotonic() - began:.1f} s", flush=True)
            ray = run_ray(models, folder / "ray", cluster, cluster.nodes[1], asked.models // 2)
        print(f"ray, one of two nodes killed after {asked.models // 2} models: {ray.seconds:.1f} s")
        wrong = differences(models, (local, folder / "local"), (ray, folder / "ray"))
        fixes = sum(len(report["applied"]) for report in ray.report["reports"])
        print(f"{len(ray.models())} models reported, {len(written(folder / 'ray'))} outputs, {fixes} fixes")
        if ray.words:
            print(f"standard error:\n{ray.words}")
    for line in wrong:
        print(f"WRONG: {line}")
    print("wrong" if wrong else "all reported, in order, and identical to the local run's")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
