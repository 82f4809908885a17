"""TensorRT's builder as this machine and the user's options allow it, with the sandbox that it runs in."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from onnx import TensorProto

from onnxfix import targets
from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import atomic, folders, loading, saving, walk
from onnxfix.files.atomic import PLAIN, temporary_beside
from onnxfix.inputs.feeds.profiles import given_profiles
from onnxfix.inputs.feeds.signature import Signature
from onnxfix.proof.request import ENGINE
from onnxfix.runtime import confinement
from onnxfix.runtime.allowance import memory_limit_mb
from onnxfix.runtime.causes import ENDED
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Posted, Worker, one_line, shared
from onnxfix.tensorrt import build as tensorrt
from onnxfix.tensorrt import files as trt_files
from onnxfix.tensorrt import layers as trt_layers
from onnxfix.tensorrt import lift, messages
from onnxfix.tensorrt import package as trt_package
from onnxfix.tensorrt.files import Tactics
from onnxfix.tensorrt.lift import Lifted
from onnxfix.tensorrt.log import PLUGINS, SERVED, logger_of, plugin_libraries
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.reading import LayerTable
from onnxfix.tensorrt.records import Ending, Issue, Profile, TargetOnly, TrtBuild, TrtOptions

_CHOOSING = 120.0  # seconds; NVIDIA's libraries are large and may come from a cold disk
WIDEST = 300
"""Characters of TensorRT's reason in a check's one line."""
T = TypeVar("T")
Profiles = tuple[Profile, ...] | None
"""Optimization profiles of a build; None for sizes derived from the model's symbols."""
Tries = Sequence[Profiles]


