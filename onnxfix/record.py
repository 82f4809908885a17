"""Records: frozen data classes that cost nothing until one is made.

``dataclasses.dataclass`` writes up to six methods as text and compiles them, for each class: a millisecond. A command
imports some two hundred records, and most of them are of no use to the model at hand. ``record`` leaves all that to the
first use, after which the class is what ``dataclass(frozen=True)`` makes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type)

_COMPLETING = threading.RLock()
if hasattr(os, "register_at_fork"):  # a fork must not find it taken by a thread that does not exist there
    os.register_at_fork(
        before=_COMPLETING.acquire, after_in_parent=_COMPLETING.release, after_in_child=_COMPLETING.release
    )

_COMPARING = ("__eq__", "__hash__")
_METHODS = ("__init__", "__setattr__", "__delattr__")
_ATTRIBUTES = ("__dataclass_fields__", "__match_args__", "__signature__")


@overload
def record(cls: _Class, /) -> _Class: ...
@overload
def record(*, eq: bool = True, repr: bool = True) -> Callable[[_Class], _Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: Any = None, /, *, eq: bool = True, repr: bool = True) -> Any:
    """Make a frozen data class of a class, as ``dataclass(frozen=True, eq=eq, repr=repr)`` does, but on its first use.

    The functions of ``dataclasses``, pattern matching, pickling, copying and inheritance work as ever. Until the first
    use, class attributes are what the class says: a ``field(...)`` is no default value yet.
    """

    def late(cls: type) -> type:
        names = (*_METHODS, *(_COMPARING if eq else ()), *(("__repr__",) if repr else ()))
        # A class with an __eq__ of its own has None for __hash__, which a frozen data class replaces.
        stubs = [name for name in names if vars(cls).get(name) is None]
        left = True

        def complete() -> None:
            nonlocal left
            with _COMPLETING:
                if left:
                    left = False
                    for name in (*stubs, *_ATTRIBUTES):
                        delattr(cls, name)
                    dataclass(frozen=True, eq=eq, repr=repr)(cls)

        for name in stubs:
            setattr(cls, name, _method(cls, name, complete))
        for name in _ATTRIBUTES:
            setattr(cls, name, _Attribute(cls, name, complete))
        return cls

    return late if cls is None else late(cls)


def _method(cls: type, name: str, complete: Callable[[], None]) -> Callable[..., Any]:
    """What stands for a method until the class is complete."""

    def stub(self: Any, /, *args: Any, **keywords: Any) -> Any:
        complete()
        return getattr(cls, name)(self, *args, **keywords)

    stub.__name__ = name
    return stub


class _Attribute:
    """What stands for an attribute of the class until that is complete."""

    def __init__(self, cls: type, name: str, complete: Callable[[], None]) -> None:
        self.cls, self.name, self.complete = cls, name, complete

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        self.complete()
        return getattr(self.cls, self.name)
