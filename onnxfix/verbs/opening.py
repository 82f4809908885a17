"""Models and inputs as a run reads them, and the files that it writes. Only copies for backends are written here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

from onnx import ModelProto

from onnxfix.errors import ModelError, UsageError
from onnxfix.files import apart, folders, loading, saving, tensors
from onnxfix.files.atomic import Temporary, temporary_beside
from onnxfix.options import Output, RunOptions

Source: TypeAlias = "str | os.PathLike[str] | ModelProto | bytes"


def output_file(path: Path) -> Path:
    """The file to write, links followed.

    Raises:
        UsageError: it cannot be written.
    """
    if "\0" in str(path):
        raise UsageError(f"{str(path)!r}: cannot be written: its name has a zero byte")
    try:
        folders.status(path)
        if path.is_dir():
            raise UsageError(f"{path}: is a directory; name the output file")
        real = folders.destination(path)
        if not real.parent.is_dir():
            raise UsageError(f"{real.parent}: no such directory for the output")
    except OSError as error:  # a name that is too long
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    return real


def destination_of(loaded: loading.Loaded, output: Output) -> Path | None:
    """The file that the result goes to; None for none.

    Raises:
        UsageError: it may not go there.
    """
    if output.in_place and output.path is not None:
        raise UsageError("choose one of in_place and output (--in-place, --output)")
    # The output will need other files beside it, which cannot be found through a link to it.
    needs_data = loaded.oversize or bool(loaded.external)
    if output.in_place:
        source = loaded.path
        if source is None:
            raise UsageError("in_place (--in-place) needs a model that was read from a file")
        if source.is_symlink() and needs_data:
            raise UsageError(
                f"{source}: is a symbolic link to a model with external data, or one of more than 2 GB, which "
                "gets some; name the file itself"
            )
        apart.replaceable(source, apart.data_of(loaded))
        return source.resolve()  # a link stays a link; the file that it names is replaced
    if output.path is None:
        return None
    path = Path(output.path)
    real = output_file(path)
    if loaded.path is not None and real.exists() and os.path.samefile(real, loaded.path):
        raise UsageError(f"{path}: is the input itself; --in-place (in_place=True) replaces it")
    if output.share_data and loaded.external and not apart.keeps_data_near(loaded, real):
        raise UsageError(
            f"{path}: --share-data needs an output in the model's folder, {loaded.base_dir}, where its data "
            "files are; without it, they are copied"
        )
    if needs_data and not tensors.is_location(f"{real.name}.data"):
        raise UsageError(f"{path}: onnx reads no data file {real.name}.data; name another output")
    if needs_data and real is not path:
        raise UsageError(
            f"{path}: is a symbolic link, and the model has external data, or is of more than 2 GB and gets "
            "some; name the file itself"
        )
    return real


def refuse_conflicts(
    models: Sequence[loading.Loaded], options: RunOptions, destination: Path | None = None
) -> None:
    """Refuse files to be written that would replace each other, or anything that the run reads.

    Raises:
        UsageError: one would.
    """
    known = [file for loaded in models for file in apart.files_of(loaded)]
    known += [apart.File(what, Path(path)) for what, path in options.files]
    inputs = options.verification.inputs
    known += apart.inputs_of(inputs if isinstance(inputs, (str, os.PathLike)) else None)
    written: list[apart.File] = []
    if options.trt is not None:
        from onnxfix.tensorrt import files  # lazy: start-up

        written = files.files(options.trt)
    if destination is not None:
        written.append(apart.File("the output", destination))
        if any(one.external for one in models) and not options.output.share_data:
            written.append(apart.File("the output's data", Path(f"{destination}.data")))
    apart.separate(written, known)


def refuse_unreadable(path: Path) -> None:
    """Refuse a path that is not UTF-8 (Python has it with lone surrogates): onnx, ONNX Runtime and TensorRT take none.

    Raises:
        ModelError: it is not.
    """
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise ModelError(
            f"{path}: its path is not UTF-8, and neither ONNX Runtime nor TensorRT opens such a file; rename it"
        ) from None


def name_of(loaded: loading.Loaded) -> str:
    """A model as reports name it."""
    return str(loaded.path) if loaded.path is not None else "<model>"


def on_disk(loaded: loading.Loaded, stack: ExitStack, made: list[Temporary] | None = None) -> Path:
    """A path at which backends can read the model: its own, or a temporary file for one that came from memory.

    No backend reads a file of more than 2 GB: it gets a copy with its weights beside it. ``made`` receives the files
    that were made in the model's folder, where other users may reach them.

    Raises:
        ModelError: no backend takes its path.
        OnnxfixError: the temporary file cannot be written.
    """
    if loaded.path is not None:
        refuse_unreadable(loaded.path)
    if loaded.path is not None and not loaded.oversize:
        return loaded.path
    if loaded.path is not None and loaded.beside:  # external data must be found from the copy, too
        beside = [stack.enter_context(temporary_beside(loaded.path)) for _ in range(2)]
        saving.save(loaded.proto, *beside)
        if made is not None:
            made += beside
        return beside[0].path
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
    path = folder / "model.onnx"
    if loaded.oversize:
        saving.save(loaded.proto, path, folder / "model.onnx.data")
    else:
        loaded.copy_to(path)
    return path
