"""How a run verifies: its options, the ladder on two files with the contract of this run, and what came of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix.files import loading, saving
from onnxfix.files.temporary import Temporary, temporary_beside
from onnxfix.pipeline import contract
from onnxfix.trt.records import TrtOptions
from onnxfix.verification.ladder import Verdict
from onnxfix.verification.ladder import verify as climb_rungs
from onnxfix.verification.specialize.specialization import Specialization
from onnxfix.verification.validity import judge


@dataclass(frozen=True)
class Options:
    """How to verify. ``leave_data``: external data that was copied for an output stays even if the output does not.
    ``special``: how the result is specialized against the model that it is compared with."""

    verify: bool = True
    require: tuple[str, ...] = ()
    inputs: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None
    input_shapes: tuple[str, ...] = ()
    seed: int = 0
    rungs: tuple[str, ...] | None = None
    trt: TrtOptions = field(default_factory=TrtOptions)
    leave_data: bool = False
    special: Specialization | None = None


def climb(
    original: Path,
    fixed: Path,
    before: ModelProto,
    after: ModelProto,
    options: Options,
    *,
    exact: bool,
    base: ModelProto | None = None,
    touched: frozenset[str] | None = None,
    interface: bool = True,
    rungs: Sequence[str] | None = None,
    inherit: bool = True,
    ready: Callable[[], None] = lambda: None,
) -> Verdict:
    """The ladder on two files. ``touched`` (where known) is what the fixes may have changed of ``base``, by default
    of ``before``.

    ``rungs`` are fewer rungs than the options name; ``inherit`` and ``ready`` as in ``ladder.verify``.
    """

    def violations(first: ModelProto, second: ModelProto) -> list[str]:
        found = contract.interface_changes(before, after, options.special) if interface else []
        start = base if base is not None else before
        return found + (contract.untouched_changes(start, after, touched) if touched is not None else [])

    if not options.verify:
        rungs = ("contract",)
    # Fewer rungs look for a culprit, or judge what is not final: nobody will see how fast that was.
    trt = options.trt if rungs is None else replace(options.trt, benchmark=False)
    verdict = climb_rungs(
        original,
        fixed,
        exact=exact,
        contract=violations,
        inputs=options.inputs,
        input_shapes=options.input_shapes,
        seed=options.seed,
        require=options.require,
        rungs=rungs if rungs is not None else options.rungs,
        trt=trt,
        inherit=inherit,
        models=(before, after),
        ready=ready,
        special=options.special,
    )
    changed = [] if interface else contract.interface_changes(before, after, options.special)
    return _interface_said(verdict, changed) if changed else verdict


def _interface_said(verdict: Verdict, changed: list[str]) -> Verdict:
    """A contract that passed although the interface changed, as UNSAFE fixes may do, must not claim the contrary."""
    said = f"UNSAFE fixes changed the interface: {'; '.join(changed)}"
    rungs = (
        replace(rung, reason=f"{judge(rung.checks).words}; {said}")
        if rung.name == "contract" and rung.status == "passed"
        else rung
        for rung in verdict.rungs
    )
    return replace(verdict, rungs=tuple(rungs))


def refuted(verdict: Verdict) -> bool:
    """Whether a rung showed a difference; a required rung that could not run is no fault of a fix."""
    return any(rung.refutes for rung in verdict.rungs)


def telling(verdict: Verdict) -> tuple[str, ...]:
    """The rungs to repeat in search of the culprit. ONNX Runtime's judge half precision, and what they have no kernel
    for, by what ``reference`` said: where it was climbed it is asked again, and nowhere else."""
    names = [rung.name for rung in verdict.rungs if rung.refutes]
    led = {"ort-cpu", "ort-cuda"}.intersection(names) and "reference" not in names
    return ("reference", *names) if led and verdict.rung("reference") is not None else tuple(names)


def reason_of(verdict: Verdict) -> str:
    """What the rungs that refute it say, on one line."""
    return "; ".join(f"{rung.name}: {rung.reason}" for rung in verdict.rungs if rung.refutes)


def on_disk(loaded: loading.Loaded, stack: ExitStack, made: list[Temporary] | None = None) -> Path:
    """A path at which backends can read the model: its own, or a temporary file for one that came from memory.

    A file of more than 2 GB is read by none of them: a copy with its weights beside it is. ``made`` receives the files
    that were made beside the model, where others may get at them.

    Raises:
        OnnxfixError: the temporary file cannot be written.
    """
    if loaded.path is not None and not loaded.oversize:
        return loaded.path
    if loaded.path is not None and loaded.beside:  # what lies beside it must be seen from the copy, too
        beside = [stack.enter_context(temporary_beside(loaded.path)) for _ in range(2)]
        saving.save(loaded.proto, *beside)
        if made is not None:
            made += beside
        return beside[0].path
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
    path = folder / "model.onnx"
    if loaded.oversize:
        saving.save(loaded.proto, path, folder / "model.onnx.data")
    else:
        loaded.copy_to(path)
    return path
