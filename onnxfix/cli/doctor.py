"""``onnxfix doctor``."""

from __future__ import annotations

import typer

from onnxfix.cli.guard import guarded
from onnxfix.cli.options import PlainFormat, PlainFormatOption
from onnxfix.report.render.stream import as_json
from onnxfix.report.render.stream import output as standard_output


def doctor(format: PlainFormatOption = PlainFormat.text) -> None:
    """Show which checks this machine can run, why others cannot run, and how to enable them."""
    with guarded(format):
        from onnxfix.examination import examine  # lazy: start-up
        from onnxfix.report.render.doctor import examination_lines  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up

        found = examine()
        if format is PlainFormat.json:
            standard_output().write(as_json(found.to_json()) + "\n")
        else:
            print_lines(examination_lines(found))
        raise typer.Exit(found.exit_code)
