"""What TensorRT builds before and after onnxfix and its peers, what still computes the same, and what it costs.

    python benchmarks/acceptance/node_models.py [--peers-python PYTHON] [--write-readme]

Each of ONNX's node models, with its own data, goes through TensorRT's parser and builder as it is, after onnxfix (exact
fixes; numeric ones for TensorRT-RTX and for the default target) and after onnxsim, onnxslim and Polygraphy's sanitize,
with the same settings and the profile of the original's own data. No engine is executed: outputs are those of ONNX
Runtime on the CPU without optimization, else of onnx.reference. The exit code is 1 where onnxfix lost a model that
built, changed an interface or an output, failed, or was not bit-identical with exact fixes, and where a rescue by
default costs over 200 layers.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the children of the sandbox import what they run from there
from command import exit_code, parser_of
from machine import choice, lines, without_gpu
from pages import blame, show

from acceptance import faults, tables
from acceptance.cases import ONNXFIX, PEERS, node_cases, run_peers
from acceptance.measure import Row, Settings, measure_all

MEMORY_MB = 4096
"""Of each child."""


def peers_here(asked: Path | None) -> Path | None:
    """The peers' interpreter: the one asked for, else this one where all of them are installed, else None."""
    modules = ("onnxsim", "onnxslim", "polygraphy", "onnx_graphsurgeon")
    if asked is None and all(importlib.util.find_spec(name) is not None for name in modules):
        return Path(sys.executable)
    return asked


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--peers-python", type=Path, help="interpreter of an environment with the peers")
    parser.add_argument("--no-peers", action="store_true", help="onnxfix alone")
    parser.add_argument("--package", default="auto", help="auto, tensorrt or tensorrt-rtx")
    parser.add_argument("--every", type=int, default=1, help="only each N-th node model")
    parser.add_argument("--match", default="", help="only node models whose name holds this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for a tool, to parse, to build")
    parser.add_argument("--write-readme", action="store_true", help="put the tables into the README")
    return parser.parse_args()


def _progress(count: int) -> Callable[[Row], None]:
    began = time.monotonic()
    done: list[str] = []

    def say(row: Row) -> None:
        done.append(row.name)
        if len(done) % 100 == 0:
            print(f"{len(done)} of {count}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    return say


def run(given: argparse.Namespace) -> int:
    """Measure, print, write. Raises OnnxfixError where something needed is not there."""
    began = time.monotonic()
    cases = node_cases(given.every, given.match)
    python = None if given.no_peers else peers_here(given.peers_python)
    chosen = choice(given.package)
    with tempfile.TemporaryDirectory() as folder:
        peers = run_peers(python, cases, Path(folder), given.timeout, MEMORY_MB) if python else None
        tools = (*ONNXFIX, *(PEERS if peers is not None else ()))
        settings = Settings(chosen, tools, peers, given.timeout, MEMORY_MB)
        rows = measure_all(cases, given.jobs, settings, _progress(len(cases)))
    surroundings = lines(without_gpu(chosen))
    if peers is not None:
        versions = ", ".join(f"{name} {version}" for name, version in peers.versions.items())
        surroundings.append(f"- the peers' environment: {versions}")
    else:
        surroundings.append("- without peers (`--peers-python` names an interpreter that has them)")
    seconds = time.monotonic() - began
    surroundings.append(
        f"- {len(cases):,} models, {given.jobs} jobs, {seconds:,.0f} s in all; onnxfix does not verify"
    )
    told = [*surroundings, "", *tables.page(rows, tools)]
    show(told, HERE, "node models", write=given.write_readme)
    return blame(faults.faults(rows, tools), "faults of onnxfix")


def main() -> int:
    """Run as the module's docstring says."""
    return exit_code(lambda: run(_arguments()))


if __name__ == "__main__":
    sys.exit(main())
