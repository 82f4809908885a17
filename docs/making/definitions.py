"""JSON Schemas made from the records that reports are written from.

A schema says what ``report.plain`` makes of a record: all its fields, and the properties that JSON has besides. It
allows other keys, since a later version may add some; a key that is removed or changes its meaning raises the version.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, Literal, Union, get_args, get_origin

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {str: "string", int: "integer", bool: "boolean", type(None): "null"}
#: JSON has no NaN and no infinities.
_NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}


class Definitions:
    """The schemas of records by name, each made once and referred to from then on.

    Args:
        known: types that the records' modules import for type checkers only, by name.
        left_out: fields that are not written, by the name of their record.
    """

    def __init__(
        self, known: Mapping[str, Any], left_out: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self._known = known
        self._left_out = left_out or {}
        self._kinds: dict[str, Any] = {}
        self.made: dict[str, dict[str, Any]] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of a type, with references to records.

        Raises:
            TypeError: reports hold no such type, or two records have one name.
        """
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            return _either([self.of(one) for one in arguments])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (tuple, list):
            return self._array(arguments)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if is_dataclass(hint):
            return self._reference(hint)
        if hint in _PLAIN:
            return {"type": _PLAIN[hint]}
        if hint is float:
            return dict(_NUMBER)
        if hint is Any:
            return {}
        raise TypeError(f"reports hold no {hint}")

    def record(self, kind: Any) -> dict[str, Any]:
        """The schema of a record: all keys are required."""
        hints = typing.get_type_hints(kind, localns=self._names(kind))
        names = [one.name for one in fields(kind) if one.name not in self._left_out.get(kind.__name__, ())]
        properties = {name: self.of(hints[name]) for name in names}
        for name in getattr(kind, "RENDERED", ()):
            properties[name] = {**self.of(self._returned(kind, name)), **described(getattr(kind, name))}
        return object_of(properties, described(kind))

    def _reference(self, kind: Any) -> dict[str, Any]:
        name = kind.__name__
        if self._kinds.setdefault(name, kind) is not kind:
            raise TypeError(f"two records are named {name}")
        if name not in self.made:
            self.made[name] = {}  # it may hold itself
            self.made[name] = self.record(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _array(self, arguments: Sequence[Any]) -> dict[str, Any]:
        if len(arguments) == 1 or (len(arguments) == 2 and arguments[1] is Ellipsis):
            return {"type": "array", "items": self.of(arguments[0])}
        count = len(arguments)
        return {
            "type": "array",
            "prefixItems": [self.of(one) for one in arguments],
            "minItems": count,
            "maxItems": count,
        }

    def _returned(self, kind: Any, name: str) -> Any:
        """The type of a property."""
        made = getattr(kind, name)
        getter = made.func if isinstance(made, cached_property) else made.fget
        return typing.get_type_hints(getter, localns=self._names(kind))["return"]

    def _names(self, kind: Any) -> dict[str, Any]:
        """What the names in a record's annotations mean; those of its own module come first."""
        return {**self._known, **vars(sys.modules[kind.__module__])}


def object_of(properties: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An object that has all of these keys."""
    return {"type": "object", **(more or {}), "properties": dict(properties), "required": list(properties)}


def described(thing: Any) -> dict[str, str]:
    """The docstring as a description, one paragraph a line; nothing without one."""
    doc = inspect.getdoc(thing) or ""
    text = "\n".join(" ".join(part.split()) for part in doc.split("\n\n")).replace("``", "`")
    return {"description": text} if text else {}


def document(name: str, title: str, root: Mapping[str, Any], definitions: Definitions) -> dict[str, Any]:
    """A schema as a whole; ``name`` is that of its file."""
    made = dict(sorted(definitions.made.items()))
    return {"$schema": DIALECT, "$id": name, "title": title, **root, "$defs": made}


def _either(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """One of several, with plain types in one list."""
    plain = [one["type"] for one in schemas if set(one) == {"type"}]
    others = [one for one in schemas if set(one) != {"type"}]
    if not others:
        return {"type": plain}
    return {"anyOf": [*others, *({"type": name} for name in plain)]}
