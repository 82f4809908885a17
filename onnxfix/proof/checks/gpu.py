"""Check trt-gpu: engines of the original and of the fixed model, executed on a GPU and compared with the ONNX model.

The ONNX model is the reference (``sessions.Oracle``). A fix is refuted where the fixed model's engine is further from
it than the original's engine is, beyond noise. Where the original's engine is wrong and the fixed one right, the fix
has done its work. Differences beyond the tolerance of the types are first compared with the rounding of the original
itself (``noise``). Every engine runs several times on the same inputs, and outputs whose bits differ are excluded by
name.

The inputs of the original and its engine's outputs are kept for the candidates that follow when fixes are withdrawn:
each of those costs one build and one load. Where no engine runs on this machine, the check is skipped with the driver's
or TensorRT's reason.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds.profiles import bound_profile
from onnxfix.proof.checks import probe
from onnxfix.proof.checks.builder import Builder, builder
from onnxfix.proof.checks.gpu_result import NAME, Evidence, Original, State, conclude, conclude_as
from onnxfix.proof.checks.judge import Finding, differing
from onnxfix.proof.checks.sessions import Oracle, Sessions
from onnxfix.proof.checks.trials import Finder, key_of, outside, profiles, usual
from onnxfix.proof.request import Request, Trial
from onnxfix.proof.verdict import RungResult, unjudged
from onnxfix.runtime import deadline
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.nvidia import Missing
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.messages import means
from onnxfix.tensorrt.records import Profile, TrtBuild
from onnxfix.tensorrt.timing import Latency, Timing

CONTEXTS = 3
"""How often each of two builds of the new model is loaded before a fix is blamed. Of 20 contexts of FastViT, loaded by
TensorRT-RTX 1.6.1 on an H200, 6 were wrong by the whole scale, of the original as of the fixed model."""
DEATHS = 3
"""How many runs of engines may fail: each costs the child that executes them."""

#: The last original, with a key: a run that withdraws fixes needs it again for every candidate.
_LAST: list[tuple[object, Original]] = []


def run(request: Request) -> RungResult:
    """Build, execute and compare; with ``--benchmark``, time engines that were not refuted.

    Raises:
        UsageError: an option of TensorRT's does not exist, or does not fit the model.
        OnnxfixError: a file cannot be written.
    """
    result = _execute(request)
    if not request.trt.benchmark or result.latency is not None:
        return result
    why = f"no result: {result.reason}"
    if result.executed is None:
        why = f"no engine was executed: {result.reason}"
    elif result.executed.outcome == "wrong":
        why = "the new model's engine is wrong"
    return replace(result, latency=Latency(reason=why))


def _execute(request: Request) -> RungResult:
    found = builder(request.trt)
    if isinstance(found, Missing):
        return unjudged(NAME, found.reason, found.cause)
    with closing(found), ExitStack() as stack:
        here = probe.probe(found)
        if here.reason:
            return unjudged(NAME, here.reason, here.cause)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        engines = stack.enter_context(probe.engines(found.choice, request.trt, request.step))
        return _compare(State(request, found, here, folder, engines))


def _compare(state: State) -> RungResult:
    """Find inputs, unless the last original is the same; then build, load and run both engines on them."""
    key = key_of(state.request, state.builder)
    if not _LAST or _LAST[0][0] != key:
        try:
            # What the check trt-build built need not be built again where its profile covers the inputs.
            networks = state.request.networks
            built = networks.builds.get(state.request.original) if networks is not None else None
            left = built.profiles[:1] if built is not None and built.accepted else ()
            given = state.given[0] if state.given else None
            _LAST[:] = [(key, find_inputs(state.request, (*left, given)))]
        except UsageError as error:  # no input can be made for this model
            return conclude_as(state, "skipped", str(error))
    state.use(_LAST[0][1])
    state.results += state.original.refused
    state.refused += state.original.refused
    if not state.original.trials:
        return conclude(state)
    result = _build(state) or _load(state) or _run(state)
    if not state.request.trt.benchmark or result.executed is None or not result.judged:
        return result
    if "wrong" in state.findings:
        return result
    files = {name: Path(state.file(name)) for name in (("fixed",) if state.alone else ("original", "fixed"))}
    timed = measure_latency(
        state.engines, state.builder, state.request.original, files, state.builds, state.judged
    )
    return replace(result, latency=timed)


def find_inputs(request: Request, profiles: Sequence[Profile | None]) -> Original:
    """Look for inputs that the original accepts, with its outputs for them, inside the first of these profiles that
    covers any.

    Raises:
        UsageError: no input can be made for this model.
    """
    with Oracle(request) as oracle:
        for profile in profiles:
            finder = Finder(request, oracle.run, profile)
            if finder.find():
                break
        return Original(finder.found, finder.refused, oracle.backend, oracle.silent, cause=oracle.cause)


# ------------------------------------------------------------------------------------------------- build and load


def _build(state: State) -> RungResult | None:
    """Build both, the fixed model with the original's profiles; None where it has an engine, else the result."""
    request, original = state.request, state.original
    tries = profiles(original.trials, state.given, bound_profile(request.known, request.shapes))
    gone = not original.ran and not Path(state.file("original")).exists()
    if original.build is not None and original.build.accepted and gone:
        original.build = None  # the candidate before was refused, and its folder is gone
    if not state.single and original.build is None:
        original.build = _take(state, "original") or state.build_engine("original", tries)
        if not original.build.accepted:
            why = original.build.reason
            original.lacking = f"{state.builder.product} builds no engine of the original: {why}"
            original.cause = "memory" if original.build.status == "memory" else ""
    if original.build is not None:
        state.builds["original"] = original.build
        if original.build.accepted:
            tries = [original.build.profiles or None]
    after = _take(state, "fixed")
    if after is None or (after.accepted and (tries[0] or ()) != after.profiles):
        after = state.build_engine("fixed", tries)
    state.builds["fixed"] = after
    if after.accepted:
        return None
    reason = f"{state.builder.product} builds no engine of {state.name}: {after.reason}"
    cause: Cause = "memory" if after.status == "memory" else "target-only" if after.target_only else ""
    return state.conclude_failure(reason, cause, "it builds one of the original")


