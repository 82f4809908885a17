"""The engine file of ``--save-engine``, built from the verified model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from onnxfix.errors import OnnxfixError
from onnxfix.files import atomic, regular
from onnxfix.files.folders import Folder, writing
from onnxfix.files.temporary import PLAIN, Temporary
from onnxfix.nvidia import Missing
from onnxfix.trt.records import TrtBuild, TrtOptions
from onnxfix.verification.rungs.builder import builder


def save_engine(
    model: Path, options: TrtOptions, known: TrtBuild, check: Callable[[], None], most: int = PLAIN
) -> str:
    """Build the model file once more, as in ``known``, and write the engine to ``options.save_engine``.

    This is a separate build, since the rung also builds candidates that are never written. ``check`` raises where the
    model is no longer the verified one. ``most`` is the most permissive mode of a new file, since an engine contains
    the model's weights. The child that builds writes to a private folder. Returns the path.

    Raises:
        OnnxfixError: TensorRT does not build it this time, or the file cannot be written.
    """
    destination = regular.destination(Path(options.save_engine))
    found = builder(options)
    if isinstance(found, Missing):
        raise OnnxfixError(f"{destination}: no engine was written: {found.reason}")
    with ExitStack() as stack:
        # The rungs build and run without TF32, by a variable in both processes; the user's process does not have it.
        plain = stack.enter_context(closing(found.plain()))
        with writing(destination):
            home = stack.enter_context(Folder(destination.parent))
        folder = stack.enter_context(home.private(destination.name))
        place = folder.path / destination.name
        done = plain.build(model, known.profiles or None, save_engine=str(place.absolute()))
        if not done.accepted:
            raise OnnxfixError(f"{destination}: no engine was written: {done.reason}")
        check()
        with writing(destination):
            file = Temporary(folder, destination.name, home, destination.name, most=most, there=True)
        stack.callback(file.close)
        atomic.install([file])
    return str(Path(options.save_engine))