@dataclass(frozen=True)
class Builder:
    """The TensorRT package chosen for this machine, the user's options, and the sandbox that it runs in."""

    choice: Choice
    options: TrtOptions
    worker: Worker
    apart: bool = False
    """Whether the sandbox belongs to this builder alone, whatever the options."""

    @property
    def product(self) -> str:
        """As text: ``TensorRT-RTX 1.7.1``."""
        return trt_package.product(self.choice.package, self.choice.version)

    def build(
        self,
        path: Path,
        profiles: Profiles = None,
        *,
        save_engine: str = "",
        patience: float = 1.0,
        parse_only: bool = False,
    ) -> TrtBuild:
        """Parse and build the model file; whatever TensorRT does is a result. ``patience`` multiplies the time limit.
        ``parse_only``: build no engine of what the parser takes.

        Raises:
            UsageError: TensorRT cannot use the profiles or the timing cache.
            OnnxfixError: a file cannot be written.
        """
        arguments = self._arguments(path, profiles, save_engine)
        timeout = self.options.timeout * patience
        build = tensorrt.attempt(self.worker, path, timeout=timeout, parse_only=parse_only, **arguments)
        return self._complete(build, path)

    def post(self, path: Path, out: Path, profiles: Profiles = None, *, follow: bool = False) -> Posted:
        """Start to build the model file, with its network read back into ``out``; see ``lift.build_and_lift``. Where a
        GPU may execute the engine, it is kept beside that file."""
        engine = str(out.with_suffix(ENGINE)) if self.choice.gpu is not None else ""
        return self.worker.post(
            f"{lift.__name__}:build_and_lift",
            timeout=self.options.timeout,
            path=str(path),
            out=os.path.abspath(out),
            follow=follow,
            **self._arguments(path, profiles, engine),
        )

    def collect(self, posted: Posted, path: Path) -> tuple[TrtBuild, Lifted | None] | None:
        """Wait for what ``post`` started: the build, and the network where there is one to compare. None where nothing
        is known of the build: the child ended while it read the network back, or before.

        Raises:
            UsageError, OnnxfixError: as for ``build``.
        """
        outcome = self.worker.collect(posted)
        if outcome is None or (not outcome.ok and outcome.note == lift.LIFTING):
            return None
        if not outcome.ok:
            build = tensorrt.failed(outcome, self.choice.package, self.choice.capability)
            return self._complete(build, path), None
        build, lifted = outcome.value
        return self._complete(build, path), lifted

    def layers(
        self,
        path: Path,
        profiles: Profiles = None,
        *,
        save_engine: str = "",
        edit: bool = False,
        given: Tactics | None = None,
    ) -> tuple[LayerTable, Tactics | None]:
        """The same, with what became of each node, and the tactics; see ``trt.layers.read``.

        Raises:
            UsageError: also, this TensorRT keeps no tactics, or does not take those that are ``given``.
            OnnxfixError: a file cannot be written.
        """
        table, tactics = trt_layers.attempt(
            self.worker,
            path,
            timeout=self.options.timeout,
            inspect=self.choice.gpu is not None,
            edit=edit,
            given=given,
            **self._arguments(path, profiles, save_engine),
        )
        return replace(table, build=self._complete(table.build, path)), tactics

    def _arguments(self, path: Path, profiles: Profiles, save_engine: str) -> dict[str, Any]:
        """How the child is to build a model: one with FP4 for the newest capability, where that may be chosen."""
        newest, cache = self.choice.newest, self.options.timing_cache
        fp4 = bool(newest) and _has_fp4(str(path), path.stat().st_mtime_ns)
        return {
            "package": self.choice.package,
            "compute_capability": newest if fp4 else self.choice.capability,
            "profiles": tuple(profiles) if profiles is not None else None,
            "tf32": self.options.tf32,
            "save_engine": save_engine,
            "timing_cache": os.path.abspath(cache) if cache else "",
        }

    def _complete(self, build: TrtBuild, path: Path) -> TrtBuild:
        """The build, with the version where a child died before it could say, and with what onnxfix knows of errors:
        that only the TensorRT at hand lacks an operator, or that memory ran out."""
        build = replace(build, version=build.version or self.choice.version)
        if build.status == "refused":
            build = replace(build, errors=tuple(map(self._mark_target_only, build.errors)))
        return self._mark_memory(build, path)

    def _mark_target_only(self, issue: Issue) -> Issue:
        """The error, as ``TargetOnly`` where the target has the operator that this TensorRT is known to lack."""
        text = self.lacks(issue.place.op_type) if messages.means("lacking", [issue.text]) else ""
        if not text:
            return issue
        return TargetOnly(
            issue.stage, issue.severity, text, issue.place, issue.code, issue.source, issue.stack
        )

    def lacks(self, name: str) -> str:
        """That the target has an operator that this TensorRT is known to lack; "" where that is not so."""
        if not self._mismatch or name in self.choice.served:
            return ""
        target = targets.target_named(self.options.target)
        here = targets.target_judging(self.choice.package, self.choice.version)
        if here is None or targets.serves(here, name) is not False or not targets.serves(target, name):
            return ""
        return f"{self.product} lacks it; the target {target.title} has it, and was not asked"

    def _mark_memory(self, build: TrtBuild, path: Path) -> TrtBuild:
        """A build that failed for lack of memory, with the limit in its reason. One that needs more than the limit and
        failed in another way counts as one too: TensorRT may go on with a null pointer, or wait for a thread that never
        started."""
        limit, reason = self.worker.limit_mb, build.reason
        issue = type(build.errors[0]) if build.errors else Issue
        if limit is None or build.accepted or (build.status == "refused" and build.stage != "build"):
            return build
        if build.status in ("refused", "crash", "timeout"):
            need = tensorrt.need_mb(path)
            if need <= limit:
                return build
            issue, reason = Ending, f"probably out of memory: it needs about {need} MiB: {reason}"
        elif build.status != "memory":
            return build
        error = issue(build.stage, "error", self.worker.starved(one_line(reason, WIDEST)))
        return replace(build, status="memory", errors=(error, *build.errors[1:]))

    def halved(self) -> Builder | None:
        """The same with half the memory; None where that is not limited."""
        limit = self.worker.limit_mb
        if limit is None:
            return None
        half = limit // 2
        worker = Worker(memory_mb=half, variables=variables_of(self.options))
        return replace(self, options=replace(self.options, memory_mb=half), worker=worker)

    def plain(self) -> Builder:
        """The same in a process with the user's own environment, for an engine that the user will load. To be
        closed."""
        return replace(self, worker=Worker(memory_mb=self.options.memory_mb), apart=True)

    def close(self) -> None:
        """End the sandbox, unless it is shared."""
        if self.apart or self.options.memory_mb is not None:
            self.worker.close()

    @property
    def who(self) -> str:
        """The product, and the target where that is another one."""
        target = targets.target_named(self.options.target or None)
        if not self.options.target or target.includes(self.choice.package, self.choice.version):
            return self.product
        return f"{self.product}, which is not the target {target.title},"

    @property
    def _mismatch(self) -> str:
        if not self.options.target:
            return ""
        target = targets.target_named(self.options.target)
        return targets.mismatch(target, self.choice.package, self.choice.version)

    def notes(self) -> tuple[str, ...]:
        """Notes on the TensorRT that judged."""
        cache = self.options.timing_cache if self.choice.package == "tensorrt-rtx" else ""
        unused = f"TensorRT-RTX keeps no timing cache: {cache} is neither read nor written" if cache else ""
        return tuple(filter(None, (self._mismatch, self.choice.note, unused)))


def try_profiles(tries: Tries, attempt: Callable[[Profiles], T], build_of: Callable[[T], TrtBuild]) -> T:
    """The first attempt that is accepted, or refused for another reason than the profile's sizes; else the first."""
    made: list[T] = []
    for profiles in tries:
        made.append(attempt(profiles))
        build = build_of(made[-1])
        if build.accepted or not messages.means("profile", build.error_texts):
            break
    return made[-1] if build_of(made[-1]).accepted else made[0]


@functools.lru_cache(maxsize=4)
def _has_fp4(path: str, _: int) -> bool:
    """Whether a model file has FP4, which compute capabilities before 10.0 lack."""
    try:
        proto = loading.open_model(Path(path)).proto
    except OnnxfixError:
        return False
    kind = TensorProto.FLOAT4E2M1
    made = (
        one.i
        for node in walk.model_nodes(proto)
        for one in node.attribute
        if one.name in ("to", "output_dtype")
    )
    given = (info.type.tensor_type.elem_type for info in proto.graph.input)
    return kind in {*made, *given, *(tensor.data_type for tensor in walk.model_tensors(proto))}


