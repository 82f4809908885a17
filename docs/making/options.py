"""The options by subject, for docs/options.md: what each one does, which commands have it, and where to read more."""

from __future__ import annotations

from collections.abc import Iterator

from making.commands import argument_usage, describe_option, option_names
from making.tables import cell
from onnxfix.cli.commands import COMMANDS
from onnxfix.config.table import GROUPS, Option

_HEAD = """\
# Options by subject

`onnxfix COMMAND --help` has the options of one command. Results go to stdout, progress and errors to stderr.
"""
_OF_ONE = "Options of single commands"
_AFTER = {
    "Several models": "[Fleets](fleets.md) has the details: globs, memory, what is done again, several machines, "
    "object stores.",
    "Settings": "[Configuration](configuration.md) describes what such a file can say.",
    "Report": "[Reports](reports.md) describes each kind, and [reading the output](output.md) the text.",
}
"""What stands below the options of a group."""
_READ = {
    "around": "[which finding](diff.md#around-a-node-or-a-finding)",
    "baseline": "[known findings](configuration.md#known-findings)",
    "diff": "[what would change](diff.md)",
    "effort": "[what checks may cost](proof.md#effort)",
    "fix_dim": "[static models](specialize.md)",
    "graphsurgeon": "[your own scripts](tools.md)",
    "inputs": "[inputs of your own](inputs.md#inputs-of-your-own)",
    "inputs_help": "[which sizes and values the model accepts](inputs.md)",
    "memory_limit": "[large models](inputs.md#large-models)",
    "numeric_fixes": "[fixes that are not exact](proof.md#what-a-fix-may-change)",
    "partition": "[the parts for ONNX Runtime](tensorrt.md#parts-for-onnx-runtime)",
    "place": "[which finding](diff.md#around-a-node-or-a-finding)",
    "plugins": "[plugins](tensorrt.md#plugins)",
    "rtol": "[tolerance](configuration.md#tolerance)",
    "rungs": "[the checks](proof.md)",
    "share_data": "[weights outside the model](inputs.md#weights-outside-the-model)",
    "simplify": "[onnxsim](tools.md)",
    "statistics": "[counts by rule](reports.md#counts-by-rule)",
    "timeout": "[time](proof.md#time)",
}
"""Where to read more about an option."""
_EXIT_CODES = """\

## Exit codes

| exit code | meaning |
|---|---|
| 0 | nothing left at or above `--fail-on`; `diagnose`: both agree, or differ by rounding; \
`precision`: within the budget |
| 1 | findings remain, or a fix was withdrawn; `diagnose`: they differ; `precision`: the budget is missed |
| 2 | usage error, unreadable model, internal error |
| 3 | verification failed, or no check could run the model (the report says where it stops and which inputs to give); \
nothing was written; `diagnose`: it could not be found out |
| 130 | interrupted by Ctrl-C (143: by SIGTERM, 129: as the terminal was closed); no partly written file is left |

With several models the exit code is the worst of all.
"""


def options_page() -> str:
    """The page."""
    lines = [_HEAD, "| command | what it does |", "|---|---|"]
    for name, command in COMMANDS.items():
        words = " ".join(["onnxfix", name, *map(argument_usage, command.arguments)])
        lines.append(f"| `{words}` | {cell(command.help.partition(chr(10))[0])} |")
    for group in (*GROUPS, ""):
        lines += ["", f"## {group or _OF_ONE}", "", "| option | commands | meaning |", "|---|---|---|"]
        lines += _rows(group)
        lines += ["", _AFTER[group]] if group in _AFTER else []
    return "\n".join(lines) + "\n" + _EXIT_CODES


def _rows(group: str) -> Iterator[str]:
    """The options of a group, in the order of the table. One that says other things in other commands has several."""
    commands: dict[Option, list[str]] = {}
    order = {option.name: number for number, option in enumerate(GROUPS.get(group, ()))}
    for name, command in COMMANDS.items():
        for option in command.options:
            if option.group == group:
                commands.setdefault(option, []).append(f"`{name}`")
    for option in sorted(commands, key=lambda one: order.get(one.name, -1)):
        more = f" See {_READ[option.name]}." if option.name in _READ else ""
        meaning = f"{cell(describe_option(option))}{more}"
        yield f"| {option_names(option)} | {', '.join(commands[option])} | {meaning} |"
