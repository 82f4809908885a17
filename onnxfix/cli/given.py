"""What the command line gives: texts read by the kinds of their options, and the record of a run made of them; and what
surrounds every command: errors become one line and an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer

from onnxfix.cli.commands import Command
from onnxfix.cli.reports import print_error
from onnxfix.config.table import SETTINGS, Kind, Option
from onnxfix.errors import UsageError, explained, working_directory
from onnxfix.report.render.stream import complain
from onnxfix.rewrite import packs
from onnxfix.runtime.allowance import effort_of
from onnxfix.runtime.interrupts import exit_code, finish, listen

if TYPE_CHECKING:
    from onnxfix.tensorrt.records import TrtOptions


@contextlib.contextmanager
def guarded(format: str) -> Iterator[None]:
    """Print one line for whatever ends a command early, and exit with 2, or as an interrupted program does. In a format
    that programs read, the line is also the error of a document."""
    code = 2
    try:
        listen()
        working_directory()
        with packs.restored():
            yield
    except KeyboardInterrupt:
        finish()
        code = exit_code()
        message = "interrupted; nothing half-written was left behind"
    except typer.Exit:
        raise
    except Exception as error:
        message = explained(error)
    else:
        return
    complain(message)
    print_error(format, message)
    raise typer.Exit(code) from None


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        complain(f"warning: {warning}")


def refuse_missing(trt: TrtOptions) -> None:
    """Refuse to ask a TensorRT that is not there, once and before any work.

    Raises:
        UsageError: it is not.
    """
    from onnxfix.proof.asking import require_tensorrt  # lazy: start-up

    require_tensorrt(trt).close()


class Given(SimpleNamespace):
    """The values of a command's arguments and options, by their names; None for what was not given and has no default.

    Raises:
        UsageError: a value is not what its option takes.
    """

    def __init__(self, command: Command, values: Mapping[str, Any]) -> None:
        super().__init__(**values)
        self.command = command
        for option in command.options:
            if option.kind in _READERS or option.kind.repeatable:
                value = values[option.name]
                read = _READERS.get(option.kind)
                given = value not in (None, [], ())
                setattr(self, option.name, (read(option, value) if read else tuple(value)) if given else None)

    def fields(self) -> dict[str, Any]:
        """The fields of a run's record that options set. Settings are not among them: files may set them, too."""
        return {
            option.field: getattr(self, option.name)
            for option in self.command.options
            if option.field and option.name not in SETTINGS and getattr(self, option.name) is not None
        }

    def settings(self) -> dict[str, Any]:
        """The settings that options set."""
        return {name: value for name in SETTINGS if (value := getattr(self, name, None)) is not None}

    def flags(self, names: Container[str]) -> list[str]:
        """The flags of those of these options that were given."""
        given = []
        for option in self.command.options:
            value = getattr(self, option.name)
            if option.name in names and value is not False and value != option.default:
                given.append(option.flag)
        return given


def parser_of(option: Option) -> Callable[[Any], Any]:
    """What reads one value of an option; typer says which option a complaint is about."""
    if option.kind is Kind.CHOICE:
        return lambda value: _choice(option, value)
    if option.kind in (Kind.WHOLE, Kind.MEGABYTES):
        return lambda value: _number(option, int, value)
    if option.kind in (Kind.NUMBER, Kind.SECONDS):
        return lambda value: _number(option, float, value)
    if option.writes or option.kind in (Kind.FILE, Kind.FILES, Kind.INPUTS):
        return lambda value: _file(option, value)
    return str  # typer's own conversion refuses names that are not UTF-8


def _choice(option: Option, value: str) -> str:
    if value not in option.choices:
        choices = ", ".join(option.choices)
        raise typer.BadParameter(f"{value!r} is not one of {choices}{meant(value, option.choices)}")
    return value


def _number(option: Option, kind: type[int] | type[float], value: Any) -> float:
    try:
        number = kind(value)
    except ValueError:
        whole = "whole " if kind is int else ""
        raise typer.BadParameter(f"{value!r} is not a {whole}number") from None
    if option.least is not None and not number >= option.least:  # nor is NaN
        raise typer.BadParameter(f"{value} is less than {option.least}")
    if option.most is not None and number > option.most:
        raise typer.BadParameter(f"{value} is more than {option.most}")
    return number


def _file(option: Option, value: str) -> str:
    """The name of a file. Other programs mean standard output by ``-``, and nobody wants a file of that name."""
    if not value:
        raise typer.BadParameter("'' names no file")
    if option.writes and value.rpartition(":")[2] == "-":
        raise typer.BadParameter(f"{value}: files are not written to standard output; name a file")
    return value


def meant(name: str, known: Iterable[str]) -> str:
    """`` (did you mean --seed?)``: the known names that are nearest, "" if none is near. Dashes do not count."""
    bare = {one.lstrip("-").lower(): one for one in known}
    near = get_close_matches(name.lstrip("-").lower(), bare, n=2)
    return f" (did you mean {' or '.join(bare[one] for one in near)}?)" if near else ""


def _names(option: Option, texts: Sequence[str]) -> tuple[str, ...]:
    """``--select A,B --select C`` as three names."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _values(option: Option, texts: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` texts, each split at its first equals sign."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise UsageError(f"{option.flag} {text}: write {option.flag} {option.value}")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option.flag}: {name} is given two values: {found[name]} and {value}")
    return found


def _sizes(option: Option, texts: Sequence[str]) -> dict[str, Any]:
    found = _values(option, texts)
    for name, text in found.items():
        try:
            found[name] = int(text)
        except ValueError:
            raise UsageError(f"{option.flag} {name}={text}: {text!r} is not a whole number") from None
    return found


def _effort(option: Option, text: str) -> str:
    """The name of an effort, or seconds; the text itself, which ``--show-settings`` shows."""
    effort_of(text)
    return text


_READERS: dict[Kind, Callable[[Option, Any], Any]] = {
    Kind.NAMES: _names,
    Kind.CHECKS: _names,
    Kind.VALUES: _values,
    Kind.SIZES: _sizes,
    Kind.EFFORT: _effort,
}
"""What reads all values of an option together."""
