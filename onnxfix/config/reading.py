"""A configuration file as records: onnxfix.toml, or [tool.onnxfix] of a pyproject.toml. Whatever is wrong in it is one
line with the file, the key and the near miss."""

from __future__ import annotations

import contextlib
import difflib
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from onnxfix.config.records import Config, Layer, Suppression
from onnxfix.config.table import SETTINGS, Kind, Option
from onnxfix.errors import UsageError
from onnxfix.names import RUNGS
from onnxfix.rewrite import packs
from onnxfix.runtime.allowance import effort_of

NAMES = ("onnxfix.toml", ".onnxfix.toml", "pyproject.toml")
"""The files that are looked for in each folder, in this order."""
SHARED = "pyproject.toml"
"""The file that is onnxfix's only if it has a table [tool.onnxfix]."""
_TOLERANCES = tuple(name for name, option in SETTINGS.items() if option.kind is Kind.NUMBER)
"""The settings that are in a table of their own, ``tolerance``."""
_KEYS = ("tolerance", *(option.key for name, option in SETTINGS.items() if name not in _TOLERANCES))
_TYPES = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "an array",
    dict: "a table",
}
_NUMBER = (int, float)
_DAY = "a date such as 2027-01-31"


def read_configuration(start: Path, file: Path | None = None) -> Config:
    """The configuration of ``file``, or of the nearest file from ``start`` upward; an empty one where there is none.

    Raises:
        UsageError: ``file`` does not exist or has no table of onnxfix, or something in the file is wrong.
    """
    if file is not None:
        if not file.is_file():
            raise UsageError(f"--config {file}: no such file")
        data = _read_table(file)
        if data is None:
            raise UsageError(f"--config {file}: has no table [tool.onnxfix]")
        return _config(file.absolute(), data)
    start = start.absolute()
    for folder in (start, *start.parents):
        for path in (folder / name for name in NAMES):
            if path.is_file() and (data := _read_table(path)) is not None:
                return _config(path, data)
    return Config()


def _read_table(path: Path) -> dict[str, Any] | None:
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


def _config(path: Path, data: dict[str, Any]) -> Config:
    """The configuration in onnxfix's table of a file.

    Raises:
        UsageError: a key does not exist, or a value is not what it has to be.
    """
    name = Config(path).name
    table = _Table(data, name, "tool.onnxfix" if path.name == SHARED else "")
    table.refuse_others((*_KEYS, "packs", "baseline", "overrides", "suppressions"))
    baseline, wanted = table.text("baseline"), table.texts("packs")
    with contextlib.ExitStack() as stack:
        if wanted is not None and not packs.setting():  # --packs and the environment win
            table.check("packs", lambda: stack.enter_context(packs.chosen(wanted)))
        return Config(
            path,
            path.parent,
            _layer(table, name),
            tuple(_override(one, name) for one in table.tables("overrides")),
            tuple(_suppression(one, name) for one in table.tables("suppressions")),
            path.parent / baseline if baseline is not None else None,
            wanted,
        )


def _layer(table: _Table, origin: str, models: tuple[str, ...] = ()) -> Layer:
    tolerance = table.table("tolerance", "{ rtol = 1e-3, atol = 1e-5 }")
    tolerance.refuse_others(_TOLERANCES)
    values: dict[str, Any] = {}
    for name, option in SETTINGS.items():
        value = (tolerance if name in _TOLERANCES else table).read(option)
        if value is not None:
            values[name] = value
            _check(table, option, value)
    return Layer(origin, values, models)


def _check(table: _Table, option: Option, value: Any) -> None:
    """Refuse names of targets, rules and checks that do not exist."""
    if option.name == "target":
        from onnxfix.targets import target_named  # lazy: start-up

        table.check("target", lambda: target_named(value))
    elif option.kind is Kind.NAMES and value:
        from onnxfix.rewrite.registry import registry  # lazy: start-up

        table.check(option.key, lambda: registry().matching(value))
    elif option.kind is Kind.EFFORT:
        table.check("effort", lambda: effort_of(value))
    elif option.kind is Kind.CHECKS:
        for name in value:
            if name not in RUNGS:
                problem = f"unknown check {name!r}{_meant(name, RUNGS)}; choose from {', '.join(RUNGS)}"
                raise table.error(option.key, problem)


def _override(table: _Table, name: str) -> Layer:
    table.refuse_others(("models", *_KEYS))
    models = table.texts("models")
    if not models:
        raise table.error("", 'models is missing: name the models by a glob, such as "vit*.onnx"')
    return _layer(table, f"{name}, overrides for {', '.join(models)}", models)


def _suppression(table: _Table, name: str) -> Suppression:
    from onnxfix.rewrite.registry import registry  # lazy: start-up

    table.refuse_others(("rule", "node", "models", "reason", "until"))
    rule = table.require("rule", "a code, the beginning of codes, or a name")
    table.check("rule", lambda: registry().matching([rule]))
    return Suppression(
        rule,
        frozenset(one.code for one in registry().matching([rule])),
        table.require("reason", "say why the finding is accepted"),
        table.text("node") or "*",
        table.texts("models") or (),
        table.day("until"),
        name,
    )


