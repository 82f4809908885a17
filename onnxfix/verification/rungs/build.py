"""Rung trt-build: TensorRT's real parser and builder on the original and on the fixed model. No engine is executed."""
# Long because: the other rungs of TensorRT use the same builder, in the same sandboxes

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix import targets
from onnxfix.causes import ENDED, Cause
from onnxfix.errors import UsageError
from onnxfix.nvidia import Missing
from onnxfix.sandbox import Worker, memory_limit_mb, one_line, shared
from onnxfix.trt import build as tensorrt
from onnxfix.trt import files
from onnxfix.trt import package as trt_package
from onnxfix.trt.engine import Ran
from onnxfix.trt.package import Choice
from onnxfix.trt.parse import MEMORY
from onnxfix.trt.records import Issue, Profile, TrtBuild, TrtOptions
from onnxfix.verification.feeds.signature import Signature
from onnxfix.verification.request import Request
from onnxfix.verification.rungs.batch_sweep import Build, Run, SweepResult, sweep
from onnxfix.verification.rungs.known import is_new
from onnxfix.verification.rungs.shapes import chosen_profiles, given_profiles
from onnxfix.verification.verdict import RungResult, unjudged

NAME = "trt-build"
_CHOOSING = 120.0  # seconds; NVIDIA's libraries are large and may come from a cold disk
_CORES = 4  # from which on two builds at once are faster than one after the other
_WIDEST = 300  # characters of TensorRT's reason in the rung's one line
_VERBS = {"refused": ("refuses", "refused"), "crash": ("crashes on", "crashed on")}
NOT_EXECUTED = "no engine was executed"
#: How a build ended that says nothing about the model -> why. An error before parsing: TensorRT does not start.
_UNASKED: dict[str, Cause] = {"memory": "memory", "error": "not-loadable"}


@dataclass(frozen=True)
class Builder:
    """TensorRT as chosen for this machine and what was asked of it, with the sandbox that it runs in."""

    choice: Choice
    options: TrtOptions
    worker: Worker
    apart: bool = False
    """Whether the sandbox is its own, whatever the options."""

    @property
    def product(self) -> str:
        """For people: ``TensorRT-RTX 1.7.1``."""
        return product(self.choice.package, self.choice.version)

    def build(
        self,
        path: Path,
        profiles: Sequence[Profile] | None = None,
        *,
        save_engine: str = "",
        patience: float = 1.0,
    ) -> TrtBuild:
        """Parse and build the model file; whatever TensorRT does is a result. ``patience`` stretches the time limit.

        Raises:
            UsageError: the profiles or the timing cache are of no use to it.
            OnnxfixError: a file cannot be written.
        """
        build = tensorrt.attempt(
            self.worker,
            path,
            package=self.choice.package,
            compute_capability=self.choice.capability,
            profiles=profiles,
            timeout=self.options.timeout * patience,
            tf32=self.options.tf32,
            save_engine=save_engine,
            timing_cache=os.path.abspath(self.options.timing_cache) if self.options.timing_cache else "",
        )
        # A child that died told no version.
        return self._starved(replace(build, version=build.version or self.choice.version), path)

    def _starved(self, build: TrtBuild, path: Path) -> TrtBuild:
        """A build that failed for want of memory says so and tells the limit; and so does one that probably did, for
        TensorRT notices as seldom as not: it goes on with a null pointer, or waits for a thread that never was."""
        limit, reason = self.worker.limit_mb, build.reason
        if limit is None or build.accepted or (build.status == "refused" and build.stage != "build"):
            return build
        if build.status in ("refused", "crash", "timeout"):
            need = tensorrt.need_mb(path)
            if need <= limit:
                return build
            reason = f"probably out of memory, of which it takes about {need} MiB: {reason}"
        elif build.status != "memory":
            return build
        told = Issue(build.stage, "error", self.worker.starved(one_line(reason, _WIDEST)))
        return replace(build, status="memory", errors=(told, *build.errors[1:]))

    def halved(self) -> Builder | None:
        """The same with half the memory; None where that is not limited."""
        limit = self.worker.limit_mb
        if limit is None:
            return None
        half = limit // 2
        worker = Worker(memory_mb=half, variables=variables_of(self.options))
        return replace(self, options=replace(self.options, memory_mb=half), worker=worker)

    def plain(self) -> Builder:
        """The same in a process with the user's own environment, for an engine that is to be loaded in such a one. To
        be closed."""
        return replace(self, worker=Worker(memory_mb=self.options.memory_mb), apart=True)

    def beside(self) -> Builder | None:
        """The same in a second process, to build at the same time; None where memory or cores are short."""
        if self.options.memory_mb is not None or (os.cpu_count() or 1) < _CORES:
            return None
        worker = shared_builder(self.options, " beside")
        worker.start()  # by this thread, with which the child is to end
        return replace(self, worker=worker)

    def close(self) -> None:
        """End the sandbox, unless it is the one that everybody shares."""
        if self.apart or self.options.memory_mb is not None:
            self.worker.close()

    @property
    def who(self) -> str:
        """The product, and whether it is another one than the target."""
        aim = targets.target_named(self.options.target or None)
        return f"{self.product}, which is not the target {aim.title}," if self._mismatch() else self.product

    def _mismatch(self) -> str:
        aim = targets.target_named(self.options.target) if self.options.target else None
        return targets.mismatch(aim, self.choice.package, self.choice.version) if aim is not None else ""

    def notes(self) -> tuple[str, ...]:
        """What a reader should know about who judged."""
        cache = ""
        if self.options.timing_cache and self.choice.package == "tensorrt-rtx":
            cache = (
                f"TensorRT-RTX keeps no timing cache: {self.options.timing_cache} is neither read nor written"
            )
        return tuple(note for note in (self._mismatch(), self.choice.note, cache) if note)


