"""The reference of the command line, from the program itself: every command with its arguments and options."""

from __future__ import annotations

import re
from collections.abc import Iterator

from making.tables import cell, code
from onnxfix.cli.commands import COMMANDS, Argument, Command
from onnxfix.config.table import Option

_HEAD = """\
# Command reference

What `onnxfix COMMAND --help` says, taken from the program when these pages were built.
[Options by subject](../options.md) explains how options work together, and [exit codes](../options.md#exit-codes) what
the result means for a script.
"""
_OTHERS = "Options"


def commands_page() -> str:
    """The page."""
    lines = [_HEAD, "| command | what it does |", "|---|---|"]
    for name, command in COMMANDS.items():
        summary = command.help.partition("\n\n")[0]
        lines.append(f"| [`{name}`](#onnxfix-{name}) | {cell(summary)} |")
    for command in COMMANDS.values():
        lines += ["", *_command(command)]
    return "\n".join(lines) + "\n"


def _command(command: Command) -> Iterator[str]:
    name = command.name
    usage = " ".join(["onnxfix", name, *map(argument_usage, command.arguments), "[OPTIONS]"])
    yield from (
        f"## onnxfix {name}",
        "",
        "```text",
        usage,
        "```",
        "",
        *map(escaped, command.help.splitlines()),
    )
    if command.arguments:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (
            f"| {code(argument_usage(one))} | {cell(escaped(one.help))} |" for one in command.arguments
        )
    groups: dict[str, list[Option]] = {}
    for option in command.options:
        groups.setdefault(option.group or _OTHERS, []).append(option)
    for group, options in groups.items():
        yield from ("", f"### {group} of `{name}`", "", "| option | meaning |", "|---|---|")
        yield from (f"| {option_names(option)} | {cell(describe_option(option))} |" for option in options)
    shown = (line for example, what in command.examples.items() for line in (f"# {what}", example))
    yield from ("", f"### Examples of `{name}`", "", "```sh", *shown, "```")


def argument_usage(argument: Argument) -> str:
    """``MODEL...`` or ``[FIXED]``."""
    name = f"{argument.value}..." if argument.many else argument.value
    return name if argument.required else f"[{name}]"


def option_names(option: Option) -> str:
    """``-o FILE``, ``--output FILE`` as code."""
    names = filter(None, [option.short, option.flag])
    return ", ".join(code(f"{name} {option.value}".rstrip()) for name in names)


def describe_option(option: Option) -> str:
    """The help, the choices, and the default where it says something."""
    notes = [", ".join(map(code, option.choices))] if option.choices else []
    notes += [f"default: {code(str(option.default))}"] if option.default is not None else []
    text = escaped(option.help)
    return f"{text} ({'; '.join(notes)})" if notes else text


def escaped(text: str) -> str:
    """Plain text as Markdown: option names as code, and nothing else read as markup."""
    text = re.sub(r"([*_<\[\]])", r"\\\1", text)
    return re.sub(r"(?<![\w`-])(--?[a-z][a-z0-9-]*)", r"`\1`", text)
