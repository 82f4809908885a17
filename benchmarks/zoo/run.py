"""Repair the zoo, prove it with TensorRT's engines, and write one line an export.

    python benchmarks/zoo/run.py FOLDER RESULTS.jsonl [--package tensorrt] [--target 10.6] [--jobs 6]
    python benchmarks/zoo/run.py --table RESULTS.jsonl [OTHER.jsonl]

FOLDER holds what make.py made. Each model is given to ``onnxfix.apply(..., require=["trt-gpu"])`` in a process of its
own; what RESULTS has already is not repeated. ``--table`` prints the results; of two files, side by side.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command import rungs_of

LIMIT = 420.0
"""Seconds for one model, the import of onnxfix included."""


def apply(path: Path, package: str, target: str) -> dict[str, Any]:
    """What onnxfix says of one model."""
    import onnxfix
    from onnxfix import TrtOptions

    options = TrtOptions(package=package)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder) / "fixed.onnx"
        result = onnxfix.apply(path, fixed, require=["trt-gpu"], target=target, timeout=LIMIT, trt=options)
    report = result.to_dict()
    rungs = rungs_of(report)
    found = [(one["severity"], one["code"], one["message"]) for one in report["findings"]]
    return {
        "exit": int(result.exit_code),
        "applied": len(report.get("applied", ())),
        "withdrawn": [f"{one['code']}: {one['reason']}" for one in report.get("withdrawn", ())],
        "errors": [f"{code}: {message}" for severity, code, message in found if severity == "error"],
        "warnings": sorted({code for severity, code, _ in found if severity == "warning"}),
        "checks": {
            name: [one["status"], one.get("reason", ""), one["seconds"]] for name, one in rungs.items()
        },
        "builds": [
            [sum(count for _, count in one["layers"]), one["build_seconds"]]
            for one in rungs.get("trt-build", {}).get("builds", ())
        ],
    }


def measure(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One model, in a process of its own."""
    words = [sys.executable, __file__, "--one", str(path), arguments.package, arguments.target]
    began = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT + 60)
        result = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        result = {"exit": 3, "errors": ["no result within the time"]}
    except (ValueError, IndexError):
        result = {"exit": 3, "errors": [f"no result: {done.stderr[-300:]}"]}
    return {"name": path.stem, "package": arguments.package, "seconds": time.monotonic() - began, **result}


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Model -> its result."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {one["name"]: one for one in map(json.loads, lines)}


def cells(one: dict[str, Any]) -> list[str]:
    """Exit code, reason, layers of original and fixed model, seconds of the first build and in all."""
    bad = [f"{name}: {why}" for name, (status, why, _) in one.get("checks", {}).items() if status == "failed"]
    reasons = [*one.get("withdrawn", ()), *one.get("errors", ()), *bad, *one.get("warnings", ())]
    reason = "; ".join(reasons)[:160].replace("|", "/").replace("\n", " ") if one["exit"] else ""
    builds = one.get("builds", [])[:2]
    layers = " → ".join(f"{count:,}" for count, _ in builds)
    first = f"{builds[0][1]:.0f}" if builds else ""
    return [str(one["exit"]), reason, layers, first, f"{one['seconds']:.0f}"]


def table(files: list[Path]) -> None:
    """Print the results as a table."""
    results = [load(path) for path in files]
    heads = ["exit", "why", "layers", "first build s", "whole s"]
    print(f"| model | {' | '.join(heads * len(results))} |")
    print("|---" * (1 + len(heads) * len(results)) + "|")
    for name in sorted(set().union(*results)):
        row = [name]
        for known in results:
            row += cells(known[name]) if name in known else ["–"] * len(heads)
        print(f"| {' | '.join(row)} |")


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--package", default="tensorrt")
    parser.add_argument("--target", default="10.6")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.paths)
        return 0
    folder, results = arguments.paths
    done = load(results)
    models = [path for path in sorted(folder.glob("*.onnx")) if path.stem not in done]
    with ThreadPoolExecutor(arguments.jobs) as pool, results.open("a") as file:
        for job in as_completed([pool.submit(measure, path, arguments) for path in models]):
            one = job.result()
            file.write(json.dumps(one) + "\n")
            file.flush()
            print(one["name"], *cells(one), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        model, package, target = sys.argv[2:]
        print(json.dumps(apply(Path(model), package, target), default=str))
        sys.exit(0)
    sys.exit(main())
