"""Rung trt-build: TensorRT's real parser and builder on the original and on the fixed model. No engine is executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix.causes import Cause
from onnxfix.nvidia import Missing
from onnxfix.sandbox import one_line
from onnxfix.trt.engine import Ran
from onnxfix.trt.records import Ending, Profile, TrtBuild
from onnxfix.verification.feeds.profiles import chosen_profiles
from onnxfix.verification.request import Request
from onnxfix.verification.rungs import probe
from onnxfix.verification.rungs.batch_sweep import Build, Run, sweep
from onnxfix.verification.rungs.builder import WIDEST, Builder, builder, check
from onnxfix.verification.rungs.inherited import is_new
from onnxfix.verification.sweep import SweepResult
from onnxfix.verification.verdict import RungResult, unjudged

NAME = "trt-build"
_VERBS = {"refused": ("refuses", "refused"), "crash": ("crashes on", "crashed on")}
NOT_EXECUTED = "no engine was executed"
#: How a build ended that proves nothing about the model -> the cause. An error before parsing: TensorRT does not start.
_UNASKED: dict[str, Cause] = {"memory": "memory", "error": "not-loadable"}


def climb(request: Request) -> RungResult:
    """Build both models, the fixed one with the profiles of the original.

    Raises:
        UsageError: an option of TensorRT's does not exist, or does not fit the model.
        OnnxfixError: a file cannot be written.
    """
    found = builder(request.trt)
    if isinstance(found, Missing):
        return unjudged(NAME, found.reason, found.cause)
    with closing(found), ExitStack() as stack:
        check(request.trt, request.known)
        given, origin = chosen_profiles(request.trt, request.known, request.shapes, request.given)
        if request.fixed == request.original:
            builds: tuple[TrtBuild, ...] = (found.build(request.original, given),)
        else:
            before = _original(found, request.original, given)
            profiles = before.profiles if before.accepted and before.profiles else given
            builds = (before, _fixed(found, request.fixed, profiles, before))
        result = judge(
            builds,
            found,
            inherit=request.inherit,
            original=request.known.model,
            fixed=request.fixed,
            harmed=builds[-1].status == "memory"
            and builds[0].accepted
            and _with_half(found, request, builds[0]),
        )
        if origin and any(build.profiles for build in builds):  # a model of static shape has none
            result = replace(result, notes=(*result.notes, origin))
        if not request.trt.batch_sweep or result.status in ("skipped", "broke"):
            return result
        greatest, run = request.trt.batch_sweep, _executor(found, request, stack)
        swept = sweep(request, given, _plain(found), greatest=greatest, run=run)
    return _with_sweep(result, swept)


def _plain(found: Builder) -> Build:
    def build(path: Path, profiles: Sequence[Profile], save_engine: str) -> TrtBuild:
        return found.build(path, profiles, save_engine=save_engine)

    return build


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


def _with_sweep(result: RungResult, swept: SweepResult) -> RungResult:
    """The result with that of a sweep: a failed sweep fails the rung, and its findings go to the notes."""
    result = replace(result, notes=(*result.notes, *swept.lines()), sweep=swept)
    if swept.status == "failed" and result.status == "passed":
        return replace(result, status="failed", reason=f"batch sweep: {swept.reason}")
    why = "" if swept.status == "failed" else f": {swept.reason}"
    return replace(result, reason=f"{result.reason}; batch sweep {swept.status}{why}")


#: The last original, with a key: a run that withdraws fixes needs it again for every candidate.
_LAST: list[tuple[object, TrtBuild]] = []


def _original(found: Builder, path: Path, given: Sequence[Profile] | None) -> TrtBuild:
    about = path.stat()
    options = replace(found.options, benchmark=False)  # not set for every candidate
    key = (path, about.st_mtime_ns, about.st_size, about.st_ino, found.choice, options, given)
    if not _LAST or _LAST[0][0] != key:
        _LAST[:] = [(key, found.build(path, given))]
    return _LAST[0][1]


def _fixed(found: Builder, path: Path, profiles: Sequence[Profile] | None, before: TrtBuild) -> TrtBuild:
    """Build the fixed model; a timeout, a crash or a lack of memory is tried once more, since fixes depend on it."""
    after = found.build(path, profiles)
    if before.accepted and after.status in ("timeout", "memory", "crash"):
        after = found.build(path, profiles, patience=2.0)
    return after


def _with_half(found: Builder, request: Request, before: TrtBuild) -> bool:
    """Whether the original builds with half of the memory that does not suffice for the fixed model."""
    small = found.halved()
    if small is None:
        return False
    with closing(small):
        return small.build(request.original, before.profiles or None).accepted


def judge(
    builds: Sequence[TrtBuild],
    found: Builder,
    *,
    inherit: bool,
    original: ModelProto | None = None,
    fixed: Path | None = None,
    harmed: bool = False,
) -> RungResult:
    """The rung's result for the builds of the original and of the fixed model (or of the one model).

    A lack of memory proves nothing about a model, unless the fixes are known to be the cause (``harmed``).

    With ``inherit``, the fixes are not to blame for a refusal where the original is refused too, unless it is about a
    node that ``original`` does not have. A node of another name is the same if ``fixed`` has no more of its kind.
    """
    before, after = builds[0], builds[-1]
    inherited = inherit and not before.accepted and not is_new(after, original, fixed)
    who, why = found.who, _why(after)
    verb = _VERBS.get(after.status, ("fails on", ""))[0]
    if after.accepted:
        return RungResult(
            NAME, "passed", _acceptance(builds, found), notes=found.notes(), builds=tuple(builds)
        )
    if not after.judged and not harmed:  # this proves nothing about the model
        result = unjudged(NAME, f"{found.product} gave no result: {why}", _UNASKED.get(after.status, ""))
        return replace(result, notes=found.notes(), builds=tuple(builds))
    if before.accepted:
        reason = f"{who} accepts the original and {verb} the fixed model: {why}"
    elif len(builds) == 1:
        reason = f"{who} {verb} the model: {why}"
    elif before.errors and after.errors and before.errors[0].repeats(after.errors[0]):
        reason = f"{who} {verb} the fixed model as it does the original: {why}"
    else:
        reason = f"{who} {verb} the fixed model: {why} (the original: {_why(before)})"
    return RungResult(NAME, "failed", reason, notes=found.notes(), builds=tuple(builds), inherited=inherited)


def _acceptance(builds: Sequence[TrtBuild], found: Builder) -> str:
    before, after = builds[0], builds[-1]
    ahead = "" if found.choice.gpu is not None else "ahead of time "
    reason = f"{found.who} accepts it, built {ahead}for compute capability {found.choice.capability}"
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
