"""How a run compares two models: the options, the proof with the contract of this run, and what its verdict means."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.inputs.specialize import ResolvedSpecialization
from onnxfix.options import Verification
from onnxfix.proof.compare.tolerance import Allowed
from onnxfix.proof.request import Fed
from onnxfix.proof.validity import judge
from onnxfix.proof.verify import Limits, Verdict
from onnxfix.proof.verify import verify as verify_files
from onnxfix.runtime.backends import ON_GPU
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs import contract


@dataclass(frozen=True)
class Comparison:
    """How two models are compared: a run's options, with the checks that they imply, and how the second model is
    specialized (None: not at all). ``budget`` is the tolerance where the user gives none."""

    verification: Verification
    trt: TrtOptions
    special: ResolvedSpecialization | None = None
    budget: Allowed | None = None


def comparison_of(verification: Verification, trt: TrtOptions) -> Comparison:
    """The comparison that a run's options ask for.

    The contract always runs. No engine is written of a model that TensorRT does not build, so that trt-build must pass
    where one is to be saved or swept over batch sizes.

    Raises:
        UsageError: an engine is to be saved of a model that is not verified.
    """
    if trt.save_engine and not verification.enabled:
        raise UsageError("save_engine requires verify=True: an engine is built of a verified model only")
    rungs = verification.rungs
    if rungs is not None:
        rungs = tuple(dict.fromkeys(("contract", *rungs)))
    require = tuple(verification.require)
    if (trt.save_engine or trt.batch_sweep) and "trt-build" not in require:
        require += ("trt-build",)
    return Comparison(replace(verification, rungs=rungs, require=require), trt)


def allowed_by(verification: Verification) -> Allowed | None:
    """The user's tolerance; None where the types decide."""
    if verification.rtol is None and verification.atol is None:
        return None
    return Allowed(verification.rtol, verification.atol)


def run_checks(
    original: Path,
    fixed: Path,
    before: ModelProto,
    after: ModelProto,
    comparison: Comparison,
    *,
    exact: bool,
    base: ModelProto | None = None,
    touched: frozenset[str] | None = None,
    interface: bool = True,
    rungs: Sequence[str] | None = None,
    inherit: bool = True,
    only: Sequence[Fed] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """The proof on two files. ``touched`` (where known) is what the fixes may have changed of ``base``, by default
    of ``before``.

    ``interface``: inputs and outputs must stay as they are. It is False where UNSAFE fixes or the command may change
    them. ``rungs`` are fewer checks than the comparison names; the others are as in ``proof.verify``.
    """

    verification, special = comparison.verification, comparison.special

    def violations(first: ModelProto, second: ModelProto) -> list[str]:
        found = contract.interface_changes(before, after, special) if interface else []
        start = base if base is not None else before
        return found + (contract.untouched_changes(start, after, touched) if touched is not None else [])

    if not verification.enabled:
        rungs = ("contract",)
    # Fewer checks look for a culprit, or judge what is not final: latency would not be reported.
    trt = comparison.trt if rungs is None else replace(comparison.trt, benchmark=False)
    verdict = verify_files(
        original,
        fixed,
        exact=exact,
        contract=violations,
        inputs=verification.inputs,
        input_shapes=verification.input_shapes,
        seed=verification.seed,
        require=verification.require,
        rungs=rungs if rungs is not None else verification.rungs,
        limits=_limits(verification, original),
        trt=trt,
        inherit=inherit,
        models=(before, after),
        special=special,
        allowed=allowed_by(verification) or comparison.budget,
        effort=verification.effort,
        only=only,
        say=say,
    )
    changed = [] if interface else contract.interface_changes(before, after, special)
    return _with_changes(verdict, changed) if changed else verdict


_SMALL = 64 << 20  # bytes of a file whose model is expected to run within a minute
_SMALL_STEP = 60.0


def _limits(verification: Verification, original: Path) -> Limits:
    """The limits of each check: the user's, by default those for a model of this size. A small model that does not run
    once within a minute is rather one that never ends. A symbolic check that the user names may take all its time."""
    seconds = verification.rung_timeout
    if seconds is not None:
        limits = Limits(step=seconds, total=seconds, rung=seconds)
    else:
        limits = Limits(step=_SMALL_STEP) if original.stat().st_size <= _SMALL else Limits()
    return limits if verification.rungs is None else replace(limits, symbolic_total=limits.total)


def _with_changes(verdict: Verdict, changed: list[str]) -> Verdict:
    """The verdict where UNSAFE fixes changed the interface: a contract that passed says so, not the contrary."""
    changes = f"UNSAFE fixes changed the interface: {'; '.join(changed)}"
    rungs = (
        replace(rung, reason=f"{judge(rung.checks).words}; {changes}", notes=(*rung.notes, *changed))
        if rung.name == "contract" and rung.status == "passed"
        else rung
        for rung in verdict.rungs
    )
    return replace(verdict, rungs=tuple(rungs))


def is_refuted(verdict: Verdict) -> bool:
    """Whether a check showed a difference; a required check that could not run is no fault of a fix."""
    return any(rung.refutes for rung in verdict.rungs)


def select_checks_to_repeat(verdict: Verdict) -> tuple[str, ...]:
    """The checks to repeat in search of the culprit: the contract, which is cheap, if it refutes the model; else those
    that do, and where ONNX Runtime does, the reference check and the symbolic one if they judged. By their results they
    judge half precision, and operators without a kernel."""
    names = [rung.name for rung in verdict.rungs if rung.refutes]
    if "contract" in names:
        return ("contract",)
    if {"ort-cpu", *ON_GPU}.isdisjoint(names):
        return tuple(names)
    leading = [rung.name for rung in verdict.rungs if rung.judged and rung.name in ("symbolic", "reference")]
    return (*leading, *(name for name in names if name not in leading))


def find_failing_inputs(verdict: Verdict) -> tuple[Fed, ...]:
    """The inputs on which checks that run models found a difference, which show it again. Where the model did not even
    load, the first that the reference check tried, if any; () where one of several checks failed without inputs."""
    refuting = [rung for rung in verdict.rungs if rung.refutes and rung.name in _RUNNING]
    wrong = [[feed.fed for feed in rung.feeds if feed.status == "different"] for rung in refuting]
    reference = verdict.rung("reference")
    if refuting and reference is not None and not any(rung.feeds for rung in refuting):
        wrong = [[feed.fed for feed in reference.feeds[:1]]]
    found = list(itertools.chain.from_iterable(wrong)) if all(wrong) else []
    return tuple(fed for place, fed in enumerate(found) if fed not in found[:place])


_RUNNING = ("reference", "ort-cpu", *ON_GPU)


def explain_unjudged(verdict: Verdict) -> str:
    """Why the checks that judge nothing do not, on one line."""
    return "; ".join(f"{rung.name}: {rung.reason}" for rung in verdict.rungs if not rung.judged)


def reason_of(verdict: Verdict) -> str:
    """Why the checks that refute it do, on one line."""
    return "; ".join(f"{rung.name}: {rung.reason}" for rung in verdict.rungs if rung.refutes)
