"""Repair a folder of exports, prove them with TensorRT's engines, and write one line an export.

    python benchmarks/zoo/run.py FOLDER RESULTS.json [--package tensorrt] [--target 10.6] [--jobs 6] [-- OPTION...]
    python benchmarks/zoo/run.py --table RESULTS.json [OTHER.json]

FOLDER holds what zoo/make.py or exports/make.py made. Each model is given to ``onnxfix apply --require trt-gpu``, with
OPTION... besides, in a process of its own; what RESULTS has already is not repeated. ``--table`` prints the results; of
two files, side by side. "off" is the largest error of the fixed model's engine against ONNX, as a share of the output's
largest magnitude, and "rounding" what moved inputs and another order of sums do on a CPU, where that was asked. The
exit code is 1 where a model was refuted or not written, or an exact fix withdrawn.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command import divided, parser_of, reported, rungs_of
from ledger import Ledger, load
from pages import markdown

LIMIT = 420.0
"""Seconds for one model; a minute more for the process around it."""


def measure(path: Path, package: str, target: str, options: list[str]) -> dict[str, Any]:
    """What onnxfix says of one model."""
    given = ("--require", "trt-gpu", "--trt-package", package, "--target", target, "--timeout", str(LIMIT))
    with tempfile.TemporaryDirectory() as folder:
        code, report, seconds = reported(
            "apply", path, "-o", f"{folder}/fixed.onnx", *given, *options, limit=LIMIT + 60
        )
    rungs = rungs_of(report)
    found = [(one["severity"], one["code"], one["message"]) for one in report.get("findings", ())]
    errors = [f"{code}: {message}" for severity, code, message in found if severity == "error"]
    return {
        "name": path.stem,
        "package": package,
        "exit": code,
        "seconds": seconds,
        "applied": len(report.get("applied", ())),
        "withdrawn": [f"{one['code']}: {one['reason']}" for one in report.get("withdrawn", ())],
        "errors": errors or [report["stderr"]] if report.get("stderr") else errors,
        "warnings": sorted({code for severity, code, _ in found if severity == "warning"}),
        "checks": {
            name: [one["status"], one.get("reason", ""), one["seconds"]] for name, one in rungs.items()
        },
        "builds": [
            [sum(count for _, count in one["layers"]), one["build_seconds"]]
            for one in rungs.get("trt-build", {}).get("builds", ())
        ],
        **_errors(rungs.get("trt-gpu", {})),
    }


def _errors(rung: dict[str, Any]) -> dict[str, float]:
    """The largest error of the engine and of rounding, as shares of the output's largest magnitude."""
    metrics = [
        metric
        for feed in rung.get("feeds", ())
        if not feed["label"].startswith("engines")
        for metric in feed["metrics"]
    ]
    shares = {"off": [one["max_abs"] / one["scale"] for one in metrics if one["scale"]]}
    shares["rounding"] = [share for _, share in (rung.get("executed") or {}).get("noise", ())]
    return {name: max(values) for name, values in shares.items() if values}


HEADS = ["exit", "why", "layers", "off", "rounding", "first build s", "whole s"]


def cells(one: dict[str, Any]) -> list[str]:
    """Exit code, reason, layers of original and fixed model, errors, seconds of the first build and in all."""
    checks = one.get("checks", {}).items()
    bad = [
        f"{name}: {why}"
        for name, (status, why, _) in checks
        if status == "failed" or (name == "trt-gpu" and status == "skipped")
    ]
    reasons = [*one.get("withdrawn", ()), *one.get("errors", ()), *bad, *one.get("warnings", ())]
    reason = "; ".join(reasons)[:160].replace("|", "/").replace("\n", " ") if one["exit"] else ""
    builds = one.get("builds", [])[:2]
    layers = " → ".join(f"{count:,}" for count, _ in builds)
    errors = [f"{one[name]:.1e}" if name in one else "" for name in ("off", "rounding")]
    first = f"{builds[0][1]:.0f}" if builds else ""
    return [str(one["exit"]), reason, layers, *errors, first, f"{one['seconds']:.0f}"]


def table(files: list[Path]) -> None:
    """Print the results as a table."""
    results = [load(path)["results"] for path in files]
    rows = []
    for name in sorted(set().union(*results)):
        known = (cells(one[name]) if name in one else ["–"] * len(HEADS) for one in results)
        rows.append([name, *itertools.chain(*known)])
    print("\n".join(markdown(("model", *HEADS * len(results)), rows)))


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--package", default="tensorrt")
    parser.add_argument("--target", default="10.6")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--table", action="store_true")
    own, options = divided(sys.argv[1:])
    arguments = parser.parse_args(own)
    if arguments.table:
        table(arguments.paths)
        return 0
    folder, results = arguments.paths
    with Ledger(results, {}) as book, ThreadPoolExecutor(arguments.jobs) as pool:
        models = [path for path in sorted(folder.resolve().glob("*.onnx")) if path.stem not in book]
        jobs = [pool.submit(measure, path, arguments.package, arguments.target, options) for path in models]
        for job in as_completed(jobs):
            one = job.result()
            book.record(one["name"], one)
            print(one["name"], *cells(one), flush=True)
    return int(any(one["exit"] > 1 or one["withdrawn"] for one in book.results.values()))


if __name__ == "__main__":
    sys.exit(main())
