"""The reference of the Python functions and records: what ``onnxfix`` exports, for mkdocstrings to fill in."""

from __future__ import annotations

import inspect

import onnxfix

_HEAD = """\
# Python reference

Everything that `import onnxfix` offers, from the docstrings. [onnxfix in Python](../python.md) shows how it is used.
"""
_RULES = {"Example", "Fix", "Match", "Rule", "Safety", "Severity"}


def python_page() -> str:
    """The page, with a directive of mkdocstrings for each name."""
    parts: dict[str, list[str]] = {"Functions": [], "Records": [], "Errors": [], "For rule packs": []}
    for name in sorted(one for one in onnxfix.__all__ if not one.startswith("_")):
        thing = getattr(onnxfix, name)
        if inspect.ismodule(thing):
            continue
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            kind = "Errors"
        elif name in _RULES:
            kind = "For rule packs"
        else:
            kind = "Records" if inspect.isclass(thing) else "Functions"
        parts[kind].append(f"::: {thing.__module__}.{thing.__qualname__}")
    text = [_HEAD]
    for kind, names in parts.items():
        text += [f"## {kind}", "", *(line for name in names for line in (name, ""))]
    return "\n".join(text)
