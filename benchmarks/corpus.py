"""Models that come with ONNX, with the inputs that belong to them, and what onnxfix promises of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx_cases import onnx_cases

from onnxfix.errors import ModelError, UsageError
from onnxfix.files import loading, saving, tensors
from onnxfix.model import Model
from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import Limits, verify
from onnxfix.rewrite import engine
from onnxfix.rewrite.registry import registry
from onnxfix.runtime.sandbox import Worker
from onnxfix.targets import target_named
from onnxfix.verbs import contract


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
    for case in onnx_cases().values():
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
    result = engine.fix(model, registry().choose())
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
        with suppress(UsageError):  # ONNX's own data do not fit some of its models' declared types
            verdicts += [verify(before, after, inputs=list(case.feeds), **how)]
    rungs = [rung for verdict in verdicts for rung in verdict.rungs]
    outcome.faults += [f"{rung.name}: {rung.reason}" for rung in rungs if rung.status == "failed"]
    outcome.executed = any(rung.status == "passed" and rung.name != "contract" for rung in rungs)


LIMITS = Limits(step=60.0, total=120.0, reference_step=20.0, reference_total=30.0)
