"""What the parser of the command line complains about, as the one line that every error is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from onnxfix.cli.commands import COMMANDS
from onnxfix.cli.given import meant
from onnxfix.cli.reports import format_in, print_error
from onnxfix.report.render.stream import complain
from onnxfix.runtime.interrupts import INTERRUPTED

_Complaint: Any = typer.BadParameter.__mro__[2]
"""ClickException, click's own or the one of the copy of click in typer."""


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
    elif kind == "BadOptionUsage":
        text = _describe_missing_value(error.option_name)
    elif kind == "MissingParameter" and param is not None:
        text = f"{_name(param)} is missing"
    elif param is not None:
        text = f"{_name(param)}: {_lower(error.message)}"
    else:
        text = _lower(error.message)
    return f"{text}; see '{ctx.command_path} --help'" if ctx is not None else text


def _describe_missing_value(flag: str) -> str:
    """An option has no value, or must not have one."""
    for option in (option for command in COMMANDS.values() for option in command.options):
        if flag in (option.flag, option.short):
            return (
                f"{flag}: needs a value: {flag} {option.value}" if option.value else f"{flag}: takes no value"
            )
    return f"{flag}: needs another number of values"


def _name(param: Any) -> str:
    """``--seed`` or ``MODEL``."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _lower(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[:1].lower() + text[1:]
