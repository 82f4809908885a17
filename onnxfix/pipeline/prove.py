"""Fix, verify, and withdraw what does not verify, until what is left is proven."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from onnxfix import engine
from onnxfix.engine import FixKey, FixRun
from onnxfix.files import loading
from onnxfix.files.temporary import Temporary
from onnxfix.model import Model
from onnxfix.pipeline.candidate import Candidate
from onnxfix.pipeline.proof import Options, climb, on_disk, reason_of, refuted, telling
from onnxfix.pipeline.stages import Stages, after_unsafe, unsafe_notes
from onnxfix.pipeline.whole.steps import Step
from onnxfix.report.report import StepDone, Withdrawn
from onnxfix.rule import Rule, Safety
from onnxfix.targets import Target
from onnxfix.verification.ladder import DEFAULT_RUNGS, RungResult, Verdict
from onnxfix.verification.verdict import ALONE

MAX_WITHDRAWN = 25
"""After so many withdrawn fixes the run gives up: something is wrong that bisecting will not find."""


@dataclass(frozen=True)
class Result:
    """A fixed model, its proof, and the temporary files that hold it."""

    proto: ModelProto
    run: FixRun
    verdict: Verdict
    withdrawn: tuple[Withdrawn, ...]
    steps: tuple[StepDone, ...]
    changed: bool
    notes: tuple[str, ...]
    candidate: Candidate


class _Prover:
    """One apply: repeats the run with fewer fixes until the result verifies."""

    def __init__(
        self,
        loaded: loading.Loaded,
        destination: Path | None,
        rules: Sequence[Rule],
        target: Target,
        options: Options,
        stack: ExitStack,
        say: Callable[[str], None],
        steps: Sequence[Step] = (),
        unsafe: bool = False,
    ) -> None:
        self.loaded = loaded
        self.rules = rules
        self.target = target
        self.options = options
        self.say = say
        # Without proof onnx.checker alone reads it, through our reader, for which no file is too large.
        bare = loaded.path if not options.verify and not steps else None
        copies: list[Temporary] = []
        self.original = bare or on_disk(loaded, stack, copies)
        self.candidate = Candidate(
            loaded, destination, self.original, stack, copies=copies, leave_data=options.leave_data
        )
        self.fixed = False
        if steps:
            self.candidate.arrived()
        self.stages = Stages(steps, loaded, self.original, self.candidate, options, unsafe, say)

    def fix(self, safety: Safety, allow: engine.Allow | None) -> tuple[ModelProto, FixRun]:
        if self.fixed:
            gc.collect()  # a model of the run before is a web of references, and collection is paused
        self.fixed = True
        proto = self.stages.base.fresh()
        model = Model(proto, self.loaded.base_dir)
        model.target = self.target
        self.say("fixing")
        return proto, engine.fix(model, self.rules, safety=safety, allow=allow)

    def judge(self, proto: ModelProto, run: FixRun | None, rungs: Sequence[str] | None = None) -> Verdict:
        """Write the candidate, which ``run`` made of the stages' base, and climb the ladder or some rungs of it."""
        self.candidate.save(proto)
        stages = self.stages
        applied = run.applied if run is not None else ()
        self.say("verifying")
        self.loaded.check()  # what the rungs read of it now must be what was fixed
        return climb(
            stages.against_path,
            self.candidate.path,
            stages.against.proto,
            proto,
            stages.asked(self.options),
            exact=stages.bitwise and all(item.safety == Safety.EXACT for item in applied),
            base=None if stages.base is stages.against else stages.base.proto,
            touched=run.touched if run is not None else None,
            interface=all(item.safety != Safety.UNSAFE for item in applied),
            rungs=rungs,
            ready=self.candidate.arrived,
        )

    def settle(self, safety: Safety) -> tuple[ModelProto, FixRun, Verdict, list[Withdrawn]]:
        """The largest run, up to ``safety``, that verifies once its culprits are withdrawn one by one."""
        withdrawn: dict[FixKey, Withdrawn] = {}
        while True:
            proto, run = self.fix(safety, lambda key: key not in withdrawn)
            if not run.applied and self.stages.base is self.stages.against and not self.loaded.oversize:
                return proto, run, self._unchanged(), list(withdrawn.values())
            verdict = self.judge(proto, run)
            if not refuted(verdict):
                return proto, run, verdict, list(withdrawn.values())
            if self._fails_before_rules(verdict):
                if self._step_to_blame(verdict):
                    withdrawn.clear()  # the rules start over, from another model
                    continue
                if self.stages.special is not None:  # withdrawing fixes would not help
                    return proto, run, verdict, list(withdrawn.values())
            if not run.applied or len(withdrawn) >= MAX_WITHDRAWN:
                return proto, run, verdict, list(withdrawn.values())
            culprit = self._culprit(safety, run, set(withdrawn), telling(verdict))
            withdrawn[culprit] = Withdrawn(culprit.code, culprit.place, culprit.title, reason_of(verdict))

    def _fails_before_rules(self, verdict: Verdict) -> bool:
        """Whether the model fails on the same rungs before any rule has seen it."""
        stages = self.stages
        return stages.base is not stages.against and refuted(
            self.judge(stages.base.proto, None, telling(verdict))
        )

    def _step_to_blame(self, verdict: Verdict) -> bool:
        """Whether a step is to blame for that; then it is dropped."""
        rungs = telling(verdict)
        return self.stages.blame(lambda proto: refuted(self.judge(proto, None, rungs)), reason_of(verdict))

    def _culprit(self, safety: Safety, run: FixRun, withdrawn: set[FixKey], rungs: Sequence[str]) -> FixKey:
        """The fix with which the shortest beginning of the run ends that fails on one of ``rungs``."""
        keys = list(dict.fromkeys(item.key for item in run.applied))
        good, bad = 0, len(keys)
        while bad - good > 1:
            middle = (good + bad) // 2
            allowed = set(keys[:middle]) - withdrawn
            proto, part = self.fix(safety, allowed.__contains__)
            if part.applied and refuted(self.judge(proto, part, rungs)):
                bad = middle
            else:
                good = middle
        return keys[bad - 1]

    def _unchanged(self) -> Verdict:
        """Nothing was fixed: the same bytes compute the same. What TensorRT says of them is still news."""
        said = "nothing was changed: the output is the input, byte for byte"
        if self.stages.changed:
            self.candidate.save(self.stages.base.proto)
            said = "onnx.checker passes, and no rule changed anything"
        same = RungResult("contract", "passed", said)
        if not self.options.verify:
            return Verdict((same,), settled=True)
        options = self.options
        asked = set(options.rungs if options.rungs is not None else DEFAULT_RUNGS).intersection(ALONE)
        rungs = tuple(asked.difference(("contract",)))
        if not options.require and not rungs:
            return Verdict((same,), settled=True)
        self.say("verifying")
        path, proto = self.stages.against_path, self.stages.against.proto
        verdict = climb(path, path, proto, proto, self.stages.asked(options), exact=True, rungs=rungs)
        if verdict.rung("contract") is None:
            verdict = replace(verdict, rungs=(same, *verdict.rungs))
        return replace(verdict, settled=True)


