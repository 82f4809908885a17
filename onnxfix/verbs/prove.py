"""Fix, verify, and withdraw what does not verify, until the rest is proven."""

from __future__ import annotations

import functools
import gc
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from onnxfix.files.atomic import Temporary
from onnxfix.model import Model
from onnxfix.proof.verdict import ALONE
from onnxfix.proof.verify import DEFAULT_RUNGS, RungResult, Verdict
from onnxfix.report.report import StepDone, Withdrawn
from onnxfix.rewrite import engine
from onnxfix.rewrite.engine import Applied, FixKey, FixRun
from onnxfix.rule import Safety, Severity
from onnxfix.runtime import deadline
from onnxfix.targets import target_judging
from onnxfix.verbs.candidate import Candidate
from onnxfix.verbs.job import Job
from onnxfix.verbs.opening import on_disk, refuse_unreadable
from onnxfix.verbs.proof import (
    allowed_by,
    explain_unjudged,
    find_failing_inputs,
    is_refuted,
    reason_of,
    run_checks,
    select_checks_to_repeat,
)
from onnxfix.verbs.whole.run import StepRun, after_unsafe, unsafe_notes

MAX_WITHDRAWN = 25
"""After this many withdrawn fixes the run gives up: bisecting will not find what is wrong."""


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
    """A model with some fixes, and what the proof says of it."""

    proto: ModelProto
    run: FixRun
    verdict: Verdict


