"""Signatures that people can read: a line for each parameter in ``help``, and types without quotes there and in
notebooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
WIDTH = 100
"""Characters of a signature that stays on one line."""


class _Written(str):
    """An annotation as it is written in the source."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Lines(inspect.Signature):
    """A signature with a line for each parameter, if it is long."""

    def __str__(self) -> str:
        whole = super().__str__()
        if len(whole) <= WIDTH:
            return whole
        lines: list[str] = []
        for one in self.parameters.values():
            if one.kind is one.KEYWORD_ONLY and "*" not in lines:
                lines.append("*")
            lines.append(str(one))
        inside = "".join(f"    {line},\n" for line in lines)
        return f"(\n{inside}) -> {self.return_annotation}"


def readable(function: _F) -> _F:
    """The same function, whose signature is shown in this way. ``__annotations__`` are unchanged."""
    found = inspect.signature(function)
    parameters = [one.replace(annotation=_Written(one.annotation)) for one in found.parameters.values()]
    returned = _Written(found.return_annotation)
    function.__signature__ = _Lines(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    return function