def product(package: str, version: str) -> str:
    """``TensorRT-RTX 1.7.1`` for tensorrt-rtx 1.7.1.116."""
    name = "TensorRT-RTX" if package == "tensorrt-rtx" else "TensorRT"
    return f"{name} {'.'.join(version.split('.')[:3])}"


def builder(options: TrtOptions) -> Builder | Missing:
    """TensorRT as ``options`` and this machine allow it, or why there is none.

    Raises:
        UsageError: the package or the compute capability does not exist.
    """
    trt_package.missing(options.package)  # which knows what packages there are
    lack = trt_package.not_installed(options.package)
    if lack is not None:
        return lack
    if options.compute_capability:
        trt_package.normal_capability(options.compute_capability)
    variables = variables_of(options)
    worker = shared_builder(options)
    if options.memory_mb is not None:
        worker = Worker(memory_mb=options.memory_mb, variables=variables)
    found = _choice(options.package, options.compute_capability, options.tf32, os.getpid(), memory_limit_mb())
    if isinstance(found, str):
        raise UsageError(found)
    if isinstance(found, Missing):
        return found
    return Builder(found, options, worker)


def variables_of(options: TrtOptions) -> dict[str, str]:
    """The environment of the processes that build and execute engines: without TF32 unless that was asked for."""
    return {} if options.tf32 else dict(trt_package.TF32_OFF)


def shared_builder(options: TrtOptions, which: str = "") -> Worker:
    """The child that everybody shares for TensorRT's parser and builder; ``which`` names another one beside it."""
    return shared(f"tensorrt{which}{' with TF32' * options.tf32}", variables_of(options))


@functools.cache
def _choice(
    package: str, capability: str | None, tf32: bool, process: int, limit: int | None
) -> Choice | Missing | str:
    """The package to use; a text is the user's mistake. Asked once a process and memory limit: it loads NVIDIA's
    libraries."""
    worker = shared_builder(TrtOptions(tf32=tf32))
    outcome = worker.call(
        f"{__name__}:choose", timeout=_CHOOSING, package=package, compute_capability=capability
    )
    found = (
        outcome.value
        if outcome.ok
        else Missing(f"TensorRT cannot be loaded: {outcome.message}", ENDED[outcome.status])
    )
    if isinstance(found, Missing) and MEMORY.search(found.reason):
        worker.close()
        told = worker.starved(f"out of memory where TensorRT is loaded: {found.reason}")
        return Missing(told, "memory")
    return found


def choose(package: trt_package.Package, compute_capability: str | None) -> Choice | Missing | str:
    """``trt_package.choose`` for the sandbox, which hands back no exceptions: its UsageError is the text."""
    try:
        return trt_package.choose(package, compute_capability)
    except UsageError as error:
        return str(error)


def check(options: TrtOptions, known: Signature) -> None:
    """Find the user's mistakes about TensorRT before any work is done.

    Raises:
        UsageError: a file cannot be written, or the shapes do not fit the model.
    """
    files.check_files(options)
    given_profiles(options, known)