def builder(options: TrtOptions) -> Builder | Missing:
    """The builder for these options on this machine, or why there is none.

    Raises:
        UsageError: the package or the compute capability does not exist.
    """
    absent = trt_package.not_installed(options.package)
    if absent is not None:
        return absent
    for path in options.plugins:
        if not os.path.isfile(path):
            raise UsageError(f"--plugins {path}: there is no such file")
        if os.pathsep in path:
            raise UsageError(f"--plugins {path}: {os.pathsep!r} separates paths; name a link to the library")
        confinement.name(path)
    if options.compute_capability:
        trt_package.normal_capability(options.compute_capability)
    process = process_options(options)
    choice = _choice(options.package, options.compute_capability, process, os.getpid(), memory_limit_mb())
    if isinstance(choice, str):
        raise UsageError(choice)
    if isinstance(choice, Missing):
        return choice
    if options.memory_mb is None:
        return Builder(choice, options, shared_builder(options))
    return Builder(choice, options, Worker(memory_mb=options.memory_mb, variables=variables_of(options)))


def check(options: TrtOptions, known: Signature) -> None:
    """Find mistakes in the options before any work is done.

    Raises:
        UsageError: a file cannot be written, or the shapes do not fit the model.
    """
    trt_files.check_files(options)
    given_profiles(options, known)


def variables_of(options: TrtOptions) -> dict[str, str]:
    """The environment of the processes that build and execute engines: without TF32 unless the options allow it, and
    with the user's plugins."""
    named = {PLUGINS: os.pathsep.join(options.plugins)} if options.plugins else {}
    return named if options.tf32 else {**trt_package.TF32_OFF, **named}


def process_options(options: TrtOptions) -> TrtOptions:
    """Those of the options that a process is started with."""
    return TrtOptions(tf32=options.tf32, plugins=options.plugins)


def shared_builder(options: TrtOptions) -> Worker:
    """The shared child process for TensorRT's parser and builder."""
    return shared(f"tensorrt {process_options(options)}", variables_of(options))


@functools.cache
def _choice(
    package: str, capability: str | None, process: TrtOptions, number: int, limit: int | None
) -> Choice | Missing | str:
    """The package to use; a string is the user's mistake. Chosen once per process and memory limit, since it loads
    NVIDIA's libraries."""
    worker = shared_builder(process)
    outcome = worker.call(
        f"{__name__}:choose", timeout=_CHOOSING, package=package, compute_capability=capability
    )
    found: Choice | Missing | str = outcome.value
    if not outcome.ok:
        cause = ENDED[tensorrt.ended_in_memory(outcome).status]
        lead = "" if cause == "memory" else "TensorRT cannot be loaded: "
        found = Missing(f"{lead}{outcome.message}", cause)
    if isinstance(found, Missing) and found.cause == "memory":
        worker.close()
        reason = worker.starved(f"out of memory while loading TensorRT: {found.reason}")
        return Missing(reason, "memory")
    return found


@functools.cache
def choose(package: trt_package.Package, compute_capability: str | None) -> Choice | Missing | str:
    """``trt.package.choose`` for the sandbox, which returns no exceptions: its UsageError is the string. Once per
    process: on a GPU, TensorRT-RTX builds and loads a small engine."""
    try:
        found = trt_package.choose(package, compute_capability)
        if isinstance(found, Missing) or not plugin_libraries():
            return found
        module = trt_package.load(found.package)
        logger_of(module)
        return replace(found, served=SERVED[module.__name__])
    except UsageError as error:
        return str(error)


def save_engine(
    model: Path, options: TrtOptions, known: TrtBuild, check: Callable[[], None], most: int = PLAIN
) -> str:
    """Build the model file once more, as in ``known``, and write the engine to ``options.save_engine``.

    This is a separate build, since the check also builds candidates that are never written, and the checks build and
    run without TF32, by a variable in both processes that the user's process does not have. ``check`` raises where the
    model is no longer the verified one. ``most`` is the most permissive mode of a new file, since an engine contains
    the model's weights. Returns the path.

    Raises:
        OnnxfixError: TensorRT does not build it this time, or the file cannot be written.
    """
    destination = folders.destination(Path(options.save_engine))
    found = builder(options)
    if isinstance(found, Missing):
        raise OnnxfixError(f"{destination}: no engine was written: {found.reason}")
    with closing(found.plain()) as plain, TemporaryDirectory(prefix="onnxfix-") as folder:
        engine = Path(folder) / "model.engine"
        done = plain.build(model, known.profiles or None, save_engine=str(engine))
        if not done.accepted:
            raise OnnxfixError(f"{destination}: no engine was written: {done.reason}")
        check()
        with temporary_beside(destination, most=most) as file:
            saving.copy_file(engine, file)
            atomic.install([file])
    return options.save_engine
