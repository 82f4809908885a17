"""``onnxfix rules``."""

from __future__ import annotations

from onnxfix.cli.guard import guarded, warn
from onnxfix.cli.options import ListFormatOption, OwnFormat, Select
from onnxfix.cli.values import listed
from onnxfix.report.render.stream import output as standard_output


def rules(select: Select = None, format: ListFormatOption = OwnFormat.text) -> None:
    """List the rules: code, name, severity, safety of the fix, and what they find.

    Below them are the rule packs that are installed, if there are others than the built-in one.
    """
    with guarded(format):
        from onnxfix.packs import installed  # lazy: start-up
        from onnxfix.registry import registry  # lazy: start-up
        from onnxfix.report.render.doctor import pack_lines  # lazy: start-up
        from onnxfix.report.render.lines import print_lines  # lazy: start-up
        from onnxfix.report.render.rules import rules_json, rules_lines, rules_markdown  # lazy: start-up

        found = registry()
        chosen = found.matching(listed(select))
        warn(found.warnings)
        if format is OwnFormat.json:
            standard_output().write(rules_json(chosen) + "\n")
        elif format is OwnFormat.markdown:
            from onnxfix.report.catalogue import facts_of  # lazy: start-up, seldom used

            standard_output().write(rules_markdown(chosen, [facts_of(rule) for rule in chosen]))
        else:
            print_lines(rules_lines(chosen))
            print_lines(pack_lines(installed(origins=True)))
