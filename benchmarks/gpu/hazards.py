"""Examples of every built-in rule on TensorRT's engines: as they are, and after the rule's fix.

    python benchmarks/gpu/hazards.py measure FILE                      where the GPU is
    python benchmarks/gpu/hazards.py table FILE [--write]              anywhere

``measure`` takes the rules' own examples before and after the fix, inputs that the proof plans, and what ONNX Runtime
or onnx.reference computes from the model before it; it builds an engine of each and runs it in processes of its own
with TF32 turned off. FILE is written every few seconds, and what it holds is not measured again; the exit code is 1
where something is left. ``table`` says of each rule what its examples showed; ``--write`` puts that into hazards.json,
which docs/make.py reads, and into README.md. Its exit code is 1 where a fix made an engine worse.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the children of the sandbox import what they run from there
import ledger
from command import exit_code, parser_of
from machine import lines
from pages import blame, show

from gpu import engines, hazard_runs, hazard_verdicts
from gpu.engines import Bench
from gpu.hazard_models import Maker, examples_of
from onnxfix.errors import OnnxfixError
from onnxfix.rewrite.registry import BUILT_IN, rules_of
from onnxfix.rule import Example, Rule

RESULT = HERE / "hazards.json"
Task = tuple[Rule, int, Example]


def tasks_of(rules: Sequence[Rule], most: int) -> list[Task]:
    """The first example of each rule, then the second of each, for time may end."""
    turns = [
        (turn, (rule, *numbered)) for rule in rules for turn, numbered in enumerate(examples_of(rule, most))
    ]
    return [task for _, task in sorted(turns, key=lambda one: one[0])]


def measure(given: argparse.Namespace) -> int:
    """Measure, until all is measured or the time is up."""
    began = time.monotonic()
    choice, facts = engines.ready(given.package)
    print(*lines(facts), sep="\n", flush=True)
    rules = sorted(
        (rule for rule in rules_of(BUILT_IN) if rule.code.startswith(given.match)), key=lambda rule: rule.code
    )
    lock = threading.Lock()
    with ExitStack() as stack:
        maker = Maker(stack)
        document = {"setting": facts, "rules": [rule.code for rule in rules]}
        book = stack.enter_context(ledger.Ledger(given.file, document))

        def measure_example(bench: Bench, task: Task) -> tuple[str, dict[str, Any]]:
            with lock:  # rules are loaded when they are needed, and the maker has one child
                entry, case = maker.make(*task)
            outcomes = {side: hazard_runs.run(bench, entry, case, side) for side in entry.sides}
            return entry.key, {"entry": asdict(entry), **outcomes}

        tasks = [task for task in tasks_of(rules, given.most) if f"{task[0].code}.{task[1]}" not in book]
        done = engines.record(
            tasks,
            given.jobs,
            lambda: Bench(choice, given.timeout),
            measure_example,
            book,
            began=began,
            budget=given.budget,
            every=100,
        )
    return int(not done)


def table(given: argparse.Namespace) -> int:
    """Print, write."""
    stored = ledger.load(given.file)
    if "rules" not in stored:
        raise OnnxfixError(f"{given.file}: is not of `measure`")
    known = hazard_verdicts.distilled(stored)
    show(hazard_verdicts.page(known), HERE, "hazards", write=given.write)
    if given.write:
        RESULT.write_text(written(known), encoding="utf-8")
    return blame(hazard_verdicts.faults(known))


def written(known: dict[str, Any]) -> str:
    """JSON with a line for each rule, so that a change of one shows."""
    rules = ",\n".join(f"{json.dumps(code)}: {json.dumps(one)}" for code, one in known["rules"].items())
    return f'{{"setting": {json.dumps(known["setting"])},\n"rules": {{\n{rules}\n}}}}\n'


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    running = steps.add_parser("measure")
    running.add_argument("file", type=Path)
    running.add_argument("--most", type=int, default=6, help="examples of a rule")
    running.add_argument("--jobs", type=int, default=14)
    running.add_argument("--timeout", type=float, default=60.0, help="seconds for a model")
    running.add_argument("--budget", type=float, default=400.0, help="begin no example after so many seconds")
    running.add_argument("--package", default="tensorrt-rtx")
    running.add_argument("--match", default="", help="only rules whose code begins with this")
    showing = steps.add_parser("table")
    showing.add_argument("file", type=Path)
    showing.add_argument("--write", action="store_true", help="hazards.json and README.md")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    given = _arguments(words)
    return exit_code(lambda: measure(given) if given.step == "measure" else table(given))


if __name__ == "__main__":
    sys.exit(main())
