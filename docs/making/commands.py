"""The reference of the command line, from the program itself: every command with its arguments and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from making.tables import cell
from onnxfix.cli.app import app

_HEAD = """\
# Command reference

What `onnxfix COMMAND --help` says, taken from the program when these pages were built.
[Options by subject](../options.md) explains how options work together, and [exit codes](../options.md#exit-codes) what
the result means for a script.
"""
_OTHERS = "Options"


def commands_page() -> str:
    """The page."""
    group: Any = typer.main.get_command(app)
    lines = [_HEAD]
    lines += ["| command | what it does |", "|---|---|"]
    for name, command in group.commands.items():
        if not command.hidden:
            lines.append(f"| [`{name}`](#onnxfix-{name}) | {cell(_first(command.help))} |")
    for name, command in group.commands.items():
        if not command.hidden:
            lines += ["", *_command(name, command)]
    return "\n".join(lines) + "\n"


def _first(text: str | None) -> str:
    """The first paragraph, in one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join(["onnxfix", name, *(_argument(one) for one in arguments), "[OPTIONS]"])
    yield from (f"## onnxfix {name}", "", "```text", usage, "```", "", *_paragraphs(command.help))
    if arguments:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (f"| `{cell(_argument(one))}` | {cell(_words(one))} |" for one in arguments)
    panels: dict[str, list[Any]] = {}
    for one in options:
        panels.setdefault(getattr(one, "rich_help_panel", None) or _OTHERS, []).append(one)
    for panel, those in panels.items():
        yield from ("", f"### {panel} of `{name}`", "", "| option | meaning |", "|---|---|")
        yield from (f"| {_names(one)} | {cell(_words(one))} |" for one in those)
    yield from _epilog(command.epilog)


def _paragraphs(text: str | None) -> Iterator[str]:
    """Help as Markdown: click's mark for text that is not wrapped is left out."""
    yield from (escaped(line.strip()) for line in (text or "").replace("\b", "").strip().splitlines())


def _epilog(text: str | None) -> Iterator[str]:
    """What stands below a command's options: examples."""
    lines = [line.strip() for line in (text or "").replace("\b", "").splitlines() if line.strip()]
    if lines:
        yield from ("", "```text", *lines, "```")


def _argument(one: Any) -> str:
    name = (one.metavar or one.name or "").upper().strip("[].")
    more = "..." if one.nargs == -1 or one.multiple else ""
    return f"{name}{more}" if one.required else f"[{name}{more}]"


def _names(one: Any) -> str:
    """``-o``, ``--output PATH``."""
    value = "" if one.is_flag or one.count else " " + _value(one)
    names = ", ".join(f"`{cell(name)}`" for name in one.opts)
    return names.removesuffix("`") + cell(value) + "`" + "".join(f", `{name}`" for name in one.secondary_opts)


def _value(one: Any) -> str:
    choices = getattr(one.type, "choices", None)
    return one.metavar or ("|".join(map(str, choices)) if choices else str(one.type.name).upper())


def _words(one: Any) -> str:
    """The help, and the default where it says something."""
    text = " ".join((one.help or "").split())
    shown = one.default
    plain = isinstance(shown, str | int | float) and not isinstance(shown, bool) and shown != ""
    if plain and one.show_default is not False and "default" not in text.lower():
        text = f"{text.rstrip('.')} (default: {getattr(shown, 'value', shown)})."
    return escaped(text)


def escaped(text: str) -> str:
    """Plain text as Markdown: option names as code, and nothing else read as markup."""
    text = re.sub(r"([*_<\[\]])", r"\\\1", text)
    return re.sub(r"(?<![\w`-])(--?[a-z][a-z0-9-]*)", r"`\1`", text)
