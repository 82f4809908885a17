"""The engines that the rung trt-gpu compares: built, loaded, and that of the original executed."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onnxfix.backends.ort_weights import weight_bytes
from onnxfix.causes import Cause
from onnxfix.trt.engine import Ran
from onnxfix.trt.messages import means
from onnxfix.trt.records import Profile, TrtBuild
from onnxfix.verification.feeds.profiles import bound_profile
from onnxfix.verification.request import Request
from onnxfix.verification.rungs.builder import Builder
from onnxfix.verification.rungs.gpu_result import done
from onnxfix.verification.rungs.gpu_state import State
from onnxfix.verification.rungs.trials import outside, profiles
from onnxfix.verification.verdict import RungResult

_MANY, _HEAVY = 500, 16 << 20  # nodes and bytes of weights
DEATHS = 3
"""How many runs of engines may fail: each costs the child that executes them."""


def build(state: State) -> RungResult | None:
    """Build both, the fixed model with the original's profiles; None where it has an engine, else the result."""
    request, original = state.request, state.original
    tries = profiles(original.trials, state.given, bound_profile(request.known, request.shapes))
    made: dict[str, TrtBuild] = {}
    if (
        original.build is not None
        and original.build.accepted
        and not original.ran
        and not Path(state.file("original")).exists()
    ):  # the candidate before was refused, and its folder is gone
        original.build = None
    if not state.single and original.build is None:
        taken = _taken(state, "original", request.original)
        made = _both(state, tries) if taken is None else {"original": taken}
        original.build = made["original"]
        if not original.build.accepted:
            original.lacking = (
                f"{state.builder.product} builds no engine of the original: {original.build.reason}"
            )
            original.cause = "memory" if original.build.status == "memory" else ""
    if original.build is not None:
        state.builds["original"] = original.build
        if original.build.accepted:
            tries = [original.build.profiles or None]
    after = made.get("fixed") or _taken(state, "fixed", request.fixed)
    if after is None or (after.accepted and (tries[0] or ()) != after.profiles):
        after = _first(state, state.builder, request.fixed, "fixed", tries)
    state.builds["fixed"] = after
    if after.accepted:
        return None
    reason = f"{state.builder.product} builds no engine of {state.name}: {after.reason}"
    cause: Cause = "memory" if after.status == "memory" else "target-only" if after.target_only else ""
    if state.single or original.lacking:  # the rung trt-build reports that it refuses both
        return done(state, "skipped", reason, cause)
    return done(state, "failed", f"{reason}; it builds one of the original", cause)


def profile_of(state: State) -> Profile | None:
    """The profile of the engines that the rung trt-build left; None where it left none, or the model is static."""
    networks, request = state.request.networks, state.request
    built = networks.builds.get(request.original) if networks is not None else None
    return built.profiles[0] if built is not None and built.accepted and built.profiles else None


def _taken(state: State, name: str, path: Path) -> TrtBuild | None:
    """The build of the rung trt-build: with its engine, where the profile covers all trials, or what it failed of,
    where that is not the profile."""
    networks = state.request.networks
    built = networks.builds.pop(path, None) if networks is not None else None
    if networks is None or built is None:
        return None
    if not built.accepted:
        return None if means("profile", [one.text for one in built.errors]) else built
    if any(outside(built.profiles, trial.values) for trial in state.original.trials):
        return None
    os.replace(networks.engine(path), state.file(name))
    return built


def _both(state: State, tries: Sequence[tuple[Profile, ...] | None]) -> dict[str, TrtBuild]:
    """The build of the original, and of the fixed model where a second process in parallel pays."""
    request = state.request
    beside = state.builder.beside() if _is_large(request) else None
    if beside is None:
        return {"original": _first(state, state.builder, request.original, "original", tries)}
    with ThreadPoolExecutor(1) as pool:
        context = contextvars.copy_context()
        other = pool.submit(context.run, _first, state, beside, request.fixed, "fixed", tries)
        try:
            before = _first(state, state.builder, request.original, "original", tries)
            return {"original": before, "fixed": other.result()}
        except BaseException:
            beside.worker.close()  # so that its build does not delay the error
            raise


def _first(
    state: State, by: Builder, path: Path, name: str, tries: Sequence[tuple[Profile, ...] | None]
) -> TrtBuild:
    """The first build that is accepted, or refused for another reason than the profile's sizes; else the first one."""
    made: list[TrtBuild] = []
    for chosen in tries:
        made.append(by.build(path, chosen, save_engine=state.file(name)))
        if made[-1].accepted or not means("profile", [one.text for one in made[-1].errors]):
            break
    return made[-1] if made[-1].accepted else made[0]


def load(state: State) -> RungResult | None:
    """Load both and execute the original's; None where the fixed model's engine can be judged, else the result."""
    original = state.original
    if not state.single and not original.lacking and not original.ran:
        reason = _loaded(state, "original")
        original.lacking = f"the original's engine does not load: {reason}" if reason else ""
        original.cause = state.engines.cause
        if not reason:
            _run_original(state)
    reason = _loaded(state, "fixed")
    if not reason:
        return _alone(state) if original.silent and (state.single or original.lacking) else None
    failure = f"the engine of {state.name} does not load: {reason}"
    if state.single or original.lacking:
        return done(state, "skipped", failure, state.engines.cause)
    return done(state, "failed", f"{failure}; the original's does", state.engines.cause)


def _loaded(state: State, name: str) -> str:
    """Load an engine; returns the reason where it does not load, else ""."""
    outcome = state.engines.load(name, state.file(name))
    return outcome if not state.engines.late else f"{state.builder.product} {outcome}"


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


def _alone(state: State) -> RungResult:
    lacking = "" if state.single else f"{state.original.lacking}; "
    return done(
        state,
        "skipped",
        f"there is nothing to compare the engine with: {lacking}{state.original.silent}",
        state.original.cause,
    )


def _is_large(request: Request) -> bool:
    """Whether a build takes so long that a second process, which takes a second to start, pays."""
    model = request.known.model
    return len(model.graph.node) > _MANY or weight_bytes(model) > _HEAVY
