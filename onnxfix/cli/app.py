"""The command line: parses, calls, prints, picks the exit code. No logic of its own; one module for each command.

Exit codes: 0 nothing left at or above ``--fail-on``; 1 findings remain (or a fix was withdrawn); 2 usage error,
unreadable model, internal error; 3 verification failed; 130 interrupted (143 by SIGTERM, 129 by
SIGHUP).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Annotated

import typer

from onnxfix._version import __version__
from onnxfix.cli.arguments import lighten
from onnxfix.cli.help import Command, Group
from onnxfix.interrupts import leave
from onnxfix.packs import VARIABLE as PACKS


def _version(value: bool) -> None:
    if value:
        typer.echo(f"onnxfix {__version__}")
        raise typer.Exit


def _restore(packs: str | None) -> None:
    if packs is None:
        os.environ.pop(PACKS, None)
    else:
        os.environ[PACKS] = packs


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
        before = os.environ.get(PACKS)
        os.environ[PACKS] = packs.strip() or "none"  # the worker processes of this run have it too
        context.call_on_close(lambda: _restore(before))


_COMMANDS = {
    "Find and repair": ("check", "apply", "verify"),
    "Find out why": ("diagnose", "diff", "view", "reduce", "layers", "lift"),
    "Convert": ("precision",),
    "Look up": ("explain", "rules", "doctor"),
}
"""The commands, each a function in a module of its name, which is loaded when the command is run or listed."""


_ALIASES = {
    "input-shape": "input-shapes", "shapes": "input-shapes", "minShapes": "trt-min-shapes",
    "optShapes": "trt-opt-shapes", "maxShapes": "trt-max-shapes", "timingCacheFile": "timing-cache",
}  # fmt: skip
"""Options as trtexec and Polygraphy spell them, and as we do. Neither help nor completions show them."""


def _loaded(name: str) -> Callable[..., None]:
    function: Callable[..., None] = getattr(import_module(f"onnxfix.cli.{name}"), name)
    return function


def program(only: str = "", *, listed: bool = False) -> typer.Typer:
    """The program, or with the name of a command, the program with that command alone; ``listed``: with commands that
    can be listed, and have no parameters.

    typer inspects every parameter of every command that it is given: for one of the commands instead of all, `check`
    takes 5 % less processor time, and `--help`, for none, a fifth.
    """
    found = typer.Typer(
        name="onnxfix",
        cls=Group,
        help="Repair ONNX models for TensorRT, and prove that they still compute the same.",
        no_args_is_help=True,
        rich_markup_mode=None,  # cli.help writes the help: rich alone would double the start-up
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda name: _ALIASES.get(name, name),
        },
    )
    found.callback()(root)
    for panel, names in _COMMANDS.items():
        for name in names:
            if only in ("", name):
                command = _listed(_loaded(name)) if listed else _loaded(name)
                found.command(cls=Command, rich_help_panel=panel)(command)
    return found


def _listed(command: Callable[..., None]) -> Callable[[], None]:
    """What has a command's name and description. No command line of ``_LISTING`` runs it."""

    def nothing() -> None:
        raise NotImplementedError

    nothing.__name__, nothing.__doc__ = command.__name__, command.__doc__
    return nothing


_LISTING = (["-h"], ["--help"], ["--version"])
"""Command lines that run no command, and show the parameters of none. A shell asks for completions without words."""


@cache
def __getattr__(name: str) -> typer.Typer:
    """``app``: the program with all of its commands, which only tests and docs use."""
    if name != "app":
        raise AttributeError(name)
    return program()


def _asked() -> str:
    """The command that the first word of the command line names; "" where it names none."""
    first = next(iter(sys.argv[1:]), "")
    return first if any(first in names for names in _COMMANDS.values()) else ""


def command() -> Callable[[], None]:
    """What the command line names, loaded and ready to be called.

    Garbage is not collected before a command calls ``guard.collect_garbage``, which those about several models do:
    the objects of start-up and of one model stay anyway. For ``check`` of 100 nodes that saves 0.07 s of 0.31 s of
    processor time.
    """
    # numpy's BLAS would start a thread for every core when it is loaded; onnxfix multiplies no matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    made = program(listed=True) if sys.argv[1:] in _LISTING else program(_asked())
    found = typer.main.get_command(made)
    lighten(found)
    return found


def main(run: Callable[[], None] | None = None) -> None:
    """Run the ``onnxfix`` command: what ``command`` gives, here or before."""
    run = run or command()
    try:
        run()
    finally:
        leave()
        gc.freeze()  # else the interpreter collects once more before it ends
