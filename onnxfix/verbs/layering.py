"""``layers``: what TensorRT made of each node of a model, with the files and options of a run."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.files import atomic, copying, loading, regular
from onnxfix.files.atomic import temporary_beside
from onnxfix.options import RunOptions
from onnxfix.proof.asking import compare_builds, read_layers, require_tensorrt
from onnxfix.proof.checks.builds import path_of
from onnxfix.report.layers import LayerReport
from onnxfix.runtime.allowance import memory_limit
from onnxfix.tensorrt import files
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.tensorrt.tactics import LOAD, SAVE, load_file
from onnxfix.verbs.job import Progress
from onnxfix.verbs.opening import Source, name_of, on_disk, refuse_conflicts


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
    tactics_files = [option for option, file in ((SAVE, trt.save_tactics), (LOAD, trt.load_tactics)) if file]
    if trt.builds > 1 and (tactics_files or trt.timing_cache):
        option = (*tactics_files, "--timing-cache")[0]
        raise UsageError(f"{option} has no effect with --builds: each engine chooses tactics of its own")
    if tactics_files and trt.timing_cache:
        raise UsageError(
            f"{tactics_files[0]} and --timing-cache exclude each other: a build has one timing cache"
        )
    files.check_files(trt)
    given = load_file(Path(trt.load_tactics)) if trt.load_tactics else None
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
        builds, tactics = None, None
        if trt.builds > 1:
            builds = compare_builds(builder, path, loaded.proto, options.verification, folder, say)
            best = builds.best or builds.engines[0]
            table, engine = best.table, path_of(folder, best.number)
        else:
            say("building")
            engine = folder / "model.engine"
            saved = str(engine) if trt.save_engine else ""
            table, tactics = read_layers(
                builder, path, loaded.proto, options.verification, save_engine=saved, given=given
            )
        report = LayerReport(
            name_of(loaded), table, builder.product, builds, tactics=tactics, notes=builder.notes()
        )
        loaded.check()
        say("writing")
        report = _write(report, trt, engine, loaded.mode)
    return replace(report, seconds=time.perf_counter() - began)


def _write(report: LayerReport, trt: TrtOptions, engine: Path, most: int) -> LayerReport:
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
