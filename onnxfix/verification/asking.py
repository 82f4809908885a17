"""Running TensorRT on one model, outside of the ladder: for ``check`` and ``lift``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.nvidia import Missing
from onnxfix.sandbox import shared
from onnxfix.trt.reading import Reading
from onnxfix.trt.records import TrtBuild, TrtOptions
from onnxfix.verification.feeds.profiles import given_profiles
from onnxfix.verification.feeds.signature import signature
from onnxfix.verification.ladder import Limits, half_type
from onnxfix.verification.readback import network
from onnxfix.verification.request import Request
from onnxfix.verification.rungs import builder as trt_builder
from onnxfix.verification.rungs.builder import Builder


def require_tensorrt(options: TrtOptions) -> Builder:
    """TensorRT, which the user requires. The caller closes it.

    Raises:
        UsageError: TensorRT cannot run here, with what to do; or the package or compute capability does not exist.
    """
    found = trt_builder.builder(options)
    if isinstance(found, Missing):
        raise UsageError(found.reason)
    return found


def build_model(builder: Builder, path: Path, model: ModelProto) -> TrtBuild:
    """Build the model file with TensorRT; ``model`` is its content.

    Raises:
        UsageError: the options do not fit the model.
        OnnxfixError: a file cannot be written.
    """
    interface = signature(model)
    trt_builder.check(builder.options, interface)
    build = builder.build(path, given_profiles(builder.options, interface))
    # A child that died reports no version.
    return replace(build, version=build.version or builder.choice.version)


def read_network(builder: Builder, path: Path, model: ModelProto) -> Reading:
    """How TensorRT imports the model file, whose content is ``model``. Executes the model and what was imported."""
    limits = Limits()
    request = Request(
        original=path.absolute(),
        fixed=path.absolute(),
        known=signature(model),
        worker=shared(),
        exact=False,
        seed=0,
        noise={},
        shapes={},
        given=None,
        coarse=half_type(model),
        step=limits.step,
        total=limits.total,
        trt=builder.options,
    )
    return network.reading(request, builder)
