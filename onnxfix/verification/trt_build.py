"""Rung trt-build: TensorRT's real parser and builder on the original and on the fixed model. No engine is executed."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxfix import targets
from onnxfix.backends import tensorrt, trt_package
from onnxfix.backends.trt_package import Choice, Missing
from onnxfix.backends.trt_types import Profile, TrtBuild, TrtOptions
from onnxfix.errors import UsageError
from onnxfix.sandbox import Worker, shared
from onnxfix.verification.climb import Request
from onnxfix.verification.trt_shapes import given_profiles
from onnxfix.verification.verdict import RungResult

NAME = "trt-build"
_CHOOSING = 120.0  # seconds; NVIDIA's libraries are large and may come from a cold disk


@dataclass(frozen=True)
class Builder:
    """TensorRT as chosen for this machine and what was asked of it, with the sandbox that it runs in."""

    choice: Choice
    options: TrtOptions
    worker: Worker

    @property
    def product(self) -> str:
        """For people: ``TensorRT-RTX 1.7.1``."""
        return product(self.choice.package, self.choice.version)

    def build(
        self, path: Path, profiles: Sequence[Profile] | None = None, *, save_engine: str = ""
    ) -> TrtBuild:
        """Parse and build the model file; whatever happens is a result."""
        return tensorrt.attempt(
            self.worker,
            path,
            package=self.choice.package,
            compute_capability=self.choice.capability,
            profiles=profiles,
            timeout=self.options.timeout,
            tf32=self.options.tf32,
            save_engine=save_engine,
            timing_cache=os.path.abspath(self.options.timing_cache) if self.options.timing_cache else "",
        )

    def notes(self) -> tuple[str, ...]:
        """What a reader should know about who judged."""
        aim = targets.target_named(self.options.target) if self.options.target else None
        said = targets.mismatch(aim, self.choice.package, self.choice.version) if aim is not None else ""
        return tuple(note for note in (said, self.choice.note) if note)


def product(package: str, version: str) -> str:
    """``TensorRT-RTX 1.7.1`` for tensorrt-rtx 1.7.1.116."""
    name = "TensorRT-RTX" if package == "tensorrt-rtx" else "TensorRT"
    return f"{name} {'.'.join(version.split('.')[:3])}"


def builder(options: TrtOptions) -> Builder | str:
    """TensorRT as ``options`` and this machine allow it, or why there is none, in one line that ends with what to do.

    Raises:
        UsageError: the package or the compute capability does not exist.
    """
    reason = trt_package.missing(options.package)
    if reason is not None:
        return reason
    if options.compute_capability:
        trt_package.normal_capability(options.compute_capability)
    found = _choice(options.package, options.compute_capability, os.getpid())
    if isinstance(found, str):
        raise UsageError(found)
    if isinstance(found, Missing):
        return found.reason
    worker = shared("tensorrt") if options.memory_mb is None else Worker(memory_mb=options.memory_mb)
    return Builder(found, options, worker)


@functools.cache
def _choice(package: str, capability: str | None, process: int) -> Choice | Missing | str:
    """The package to use; a text is the user's mistake. Asked once a process: it loads NVIDIA's libraries."""
    outcome = shared("tensorrt").call(
        f"{__name__}:choose", timeout=_CHOOSING, package=package, compute_capability=capability
    )
    return outcome.value if outcome.ok else Missing(f"TensorRT cannot be loaded: {outcome.message}")


def choose(package: trt_package.Package, compute_capability: str | None) -> Choice | Missing | str:
    """``trt_package.choose`` for the sandbox, which hands back no exceptions: its UsageError is the text."""
    try:
        return trt_package.choose(package, compute_capability)
    except UsageError as error:
        return str(error)


def climb(request: Request) -> RungResult:
    """Build both models, the fixed one with the profiles that the original was built with."""
    found = builder(request.trt)
    if isinstance(found, str):
        return RungResult(NAME, "skipped", found)
    given = given_profiles(request.trt, request.known)
    if request.fixed == request.original:
        builds: tuple[TrtBuild, ...] = (found.build(request.original, given),)
    else:
        before = _original(found, request.original, given)
        profiles = before.profiles if before.accepted and before.profiles else given
        builds = (before, found.build(request.fixed, profiles))
    return judge(builds, found, inherit=request.inherit)


#: What became of the last original: a run that withdraws fixes asks about it again and again.
_LAST: list[tuple[object, TrtBuild]] = []


def _original(found: Builder, path: Path, given: Sequence[Profile] | None) -> TrtBuild:
    about = path.stat()
    key = (path, about.st_mtime_ns, about.st_size, about.st_ino, found.choice, found.options, given)
    if not _LAST or _LAST[0][0] != key:
        _LAST[:] = [(key, found.build(path, given))]
    return _LAST[0][1]


def judge(builds: Sequence[TrtBuild], found: Builder, *, inherit: bool) -> RungResult:
    """The rung's result for the builds of the original and of the fixed model (or of the one model)."""
    before, after = builds[0], builds[-1]
    notes = found.notes()
    if after.accepted:
        reason = f"{found.product} accepts it, built for compute capability {found.choice.capability}"
        if not before.accepted:
            reason += f"; the original it did not: {before.reason}"
        elif len(builds) > 1:
            reason += f", {before.layer_count} → {after.layer_count} layers"
        return RungResult(NAME, "passed", reason, notes=notes, builds=tuple(builds))
    verb = "refuses" if after.status == "refused" else "fails on"
    if before.accepted:
        reason = f"{found.product} accepts the original and {verb} the fixed model: {after.reason}"
    elif len(builds) == 1:
        reason = f"{found.product} {verb} the model: {after.reason}"
    elif before.reason == after.reason:
        reason = f"{found.product} {verb} the fixed model as it does the original: {after.reason}"
    else:
        reason = f"{found.product} {verb} the fixed model: {after.reason} (the original: {before.reason})"
    inherited = inherit and not before.accepted
    return RungResult(NAME, "failed", reason, notes=notes, builds=tuple(builds), inherited=inherited)
