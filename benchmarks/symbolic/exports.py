"""What the proof of exact fixes takes, of exported models.

    python -m benchmarks.symbolic.exports MODEL...

Fixes each model by exact fixes without a proof, and proves it at the shapes of the check ``symbolic``, in a child
process of its own. Its memory is the peak of what is resident, less what was before the models were loaded.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import onnxfix
from benchmarks.command import parser_of
from benchmarks.symbolic.pairs import decide_shapes
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import signature


class Cost(NamedTuple):
    """What a proof ended with ("" if proven), wall-clock and processor seconds, and megabytes."""

    reason: str
    seconds: float
    processor: float
    memory: float

    def __str__(self) -> str:
        took = f"{self.seconds:.2f} s ({self.processor:.2f} s of a processor), {self.memory:.0f} MB"
        return f"{self.reason or 'proven'}: {took}"


def megabytes(field: str) -> float:
    """What Linux says of this process's memory. (``ru_maxrss`` may be that of the parent.)"""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def _prove(original: str, fixed: str, trials: Any) -> Cost:
    """The cost of the proof in this process."""
    from onnxfix.proof.symbolic.files import prove_files

    before, began, processor = megabytes("VmRSS"), time.monotonic(), time.process_time()
    proof = prove_files(original, fixed, trials, 600.0)
    seconds, processor = time.monotonic() - began, time.process_time() - processor
    return Cost(proof.reason, seconds, processor, megabytes("VmHWM") - before)


def list_trials(path: Path) -> list[Any]:
    """Shapes and small inputs, those of few elements first, as the check makes them."""
    known = signature(path)
    sweep = [sizes for sizes in plan.assignments(known, {}) if 0 not in sizes.values()]
    feeds = [plan.Feed(sizes, "normal", 0).values(known) for sizes in sweep]
    return [
        ({name: np.shape(value) for name, value in feed.items()}, decide_shapes(feed))
        for feed in sorted(feeds, key=lambda feed: sum(map(plan.size, feed.values())))
    ]


def measure(original: Path, fixed: Path, trials: Any) -> Cost:
    """The cost of the proof in a child process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_prove, str(original), str(fixed), trials).result()


def main() -> None:
    """Measure each model and print a line, then median and largest."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--shapes", type=int, default=3, help="prove it at so many shapes at most")
    options = parser.parse_args()
    costs: list[Cost] = []
    for path in options.models:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            fixed = Path(folder) / path.name
            report = onnxfix.apply(path, fixed, verify=False)
            if not report.applied:
                print(f"{path.name}: nothing to fix", flush=True)
                continue
            trials = list_trials(path)[: options.shapes]
            cost = measure(path, fixed, trials)
        costs.append(cost)
        print(f"{path.name}: {len(report.applied)} fixes, {len(trials)} shapes, {cost}", flush=True)
    for kind, choose in (("median", statistics.median), ("largest", max)) if costs else ():
        parts = (f"{choose(one[index] for one in costs):.2f}" for index in (1, 2, 3))
        print(f"{kind}: {' s, '.join(parts)} MB")


if __name__ == "__main__":
    main()
