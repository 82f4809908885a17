"""``onnxfix doctor``."""

from __future__ import annotations

import typer

from onnxfix.cli.guard import guarded
from onnxfix.cli.options import PlainFormat, PlainFormatOption
from onnxfix.report.render.stream import output as standard_output


def doctor(format: PlainFormatOption = PlainFormat.text) -> None:
    """Show which checks this machine can run, why others cannot run, and how to enable them."""
    with guarded(format):
        from onnxfix.examination import examine  # lazy: start-up
        from onnxfix.report.render.doctor import examination_json, show_examination  # lazy: start-up

        found = examine()
        if format is PlainFormat.json:
            standard_output().write(examination_json(found) + "\n")
        else:
            show_examination(found)
        raise typer.Exit(found.exit_code)
