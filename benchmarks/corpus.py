"""Apply onnxfix to many models and print a table: nodes before and after, what was fixed and found, rungs.

    python benchmarks/corpus.py FOLDER...          every .onnx below the folders
    python benchmarks/corpus.py --onnx-data        the models that come with the onnx package
    python benchmarks/corpus.py --node-tests       ONNX's node models, with their own inputs as well

Every result is compared with its original by the verification ladder, at three or more shape assignments, and applied
a second time, which must change nothing. The exit code is 1 where something of this does not hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix import engine
from onnxfix.errors import ModelError, UsageError
from onnxfix.files import loading, saving, tensors
from onnxfix.model import Model
from onnxfix.pipeline import contract
from onnxfix.registry import registry
from onnxfix.sandbox import Worker
from onnxfix.targets import target_named
from onnxfix.verification.ladder import Limits, Verdict, verify
from onnxfix.verification.verdict import CPU_RUNGS


@dataclass(frozen=True)
class Case:
    """A model by name; ``path`` where it lies on disk; ``feeds`` are inputs that came with it."""

    name: str
    data: bytes
    path: Path | None = None
    feeds: tuple[dict[str, Any], ...] = ()


@dataclass
class Outcome:
    """What happened to one model."""

    name: str
    before: int = 0
    after: int = 0
    fixed: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    rungs: str = ""
    faults: list[str] = field(default_factory=list)
    changed: bool = False
    executed: bool = False


def folder_cases(folders: list[Path]) -> Iterator[Case]:
    """Every .onnx file below the folders."""
    for folder in folders:
        for path in sorted(folder.rglob("*.onnx")):
            yield Case(str(path.relative_to(folder)), path.read_bytes(), path)


def onnx_data_folder() -> Path:
    """Where the onnx package keeps its test models."""
    return Path(onnx.__file__).parent / "backend" / "test" / "data"


def node_cases() -> Iterator[Case]:
    """ONNX's node models, made in memory, with the inputs that their expected outputs belong to."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        if case.model is not None:
            names = [info.name for info in case.model.graph.input]
            feeds = tuple(dict(zip(names, inputs, strict=False)) for inputs, _ in case.data_sets or ())
            yield Case(case.name, case.model.SerializeToString(), None, feeds)


def run(case: Case, worker: Worker, folder: Path) -> Outcome:
    """Fix one model by every EXACT fix, and hold the result to everything that onnxfix promises."""
    outcome = Outcome(case.name)
    base = case.path.parent if case.path else None
    proto = loading.parse(case.data, case.name)
    if saving.serialize(proto) != case.data:
        outcome.faults.append("load and save is not byte-identical")
    try:
        model = Model(proto, base)
    except ModelError as error:
        outcome.faults.append(f"refused: {error}")
        return outcome
    model.target = target_named(None)
    outcome.before = sum(1 for _ in model.nodes())
    result = engine.fix(model, registry().choose())
    outcome.after = sum(1 for _ in model.nodes())
    outcome.fixed = Counter(item.key.code for item in result.applied)
    outcome.found = Counter(item.rule.code for item in result.remaining)
    outcome.faults += map(str, result.problems)
    outcome.changed = bool(result.applied)
    fixed = saving.serialize(proto)
    if not outcome.changed and fixed != case.data:
        outcome.faults.append("nothing was applied and yet the bytes differ")
    _hold(case, outcome, result, fixed, worker, folder)
    return outcome


def _hold(
    case: Case, outcome: Outcome, result: engine.FixRun, fixed: bytes, worker: Worker, folder: Path
) -> None:
    original = loading.parse(case.data, case.name)
    proto = loading.parse(fixed, case.name)
    outcome.faults += contract.interface_changes(original, proto)
    outcome.faults += contract.untouched_changes(original, proto, result.touched)
    if not outcome.changed:
        outcome.rungs = "unchanged"
        return
    again = Model(loading.parse(fixed, case.name), case.path.parent if case.path else None)
    again.target = target_named(None)
    if engine.fix(again, registry().choose()).applied or saving.serialize(again.proto) != fixed:
        outcome.faults.append("a second apply changes the model again")
    home = case.path.parent if case.path and tensors.external_files(original) else folder
    before, after = home / "onnxfix-before.onnx", home / "onnxfix-after.onnx"
    before.write_bytes(case.data)
    after.write_bytes(fixed)
    how: dict[str, Any] = {"exact": True, "worker": worker, "limits": LIMITS, "rungs": CPU_RUNGS}
    verdicts = [verify(before, after, **how)]
    if case.feeds:
        try:
            verdicts += [verify(before, after, inputs=list(case.feeds), **how)]
        except UsageError as error:  # ONNX's own data do not fit some of its models' declared types
            outcome.rungs = f"the case's own inputs do not fit: {error}"
    _judge(outcome, verdicts)


LIMITS = Limits(step=60.0, total=120.0, reference_step=20.0, reference_total=30.0)


def _judge(outcome: Outcome, verdicts: list[Verdict]) -> None:
    states = []
    for verdict in verdicts:
        for rung in verdict.rungs:
            if rung.status == "failed":
                outcome.faults.append(f"{rung.name}: {rung.reason}")
            if rung.status == "passed" and rung.name != "contract":
                outcome.executed = True
            states.append(f"{rung.name} {rung.status}")
    outcome.rungs = ", ".join(dict.fromkeys(states))


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """Markdown rows of the models that the rules changed or that have a fault."""
    yield "| model | nodes | fixed | left | rungs |"
    yield "|---|---|---|---|---|"
    for item in outcomes:
        fixed = " ".join(f"{code}×{n}" for code, n in sorted(item.fixed.items())) or "–"
        left = " ".join(f"{code}×{n}" for code, n in sorted(item.found.items())) or "–"
        fault = "".join(f" **{fault}**" for fault in item.faults)
        yield f"| {item.name} | {item.before} → {item.after} | {fixed} | {left} | {item.rungs}{fault} |"


def main() -> int:
    """Run as the module's docstring says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--onnx-data", action="store_true")
    parser.add_argument("--node-tests", action="store_true")
    parser.add_argument("--all-rows", action="store_true", help="also the models that nothing was found in")
    arguments = parser.parse_args()
    folders = [*arguments.folders, *([onnx_data_folder()] if arguments.onnx_data else [])]
    cases = [*folder_cases(folders), *(node_cases() if arguments.node_tests else ())]
    start = time.monotonic()
    outcomes = []
    with Worker() as worker, tempfile.TemporaryDirectory() as folder:
        for case in cases:
            outcomes.append(run(case, worker, Path(folder)))
            if outcomes[-1].faults:
                print(f"FAULT {case.name}: {outcomes[-1].faults}", file=sys.stderr, flush=True)
    shown = [o for o in outcomes if arguments.all_rows or o.changed or o.faults or o.found]
    print("\n".join(table(shown)))
    changed = [o for o in outcomes if o.changed]
    print(
        f"\n{len(outcomes)} models, {len(changed)} changed, of which {sum(o.executed for o in changed)} ran on a rung; "
        f"{sum(bool(o.faults) for o in outcomes)} with faults; {time.monotonic() - start:.0f} s"
    )
    return int(any(o.faults for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
