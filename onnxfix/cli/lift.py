"""``onnxfix lift``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli import options as opt
from onnxfix.cli.guard import collect_garbage, guarded, refuse_missing
from onnxfix.cli.values import trt_options
from onnxfix.report.render.stream import as_json
from onnxfix.report.render.stream import output as standard_output


def lift(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            callback=opt.refuse_dash,
            help="File to write (default: MODEL.lifted.onnx).",
        ),
    ] = None,
    trt_package: opt.TrtPackage = opt.Package.auto,
    structure_limit: opt.StructureLimit = None,
    format: opt.PlainFormatOption = opt.PlainFormat.text,
) -> None:
    """Write TensorRT's imported network as an ONNX model that can be opened and run."""
    with guarded(format, structure_limit):
        from onnxfix.pipeline.lifting import lift  # lazy: start-up
        from onnxfix.report.render.lift import lifted_data, lifted_lines  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up
        from onnxfix.report.render.progress import Steps  # lazy: start-up

        trt = trt_options(trt_package)
        refuse_missing(trt)
        collect_garbage()
        with Steps(1) as steps:
            target = output if output is not None else model.with_name(f"{model.stem}.lifted.onnx")
            found = lift(model, target, trt=trt, progress=steps.of(str(model)))
        if format is opt.PlainFormat.json:
            standard_output().write(as_json(lifted_data(found)) + "\n")
        else:
            print_lines(lifted_lines(found))
        raise typer.Exit(found.exit_code)
