"""What TensorRT builds before and after onnxfix and its peers, what still computes the same, and what it costs.

    python benchmarks/acceptance/node_models.py                ONNX's node models, with their own data
    python benchmarks/acceptance/node_models.py FOLDER...      the models in the folders ("exports")

Every model goes through TensorRT's parser and builder as it is, after onnxfix (exact fixes; numeric ones for
TensorRT-RTX and for the default target) and after onnxsim, onnxslim and Polygraphy's sanitize, with the same settings
and the profile of the original's own data. No engine is executed: outputs are those of ONNX Runtime on the CPU without
optimization, else of onnx.reference. The exit code is 1 where onnxfix lost a model that built, changed an interface or
an output, failed, or was not bit-identical with exact fixes, and where a rescue by default costs over 200 layers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the children of the sandbox import what they run from there

import onnxfix  # noqa: E402
from acceptance import faults, tables  # noqa: E402
from acceptance.cases import export_cases, node_cases  # noqa: E402
from acceptance.measure import Row, Settings, measure_all, row_of  # noqa: E402
from acceptance.tools import EXACT, ONNXFIX, PEERS, Peers  # noqa: E402
from onnxfix.errors import OnnxfixError  # noqa: E402
from onnxfix.nvidia import Missing  # noqa: E402
from onnxfix.sandbox import Worker  # noqa: E402
from onnxfix.trt.package import Choice  # noqa: E402


def choice(package: str, capability: str | None) -> Choice:
    """The TensorRT to ask. Raises OnnxfixError where there is none."""
    with Worker() as worker:
        found = worker.call(
            "onnxfix.trt.package:choose",
            timeout=120.0,
            package=package,
            compute_capability=capability,
        )
    if not found.ok or isinstance(found.value, Missing):
        raise OnnxfixError(found.value.reason if found.ok else found.message)
    chosen: Choice = found.value
    return chosen


def peers_here(asked: Path | None) -> Path | None:
    """The peers' interpreter: the one asked for, else this one where all of them are installed, else None."""
    modules = ("onnxsim", "onnxslim", "polygraphy", "onnx_graphsurgeon")
    if asked is None and all(importlib.util.find_spec(name) is not None for name in modules):
        return Path(sys.executable)
    return asked


def setting(settings: Settings) -> Iterator[str]:
    """What was measured with: versions and machine."""
    own = {"Python": platform.python_version(), "onnxfix": onnxfix.__version__}
    own |= {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime", "numpy")}
    yield f"- {_versions(own)}"
    if settings.peers_python is not None:
        with Peers(settings.peers_python, settings.timeout, settings.memory_mb) as peers:
            yield f"- the peers' environment: {_versions(peers.versions)}"
    else:
        yield "- without peers (`--peers-python` names the interpreter of an environment that has them)"
    chosen = settings.choice
    yield (
        f"- {chosen.package} {chosen.version}, built ahead of time for compute capability {chosen.capability}; "
        "no engine was executed"
    )
    yield f"- {_cpu()}"


def _versions(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _cpu() -> str:
    name = platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        lines = [
            line for line in info.read_text(encoding="utf-8").splitlines() if line.startswith("model name")
        ]
        name = lines[0].partition(":")[2].strip() if lines else name
    return f"{os.cpu_count()} cores ({name})"


def write_between(path: Path, name: str, text: str) -> None:
    """Replace what lies between the markers of that name. Raises OnnxfixError where they are not there."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    old = path.read_text(encoding="utf-8")
    head, found, rest = old.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise OnnxfixError(f"{path}: has no markers {begin.strip()} and {end}")
    path.write_text(f"{head}{begin}\n{text.strip()}\n\n{end}{tail}", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--peers-python", type=Path, help="interpreter of an environment with the peers")
    parser.add_argument("--no-peers", action="store_true", help="onnxfix alone")
    parser.add_argument("--package", default="auto", help="auto, tensorrt or tensorrt-rtx")
    parser.add_argument("--compute-capability", help="such as 8.9")
    parser.add_argument("--verify", action="store_true", help="let onnxfix verify too, as it does by default")
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
    fixes = (EXACT,) if given.folders else ONNXFIX
    settings = Settings(
        choice(given.package, given.compute_capability),
        (*fixes, *(PEERS if peers is not None else ())),
        peers,
        given.verify,
        given.timeout,
        given.memory_mb,
    )
    if given.folders:
        with Worker() as worker:
            cases = export_cases(given.folders, worker)
    else:
        cases = node_cases(given.every, given.match)
    surroundings = list(setting(settings))
    began = time.monotonic()
    rows = measure_all(cases, given.jobs, settings, _progress(len(cases)))
    seconds = time.monotonic() - began
    how = "verifies as well" if given.verify else "does not verify: what is measured here judges"
    surroundings.append(f"- {len(cases):,} models, {given.jobs} jobs, {seconds:,.0f} s in all; onnxfix {how}")
    return surroundings, rows


def run(given: argparse.Namespace) -> int:
    """Measure, or read what was measured; print, write. Raises OnnxfixError where something needed is not there."""
    if given.from_json is not None:
        stored = json.loads(given.from_json.read_text(encoding="utf-8"))
        surroundings, rows = stored["setting"], [row_of(one) for one in stored["models"]]
    else:
        surroundings, rows = measured(given)
    tools = [tool for tool in (*ONNXFIX, *PEERS) if rows and tool.name in rows[0].results]
    body = tables.exports(rows, tools) if given.folders else tables.numbers(rows, tools)
    text = "\n".join([*surroundings, "", *body])
    print(text)
    if given.json is not None:
        given.json.write_text(_json(surroundings, rows), encoding="utf-8")
    if given.write_readme:
        write_between(HERE / "README.md", "exports" if given.folders else "node models", text)
    found = faults.faults(rows, tools)
    print("\n".join(["", f"{len(found)} faults of onnxfix", *found]), file=sys.stderr)
    return int(bool(found))


def _json(surroundings: Sequence[str], rows: Sequence[Row]) -> str:
    return json.dumps({"setting": list(surroundings), "models": [asdict(row) for row in rows]}, indent=1)


def main() -> int:
    """Run as the module's docstring says."""
    try:
        return run(_arguments())
    except OnnxfixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
