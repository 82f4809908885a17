"""A configuration file as records: onnxfix.toml, or [tool.onnxfix] of a pyproject.toml."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from onnxfix import packs
from onnxfix.config.records import FAIL_ON, Config, Suppression, Values
from onnxfix.config.tables import Table, meant
from onnxfix.effort import effort_of
from onnxfix.errors import UsageError
from onnxfix.names import RUNGS

_VALUES = (
    "target",
    "select",
    "ignore",
    "fail-on",
    "require",
    "tolerance",
    "effort",
    "structure-limit",
    "timeout",
    "rung-timeout",
)
_TOP = (*_VALUES, "packs", "baseline", "overrides", "suppressions")
_WHY = "say why the finding is accepted"


def configuration(start: Path, file: Path | None = None) -> Config:
    """The configuration of ``file``, or of the nearest file from ``start`` upward; an empty one where there is none.

    Raises:
        UsageError: ``file`` does not exist or has no table of onnxfix, or something in the file is wrong.
    """
    if file is None:
        nearest = found(start)
        return Config() if nearest is None else read(*nearest)
    if not file.is_file():
        raise UsageError(f"--config {file}: no such file")
    table = table_of(file)
    if table is None:
        raise UsageError(f"--config {file}: has no table [tool.onnxfix]")
    return read(file.absolute(), table)


def read(path: Path, data: dict[str, Any]) -> Config:
    """The configuration in onnxfix's table of a file.

    Raises:
        UsageError: a key does not exist, or a value is not what it has to be.
    """
    name = Config(path).name
    table = Table(data, name, "tool.onnxfix" if path.name == SHARED else "")
    table.only(_TOP)
    baseline, wanted = table.text("baseline"), table.texts("packs")
    with contextlib.ExitStack() as stack:
        if wanted is not None and not packs.setting():  # --packs and the environment win
            table.checked("packs", lambda: stack.enter_context(packs.chosen(wanted)))
        return Config(
            path,
            path.parent,
            _values(table, name),
            tuple(_override(one, name) for one in table.tables("overrides")),
            tuple(_suppression(one, name) for one in table.tables("suppressions")),
            path.parent / baseline if baseline is not None else None,
            wanted,
        )


def _values(table: Table, origin: str, models: tuple[str, ...] = ()) -> Values:
    tolerance = table.table("tolerance", "{ rtol = 1e-3, atol = 1e-5 }")
    if tolerance is not None:
        tolerance.only(("rtol", "atol"))
    values = Values(
        origin,
        models,
        target=table.text("target"),
        select=table.texts("select"),
        ignore=table.texts("ignore"),
        fail_on=table.choice("fail-on", FAIL_ON),
        require=table.texts("require"),
        rtol=tolerance.number("rtol") if tolerance is not None else None,
        atol=tolerance.number("atol") if tolerance is not None else None,
        effort=table.text_or_number("effort"),
        structure_limit=table.whole("structure-limit"),
        timeout=table.seconds("timeout"),
        rung_timeout=table.seconds("rung-timeout"),
    )
    _check(table, values)
    return values


def _check(table: Table, values: Values) -> None:
    """Refuse names of targets, rules and checks that do not exist."""
    if values.target is not None:
        from onnxfix.targets import target_named  # lazy: start-up

        table.checked("target", lambda: target_named(values.target))
    for key, selectors in (("select", values.select), ("ignore", values.ignore)):
        if selectors:
            from onnxfix.registry import registry  # lazy: start-up

            table.checked(key, lambda names=selectors: registry().matching(names))  # type: ignore[misc]
    if values.effort is not None:
        table.checked("effort", lambda: effort_of(values.effort or 0.0))
    for name in values.require or ():
        if name not in RUNGS:
            raise table.error(
                "require", f"unknown check {name!r}{meant(name, RUNGS)}; choose from {', '.join(RUNGS)}"
            )


def _override(table: Table, name: str) -> Values:
    table.only(("models", *_VALUES))
    models = table.texts("models")
    if not models:
        raise table.error("", 'models is missing: name the models by a glob, such as "vit*.onnx"')
    return _values(table, f"{name}, overrides for {', '.join(models)}", models)


def _suppression(table: Table, name: str) -> Suppression:
    table.only(("rule", "node", "models", "reason", "until"))
    rule = table.needed("rule", "a code, the beginning of codes, or a name")
    from onnxfix.registry import registry  # lazy: start-up

    table.checked("rule", lambda: registry().matching([rule]))
    return Suppression(
        rule,
        frozenset(one.code for one in registry().matching([rule])),
        table.needed("reason", _WHY),
        table.text("node") or "*",
        table.texts("models") or (),
        table.day("until"),
        name,
    )


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
