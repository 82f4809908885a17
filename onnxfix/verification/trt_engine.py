"""The engine file that the user asked for, built from the model that was proven."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from onnxfix.backends.trt_types import TrtBuild, TrtOptions
from onnxfix.errors import OnnxfixError
from onnxfix.graph import regular, wire
from onnxfix.verification.trt_build import builder


def save_engine(model: Path, options: TrtOptions, known: TrtBuild, check: Callable[[], None]) -> str:
    """Build the model file once more, as in ``known``, and write the engine to ``options.save_engine``.

    A build of its own: the rung's builds are of candidates too, of which most are never written. ``check`` raises where
    the model is not any more what was proven. Returns the path.

    Raises:
        OnnxfixError: TensorRT does not build it this time, or the file cannot be written.
    """
    destination = regular.destination(Path(options.save_engine))
    found = builder(options)
    if isinstance(found, str):
        raise OnnxfixError(f"{destination}: no engine was written: {found}")
    with closing(found), wire.temporary_beside(destination) as temporary:
        done = found.build(model, known.profiles or None, save_engine=str(temporary.absolute()))
        if not done.accepted:
            raise OnnxfixError(f"{destination}: no engine was written: {done.reason}")
        check()
        wire.replace(temporary, destination)
    return str(Path(options.save_engine))
