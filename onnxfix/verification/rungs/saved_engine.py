"""The engine file that the user asked for, built from the model that was proven."""

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

    A build of its own: the rung's builds are of candidates too, of which most are never written. ``check`` raises where
    the model is not any more what was proven; ``most`` is the mode that a new file may have at most, since an engine
    holds the model's weights. Returns the path.

    The child that builds writes to a private folder: what it leaves there is its own.

    Raises:
        OnnxfixError: TensorRT does not build it this time, or the file cannot be written.
    """
    destination = regular.destination(Path(options.save_engine))
    found = builder(options)
    if isinstance(found, Missing):
        raise OnnxfixError(f"{destination}: no engine was written: {found.reason}")
    with ExitStack() as stack:
        # The rungs build and run without TF32, which takes a variable in both processes; this engine is for the user's.
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
