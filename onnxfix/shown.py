"""Results as Python shows them: ``repr`` in one line, ``print`` as the command line, HTML in a notebook.

Packages that create results do not import renderers. ``onnxfix/__init__.py`` names the module that renders.
It is loaded when a result is shown.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

from onnxfix.errors import UsageError


class Shown:
    """The result of a command. ``print(result)`` gives the command line's text, and a notebook shows a short page."""

    renderer: ClassVar[str] = ""
    """The module whose functions ``text``, ``cell``, ``page`` and ``data`` render a result."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command line for this result."""
        raise NotImplementedError

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0: nothing to do, and nothing went wrong."""
        return self.exit_code == 0

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dicts, lists, strings, numbers and None: what ``--format json`` writes."""
        data: dict[str, Any] = self._render("data")
        return data

    def to_html(self) -> str:
        """The result as a complete page that loads nothing from elsewhere."""
        return str(self._render("page"))

    def __str__(self) -> str:
        return str(self._render("text"))

    def __repr__(self) -> str:
        (first, subject), *rest = self._facts().items()
        facts = "".join(f", {name}={value!r}" for name, value in rest)
        return f"{type(self).__name__}({first}={subject!r}{facts})"

    def _facts(self) -> Mapping[str, object]:
        """The facts that ``repr`` names, subject first."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return str(self._render("cell"))

    def _render(self, form: str) -> Any:
        return getattr(importlib.import_module(self.renderer), form)(self)


def pandas_for(what: str) -> Any:
    """pandas, for the method ``what``.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise UsageError(f"{what} needs pandas, which is not installed: pip install pandas") from None
