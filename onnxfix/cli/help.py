"""The help of the program and of its commands: options in groups, choices and defaults, examples.

typer's own help in groups is rich's, whose import takes longer than everything else that ``--help`` does. This one is
plain text, bold and colored on a terminal, and names values (``FILE``) instead of Python types.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from onnxfix.cli.complaints import guided, meant

WIDEST = 100
"""Columns of the help on a wider terminal."""
_NAMES = 28
"""Columns of the options' names; a longer one has a line of its own."""
_HEADING, _NAME, _VALUE = "1;32", "1;36", "36"
"""Styles of a terminal (SGR): bold green, bold cyan, cyan."""
_ORDER = (
    "Output",
    "Rules",
    "Fixes",
    "Constant shapes and inputs",
    "Verification",
    "TensorRT",
    "Several models",
    "Settings",
)
"""Groups of options as the help shows them; others come before, those about reports and the help itself last."""
_LAST = ("Report", "Help")


class Command(TyperCommand):
    """A command whose help is the one of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; ``formatter`` collects it."""
        page = _Page(ctx)
        formatter.write(page.text(_command(page, self, ctx)))


class Group(TyperGroup):
    """The program: its help lists the commands in groups, and its errors are lines as those of any command."""

    def main(self, *given: Any, **more: Any) -> Any:
        """Run the program, and end the process with its exit code (``standalone_mode``, as click has it)."""
        run, standalone = super().main, more.pop("standalone_mode", True)
        words = next(iter(given), None) or more.get("args") or sys.argv[1:]
        return guided(self, lambda: run(*given, **{**more, "standalone_mode": False}), standalone, words)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of that name, or a complaint that names the nearest one."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"{name}: no such command{meant(name, self.commands)}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; ``formatter`` collects it."""
        page = _Page(ctx)
        formatter.write(page.text(_program(page, self, ctx)))


class _Page:
    """The layout of one help, for the width and the styles of the terminal."""

    def __init__(self, ctx: Any) -> None:
        from onnxfix.report.render.lines import styled  # lazy: start-up

        self._width = min(shutil.get_terminal_size().columns, WIDEST) - 1
        self._styled = styled() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        ctx.color = self._styled  # else click would remove the styles where FORCE_COLOR wants them

    def text(self, lines: Iterator[str]) -> str:
        return "\n".join(lines)

    def styled(self, style: str, text: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._styled and text else text

    def paragraph(self, text: str, indent: str = "") -> Iterator[str]:
        yield from _wrapped(text, self._width - len(indent), indent)

    def heading(self, text: str) -> str:
        return self.styled(_HEADING, f"{text}:")

    def rows(self, rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
        """``(name, value, description)`` in two columns, the second one with a hanging indent."""
        widest = max((len(_joined(name, value)) for name, value, _ in rows), default=0)
        column = min(widest, _NAMES) + 4
        for name, value, description in rows:
            plain = _joined(name, value)
            shown = _joined(self.styled(_NAME, name), self.styled(_VALUE, value))
            lines = list(_wrapped(description, self._width - column, " " * column))
            if len(plain) + 4 > column or not lines:
                yield f"  {shown}"
            else:
                yield f"  {shown}{' ' * (column - 2 - len(plain))}{lines.pop(0).strip()}"
            yield from lines

    def examples(self, command: str) -> Iterator[str]:
        """Those of a command; "": of the program."""
        from onnxfix.cli.examples import EXAMPLES  # lazy: start-up

        examples = EXAMPLES.get(command, ())
        if not examples:
            return
        yield ""
        yield self.heading("Examples")
        for example in examples:
            yield f"  {self.styled(_NAME, example.line)}"
            yield from self.paragraph(example.what, " " * 6)


def _wrapped(text: str, width: int, indent: str) -> Iterator[str]:
    wrapped = textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
    yield from (f"{indent}{one}" for one in wrapped)


def _joined(name: str, value: str) -> str:
    return f"{name} {value}" if name and value else name or value


def _program(page: _Page, program: TyperGroup, ctx: Any) -> Iterator[str]:
    """The help of the program itself."""
    yield from page.paragraph(program.help or "")
    yield ""
    yield f"{page.heading('Usage')} {ctx.command_path} COMMAND [OPTIONS]"
    panels: dict[str, list[tuple[str, str, str]]] = {}
    for name in program.list_commands(ctx):
        command = program.get_command(ctx, name)
        if command is not None and not command.hidden:
            panel = getattr(command, "rich_help_panel", None)
            row = (name, "", _summary(command))
            panels.setdefault(panel if isinstance(panel, str) else "Commands", []).append(row)
    width = max(len(name) for rows in panels.values() for name, _, _ in rows)
    for panel, rows in panels.items():
        yield ""
        yield page.heading(panel)
        yield from page.rows([(name.ljust(width), value, text) for name, value, text in rows])
    yield from _options(page, program, ctx)
    yield from page.examples("")
    yield ""
    yield from page.paragraph(f"Help of a command, with its options: {ctx.command_path} COMMAND --help")


def _command(page: _Page, command: TyperCommand, ctx: Any) -> Iterator[str]:
    """The help of a command."""
    for paragraph in (command.help or "").split("\n\n"):
        yield from page.paragraph(paragraph)
        yield ""
    arguments = [one for one in command.get_params(ctx) if one.param_type_name == "argument"]
    usage = " ".join([ctx.command_path, "[OPTIONS]", *map(_usage, arguments)])
    yield f"{page.heading('Usage')} {usage}"
    if arguments:
        yield ""
        yield page.heading("Arguments")
        yield from page.rows([("", _usage(one), _described(one)) for one in arguments])
    yield from _options(page, command, ctx)
    yield from page.examples(command.name or "")


def _options(page: _Page, command: Any, ctx: Any) -> Iterator[str]:
    """The options in their groups."""
    panels: dict[str, list[tuple[str, str, str]]] = {}
    for option in command.get_params(ctx):
        if option.param_type_name != "option" or getattr(option, "hidden", False):
            continue
        panel = getattr(option, "rich_help_panel", None)
        named = "Help" if _about(option) else panel if isinstance(panel, str) else "Options"
        panels.setdefault(named, []).append((_names(option), metavar(option), _described(option)))
    for panel in sorted(panels, key=_rank):
        yield ""
        yield page.heading(panel)
        yield from page.rows(panels[panel])


def _rank(panel: str) -> int:
    order = (*_ORDER, *_LAST)
    return order.index(panel) if panel in order else -1


def _about(option: Any) -> bool:
    """Whether it is one of the options that click and typer add."""
    return bool({"--help", "--version", "--install-completion", "--show-completion"} & {*option.opts})


def _names(option: Any) -> str:
    """``-o, --output``, with long names below each other."""
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in option.opts if name.startswith("--")]
    return ", ".join([*short, *long]) if short else f"    {', '.join(long)}"


def metavar(param: Any) -> str:
    """The name of a parameter's value, "" for a flag."""
    if getattr(param, "is_flag", False):
        return ""
    return str(param.metavar or param.name.upper().replace("_", "-"))


def _usage(argument: Any) -> str:
    """``MODEL...`` and ``[FIXED]``."""
    name = metavar(argument).removesuffix("...")
    name = name if argument.required else f"[{name}]"
    return name if argument.nargs == 1 else f"{name}..."


def choices(param: Any) -> list[str]:
    """The values that a parameter can have; none where it can have any."""
    kind = getattr(param, "type_descriptor", None) or getattr(param, "type", None)
    return [str(getattr(one, "value", one)) for one in getattr(kind, "choices", None) or ()]


def _described(param: Any) -> str:
    """The help of a parameter, with whether an option is required, its choices and its default."""
    notes = ["required"] if param.required and param.param_type_name == "option" else []
    notes += [", ".join(known)] if (known := choices(param)) else []
    default = getattr(param.default, "value", param.default)
    if param.show_default is True and isinstance(default, (str, int, float)) and default is not False:
        notes.append(f"default: {default}")
    text = str(getattr(param, "help", None) or "")
    return f"{text} [{'; '.join(notes)}]" if notes else text


def _summary(command: Any) -> str:
    """The first paragraph of a command's help, without its last period."""
    first = (command.help or "").split("\n\n")[0]
    return " ".join(first.split()).removesuffix(".")
