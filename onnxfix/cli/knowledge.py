"""``onnxfix explain``, ``rules`` and ``targets``: what onnxfix knows."""

from __future__ import annotations

import typer

from onnxfix.cli.given import Given, warn
from onnxfix.errors import UsageError
from onnxfix.report.catalogue import families, search
from onnxfix.report.render.doctor import pack_sections
from onnxfix.report.render.lines import line, print_lines
from onnxfix.report.render.rules import (
    difference_lines,
    family_lines,
    hits_lines,
    print_rule,
    rules_json,
    rules_lines,
    targets_lines,
)
from onnxfix.report.render.stream import output
from onnxfix.report.render.terminal import section_lines
from onnxfix.rewrite.packs import installed
from onnxfix.rewrite.registry import registry
from onnxfix.targets import target_named

_EXAMPLES = 2
"""Examples on a page without ``--verbose``."""


def explain(given: Given) -> None:
    """Print the pages of rules and families, or the search results; exit code 1 if a search finds nothing."""
    if bool(given.codes) == (given.search is not None):
        raise UsageError("name a rule or a family, or give --search TEXT; see 'onnxfix explain --help'")
    if given.search is None:
        _print_pages(given.codes, _EXAMPLES if not given.verbose else None)
        return
    known = registry()
    warn(known.warnings)
    hits = search(given.search, known.rules)
    print_lines(hits_lines(given.search, hits))
    if not hits:
        raise typer.Exit(1)


def _print_pages(codes: list[str], examples: int | None) -> None:
    """Print the pages of rules and families, in their order. Nothing is printed where one does not exist."""
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
            print_rule(page, examples, f"`onnxfix explain {page.code} -v`")


def rules(given: Given) -> None:
    """List the rules."""
    known = registry()
    chosen = known.matching(given.select)
    warn(known.warnings)
    if given.format == "json":
        output().write(rules_json(chosen) + "\n")
    else:
        print_lines(rules_lines(chosen))
        print_lines(section_lines(pack_sections(installed(origins=True)), verbose=True))


def targets(given: Given) -> None:
    """List the releases, or what differs between two targets."""
    known = [target_named(name) for name in given.targets or ()]
    if len(known) not in (0, 2):
        raise UsageError("give two targets to compare, or none to list them")
    print_lines(difference_lines(*known) if known else targets_lines())
