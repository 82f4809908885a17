"""The settings of models, for ``--show-settings``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from onnxfix.report.render.lines import GLUE, Line, line
from onnxfix.report.render.stream import as_json, printable

_WIDE = 24
"""Widest value that the column of values makes room for; longer values run over it."""


class Setting(NamedTuple):
    """A setting, its value as text, and the origin of the value. ``over``: the setting has expired."""

    name: str
    value: str
    origin: str
    over: bool = False


def settings_lines(model: str, settings: Sequence[Setting]) -> Iterator[Line]:
    """One line for each setting of a model: its name, its value, and where it comes from."""
    yield line((model, "bold"))
    name_width = max((len(one.name) for one in settings), default=0)
    value_width = max(
        (len(printable(one.value)) for one in settings if one.origin and len(one.value) <= _WIDE), default=0
    )
    for one in settings:
        text = one.value
        origin = f"  {one.origin}" if one.origin else ""
        style = "yellow" if one.over else ""
        yield line(
            f"  {one.name:<{name_width}}  ",
            (f"{text}{GLUE * (value_width - len(printable(text)))}" if origin else text, style),
            (origin, "dim"),
            hang=name_width + 4,
        )


def render_settings(models: Mapping[str, Sequence[Setting]]) -> str:
    """One JSON document, in ASCII: the settings of each model."""
    found = [{"path": path, "settings": [one._asdict() for one in rows]} for path, rows in models.items()]
    return as_json({"models": found})
