"""``onnxfix diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli.guard import collect_garbage, guarded
from onnxfix.cli.options import PlainFormat, PlainFormatOption, Quiet, StructureLimit, Verbose
from onnxfix.report.render.stream import output as standard_output


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="An ONNX file.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The one to compare.")],
    structure_limit: StructureLimit = None,
    format: PlainFormatOption = PlainFormat.text,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show which nodes, constants, inputs and outputs differ between two models, and the rule behind each change."""
    with guarded(format, structure_limit):
        from onnxfix.difference.compare import diff  # lazy: start-up
        from onnxfix.report.render.difference import difference_json, difference_lines  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up

        collect_garbage()
        found = diff(first, second)
        if format is PlainFormat.json:
            standard_output().write(difference_json(found) + "\n")
        else:
            print_lines(difference_lines(found, quiet=quiet, verbose=verbose))
        raise typer.Exit(found.exit_code)
