"""Examples of every built-in rule on TensorRT's engines: as they are, and after the rule's fix.

    python benchmarks/gpu/hazards.py prepare CARRY                     anywhere
    python benchmarks/gpu/hazards.py execute CARRY --json FILE         where the GPU is
    python benchmarks/gpu/hazards.py table FILE [--write]              anywhere

``prepare`` writes the models of the rules' own examples before and after the fix, inputs that the verification ladder
plans, and what ONNX Runtime or onnx.reference computes from the model before it. ``execute`` builds an engine of each
and runs it in processes of its own with TF32 turned off. FILE is written every few seconds, and what it holds is not
measured again; the exit code is 1 where something is left. ``table`` says of each rule what its examples showed;
``--write`` puts that into hazards.json, which docs/make.py reads, and into README.md. Its exit code is 1 where a fix
made an engine worse.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the children of the sandbox import what they run from there
import ledger
from command import exit_code, parser_of
from pages import write_between

from gpu import engines, hazard_runs, hazard_verdicts
from gpu.engines import Bench
from gpu.hazard_cases import Carried, Entry, entry_of
from onnxfix.errors import OnnxfixError

RESULT = HERE / "hazards.json"


def prepare(given: argparse.Namespace) -> int:
    """Write the examples."""
    from gpu import hazard_models  # needs what a machine with a GPU may not have

    began = time.monotonic()
    manifest = hazard_models.carry(given.carry, given.most, given.match)
    entries = [entry_of(one) for one in manifest["entries"]]
    models, size = sum(len(one.sides) for one in entries), given.carry.stat().st_size / 2**20
    print(f"{len(manifest['rules'])} rules, {len(entries)} examples, {models} models")
    for entry in entries:
        if reason := entry.skipped or entry.unfed or ("" if entry.truths else entry.untrue):
            print(f"- {entry.key}: nothing to compare with: {reason}")
    print(f"{time.monotonic() - began:.0f} s, {given.carry}: {size:.1f} MiB")
    return 0


def execute(given: argparse.Namespace) -> int:
    """Measure, until all is measured or the time is up."""
    began = time.monotonic()
    choice, facts = engines.ready(given.package)
    for key, value in facts.items():
        print(f"- {key}: {value}", flush=True)
    with Carried(given.carry) as carried:
        document = {"setting": facts, "carry": carried.digest, **carried.manifest}
        with ledger.Ledger(given.json, document) as book:
            entries = [one for one in carried.entries if one.code.startswith(given.match)]
            tasks = hazard_runs.tasks_of(entries, book)
            print(f"{len(tasks):,} models to measure", flush=True)
            lock = threading.Lock()  # of the carried file

            def measure(bench: Bench, task: tuple[Entry, str]) -> tuple[str, dict[str, Any]]:
                entry, side = task
                with lock:
                    case = carried.case(entry)
                return hazard_runs.key_of(entry, side), hazard_runs.run(bench, entry, case, side)

            done = engines.record(
                tasks,
                given.jobs,
                lambda: Bench(choice, given.timeout),
                measure,
                book,
                began=began,
                budget=given.budget,
                every=100,
            )
    return int(not done)


def table(given: argparse.Namespace) -> int:
    """Print, write."""
    stored = ledger.load(given.measured)
    if "entries" not in stored:
        raise OnnxfixError(f"{given.measured}: is not of `execute`")
    known = hazard_verdicts.distilled(stored)
    text = "\n".join(hazard_verdicts.page(known))
    print(text)
    if given.write:
        RESULT.write_text(written(known), encoding="utf-8")
        write_between(RESULT.with_name("README.md"), "hazards", text)
    found = hazard_verdicts.faults(known)
    print("\n".join(["", f"{len(found)} faults", *found]), file=sys.stderr)
    return int(bool(found))


def written(known: dict[str, Any]) -> str:
    """JSON with a line for each rule, so that a change of one shows."""
    rules = ",\n".join(f"{json.dumps(code)}: {json.dumps(one)}" for code, one in known["rules"].items())
    return f'{{"setting": {json.dumps(known["setting"])},\n"rules": {{\n{rules}\n}}}}\n'


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    making = steps.add_parser("prepare")
    making.add_argument("carry", type=Path)
    making.add_argument("--most", type=int, default=6, help="examples of a rule")
    running = steps.add_parser("execute")
    running.add_argument("carry", type=Path)
    running.add_argument("--json", type=Path, required=True)
    running.add_argument("--jobs", type=int, default=14)
    running.add_argument("--timeout", type=float, default=60.0, help="seconds for a model")
    running.add_argument("--budget", type=float, default=400.0, help="begin no model after so many seconds")
    running.add_argument("--package", default="tensorrt-rtx")
    for step in (making, running):
        step.add_argument("--match", default="", help="only rules whose code begins with this")
    showing = steps.add_parser("table")
    showing.add_argument("measured", type=Path)
    showing.add_argument("--write", action="store_true", help="hazards.json and README.md")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    given = _arguments(words)
    return exit_code(lambda: {"prepare": prepare, "execute": execute, "table": table}[given.step](given))


if __name__ == "__main__":
    sys.exit(main())
