"""Fix, verify, and withdraw what does not verify, until what is left is proven."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnx import ModelProto

from onnxfix import contract, engine
from onnxfix.backends.trt_types import TrtOptions
from onnxfix.engine import FixKey, FixRun
from onnxfix.errors import OnnxfixError
from onnxfix.graph import wire
from onnxfix.graph.overlay import Model
from onnxfix.report import Withdrawn
from onnxfix.rule import Rule, Safety
from onnxfix.targets import Target
from onnxfix.verification.ladder import DEFAULT_RUNGS, RungResult, Verdict
from onnxfix.verification.ladder import verify as climb_rungs
from onnxfix.verification.verdict import STATIC

MAX_WITHDRAWN = 25
"""After so many withdrawn fixes the run gives up: something is wrong that bisecting will not find."""


@dataclass(frozen=True)
class Options:
    """How to verify."""

    verify: bool = True
    require: tuple[str, ...] = ()
    inputs: str | os.PathLike[str] | None = None
    input_shapes: tuple[str, ...] = ()
    seed: int = 0
    rungs: tuple[str, ...] | None = None
    trt: TrtOptions = field(default_factory=TrtOptions)


@dataclass(frozen=True)
class Result:
    """A fixed model, its proof, and the temporary file that holds it (None where nothing changed)."""

    proto: ModelProto
    run: FixRun
    verdict: Verdict
    withdrawn: tuple[Withdrawn, ...]
    changed: bool
    notes: tuple[str, ...]
    temporary: Path | None
    copied: list[Path]
    """External data files that were copied for the output; deleted at the end unless it was written."""


class _Prover:
    """One apply: repeats the run with fewer fixes until the result verifies."""

    def __init__(
        self,
        loaded: wire.Loaded,
        destination: Path | None,
        rules: Sequence[Rule],
        target: Target,
        options: Options,
        stack: ExitStack,
        say: Callable[[str], None],
    ) -> None:
        self.loaded = loaded
        self.rules = rules
        self.target = target
        self.options = options
        self.say = say
        self.original = on_disk(loaded, stack)
        self.copied: list[Path] = []
        stack.callback(self._drop_copied)
        folder = self._folder(destination, stack)
        name = destination.name if destination is not None else self.original.name
        self.temporary = stack.enter_context(wire.temporary_beside(folder / name))

    def _folder(self, destination: Path | None, stack: ExitStack) -> Path:
        """Where the candidate is written: it must see the external data, and be one rename from its place."""
        external = bool(wire.external_files(self.loaded.proto))
        if destination is not None:
            if external and self.loaded.base_dir is not None:
                self.copied += wire.copy_external(self.loaded.proto, self.loaded.base_dir, destination.parent)
            return destination.parent
        if external:
            return self.original.parent
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))

    def _drop_copied(self) -> None:
        for path in self.copied:
            path.unlink(missing_ok=True)

    def fix(self, safety: Safety, allow: engine.Allow | None) -> tuple[ModelProto, FixRun]:
        proto = self.loaded.fresh()
        model = Model(proto, self.loaded.base_dir)
        model.target = self.target
        self.say("fixing")
        return proto, engine.fix(model, self.rules, safety=safety, allow=allow)

    def judge(self, proto: ModelProto, run: FixRun, rungs: Sequence[str] | None = None) -> Verdict:
        """Write the candidate and climb the ladder with it, or some rungs of it."""
        wire.write(wire.serialize(proto), self.temporary)
        exact = all(item.safety == Safety.EXACT for item in run.applied)
        self.say("verifying")
        return climb(
            self.original,
            self.temporary,
            self.loaded.proto,
            proto,
            self.options,
            exact=exact,
            touched=run.touched,
            interface=all(item.safety != Safety.UNSAFE for item in run.applied),
            rungs=rungs,
        )

    def settle(self, safety: Safety) -> tuple[ModelProto, FixRun, Verdict, list[Withdrawn]]:
        """The largest run, up to ``safety``, that verifies once its culprits are withdrawn one by one."""
        withdrawn: dict[FixKey, Withdrawn] = {}
        while True:
            proto, run = self.fix(safety, lambda key: key not in withdrawn)
            if not run.applied:
                return proto, run, self._unchanged(), list(withdrawn.values())
            verdict = self.judge(proto, run)
            if not _refuted(verdict) or len(withdrawn) >= MAX_WITHDRAWN:
                return proto, run, verdict, list(withdrawn.values())
            culprit = self._culprit(safety, run, set(withdrawn), _telling(verdict))
            withdrawn[culprit] = Withdrawn(culprit.code, culprit.place, culprit.title, _reason(verdict))

    def _culprit(self, safety: Safety, run: FixRun, withdrawn: set[FixKey], rungs: Sequence[str]) -> FixKey:
        """The fix with which the shortest beginning of the run ends that fails on one of ``rungs``."""
        keys = list(dict.fromkeys(item.key for item in run.applied))
        good, bad = 0, len(keys)
        while bad - good > 1:
            middle = (good + bad) // 2
            allowed = set(keys[:middle]) - withdrawn
            proto, part = self.fix(safety, allowed.__contains__)
            if part.applied and _refuted(self.judge(proto, part, rungs)):
                bad = middle
            else:
                good = middle
        return keys[bad - 1]

    def _unchanged(self) -> Verdict:
        """Nothing was fixed: the same bytes compute the same. What TensorRT says of them is still news."""
        same = RungResult("contract", "passed", "nothing was changed: the output is the input, byte for byte")
        if not self.options.verify:
            return Verdict((same,), settled=True)
        options = self.options
        asked = set(options.rungs if options.rungs is not None else DEFAULT_RUNGS).intersection(STATIC)
        rungs = tuple(asked.difference(("contract",)))
        if not options.require and not rungs:
            return Verdict((same,), settled=True)
        self.say("verifying")
        proto = self.loaded.proto
        verdict = climb(self.original, self.original, proto, proto, options, exact=True, rungs=rungs)
        if verdict.rung("contract") is None:
            verdict = replace(verdict, rungs=(same, *verdict.rungs))
        return replace(verdict, settled=True)


def prove(
    loaded: wire.Loaded,
    destination: Path | None,
    rules: Sequence[Rule],
    target: Target,
    safety: Safety,
    options: Options,
    stack: ExitStack,
    progress: Callable[[str], None] | None = None,
) -> Result:
    """Fix ``loaded`` by ``rules`` and verify the result.

    With UNSAFE fixes the exact and numeric ones are proven first; what the UNSAFE ones then change is reported in
    the notes and does not count as failure, since changing behaviour is what they were asked to do. The verdict
    then says of each rung that it passed without them. They are withdrawn where the result is no valid model.

    Raises:
        OnnxfixError: the candidate cannot be written.
    """
    prover = _Prover(loaded, destination, rules, target, options, stack, progress or (lambda words: None))
    proto, run, verdict, withdrawn = prover.settle(min(safety, Safety.NUMERIC))
    notes: list[str] = []
    if safety == Safety.UNSAFE and verdict.passed:
        gone = {FixKey(item.code, item.place, item.fix) for item in withdrawn}
        wider, wider_run = prover.fix(safety, lambda key: key not in gone)
        if any(item.safety == Safety.UNSAFE for item in wider_run.applied):
            second = prover.judge(wider, wider_run)
            invalid = [r for r in second.rungs if r.name in STATIC and r.refutes]
            if invalid:
                withdrawn += _unsafe_withdrawn(wider_run, _reason(second))
                if run.applied:
                    wire.write(wire.serialize(proto), prover.temporary)  # it held the invalid model
            else:
                proto, run = wider, wider_run
                values = set(options.require).difference(
                    STATIC
                )  # asked of what is written, and of nothing less
                verdict = second if second.passed or values else _without_unsafe(verdict, second)
                if not second.passed:
                    notes.append(_unproven(run, second))
    changed = bool(run.applied)  # and the file judged last is the one that was settled on
    return Result(
        proto if changed else loaded.proto,
        run,
        verdict,
        tuple(withdrawn),
        changed,
        tuple(notes),
        prover.temporary if changed else None,
        prover.copied,
    )


def climb(
    original: Path,
    fixed: Path,
    before: ModelProto,
    after: ModelProto,
    options: Options,
    *,
    exact: bool,
    touched: frozenset[str] | None = None,
    interface: bool = True,
    rungs: Sequence[str] | None = None,
    inherit: bool = True,
) -> Verdict:
    """The ladder on two files. ``touched`` (where known) is what the fixes may have changed.

    ``rungs`` are fewer rungs than the options name; ``inherit`` as in ``ladder.verify``.
    """

    def violations(first: ModelProto, second: ModelProto) -> list[str]:
        found = contract.interface_changes(before, after) if interface else []
        return found + (contract.untouched_changes(before, after, touched) if touched is not None else [])

    if not options.verify:
        rungs = ("contract",)
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
        trt=options.trt,
        inherit=inherit,
    )
    changed = [] if interface else contract.interface_changes(before, after)
    return _interface_said(verdict, changed) if changed else verdict


def _interface_said(verdict: Verdict, changed: list[str]) -> Verdict:
    """A contract that passed although the interface changed, as UNSAFE fixes may do, must not claim the contrary."""
    reason = f"onnx.checker passes; UNSAFE fixes changed the interface: {'; '.join(changed)}"
    rungs = (
        replace(rung, reason=reason) if rung.name == "contract" and rung.status == "passed" else rung
        for rung in verdict.rungs
    )
    return replace(verdict, rungs=tuple(rungs))


def _refuted(verdict: Verdict) -> bool:
    """Whether a rung showed a difference; a required rung that could not run is no fault of a fix."""
    return any(rung.refutes for rung in verdict.rungs)


def _telling(verdict: Verdict) -> tuple[str, ...]:
    """The rungs to repeat in search of the culprit; ort-cpu judges half precision by what ``reference`` said."""
    names = [rung.name for rung in verdict.rungs if rung.refutes]
    return ("reference", *names) if "ort-cpu" in names and "reference" not in names else tuple(names)


def _unsafe_withdrawn(run: FixRun, reason: str) -> list[Withdrawn]:
    keys = dict.fromkeys(item.key for item in run.applied if item.safety == Safety.UNSAFE)
    return [Withdrawn(key.code, key.place, key.title, reason) for key in keys]


def _without_unsafe(proven: Verdict, second: Verdict) -> Verdict:
    """The verdict on a model with UNSAFE fixes that is not proven equal: what was proven, and of what.

    The contract and TensorRT's builder judge the model that is written; the rungs that compare values hold for the
    model without the UNSAFE fixes, and say so.
    """
    rungs = []
    for rung in second.rungs:
        before = rung if rung.name in STATIC else proven.rung(rung.name)
        if before is None:
            continue  # without the UNSAFE fixes nothing had changed, so that nothing was compared
        if before is not rung and before.status != "skipped":
            before = replace(before, reason=f"without the UNSAFE fixes: {before.reason}")
        rungs.append(before)
    return Verdict(tuple(rungs), second.required, proven.settled)


def _unproven(run: FixRun, second: Verdict) -> str:
    codes = sorted({item.key.code for item in run.applied if item.safety == Safety.UNSAFE})
    reasons = _reason(second) or "; ".join(
        f"{rung.name}: {rung.reason}" for rung in second.rungs if rung.status == "skipped"
    )
    return f"with the UNSAFE fixes ({', '.join(codes)}) the model is not proven equal: {reasons or 'not verified'}"


def _reason(verdict: Verdict) -> str:
    return "; ".join(f"{rung.name}: {rung.reason}" for rung in verdict.rungs if rung.refutes)


def on_disk(loaded: wire.Loaded, stack: ExitStack) -> Path:
    """A path at which backends can read the model: its own, or a temporary file for one that came from memory."""
    if loaded.path is not None:
        return loaded.path
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
    path = folder / "model.onnx"
    try:
        path.write_bytes(loaded.data)
    except OSError as error:
        raise OnnxfixError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def install(loaded: wire.Loaded, result: Result, destination: Path, *, in_place: bool) -> str:
    """Move the proven result to its place; returns the path. An unchanged model is copied byte for byte."""
    if result.temporary is not None:
        wire.replace(result.temporary, destination, backup=in_place)
    elif not in_place:
        with wire.temporary_beside(destination) as temporary:
            wire.write(loaded.data, temporary)
            wire.replace(temporary, destination)
    result.copied.clear()
    return str(destination)
