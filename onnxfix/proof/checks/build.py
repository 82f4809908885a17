"""Check trt-build: TensorRT's real parser and builder on the original and on the fixed model. No engine is executed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto

from onnxfix.files import lazy, loading, walk
from onnxfix.inputs.feeds.profiles import chosen_profiles
from onnxfix.proof.checks import probe
from onnxfix.proof.checks.batch_sweep import Run, sweep
from onnxfix.proof.checks.builder import WIDEST, Builder, Profiles, builder, check
from onnxfix.proof.checks.trials import key_of
from onnxfix.proof.request import Networks, Request
from onnxfix.proof.verdict import RungResult, SweepResult, unjudged
from onnxfix.runtime.allowance import MEMORY_MB, cores
from onnxfix.runtime.backends.ort_weights import weight_bytes
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import default_memory_mb, one_line
from onnxfix.tensorrt.build import need_mb
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.records import Ending, Profile, TrtBuild

NAME = "trt-build"
_VERBS = {"refused": ("refuses", "refused"), "crash": ("crashes on", "crashed on")}
NOT_EXECUTED = "no engine was executed"
#: As much free memory as this times a build's own lets another check hold both models meanwhile.
_BESIDE = 3
#: How a build ended that proves nothing about the model -> the cause. An error before parsing: TensorRT does not start.
_UNASKED: dict[str, Cause] = {"memory": "memory", "error": "not-loadable"}


def run(request: Request, meanwhile: Callable[[Builder], object] | None = None) -> RungResult:
    """Build both models, the fixed one with the profiles of the original. ``meanwhile`` compares the network of the
    original while TensorRT builds the fixed model.

    Raises:
        UsageError: an option of TensorRT's does not exist, or does not fit the model.
        OnnxfixError: a file cannot be written.
    """
    found = builder(request.trt)
    if isinstance(found, Missing):
        return unjudged(NAME, found.reason, found.cause)
    with closing(found), ExitStack() as stack:
        check(request.trt, request.known)
        weights, limit = weight_bytes(request.known.model) >> 20, found.worker.limit_mb
        if limit is not None and weights > limit:  # minutes, in vain
            return unjudged(NAME, found.worker.starved(f"an engine holds {weights} MiB of weights"), "memory")
        given, origin = chosen_profiles(request.trt, request.known, request.shapes, request.given)
        builds: tuple[TrtBuild, ...]
        if request.fixed == request.original:  # built anew: a caller may have changed its external data
            builds = (_build(found, request.original, given, request.networks),)
        else:
            key = key_of(request, found)
            if not _LAST or _LAST[0][0] != key:
                _LAST[:] = [(key, _build(found, request.original, given, request.networks))]
            before, networks = _LAST[0][1], request.networks
            if meanwhile is not None and networks is not None and request.fixed in networks.begun:
                meanwhile(found)
            builds = (before, _build_fixed(found, request, _follow(before, given), before))
        result = judge(
            builds,
            found,
            inherit=request.inherit,
            original=request.known.model,
            fixed=request.fixed,
            harmed=_is_harmed(found, request, builds),
        )
        # A model of static shape has no profile.
        if origin and not request.labels and any(build.profiles for build in builds):
            result = replace(result, notes=(*result.notes, origin))
        if not request.trt.batch_sweep or result.status in ("skipped", "broke"):
            return result

        def build(path: Path, profiles: Sequence[Profile], engine: str) -> TrtBuild:
            return found.build(path, tuple(profiles), save_engine=engine)

        greatest, run = request.trt.batch_sweep, _executor(found, request, stack)
        swept = sweep(request, given, build, greatest=greatest, run=run)
    return _add_sweep(result, swept)


def begin(request: Request) -> None:
    """Start what ``run`` builds and leave it under way, as ``request.networks`` says. Nothing is started where cores
    or memory do not suffice for that beside another check, or TensorRT is missing.

    Raises:
        UsageError: an option of TensorRT's does not exist, or does not fit the model.
    """
    networks = request.networks
    if networks is None or request.trt.memory_mb is not None or not _has_room(request):
        return
    found = builder(request.trt)
    if isinstance(found, Missing):
        return
    given, _ = chosen_profiles(request.trt, request.known, request.shapes, request.given)
    networks.worker = found.worker
    known = _LAST[0][1] if _LAST and _LAST[0][0] == key_of(request, found) else None
    if known is None or request.fixed == request.original:
        place = networks.place(request.original)
        networks.begun[request.original] = found.post(request.original, place, given)
    if request.fixed != request.original:
        profiles = given if known is None else _follow(known, given)
        place = networks.place(request.fixed)
        networks.begun[request.fixed] = found.post(request.fixed, place, profiles, follow=known is None)


def _has_room(request: Request) -> bool:
    """Whether another check and a build may run at once: a process that is one of several has its cores and memory
    counted out."""
    free = default_memory_mb()
    if cores() < 2 or MEMORY_MB in os.environ or free is None:
        return False
    return _BESIDE * max(map(need_mb, {request.original, request.fixed})) <= free


def _executor(found: Builder, request: Request, stack: ExitStack) -> Run | str:
    """The function that executes the engines of a sweep until the stack unwinds, or why none can."""
    reason = probe.probe(found).reason
    if reason:
        return f"{NOT_EXECUTED} ({reason})"
    side = stack.enter_context(probe.engines(found.choice, request.trt, request.step))

    def run(engine: Path, feed: Mapping[str, Any]) -> Ran:
        error = side.load(str(engine), str(engine))
        return Ran(error=error) if error else side.run(str(engine), feed)

    return run


def _add_sweep(result: RungResult, swept: SweepResult) -> RungResult:
    """The result with that of a sweep: a failed sweep fails the check, and its findings go to the notes."""
    result = replace(result, notes=(*result.notes, *swept.lines()), sweep=swept)
    if swept.status == "failed" and result.status == "passed":
        return replace(result, status="failed", reason=f"batch sweep: {swept.reason}")
    why = "" if swept.status == "failed" else f": {swept.reason}"
    return replace(result, reason=f"{result.reason}; batch sweep {swept.status}{why}")


#: The last original, with a key: a run that withdraws fixes needs it again for every candidate.
_LAST: list[tuple[object, TrtBuild]] = []


def _follow(before: TrtBuild, given: Profiles) -> Profiles:
    """The profiles for the fixed model: those of the original, where it was built with some."""
    return before.profiles if before.accepted and before.profiles else given


def _build_fixed(found: Builder, request: Request, profiles: Profiles, before: TrtBuild) -> TrtBuild:
    """Build the fixed model; a timeout, a crash or a lack of memory is tried once more, since fixes depend on it."""
    after = _build(found, request.fixed, profiles, request.networks)
    if before.accepted and after.status in ("timeout", "memory", "crash"):
        after = found.build(request.fixed, profiles, patience=2.0)
        if request.networks is not None:
            request.networks.builds.pop(request.fixed, None)
    return after


def _build(found: Builder, path: Path, profiles: Profiles, networks: Networks | None) -> TrtBuild:
    """Build a model, and leave its network for the check that reads it, where there is one. A build that was begun
    already, which is one with the same profiles, is waited for."""
    if networks is None:
        return found.build(path, profiles)
    posted = networks.begun.pop(path, None)
    built = found.collect(posted, path) if posted is not None else None
    if built is None:
        built = found.collect(found.post(path, networks.place(path), profiles), path)
    if built is None:  # it is not known whether the build is to blame
        return found.build(path, profiles)
    build, network = built
    if network is not None:
        networks.lifted[path] = network
    if not build.accepted or networks.engine(path).exists():
        networks.builds[path] = build
    return build


def _is_harmed(found: Builder, request: Request, builds: Sequence[TrtBuild]) -> bool:
    """Whether memory runs out for the fixed model, and the original builds with half of it."""
    starved = builds[-1].status == "memory" and builds[0].accepted
    small = found.halved() if starved else None
    if small is None:
        return False
    with closing(small):
        return small.build(request.original, builds[0].profiles or None).accepted


def judge(
    builds: Sequence[TrtBuild],
    found: Builder,
    *,
    inherit: bool,
    original: ModelProto | None = None,
    fixed: Path | None = None,
    harmed: bool = False,
) -> RungResult:
    """The check's result for the builds of the original and of the fixed model (or of the one model).

    A lack of memory proves nothing about a model, unless the fixes are known to be the cause (``harmed``).

    With ``inherit``, the fixes are not to blame for a refusal where the original is refused too, unless it is about a
    node that ``original`` does not have. A node of another name is the same if ``fixed`` has no more of its kind.
    """
    before, after = builds[0], builds[-1]
    who, why = found.who, _why(after)
    verb = _VERBS.get(after.status, ("fails on", ""))[0]
    inherited = inherit and not before.accepted and not _is_new(after, original, fixed)
    if after.accepted:
        result = RungResult(NAME, "passed", _acceptance(builds, found))
    elif after.target_only and not before.accepted:
        result = unjudged(NAME, why, "target-only")
    elif not after.judged and not after.target_only and not harmed:  # this proves nothing about the model
        result = unjudged(NAME, f"{found.product} gave no result: {why}", _UNASKED.get(after.status, ""))
    else:
        reason = f"{who} {verb} the new model: {why} (the original: {_why(before)})"
        if before.accepted:
            reason = f"{who} accepts the original and {verb} the new model: {why}"
        elif len(builds) == 1:
            reason = f"{who} {verb} the model: {why}"
        elif before.errors and after.errors and before.errors[0].repeats(after.errors[0]):
            reason = f"{who} {verb} the new model as it does the original: {why}"
        result = RungResult(NAME, "failed", reason, inherited=inherited)
    return replace(result, notes=found.notes(), builds=tuple(builds))


def _acceptance(builds: Sequence[TrtBuild], found: Builder) -> str:
    before, after = builds[0], builds[-1]
    ahead = "" if found.choice.gpu is not None else "ahead of time "
    reason = f"{found.who} accepts it, built {ahead}for compute capability {after.compute_capability}"
    if not before.judged:
        return f"{reason}; it gave no result for the original: {_why(before)}"
    if not before.accepted:
        did = _VERBS.get(before.status, ("", "failed on"))[1]
        return f"{reason}; it {did} the original: {_why(before)}"
    return f"{reason}, {before.layer_count} → {after.layer_count} layers" if len(builds) > 1 else reason


def _why(build: TrtBuild) -> str:
    """The first reason. TensorRT's own messages do not always mention that memory ran out."""
    if build.status != "memory":
        return one_line(build.reason, WIDEST)
    ended = any(isinstance(one, Ending) for one in build.errors[:1])
    return build.reason if ended else f"out of memory: {build.reason}"


def _is_new(build: TrtBuild, original: ModelProto | None, fixed: Path | None) -> bool:
    """Whether the first error is about a node that the original does not have."""
    if original is None or not build.errors or not build.errors[0].place.op_type:
        return False
    place = build.errors[0].place
    known = [node for node in walk.model_nodes(original) if node.op_type == place.op_type]
    if any(place.output in node.output for node in known):
        return False
    if fixed is None or not known:
        return True
    loaded = loading.open_model(fixed)
    now = [node for node in walk.model_nodes(loaded.proto) if node.op_type == place.op_type]
    named = next((_kind(node) for node in now if place.output in node.output), None)
    # Rules that remove nodes give their names to others: a node that existed before is not new.
    counts = [sum(_kind(node) == named for node in nodes) for nodes in (now, known)]
    return named is None or counts[0] > counts[1]


def _kind(node: NodeProto) -> tuple[str, list[bytes]]:
    """A node without its names; its subgraphs, which contain names, are left out."""
    plain = (a for a in node.attribute if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS))
    return node.domain, sorted(lazy.keyed(one.SerializeToString(deterministic=True)) for one in plain)
