"""Running TensorRT on one model, outside of the ladder: for ``check``, ``lift`` and ``layers``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.nvidia import Missing
from onnxfix.options import Verification
from onnxfix.sandbox import shared
from onnxfix.trt.layer_records import LayerTable
from onnxfix.trt.reading import Reading
from onnxfix.trt.records import TrtBuild, TrtOptions
from onnxfix.trt.tactics import Tactics
from onnxfix.verification.feeds.profiles import chosen_profiles
from onnxfix.verification.feeds.signature import signature
from onnxfix.verification.ladder import Limits, bound_sizes, given_feeds, half_type
from onnxfix.verification.readback import network
from onnxfix.verification.request import Request
from onnxfix.verification.rungs import builder as trt_builder
from onnxfix.verification.rungs import builds
from onnxfix.verification.rungs.builder import Builder
from onnxfix.verification.rungs.builds import Builds


def require_tensorrt(options: TrtOptions) -> Builder:
    """TensorRT, which the user requires. The caller closes it.

    Raises:
        UsageError: TensorRT cannot run here, with what to do; or the package or compute capability does not exist.
    """
    found = trt_builder.builder(options)
    if isinstance(found, Missing):
        raise UsageError(found.reason)
    return found


def build_model(builder: Builder, path: Path, model: ModelProto, verification: Verification) -> TrtBuild:
    """Build the model file, whose content is ``model``, with TensorRT. Without profiles of the user's, they are for the
    inputs or input shapes of ``verification``.

    Raises:
        UsageError: the options, the inputs or their shapes do not fit the model.
        OnnxfixError: a file cannot be written.
    """
    request = _request(builder, path, model, verification)
    trt_builder.check(builder.options, request.known)
    profiles, _ = chosen_profiles(builder.options, request.known, request.shapes, request.given)
    return builder.build(path, profiles)


def read_network(builder: Builder, path: Path, model: ModelProto, verification: Verification) -> Reading:
    """How TensorRT imports the model file, whose content is ``model``. Executes the model and what was imported, on the
    inputs of ``verification``.

    Raises:
        UsageError: the inputs or their shapes do not fit the model.
    """
    return network.reading(_request(builder, path, model, verification), builder)


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
    trt_builder.check(builder.options, request.known)
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
    """As many engines of the model file as the builder's options say, compared; see ``rungs.builds``.

    Raises:
        UsageError: the options do not fit the model.
    """
    request = _request(builder, path, model, verification)
    trt_builder.check(builder.options, request.known)
    return builds.compare_builds(request, builder, folder, builder.options.builds, say)


def _request(builder: Builder, path: Path, model: ModelProto, verification: Verification) -> Request:
    """The request of a rung about one model."""
    limits, known = Limits(), signature(model)
    return Request(
        original=path.absolute(),
        fixed=path.absolute(),
        known=known,
        worker=shared(),
        exact=False,
        seed=verification.seed,
        noise={},
        shapes=bound_sizes(known, verification.input_shapes),
        given=given_feeds(known, verification.inputs),
        coarse=half_type(model),
        step=limits.step,
        total=limits.total,
        trt=builder.options,
    )
