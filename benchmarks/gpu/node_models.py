"""ONNX's node models on TensorRT's engines: as they are, and after onnxfix and two of its peers.

    python benchmarks/gpu/node_models.py prepare CARRY [--peers-python PYTHON]     where the tools are
    python benchmarks/gpu/node_models.py execute CARRY --json FILE                 where the GPU is
    python benchmarks/gpu/node_models.py table FILE [--predicted FILE] [--write-readme]

``prepare`` writes the models after every tool into the file CARRY. ``execute`` builds an engine of each, with the
profile of the model's own data, and runs it in processes of its own with TF32 turned off; outputs are held against
ONNX's expected ones, within the case's own tolerance and within that of ``onnxfix verify``. FILE is written every few
seconds, and what it holds is not measured again. ``table`` prints what was measured and explains every wrong output
where it can; ``--predicted`` is what network_against_engine.py predicted. Its exit code is 1 where a fix of onnxfix
lost a model that was right, or a wrong output has no explanation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the children of the sandbox import what they run from there

import onnx  # noqa: E402
from acceptance.cases import NodeCase, node_cases  # noqa: E402
from acceptance.node_models import write_between  # noqa: E402
from acceptance.tools import EXACT, NUMERIC_RTX  # noqa: E402

from gpu import engines, explaining, ledger, node_tables, outcomes  # noqa: E402
from gpu.carrying import Carried, Maker, pack  # noqa: E402
from gpu.engines import Bench  # noqa: E402
from gpu.outcomes import TOOLS, Result, Row, judge, lost, rows_of  # noqa: E402
from onnxfix.errors import OnnxfixError  # noqa: E402
from onnxfix.sandbox import Worker  # noqa: E402

Task = tuple[str, NodeCase, bytes]


def prepare(given: argparse.Namespace) -> int:
    """Write the models after every tool."""
    cases = node_cases(given.every, given.match)
    began = time.monotonic()
    with ExitStack() as stack:
        maker = Maker(TOOLS[1:], given.peers_python, given.timeout, stack)
        manifest = pack(given.carry, cases, maker)
    seconds, size = time.monotonic() - began, given.carry.stat().st_size / 2**20
    for name, version in manifest["versions"].items():
        print(f"- {name} {version}")
    print(f"{len(cases):,} models, {seconds:,.0f} s, {given.carry}: {size:.1f} MiB")
    return 0


def tasks_of(carried: Carried, cases: Sequence[NodeCase], tools: Sequence[str], done: Any) -> list[Task]:
    """What is to be measured: a key, the case, and the model. ``done`` holds the keys that are not."""
    found = []
    for case in cases:
        if case not in carried:
            continue
        for digest, data in carried.models(case, tools).items():
            if (key := f"{case.name}/{digest}") not in done:
                found.append((key, case, data))
    return found


def measure(bench: Bench, task: Task) -> Result:
    """One model. Never raises for what a model or an engine does."""
    _, case, data = task
    if not case.feeds:
        return Result("unfed", "ONNX has no data for it")
    try:
        return judge(case, bench.execute(data, case.feeds, case.profile))
    except ValueError as error:  # of data sets that no profile covers
        return Result("unfed", str(error))


def execute(given: argparse.Namespace) -> int:
    """Measure, until all is measured or the time is up."""
    began = time.monotonic()
    choice, facts = engines.ready(given.package)
    for key, value in facts.items():
        print(f"- {key}: {value}", flush=True)
    with Carried(given.carry) as carried:
        cases = [one for one in node_cases(1, given.match) if one.name in carried.manifest["made"]]
        strange = [case.name for case in cases if case not in carried]
        if len(strange) == len(cases):
            raise OnnxfixError(f"{given.carry}: no model in it is one of onnx {onnx.__version__}'s")
        document = {"setting": facts, **carried.manifest, "strange": strange}
        with ledger.Ledger(given.json, document) as book:
            tasks = tasks_of(carried, cases, given.tools, book)
            print(f"{len(tasks):,} models to measure, {len(strange)} are others in this onnx", flush=True)

            done = engines.record(
                tasks,
                given.jobs,
                lambda: Bench(choice, given.timeout),
                lambda bench, task: (task[0], asdict(measure(bench, task))),
                book,
                began=began,
                budget=given.budget,
                every=200,
            )
    return int(not done)


def explained(
    rows: Sequence[Row], predicted: dict[str, Any], cases: dict[str, NodeCase]
) -> dict[str, list[str]]:
    """Why outputs are wrong, by ``name/digest`` of the model."""
    found: dict[str, list[str]] = {}
    with Worker(memory_mb=4096) as runner, ExitStack() as stack:
        folder = explaining.folder(stack)
        for row in rows:
            for tool, result in row.results.items():
                key = f"{row.name}/{row.digests[tool]}"
                if result.status == "wrong" and key not in found and row.name in cases:
                    subject = explaining.Subject(cases[row.name], result, predicted.get(key), runner, folder)
                    found[key] = explaining.explain(subject)
    return found


def table(given: argparse.Namespace) -> int:
    """Print, explain, write."""
    stored = ledger.load(given.measured)
    rows = rows_of(stored)
    predicted = ledger.load(given.predicted)["results"] if given.predicted is not None else {}
    cases = {case.name: case for case in node_cases()}
    why = explained(rows, predicted, cases)
    text = "\n".join(node_tables.page(stored, rows, why, cases))
    print(text)
    if given.write_readme:
        write_between(HERE / "README.md", "node models", text)
    found = faults(rows, why)
    print("\n".join(["", f"{len(found)} faults", *found]), file=sys.stderr)
    return int(bool(found))


def faults(rows: Sequence[Row], why: dict[str, list[str]]) -> list[str]:
    """What onnxfix lost, and what is wrong as it is or after onnxfix without an explanation."""
    found = []
    for row in rows:
        for tool in (outcomes.AS_IS, EXACT, NUMERIC_RTX):
            if tool.name not in row.results:
                continue
            result = row.results[tool.name]
            if tool != outcomes.AS_IS and lost(row, tool.name):
                found.append(f"{tool.name} {row.name}: lost: {result.status}: {result.reason[:200]}")
            if result.status == "wrong" and not why.get(f"{row.name}/{row.digests[tool.name]}"):
                found.append(f"{tool.name} {row.name}: wrong, and nobody knows why: {result.reason[:200]}")
    return found


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    making = steps.add_parser("prepare")
    making.add_argument("carry", type=Path)
    making.add_argument("--peers-python", type=Path, help="interpreter of an environment with the peers")
    making.add_argument("--every", type=int, default=1, help="only each N-th model")
    making.add_argument("--timeout", type=float, default=60.0, help="seconds for a tool on a model")
    running = steps.add_parser("execute")
    running.add_argument("carry", type=Path)
    running.add_argument("--json", type=Path, required=True)
    running.add_argument("--jobs", type=int, default=14)
    running.add_argument("--timeout", type=float, default=60.0, help="seconds for a model")
    running.add_argument("--budget", type=float, default=540.0, help="begin no model after so many seconds")
    running.add_argument("--package", default="tensorrt-rtx")
    names = [tool.name for tool in TOOLS]
    running.add_argument("--tools", nargs="+", choices=names, default=names, help="models of these tools")
    for step in (making, running):
        step.add_argument("--match", default="", help="only models whose name holds this")
    showing = steps.add_parser("table")
    showing.add_argument("measured", type=Path)
    showing.add_argument("--predicted", type=Path, help="what network_against_engine.py predicted")
    showing.add_argument("--write-readme", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run as the module's docstring says."""
    given = _arguments(words)
    steps = {"prepare": prepare, "execute": execute, "table": table}
    try:
        return steps[given.step](given)
    except OnnxfixError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
