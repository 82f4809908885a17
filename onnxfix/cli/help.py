"""The help of the program and of its commands (options in groups, examples), and what the parser of the command line
complains about, as the one line that every error is.

typer's own help in groups is rich's, whose import takes longer than everything else that ``--help`` does. This one is
plain text, bold and colored on a terminal, and names values (``FILE``) instead of Python types.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from onnxfix.cli.commands import COMMANDS, EXAMPLES
from onnxfix.cli.given import meant
from onnxfix.cli.reports import format_in, print_error
from onnxfix.config.table import GROUPS
from onnxfix.report.render.lines import styled
from onnxfix.report.render.stream import complain
from onnxfix.runtime.interrupts import INTERRUPTED

_Complaint: Any = typer.BadParameter.__mro__[2]
"""ClickException, of click or of the copy of click in typer."""


def run_guided(run: Callable[[], Any], standalone: bool, words: Sequence[str] = ()) -> Any:
    """The result of ``run``, which parses the command line ``words``. ``standalone``: end the process with the exit
    code, and print a complaint of the parser as one line, and as a document if the words ask for one."""
    if not standalone:
        return run()
    try:
        result = run()
    except _Complaint as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            complaint = describe(error)
            complain(complaint)
            print_error(format_in(words), complaint)
        result = error.exit_code
    except typer.Abort:  # Ctrl-C before a command began
        result = INTERRUPTED
    sys.exit(result if isinstance(result, int) else 0)


def describe(error: Any) -> str:
    """The line for a complaint: the option, what is wrong, and where the help is."""
    ctx = getattr(error, "ctx", None)
    kind = type(error).__name__
    param = getattr(error, "param", None)
    if kind == "NoSuchOption":
        text = f"{error.option_name}: no such option{meant(error.option_name, error.possibilities or ())}"
    elif kind == "BadOptionUsage":  # an option has no value, or must not have one
        flag, every = error.option_name, (one for command in COMMANDS.values() for one in command.options)
        value = next((one.value for one in every if flag in (one.flag, one.short)), "")
        text = f"{flag}: needs a value: {flag} {value}" if value else f"{flag}: takes no value"
    elif kind == "MissingParameter" and param is not None:
        text = f"{_name(param)} is missing"
    elif param is not None:
        text = f"{_name(param)}: {_lower(error.message)}"
    else:
        text = _lower(error.message)
    return f"{text}; see '{ctx.command_path} --help'" if ctx is not None else text


def _name(param: Any) -> str:
    """``--seed`` or ``MODEL``."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _lower(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[:1].lower() + text[1:]


WIDEST = 100
"""Most columns of the help."""
_NAMES = 28
"""Columns of the options' names; a longer one has a line of its own."""
_HEADING, _NAME, _VALUE = "1;32", "1;36", "36"
"""Styles of a terminal (SGR): bold green, bold cyan, cyan."""

Row = tuple[str, str, str]
"""A name, what its value is called, and a description."""


class HelpCommand(TyperCommand):
    """A command whose help this module formats."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; ``formatter`` collects it."""
        _prepare_styles(ctx)
        params: list[Any] = self.get_params(ctx)
        arguments = [one for one in params if one.param_type_name == "argument"]
        lines = [line for text in (self.help or "").split("\n\n") for line in [*_wrap(text), ""]]
        lines.append(" ".join([_heading("Usage"), ctx.command_path, "[OPTIONS]", *map(_usage, arguments)]))
        if arguments:
            lines += _section("Arguments", [("", _usage(one), one.help) for one in arguments])
        command = COMMANDS.get(self.name or "")
        lines += [*_options(params), *_examples(command.examples if command is not None else {})]
        formatter.write("\n".join(lines))