def _take(state: State, name: str) -> TrtBuild | None:
    """The build of the check trt-build: with its engine, where the profile covers all trials, or what it failed of,
    where that is not the profile."""
    networks, path = state.request.networks, state.model(name)
    built = networks.builds.pop(path, None) if networks is not None else None
    if networks is None or built is None:
        return None
    if not built.accepted:
        return None if means("profile", built.error_texts) else built
    if any(outside(built.profiles, trial.values) for trial in state.original.trials):
        return None
    os.replace(networks.engine(path), state.file(name))
    return built


def _load(state: State) -> RungResult | None:
    """Load both and execute the original's; None where the fixed model's engine can be judged, else the result."""
    original = state.original
    if not state.alone and not original.ran:
        reason = _load_one(state, "original")
        original.lacking = f"the original's engine does not load: {reason}" if reason else ""
        original.cause = state.engines.last.cause
        if not reason:
            _run_original(state)
    reason = _load_one(state, "fixed")
    if reason:
        failure = f"the engine of {state.name} does not load: {reason}"
        return state.conclude_failure(failure, state.engines.last.cause, "the original's does")
    if not original.silent or not state.alone:
        return None
    lacking = "" if state.single else f"{original.lacking}; "
    why = f"there is nothing to compare the engine with: {lacking}{original.silent}"
    return conclude_as(state, "skipped", why, original.cause)


def _load_one(state: State, name: str) -> str:
    """Load an engine; returns the reason where it does not load, else ""."""
    reason = state.engines.load(name, state.file(name))
    return f"{state.builder.product} {reason}" if state.engines.last.late else reason


def _run_original(state: State) -> None:
    """Run the original's engine on all inputs, once for all candidates."""
    original, failures = state.original, 0
    for number, trial in enumerate(original.trials):
        if failures == DEATHS:
            ran = Ran(error=f"it failed {DEATHS} times before")
        elif outside(state.builds["original"].profiles, trial.values):
            continue
        else:
            ran = state.execute("original", trial, first=not number)
            failures += bool(ran.error)
        original.ran[number] = ran


# ------------------------------------------------------------------------------------------------- run and judge


def _run(state: State) -> RungResult:
    until, is_steady = time.monotonic() + state.request.total, False
    for number, trial in enumerate(state.original.trials):
        if state.deaths >= DEATHS:
            state.notes.append(f"stopped after {state.deaths} failures")
            break
        if time.monotonic() > until:
            state.notes.append("stopped at the time limit")
            break
        reason = outside(state.builds["fixed"].profiles, trial.values)
        if reason:
            _refuse(state, trial, reason)
        else:
            _judge(state, number, trial)
        if "wrong" in state.findings and not _is_unsteady(state, "wrong", number, trial, until):
            wrong = state.findings["wrong"]
            return conclude_as(state, "failed", wrong.reason, wrong.cause, inherited=state.single)
        if "alike" in state.findings and not is_steady:
            is_steady = not _is_unsteady(state, "alike", number, trial, until)
    return conclude(state)


def _refuse(state: State, trial: Trial, reason: str, failed: Ran | None = None) -> None:
    result = trial.result("not counted", reason)
    if failed is not None:
        result = replace(result, stopped="fixed", said=failed.error, cause=failed.cause)
    state.results.append(result)
    state.refused.append(result)


