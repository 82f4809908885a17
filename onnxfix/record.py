"""Records: frozen data classes that cost nothing until one is made.

``dataclasses.dataclass`` writes up to six methods as text and compiles them, for each class: a millisecond. A command
imports some two hundred records, and most of them are of no use to the model at hand. ``record`` leaves all that to the
first use, after which the class is what ``dataclass(frozen=True)`` makes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import Field, FrozenInstanceError, dataclass, field
from typing import Any, TypeVar, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type)

_COMPLETING = threading.RLock()
if hasattr(os, "register_at_fork"):  # a fork must not find it taken by a thread that does not exist there
    os.register_at_fork(
        before=_COMPLETING.acquire, after_in_parent=_COMPLETING.release, after_in_child=_COMPLETING.release
    )

_MADE = ("__init__", "__repr__", "__eq__", "__hash__")
"""What a data class gets unless the class has it; until then stubs stand for it."""
_DESCRIBED = ("__dataclass_fields__", "__match_args__", "__signature__")
_UNSHARED = frozenset(("__dict__", "__weakref__", "__setattr__", "__delattr__", *_DESCRIBED))


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
        unwanted = {*(() if eq else ("__eq__", "__hash__")), *(() if repr else ("__repr__",))}
        # A class with an __eq__ of its own has None for __hash__, which a frozen data class replaces.
        stubs = {name for name in _MADE if name not in unwanted and vars(cls).get(name) is None}
        left = True

        def complete() -> None:
            nonlocal left
            with _COMPLETING:
                if left:
                    _complete(cls, stubs, eq, repr)
                    left = False

        for name in stubs:
            setattr(cls, name, _method(cls, name, complete))
        for name in _DESCRIBED:
            setattr(cls, name, _Attribute(cls, name, complete))
        _freeze(cls)
        return cls

    return late if cls is None else late(cls)


def _complete(cls: type, stubs: set[str], eq: bool, repr: bool) -> None:
    """Give a class what ``dataclass`` makes of its like. It is never without: another thread finds either a stub, which
    waits, or what replaced it."""
    own = {name: value for name, value in vars(cls).items() if name not in stubs and name not in _UNSHARED}
    space = {**own, "__qualname__": cls.__qualname__, "__annotations__": dict(cls.__annotations__)}
    like = type(cls)(cls.__name__, cls.__bases__, space)
    made = vars(dataclass(frozen=True, eq=eq, repr=repr)(like))
    for name, value in own.items():
        if isinstance(value, Field):
            setattr(cls, name, made[name]) if name in made else delattr(cls, name)
    for name, value in made.items():
        if name in stubs or name in _DESCRIBED or (name not in own and name not in _UNSHARED):
            setattr(cls, name, value)
    del cls.__signature__  # type: ignore[attr-defined]


def _freeze(cls: type) -> None:
    """Refuse to set and delete attributes, as a frozen data class does."""

    def frozen(self: Any, name: str) -> bool:
        return type(self) is cls or name in cls.__dataclass_fields__  # type: ignore[attr-defined]

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if frozen(self, name):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: Any, name: str) -> None:
        if frozen(self, name):
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__  # type: ignore[method-assign, assignment]


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
