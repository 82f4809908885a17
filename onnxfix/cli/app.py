"""The command line: typer parses by the table of commands, a module for each command calls, prints and picks the exit
code.

Exit codes: 0 nothing left at or above ``--fail-on``; 1 findings remain (or a fix was withdrawn); 2 usage error,
unreadable model, internal error; 3 verification failed; 130 interrupted (143 by SIGTERM, 129 by
SIGHUP).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from onnxfix._version import __version__
from onnxfix.cli import completion
from onnxfix.cli.commands import COMMANDS, Argument, Command
from onnxfix.cli.given import Given, guarded, parser_of
from onnxfix.cli.help import HelpCommand, HelpGroup
from onnxfix.config.table import Kind, Option
from onnxfix.rewrite.packs import NONE, restored
from onnxfix.rewrite.packs import VARIABLE as PACKS
from onnxfix.runtime.interrupts import leave


def _version(value: bool) -> None:
    if value:
        typer.echo(f"onnxfix {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    packs: Annotated[
        str | None,
        typer.Option(
            "--packs",
            metavar="NAMES",
            help="Rule packs to load besides the built-in rules: names, or none (default: all installed ones).",
        ),
    ] = None,
) -> None:
    """Repair ONNX models for TensorRT, and prove that they still compute the same."""
    if packs is not None:
        context.with_resource(restored())
        os.environ[PACKS] = packs.strip() or NONE  # the worker processes of this run have it too


_ALIASES = {
    "input-shape": "input-shapes", "shapes": "input-shapes", "minShapes": "trt-min-shapes",
    "optShapes": "trt-opt-shapes", "maxShapes": "trt-max-shapes", "timingCacheFile": "timing-cache",
}  # fmt: skip
"""Options as trtexec and Polygraphy spell them, and as we do. Neither help nor completions show them."""


def program(only: str = "") -> typer.Typer:
    """The program, or with the name of a command, the program with that command alone: typer inspects every parameter
    of every command that it is given."""
    made = typer.Typer(
        name="onnxfix",
        cls=HelpGroup,
        help="Repair ONNX models for TensorRT, and prove that they still compute the same.",
        no_args_is_help=True,
        rich_markup_mode=None,  # cli.help writes the help
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda name: _ALIASES.get(name, name),
        },
    )
    made.callback()(root)
    for command in COMMANDS.values():
        if only in ("", command.name):
            made.command(command.name, cls=HelpCommand, rich_help_panel=command.panel)(_callback(command))
    return made


def _callback(command: Command) -> Callable[..., None]:
    """What typer takes for a command: a function with a parameter for each argument and option."""

    def call(**values: Any) -> None:
        with guarded(values.get("format", "text")):
            module = import_module(f"onnxfix.cli.{command.module}")
            getattr(module, command.name)(Given(command, values))

    parameters = [*map(_argument, command.arguments), *map(_option, command.options)]
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__name__, call.__doc__, call.__annotations__ = command.name, command.help, {}
    return call


def _argument(argument: Argument) -> Parameter:
    complete = completion.of(argument.complete)
    info = typer.Argument(
        metavar=argument.value, help=argument.help, autocompletion=complete, parser=str
    )  # parser: as for options
    return _parameter(argument.name, list[str] if argument.many else str, info, argument.required)


def _option(option: Option) -> Parameter:
    text = f"{option.help} [{'; '.join(option.notes)}]" if option.notes else option.help
    complete = completion.choices_of(option.choices) if option.choices else completion.of(option.complete)
    info = typer.Option(
        option.flag,
        *filter(None, [option.short]),
        metavar=option.value or None,
        help=text,
        show_default=False,
        rich_help_panel=option.group or None,
        autocompletion=complete,
        parser=None if option.kind is Kind.FLAG else parser_of(option),
    )
    kind = bool if option.kind is Kind.FLAG else list[str] if option.kind.repeatable else str
    default = False if option.kind is Kind.FLAG else option.default
    return _parameter(option.name, kind, info, option.required, default)


def _parameter(name: str, kind: Any, info: Any, required: bool, default: Any = None) -> Parameter:
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if required else default,
        annotation=Annotated[kind if required or default is not None else kind | None, info],
    )


def __getattr__(name: str) -> typer.Typer:
    """``app``: the program with all of its commands, which only tests and docs use."""
    if name != "app":
        raise AttributeError(name)
    globals()["app"] = program()
    return program()


def command() -> Callable[[], None]:
    """What the command line names, ready to be called."""
    # numpy's BLAS would start a thread for every core when it is loaded; onnxfix multiplies no matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000, 20, 100)  # a run makes many objects, and few that are garbage
    first = next(iter(sys.argv[1:]), "")
    called: Callable[[], None] = typer.main.get_command(program(first if first in COMMANDS else ""))
    return called


def main(run: Callable[[], None] | None = None) -> None:
    """Run the ``onnxfix`` command: what ``command`` gives, here or before."""
    run = run or command()
    try:
        run()
    finally:
        leave()
        gc.freeze()  # else the interpreter collects once more before it ends
