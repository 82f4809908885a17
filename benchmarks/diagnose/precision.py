"""Mixed precision by `onnxfix precision` and by other tools: error, share of nodes in half precision, Casts.

    python benchmarks/diagnose/precision.py make FOLDER MODEL... [--budgets 0.7x,0.4x,0.001] [--to fp16]
           [--peers PYTHON] [--kinds KIND,...] [--only WORD]
    python benchmarks/diagnose/precision.py table FILE

``make`` writes a folder for each model: the original with weights drawn from a seed, samples, and variants: by onnxfix,
one without a budget (``all``: every node that guards allow) and one for each (``0.7x``: that much of the error of
``all``), and by the tools of ``precision_peers.py`` in the environment of PYTHON. It records the error on the CPU
(float32 kernels that round as the types say, on samples of which the tools saw the first), the share and the Casts in
FOLDER/results.json. No engine is built.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from command import parser_of
from pages import markdown

import onnxfix
from diagnose import precision_figures
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import signature

PEERS = {"fp16": ("autocast", "float16", "float16-auto"), "bf16": ("autocast-bf16",)}
SAMPLES = 3
SMALL = 1 << 12
"""Bytes of a weight that is kept as it is."""
UNBOUNDED = 1e9
"""A budget that only guards limit."""


def feeds_of(model: Path, size: int) -> list[dict[str, Any]]:
    """Samples of batch 1 and of sizes near to ``size``."""
    known = signature(model)
    leading = {one.dims[0] for one in known.inputs if one.dims}
    wish = {name: 1 if name in leading else size for name in known.symbols}
    sizes = known.search.near(wish, pins=known.search.ways[0]) or {}
    return [Feed(sizes, "normal", seed).values(known) for seed in range(SAMPLES)]


def redraw(source: Path, target: Path) -> None:
    """Write a model with its large weights drawn from their names, with the mean and deviation of the export's own."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.raw_data) >= SMALL:
            array = numpy_helper.to_array(tensor)
            rng = np.random.default_rng([20261123, zlib.crc32(tensor.name.encode())])
            drawn = rng.standard_normal(array.shape, np.float32) * np.float32(array.std())
            tensor.raw_data = (drawn + np.float32(array.mean())).astype(np.float32).tobytes()
    onnx.save(model, target)


def make(given: argparse.Namespace) -> int:
    """Variants of all models."""
    results = given.folder / "results.json"
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    for source in given.models:
        if given.only and given.only not in source.stem:
            continue
        folder = given.folder / source.stem
        folder.mkdir(parents=True, exist_ok=True)
        original = folder / "original.onnx"
        redraw(source, original)
        feeds = feeds_of(original, given.size)
        for number, feed in enumerate(feeds):
            np.savez(folder / f"feed{number}.npz", **feed)
        entry = found.setdefault(source.stem, {})
        entry["original"] = precision_figures.shares(original)
        made = {}
        for budget in ("all", *given.budgets):
            name = f"onnxfix-{given.to}-{budget}"
            limit = _limit(budget, entry.get(f"onnxfix-{given.to}-all", {}).get("reached"))
            made |= _by_onnxfix(original, folder / f"{name}.onnx", given.to, limit, feeds, entry, name)
        for kind in given.kinds or PEERS[given.to] if given.peers else ():
            made |= _by_peer(given.peers, kind, original, folder, entry)
        for name, errors in precision_figures.on_cpu(original, made, feeds).items():
            entry[name].update(errors)
        for name, path in made.items():
            entry[name].update(precision_figures.shares(path))
        results.write_text(json.dumps(found, indent=1))
        for row in rows(source.stem, entry):
            print(*row, flush=True)
    return 0


def _limit(budget: str, reached: float | None) -> float:
    """A budget as a number; ``reached`` is the error without one."""
    if budget == "all":
        return UNBOUNDED
    return float(budget[:-1]) * (reached or 1.0) if budget.endswith("x") else float(budget)


def _by_onnxfix(
    original: Path,
    output: Path,
    to: str,
    budget: float,
    feeds: list[dict[str, Any]],
    entry: dict[str, Any],
    name: str,
) -> dict[str, Path]:
    began = time.perf_counter()
    made = onnxfix.precision(original, to, budget, output, inputs=feeds, rungs=("contract",))  # type: ignore[arg-type]
    entry[name] = {
        "status": made.status,
        "seconds": time.perf_counter() - began,
        "runs": made.runs,
        "reason": made.reason if made.status != "written" else "",
        "best": made.best,
        "reached": made.error,
    }
    return {name: output} if made.status == "written" else {}


def _by_peer(python: str, kind: str, original: Path, folder: Path, entry: dict[str, Any]) -> dict[str, Path]:
    output = folder / f"{kind}.onnx"
    began = time.perf_counter()
    command = [python, HERE / "precision_peers.py", kind, original, output, folder / "feed0.npz"]
    environment = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, env=environment, timeout=900
        )
        reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    except subprocess.TimeoutExpired:
        reason = "more than 900 s"
    entry[kind] = {"seconds": time.perf_counter() - began, "reason": reason[:300]}
    entry[kind]["status"] = "failed" if reason else "written"
    return {} if reason else {kind: output}


HEAD = ("model", "variant", "error", "rms", "in half precision", "products", "Casts", "seconds", "reason")


def rows(model: str, entry: dict[str, Any]) -> list[list[str]]:
    """Lines of the table."""
    return [[model, name, *_cells(figures)] for name, figures in entry.items()]


def _cells(figures: dict[str, Any]) -> list[str]:
    share = f"{figures['low']}/{figures['nodes']}" if "low" in figures else "–"
    heavy = f"{figures['heavy_low']}/{figures['heavy']}" if "heavy" in figures else "–"
    seconds = f"{figures['seconds']:.0f}" if "seconds" in figures else "–"
    errors = (_number(figures.get("error")), _number(figures.get("rms")))
    return [*errors, share, heavy, str(figures.get("casts", "–")), seconds, figures.get("reason", "")]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2e}"


def table(given: argparse.Namespace) -> int:
    """Print what was measured."""
    stored = json.loads(given.file.read_text())
    print("\n".join(markdown(HEAD, [row for model, entry in stored.items() for row in rows(model, entry)])))
    return 0


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("models", type=Path, nargs="+")
    making.add_argument("--budgets", type=lambda text: text.split(","), default=["0.7x", "0.4x"])
    making.add_argument("--to", choices=list(PEERS), default="fp16")
    making.add_argument("--peers", default="", help="the Python that has the other tools")
    making.add_argument(
        "--kinds", type=lambda text: text.split(","), help="of precision_peers.py (default: all for --to)"
    )
    making.add_argument("--size", type=int, default=64, help="sizes of open dimensions but the batch")
    making.add_argument("--only", default="")
    making.set_defaults(run=make)
    tables = commands.add_parser("table")
    tables.add_argument("file", type=Path)
    tables.set_defaults(run=table)
    given = parser.parse_args()
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