class HelpGroup(TyperGroup):
    """The program: its help lists the commands in groups, and its errors are lines as those of any command."""

    def main(self, *given: Any, **more: Any) -> Any:
        """Run the program, and end the process with its exit code (``standalone_mode``, as click has it)."""
        run, standalone = super().main, more.pop("standalone_mode", True)
        words = next(iter(given), None) or more.get("args") or sys.argv[1:]
        return run_guided(lambda: run(*given, **{**more, "standalone_mode": False}), standalone, words)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name, or a complaint that names the nearest one."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"{name}: no such command{meant(name, COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; ``formatter`` collects it."""
        _prepare_styles(ctx)
        lines = [*_wrap(self.help or ""), "", f"{_heading('Usage')} {ctx.command_path} COMMAND [OPTIONS]"]
        width = max(map(len, COMMANDS))
        panels: dict[str, list[Row]] = {}
        for command in COMMANDS.values():
            summary = command.help.partition("\n\n")[0].removesuffix(".")
            panels.setdefault(command.panel, []).append((command.name.ljust(width), "", summary))
        for panel, rows in panels.items():
            lines += _section(panel, rows)
        lines += [*_options(self.get_params(ctx)), *_examples(EXAMPLES), ""]
        lines += _wrap(f"Help of a command, with its options: {ctx.command_path} COMMAND --help")
        formatter.write("\n".join(lines))


def _options(params: Sequence[Any]) -> Iterator[str]:
    """The options in their groups: ungrouped ones first, those that click and typer add last."""
    groups: dict[str, list[Row]] = {group: [] for group in ("Options", *GROUPS, "Help")}
    for option in params:
        if option.param_type_name == "option":
            group = getattr(option, "rich_help_panel", None)
            named = group if isinstance(group, str) else "Options"
            if {"--help", "--version", "--install-completion", "--show-completion"} & {*option.opts}:
                named = "Help"
            value = "" if getattr(option, "is_flag", False) else option.metavar
            names = ", ".join(sorted(option.opts, key=len))
            short = min(map(len, option.opts)) == 2  # without a short name, long names line up
            groups[named].append((names if short else f"    {names}", value, option.help or ""))
    for group, rows in groups.items():
        if rows:
            yield from _section(group, rows)


def _usage(argument: Any) -> str:
    """``MODEL...`` and ``[FIXED]``."""
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return name if argument.nargs == 1 else f"{name}..."


def _section(heading: str, rows: Sequence[Row]) -> Iterator[str]:
    """Rows in two columns, the second one with a hanging indent."""
    yield from ("", _heading(heading))
    column = min(max(len(_join(name, value)) for name, value, _ in rows), _NAMES) + 4
    for name, value, description in rows:
        plain, shown = _join(name, value), _join(_paint(_NAME, name), _paint(_VALUE, value))
        lines = list(_wrap(description, " " * column))
        if len(plain) + 4 > column or not lines:
            yield f"  {shown}"
        else:
            yield f"  {shown}{' ' * (column - 2 - len(plain))}{lines.pop(0).strip()}"
        yield from lines


def _join(name: str, value: str) -> str:
    return f"{name} {value}" if name and value else name or value


def _examples(examples: Mapping[str, str]) -> Iterator[str]:
    yield from ("", _heading("Examples"))
    for line, what in examples.items():
        yield f"  {_paint(_NAME, line)}"
        yield from _wrap(what, " " * 6)


def _wrap(text: str, indent: str = "") -> Iterable[str]:
    """The lines of a paragraph, for the width of the terminal."""
    width = min(shutil.get_terminal_size().columns, WIDEST) - 1 - len(indent)
    wrapped = textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
    return [f"{indent}{line}" for line in wrapped]


def _heading(text: str) -> str:
    return _paint(_HEADING, f"{text}:")


def _paint(style: str, text: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if text and _has_styles() else text


def _has_styles() -> bool:
    return styled() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _prepare_styles(ctx: Any) -> None:
    ctx.color = _has_styles()  # else click would remove the styles where FORCE_COLOR wants them
