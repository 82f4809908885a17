"""``onnxfix explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxfix.cli import completion
from onnxfix.cli.guard import guarded, warn
from onnxfix.errors import UsageError

_EXAMPLES = 2
"""Examples on a page without ``--verbose``."""


def explain(
    codes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RULE",
            help="Codes or names of rules, or families such as PRC.",
            autocompletion=completion.rules,
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            "-s",
            metavar="TEXT",
            help="List the rules about this: words, or a message that TensorRT printed.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help=f"Show all examples, not only {_EXAMPLES}.")
    ] = False,
) -> None:
    """Explain rules: what they find, why that matters, how it is fixed, the evidence.

    Also lists a family, or the rules about a message that TensorRT printed.
    """
    with guarded():
        if bool(codes) == (search is not None):
            raise UsageError("name a rule or a family, or give --search TEXT; see 'onnxfix explain --help'")
        if search is not None:
            _found(search)
        else:
            _pages(codes or [], verbose=verbose)


def _found(query: str) -> None:
    """Print what a search finds; exit code 1 where that is nothing."""
    from onnxfix.registry import registry  # lazy: start-up
    from onnxfix.report.lookup import search  # lazy: start-up
    from onnxfix.report.render.lines import print_lines  # lazy: start-up
    from onnxfix.report.render.rules import hits_lines  # lazy: start-up

    known = registry()
    warn(known.warnings)
    hits = search(query, known.rules)
    print_lines(hits_lines(query, hits))
    if not hits:
        raise typer.Exit(1)


def _pages(codes: list[str], *, verbose: bool) -> None:
    """Print the pages of rules and families, in their order. Nothing is printed where one does not exist."""
    from onnxfix.registry import registry  # lazy: start-up
    from onnxfix.report.lookup import families  # lazy: start-up
    from onnxfix.report.render.lines import line, print_lines  # lazy: start-up
    from onnxfix.report.render.rules import family_lines, print_rule  # lazy: start-up

    known = registry()
    by_name = {family.name: family for family in families(known.rules)}
    names = [name.strip() for code in codes for name in code.split(",") if name.strip()]
    listed = {*by_name, *(name.upper() for rule in known.rules for name in (rule.code, rule.name))}
    unknown = next((name for name in names if name.upper() not in listed), None)
    if unknown is not None and not known.near(unknown):
        raise UsageError(
            f"no rule {unknown!r}; 'onnxfix explain --search TEXT' finds rules by words or by a message"
        )
    pages = [by_name.get(name.upper()) or known.get(name) for name in names]
    for number, page in enumerate(pages):
        if number:
            print_lines([line("")])
        if isinstance(page, tuple):
            print_lines(family_lines(page))
        else:
            print_rule(page, None if verbose else _EXAMPLES, f"`onnxfix explain {page.code} -v`")
