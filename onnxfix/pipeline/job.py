"""The third stage of a run: what its options mean for the model that was read. After this, mistakes are ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxfix.files import loading
from onnxfix.pipeline.opening import Opened
from onnxfix.pipeline.plan import Plan
from onnxfix.pipeline.proof import Comparison, comparison_of
from onnxfix.pipeline.whole.steps import Step
from onnxfix.trt.records import TrtOptions
from onnxfix.verification.feeds.signature import signature
from onnxfix.verification.specialize.specialization import ResolvedSpecialization


@dataclass(frozen=True)
class Job:
    """A model to fix, and how the result is compared with it. ``notes`` are for the report."""

    plan: Plan
    loaded: loading.Loaded
    steps: tuple[Step, ...]
    destination: Path | None
    comparison: Comparison
    notes: tuple[str, ...] = ()

    @property
    def fixed_inputs(self) -> Mapping[str, Any]:
        """The arrays that inputs become, by input."""
        special = self.comparison.special
        return special.values if special is not None else {}


def resolved(opened: Opened) -> Job:
    """The job of a model: its specialization held against its inputs, and the rungs that must pass.

    Raises:
        UsageError: a name is not in the model, or a size or a value does not fit it.
    """
    plan, options = opened.plan, opened.plan.options
    trt = replace(options.trt or TrtOptions(), target=plan.target.name)
    comparison = comparison_of(options.verification, trt)
    job = Job(plan, opened.loaded, opened.steps, opened.destination, comparison)
    return _specialized(job) if options.specialization else job


def _specialized(job: Job) -> Job:
    from onnxfix.verification.specialize.resolve import fit_profile, resolve  # lazy: start-up, seldom used

    known, comparison = signature(job.loaded.proto), job.comparison
    inputs, shapes = comparison.verification.inputs, comparison.verification.input_shapes
    special: ResolvedSpecialization | None
    special, feeds, notes = resolve(known, job.plan.options.specialization, inputs, shapes)
    fit_profile(known, special, comparison.trt)
    verification = comparison.verification
    if feeds is not None:
        verification = replace(verification, inputs=feeds)
    if not (special.sizes or special.values):
        special, notes = None, (*notes, "nothing was specialized: the model has these sizes already")
    comparison = replace(comparison, verification=verification, special=special)
    return replace(job, comparison=comparison, notes=notes)
