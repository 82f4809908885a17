"""Converts values of command-line options without the library that typer loads for it.

From 0.29 on, typer converts every value, including options that were not given, through pydantic, whose import takes
longer than ``check`` of a small model. Values that need no conversion, plain strings, paths and choices are handled
here. typer gets everything else and decides what is wrong; the messages about it are ours. Without this, ``check`` of a
small model takes 0.31 s of processor time instead of 0.25 s.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

from onnxfix.cli.complaints import unusable


class NotPlain(Exception):
    """A value that typer has to convert, or complain about."""


def plain(kind: Any, value: Any) -> Any:
    """``value`` as a ``kind``: ``str``, ``int``, ``Path``, an Enum, or a list of one of them.

    Raises:
        NotPlain: the value does not fit, or the kind is not one of these.
    """
    if get_origin(kind) is list and isinstance(value, (list, tuple)):
        (inner,) = get_args(kind)
        return [plain(inner, item) for item in value]
    if kind in (str, int) and type(value) is kind:
        return value
    if (
        kind is Path
        and isinstance(value, (str, Path))
        and (not os.path.exists(value) or os.access(value, os.R_OK))
    ):
        return Path(value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        for choice in kind:
            if value is choice or (not isinstance(value, kind) and value == choice.value):
                return choice
    raise NotPlain


class _Light:
    """Replaces typer's converter of one option."""

    def __init__(self, kind: Any, free: bool, heavy: Callable[[], Any]) -> None:
        self._kind = kind if free else None
        self._type = next((one for one in get_args(kind) if one is not type(None)), kind)
        self._heavy = heavy

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        try:
            return plain(self._kind, value)
        except NotPlain:
            pass
        try:
            return self._heavy().coerce(value, param=param, ctx=ctx)
        except typer.BadParameter as error:
            low, high = getattr(param, "min", None), getattr(param, "max", None)
            told = unusable(value, self._type, low, high)
            raise typer.BadParameter(told or error.message, ctx=ctx, param=param) from None


_UNCONSTRAINED = {
    "parser": None, "min": None, "max": None, "case_sensitive": True, "exists": False, "file_okay": True,
    "dir_okay": True, "writable": False, "readable": True, "resolve_path": False, "allow_dash": False,
    "path_type": None,
}  # fmt: skip
"""Constraints of typer options, with the value that means none."""


def lighten(command: Any) -> None:
    """Have a typer command and its subcommands convert plain values without pydantic.

    Versions of typer that convert in another way are left alone.
    """
    subcommands: Iterable[Any] = getattr(command, "commands", {}).values()
    for each in (command, *subcommands):
        each.get_params = partial(_params, each.get_params)  # called late: --help is one of them


def _params(get_params: Callable[[Any], list[Any]], ctx: Any) -> list[Any]:
    params = get_params(ctx)
    for param in params:
        heavy = getattr(param, "get_runtime_param", None)
        described = getattr(param, "type_descriptor", None)
        if heavy is None or described is None or isinstance(heavy, partial):
            continue
        info = described.parameter_info
        free = all(getattr(info, name, usual) == usual for name, usual in _UNCONSTRAINED.items())
        param.get_runtime_param = partial(_Light, described.annotation, free, heavy)
    return params
