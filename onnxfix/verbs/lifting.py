"""``lift``: TensorRT's imported network, written as an ONNX model that can be opened and run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import onnx

from onnxfix.errors import UsageError
from onnxfix.files import apart, atomic, copying, loading, regular, saving
from onnxfix.files.atomic import temporary_beside
from onnxfix.proof.asking import require_tensorrt
from onnxfix.tensorrt import lift as reader
from onnxfix.tensorrt.lift import Lifted
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs.opening import Source, name_of, on_disk, output_file

EMBEDDED = 1 << 30
"""Bytes of weights that are kept in the model file; more go to a file beside it."""


def lift(
    source: Source,
    output: str | os.PathLike[str],
    *,
    trt: TrtOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> Lifted:
    """Write the network that TensorRT imports as an ONNX model; see :func:`onnxfix.lift`.

    Raises:
        ModelError, UsageError, OnnxfixError: as there.
    """
    say = progress or (lambda text: None)
    say("reading")
    loaded = loading.load(source)
    name = name_of(loaded)
    destination = _destination(loaded, Path(output))
    with ExitStack() as stack:
        builder = stack.enter_context(closing(require_tensorrt(trt or TrtOptions())))
        model = on_disk(loaded, stack)
        most = loaded.mode
        del loaded  # TensorRT reads the file itself: no need to have large weights in memory twice
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        say("reading TensorRT's network")
        found = reader.attempt(
            builder.worker,
            model,
            folder / "lifted.onnx",
            package=builder.choice.package,
            timeout=builder.options.timeout,
        )
        found = replace(found, model=name, version=found.version or builder.choice.version)
        if found.path:
            say("writing")
            _install(Path(found.path), destination, most)
            found = replace(found, path=str(output))
    return found


def _destination(loaded: loading.Loaded, output: Path) -> Path:
    """The file to write, links followed.

    Raises:
        UsageError: it cannot be written, or is a file that is read.
    """
    real = output_file(output)
    weights = _beside(real)
    written = [apart.File("the output", output), apart.File("the output's weights", weights)]
    apart.separate(written, list(apart.files_of(loaded)))
    if regular.status(weights) is not None:  # the output that is replaced may need it until the end
        raise UsageError(f"{weights}: is in the way of the weights; remove it, or name another output")
    return real


def _beside(destination: Path) -> Path:
    return destination.with_name(destination.name + ".data")


def _install(lifted: Path, destination: Path, most: int) -> None:
    """Install the lifted model and its weights; the model last, so that it never names a missing file. ``most`` is the
    most permissive mode of new files."""
    weights = _beside(lifted)
    size = weights.stat().st_size if weights.exists() else 0
    model = onnx.load(lifted, load_external_data=size <= EMBEDDED)
    with ExitStack() as stack:
        files = []
        if size > EMBEDDED:
            beside = _beside(destination)
            for entry in (entry for tensor in model.graph.initializer for entry in tensor.external_data):
                if entry.key == "location":
                    entry.value = beside.name
            files.append(stack.enter_context(temporary_beside(beside, most=most)))
            copying.copy_file(weights, files[0])
        files.append(stack.enter_context(temporary_beside(destination, most=most)))
        copying.write(saving.serialize(model), files[-1])
        atomic.install(files)
