"""The settings of models, for ``--show-settings``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from onnxfix.report.render.lines import GLUE, Line, line
from onnxfix.report.render.stream import printable

_WIDE = 24
"""Columns of the values; longer ones do not widen them."""


class Setting(NamedTuple):
    """A setting, its value for people, and where it comes from. ``over``: it has expired."""

    name: str
    value: str
    origin: str
    over: bool = False


def settings_lines(model: str, settings: Sequence[Setting]) -> Iterator[Line]:
    """One line for each setting of a model: its name, its value, and where it comes from."""
    yield line((model, "bold"))
    names = max((len(one.name) for one in settings), default=0)
    values = max(
        (len(printable(one.value)) for one in settings if one.origin and len(one.value) <= _WIDE), default=0
    )
    for one in settings:
        text = one.value
        origin = f"  {one.origin}" if one.origin else ""
        style = "yellow" if one.over else ""
        yield line(
            f"  {one.name:<{names}}  ",
            (f"{text}{GLUE * (values - len(text))}" if origin else text, style),
            (origin, "dim"),
            hang=names + 4,
        )


def render_settings(models: Sequence[dict[str, Any]]) -> str:
    """One document, in ASCII: ``{"models": [...]}``."""
    return json.dumps({"models": list(models)}, indent=2)
