"""Mixed precision by `onnxfix precision` and by other tools: error, share of nodes in float16, Casts.

    python benchmarks/diagnose/precision.py FOLDER MODEL... [--budgets 0.7x,0.001] [--peers PYTHON] [--size N]

FOLDER gets a folder for each model: the original with weights drawn from a seed, samples, and variants: by onnxfix, one
without a budget (``all``: every node that guards allow) and one for each (``0.7x``: that much of the error of ``all``),
and by the tools of ``precision_peers.py`` in the environment of PYTHON. Printed are the error on the CPU (float32
kernels that round as the types say, on samples of which the tools saw the first), the nodes that compute and the
products in float16 of all, and the Casts. No engine is built.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
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
from onnxfix.files import loading
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import signature
from onnxfix.lowering.bench import Bench, Failed
from onnxfix.lowering.lowered import HEAVY, MOVES
from onnxfix.model import Model

PEERS = ("autocast", "float16")
SAMPLES = 3
SMALL = 1 << 8
"""Bytes of a weight that is kept as it is."""
SPREAD = 0.05
"""The deviation of weights that an export without training leaves at zeros or ones."""
UNBOUNDED = 1e9
"""A budget that only guards limit."""
FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16}
NOT_COMPUTING = MOVES | {"Cast", "Constant", "ConstantOfShape", "Shape", "Size"}


def feeds_of(model: Path, size: int, batch: int = 1) -> list[dict[str, Any]]:
    """Samples of this batch and of sizes near to ``size``."""
    known = signature(model)
    leading = {one.dims[0] for one in known.inputs if one.dims}
    wish = {name: batch if name in leading else size for name in known.symbols}
    sizes = known.search.near(wish, pins=known.search.ways[0]) or {}
    return [Feed(sizes, "normal", seed).values(known) for seed in range(SAMPLES)]


def redraw(source: Path, target: Path) -> None:
    """Write a model with its weights drawn from their names, with the mean and deviation of the export's own."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.raw_data) >= SMALL:
            array = numpy_helper.to_array(tensor)
            rng = np.random.default_rng([20261123, zlib.crc32(tensor.name.encode())])
            drawn = rng.standard_normal(array.shape, np.float32) * np.float32(array.std() or SPREAD)
            tensor.raw_data = (drawn + np.float32(array.mean())).astype(np.float32).tobytes()
    onnx.save(model, target)


def variants(
    original: Path, feeds: Sequence[Mapping[str, Any]], budgets: Sequence[str], python: str
) -> Iterator[tuple[str, Path, str]]:
    """What each tool makes of a model: its name, the file, and why there is none."""
    reached = 1.0
    for budget in ("all", *budgets):
        output = original.with_name(f"onnxfix-{budget}.onnx")
        share = budget.endswith("x")
        limit = UNBOUNDED if budget == "all" else float(budget.rstrip("x")) * (reached if share else 1.0)
        made = onnxfix.precision(original, "fp16", limit, output, inputs=feeds, rungs=("contract",))
        if budget == "all":
            reached = made.error or reached
        yield f"onnxfix, {budget}", output, "" if made.status == "written" else made.reason
    for kind in PEERS if python else ():
        output = original.with_name(f"{kind}.onnx")
        command = [
            python,
            HERE / "precision_peers.py",
            kind,
            original,
            output,
            original.with_name("feed0.npz"),
        ]
        environment = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
        words = done.stderr.strip().splitlines() or ["no reason given"]
        yield kind, output, words[-1] if done.returncode else ""


def row(bench: Bench, path: Path) -> list[str]:
    """The error against the original, nodes and products in float16 of all, and Casts."""
    try:
        error = f"{max(one.error for one in bench.result_errors(path, wide=True)):.1e}"
    except Failed as failed:
        error = str(failed)
    loaded = loading.load(path)
    overlay = Model(loaded.proto, loaded.base_dir)
    casts = sum(node.op_type == "Cast" for node in overlay.main.nodes)
    computing, products = [], []
    for node in overlay.main.nodes:
        kinds = {overlay.shapes.elem_type(value) for value in node.outputs if value is not None}
        if node.op_type not in NOT_COMPUTING and not kinds.isdisjoint(FLOATS):
            computing.append(TensorProto.FLOAT16 in kinds)
            products += computing[-1:] if node.op_type in HEAVY else []
    return [error, *(f"{sum(low)}/{len(low)}" for low in (computing, products)), str(casts)]


def main() -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--budgets", type=lambda text: text.split(","), default=["0.7x"])
    parser.add_argument("--peers", default="", help="the Python that has the other tools")
    parser.add_argument("--size", type=int, default=64, help="sizes of open dimensions but the batch")
    given = parser.parse_args()
    rows = []
    for source in given.models:
        folder = given.folder / source.stem
        folder.mkdir(parents=True, exist_ok=True)
        original = folder / "original.onnx"
        redraw(source, original)
        feeds = feeds_of(original, given.size)
        np.savez(folder / "feed0.npz", **feeds[0])
        with Bench() as bench:
            bench.open(original, "fp16", feeds, len(feeds))
            for name, path, reason in variants(original, feeds, given.budgets, given.peers):
                cells = [reason, "–", "–", "–"] if reason else row(bench, path)
                rows.append([source.stem, name, *cells])
                print(*rows[-1], file=sys.stderr, flush=True)
    print("\n".join(markdown(("model", "tool", "error", "low", "products", "Casts in the file"), rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
