"""``onnxfix diagnose``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli import options as opt
from onnxfix.cli.guard import collect_garbage, guarded, refuse_missing
from onnxfix.cli.reports import OWN, destinations, publish, refuse_unknown_kinds
from onnxfix.cli.values import trt_options
from onnxfix.interrupts import exit_code, finish
from onnxfix.report.render.stream import complain


class Other(enum.StrEnum):
    """What one model is compared with."""

    trt_gpu = "trt-gpu"
    trt_network = "trt-network"
    ort_cuda = "ort-cuda"
    ort_cpu = "ort-cpu"
    fp16 = "fp16"
    bf16 = "bf16"


# Long because: typer reads the options of a command from the parameters of its function.
def diagnose(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model that is right.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="A second model that should compute the same.")
    ] = None,
    against: Annotated[
        Other | None,
        typer.Option(
            "--against",
            metavar="KIND",
            help="Compare MODEL with TensorRT's engine or network of it, with ONNX Runtime's CUDA provider or "
            "optimizations, or with half precision.",
        ),
    ] = None,
    inputs: opt.Inputs = None,
    input_shapes: opt.InputShapes = None,
    seed: opt.Seed = 0,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", help="Seconds after which to report what was found.", min=1
        ),
    ] = None,
    keep_fp32: Annotated[
        Path | None,
        typer.Option(
            "--keep-fp32",
            metavar="FILE",
            help="File to write: the nodes that must stay in float32, as AutoCast and precision --keep take them.",
        ),
    ] = None,
    trt_package: opt.TrtPackage = opt.Package.auto,
    plugins: opt.Plugins = None,
    memory_limit: opt.MemoryLimit = None,
    structure_limit: opt.StructureLimit = None,
    format: opt.OwnFormatOption = opt.OwnFormat.text,
    report: opt.DrawnReportFiles = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Find the node where two ways to compute a model begin to differ, why, and what to do."""
    with guarded(format, structure_limit):
        from onnxfix.cli.conflicts import refuse_conflicts  # lazy: start-up, it loads onnx
        from onnxfix.files import atomic  # lazy: start-up
        from onnxfix.files.apart import File  # lazy: start-up
        from onnxfix.fleet.work import Task  # lazy: start-up
        from onnxfix.lowering.records import keep_text  # lazy: start-up
        from onnxfix.options import RunOptions, Verification  # lazy: start-up
        from onnxfix.pipeline.diagnosing import diagnose  # lazy: start-up
        from onnxfix.report.render.diagnosis import diagnosis_lines  # lazy: start-up
        from onnxfix.report.render.documents import Kind, render_result  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up
        from onnxfix.report.render.progress import Steps  # lazy: start-up

        trt = trt_options(trt_package, plugins=plugins)
        if against in (Other.trt_gpu, Other.trt_network):
            refuse_missing(trt)
        collect_garbage()
        options = RunOptions(
            verification=Verification(inputs=inputs, input_shapes=tuple(input_shapes or ()), seed=seed),
            trt=trt,
            memory_mb=memory_limit,
        )
        models = [one for one in (model, other) if one is not None]
        tasks = [Task(number, str(one), options=options) for number, one in enumerate(models)]
        kept = [File("--keep-fp32", keep_fp32)] if keep_fp32 is not None else []
        reports = destinations(report)
        refuse_conflicts(tasks, options, reports, more=kept)
        refuse_unknown_kinds(reports, (*OWN, Kind.html))
        with Steps(1) as steps:
            found = diagnose(
                model,
                other,
                against.value if against is not None else None,
                options,
                timeout=timeout,
                progress=steps.of(str(model)),
            )
        if found.interrupted:
            finish()
            complain("interrupted; this is what was found until then")
        if keep_fp32 is not None:
            atomic.put(keep_fp32, keep_text(found.keep_fp32).encode())
        well = publish(
            format,
            reports,
            lambda kind: render_result(kind, found),
            lambda: print_lines(diagnosis_lines(found, quiet=quiet, verbose=verbose)),
        )
        code = exit_code() if found.interrupted else found.exit_code
        raise typer.Exit(code if well else 2)