def prove(job: Job, resources: ExitStack) -> Proven:
    """Run the whole-model steps, fix the model that they leave, and verify the result. ``resources`` outlives its
    temporary files.

    With UNSAFE fixes, the exact and numeric ones are proven first. What the UNSAFE ones then change is reported in the
    notes and is no failure, since they may change behavior; the verdict says of each check that it passed without them.
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
    safety = min(job.plan.safety, Safety.NUMERIC)
    settled, withdrawn, notes = prover.follow_judge(*prover.settle(safety, inexact), safety)
    settled = prover.prove_exact_part(settled, withdrawn)
    steps, candidate, loaded = prover.steps, prover.candidate, job.loaded
    notes += unsafe_notes(steps)
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
        # Without verification only onnx.checker reads the original, through our own reader, which has no size limit.
        bare = job.loaded.path if not job.comparison.verification.enabled and not job.steps else None
        copies: list[Temporary] = []
        self.original = bare or on_disk(job.loaded, resources, copies)
        if job.destination is not None and not bare:
            refuse_unreadable(job.destination)
        self.candidate = Candidate(job, self.original, copies, resources)
        self.fixed = False
        self.target = job.plan.target
        self.steps = StepRun(job, self.original, self.candidate)

    def fix(self, safety: Safety, allow: engine.Allow) -> tuple[ModelProto, FixRun]:
        """A fresh copy of the steps' result, with the fixes of up to ``safety`` that ``allow`` permits."""
        if self.fixed:
            gc.collect()  # the previous model is full of reference cycles, and collection is paused
        self.fixed = True
        proto = self.steps.base.fresh()
        model = Model(proto, self.loaded.base_dir)
        model.target = self.target
        self.say("fixing")
        return proto, engine.fix(model, self.job.plan.rules, safety=safety, allow=allow)

    def judge(
        self,
        proto: ModelProto,
        run: FixRun | None,
        like: Verdict | None = None,
        rungs: Sequence[str] | None = None,
    ) -> Verdict:
        """Write the candidate, which ``run`` made of the steps' result, and check it; with ``like``, only by what shows
        whether it fails like that, with ``rungs`` only by those."""
        self.candidate.save(proto)
        steps, comparison = self.steps, self.steps.compared(self.job.comparison)
        if rungs is not None:  # and none that the user requires
            comparison = replace(comparison, verification=replace(comparison.verification, require=()))
        applied = run.applied if run is not None else ()
        self.say("verifying")
        self.loaded.check()  # the checks must read what was fixed
        with self.candidate.staying():
            return run_checks(
                steps.against_path,
                self.candidate.path,
                steps.against.proto,
                proto,
                comparison,
                exact=steps.bitwise and all(item.safety == Safety.EXACT for item in applied),
                base=None if steps.base is steps.against else steps.base.proto,
                touched=run.touched if run is not None else None,
                interface=all(item.safety != Safety.UNSAFE for item in applied),
                rungs=select_checks_to_repeat(like) if like is not None else rungs,
                only=find_failing_inputs(like) if like is not None else (),
                say=self.say,
            )

    def settle(
        self, safety: Safety, known: Mapping[FixKey, Withdrawn] | None = None
    ) -> tuple[_Attempt, dict[FixKey, Withdrawn]]:
        """The result with the most fixes of up to ``safety`` that verifies, once its culprits are withdrawn one by
        one; and those. ``known`` are culprits already."""
        steps, withdrawn = self.steps, dict(known or {})
        while True:
            proto, run = self.fix(safety, lambda key: key not in withdrawn)
            if not run.applied and steps.base is steps.against and not self.loaded.oversize:
                return _Attempt(proto, run, self._judge_unchanged()), withdrawn
            verdict = self.judge(proto, run)
            attempt = _Attempt(proto, run, verdict)
            if not is_refuted(verdict):
                return attempt, withdrawn
            refutes = functools.partial(self._refutes, like=verdict)
            if steps.base is not steps.against and refutes(steps.base.proto):  # without any fix of a rule
                if steps.blame(refutes, reason_of(verdict)):
                    withdrawn.clear()  # the rules start over, from another model
                    continue
                if steps.special is not None:  # withdrawing fixes would not help
                    return attempt, withdrawn
            if not run.applied or len(withdrawn) >= MAX_WITHDRAWN:
                return attempt, withdrawn
            try:
                culprit = self._culprit(safety, run, set(withdrawn), verdict)
            except deadline.Expired:  # what refutes the model is known, and it is not written
                return attempt, withdrawn
            withdrawn[culprit.key] = _withdrawn(culprit, reason_of(verdict))

    def follow_judge(
        self, settled: _Attempt, withdrawn: dict[FixKey, Withdrawn], safety: Safety
    ) -> tuple[_Attempt, dict[FixKey, Withdrawn], list[str]]:
        """The attempt with the fixes for the TensorRT that judged it, and a note, where that TensorRT refuses the
        result, is of another target, and builds the model with these fixes; else the attempt as it is."""
        build = next((rung.builds[-1] for rung in settled.verdict.rungs if rung.builds), None)
        judge = target_judging(build.package, build.version) if build is not None else None
        if build is None or judge is None or build.accepted or not build.judged:
            return settled, withdrawn, []
        if self.target.includes(build.package, build.version):
            return settled, withdrawn, []
        self.target = judge
        with suppress(deadline.Expired):
            _, run = self.fix(safety, lambda key: key not in withdrawn)
            errors = {rule.code for rule in self.job.plan.rules if rule.severity == Severity.ERROR}
            codes = sorted({item.key.code for item in run.applied if item.key.code in errors})
            if codes and run.touched != settled.run.touched:
                second, more = self.settle(safety, withdrawn)
                builds = [rung.builds[-1] for rung in second.verdict.rungs if rung.builds]
                if second.verdict.passed and any(one.accepted for one in builds):
                    model = Model(second.proto, self.loaded.base_dir)
                    model.target = self.job.plan.target
                    remaining = tuple(engine.check(model, self.job.plan.rules))
                    note = f"fixed for {judge.title}, which refuses the result of the other fixes: {', '.join(codes)}"
                    return replace(second, run=second.run._replace(remaining=remaining)), more, [note]
        self.target = self.job.plan.target
        self._restore(settled)  # also where time was over, and its file has the other model
        return settled, withdrawn, []

    def _refutes(self, proto: ModelProto, like: Verdict, run: FixRun | None = None) -> bool:
        """Whether a model, which ``run`` made of the steps' result, fails like that."""
        return is_refuted(self.judge(proto, run, like))

    def prove_exact_part(self, settled: _Attempt, withdrawn: Container[FixKey]) -> _Attempt:
        """The attempt, which says whether its exact fixes alone are proven for all values, where all together are
        not."""
        check = next((one for one in settled.verdict.rungs if one.name == "symbolic"), None)
        safeties = {item.safety for item in settled.run.applied}
        if (
            check is None
            or check.cause not in ("undecided", "timeout", "memory")
            or len(safeties) < 2
            or deadline.over()
        ):
            return settled
        part = check
        with suppress(deadline.Expired):
            proto, run = self.fix(Safety.EXACT, lambda key: key not in withdrawn)
            (part,) = self.judge(proto, run, rungs=("symbolic",)).rungs
        self._restore(settled)
        if part.status != "passed":
            return settled
        proven = replace(check, reason=f"{check.reason}; the exact fixes alone: {part.reason}")
        rungs = tuple(proven if rung is check else rung for rung in settled.verdict.rungs)
        return replace(settled, verdict=replace(settled.verdict, rungs=rungs))

    def with_unsafe(
        self, settled: _Attempt, withdrawn: dict[FixKey, Withdrawn]
    ) -> tuple[_Attempt, dict[FixKey, Withdrawn], list[str]]:
        """The result with the UNSAFE fixes too, unless it is not a valid model, or time is up; what is withdrawn, and
        notes."""
        try:
            proto, run = self.fix(Safety.UNSAFE, lambda key: key not in withdrawn)
            unsafe = [item for item in run.applied if item.safety == Safety.UNSAFE]
            if not unsafe:
                return settled, withdrawn, []
            second = self.judge(proto, run)
            deadline.check()  # it may not even be a valid model
        except deadline.Expired:
            self._restore(settled)
            note = "the time limit was over before UNSAFE fixes were applied and checked"
            return settled, withdrawn, [note]
        if any(rung.name in ALONE and rung.refutes for rung in second.rungs):
            self._restore(settled)
            reason = reason_of(second)
            return settled, withdrawn | {item.key: _withdrawn(item, reason) for item in unsafe}, []
        # Checks that compare values and are required must pass with the model that is written.
        values = set(self.job.comparison.verification.require).difference(ALONE)
        verdict = second if second.passed or values else _without_unsafe(settled.verdict, second)
        if second.passed:
            return _Attempt(proto, run, verdict), withdrawn, []
        codes = ", ".join(sorted({item.key.code for item in unsafe}))
        reason = reason_of(second) or explain_unjudged(second) or "not verified"
        note = f"with the UNSAFE fixes ({codes}) the model is not proven equal: {reason}"
        return _Attempt(proto, run, verdict), withdrawn, [note]

    def _restore(self, settled: _Attempt) -> None:
        """Write the candidate again: its file has another model."""
        if settled.run.applied or self.steps.changed or self.loaded.oversize or self.candidate.rewritten:
            self.candidate.save(settled.proto)

    def _culprit(self, safety: Safety, run: FixRun, withdrawn: set[FixKey], verdict: Verdict) -> Applied:
        """The last fix of the shortest beginning of the run that fails like ``verdict``."""
        good, bad = 0, len(run.applied)
        while bad - good > 1:
            middle = (good + bad) // 2
            allowed = {item.key for item in run.applied[:middle]} - withdrawn
            proto, part = self.fix(safety, allowed.__contains__)
            if part.applied and self._refutes(proto, verdict, part):
                bad = middle
            else:
                deadline.check()  # a check that was not run has refuted nothing
                good = middle
        return run.applied[bad - 1]

    def _judge_unchanged(self) -> Verdict:
        """The verdict where nothing was fixed: the same bytes compute the same. TensorRT may still refuse them."""
        steps, comparison = self.steps, self.job.comparison
        path, proto = steps.against_path, steps.against.proto
        verification, written = comparison.verification, path
        same = RungResult("contract", "passed", "nothing was changed: the output is the input, byte for byte")
        if steps.changed:
            self.candidate.save(steps.base.proto)
            same = replace(same, reason="onnx.checker passes, and no rule changed anything")
        elif self.candidate.rewritten:  # with other names of its data files, or their hashes
            self.candidate.save(proto)
            self.loaded.check()
            written = self.candidate.path
            bare = replace(comparison, verification=replace(verification, require=()))
            same = run_checks(path, written, proto, proto, bare, exact=True, rungs=("contract",)).rungs[0]
            reason = f"only what the model says of its data files changed: {same.reason}"
            same = replace(same, reason=reason)
        wanted = DEFAULT_RUNGS if verification.rungs is None else verification.rungs
        rungs = tuple(name for name in wanted if name in ALONE and name != "contract")
        if same.refutes or not verification.enabled or not (verification.require or rungs):
            return Verdict((same,), settled=True)
        self.say("verifying")
        compared = steps.compared(comparison)
        verdict = run_checks(path, written, proto, proto, compared, exact=True, rungs=rungs, say=self.say)
        if verdict.rung("contract") is None:
            verdict = replace(verdict, rungs=(same, *verdict.rungs))
        return replace(verdict, settled=True)


def _withdrawn(item: Applied, reason: str) -> Withdrawn:
    return Withdrawn(item.key.code, item.key.place, item.title, reason)


def _without_unsafe(proven: Verdict, second: Verdict) -> Verdict:
    """The verdict on a model with UNSAFE fixes that is not proven equal.

    The contract and TensorRT's parser and builder judge the model that is written. The checks that compare values hold
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
