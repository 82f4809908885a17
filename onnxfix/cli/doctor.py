"""``onnxfix doctor``. Nothing is imported here that loads onnx or numpy: they may be what is broken."""

from __future__ import annotations

import typer

from onnxfix.cli.given import Given
from onnxfix.report.render.doctor import examination_lines
from onnxfix.report.render.lines import print_lines
from onnxfix.report.render.stream import as_json, output
from onnxfix.verbs import examination


def doctor(given: Given) -> None:
    """Show which checks this machine can run."""
    result = examination.examine()
    if given.format == "json":
        output().write(as_json(result.to_json()) + "\n")
    else:
        print_lines(examination_lines(result))
    raise typer.Exit(result.exit_code)