def climb(request: Request) -> RungResult:
    """Build both models, the fixed one with the profiles that the original was built with.

    Raises:
        UsageError: what was asked of TensorRT does not exist, or does not fit the model.
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
    """What executes the engines of a sweep, until the stack unwinds, or that nothing does and why."""
    from onnxfix.verification.rungs import probe  # which knows this module

    reason = probe.probe(found).reason
    if reason:
        return f"{NOT_EXECUTED} ({reason})"
    side = stack.enter_context(probe.engines(found.choice, request.trt, request.step))

    def run(engine: Path, feed: Mapping[str, Any]) -> Ran:
        error = side.load(str(engine), str(engine))
        return Ran(error=error) if error else side.run(str(engine), feed)

    return run


def _with_sweep(result: RungResult, swept: SweepResult) -> RungResult:
    """A sweep that fails is a rung that fails; what it found stands in the notes."""
    result = replace(result, notes=(*result.notes, *swept.lines()), sweep=swept)
    if swept.status == "failed" and result.status == "passed":
        return replace(result, status="failed", reason=f"batch sweep: {swept.reason}")
    told = "" if swept.status == "failed" else f": {swept.reason}"
    return replace(result, reason=f"{result.reason}; batch sweep {swept.status}{told}")


#: What became of the last original: a run that withdraws fixes asks about it again and again.
_LAST: list[tuple[object, TrtBuild]] = []


def _original(found: Builder, path: Path, given: Sequence[Profile] | None) -> TrtBuild:
    about = path.stat()
    options = replace(found.options, benchmark=False)  # which is not asked of every candidate
    key = (path, about.st_mtime_ns, about.st_size, about.st_ino, found.choice, options, given)
    if not _LAST or _LAST[0][0] != key:
        _LAST[:] = [(key, found.build(path, given))]
    return _LAST[0][1]


def _fixed(found: Builder, path: Path, profiles: Sequence[Profile] | None, before: TrtBuild) -> TrtBuild:
    """Build the fixed model; what only takes too long or too much is tried once more, for fixes hang on it."""
    after = found.build(path, profiles)
    if before.accepted and after.status in ("timeout", "memory", "crash"):
        after = found.build(path, profiles, patience=2.0)
    return after


def _with_half(found: Builder, request: Request, before: TrtBuild) -> bool:
    """Whether the original builds with half the memory that the fixed model needs more than: that is no chance."""
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

    A lack of memory says nothing about a model, unless the fixes are known to be the cause (``harmed``).

    With ``inherit``, a refusal is no fault of the fixes where the original is refused too, unless it is about a node
    that ``original`` does not have. One of another name is the same node if ``fixed`` holds no more of its kind.
    """
    before, after = builds[0], builds[-1]
    inherited = inherit and not before.accepted and not is_new(after, original, fixed)
    who, why = found.who, _why(after)
    verb = _VERBS.get(after.status, ("fails on", ""))[0]
    if after.accepted:
        return RungResult(
            NAME, "passed", _acceptance(builds, found), notes=found.notes(), builds=tuple(builds)
        )
    if not after.judged and not harmed:  # that says nothing about the model
        told = unjudged(NAME, f"{found.product} could not be asked: {why}", _UNASKED.get(after.status, ""))
        return replace(told, notes=found.notes(), builds=tuple(builds))
    if before.accepted:
        reason = f"{who} accepts the original and {verb} the fixed model: {why}"
    elif len(builds) == 1:
        reason = f"{who} {verb} the model: {why}"
    elif before.reason == after.reason:
        reason = f"{who} {verb} the fixed model as it does the original: {why}"
    else:
        reason = f"{who} {verb} the fixed model: {why} (the original: {_why(before)})"
    return RungResult(NAME, "failed", reason, notes=found.notes(), builds=tuple(builds), inherited=inherited)


def _acceptance(builds: Sequence[TrtBuild], found: Builder) -> str:
    before, after = builds[0], builds[-1]
    ahead = "" if found.choice.gpu is not None else "ahead of time "
    reason = f"{found.who} accepts it, built {ahead}for compute capability {found.choice.capability}"
    if not before.judged:
        return f"{reason}; it could not be asked about the original: {_why(before)}"
    if not before.accepted:
        did = _VERBS.get(before.status, ("", "failed on"))[1]
        return f"{reason}; it {did} the original: {_why(before)}"
    return f"{reason}, {before.layer_count} → {after.layer_count} layers" if len(builds) > 1 else reason


def _why(build: TrtBuild) -> str:
    """The first reason; of a lack of memory TensorRT tells at length where it noticed, if it notices."""
    if build.status != "memory":
        return one_line(build.reason, _WIDEST)
    return build.reason if " of memory" in build.reason[:60] else f"out of memory: {build.reason}"
