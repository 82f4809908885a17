"""Models made static at one size: what TensorRT builds of them, beside the dynamic model and onnxsim's static one.

    python benchmarks/exports/static.py FOLDER [--size 8] [--peers-python PYTHON] [--limit SECONDS] [--json FILE]

For each model, batch 1 and a size that it takes near to ``--size`` are chosen for its other symbols. The dynamic model
is repaired by ``onnxfix apply``; the static one by ``onnxfix apply --fix-dim ...``, whose proof compares it with the
original on inputs of those sizes; with ``--peers-python``, ``onnxsim --overwrite-input-shape`` makes one, too, which is
verified in the same way. Layers are those that TensorRT's parser imports. No engine is executed. The exit code is 1
where a result was not proven.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxfix.verification.feeds.inputs import shape_of
from onnxfix.verification.feeds.signature import Signature, signature

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command import reported, rungs_of

#: What is asked of models that are only compared with: do they compute the same, and does TensorRT build them.
RUNGS = ("--rungs", "reference,ort-cpu,trt-build")


def sizes_of(known: Signature, size: int) -> dict[str, int] | None:
    """Sizes for all symbols: 1 for leading dimensions, near to ``size`` for others; None where none are known."""
    leading = {one.dims[0] for one in known.inputs if one.dims}
    wish = {name: 1 if name in leading else size for name in known.symbols}
    return known.search.near(wish, pins=known.search.ways[0])


def built(report: dict[str, Any]) -> tuple[str, float | None]:
    """Layers and seconds of the last build of a report; "refused" where there is none."""
    if report.get("stderr", "").startswith("no result in"):
        return "timed out", None
    rungs = rungs_of(report)
    builds = rungs.get("trt-build", {}).get("builds", ())
    if not builds or builds[-1]["status"] != "accepted":
        return "refused" if builds else "–", None
    return f"{sum(count for _, count in builds[-1]['layers']):,}", builds[-1]["build_seconds"]


def proven(report: dict[str, Any]) -> str:
    """What the rung ort-cpu said of the result."""
    rungs = rungs_of(report)
    found = rungs.get("ort-cpu", {})
    counted = [one for one in found.get("feeds", ()) if one["status"] in ("identical", "within")]
    kinds = "identical" if all(one["status"] == "identical" for one in counted) else "within tolerance"
    return f"{kinds} on {len(counted)}" if found.get("status") == "passed" else found.get("status", "none")


def measured(path: Path, size: int, peers: str, limit: float) -> dict[str, Any]:
    """One model. ``limit`` are the seconds that each command may take."""
    known = signature(path)
    sizes = sizes_of(known, size)
    if not known.symbols or sizes is None:
        return {"model": path.stem, "skipped": "static" if not known.symbols else "no sizes known"}
    options = [part for name, number in sizes.items() for part in ("--fix-dim", f"{name}={number}")]
    with tempfile.TemporaryDirectory() as folder:
        code, dynamic, _ = reported("apply", path, "-o", f"{folder}/d.onnx", *RUNGS, limit=limit)
        fixed, static, seconds = reported("apply", path, "-o", f"{folder}/s.onnx", *options, limit=limit)
        row = {
            "model": path.stem,
            "sizes": sizes,
            "exit": [code, fixed],
            "dynamic": built(dynamic),
            "static": built(static),
            "proof": proven(static),
            "withdrawn": len(static.get("withdrawn", ())),
            "seconds": seconds,
            "stderr": static.get("stderr", ""),
        }
        return row | ({"onnxsim": peer(path, known, sizes, Path(folder), peers, limit)} if peers else {})


def peer(
    path: Path, known: Signature, sizes: dict[str, int], folder: Path, python: str, limit: float
) -> tuple[str, float | None]:
    """onnxsim's static model: layers and seconds, or what is wrong with it."""
    shapes = [f"{one.name}:{','.join(map(str, shape_of(known, one, sizes)))}" for one in known.inputs]
    made = folder / "p.onnx"
    command = [python, "-m", "onnxsim", str(path), str(made), "--overwrite-input-shape", *shapes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return "timed out", None
    if done.returncode or not made.is_file():
        return "no result", None
    given = [part for shape in shapes for part in ("--input-shapes", shape)]
    _, report, _ = reported("verify", path, made, *RUNGS, *given, limit=limit)
    layers, seconds = built(report)
    return (
        layers if proven(report).startswith(("identical", "within")) else f"{layers} (not proven)"
    ), seconds


def table(found: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    peers = any("onnxsim" in one for one in found)
    head = ["model", "sizes", "dynamic: layers, build s", "static: layers, build s", "proof (ort-cpu)"]
    rows = [[*head, *(["onnxsim: layers, build s"] if peers else [])]]
    rows.append(["---"] * len(rows[0]))

    def cell(one: tuple[str, float | None]) -> str:
        return one[0] if one[1] is None else f"{one[0]}, {one[1]:.2f}"

    for one in found:
        if "skipped" in one:
            rows.append([f"`{one['model']}`", one["skipped"], *[""] * (len(rows[0]) - 2)])
            continue
        sizes = ", ".join(f"{name}={size}" for name, size in one["sizes"].items())
        cells = [f"`{one['model']}`", sizes, cell(one["dynamic"]), cell(one["static"]), one["proof"]]
        rows.append([*cells, *([cell(one["onnxsim"])] if peers else [])])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--peers-python", default="")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a command may take")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = []
    for path in sorted(arguments.folder.resolve().glob("*.onnx")):
        found.append(measured(path, arguments.size, arguments.peers_python, arguments.limit))
        print(found[-1], flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(found, indent=1))
    print(table(found))
    return int(any(max(one.get("exit", [0])) > 1 for one in found))


if __name__ == "__main__":
    sys.exit(main())
