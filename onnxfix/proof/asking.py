"""Running TensorRT on one model, outside of a proof: for ``check``, ``apply``, ``lift`` and ``layers``.

Of several engines, the best is kept. TensorRT times tactics when it builds, so that two builds of one model may choose
others, and then differ in their outputs and latency. Each engine is built by a builder of its own, without a timing
cache. With a GPU the engines run on the same inputs and are compared with the ONNX model; without one, their layers and
their bytes are compared.

These engines are built and executed in processes with the user's own environment, since the one that is kept is for the
user to load. TF32 may be on there, so an engine counts as wrong only beyond what TF32 explains.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.profiles import bound_profile, chosen_profiles, given_profiles
from onnxfix.inputs.feeds.signature import signature
from onnxfix.options import Verification
from onnxfix.place import Place
from onnxfix.proof.checks import builder as trt_builder
from onnxfix.proof.checks import probe, rest
from onnxfix.proof.checks.builder import Builder, Tries, try_profiles
from onnxfix.proof.checks.gpu import find_inputs, measure_latency
from onnxfix.proof.checks.judge import Terms, judge
from onnxfix.proof.checks.sessions import Sessions
from onnxfix.proof.checks.trials import outside, profiles
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.readback import network
from onnxfix.proof.request import Request, Trial, read_feeds
from onnxfix.proof.verdict import FeedResult
from onnxfix.proof.verify import Limits
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Worker, shared
from onnxfix.tensorrt import build as tensorrt
from onnxfix.tensorrt import partition
from onnxfix.tensorrt.files import Tactics
from onnxfix.tensorrt.layers import differing
from onnxfix.tensorrt.reading import LayerTable, Reading
from onnxfix.tensorrt.records import Partition, TrtBuild, TrtOptions
from onnxfix.tensorrt.timing import Timing


def require_tensorrt(options: TrtOptions) -> Builder:
    """TensorRT, which the user requires. The caller closes it.

    Raises:
        UsageError: TensorRT cannot run here, with what to do; or the package or compute capability does not exist.
    """
    found = trt_builder.builder(options)
    if isinstance(found, Missing):
        raise UsageError(found.reason)
    return found


def cut(path: Path, options: TrtOptions) -> Partition:
    """How ONNX Runtime's provider of the installed TensorRT would cut the model file, as the parser foretells it.

    Raises:
        UsageError: as ``require_tensorrt``.
    """
    with closing(require_tensorrt(options)) as builder:
        choice, read = builder.choice, f"{partition.__name__}:read"
        how = {"path": str(path), "package": choice.package, "compute_capability": choice.capability}
        outcome = builder.worker.call(read, timeout=options.timeout, **how)
    if outcome.ok and isinstance(outcome.value, Partition):
        return outcome.value
    reason = tensorrt.describe_end(outcome, "the parser")
    return Partition(package=choice.package, version=choice.version, reason=reason)


def judge_model(
    builder: Builder,
    path: Path,
    model: ModelProto,
    verification: Verification,
    say: Callable[[str], None],
    *,
    reads: bool,
) -> tuple[TrtBuild, Reading | None]:
    """TensorRT's build of the model file, whose content is ``model``, or of what it can judge of it; and where it
    ``reads`` a model, how it imports that, for which the model and what was imported are executed. Without profiles of
    the user's, they are for the inputs or input shapes of ``verification``.

    Raises:
        UsageError: the options, the inputs or their shapes do not fit the model.
        OnnxfixError: a file cannot be written.
    """
    request = _request(builder, path, model, verification)
    build = _build(builder, request)
    imported = build.accepted or build.stage in ("profile", "build")
    with TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        left = rest.make(request, Path(folder)) if build.target_only else ""
        if isinstance(left, str):
            more = f"; {left}" if left else ""
            build = replace(build, errors=tuple(replace(one, text=one.text + more) for one in build.errors))
        elif built := left.built(_build(builder, left.of(request))):
            build, request = built, request if imported else left.of(request)
        if not reads or not (imported or build.accepted or build.stage == "build"):
            return build, None
        say("reading TensorRT's network")
        return build, network.read_original(request, builder).reading


def _build(builder: Builder, request: Request) -> TrtBuild:
    profiles, _ = chosen_profiles(request.trt, request.known, request.shapes, request.given)
    return builder.build(request.original, profiles)


def read_layers(
    builder: Builder,
    path: Path,
    model: ModelProto,
    verification: Verification,
    *,
    save_engine: str = "",
    given: Tactics | None = None,
) -> tuple[LayerTable, Tactics | None]:
    """What became of each node of the model file, whose content is ``model``, in an engine; see
    ``trt.layers.read``. ``verification`` has the inputs or input shapes that the engine is for. Tactics are recorded
    where the builder's options name a file for them.

    Raises:
        UsageError: the options do not fit the model, or this TensorRT keeps no tactics.
        OnnxfixError: a file cannot be written.
    """
    request = _request(builder, path, model, verification)
    chosen, _ = chosen_profiles(builder.options, request.known, request.shapes, request.given)
    edit = bool(builder.options.save_tactics)
    return builder.layers(path, chosen, save_engine=save_engine, edit=edit, given=given)


def compare_builds(
    builder: Builder,
    path: Path,
    model: ModelProto,
    verification: Verification,
    folder: Path,
    say: Callable[[str], None],
) -> Builds:
    """As many engines of the model file as the builder's options say, compared; see ``compare_engines``.

    Raises:
        UsageError: the options do not fit the model.
    """
    request = _request(builder, path, model, verification)
    return compare_engines(request, builder, folder, builder.options.builds, say)


def _request(builder: Builder, path: Path, model: ModelProto, verification: Verification) -> Request:
    """The request of a check about one model."""
    limits, known = Limits(), signature(model)
    trt_builder.check(builder.options, known)
    return Request(
        original=path.absolute(),
        fixed=path.absolute(),
        known=known,
        worker=shared(),
        exact=False,
        seed=verification.seed,
        shapes=plan.bind_sizes(known, verification.input_shapes),
        given=read_feeds(known, verification.inputs),
        coarse=half_type(model),
        step=limits.step,
        total=limits.total,
        trt=builder.options,
    )


#: "right": its outputs agree with the ONNX model's. "wrong": they do not. "failed": it does not load or run. "": it was
#: not executed, or there was nothing to compare it with.
Outcome = Literal["", "right", "wrong", "failed"]

_ALIKE = 1.1
"""Engines whose errors differ by less than this factor are equally good: their latency decides."""
_COARSE = "float16"
"""TF32 keeps as many digits as half precision."""


@dataclass(frozen=True)
class BuiltEngine:
    """One of the engines. ``number`` counts builds from 1; ``table`` is what became of the nodes. ``digest`` is the
    SHA-256 of the engine, "" where none was built. ``differs`` are the nodes for which it has other layers or tactics
    than the first engine.

    ``error`` is the largest error of an output as a share of its largest magnitude, over all inputs (None: not
    executed, or nothing to compare with); ``reason`` says what is wrong, or why it failed. ``timing`` is its latency.
    """

    number: int
    table: LayerTable
    digest: str = ""
    differs: tuple[Place, ...] = ()
    outcome: Outcome = ""
    error: float | None = None
    reason: str = ""
    timing: Timing | None = None


@dataclass(frozen=True)
class Builds:
    """The engines that were built. ``kept`` is the number of the best one, 0 for none. ``unexecuted`` is why no engine
    was executed ("" where they were), ``oracle`` what they were compared with, and ``trials`` on how many inputs."""

    engines: tuple[BuiltEngine, ...]
    kept: int = 0
    unexecuted: str = ""
    oracle: str = ""
    trials: int = 0

    @property
    def best(self) -> BuiltEngine | None:
        """The engine that was kept."""
        return next((one for one in self.engines if one.number == self.kept), None)

    @property
    def alike(self) -> bool:
        """Whether all engines have the same layers and tactics."""
        return not any(one.differs for one in self.engines)


def compare_engines(
    request: Request, found: Builder, folder: Path, count: int, say: Callable[[str], None] = lambda text: None
) -> Builds:
    """Build ``count`` engines of the original, in ``folder`` (``path_of``), and compare them.

    ``found`` builds in the user's environment (``Builder.plain``).

    Raises:
        UsageError: the options do not fit the model.
    """
    unexecuted, oracle = probe.probe(found).reason, ""
    trials: list[Trial] = []
    given = given_profiles(request.trt, request.known)
    if not unexecuted:
        say("finding inputs")
        try:
            original = find_inputs(request, [given[0] if given else None])
            trials, oracle = original.trials, "" if original.silent else original.oracle
            unexecuted = "" if trials else "no inputs were found that the model accepts"
        except UsageError as error:
            unexecuted = str(error)
    bound = bound_profile(request.known, request.shapes)
    tries = profiles(trials, given, bound) if trials else [given or ((bound,) if bound is not None else None)]
    engines: list[BuiltEngine] = []
    for number in range(1, count + 1):
        say(f"building engine {number} of {count}")
        engine = _build_engine(request, found, path_of(folder, number), number, tries)
        first = next((one for one in engines if one.digest), None)
        if engine.digest and first is not None:
            engine = replace(engine, differs=differing(first.table, engine.table))
        elif engine.digest:
            tries = [engine.table.build.profiles or None]
        engines.append(engine)
    if not unexecuted:
        say("comparing the engines")
        engines = _execute(request, found, folder, engines, trials, oracle)
    return Builds(tuple(engines), _choose_best(engines), unexecuted, oracle, len(trials))


def path_of(folder: Path, number: int) -> Path:
    """Where an engine is."""
    return folder / f"{number}.engine"


def _build_engine(request: Request, found: Builder, path: Path, number: int, tries: Tries) -> BuiltEngine:
    """The engine with the first profile that TensorRT accepts, or refuses for another reason than its sizes."""
    table = try_profiles(
        tries,
        lambda chosen: found.layers(request.original, chosen, save_engine=str(path))[0],
        lambda table: table.build,
    )
    if not table.build.accepted:
        return BuiltEngine(number, table, outcome="failed", reason=table.build.reason)
    with path.open("rb") as file:
        return BuiltEngine(number, table, hashlib.file_digest(file, "sha256").hexdigest())


def _execute(
    request: Request,
    found: Builder,
    folder: Path,
    engines: Sequence[BuiltEngine],
    trials: Sequence[Trial],
    oracle: str,
) -> list[BuiltEngine]:
    """The engines with their errors, and the latency of those that run."""
    judged = []
    # Without TF32_OFF: the user's process has no such variable.
    worker, options = Worker(memory_mb=found.options.memory_mb), {"package": found.choice.package}
    loading, running = found.options.timeout, request.step
    with Sessions(worker, probe.RUN, options, loading=loading, running=running, close=True) as sessions:
        for engine in engines:
            path, build = path_of(folder, engine.number), engine.table.build
            if engine.digest:
                engine = _judge(request, sessions, path, engine, trials, oracle)
            if engine.outcome != "failed":
                latency = measure_latency(
                    sessions, found, request.original, {"fixed": path}, {"fixed": build}, trials
                )
                engine = replace(engine, timing=latency.fixed, reason=engine.reason or latency.reason)
            judged.append(engine)
    return judged


def _judge(
    request: Request,
    sessions: Sessions,
    path: Path,
    engine: BuiltEngine,
    trials: Sequence[Trial],
    oracle: str,
) -> BuiltEngine:
    """The engine with the largest error over all inputs that its profile covers."""
    name = str(engine.number)
    reason = sessions.load(name, str(path))
    if reason:
        return replace(engine, outcome="failed", reason=reason)
    terms = Terms(
        names=[one.name for one in request.known.model.graph.output],
        excluded=frozenset(request.known.drawn or ()),
        coarse=_COARSE,
        oracle=oracle or "ort-cpu",
        engine="the engine",
    )
    for trial in trials:
        if outside(engine.table.build.profiles, trial.values):
            continue
        ran = sessions.run(name, trial.values)
        if ran.error:
            return replace(engine, outcome="failed", error=None, reason=f"{ran.error} [{trial.label}]")
        judged = judge(terms, trial.label, trial.feed, trial.expected, None, ran)
        if judged.finding == "nothing":
            continue
        error = max(engine.error or 0.0, _largest_error(judged.results))
        if judged.finding == "agree":
            engine = replace(engine, outcome=engine.outcome or "right", error=error)
        else:
            engine = replace(engine, outcome="wrong", error=error, reason=engine.reason or judged.reason)
    return engine


def _largest_error(results: Sequence[FeedResult]) -> float:
    """The largest error of an output as a share of its largest magnitude; infinite where more than values differ."""
    metrics = [one for result in results for one in result.metrics]
    return max(
        (one.relative if one.kind in ("", "values") and not one.special else math.inf for one in metrics),
        default=0.0,
    )


def _choose_best(engines: Sequence[BuiltEngine]) -> int:
    """The number of the best engine: right before wrong, then the smallest error, then the least latency, then the
    first; 0 where none was built and none runs."""
    running = [one for one in engines if one.digest and one.outcome != "failed"]
    running = [one for one in running if one.outcome != "wrong"] or running
    if not running:
        return 0
    errors = [one.error for one in running if one.error is not None]
    if errors:
        most = min(errors) * _ALIKE
        running = [one for one in running if one.error is not None and one.error <= most]
    return min(running, key=lambda one: (one.timing.median_ms if one.timing else math.inf, one.number)).number