class _Table:
    """A table of a file; ``file`` and ``key`` say where it is. All that is wrong with a key raises UsageError; each
    method gives None where the key is missing."""

    def __init__(self, data: Mapping[str, Any], file: str, key: str) -> None:
        self._data = data
        self.file = file
        self.key = key

    def read(self, option: Option) -> Any:
        """The value of a setting, by its kind."""
        if option.kind is Kind.CHOICE:
            return self.choice(option.key, option.choices)
        readers: dict[Kind, Callable[[str], Any]] = {
            Kind.TEXT: self.text,
            Kind.NAMES: self.texts,
            Kind.TEXTS: self.texts,
            Kind.CHECKS: self.texts,
            Kind.NUMBER: self.number,
            Kind.EFFORT: self.text_or_number,
            Kind.MEGABYTES: self.whole,
            Kind.SECONDS: self.seconds,
        }
        return readers[option.kind](option.key)

    def refuse_others(self, known: Sequence[str]) -> None:
        """Refuse all other keys, with the known key that comes near."""
        for key in self._data:
            if key not in known:
                raise self.error(key, f"unknown key{_meant(key.replace('_', '-'), known)}")

    def error(self, key: str, problem: str) -> UsageError:
        """What is wrong with a key of this table, or with the table as a whole ("")."""
        where = ".".join(part for part in (self.key, key) if part)
        return UsageError(f"{self.file}: {where}: {problem}" if where else f"{self.file}: {problem}")

    def check(self, key: str, judge: Callable[[], object]) -> None:
        """Have something else judge the value of a key; its UsageError gets the file and the key."""
        try:
            judge()
        except UsageError as error:
            raise self.error(key, str(error)) from None

    def text(self, key: str) -> str | None:
        """A string that is not empty."""
        value: str | None = self._typed(key, str, "a string")
        if value is not None and not value.strip():
            raise self.error(key, "is empty")
        return value

    def require(self, key: str, why: str) -> str:
        """A string that has to be there."""
        value = self.text(key)
        if value is None:
            raise self.error("", f"{key} is missing: {why}")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A string, or an array of strings."""
        value = self._typed(key, (str, list), "a string or an array of strings")
        if value is None:
            return None
        values = (value,) if isinstance(value, str) else tuple(value)
        for one in values:
            if not isinstance(one, str):
                raise self.error(key, f"has an item that is {_type_words(one)}, not a string")
            if not one.strip():
                raise self.error(key, "has an empty item")
        return values

    def choice(self, key: str, choices: Sequence[str]) -> str | None:
        """One of some strings."""
        value = self.text(key)
        if value is not None and value not in choices:
            problem = f"unknown value {value!r}{_meant(value, choices)}; choose from {', '.join(choices)}"
            raise self.error(key, problem)
        return value

    def number(self, key: str) -> float | None:
        """A number of 0 or more."""
        value = self._typed(key, _NUMBER, "a number")
        if value is not None and not 0 <= value < math.inf:
            raise self.error(key, f"is {value}, not a finite number of 0 or more")
        return None if value is None else float(value)

    def text_or_number(self, key: str) -> str | float | None:
        """A string that is not empty, or a number of 0 or more."""
        return self.text(key) if isinstance(self._data.get(key), str) else self.number(key)

    def whole(self, key: str) -> int | None:
        """A whole number of 1 or more."""
        value = self.number(key)
        if value is not None and (value != int(value) or value < 1):
            raise self.error(key, f"is {value:g}, not a whole number of 1 or more")
        return None if value is None else int(value)

    def seconds(self, key: str) -> float | None:
        """A number above 0."""
        value = self.number(key)
        if value == 0:
            raise self.error(key, "is 0, not a number of seconds above 0")
        return value

    def day(self, key: str) -> date | None:
        """A date."""
        value = self._typed(key, (str, date), _DAY)
        if isinstance(value, str):
            try:
                return date.fromisoformat(value)
            except ValueError:
                raise self.error(key, f"{value!r} is not {_DAY}") from None
        return value.date() if isinstance(value, datetime) else value

    def table(self, key: str, example: str) -> _Table:
        """A table within it, empty where the key is missing."""
        return _Table(self._typed(key, dict, f"a table such as {example}") or {}, self.file, self._inner(key))

    def tables(self, key: str) -> Iterator[_Table]:
        """The tables of an array; none where the key is missing."""
        values, name = self._data.get(key, []), self._inner(key)
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise self.error(key, f"is not an array of tables; write [[{name}]]")
        for number, one in enumerate(values, 1):
            yield _Table(one, self.file, f"{name}[{number}]" if len(values) > 1 else name)

    def _inner(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key

    def _typed(self, key: str, kind: Any, wanted: str) -> Any:
        """The value of a key, of one of these types. A boolean is no number."""
        value = self._data.get(key)
        if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
            return value
        raise self.error(key, f"is {_type_words(value)}, not {wanted}")


def _type_words(value: object) -> str:
    return _TYPES.get(type(value), type(value).__name__)


def _meant(name: str, known: Iterable[str]) -> str:
    """The known name that comes near, as the end of a message; "" where none does."""
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""
