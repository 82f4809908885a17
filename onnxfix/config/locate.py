"""Which configuration file holds: the nearest one, from the working directory upward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnxfix.errors import UsageError

NAMES = ("onnxfix.toml", ".onnxfix.toml", "pyproject.toml")
"""The files that are looked for in each folder, in this order."""
SHARED = "pyproject.toml"
"""The file that is onnxfix's only if it has a table [tool.onnxfix]."""


def found(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """The nearest file and onnxfix's table in it; None where there is none.

    Raises:
        UsageError: the file cannot be read, or is no TOML.
    """
    start = start.absolute()
    for folder in (start, *start.parents):
        for name in NAMES:
            path = folder / name
            if path.is_file() and (table := table_of(path)) is not None:
                return path, table
    return None


def table_of(path: Path) -> dict[str, Any] | None:
    """onnxfix's table in a file; None for a pyproject.toml without one.

    Raises:
        UsageError: the file cannot be read, or is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not TOML, which is in UTF-8") from None
    shared = path.name == SHARED
    if shared and "onnxfix" not in text:  # another project's file, which is not ours to judge
        return None
    import tomllib  # lazy: start-up

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: is not valid TOML: {error}") from None
    if not shared:
        return data
    table = data.get("tool", {}).get("onnxfix") if isinstance(data.get("tool", {}), dict) else None
    if table is None or isinstance(table, dict):
        return table
    raise UsageError(f"{path}: tool.onnxfix is {type(table).__name__}, not a table")
