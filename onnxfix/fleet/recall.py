"""Reads records back from JSON."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from onnxfix.difference.records import ModelDifference
from onnxfix.files.lazy import Pending
from onnxfix.pipeline.intake import Intake
from onnxfix.pipeline.stopped import Stopped
from onnxfix.report.neighborhood import Picture
from onnxfix.rule import Safety, Severity
from onnxfix.trt.reading import Reading
from onnxfix.trt.records import TrtBuild
from onnxfix.verification.verdict import Verdict

_Record = TypeVar("_Record")
RECORDS = {
    kind.__name__: kind
    for kind in (Reading, TrtBuild, Pending, Intake, Stopped, Picture, Verdict, ModelDifference)
}
"""Records that modules import for type checkers only, by name."""

_LEVELS = {
    "severity": {"", *(one.name.lower() for one in Severity)},
    "safety": {"", *(one.name.lower() for one in Safety)},
}
"""Fields of records that are texts, but names of levels: each has its place in an order."""


def recall(kind: type[_Record], data: Any) -> _Record:
    """A frozen dataclass from the output of ``report.plain``, including the tuples, mappings and records in it.

    Raises:
        ValueError: ``data`` is not a record of this kind.
    """
    found = _value(kind, data)
    assert isinstance(found, kind)  # _record has made it
    return found


def _value(hint: Any, data: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either(arguments, data)
    if origin is Literal:
        return _expect(data in arguments, data, data)
    if origin is tuple:
        return _tuple(arguments, data)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(data, dict), data)
        return {_value(arguments[0], key): _value(arguments[1], item) for key, item in data.items()}
    if is_dataclass(hint):
        return _record(hint, data)
    if hint is float:
        known = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
        number = isinstance(data, (int, float)) and not isinstance(data, bool)
        return known[data] if isinstance(data, str) and data in known else _expect(number, data, data)
    if hint is Any:
        return data
    return _expect(isinstance(data, hint) and (hint is bool or not isinstance(data, bool)), data, data)


def _expect(holds: bool, data: Any, value: Any = None) -> Any:
    if not holds:
        raise ValueError(f"unexpected {type(data).__name__} in a record")
    return value


def _either(kinds: tuple[Any, ...], data: Any) -> Any:
    for kind in kinds:
        try:
            return None if kind is type(None) and data is None else _value(kind, data)
        except ValueError:
            continue
    raise ValueError("unexpected value in a record")


def _tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    _expect(isinstance(data, list), data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_value(kinds[0], item) for item in data)
    _expect(len(kinds) == len(data), data)
    return tuple(_value(kind, item) for kind, item in zip(kinds, data, strict=True))


def _record(kind: Any, data: Any) -> Any:
    _expect(isinstance(data, dict), data)
    hints = _hints(kind)
    names = {one.name for one in fields(kind) if one.init}
    _expect(set(data) <= names | set(getattr(kind, "RENDERED", ())), data)
    _expect(all(data.get(name, "") in known for name, known in _LEVELS.items() if name in names), data)
    try:
        return kind(**{name: _value(hints[name], item) for name, item in data.items() if name in names})
    except TypeError:
        raise ValueError(f"a record of {kind.__name__} lacks a field") from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of the fields; names that the module imports for type checkers only come from ``RECORDS``."""
    return typing.get_type_hints(kind, localns=RECORDS)
