"""The settings of models, for ``--show-settings``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from onnxfix.report.render import ui
from onnxfix.report.render.lines import Line, line
from onnxfix.report.render.terminal import table_lines


class Setting(NamedTuple):
    """A setting, its value for people, and where it comes from. ``over``: it has expired."""

    name: str
    value: str
    origin: str
    over: bool = False


def settings_lines(model: str, settings: Sequence[Setting]) -> Iterator[Line]:
    """One line for each setting of a model: its name, its value, and where it comes from."""
    yield line((model, "bold"))
    rows = [
        (one.name, ui.Chip("warn", one.value) if one.over else one.value, ui.small(one.origin))
        for one in settings
    ]
    yield from table_lines(ui.Table(("", "", ""), rows, model), verbose=True)


def render_settings(models: Sequence[dict[str, Any]]) -> str:
    """One document, in ASCII: ``{"models": [...]}``."""
    return json.dumps({"models": list(models)}, indent=2)
