"""What `onnxfix diagnose` costs, in runs of the model: time and memory, side by side.

    python benchmarks/diagnose/cost.py MODEL.onnx [--rounds N] [--against KIND ...] [--json FILE]

One run is a fresh process that loads the model into ONNX Runtime with its defaults and runs it once, on the first of
the inputs that ``diagnose`` generates. Then ``diagnose`` as a command: the model against a copy with one weight scaled
by 1.01 (in the middle of the MatMul, Gemm and Conv nodes), and against each KIND. Rounds alternate between all, so that
other work on the machine slows them alike; the median of each counts. Memory is the greatest sum of the Pss of a
command's processes, which counts a shared page once (mapped weights included), 50 times a second. The exit code is 1
where ``diagnose`` takes more than 20 times the time, or more than twice the memory, of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import numpy_helper

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent)]

from network.memory import field_of, tree  # noqa: E402

from onnxfix.files import loading  # noqa: E402
from onnxfix.options import RunOptions  # noqa: E402
from onnxfix.pipeline.diagnosing import generated  # noqa: E402
from onnxfix.verification.feeds.signature import signature  # noqa: E402

TIMES, MEMORY = 20.0, 2.0
"""What is allowed, in runs of the model."""
_RUN = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, dict(numpy.load(sys.argv[2])))
"""


@dataclass
class Series:
    """Measurements of one command: seconds, and megabytes of all its processes."""

    command: list[str]
    codes: tuple[int, ...]
    seconds: list[float] = field(default_factory=list)
    megabytes: list[int] = field(default_factory=list)
    runs: float | None = None

    def measure(self) -> None:
        """Run it once.

        Raises:
            RuntimeError: it ended with another exit code than expected.
        """
        began = time.perf_counter()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "rules")])}
        with tempfile.TemporaryFile() as out:
            process = subprocess.Popen(self.command, stdout=out, stderr=subprocess.DEVNULL, env=environment)
            largest = 0
            while process.poll() is None:
                largest = max(largest, sum(field_of(one, "smaps_rollup", "Pss") for one in tree(process.pid)))
                time.sleep(0.02)
            self.seconds.append(time.perf_counter() - began)
            self.megabytes.append(largest)
            out.seek(0)
            text = out.read()
        if process.returncode not in self.codes:
            raise RuntimeError(f"{self.command}: exit code {process.returncode}")
        if text:
            self.runs = json.loads(text)["runs"]


def planted(source: Path, target: Path) -> str:
    """Write a copy with one weight scaled by 1.01; returns the name of the node that reads it."""
    model = onnx.load(source)
    weights = {one.name: one for one in model.graph.initializer}
    kinds = ("MatMul", "Gemm", "Conv")
    nodes = [node for node in model.graph.node if node.op_type in kinds and node.input[1] in weights]
    node = nodes[len(nodes) // 2]
    tensor = weights[node.input[1]]
    scaled = (numpy_helper.to_array(tensor) * 1.01).astype(numpy_helper.to_array(tensor).dtype)
    tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
    onnx.save(model, target)
    return str(node.name or node.output[0])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", nargs="*", default=["fp16"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onnxfix-cost-") as folder:
        feed, copy = Path(folder) / "feed.npz", Path(folder) / "copy.onnx"
        known = signature(loading.load(given.model).proto)
        np.savez(feed, **next(iter(generated(known, RunOptions()))))
        node = planted(given.model, copy)
        diagnose = [sys.executable, "-m", "onnxfix", "diagnose", str(given.model), "--format", "json"]
        series = {
            "one run": Series([sys.executable, "-c", _RUN, str(given.model), str(feed)], (0,)),
            f"a copy, {node} planted": Series([*diagnose, str(copy)], (1,)),
            **{kind: Series([*diagnose, "--against", kind], (0, 1)) for kind in given.against},
        }
        for _ in range(given.rounds):
            for one in series.values():
                one.measure()
    return shown(series, given.json)


def shown(series: dict[str, Series], file: Path | None) -> int:
    """Print the table, and write what was measured; 1 where something is over."""
    first = series["one run"]
    seconds, megabytes = median(first.seconds), median(first.megabytes)
    print("| what | s | MB | runs inside | times one run | memory of one run |\n|---|---|---|---|---|---|")
    over = False
    for name, one in series.items():
        times, memory = median(one.seconds) / seconds, median(one.megabytes) / megabytes
        over |= times > TIMES or memory > MEMORY
        runs = "" if one.runs is None else f"{one.runs:g}"
        print(
            f"| {name} | {median(one.seconds):.1f} | {median(one.megabytes):,.0f} | {runs} "
            f"| {times:.1f} | {memory:.2f} |"
        )
    if file is not None:
        found = {name: {"seconds": one.seconds, "megabytes": one.megabytes} for name, one in series.items()}
        file.write_text(json.dumps(found, indent=2) + "\n")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
