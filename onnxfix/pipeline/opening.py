"""The second stage of a run: the model as it was read, and where its result goes. Nothing is written before this."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onnx import ModelProto

from onnxfix.allowance import structure_limit
from onnxfix.errors import ModelError, UsageError
from onnxfix.files import apart, loading, regular, sharing, tensors
from onnxfix.options import Output, RunOptions
from onnxfix.pipeline.plan import Plan
from onnxfix.trt import files

if TYPE_CHECKING:
    from onnxfix.pipeline.whole.steps import Step

Source: TypeAlias = "str | os.PathLike[str] | ModelProto | bytes"


@dataclass(frozen=True)
class Opened:
    """A model that was read, the whole-model ``steps`` that it goes through, and the file that its result goes to
    (None: nowhere)."""

    plan: Plan
    loaded: loading.Loaded
    steps: tuple[Step, ...]
    destination: Path | None


def opened(source: Source, plan: Plan) -> Opened:
    """Read the model of an ``apply``, and settle where its result goes.

    Raises:
        ModelError: the model cannot be read.
        UsageError: the result may not go there, or a file to be written is one that the run reads.
    """
    from onnxfix.pipeline.whole.steps import steps_of  # lazy: start-up, `check` has no steps

    options = plan.options
    plan.say("reading")
    steps = steps_of(options.fixes.simplify, [Path(script) for script in options.fixes.graphsurgeon])
    # Other tools know no stand-ins for weights: they get a model with its weights in memory.
    whole = bool(steps) and isinstance(source, (str, os.PathLike))
    with structure_limit(options.structure_mb):
        loaded = loading.load_whole(source) if whole else loading.load(source)  # type: ignore[arg-type]
    if changed := sharing.first_changed(loaded):
        raise ModelError(changed, loaded.path or "")
    destination = destination_of(loaded, options.output)
    refuse_conflicts([loaded], options, None if options.output.in_place else destination)
    return Opened(plan, loaded, steps, destination)


def name_of(loaded: loading.Loaded) -> str:
    """A model as reports name it."""
    return str(loaded.path) if loaded.path is not None else "<model>"


def destination_of(loaded: loading.Loaded, output: Output) -> Path | None:
    """The file that the result goes to; None for none.

    Raises:
        UsageError: it may not go there.
    """
    if output.in_place and output.path is not None:
        raise UsageError("choose one of in_place and output (--in-place, --output)")
    if output.in_place:
        return _source_of(loaded)
    return _file(loaded, Path(output.path), output) if output.path is not None else None


def _source_of(loaded: loading.Loaded) -> Path:
    """The model's own file, where it can be replaced."""
    if loaded.path is None:
        raise UsageError("in_place (--in-place) needs a model that was read from a file")
    if loaded.path.is_symlink() and _has_data_beside(loaded):
        raise UsageError(
            f"{loaded.path}: is a symbolic link to a model with external data, or one of more than 2 GB, which "
            "gets some; name the file itself"
        )
    apart.replaceable(loaded.path, apart.data_of(loaded))
    return loaded.path.resolve()  # a link stays a link; the file that it names is replaced


def _file(loaded: loading.Loaded, destination: Path, output: Output) -> Path:
    """An output file, links followed."""
    try:
        there = regular.status(destination) is not None
    except OSError as error:
        raise UsageError(f"{destination}: cannot be written: {error.strerror or error}") from None
    if loaded.path is not None and there and os.path.samefile(destination, loaded.path):
        raise UsageError(f"{destination}: is the input itself; --in-place (in_place=True) replaces it")
    if destination.is_dir():
        raise UsageError(f"{destination}: is a directory; name the output file")
    real = regular.destination(destination)
    if not real.parent.is_dir():
        raise UsageError(f"{real.parent}: no such directory for the output")
    if output.share_data and loaded.external and not apart.keeps_data_near(loaded, real):
        raise UsageError(
            f"{destination}: --share-data needs an output in the model's folder, {loaded.base_dir}, where its data "
            "files are; without it, they are copied"
        )
    if _has_data_beside(loaded) and not tensors.is_location(f"{real.name}.data"):
        raise UsageError(f"{destination}: onnx reads no data file {real.name}.data; name another output")
    if real is not destination and _has_data_beside(loaded):
        raise UsageError(
            f"{destination}: is a symbolic link, and the model has external data, or is of more than 2 GB and gets "
            "some; name the file itself"
        )
    return real


def _has_data_beside(loaded: loading.Loaded) -> bool:
    """Whether the output will need other files beside it, which cannot be found through a link to it."""
    return loaded.oversize or bool(loaded.external)


def refuse_conflicts(
    models: Sequence[loading.Loaded], options: RunOptions, destination: Path | None = None
) -> None:
    """Refuse files to be written that would replace each other, or anything that the run reads.

    Raises:
        UsageError: one would.
    """
    known = [file for loaded in models for file in apart.files_of(loaded)]
    known += _named("a script of this run", options.fixes.graphsurgeon)
    known += _named("a value of --fix-input", options.specialization.files)
    known += _named("a library of --plugins", options.trt.plugins if options.trt is not None else ())
    written = _named("the output", [destination] if destination is not None else ())
    if destination is not None and not options.output.share_data:
        written += _named(
            "the output's data", [f"{destination}.data"] if any(one.external for one in models) else ()
        )
    written += files.files(options.trt) if options.trt is not None else []
    inputs = options.verification.inputs
    given = inputs if isinstance(inputs, (str, os.PathLike)) else None
    apart.separate(written, [*known, *apart.inputs_of(given)])


def _named(what: str, paths: Iterable[str | os.PathLike[str]]) -> list[apart.File]:
    return [apart.File(what, Path(path)) for path in paths]
