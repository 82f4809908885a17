"""``layers``: what TensorRT made of each node of a model, with the files and options of a run; several builds are
compared. ``lift``: TensorRT's imported network, written as an ONNX model that can be opened and run."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from onnxfix.errors import UsageError
from onnxfix.files import apart, atomic, folders, loading, saving
from onnxfix.files.atomic import temporary_beside
from onnxfix.options import RunOptions
from onnxfix.proof.asking import Builds, compare_builds, path_of, read_layers, require_tensorrt
from onnxfix.runtime.allowance import memory_limit
from onnxfix.shown import Shown
from onnxfix.tensorrt import files
from onnxfix.tensorrt import lift as reader
from onnxfix.tensorrt.files import LOAD, SAVE, Tactics, load_file
from onnxfix.tensorrt.lift import Lifted
from onnxfix.tensorrt.reading import LayerTable
from onnxfix.tensorrt.records import TrtOptions
from onnxfix.verbs.job import Progress
from onnxfix.verbs.opening import Source, name_of, on_disk, output_file, refuse_conflicts


@dataclass(frozen=True, repr=False)
class LayerReport(Shown):
    """``path`` is the model, ``table`` its nodes in the engine (the one that was kept), ``product`` the TensorRT that
    built it. ``builds`` are the engines that were compared (None: one was built). ``engine`` and ``tactics_file`` are
    the files that were written ("": none), and ``tactics`` what the second has, or what was loaded and used.
    """

    path: str
    table: LayerTable
    product: str
    builds: Builds | None = None
    engine: str = ""
    tactics: Tactics | None = None
    tactics_file: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: an engine was built. 1: TensorRT refuses the model, or the outputs of every engine are wrong. 3: it could
        not be found out."""
        build = self.table.build
        if not build.accepted:
            return 1 if build.status == "refused" else 3
        best = self.builds.best if self.builds is not None else None
        return 1 if self.builds is not None and (best is None or best.outcome == "wrong") else 0

    def _facts(self) -> dict[str, object]:
        build = self.table.build
        counts = {"nodes": len(self.table.nodes), "layers": len(self.table.layers)} if build.accepted else {}
        return {"path": self.path, "product": self.product, "status": build.status, **counts}


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
        destination = folders.destination(Path(trt.save_engine))
        with temporary_beside(destination, most=most) as file:
            saving.copy_file(engine, file)
            atomic.install([file])
        report = replace(report, engine=trt.save_engine)
    if trt.save_tactics and report.tactics is not None:
        atomic.put(folders.destination(Path(trt.save_tactics)), report.tactics.to_json().encode())
        report = replace(report, tactics_file=trt.save_tactics)
    return report


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
    if folders.status(weights) is not None:  # the replaced output may need it until the end
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
            saving.copy_file(weights, files[0])
        files.append(stack.enter_context(temporary_beside(destination, most=mode)))
        saving.write(saving.serialize(model), files[-1])
        atomic.install(files)