def _judge(state: State, number: int, trial: Trial) -> None:
    before = None if state.alone else state.original.ran.get(number)
    after = state.execute("fixed", trial, first=not state.judged)
    state.deaths += bool(after.error)
    if after.error:
        if before is None or before.error:
            return _refuse(state, trial, f"the engine of {state.name} fails: {after.error}", after)
        reason = f"the original's engine runs, the new model's does not: {after.error}"
        state.results.append(trial.result("different", reason, cause=after.cause))
        state.findings["wrong"] = Evidence(f"{reason} [{trial.label}]", "", after.cause)
        return None
    if before is not None and before.error:
        state.notes.append(f"the original's engine fails: {before.error} [{trial.label}]")
        before = None
    for ran in filter(None, (before, after)):
        state.unread.update(ran.unread)
        state.unsteady.update(ran.unsteady)
        steady = {name: ran.outputs[name] for name in ran.unsteady}
        state.excluded |= differing(state.terms(tuple(steady)), Ran(steady), Ran(ran.unsteady))
    judged = state.noise.judge(state.terms(), trial, before, after)
    state.results.extend(replace(one, given=trial.given) for one in judged.results)
    if judged.finding == "nothing":
        return _refuse(state, trial, "no output could be compared")
    state.judged.append(trial)
    if judged.finding == "agree":
        state.findings.setdefault("agree", Evidence("", ""))
        state.graces.extend(filter(None, [judged.reason]))
    else:
        evidence = Evidence(f"{judged.reason} [{trial.label}]", judged.output)
        state.findings.setdefault(judged.finding, evidence)
    return None


def _is_unsteady(state: State, finding: Finding, number: int, trial: Trial, until: float) -> bool:
    """Whether the engine that was wrong, or as wrong as the original's ("alike"), is right on the same inputs in
    another context, or, where fixes would be blamed, built once more: that is the finding then. Where the time is over
    before, it is not."""
    evidence = state.findings[finding]
    if not evidence.output or trial.expected is None:
        return False
    first = None if state.alone else state.original.ran.get(number)
    first = None if first is not None and first.error else first
    terms = state.terms()
    wrong, tried, same = 1, 1, True
    with suppress(deadline.Expired):
        for file in _more_engines(state, builds=finding == "wrong"):
            if time.monotonic() > until:
                break
            state.engines.renew()
            if state.engines.load("fixed", file):
                continue
            after = state.execute("fixed", trial, first=False)
            if not after.error:
                tried += 1
                again = state.noise.judge(terms, trial, first, after).finding
                wrong += again in ("wrong", finding)
                same = same and again == finding
    if same:
        return False
    state.engines.load("fixed", state.file("fixed"))
    del state.findings[finding]
    contexts = f"{wrong} of {tried} contexts are wrong on the same inputs"
    reason = f"{state.engine_name} is not reproducible: {contexts}; {evidence.reason}"
    state.findings.setdefault("unsteady", Evidence(reason, evidence.output))
    return True


def _more_engines(state: State, *, builds: bool) -> list[str]:
    """Engine files to load besides the first: that of the new model again, and with ``builds`` a second build of it."""
    again = [state.file("fixed")] * (CONTEXTS - 1)
    if not builds:
        return again
    second, chosen = state.file("second"), state.builds["fixed"].profiles or None
    made = (
        Path(second).exists() or state.builder.build(state.request.fixed, chosen, save_engine=second).accepted
    )
    return again + [second] * (CONTEXTS if made else 0)


# ------------------------------------------------------------------------------------------------------- latency


def measure_latency(
    engines: Sessions,
    found: Builder,
    original: Path,
    files: Mapping[str, Path],
    builds: Mapping[str, TrtBuild],
    trials: Sequence[Trial],
) -> Latency:
    """Time the engines of ``files`` ("fixed", and "original" where there is one) on the trial of the usual shape.

    The original's engine is rebuilt where an earlier run built it: only its outputs are kept for each candidate.
    Whatever happens is a result.
    """
    builds = dict(builds)
    if "original" in files and not files["original"].exists():
        again = found.build(original, builds["original"].profiles or None, save_engine=str(files["original"]))
        if not again.accepted:
            return Latency(reason=f"the engine of the original could not be rebuilt: {again.reason}")
        builds["original"] = again
    trial = usual(trials, builds["fixed"].profiles)
    measured = engines.latency({name: str(path) for name, path in files.items()}, trial.values)

    def add_build(name: str, timing: Timing | None) -> Timing | None:
        if timing is None or name not in files:
            return timing
        size = builds[name].engine_bytes or files[name].stat().st_size
        return replace(timing, build_seconds=builds[name].build_seconds, engine_bytes=size)

    return replace(
        measured, original=add_build("original", measured.original), fixed=add_build("fixed", measured.fixed)
    )
