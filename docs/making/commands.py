"""The reference of the command line, from the program itself: every command with its arguments and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from making.tables import cell, code
from onnxfix.cli.app import app
from onnxfix.cli.examples import EXAMPLES

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
        yield from (f"| {code(_argument(one))} | {cell(_words(one))} |" for one in arguments)
    panels: dict[str, list[Any]] = {}
    for one in options:
        panels.setdefault(getattr(one, "rich_help_panel", None) or _OTHERS, []).append(one)
    for panel, those in panels.items():
        yield from ("", f"### {panel} of `{name}`", "", "| option | meaning |", "|---|---|")
        yield from (f"| {_names(one)} | {cell(_words(one))} |" for one in those)
    if name in EXAMPLES:
        shown = (line for one in EXAMPLES[name] for line in (f"# {one.what}", one.line))
        yield from ("", f"### Examples of `{name}`", "", "```sh", *shown, "```")


def _paragraphs(text: str | None) -> Iterator[str]:
    """Help as Markdown: click's mark for text that is not wrapped is left out."""
    yield from (escaped(line.strip()) for line in (text or "").replace("\b", "").strip().splitlines())


def _argument(one: Any) -> str:
    """``MODEL...`` or ``[FIXED]``."""
    name = (one.metavar or one.name or "").upper().strip("[].")
    more = "..." if one.nargs == -1 or one.multiple else ""
    return f"{name}{more}" if one.required else f"[{name}{more}]"


def _names(one: Any) -> str:
    """``-o FILE``, ``--output FILE`` as code."""
    flag = getattr(one, "is_flag", False) or getattr(one, "count", False)
    value = "" if flag else " " + (one.metavar or one.name.upper().replace("_", "-"))
    names = sorted([*one.opts, *one.secondary_opts], key=lambda name: name.startswith("--"))
    return ", ".join(code(f"{name}{value}") for name in names)


def _words(one: Any) -> str:
    """The help, the choices, and the default where it says something."""
    text = escaped(" ".join((one.help or "").split()))
    kind = getattr(one, "type_descriptor", None) or getattr(one, "type", None)
    choices = [str(getattr(each, "value", each)) for each in getattr(kind, "choices", None) or ()]
    default = getattr(one.default, "value", one.default)
    if (
        one.show_default is not True
        or isinstance(default, bool)
        or not isinstance(default, str | int | float)
    ):
        default = None
    notes = [", ".join(map(code, choices))] if choices else []
    notes += [f"default: {code(str(default))}"] if default not in (None, "") else []
    return f"{text} ({'; '.join(notes)})" if notes else text


def escaped(text: str) -> str:
    """Plain text as Markdown: option names as code, and nothing else read as markup."""
    text = re.sub(r"([*_<\[\]])", r"\\\1", text)
    return re.sub(r"(?<![\w`-])(--?[a-z][a-z0-9-]*)", r"`\1`", text)
