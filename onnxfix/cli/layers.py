"""``onnxfix layers``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli import options as opt
from onnxfix.cli.guard import collect_garbage, guarded, refuse_missing
from onnxfix.cli.reports import OWN, destinations, publish, refuse_unknown_kinds
from onnxfix.cli.values import profile_of, trt_options


# Long because: typer reads the options of a command from the parameters of its function.
def layers(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    builds: Annotated[
        int,
        typer.Option(
            "--builds",
            metavar="N",
            min=1,
            help="Build this many engines, compare them, and keep the best one.",
        ),
    ] = 1,
    save_engine: Annotated[
        Path | None,
        typer.Option(
            "--save-engine",
            metavar="FILE",
            callback=opt.refuse_dash,
            help="Write the engine, or the best one, to this file.",
        ),
    ] = None,
    save_tactics: Annotated[
        Path | None,
        typer.Option(
            "--save-tactics",
            metavar="FILE",
            callback=opt.refuse_dash,
            help="Write the tactics that TensorRT chose to this file.",
        ),
    ] = None,
    load_tactics: Annotated[
        Path | None,
        typer.Option(
            "--load-tactics", metavar="FILE", help="Build with the tactics of this file, which may be edited."
        ),
    ] = None,
    inputs: opt.Inputs = None,
    input_shapes: opt.InputShapes = None,
    seed: opt.Seed = 0,
    trt_package: opt.TrtPackage = opt.Package.auto,
    compute_capability: opt.Capability = None,
    min_shapes: opt.MinShapes = None,
    opt_shapes: opt.OptShapes = None,
    max_shapes: opt.MaxShapes = None,
    tf32: opt.Tf32 = False,
    plugins: opt.Plugins = None,
    timing_cache: opt.TimingCache = None,
    memory_limit: opt.MemoryLimit = None,
    structure_limit: opt.StructureLimit = None,
    format: opt.OwnFormatOption = opt.OwnFormat.text,
    report: opt.OwnReportFiles = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Show what TensorRT made of each node: its layers, what it is fused with, precision, reformats and tactics."""
    with guarded(format, structure_limit):
        from onnxfix.cli.conflicts import refuse_conflicts  # lazy: start-up, it loads onnx
        from onnxfix.fleet.work import Task  # lazy: start-up
        from onnxfix.options import RunOptions, Verification  # lazy: start-up
        from onnxfix.pipeline.layering import layers  # lazy: start-up
        from onnxfix.report.render.documents import render_result  # lazy: start-up
        from onnxfix.report.render.layers import layers_lines  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up
        from onnxfix.report.render.progress import Steps  # lazy: start-up

        profile = profile_of(min_shapes, opt_shapes, max_shapes)
        trt = trt_options(
            trt_package,
            compute_capability,
            profile,
            tf32=tf32,
            save_engine=save_engine,
            timing_cache=timing_cache,
            plugins=plugins,
            builds=builds,
            save_tactics=save_tactics,
            load_tactics=load_tactics,
        )
        shapes = tuple(input_shapes or ())
        options = RunOptions(
            verification=Verification(inputs=inputs, input_shapes=shapes, seed=seed),
            trt=trt,
            memory_mb=memory_limit,
        )
        reports = destinations(report)
        refuse_conflicts([Task(0, str(model))], options, reports)
        refuse_unknown_kinds(reports, OWN)
        refuse_missing(trt)
        collect_garbage()
        with Steps(1) as steps:
            found = layers(model, options, steps.of(str(model)))
        well = publish(
            format,
            reports,
            lambda kind: render_result(kind, found),
            lambda: print_lines(layers_lines(found, quiet=quiet, verbose=verbose)),
        )
        raise typer.Exit(found.exit_code if well else 2)