def prove(
    loaded: loading.Loaded,
    destination: Path | None,
    rules: Sequence[Rule],
    target: Target,
    safety: Safety,
    options: Options,
    stack: ExitStack,
    progress: Callable[[str], None] | None = None,
    steps: Sequence[Step] = (),
) -> Result:
    """Take the whole-model ``steps``, fix what they leave of ``loaded`` by ``rules``, and verify the result.

    With UNSAFE fixes the exact and numeric ones are proven first; what the UNSAFE ones then change is reported in
    the notes and does not count as failure, since changing behavior is what they were asked to do. The verdict
    then says of each rung that it passed without them. They are withdrawn where the result is no valid model.

    Raises:
        OnnxfixError: the candidate cannot be written.
        UsageError: a script of the user's is at fault.
    """
    say = progress or (lambda words: None)
    unsafe = safety == Safety.UNSAFE
    prover = _Prover(loaded, destination, rules, target, options, stack, say, steps, unsafe)
    proto, run, verdict, withdrawn = prover.settle(min(safety, Safety.NUMERIC))
    stages = prover.stages
    notes = unsafe_notes(stages)
    if unsafe and verdict.passed:
        gone = {FixKey(item.code, item.place, item.fix) for item in withdrawn}
        wider, wider_run = prover.fix(safety, lambda key: key not in gone)
        if any(item.safety == Safety.UNSAFE for item in wider_run.applied):
            second = prover.judge(wider, wider_run)
            invalid = [r for r in second.rungs if r.name in ALONE and r.refutes]
            if invalid:
                withdrawn += _unsafe_withdrawn(wider_run, reason_of(second))
                if run.applied or stages.changed or loaded.oversize:
                    prover.candidate.save(proto)  # it held the invalid model
            else:
                proto, run = wider, wider_run
                values = set(options.require).difference(
                    ALONE
                )  # asked of what is written, and of nothing less
                verdict = second if second.passed or values else _without_unsafe(verdict, second)
                if not second.passed:
                    notes.append(_unproven(run, second))
    if not stages.proven:
        verdict = after_unsafe(verdict, stages)
    prover.candidate.arrived()
    if prover.candidate.split:
        notes.append(_split_note(loaded, prover.candidate.location))
    # And the file judged last is the one that was settled on.
    changed = bool(run.applied) or stages.changed or loaded.oversize
    return Result(
        proto if changed else loaded.proto,
        run,
        verdict,
        tuple(withdrawn),
        stages.done,
        changed,
        tuple(notes),
        prover.candidate,
    )


def _split_note(loaded: loading.Loaded, weights: str) -> str:
    return (
        f"a protobuf of {loaded.size / 1e9:.1f} GB is more than ONNX Runtime, TensorRT and onnx read (2 GB): the "
        f"weights are in {weights}, beside the model"
    )


def _unsafe_withdrawn(run: FixRun, reason: str) -> list[Withdrawn]:
    keys = dict.fromkeys(item.key for item in run.applied if item.safety == Safety.UNSAFE)
    return [Withdrawn(key.code, key.place, key.title, reason) for key in keys]


def _without_unsafe(proven: Verdict, second: Verdict) -> Verdict:
    """The verdict on a model with UNSAFE fixes that is not proven equal: what was proven, and of what.

    The contract and TensorRT's parser and builder judge the model that is written; the rungs that compare values hold
    for the model without the UNSAFE fixes, and say so.
    """
    rungs = []
    for rung in second.rungs:
        before = rung if rung.name in ALONE else proven.rung(rung.name)
        if before is None:
            continue  # without the UNSAFE fixes nothing had changed, so that nothing was compared
        if before is not rung and before.judged:
            before = replace(before, reason=f"without the UNSAFE fixes: {before.reason}")
        rungs.append(before)
    return Verdict(tuple(rungs), second.required, proven.settled)


def _unproven(run: FixRun, second: Verdict) -> str:
    codes = sorted({item.key.code for item in run.applied if item.safety == Safety.UNSAFE})
    reasons = reason_of(second) or "; ".join(
        f"{rung.name}: {rung.reason}" for rung in second.rungs if not rung.judged
    )
    return f"with the UNSAFE fixes ({', '.join(codes)}) the model is not proven equal: {reasons or 'not verified'}"
