"""``layers``: what TensorRT made of each node of a model, with the files and options of a run."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from onnxfix.allowance import memory_limit
from onnxfix.errors import UsageError
from onnxfix.files import atomic, copying, loading, regular
from onnxfix.files.temporary import temporary_beside
from onnxfix.options import RunOptions
from onnxfix.pipeline.job import Progress
from onnxfix.pipeline.opening import Source, name_of, on_disk, refuse_conflicts
from onnxfix.report.layers import LayerReport
from onnxfix.trt import files
from onnxfix.trt.records import TrtOptions
from onnxfix.trt.tactics import LOAD, SAVE, Tactics, load_file
from onnxfix.verification.asking import compare_builds, read_layers, require_tensorrt
from onnxfix.verification.rungs.builder import Builder
from onnxfix.verification.rungs.builds import Builds, path_of


def layers(source: Source, options: RunOptions, progress: Progress | None = None) -> LayerReport:
    """Build a model with TensorRT, and read what became of each node.

    ``options.trt`` says how many engines are built and compared, and which files are written; the inputs of
    ``options.verification`` are those for which engines are built, and with which several are compared.

    Raises:
        ModelError: the model cannot be read.
        UsageError: TensorRT is not available or keeps no tactics, or the options do not fit the model or each other.
        OnnxfixError: a file cannot be written.
    """
    began, say = time.perf_counter(), progress or (lambda text: None)
    trt = replace(options.trt or TrtOptions(), memory_mb=options.memory_mb)
    given = _checked(trt)
    say("reading")
    loaded = loading.load(source)
    refuse_conflicts([loaded], replace(options, trt=trt))
    with ExitStack() as stack:
        stack.enter_context(memory_limit(options.memory_mb))
        builder = stack.enter_context(closing(require_tensorrt(trt)))
        if trt.save_engine or trt.builds > 1:  # engines for the user's own process
            builder = stack.enter_context(closing(builder.plain()))
        path = on_disk(loaded, stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onnxfix-")))
        if trt.builds > 1:
            found = compare_builds(builder, path, loaded.proto, options.verification, folder, say)
            report, engine = _several(name_of(loaded), builder, found, folder)
        else:
            say("building")
            report, engine = _one(loaded, builder, path, options, folder, given)
        loaded.check()
        say("writing")
        report = _written(report, trt, engine, loaded.mode)
    return replace(report, seconds=time.perf_counter() - began)


def _checked(trt: TrtOptions) -> Tactics | None:
    """The tactics to use.

    Raises:
        UsageError: options exclude each other, or a file cannot be read or written.
    """
    tactics = [option for option, file in ((SAVE, trt.save_tactics), (LOAD, trt.load_tactics)) if file]
    if trt.builds > 1 and (tactics or trt.timing_cache):
        option = (*tactics, "--timing-cache")[0]
        raise UsageError(f"{option} has no effect with --builds: each engine chooses tactics of its own")
    if tactics and trt.timing_cache:
        raise UsageError(f"{tactics[0]} and --timing-cache exclude each other: a build has one timing cache")
    files.check_files(trt)
    return load_file(Path(trt.load_tactics)) if trt.load_tactics else None


def _one(
    loaded: loading.Loaded,
    builder: Builder,
    path: Path,
    options: RunOptions,
    folder: Path,
    given: Tactics | None,
) -> tuple[LayerReport, Path]:
    engine = folder / "model.engine"
    table, tactics = read_layers(
        builder,
        path,
        loaded.proto,
        options.verification,
        save_engine=str(engine) if builder.options.save_engine else "",
        given=given,
    )
    report = LayerReport(name_of(loaded), table, builder.product, tactics=tactics, notes=builder.notes())
    return report, engine


def _several(name: str, builder: Builder, found: Builds, folder: Path) -> tuple[LayerReport, Path]:
    best = found.best or found.engines[0]
    report = LayerReport(name, best.table, builder.product, found, notes=builder.notes())
    return report, path_of(folder, best.number)


def _written(report: LayerReport, trt: TrtOptions, engine: Path, most: int) -> LayerReport:
    """Write the engine and the tactics, where there are some and a file is named. ``most`` is the most permissive mode
    of a new file: an engine contains the model's weights.

    Raises:
        OnnxfixError: one cannot be written.
    """
    if not report.table.build.accepted:
        return report
    if trt.save_engine and (report.builds is None or report.builds.kept):
        destination = regular.destination(Path(trt.save_engine))
        with temporary_beside(destination, most=most) as file:
            copying.copy_file(engine, file)
            atomic.install([file])
        report = replace(report, engine=trt.save_engine)
    if trt.save_tactics and report.tactics is not None:
        atomic.put(regular.destination(Path(trt.save_tactics)), report.tactics.to_json().encode())
        report = replace(report, tactics_file=trt.save_tactics)
    return report
