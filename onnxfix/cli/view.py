"""``onnxfix view``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxfix.cli import completion
from onnxfix.cli import options as opt
from onnxfix.cli.guard import collect_garbage, guarded
from onnxfix.report.render.stream import output as standard_output


# Long because: typer reads the options of a command from the parameters of its function.
def view(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", callback=opt.refuse_dash, help="File to write.")
    ],
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            metavar="RULE",
            help="Show a finding of this rule.",
            autocompletion=completion.rules,
            show_default=False,
        ),
    ] = "",
    place: Annotated[
        str,
        typer.Option(
            "--place",
            metavar="NAME",
            help="Which finding: the name of its node or value, also with * (default: the first).",
            show_default=False,
        ),
    ] = "",
    node: Annotated[
        str,
        typer.Option(
            "--node",
            metavar="NAME",
            help="Show a node instead: its name, or that of a value it computes, also with *.",
            show_default=False,
        ),
    ] = "",
    around: Annotated[
        int,
        typer.Option("--around", metavar="N", min=0, max=1000, help="How many nodes away the others may be."),
    ] = 2,
    target: opt.TargetName = None,
    structure_limit: opt.StructureLimit = None,
    format: opt.PlainFormatOption = opt.PlainFormat.text,
) -> None:
    """Write the few nodes around a finding, or around a node, as a model that opens in Netron."""
    with guarded(format, structure_limit):
        from onnxfix.pipeline.viewing import view  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up
        from onnxfix.report.render.view import view_json, view_lines  # lazy: start-up

        collect_garbage()
        found = view(model, output, rule=rule, node=node, place=place, distance=around, target=target)
        if format is opt.PlainFormat.json:
            standard_output().write(view_json(found) + "\n")
        else:
            print_lines(view_lines(found))
