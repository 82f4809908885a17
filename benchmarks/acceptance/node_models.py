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
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the children of the sandbox import what they run from there
from command import exit_code, parser_of
from machine import choice, lines, without_gpu
from pages import write_between

from acceptance import faults, tables
from acceptance.cases import ONNXFIX, PEERS, Peers, node_cases
from acceptance.measure import Row, Settings, measure_all, row_of


def peers_here(asked: Path | None) -> Path | None:
    """The peers' interpreter: the one asked for, else this one where all of them are installed, else None."""
    modules = ("onnxsim", "onnxslim", "polygraphy", "onnx_graphsurgeon")
    if asked is None and all(importlib.util.find_spec(name) is not None for name in modules):
        return Path(sys.executable)
    return asked


def setting(settings: Settings) -> list[str]:
    """What was measured with: versions and machine."""
    told = lines(without_gpu(settings.choice))
    if settings.peers_python is None:
        return [
            *told,
            "- without peers (`--peers-python` names the interpreter of an environment that has them)",
        ]
    with Peers(settings.peers_python, settings.timeout, settings.memory_mb) as peers:
        versions = ", ".join(f"{name} {version}" for name, version in peers.versions.items())
    return [*told, f"- the peers' environment: {versions}"]


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--peers-python", type=Path, help="interpreter of an environment with the peers")
    parser.add_argument("--no-peers", action="store_true", help="onnxfix alone")
    parser.add_argument("--package", default="auto", help="auto, tensorrt or tensorrt-rtx")
    parser.add_argument("--compute-capability", help="such as 8.9")
    parser.add_argument("--every", type=int, default=1, help="only each N-th node model")
    parser.add_argument("--match", default="", help="only node models whose name holds this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for a tool, for parsing, for building"
    )
    parser.add_argument("--memory-mb", type=int, default=4096, help="for each child")
    parser.add_argument("--json", type=Path, help="write all that was found to this file")
    parser.add_argument(
        "--write-readme", action="store_true", help="put the tables into the README beside this file"
    )
    parser.add_argument(
        "--from-json", type=Path, help="tables of an earlier run's --json; nothing is measured"
    )
    return parser.parse_args()


def _progress(count: int) -> Callable[[Row], None]:
    began = time.monotonic()
    done: list[str] = []

    def say(row: Row) -> None:
        done.append(row.name)
        if len(done) % 100 == 0:
            print(f"{len(done)} of {count}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    return say


def measured(given: argparse.Namespace) -> tuple[list[str], list[Row]]:
    """The surroundings and the rows of a new run."""
    peers = None if given.no_peers else peers_here(given.peers_python)
    settings = Settings(
        choice(given.package, given.compute_capability),
        (*ONNXFIX, *(PEERS if peers is not None else ())),
        peers,
        given.timeout,
        given.memory_mb,
    )
    cases = node_cases(given.every, given.match)
    surroundings = setting(settings)
    began = time.monotonic()
    rows = measure_all(cases, given.jobs, settings, _progress(len(cases)))
    seconds = time.monotonic() - began
    surroundings.append(
        f"- {len(cases):,} models, {given.jobs} jobs, {seconds:,.0f} s in all; onnxfix does not verify"
    )
    return surroundings, rows


def run(given: argparse.Namespace) -> int:
    """Measure, or read what was measured; print, write. Raises OnnxfixError where something needed is not there."""
    if given.from_json is not None:
        stored = json.loads(given.from_json.read_text(encoding="utf-8"))
        surroundings, rows = stored["setting"], [row_of(one) for one in stored["models"]]
    else:
        surroundings, rows = measured(given)
    tools = [tool for tool in (*ONNXFIX, *PEERS) if rows and tool.name in rows[0].results]
    text = "\n".join([*surroundings, "", *tables.page(rows, tools)])
    print(text)
    if given.json is not None:
        given.json.write_text(_json(surroundings, rows), encoding="utf-8")
    if given.write_readme:
        write_between(HERE / "README.md", "node models", text)
    found = faults.faults(rows, tools)
    print("\n".join(["", f"{len(found)} faults of onnxfix", *found]), file=sys.stderr)
    return int(bool(found))


def _json(surroundings: Sequence[str], rows: Sequence[Row]) -> str:
    return json.dumps({"setting": list(surroundings), "models": [asdict(row) for row in rows]}, indent=1)


def main() -> int:
    """Run as the module's docstring says."""
    return exit_code(lambda: run(_arguments()))


if __name__ == "__main__":
    sys.exit(main())
