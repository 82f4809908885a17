"""Running TensorRT on one model, outside of a proof: for ``check``, ``apply``, ``lift`` and ``layers``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.profiles import chosen_profiles
from onnxfix.inputs.feeds.signature import signature
from onnxfix.options import Verification
from onnxfix.proof.checks import builder as trt_builder
from onnxfix.proof.checks import builds, rest
from onnxfix.proof.checks.builder import Builder
from onnxfix.proof.checks.builds import Builds
from onnxfix.proof.compare.twin import half_type
from onnxfix.proof.readback import network
from onnxfix.proof.request import Request, read_feeds
from onnxfix.proof.verify import Limits
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import shared
from onnxfix.tensorrt import build as tensorrt
from onnxfix.tensorrt import partition
from onnxfix.tensorrt.layer_records import LayerTable
from onnxfix.tensorrt.reading import Reading
from onnxfix.tensorrt.records import Partition, TrtBuild, TrtOptions
from onnxfix.tensorrt.tactics import Tactics


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
    """As many engines of the model file as the builder's options say, compared; see ``checks.builds``.

    Raises:
        UsageError: the options do not fit the model.
    """
    request = _request(builder, path, model, verification)
    return builds.compare_builds(request, builder, folder, builder.options.builds, say)


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
