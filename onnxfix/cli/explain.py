"""``onnxfix explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfix.cli import completion
from onnxfix.cli.guard import guarded


def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="RULE", help="A rule's code or name.", autocompletion=completion.rules, show_default=False
        ),
    ],
) -> None:
    """Print a rule's page: what it finds, why that matters, how it is fixed, the evidence."""
    with guarded():
        from onnxfix.registry import registry  # lazy: start-up
        from onnxfix.report.render.rules import print_rule  # lazy: start-up

        print_rule(registry().get(code))
