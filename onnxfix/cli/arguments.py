"""Values of command-line options, taken without what typer loads to convert them.

From 0.29 on, typer converts every value, an option that was not given included, through pydantic, whose import takes
longer than ``check`` takes for a small model. What is a value already, or a plain string, path or choice, needs none of
it; typer still gets whatever is left, and everything that is wrong, so that its messages stay its own. Without this,
``check`` of a small export takes 10 % more processor time (20 layers, 0.56 s in place of 0.51 s on a busy machine).
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin


class NotPlain(Exception):
    """A value that typer has to look at."""


def plain(kind: Any, value: Any) -> Any:
    """``value`` as a ``kind`` (``str``, ``Path``, an Enum, ``int``, or a list of one of them), where nothing speaks
    against it.

    Raises:
        NotPlain: something does, or the kind is another one.
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
    """Stands where typer keeps the converter of one option."""

    def __init__(self, kind: Any, heavy: Callable[[], Any]) -> None:
        self._kind = kind
        self._heavy = heavy

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        try:
            return plain(self._kind, value)
        except NotPlain:
            return self._heavy().coerce(value, param=param, ctx=ctx)


_UNCONSTRAINED = {
    "parser": None, "min": None, "max": None, "case_sensitive": True, "exists": False, "file_okay": True,
    "dir_okay": True, "writable": False, "readable": True, "resolve_path": False, "allow_dash": False,
    "path_type": None,
}  # fmt: skip
"""What an option may ask of its value, and how it says that it does not."""


def lighten(command: Any) -> None:
    """Let a typer command and its subcommands take their values lightly.

    A typer that converts in another way, older ones among them, is left alone.
    """
    subcommands: Iterable[Any] = getattr(command, "commands", {}).values()
    for each in (command, *subcommands):
        each.get_params = partial(_params, each.get_params)  # --help is among them, and is made late


def _params(get_params: Callable[[Any], list[Any]], ctx: Any) -> list[Any]:
    params = get_params(ctx)
    for param in params:
        heavy = getattr(param, "get_runtime_param", None)
        described = getattr(param, "type_descriptor", None)
        if heavy is None or described is None or isinstance(heavy, partial):
            continue
        info = described.parameter_info
        free = all(getattr(info, name, usual) == usual for name, usual in _UNCONSTRAINED.items())
        param.get_runtime_param = partial(_self, _Light(described.annotation if free else None, heavy))
    return params


def _self(light: _Light) -> _Light:
    return light
