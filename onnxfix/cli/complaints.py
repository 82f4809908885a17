"""What the parser of the command line complains about, as the one line that every error is."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

from onnxfix.cli.reports import format_in, print_error
from onnxfix.interrupts import INTERRUPTED
from onnxfix.report.render.stream import complain

_Complaint: Any = typer.BadParameter.__mro__[2]
"""ClickException, click's own or the one of the copy of click in typer."""


def guided(program: Any, run: Callable[[], Any], standalone: bool, words: Sequence[str] = ()) -> Any:
    """The result of ``run``, which parses the command line ``words``. ``standalone``: end the process with the exit
    code, and print a complaint of the parser as one line, and as a document if the words ask for one."""
    try:
        result = run()
    except _Complaint as error:
        if not standalone:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            complaint = said(error, program)
            complain(complaint)
            print_error(format_in(words), complaint)
        result = error.exit_code
    except typer.Abort:  # Ctrl-C before a command began
        if not standalone:
            raise
        result = INTERRUPTED
    if not standalone:
        return result
    sys.exit(result if isinstance(result, int) else 0)


def said(error: Any, program: Any = None) -> str:
    """The line for a complaint: the option, what is wrong, and where the help is."""
    ctx = getattr(error, "ctx", None)
    kind = type(error).__name__
    param = getattr(error, "param", None)
    if kind == "NoSuchOption":
        text = f"{error.option_name}: no such option{meant(error.option_name, error.possibilities or ())}"
    elif kind == "BadOptionUsage":
        text = _needs(error.option_name, program)
    elif kind == "MissingParameter" and param is not None:
        text = f"{_name(param)} is missing"
    elif param is not None:
        text = f"{_name(param)}: {_lower(error.message)}"
    else:
        text = _lower(error.message)
    return f"{text}; see '{ctx.command_path} --help'" if ctx is not None else text


def meant(name: str, known: Iterable[str]) -> str:
    """`` (did you mean --seed?)``: the known names that are nearest, "" if none is near. Dashes do not count."""
    from difflib import get_close_matches  # lazy: start-up

    bare = {one.lstrip("-").lower(): one for one in known}
    near = get_close_matches(name.lstrip("-").lower(), bare, n=2)
    return f" (did you mean {' or '.join(bare[one] for one in near)}?)" if near else ""


def unusable(value: object, kind: Any, low: float | None, high: float | None) -> str | None:
    """Why a text is no value of a ``kind`` of option: an Enum, ``int`` or ``float`` from ``low`` to ``high``. None for
    another kind, or if nothing is wrong with it."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = [str(one.value) for one in kind]
        return f"{value!r} is not one of {', '.join(choices)}{meant(str(value), choices)}"
    if kind not in (int, float):
        return None
    try:
        number = kind(value)
    except (TypeError, ValueError):
        return f"{value!r} is not a {'whole ' if kind is int else ''}number"
    if low is not None and number < low:
        return f"{value} is less than {low}"
    if high is not None and number > high:
        return f"{value} is more than {high}"
    return None


def _needs(name: str, program: Any) -> str:
    """A complaint about an option's value: it has none, or must not have one."""
    commands: Iterable[Any] = getattr(program, "commands", {}).values()
    for param in (param for command in commands for param in command.params):
        if name in param.opts and getattr(param, "is_flag", False):
            return f"{name}: takes no value"
        if name in param.opts:
            return f"{name}: needs a value: {name} {param.metavar or 'VALUE'}"
    return f"{name}: needs another number of values"


def _name(param: Any) -> str:
    """``--seed`` or ``MODEL``."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.metavar or param.name.upper())


def _lower(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[:1].lower() + text[1:]
