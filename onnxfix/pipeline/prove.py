"""The fourth stage of a run: fix, verify, and withdraw what does not verify, until the rest is proven."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from onnxfix import deadline, engine
from onnxfix.engine import Applied, FixKey, FixRun
from onnxfix.files.temporary import Temporary
from onnxfix.model import Model
from onnxfix.pipeline.candidate import Candidate
from onnxfix.pipeline.job import Job
from onnxfix.pipeline.proof import (
    allowed_by,
    climb,
    failing,
    on_disk,
    reason_of,
    refuse_unreadable,
    refuted,
    repeated,
)
from onnxfix.pipeline.whole.run import StepRun, after_unsafe, unsafe_notes
from onnxfix.report.report import StepDone, Withdrawn
from onnxfix.rule import Safety
from onnxfix.sandbox import shared
from onnxfix.verification.ladder import DEFAULT_RUNGS, RungResult, Verdict, release
from onnxfix.verification.verdict import ALONE

MAX_WITHDRAWN = 25
"""After this many withdrawn fixes the run gives up: bisecting will not find what is wrong."""


_RUNS = itertools.count()


@dataclass(frozen=True)
class Proven:
    """A fixed model and its verdict. ``original`` is a file that backends read the original from, ``candidate`` the
    temporary files of the result."""

    proto: ModelProto
    run: FixRun
    verdict: Verdict
    withdrawn: tuple[Withdrawn, ...]
    steps: tuple[StepDone, ...]
    changed: bool
    notes: tuple[str, ...]
    original: Path
    candidate: Candidate


@dataclass(frozen=True)
class _Attempt:
    """A model with some fixes, and what the ladder says of it."""

    proto: ModelProto
    run: FixRun
    verdict: Verdict


def prove(job: Job, resources: ExitStack) -> Proven:
    """Run the whole-model steps, fix the model that they leave, and verify the result. ``resources`` outlives its
    temporary files.

    With UNSAFE fixes, the exact and numeric ones are proven first. What the UNSAFE ones then change is reported in the
    notes and is no failure, since they may change behavior; the verdict says of each rung that it passed without them.
    They are withdrawn where the result is not a valid model. With a tolerance of the user's, exact fixes are proven by
    themselves before numeric ones join them.

    Raises:
        OnnxfixError: the candidate cannot be written.
        UsageError: a script of the user's is at fault.
    """
    prover = _Prover(job, resources)
    inexact: dict[FixKey, Withdrawn] = {}
    if job.plan.safety > Safety.EXACT and allowed_by(job.comparison.verification) is not None:
        # No tolerance of the user's hides that a fix that claims identical bits has others.
        _, inexact = prover.settle(Safety.EXACT)
    settled, withdrawn = prover.settle(min(job.plan.safety, Safety.NUMERIC), inexact)
    steps, candidate, loaded = prover.steps, prover.candidate, job.loaded
    notes = unsafe_notes(steps)
    if job.plan.safety == Safety.UNSAFE and settled.verdict.passed:
        settled, withdrawn, unproven = prover.with_unsafe(settled, withdrawn)
        notes += unproven
    verdict = settled.verdict if steps.proven else after_unsafe(settled.verdict, steps)
    if loaded.oversize and candidate.split:
        notes.append(
            f"a protobuf of {loaded.size / 1e9:.1f} GB is more than ONNX Runtime, TensorRT and onnx read (2 GB): the "
            f"weights are in {candidate.location}, beside the model"
        )
    changed = bool(settled.run.applied) or steps.changed or loaded.oversize
    return Proven(
        # The candidate's file is the one that was judged last, which is this one.
        settled.proto if changed else loaded.proto,
        settled.run,
        verdict,
        tuple(withdrawn.values()),
        steps.done,
        changed,
        tuple(notes),
        prover.original,
        candidate,
    )


class _Prover:
    """Repeats a job with fewer fixes until the result verifies."""

    def __init__(self, job: Job, resources: ExitStack) -> None:
        self.job, self.loaded, self.say = job, job.loaded, job.plan.say
        verification, output = job.comparison.verification, job.plan.options.output
        # Without verification only onnx.checker reads the original, through our own reader, which has no size limit.
        bare = job.loaded.path if not verification.enabled and not job.steps else None
        copies: list[Temporary] = []
        self.original = bare or on_disk(job.loaded, resources, copies)
        if job.destination is not None and not bare:
            refuse_unreadable(job.destination)
        self.candidate = Candidate(
            job.loaded,
            job.destination,
            self.original,
            resources,
            copies=copies,
            output=output,
        )
        self.fixed = False
        self.scope = f"{os.getpid()} {next(_RUNS)}"
        resources.callback(lambda: release(shared()))  # what the sandbox keeps of the original
        unsafe = job.plan.safety == Safety.UNSAFE
        self.steps = StepRun(
            job.steps, job.loaded, self.original, self.candidate, job.comparison, unsafe, self.say
        )

    def fix(self, safety: Safety, allow: engine.Allow) -> tuple[ModelProto, FixRun]:
        """A fresh copy of the steps' result, with the fixes of up to ``safety`` that ``allow`` permits."""
        if self.fixed:
            gc.collect()  # the previous model is full of reference cycles, and collection is paused
        self.fixed = True
        proto = self.steps.base.fresh()
        model = Model(proto, self.loaded.base_dir)
        model.target = self.job.plan.target
        self.say("fixing")
        return proto, engine.fix(model, self.job.plan.rules, safety=safety, allow=allow)

    def judge(self, proto: ModelProto, run: FixRun | None, like: Verdict | None = None) -> Verdict:
        """Write the candidate, which ``run`` made of the steps' result, and climb the ladder; with ``like``, only what
        shows whether it fails like that."""
        self.candidate.save(proto)
        steps = self.steps
        applied = run.applied if run is not None else ()
        self.say("verifying")
        self.loaded.check()  # the rungs must read what was fixed
        with self.candidate.staying():
            return climb(
                steps.against_path,
                self.candidate.path,
                steps.against.proto,
                proto,
                steps.compared(self.job.comparison),
                exact=steps.bitwise and all(item.safety == Safety.EXACT for item in applied),
                base=None if steps.base is steps.against else steps.base.proto,
                touched=run.touched if run is not None else None,
                interface=all(item.safety != Safety.UNSAFE for item in applied),
                rungs=repeated(like) if like is not None else None,
                scope=self.scope,
                only=failing(like) if like is not None else (),
            )

    def settle(
        self, safety: Safety, known: Mapping[FixKey, Withdrawn] | None = None
    ) -> tuple[_Attempt, dict[FixKey, Withdrawn]]:
        """The result with the most fixes of up to ``safety`` that verifies, once its culprits are withdrawn one by
        one; and those. ``known`` are culprits already."""
        withdrawn = dict(known or {})
        while True:
            proto, run = self.fix(safety, lambda key: key not in withdrawn)
            if not run.applied and self.steps.base is self.steps.against and not self.loaded.oversize:
                return _Attempt(proto, run, self._unchanged()), withdrawn
            verdict = self.judge(proto, run)
            attempt = _Attempt(proto, run, verdict)
            if not refuted(verdict):
                return attempt, withdrawn
            if self._fails_before_rules(verdict):
                if self._drop_step(verdict):
                    withdrawn.clear()  # the rules start over, from another model
                    continue
                if self.steps.special is not None:  # withdrawing fixes would not help
                    return attempt, withdrawn
            if not run.applied or len(withdrawn) >= MAX_WITHDRAWN:
                return attempt, withdrawn
            try:
                culprit = self._culprit(safety, run, set(withdrawn), verdict)
            except deadline.Expired:  # what refutes the model is known, and it is not written
                return attempt, withdrawn
            withdrawn[culprit.key] = _withdrawn(culprit, reason_of(verdict))

    def with_unsafe(
        self, settled: _Attempt, withdrawn: dict[FixKey, Withdrawn]
    ) -> tuple[_Attempt, dict[FixKey, Withdrawn], list[str]]:
        """The result with the UNSAFE fixes too, unless it is not a valid model, or time is up; what is withdrawn, and
        notes."""
        try:
            return self._with_unsafe(settled, withdrawn)
        except deadline.Expired:
            self._restore(settled)
            return (
                settled,
                withdrawn,
                ["the time limit was over before UNSAFE fixes were applied and checked"],
            )

    def _restore(self, settled: _Attempt) -> None:
        """Write the candidate again: its file has another model."""
        if settled.run.applied or self.steps.changed or self.loaded.oversize or self.candidate.rewritten:
            self.candidate.save(settled.proto)

    def _with_unsafe(
        self, settled: _Attempt, withdrawn: dict[FixKey, Withdrawn]
    ) -> tuple[_Attempt, dict[FixKey, Withdrawn], list[str]]:
        proto, run = self.fix(Safety.UNSAFE, lambda key: key not in withdrawn)
        if not any(item.safety == Safety.UNSAFE for item in run.applied):
            return settled, withdrawn, []
        second = self.judge(proto, run)
        deadline.check()  # it may not even be a valid model
        if any(rung.name in ALONE and rung.refutes for rung in second.rungs):
            self._restore(settled)
            return settled, withdrawn | _unsafe_withdrawn(run, reason_of(second)), []
        # Rungs that compare values and are required must pass with the model that is written.
        values = set(self.job.comparison.verification.require).difference(ALONE)
        verdict = second if second.passed or values else _without_unsafe(settled.verdict, second)
        return _Attempt(proto, run, verdict), withdrawn, [] if second.passed else [_unproven(run, second)]

    def _fails_before_rules(self, verdict: Verdict) -> bool:
        """Whether the model fails on the same rungs without any fix of a rule."""
        steps = self.steps
        return steps.base is not steps.against and refuted(self.judge(steps.base.proto, None, verdict))

    def _drop_step(self, verdict: Verdict) -> bool:
        """Drop the step that is to blame for that; False where there is none."""
        return self.steps.blame(lambda proto: refuted(self.judge(proto, None, verdict)), reason_of(verdict))

    def _culprit(self, safety: Safety, run: FixRun, withdrawn: set[FixKey], verdict: Verdict) -> Applied:
        """The last fix of the shortest beginning of the run that fails like ``verdict``."""
        good, bad = 0, len(run.applied)
        while bad - good > 1:
            middle = (good + bad) // 2
            allowed = {item.key for item in run.applied[:middle]} - withdrawn
            proto, part = self.fix(safety, allowed.__contains__)
            if part.applied and refuted(self.judge(proto, part, verdict)):
                bad = middle
            else:
                deadline.check()  # a rung that was not run has refuted nothing
                good = middle
        return run.applied[bad - 1]

    def _unchanged(self) -> Verdict:
        """The verdict where nothing was fixed: the same bytes compute the same. TensorRT may still refuse them."""
        reason = "nothing was changed: the output is the input, byte for byte"
        if self.steps.changed:
            self.candidate.save(self.steps.base.proto)
            reason = "onnx.checker passes, and no rule changed anything"
        same = RungResult("contract", "passed", reason)
        if self.candidate.rewritten and not self.steps.changed:
            same = self._rewritten()
            if same.refutes:
                return Verdict((same,), settled=True)
        verification = self.job.comparison.verification
        wanted = DEFAULT_RUNGS if verification.rungs is None else verification.rungs
        rungs = tuple(name for name in wanted if name in ALONE and name != "contract")
        if not verification.enabled or not (verification.require or rungs):
            return Verdict((same,), settled=True)
        self.say("verifying")
        path, proto = self.steps.against_path, self.steps.against.proto
        comparison = self.steps.compared(self.job.comparison)
        written = self.candidate.path if self.candidate.rewritten and not self.steps.changed else path
        verdict = climb(path, written, proto, proto, comparison, exact=True, rungs=rungs)
        if verdict.rung("contract") is None:
            verdict = replace(verdict, rungs=(same, *verdict.rungs))
        return replace(verdict, settled=True)

    def _rewritten(self) -> RungResult:
        """The contract of the original with other names of its data files, or their hashes: the candidate is written,
        and onnx.checker reads it."""
        proto = self.loaded.proto
        self.candidate.save(proto)
        self.loaded.check()
        comparison = self.job.comparison
        bare = replace(comparison, verification=replace(comparison.verification, require=()))
        verdict = climb(
            self.original, self.candidate.path, proto, proto, bare, exact=True, rungs=("contract",)
        )
        checked = verdict.rung("contract")
        assert checked is not None
        return replace(
            checked, reason=f"only what the model says of its data files changed: {checked.reason}"
        )


def _unsafe_withdrawn(run: FixRun, reason: str) -> dict[FixKey, Withdrawn]:
    return {item.key: _withdrawn(item, reason) for item in run.applied if item.safety == Safety.UNSAFE}


def _withdrawn(item: Applied, reason: str) -> Withdrawn:
    return Withdrawn(item.key.code, item.key.place, item.title, reason)


def _without_unsafe(proven: Verdict, second: Verdict) -> Verdict:
    """The verdict on a model with UNSAFE fixes that is not proven equal.

    The contract and TensorRT's parser and builder judge the model that is written. The rungs that compare values hold
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
    return Verdict(tuple(rungs), second.required, proven.settled, without_unsafe=True, allowed=proven.allowed)


def _unproven(run: FixRun, second: Verdict) -> str:
    codes = sorted({item.key.code for item in run.applied if item.safety == Safety.UNSAFE})
    reasons = reason_of(second) or "; ".join(
        f"{rung.name}: {rung.reason}" for rung in second.rungs if not rung.judged
    )
    return f"with the UNSAFE fixes ({', '.join(codes)}) the model is not proven equal: {reasons or 'not verified'}"
