"""TensorRT's builder as this machine and the user's options allow it, with the sandbox that it runs in."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx import TensorProto

from onnxfix import confinement, targets, walk
from onnxfix.allowance import memory_limit_mb
from onnxfix.causes import ENDED
from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import loading
from onnxfix.nvidia import Missing
from onnxfix.sandbox import Posted, Worker, one_line, shared
from onnxfix.trt import build as tensorrt
from onnxfix.trt import files as trt_files
from onnxfix.trt import layers as trt_layers
from onnxfix.trt import messages, plugins, together
from onnxfix.trt import package as trt_package
from onnxfix.trt.layer_records import LayerTable
from onnxfix.trt.log import SERVED, logger_of
from onnxfix.trt.package import Choice
from onnxfix.trt.parse import ended_in_memory
from onnxfix.trt.records import Ending, Issue, Profile, TargetOnly, TrtBuild, TrtOptions
from onnxfix.trt.tactics import Tactics
from onnxfix.verification.feeds.profiles import given_profiles
from onnxfix.verification.feeds.signature import Signature
from onnxfix.verification.networks import engine_beside

_CHOOSING = 120.0  # seconds; NVIDIA's libraries are large and may come from a cold disk
_CORES = 4  # from which on two builds at once are faster than one after the other
WIDEST = 300
"""Characters of TensorRT's reason in a rung's one line."""


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
        profiles: Sequence[Profile] | None = None,
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
        request = self._request(path, profiles, save_engine, patience)
        return self._completed(tensorrt.attempt(**request, parse_only=parse_only), path)

    def post(
        self, path: Path, out: Path, profiles: Sequence[Profile] | None = None, *, follow: bool = False
    ) -> Posted:
        """Start to build the model file, with its network read back into ``out``; see ``trt.together.build``. Where a
        GPU may execute the engine, it is kept beside that file."""
        kept = str(engine_beside(out)) if self.choice.gpu is not None else ""
        request = self._request(path, profiles, kept, 1.0)
        return together.post(out=out, follow=follow, **request)

    def collect(self, posted: Posted, path: Path) -> together.Built | None:
        """Wait for what ``post`` started; None where nothing is known of the build.

        Raises:
            UsageError, OnnxfixError: as for ``build``.
        """
        outcome = self.worker.collect(posted)
        if outcome is None:
            return None
        found = together.result(outcome, self.choice.package, self.choice.capability)
        return (self._completed(found[0], path), found[1]) if found is not None else None

    def layers(
        self,
        path: Path,
        profiles: Sequence[Profile] | None = None,
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
        request = self._request(path, profiles, save_engine, 1.0)
        table, tactics = trt_layers.attempt(
            **request, inspect=self.choice.gpu is not None, edit=edit, given=given
        )
        return replace(table, build=self._completed(table.build, path)), tactics

    def _request(
        self, path: Path, profiles: Sequence[Profile] | None, save_engine: str, patience: float
    ) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "path": path,
            "package": self.choice.package,
            "compute_capability": self._capability(path),
            "profiles": profiles,
            "timeout": self.options.timeout * patience,
            "tf32": self.options.tf32,
            "save_engine": save_engine,
            "timing_cache": os.path.abspath(self.options.timing_cache) if self.options.timing_cache else "",
        }

    def _capability(self, path: Path) -> str:
        """What to build a model for: the newest capability where that may be chosen and the model has FP4."""
        newest = self.choice.newest
        return newest if newest and _has_fp4(str(path), path.stat().st_mtime_ns) else self.choice.capability

    def _completed(self, build: TrtBuild, path: Path) -> TrtBuild:
        # A child that died reported no version.
        build = replace(build, version=build.version or self.choice.version)
        if build.status == "refused":
            build = replace(build, errors=tuple(map(self._mark_target_only, build.errors)))
        return self._starved(build, path)

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
        if not self._mismatch() or name in self.choice.served:
            return ""
        target = targets.target_named(self.options.target)
        here = targets.target_judging(self.choice.package, self.choice.version)
        if here is None or targets.serves(here, name) is not False or not targets.serves(target, name):
            return ""
        return f"{self.product} lacks it; the target {target.title} has it, and was not asked"

    def _starved(self, build: TrtBuild, path: Path) -> TrtBuild:
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
        starved = issue(build.stage, "error", self.worker.starved(one_line(reason, WIDEST)))
        return replace(build, status="memory", errors=(starved, *build.errors[1:]))

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

    def beside(self) -> Builder | None:
        """The same in a second process, to build in parallel; None where memory or cores do not suffice."""
        if self.options.memory_mb is not None or (os.cpu_count() or 1) < _CORES:
            return None
        worker = shared_builder(self.options, " beside")
        worker.start()  # by this thread, with which the child is to end
        return replace(self, worker=worker)

    def close(self) -> None:
        """End the sandbox, unless it is shared."""
        if self.apart or self.options.memory_mb is not None:
            self.worker.close()

    @property
    def who(self) -> str:
        """The product, and the target where that is another one."""
        target = targets.target_named(self.options.target or None)
        return (
            f"{self.product}, which is not the target {target.title}," if self._mismatch() else self.product
        )

    def _mismatch(self) -> str:
        target = targets.target_named(self.options.target) if self.options.target else None
        return (
            targets.mismatch(target, self.choice.package, self.choice.version) if target is not None else ""
        )

    def notes(self) -> tuple[str, ...]:
        """Notes on the TensorRT that judged."""
        cache = ""
        if self.options.timing_cache and self.choice.package == "tensorrt-rtx":
            cache = (
                f"TensorRT-RTX keeps no timing cache: {self.options.timing_cache} is neither read nor written"
            )
        return tuple(note for note in (self._mismatch(), self.choice.note, cache) if note)


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
    trt_package.missing(options.package)  # which knows what packages there are
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
    variables = variables_of(options)
    worker = shared_builder(options)
    if options.memory_mb is not None:
        worker = Worker(memory_mb=options.memory_mb, variables=variables)
    found = _choice(
        options.package, options.compute_capability, process_options(options), os.getpid(), memory_limit_mb()
    )
    if isinstance(found, str):
        raise UsageError(found)
    if isinstance(found, Missing):
        return found
    return Builder(found, options, worker)


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
    named = {plugins.VARIABLE: os.pathsep.join(options.plugins)} if options.plugins else {}
    return named if options.tf32 else {**trt_package.TF32_OFF, **named}


def process_options(options: TrtOptions) -> TrtOptions:
    """Those of the options that a process is started with."""
    return TrtOptions(tf32=options.tf32, plugins=options.plugins)


def shared_builder(options: TrtOptions, which: str = "") -> Worker:
    """The shared child process for TensorRT's parser and builder; ``which`` names a second one."""
    return shared(f"tensorrt{which} {process_options(options)}", variables_of(options))


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
        cause = ENDED[ended_in_memory(outcome).status]
        lead = "" if cause == "memory" else "TensorRT cannot be loaded: "
        found = Missing(f"{lead}{outcome.message}", cause)
    if isinstance(found, Missing) and found.cause == "memory":
        worker.close()
        reason = worker.starved(f"out of memory while loading TensorRT: {found.reason}")
        return Missing(reason, "memory")
    return found


def choose(package: trt_package.Package, compute_capability: str | None) -> Choice | Missing | str:
    """``trt.package.choose`` for the sandbox, which returns no exceptions: its UsageError is the string."""
    try:
        found = trt_package.choose(package, compute_capability)
        if isinstance(found, Missing) or not plugins.named():
            return found
        module = trt_package.load(found.package)
        logger_of(module)
        return replace(found, served=SERVED[module.__name__])
    except UsageError as error:
        return str(error)
