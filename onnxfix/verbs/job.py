"""What a run will do: its options resolved against the installed rules and, once it is loaded, the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from onnxfix.errors import ModelError, TimeLimit
from onnxfix.files import loading, saving
from onnxfix.options import RunOptions
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule, Safety
from onnxfix.runtime import deadline
from onnxfix.targets import Target, choose_target
from onnxfix.targets.several import combine
from onnxfix.verbs.opening import Source, destination_of, refuse_conflicts

if TYPE_CHECKING:
    from onnxfix.verbs.proof import Comparison
    from onnxfix.verbs.whole.steps import Step

Progress = Callable[[str], None]
"""Called with a short text before each step of a run."""


@dataclass(frozen=True)
class Plan:
    """A run's options, the ``rules`` that it selects among all that are ``known``, its target, and its progress.
    ``installed`` is the version of the installed TensorRT that the target was chosen for, "" for any other target."""

    options: RunOptions
    rules: tuple[Rule, ...]
    known: tuple[Rule, ...]
    target: Target
    installed: str
    say: Progress

    @property
    def safety(self) -> Safety:
        """The least safe kind of fix that may be applied."""
        fixes = self.options.fixes
        return Safety.UNSAFE if fixes.unsafe else Safety.NUMERIC if fixes.numeric else Safety.EXACT


@dataclass(frozen=True)
class Job:
    """A model to fix with the whole-model ``steps`` that it goes through first, the file that the result goes to (None:
    nowhere), and how it is compared with the model. ``notes`` are for the report."""

    plan: Plan
    loaded: loading.Loaded
    steps: tuple[Step, ...]
    destination: Path | None
    comparison: Comparison
    notes: tuple[str, ...] = ()

    @property
    def fixed_inputs(self) -> Mapping[str, Any]:
        """The constants that replace inputs, by input."""
        special = self.comparison.special
        return special.values if special is not None else {}


def make_plan(options: RunOptions, progress: Progress | None = None) -> Plan:
    """The plan of a run, before its model is read.

    Raises:
        UsageError: a selector or the target does not exist, or TensorRT does not load the user's plugins.
    """
    known = registry()
    rules = known.choose(options.rules.select, options.rules.ignore)
    target, installed = choose_target(options.rules.target)
    if options.trt is not None and options.trt.plugins:
        from onnxfix.proof.asking import require_tensorrt  # lazy: start-up, seldom used

        with contextlib.closing(require_tensorrt(options.trt)) as builder:
            loaded = builder.choice.served
            target = combine(replace(one, plugins=one.plugins.union(loaded)) for one in target.releases)
    return Plan(options, tuple(rules), known.rules, target, installed, progress or (lambda text: None))


def prepare(source: Source, options: RunOptions, progress: Progress | None = None) -> Job:
    """Read the model of an ``apply``, and resolve the options against it. After this, mistakes are ours.

    Raises:
        ModelError: the model cannot be read.
        UsageError: an option does not fit the model or another option, the result may not go where it should, or a file
            to be written is one that the run reads.
    """
    from onnxfix.tensorrt.records import TrtOptions  # lazy: start-up
    from onnxfix.verbs.proof import comparison_of  # lazy: start-up, `check` compares nothing
    from onnxfix.verbs.whole.steps import steps_of  # lazy: start-up, `check` has no steps

    plan = make_plan(options, progress)
    plan.say("reading")
    steps = steps_of(options.fixes.simplify, options.fixes.graphsurgeon)
    # Other tools cannot handle stand-ins for weights, so the weights are loaded for them.
    in_memory = bool(steps) and not isinstance(source, (bytes, ModelProto))
    loaded = loading.load_whole(source) if in_memory else loading.load(source)  # type: ignore[arg-type]
    if changed := saving.first_changed(loaded):
        raise ModelError(changed, loaded.path or "")
    destination = destination_of(loaded, options.output)
    refuse_conflicts([loaded], options, None if options.output.in_place else destination)
    trt = replace(options.trt or TrtOptions(), target=plan.target.name)
    job = Job(plan, loaded, steps, destination, comparison_of(options.verification, trt))
    return _specialize(job) if options.specialization else job


def _specialize(job: Job) -> Job:
    """The job with its specialization resolved against the model's inputs."""
    from onnxfix.inputs.feeds.signature import signature  # lazy: start-up, seldom used
    from onnxfix.inputs.specialize import fit_profile, resolve  # lazy: start-up, seldom used

    known, comparison = signature(job.loaded.proto), job.comparison
    verification = comparison.verification
    special, feeds, notes = resolve(
        known, job.plan.options.specialization, verification.inputs, verification.input_shapes
    )
    fit_profile(known, special, comparison.trt)
    if feeds is not None:
        verification = replace(verification, inputs=feeds)
    comparison = replace(comparison, verification=verification, special=special)
    if not (special.sizes or special.values):
        comparison = replace(comparison, special=None)
        notes = (*notes, "nothing was specialized: the model has these sizes already")
    return replace(job, comparison=comparison, notes=notes)


@contextlib.contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """What happens in the context ends within so many seconds (None: no limit), in this process and its children.

    Raises:
        TimeLimit: it did not, and there is no result to report.
    """
    with deadline.within(seconds):
        try:
            yield
        except deadline.Expired:
            raise TimeLimit(f"not finished within {seconds:g} s, the limit that --timeout sets") from None
        finally:
            if deadline.over():
                from onnxfix.runtime.sandbox import close_shared  # lazy: start-up, seldom used

                close_shared()
