"""Rung trt-gpu: engines of the original and of the fixed model, executed on a GPU and compared with the ONNX model.

The ONNX model is the reference (``oracle``). A fix is refuted where the fixed model's engine is further from it than
the original's engine is, beyond noise. Where the original's engine is wrong and the fixed one right, the fix has done
its work. Differences beyond the tolerance of the types are first compared with the rounding of the original itself
(``noise``). Every engine runs several times on the same inputs, and outputs whose bits differ are excluded by name.

The inputs of the original and its engine's outputs are kept for the candidates that follow when fixes are withdrawn:
each of those costs one build and one load. Where no engine runs on this machine, the rung is skipped with the driver's
or TensorRT's reason.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from onnxfix import deadline
from onnxfix.errors import UsageError
from onnxfix.nvidia import Missing
from onnxfix.trt.engine import Ran
from onnxfix.verification.request import Request
from onnxfix.verification.rungs import benchmark, gpu_engines, probe
from onnxfix.verification.rungs.builder import builder
from onnxfix.verification.rungs.gpu_engines import DEATHS
from onnxfix.verification.rungs.gpu_result import NAME, conclude, done
from onnxfix.verification.rungs.gpu_state import CONTEXTS, Evidence, Original, State
from onnxfix.verification.rungs.judge import Finding, differing
from onnxfix.verification.rungs.oracle import Oracle
from onnxfix.verification.rungs.trials import Finder, Trial, key_of, outside
from onnxfix.verification.verdict import FeedResult, RungResult, unjudged


def climb(request: Request) -> RungResult:
    """Build, execute and compare; with ``--benchmark``, time engines that were not refuted.

    Raises:
        UsageError: an option of TensorRT's does not exist, or does not fit the model.
        OnnxfixError: a file cannot be written.
    """
    result = _climb(request)
    return benchmark.with_latency(result) if request.trt.benchmark else result


def _climb(request: Request) -> RungResult:
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


#: The last original, with a key: a run that withdraws fixes needs it again for every candidate.
_LAST: list[tuple[object, Original]] = []


def _compare(state: State) -> RungResult:
    """Find inputs, unless the last original is the same; then build, load and run both engines on them."""
    key = key_of(state.request, state.builder)
    if _LAST and _LAST[0][0] == key:
        state.original = _LAST[0][1]
    else:
        try:
            state.original = _find(state)
        except UsageError as error:  # no input can be made for this model
            return done(state, "skipped", str(error))
        _LAST[:] = [(key, state.original)]
    state.noise = state.measuring()
    state.seen.results.extend(state.original.refused)
    state.seen.refused.extend(state.original.refused)
    if not state.original.trials:
        return conclude(state)
    return _timed(state, gpu_engines.build(state) or gpu_engines.load(state) or _run(state))


def _timed(state: State, result: RungResult) -> RungResult:
    """The result, with the latency of the engines where ``--benchmark`` asks for it and nothing refutes them."""
    refuted = "wrong" in state.seen.findings
    if not state.request.trt.benchmark or result.executed is None or refuted or not result.judged:
        return result
    names = ("fixed",) if state.single or state.original.lacking else ("original", "fixed")
    files = {name: Path(state.file(name)) for name in names}
    latency = benchmark.latency(
        state.engines, state.builder, state.request.original, files, state.builds, state.seen.judged
    )
    return replace(result, latency=latency)


def _find(state: State) -> Original:
    """Look for inputs that the original accepts, with its outputs for them.

    Raises:
        UsageError: no input can be made for this model.
    """
    with Oracle(state.request) as oracle:
        # What the rung trt-build built need not be built again where its profile covers the inputs.
        left = gpu_engines.profile_of(state)
        for profile in (*([left] if left else ()), state.given[0] if state.given else None):
            finder = Finder(state.request, oracle.run, profile)
            trials = finder.find()
            if trials:
                break
        return Original(trials, finder.refused, oracle.backend, oracle.silent, cause=oracle.cause)


def _run(state: State) -> RungResult:
    until, is_steady = time.monotonic() + state.request.total, False
    for number, trial in enumerate(state.original.trials):
        if state.seen.deaths >= DEATHS:
            state.seen.notes.append(f"stopped after {state.seen.deaths} failures")
            break
        if time.monotonic() > until:
            state.seen.notes.append("stopped at the time limit")
            break
        reason = outside(state.builds["fixed"].profiles, trial.values)
        if reason:
            _refuse(state, trial, reason)
        else:
            _judge(state, number, trial)
        if "wrong" in state.seen.findings and not _is_unsteady(state, "wrong", number, trial, until):
            wrong = state.seen.findings["wrong"]
            return done(state, "failed", wrong.reason, wrong.cause, inherited=state.single)
        if "alike" in state.seen.findings and not is_steady:
            is_steady = not _is_unsteady(state, "alike", number, trial, until)
    return conclude(state)


def _is_unsteady(state: State, finding: Finding, number: int, trial: Trial, until: float) -> bool:
    """Whether the engine that was wrong, or as wrong as the original's ("alike"), is right on the same inputs in
    another context, or, where fixes would be blamed, built once more: that is the finding then. Where the time is over
    before, it is not."""
    found = state.seen.findings[finding]
    if not found.output or trial.expected is None:
        return False
    first = None if state.single or state.original.lacking else state.original.ran.get(number)
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
    del state.seen.findings[finding]
    reason = (
        f"{state.engine_name} is not reproducible: {wrong} of {tried} contexts are wrong on the same inputs"
    )
    state.seen.findings.setdefault("unsteady", Evidence(f"{reason}; {found.reason}", found.output))
    return True


def _more_engines(state: State, *, builds: bool) -> list[str]:
    """Engine files to load besides the first: that of the new model again, and with ``builds`` a second build of it."""
    first, second = state.file("fixed"), state.file("second")
    if not builds:
        return [first] * (CONTEXTS - 1)
    profiles = state.builds["fixed"].profiles or None
    again = (
        Path(second).exists()
        or state.builder.build(state.request.fixed, profiles, save_engine=second).accepted
    )
    return [first] * (CONTEXTS - 1) + [second] * (CONTEXTS if again else 0)


def _refuse(state: State, trial: Trial, reason: str, failed: Ran | None = None) -> None:
    found = FeedResult(trial.label, trial.feed, "not counted", reason, given=trial.given)
    if failed is not None:
        found = replace(found, stopped="fixed", said=failed.error, cause=failed.cause)
    state.seen.results.append(found)
    state.seen.refused.append(found)


def _judge(state: State, number: int, trial: Trial) -> None:
    before = None if state.single or state.original.lacking else state.original.ran.get(number)
    after = state.execute("fixed", trial, first=not state.seen.judged)
    state.seen.deaths += bool(after.error)
    if after.error:
        if before is None or before.error:
            return _refuse(state, trial, f"the engine of {state.name} fails: {after.error}", after)
        reason = f"the original's engine runs, the new model's does not: {after.error}"
        found = FeedResult(trial.label, trial.feed, "different", reason, cause=after.cause, given=trial.given)
        state.seen.results.append(found)
        state.seen.findings["wrong"] = Evidence(f"{reason} [{trial.label}]", "", after.cause)
        return None
    if before is not None and before.error:
        state.seen.notes.append(f"the original's engine fails: {before.error} [{trial.label}]")
        before = None
    for ran in filter(None, (before, after)):
        state.seen.unread.update(ran.unread)
        state.seen.unsteady.update(ran.unsteady)
        steady = {name: ran.outputs[name] for name in ran.unsteady}
        state.seen.excluded |= differing(state.terms(tuple(steady)), Ran(steady), Ran(ran.unsteady))
    judged = state.noise.judge(state.terms(), trial, before, after)
    state.seen.results.extend(replace(one, given=trial.given) for one in judged.results)
    if judged.finding == "nothing":
        return _refuse(state, trial, "no output could be compared")
    state.seen.judged.append(trial)
    if judged.finding == "agree":
        state.seen.findings.setdefault("agree", Evidence("", ""))
        state.seen.graces.extend(filter(None, [judged.reason]))
    else:
        evidence = Evidence(f"{judged.reason} [{trial.label}]", judged.output)
        state.seen.findings.setdefault(judged.finding, evidence)
    return None
