"""``onnxfix reduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli import completion
from onnxfix.cli import options as opt
from onnxfix.cli.guard import collect_garbage, guarded
from onnxfix.cli.reports import publish
from onnxfix.cli.values import trt_options


# Long because: typer reads the options of a command from the parameters of its function.
def reduce(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file that fails.")],
    check: Annotated[
        str,
        typer.Option(
            "--check",
            metavar="CHECK",
            autocompletion=completion.failures,
            help="What fails: trt-build, trt-network, trt-gpu, ort-cuda, ort-cpu, or a command with {} for the model's "
            "path and {inputs} for that of its inputs, whose exit code is not 0.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            callback=opt.refuse_dash,
            help="Folder to write (default: MODEL.reduced).",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="OTHER", help="A second model that computes something else (check ort-cpu)."
        ),
    ] = None,
    match: Annotated[
        str,
        typer.Option(
            "--match",
            metavar="REGEX",
            help="Regular expression that the command's output must contain.",
            show_default=False,
        ),
    ] = "",
    inputs: opt.Inputs = None,
    input_shapes: opt.InputShapes = None,
    seed: opt.Seed = 0,
    timeout: Annotated[
        int, typer.Option("--timeout", metavar="SECONDS", help="Time limit of one check in seconds.", min=1)
    ] = 300,
    time_limit: Annotated[
        int | None,
        typer.Option("--time-limit", metavar="SECONDS", help="Time limit of the search in seconds.", min=1),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an interrupted run left in the folder.")
    ] = False,
    trt_package: opt.TrtPackage = opt.Package.auto,
    compute_capability: opt.Capability = None,
    memory_limit: opt.MemoryLimit = None,
    structure_limit: opt.StructureLimit = None,
    format: opt.OwnFormatOption = opt.OwnFormat.text,
) -> None:
    """Find the smallest part of a model that still fails for the same reason, as a folder for a bug report."""
    with guarded(format, structure_limit):
        from onnxfix.interrupts import exit_code, finish  # lazy: start-up
        from onnxfix.pipeline.reducing import ReduceOptions, reduce  # lazy: start-up
        from onnxfix.report.render.documents import render_result  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up
        from onnxfix.report.render.progress import Steps  # lazy: start-up
        from onnxfix.report.render.reduction import reduction_lines  # lazy: start-up

        options = ReduceOptions(
            check=check,
            against=against,
            match=match,
            inputs=inputs,
            input_shapes=tuple(input_shapes or ()),
            seed=seed,
            timeout=timeout,
            time_limit=time_limit,
            resume=resume,
            trt=trt_options(trt_package, compute_capability),
            memory_mb=memory_limit,
        )
        collect_garbage()
        with Steps(1) as steps:
            found = reduce(model, output, options, steps.of(str(model)))
        if found.interrupted:
            finish()
        publish(
            format,
            (),
            lambda kind: render_result(kind, found),
            lambda: print_lines(reduction_lines(found)),
        )
        raise typer.Exit(exit_code() if found.interrupted else found.exit_code)
