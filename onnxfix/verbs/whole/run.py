"""The whole-model steps of a run: each is judged on its own before the rules see its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from onnxfix._version import __version__
from onnxfix.errors import UsageError
from onnxfix.files import copying, lazy, loading, saving, tensors
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.specialize import ResolvedSpecialization, shown
from onnxfix.model import Model
from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import DEFAULT_RUNGS, Verdict
from onnxfix.report.report import Fixed, StepDone
from onnxfix.rule import Safety
from onnxfix.verbs.candidate import Candidate
from onnxfix.verbs.job import Job
from onnxfix.verbs.proof import Comparison, explain_unjudged, is_refuted, reason_of, run_checks
from onnxfix.verbs.whole import specialize
from onnxfix.verbs.whole.steps import Made, Step, make


@dataclass(frozen=True)
class _Taken:
    """A step and the model after it. ``proven``: it computes the same as the model before, within tolerance."""

    index: int
    after: loading.Loaded
    proven: bool


class StepRun:
    """The steps of one run.

    ``base`` is the model after them, from which the rules start; ``against`` the one that the run's result is
    compared with: the original, or what an UNSAFE step made of it. ``candidate`` has temporary files beside which
    external data are found. The steps see the model as the job specializes it; their results are still compared with
    the ``original``, never with the specialized model.
    """

    def __init__(self, job: Job, original: Path, candidate: Candidate) -> None:
        self.job, self.original, self.candidate = job, original, candidate
        self.unsafe = job.plan.safety == Safety.UNSAFE
        verification = job.comparison.verification
        rungs = DEFAULT_RUNGS if verification.rungs is None else verification.rungs
        # Required checks judge the result at the end; for a step, those of the CPU are enough.
        verification = replace(verification, require=(), rungs=tuple(r for r in rungs if r in CPU_RUNGS))
        self._comparison = replace(job.comparison, verification=verification)
        self.special, self.start = job.comparison.special, job.loaded
        self._first_done: tuple[StepDone, ...] = ()
        if self.special is not None:
            self._first_done = (self._specialize(self.special),)
        self._dropped: dict[int, str] = {}
        self.run()

    def _specialize(self, special: ResolvedSpecialization) -> StepDone:
        """Specialize the model that the steps start from, and find the sizes of outputs that follow. Weights stay where
        they are."""
        began, loaded = time.perf_counter(), self.job.loaded
        self.job.plan.say("specializing")
        proto = loaded.fresh()
        specialize.specialize(proto, special, loaded.base_dir)
        outputs = specialize.declare_outputs(proto, loaded.base_dir)
        self.special = replace(special, outputs=outputs)
        self.start = loading.Loaded(proto, proto.SerializeToString(deterministic=True), loaded.path)
        dims = [Fixed("dimension", name, str(size)) for name, size in special.sizes.items()]
        inputs = [
            Fixed("input", name, shown(value), value.dtype.name, tuple(value.shape), special.keep)
            for name, value in special.values.items()
        ]
        return StepDone(
            name="specialize",
            tool=f"onnxfix {__version__}",
            status="taken",
            reason=f"fixed: {self.special.words}",
            safety="unsafe",
            nodes_before=_count(loaded.proto, loaded),
            nodes_after=_count(proto, loaded),
            fixed=(*dims, *inputs),
            seconds=time.perf_counter() - began,
        )

    def run(self) -> None:
        """Run the steps, except those that were dropped before."""
        self.base, self.against = self.start, self.job.loaded
        self.against_path = self.original
        self._taken: list[_Taken] = []
        self.done = self._first_done
        for index, step in enumerate(self.job.steps):
            began = time.perf_counter()
            nodes = _count(self.base.proto, self.base)
            if index in self._dropped:
                done = StepDone(step.name, step.tool, "dropped", self._dropped[index])
            else:
                self.job.plan.say(f"running {step.package}")
                done = self._take(index, step)
            done = replace(
                done,
                nodes_before=nodes,
                nodes_after=_count(self.base.proto, self.base),
                seconds=time.perf_counter() - began,
            )
            self.done += (done,)

    @property
    def changed(self) -> bool:
        """Whether the rules start from another model than the original."""
        return self.base is not self.job.loaded

    @property
    def bitwise(self) -> bool:
        """Whether ``base`` must compute the same bits as ``against``."""
        if self.base is self.against:
            return True
        return self.proven and self.base is self.start and self.special is not None and self.special.exact

    def compared(self, comparison: Comparison) -> Comparison:
        """How to compare a model with ``against``, which is specialized already where a step made it."""
        return replace(comparison, special=self.special if self.proven else None)

    @property
    def proven(self) -> bool:
        """Whether ``base`` has to compute the same as the original."""
        return self.against is self.job.loaded

    def blame(self, refutes: Callable[[ModelProto], bool], reason: str) -> bool:
        """Drop the first step whose result ``refutes``, and run the others again; False where there is none."""
        for taken in self._taken:
            if taken.proven and refutes(taken.after.proto):
                self._dropped[taken.index] = reason
                self.run()
                return True
        return False

    def _take(self, index: int, step: Step) -> StepDone:
        """Run one step; ``base`` is its result if that can stand."""
        random = []
        if self._comparison.verification.enabled and (drawn := signature(self.against.proto).drawn):
            # A tool that folds or merges random draws would go unnoticed.
            random = [f"random operators decide {', '.join(drawn)}, which can therefore not be compared"]
        if random and step.script is None:  # no result of it could be proven
            return StepDone(step.name, step.tool, "dropped", "; ".join(random))
        source = self.original
        if self.changed:
            self.base.copy_to(self.candidate.scratch)
            source = self.candidate.scratch.path
        made = self._make(step, source)
        dropped = StepDone(step.name, step.tool, "dropped", made.refused)
        if made.proto is None:
            return dropped
        data = saving.serialize(made.proto)
        if data == saving.serialize(self.base.proto):
            return replace(dropped, status="taken", reason="it changes nothing", safety="exact")
        if step.script is None and _count(made.proto, self.base) >= _count(self.base.proto, self.base):
            # It renames shared constants, for instance; with that, every run would differ from the last.
            return replace(dropped, status="taken", reason="it removes no node", safety="exact")
        may_change = self.unsafe and step.script is not None
        why = [*made.broken, *random]
        if why and not may_change:
            return replace(dropped, reason="; ".join(why))
        copying.write(data, self.candidate.scratch)
        verdict = self._judge(made)
        if made.broken and not is_refuted(verdict):
            why.append(_values(verdict) or "values were not compared")
        if not verdict.passed:
            unjudged = explain_unjudged(verdict) or "no check could run it"
            why.append(reason_of(verdict) or f"not proven: {unjudged}")
        after = loading.Loaded(made.proto, data, self.job.loaded.path)
        if not why:
            self._taken.append(_Taken(index, after, True))
            self.base = after
            proof = _values(verdict) or "the interface is unchanged; no values were compared"
            return replace(dropped, status="taken", reason=proof, safety="numeric")
        contract = verdict.rung("contract")
        if not may_change or (contract is not None and contract.refutes):
            return replace(dropped, reason="; ".join(why))
        self._taken = [replace(taken, proven=False) for taken in self._taken] + [_Taken(index, after, False)]
        self.base = self.against = after
        against = self.candidate.spare()
        copying.write(data, against)
        self.against_path = against.path
        return replace(dropped, status="taken", reason="; ".join(why), safety="unsafe")

    def _make(self, step: Step, source: Path) -> Made:
        """What the step makes of ``source``.

        Raises:
            UsageError: a script is at fault, or overwrites the original, which its result is compared with.
        """
        external = tensors.external_files(self.job.loaded.proto)
        files = [self.original, *(self.original.parent / name for name in external)]
        before = [lazy.stamp(file) for file in files]
        special = self.compared(self._comparison).special
        made = make(step, source, self.base.proto, self.against.proto, special)
        for file, stamp in zip(files, before, strict=True):
            if step.script is not None and lazy.stamp(file) != stamp:
                raise UsageError(f"{step.script}: the script changed {file}; it may change only the graph")
        return made

    def _judge(self, made: Made) -> Verdict:
        """The verdict of the CPU's checks; where inputs or outputs changed, of the contract alone."""
        assert made.proto is not None
        comparison = self.compared(self._comparison)
        # The specialized interface itself was checked when the step ran.
        old = self.against.proto.graph if comparison.special is None else self.start.proto.graph
        new = made.proto.graph
        if (old.input, old.output) != (new.input, new.output):
            verification = replace(comparison.verification, rungs=("contract",))
            comparison = replace(comparison, verification=verification)
        return run_checks(
            self.against_path,
            self.candidate.scratch.path,
            self.against.proto,
            made.proto,
            comparison,
            exact=False,
            interface=not made.broken,
        )


