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

import itertools
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.nvidia import Missing
from onnxfix.trt.engine import Ran
from onnxfix.verification.request import Request
from onnxfix.verification.rungs import benchmark, gpu_engines, probe
from onnxfix.verification.rungs.builder import builder
from onnxfix.verification.rungs.gpu_engines import DEATHS
from onnxfix.verification.rungs.gpu_result import NAME, conclude, done
from onnxfix.verification.rungs.gpu_state import CONTEXTS, Evidence, Original, State
from onnxfix.verification.rungs.judge import differing, judge
from onnxfix.verification.rungs.noise import Noise
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
    state.noise = Noise(state.request, state.original.trials, state.original.oracle)
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
    deadline = time.monotonic() + state.request.total
    for number, trial in enumerate(state.original.trials):
        if state.seen.deaths >= DEATHS:
            state.seen.notes.append(f"stopped after {state.seen.deaths} failures")
            break
        if time.monotonic() > deadline:
            state.seen.notes.append("stopped at the time limit")
            break
        reason = outside(state.builds["fixed"].profiles, trial.values)
        if reason:
            _refuse(state, trial, reason)
        else:
            _judge(state, number, trial)
        if "wrong" in state.seen.findings:
            wrong = state.seen.findings["wrong"]
            if wrong.output and not state.original.steady and _is_unsteady(state, number, trial):
                break
            return done(state, "failed", wrong.reason, wrong.cause, inherited=state.single)
    return conclude(state)


def _is_unsteady(state: State, number: int, trial: Trial) -> bool:
    """Whether engines that are loaded, or built, once more are not all as wrong on an input as the first ones were.
    That is the finding then: no fix is to blame."""
    terms = state.noise.widened(state.terms(), trial)
    first = None if state.single else state.original.ran.get(number)
    files = {"fixed": _more_engines(state, "fixed")}
    files["original"] = _more_engines(state, "original") if first is not None else []
    wrong = tried = 1
    for pair in itertools.zip_longest(files["fixed"], files["original"]):
        after, before = (_rerun(state, name, file, trial) for name, file in zip(files, pair, strict=True))
        if after is None:
            continue
        judged = judge(terms, trial.label, trial.feed, trial.expected, before or first, after)
        tried, wrong = tried + 1, wrong + (judged.finding == "wrong")
    state.original.steady = wrong == tried
    if wrong < tried:
        found = state.seen.findings.pop("wrong")
        reason = f"the engines are not reproducible: {wrong} of {tried} contexts of two builds are wrong on one input"
        state.seen.findings["unsteady"] = Evidence(f"{reason}; {found.reason}", found.output)
    return wrong < tried


def _more_engines(state: State, name: str) -> list[str]:
    """Engine files to load besides the first: that of "original" or "fixed" again, and a second build of it."""
    path = state.request.fixed if name == "fixed" else state.request.original
    second = state.file(f"second {name}")
    again = state.builder.build(path, state.builds[name].profiles or None, save_engine=second)
    return [state.file(name)] * (CONTEXTS - 1) + [second] * (CONTEXTS if again.accepted else 0)


def _rerun(state: State, name: str, file: str | None, trial: Trial) -> Ran | None:
    """What an engine file computes in a context of its own; None where there is none, or it does not run."""
    if file is None or state.engines.load(name, file):
        return None
    ran = state.execute(name, trial, first=False)
    return None if ran.error else ran


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
    judged = judge(state.terms(), trial.label, trial.feed, trial.expected, before, after)
    if judged.finding not in ("agree", "nothing"):
        terms = state.noise.widened(state.terms(), trial)
        judged = judge(terms, trial.label, trial.feed, trial.expected, before, after)
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
