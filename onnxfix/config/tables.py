"""Reading a table of a configuration file: whatever is wrong is one line with the file, the key and the near miss."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Any

from onnxfix.errors import UsageError

_TYPES = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "an array",
    dict: "a table",
}


class Table:
    """A table of a file, of which each key is taken once. ``file`` and ``key`` say where it is."""

    def __init__(self, data: Mapping[str, Any], file: str, key: str) -> None:
        self._data = data
        self.file = file
        self.key = key

    def only(self, known: Iterable[str]) -> None:
        """Refuse all other keys.

        Raises:
            UsageError: there is one; it names the known key that comes near.
        """
        names = list(known)
        for key in self._data:
            if key not in names:
                raise self.error(key, f"unknown key{meant(key.replace('_', '-'), names)}")

    def error(self, key: str, problem: str) -> UsageError:
        """What is wrong with a key of this table, or with the table as a whole ("")."""
        where = ".".join(part for part in (self.key, key) if part)
        return UsageError(f"{self.file}: {where}: {problem}" if where else f"{self.file}: {problem}")

    def text(self, key: str) -> str | None:
        """A string that is not empty; None where the key is missing.

        Raises:
            UsageError: it is something else.
        """
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        if not value.strip():
            raise self.error(key, "is empty")
        return value

    def needed(self, key: str, why: str) -> str:
        """A string that has to be there.

        Raises:
            UsageError: it is not, or it is empty.
        """
        value = self.text(key)
        if value is None:
            raise self.error("", f"{key} is missing: {why}")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A string, or an array of strings.

        Raises:
            UsageError: it is something else.
        """
        value = self._data.get(key)
        if value is None:
            return None
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list):
            raise self._wrong(key, value, "a string or an array of strings")
        for one in values:
            if not isinstance(one, str):
                raise self._wrong(key, one, "a string", "has an item that ")
            if not one.strip():
                raise self.error(key, "has an empty item")
        return tuple(values)

    def choice(self, key: str, choices: Iterable[str]) -> str | None:
        """One of some strings.

        Raises:
            UsageError: it is none of them.
        """
        value, names = self.text(key), list(choices)
        if value is not None and value not in names:
            raise self.error(
                key, f"unknown value {value!r}{meant(value, names)}; choose from {', '.join(names)}"
            )
        return value

    def number(self, key: str) -> float | None:
        """A number of 0 or more.

        Raises:
            UsageError: it is something else.
        """
        value = self._data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, value, "a number")
        if not math.isfinite(value) or value < 0:
            raise self.error(key, f"is {value}, not a finite number of 0 or more")
        return float(value)

    def text_or_number(self, key: str) -> str | float | None:
        """A string that is not empty, or a number of 0 or more; None where the key is missing.

        Raises:
            UsageError: it is something else.
        """
        value = self._data.get(key)
        return self.text(key) if value is None or isinstance(value, str) else self.number(key)

    def whole(self, key: str) -> int | None:
        """A whole number of 1 or more.

        Raises:
            UsageError: it is something else.
        """
        value = self.number(key)
        if value is not None and (value != int(value) or value < 1):
            raise self.error(key, f"is {value:g}, not a whole number of 1 or more")
        return int(value) if value is not None else None

    def seconds(self, key: str) -> float | None:
        """A number above 0.

        Raises:
            UsageError: it is something else.
        """
        value = self.number(key)
        if value == 0:
            raise self.error(key, "is 0, not a number of seconds above 0")
        return value

    def day(self, key: str) -> date | None:
        """A date.

        Raises:
            UsageError: it is something else.
        """
        value = self._data.get(key)
        if isinstance(value, datetime):
            return value.date()
        if value is None or isinstance(value, date):
            return value
        if isinstance(value, str):
            try:
                return date.fromisoformat(value)
            except ValueError:
                raise self.error(key, f"{value!r} is not a date such as 2027-01-31") from None
        raise self._wrong(key, value, "a date such as 2027-01-31")

    def table(self, key: str, example: str) -> Table | None:
        """A table within it.

        Raises:
            UsageError: it is something else.
        """
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, f"a table such as {example}")
        return Table(value, self.file, f"{self.key}.{key}" if self.key else key)

    def tables(self, key: str) -> Iterator[Table]:
        """The tables of an array; none where the key is missing.

        Raises:
            UsageError: it is something else.
        """
        values = self._data.get(key, [])
        name = f"{self.key}.{key}" if self.key else key
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            raise self.error(key, f"is not an array of tables; write [[{name}]]")
        for number, one in enumerate(values, 1):
            yield Table(one, self.file, f"{name}[{number}]" if len(values) > 1 else name)

    def checked(self, key: str, check: Callable[[], object]) -> None:
        """Have something else judge the value of a key.

        Raises:
            UsageError: it is not accepted; with the file and the key.
        """
        try:
            check()
        except UsageError as error:
            raise self.error(key, str(error)) from None

    def _wrong(self, key: str, value: object, wanted: str, what: str = "") -> UsageError:
        found = next((words for kind, words in _TYPES.items() if type(value) is kind), type(value).__name__)
        return self.error(key, f"{what}is {found}, not {wanted}")


def meant(name: str, known: Iterable[str]) -> str:
    """The known name that comes near, as the end of a message; "" where none does."""
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""
