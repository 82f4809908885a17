"""Whether `onnxfix diagnose` names the node that a fault was planted into, and nothing where nothing was planted.

    python benchmarks/diagnose/choosing.py planted.json --exports DIR --fixtures 2
    python benchmarks/diagnose/run.py measure result.json [--exports DIR] [--jobs N]
    python benchmarks/diagnose/run.py measure peers.json --parts planted --every 9 --polygraphy PROGRAM
    python benchmarks/diagnose/run.py table result.json [--peers peers.json] [--write-readme]

``measure`` plants the faults of planted.json (see ``choosing.py``), one at a time, and hands each pair of models to the
command in a process of its own, with inputs from a file; then the same with other names in the model with the fault;
then each model without a fault against a copy of itself, against a copy with other names, and against ways to execute
it that differ by rounding alone. What result.json holds is not measured again. A fault is
named if a culprit is the changed node (of a changed constant, the node that reads it; of Casts around a node, that
node). With ``--polygraphy`` that program compares the models (see ``peers.py``), and ``table`` puts both side by side.
The exit code of ``table`` is 1 where fewer faults are named than should be (first: 90 %, among three: 97 %), or
a culprit is named where nothing was planted.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from command import commit, exit_code, parser_of
from ledger import Ledger, load
from pages import show

from diagnose import cases, choosing, peers, tables
from diagnose.cases import Case

PARTS = ("planted", "renamed", "controls")
PLANTED = HERE / "planted.json"


def measured(case: Case, seed: int, limit: float, polygraphy: str) -> dict[str, object]:
    """One case, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-diagnose-") as folder:
        if polygraphy:
            return peers.compare(polygraphy, case, Path(folder), seed, limit)
        words = cases.arguments(case, Path(folder), seed)
        command = [sys.executable, "-m", "onnxfix", "diagnose", *words, "--report", "report.json"]
        return cases.entry(
            cases.execute(command, limit, Path(folder)), Path(folder, "report.json"), case.fault
        )


def measure(given: argparse.Namespace) -> int:
    """All cases that the file does not hold."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "rules")])
    seed, faults, _ = choosing.read(given.planted)
    wanted: list[Case] = []
    if "planted" in given.parts:
        wanted += cases.planted_cases(faults, given.exports)
    if "renamed" in given.parts:
        wanted += cases.planted_cases(faults, given.exports, disguised=True)
    if "controls" in given.parts:
        wanted += cases.control_cases(given.exports)
    wanted = wanted[:: given.every]
    digest = hashlib.sha256(given.planted.read_bytes()).hexdigest()[:16]
    began, version = time.monotonic(), commit(ROOT, "onnxfix", "rules")[:12]
    with Ledger(given.json, {"seed": seed, "planted": digest}) as book:

        def work(case: Case) -> None:
            if case.key in book:
                return
            found = {**measured(case, seed, given.timeout, given.polygraphy), "commit": version}
            book.record(case.key, found)
            print(tables.line(case.key, found), file=sys.stderr, flush=True)

        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(work, wanted))
    print(f"{len(wanted)} measured, {time.monotonic() - began:.0f} s")
    return 0


def table(given: argparse.Namespace) -> int:
    """Print, write, judge."""
    _, faults, trials = choosing.read(given.planted)
    results = load(given.json)["results"]
    rows = tables.rows_of(faults, results)
    disguised = tables.rows_of(faults, results, disguised=True)
    controls = tables.controls_of(results)
    show(tables.page(rows, disguised, controls, trials), HERE, "planted", write=given.write_readme)
    if given.peers is not None:
        compared = peers.page(load(given.peers)["results"], results)
        show(compared, HERE, "peers", write=given.write_readme)
    lacking = tables.lacking([*rows, *disguised], controls)
    print("\n".join(["", *lacking]), file=sys.stderr)
    return int(bool(lacking))


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    parser = parser_of(__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    first = steps.add_parser("measure")
    first.add_argument(
        "--exports", type=Path, help="a folder of full-size exports; without it, fixtures alone"
    )
    first.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    first.add_argument("--every", type=int, default=1, help="only each N-th case of those")
    first.add_argument("--jobs", type=int, default=1)
    first.add_argument("--timeout", type=float, default=600.0, help="seconds for a diagnosis")
    first.add_argument("--polygraphy", default="", metavar="PROGRAM", help="instead of onnxfix diagnose")
    second = steps.add_parser("table")
    second.add_argument("--peers", type=Path, help="what --polygraphy found")
    second.add_argument("--write-readme", action="store_true")
    for step in (first, second):
        step.add_argument("json", type=Path)
        step.add_argument("--planted", type=Path, default=PLANTED, help="the faults")
    given = parser.parse_args(words)
    return exit_code(lambda: measure(given) if given.step == "measure" else table(given))


if __name__ == "__main__":
    sys.exit(main())