def _count(proto: ModelProto, near: loading.Loaded) -> int:
    return Model(proto, near.base_dir).node_count


def _values(verdict: Verdict) -> str:
    """The reasons of the checks that compared values and passed."""
    ran = [rung for rung in verdict.rungs if rung.status == "passed" and rung.compares]
    return "; ".join(f"{rung.name}: {rung.reason}" for rung in ran)


def after_unsafe(verdict: Verdict, steps: StepRun) -> Verdict:
    """The verdict on a model whose interface or values an UNSAFE step changed: each check says what it compared."""
    names = " and ".join(done.name for done in steps.done if done.safety == "unsafe" and not done.fixed)
    rungs = []
    for rung in verdict.rungs:
        if rung.name == "contract" and rung.status == "passed":
            rung = replace(rung, reason=f"as {names} (UNSAFE) left it: {rung.reason}")
        elif rung.name not in ("trt-build", "trt-network") and rung.judged:
            rung = replace(rung, reason=f"against the model after {names} (UNSAFE): {rung.reason}")
        rungs.append(rung)
    return replace(verdict, rungs=tuple(rungs), without_unsafe=True)


def unsafe_notes(steps: StepRun) -> list[str]:
    """What the UNSAFE steps changed, one line each."""
    return [
        f"{done.name} (UNSAFE) gives another model: {done.reason}"
        for done in steps.done
        if done.safety == "unsafe" and not done.fixed
    ]
