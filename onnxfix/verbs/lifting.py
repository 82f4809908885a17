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
"""Maximum bytes of weights in the model file. More weights go to a separate file in its folder."""


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
    destination = output_file(Path(output))
    weights = _data_file(destination)
    written = [apart.File("the output", Path(output)), apart.File("the output's weights", weights)]
    apart.separate(written, list(apart.files_of(loaded)))
    if regular.status(weights) is not None:  # the replaced output may need it until the end
        raise UsageError(f"{weights}: is in the way of the weights; remove it, or name another output")
    with ExitStack() as stack:
        builder = stack.enter_context(closing(require_tensorrt(trt or TrtOptions())))
        model = on_disk(loaded, stack)
        mode = loaded.mode
        del loaded  # TensorRT reads the file itself: no need to have large weights in memory twice
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        say("reading TensorRT's network")
        lifted = reader.attempt(
            builder.worker,
            model,
            folder / "lifted.onnx",
            package=builder.choice.package,
            timeout=builder.options.timeout,
        )
        lifted = replace(lifted, model=name, version=lifted.version or builder.choice.version)
        if lifted.path:
            say("writing")
            _install(Path(lifted.path), destination, mode)
            lifted = replace(lifted, path=str(output))
    return lifted


def _data_file(destination: Path) -> Path:
    return destination.with_name(destination.name + ".data")


def _install(lifted: Path, destination: Path, mode: int) -> None:
    """Install the lifted model and its weights; the model last, so that it never names a missing file.
    ``mode`` is the most permissive mode of new files."""
    weights = _data_file(lifted)
    size = weights.stat().st_size if weights.exists() else 0
    model = onnx.load(lifted, load_external_data=size <= EMBEDDED)
    with ExitStack() as stack:
        files = []
        if size > EMBEDDED:
            data_file = _data_file(destination)
            for entry in (entry for tensor in model.graph.initializer for entry in tensor.external_data):
                if entry.key == "location":
                    entry.value = data_file.name
            files.append(stack.enter_context(temporary_beside(data_file, most=mode)))
            copying.copy_file(weights, files[0])
        files.append(stack.enter_context(temporary_beside(destination, most=mode)))
        copying.write(saving.serialize(model), files[-1])
        atomic.install(files)
