"""``onnxfix precision``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli import options as opt
from onnxfix.cli.guard import collect_garbage, guarded
from onnxfix.cli.reports import OWN, destinations, publish, refuse_unknown_kinds
from onnxfix.cli.values import listed, trt_options
from onnxfix.errors import UsageError


class To(enum.StrEnum):
    """Half-precision types."""

    fp16 = "fp16"
    bf16 = "bf16"


class Interface(enum.StrEnum):
    """Types of the result's inputs and outputs."""

    keep = "keep"
    low = "low"


# Long because: typer reads the options of a command from the parameters of its function.
def precision(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A float32 ONNX file.")],
    to: Annotated[
        To, typer.Option("--to", metavar="TYPE", help="Type to compute in where the budget allows it.")
    ],
    max_error: Annotated[
        float,
        typer.Option(
            "--max-error",
            metavar="SHARE",
            help="Error budget: largest error of an output, as a share of its largest magnitude, such as 0.01.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            callback=opt.refuse_dash,
            help="File to write (default: none, report only).",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FILE",
            help="File of nodes that stay in float32: a name or a regular expression a line.",
        ),
    ] = None,
    io_types: Annotated[
        Interface,
        typer.Option(
            "--io-types", metavar="TYPES", help="Types of inputs and outputs: as they are, or the low type."
        ),
    ] = Interface.keep,
    inputs: opt.Inputs = None,
    input_shapes: opt.InputShapes = None,
    seed: opt.Seed = 0,
    rungs: opt.Rungs = None,
    target: opt.TargetName = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="Seconds to search where the error comes from.", min=1
        ),
    ] = 600,
    trt_package: opt.TrtPackage = opt.Package.auto,
    memory_limit: opt.MemoryLimit = None,
    structure_limit: opt.StructureLimit = None,
    format: opt.OwnFormatOption = opt.OwnFormat.text,
    report: opt.OwnReportFiles = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Convert a float32 model to mixed precision within an error budget: the Casts are the plan for TensorRT."""
    with guarded(format, structure_limit):
        from onnxfix.api import patterns_of  # lazy: start-up
        from onnxfix.files import apart  # lazy: start-up
        from onnxfix.lowering.lower import Wish  # lazy: start-up
        from onnxfix.options import Rules, RunOptions, Verification  # lazy: start-up
        from onnxfix.pipeline.lowering import lower  # lazy: start-up
        from onnxfix.report.render.documents import render_result  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up
        from onnxfix.report.render.precision import precision_lines  # lazy: start-up
        from onnxfix.report.render.progress import Steps  # lazy: start-up

        reports = destinations(report)
        written = [("--output", output), *(("--report", one.path) for one in reports)]
        read = [("the model", model), ("--keep", keep), ("--inputs", inputs)]
        apart.separate(
            [apart.File(what, path) for what, path in written if path is not None],
            [apart.File(what, path) for what, path in read if path is not None],
        )
        folder = next((one.path for one in reports if one.path.is_dir()), None)
        if folder is not None:
            raise UsageError(f"--report {folder}: is a directory")
        refuse_unknown_kinds(reports, OWN)
        wish = Wish(to.value, max_error, io_types.value, patterns_of(keep), seconds=timeout)
        options = RunOptions(
            rules=Rules(target=target),
            verification=Verification(
                inputs=inputs, input_shapes=tuple(input_shapes or ()), seed=seed, rungs=listed(rungs)
            ),
            trt=trt_options(trt_package),
            memory_mb=memory_limit,
        )
        collect_garbage()
        with Steps(1) as steps:
            found = lower(model, output, wish, options, steps.of(str(model)))
        well = publish(
            format,
            reports,
            lambda kind: render_result(kind, found),
            lambda: print_lines(precision_lines(found, quiet=quiet, verbose=verbose)),
        )
        raise typer.Exit(found.exit_code if well else 2)
