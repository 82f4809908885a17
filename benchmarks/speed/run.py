"""What onnxfix costs beside its peers: seconds, memory, and whether the results are right.

    python benchmarks/speed/run.py FOLDER... --work WORK [--screen] [--write-readme]

FOLDER holds models of exports/make.py and speed/make.py; WORK is a folder on the same disk for the two environments,
for what the tools write, for ``screening.json`` and ``results.json``. Any Python from 3.10 on runs this, with nothing
installed; what is measured runs in two environments of its own, onnxfix from this checkout in one of them.

``--screen`` runs every peer once on every model and judges what it writes by ONNX Runtime; what screening.json holds is
not screened again. Without it, onnxfix and the ``--peers`` fastest peers that wrote a right model (as far as they are
within ``--near`` times the fastest) are run in turn, ``--runs`` times, and the tables made of results.json. A model
that results.json holds is not timed again, unless ``--again``. The exit code is 1 where a limit is missed (verdict.py),
with ``--screen`` where onnxfix wrote a wrong model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from speed import screening, tables, timing, verdict
from speed.models import Case, cases, say
from speed.tools import APPLY, NAMED, PEERS, Bench, Tool

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
MARKS = ("<!-- measured: begin -->", "<!-- measured: end -->")
_PEER_PACKAGES = (
    "onnxsim", "onnxslim", "polygraphy", "onnx-graphsurgeon", "onnxscript", "onnxoptimizer", "onnxruntime",
    "matplotlib",
)  # fmt: skip


def environment(folder: Path, packages: Sequence[str]) -> Path:
    """The interpreter of an environment with these packages, made where it is not there; folders are installed anew."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *packages], check=True, stdout=subprocess.DEVNULL)
    return python


def machine(bench: Bench, results: Sequence[timing.Result]) -> dict[str, str]:
    """What the figures depend on."""
    known = {}
    for name, python in bench.pythons.items():
        words = (
            "import importlib.metadata as m, platform; print('Python ' + platform.python_version(), *sorted("
        )
        words += "f'{d.name} {d.version}' for d in m.distributions() if d.name.lower() in "
        words += (
            "'onnx onnxruntime onnxfix numpy protobuf onnxsim onnxslim polygraphy onnxscript onnxoptimizer'"
        )
        words += ".split()), sep=', ')"
        done = subprocess.run(
            [str(python), "-c", words], capture_output=True, text=True, check=True, cwd=HERE
        )
        known[f"environment of {name}"] = done.stdout.strip()
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text(encoding="utf-8")) if info.exists() else None
    known["machine"] = (
        f"{os.cpu_count()} cores ({model[1] if model else platform.processor()}), {platform.release()}"
    )
    told = f"greatest to least of the same tool and model, median: {tables.spread(results):.2f}"
    known["runs"] = (
        f"medians of {tables.runs(results)}, in turn; in brackets the least and the greatest ({told})"
    )
    return known


def timed(
    bench: Bench, models: Sequence[Case], given: argparse.Namespace, path: Path
) -> dict[str, timing.Result]:
    """Time what results.json does not hold, and keep it there after each model."""
    known = timing.read(path)
    screened = screening.read(given.work / "screening.json")
    chosen = [NAMED[name] for name in given.tools] if given.tools else PEERS
    for case in models:
        if case.name in known and not given.again:
            continue
        count = len(PEERS) if given.all_peers else 0 if case.kind == "synthetic" else given.peers
        near = float("inf") if given.all_peers else given.near
        peers: list[Tool] = screening.fastest(screened, case, chosen, count, near)
        cold = given.cold if case.kind != "synthetic" and re.search(given.cold_models, case.name) else 0
        known[case.name] = timing.time_model(bench, case, peers, given.runs, cold)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps({name: asdict(result) for name, result in known.items()}, indent=1))
        unfinished.replace(path)
    return known


def write_readme(text: str) -> None:
    """Put the tables between the markers of the page."""
    page = README.read_text()
    before, rest = page.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    README.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


def draw(python: Path, results: Path, screened: Path) -> None:
    """The plots, by an interpreter that has matplotlib."""
    done = subprocess.run(
        [str(python), str(HERE / "plot.py"), str(results), str(screened), str(HERE)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        say(f"no plots: {(done.stderr.strip().splitlines() or ['killed'])[-1]}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--screen", action="store_true", help="run every peer once and judge it")
    parser.add_argument("--jobs", type=int, default=1, help="models that are screened at a time")
    parser.add_argument("--models", nargs="+", default=[], metavar="REGEX", help="only these models")
    parser.add_argument("--tools", nargs="+", choices=[tool.name for tool in PEERS], help="only these peers")
    parser.add_argument("--peers", type=int, default=2, help="how many peers are timed, the fastest first")
    parser.add_argument("--near", type=float, default=1.25, help="how slow another peer may have been")
    parser.add_argument("--all-peers", action="store_true", help="time all that wrote a right model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", type=int, default=0, metavar="RUNS", help="runs with files not in memory")
    parser.add_argument("--cold-models", default="", metavar="REGEX", help="which models; all, without it")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one run")
    parser.add_argument(
        "--memory-mb", type=int, default=16_000, help="for a screened run, all processes together"
    )
    parser.add_argument("--onnxfix-python", type=Path, help="without it an environment in WORK")
    parser.add_argument("--peers-python", type=Path, help="without it an environment in WORK")
    parser.add_argument("--again", action="store_true", help="forget what was measured of these models")
    parser.add_argument("--write-readme", action="store_true", help="tables and plots into this folder")
    return parser.parse_args()


def main() -> int:
    """Run as the module's docstring says."""
    given = arguments()
    given.work = given.work.resolve()
    scratch = given.work / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    root = str(HERE.parents[1])
    pythons = {
        "onnxfix": given.onnxfix_python or environment(given.work / "onnxfix", [f"{root}[cpu]"]),
        "peers": given.peers_python or environment(given.work / "peers", _PEER_PACKAGES),
    }
    bench = Bench(
        {name: path.absolute() for name, path in pythons.items()}, scratch, given.timeout, given.memory_mb
    )
    models = cases([folder.resolve() for folder in given.folders], given.models)
    screened_path, results_path = given.work / "screening.json", given.work / "results.json"
    if given.screen:
        tools = [NAMED[name] for name in given.tools] if given.tools else [*PEERS, APPLY]
        found = screening.screen(bench, models, tools, screened_path, given.jobs, given.again)
        print("\n".join([*tables.peers(found), "", *tables.interfaces(found)]))
        return int(any("apply" in row and not row["apply"].get("right") for row in found.values()))
    results = timed(bench, models, given, results_path)
    names = [case.name for case in models if case.name in results]
    shown = [results[name] for name in names]
    met = verdict.points(shown)
    told = machine(bench, shown)
    text = "\n".join(tables.page(shown, screening.read(screened_path), met, told))
    print(text)
    if given.write_readme:
        write_readme(text)
        draw(bench.pythons["peers"], results_path, screened_path)
    return int(any(point.met is False for point in met))


if __name__ == "__main__":
    sys.exit(main())
