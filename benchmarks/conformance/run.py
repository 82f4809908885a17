"""ONNX's node tests on TensorRT, by onnx's own BackendTest, as the models are and after onnxfix.

    python benchmarks/conformance/run.py --device CUDA --json benchmarks/conformance/engines.json     with a GPU
    python benchmarks/conformance/run.py --device CPU --json benchmarks/conformance/networks.json     anywhere

Every test runs in a process of its own kind: one that crashes or hangs is a result, and no other test's. FILE is
written every few seconds; the same command goes on from where it stopped. ``docs/make.py`` makes docs/conformance.md
of both files. The exit code is 0 if all was measured, 1 if time was up, 2 if nothing could be.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the children of the sandbox import what they run from there
import ledger
from command import exit_code, parser_of
from gpu import engines
from machine import lines, with_gpu

import onnxfix
from conformance import child
from onnxfix.backend.devices import opened
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.records import TrtOptions

SLOW = ("gru", "lstm", "rnn", "roialign", "loop", "scan")
"""Tests that may take all the time there is come first, so that nobody waits for them at the end."""


MEASURE = "conformance.child:measure"
"""What a worker calls for a test."""


def facts(device: str) -> dict[str, Any]:
    """What the results depend on.

    Raises:
        OnnxfixError: the device is not there.
    """
    about = engines.ready("tensorrt-rtx")[1] if device == "CUDA" else with_gpu()
    choice = opened(device, TrtOptions()).choice
    own = {"TensorRT": f"{choice.package} {choice.version}", "onnxfix": onnxfix.__version__}
    return {"device": device, **own, **{name: value for name, value in about.items() if value}}


def measure(worker: Worker, task: tuple[str, str, float]) -> tuple[str, dict[str, Any]]:
    """One test at all levels; a worker that dies of it is a result."""
    name, device, timeout = task
    done = worker.call(MEASURE, timeout=8 * timeout, name=name, device=device, timeout_s=timeout)
    if done.ok:
        return name, done.value
    lost = {"status": "failed", "reason": f"{done.status}: {done.message}"[:300]}
    return name, {"operator": "", **dict.fromkeys(child.LEVELS, lost)}


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("CUDA", "CPU"), required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument(
        "--timeout", type=float, default=40.0, help="seconds to build, to load and to run, each"
    )
    parser.add_argument("--budget", type=float, default=420.0, help="begin no test after so many seconds")
    given = parser.parse_args(words)
    return exit_code(lambda: run(given))


def run(given: argparse.Namespace) -> int:
    """Measure what is not measured yet. Raises OnnxfixError where something needed is not there."""
    began = time.monotonic()
    about = facts(given.device)
    print(*lines(about), sep="\n", flush=True)
    names = sorted(child.models(), key=lambda name: not any(part in name for part in SLOW))
    with ledger.Ledger(given.json, {"setting": about}) as book:
        tasks = [(name, given.device, given.timeout) for name in names if name not in book]
        print(f"{len(tasks):,} of {len(names):,} tests to run", flush=True)
        limits = {"began": began, "budget": given.budget, "every": 100}
        return int(not engines.record(tasks, given.jobs, Worker, measure, book, **limits))


if __name__ == "__main__":
    sys.exit(main())
