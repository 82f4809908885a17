"""Full-size exports on a GPU: fixed, and proven by engines that are executed.

    python benchmarks/exports/make.py FOLDER              (the exports; see there)
    python benchmarks/gpu/exports.py FOLDER [--jobs 4] [--json FILE] [-- OPTION...]

Each model is handed to ``onnxfix apply --require trt-gpu``, with OPTION... besides, in a process of its own. The table
says whether TensorRT's engine of the fixed model computes what the ONNX model says, the largest error of that engine
and of the original's as a share of the output's largest magnitude, what rounding alone does (measured only where an
engine is out of the tolerance of its type), and what the rungs took. The exit code is 1 where a model was refuted, or
an exact fix withdrawn.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command import divided, reported, rungs_of


def run(path: Path, options: list[str]) -> dict[str, Any]:
    """One model: the exit code, the seconds, and the report."""
    with tempfile.TemporaryDirectory() as folder:
        code, report, seconds = reported(
            "apply", path, "-o", f"{folder}/fixed.onnx", "--require", "trt-gpu", *options
        )
    return {
        "name": path.stem,
        "exit": code,
        "seconds": seconds,
        "report": slim(report),
        "stderr": report.get("stderr", ""),
    }


def slim(report: dict[str, Any]) -> dict[str, Any]:
    """What the table needs of a report."""
    rungs = rungs_of(report)
    gpu = rungs.get("trt-gpu", {})
    worst: dict[str, float] = {}
    for feed in gpu.get("feeds", ()):
        side = "engines" if feed["label"].startswith("engines") else "truth"
        for metric in feed["metrics"]:
            share = metric["max_abs"] / metric["scale"] if metric["scale"] else 0.0
            worst[side] = max(worst.get(side, 0.0), share)
    return {
        "seconds": {name: one["seconds"] for name, one in rungs.items()},
        "status": gpu.get("status", ""),
        "reason": gpu.get("reason", ""),
        "executed": gpu.get("executed"),
        "feeds": len(gpu.get("feeds", ())),
        "notes": gpu.get("notes", ()),
        "worst": worst,
        "builds": [one["build_seconds"] for one in gpu.get("builds", ())],
        "withdrawn": [f"{one['code']}: {one['reason']}" for one in report.get("withdrawn", ())],
        "applied": len(report.get("applied", ())),
    }


def row(one: dict[str, Any]) -> str:
    """A line of the table."""
    report = one["report"]
    executed = report.get("executed") or {}
    noise = max((share for _, share in executed.get("noise", ())), default=None)
    worst, seconds = report.get("worst", {}), report.get("seconds", {})
    cells = [
        one["name"],
        str(one["exit"]),
        f"{report.get('status', '')} {executed.get('outcome', '')}".strip(),
        f"{worst.get('truth', 0.0):.1e}",
        f"{worst.get('engines', 0.0):.1e}",
        "" if noise is None else f"{noise:.1e}",
        str(len(report.get("withdrawn", ()))),
        f"{seconds.get('trt-gpu', 0.0):.1f}",
        f"{one['seconds']:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="models at once; times are only telling with 1")
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    own, options = divided(sys.argv[1:])  # options of onnxfix apply
    arguments = parser.parse_args(own)
    print(
        "| model | exit | trt-gpu | engine − ONNX | engine − engine | rounding | withdrawn | rung s | whole s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    found = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        models = sorted(arguments.folder.resolve().glob("*.onnx"))
        for one in pool.map(lambda path: run(path, options), models):
            found.append(one)
            print(row(one), flush=True)
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(found, indent=1))
    for one in found:
        for why in (one["report"].get("reason"), *one["report"].get("withdrawn", ()), one["stderr"]):
            if why and (one["exit"] > 1 or one["report"].get("withdrawn")):
                print(f"{one['name']}: {why}")
    return int(any(one["exit"] > 1 or one["report"].get("withdrawn") for one in found))


if __name__ == "__main__":
    sys.exit(main())
