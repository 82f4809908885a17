"""Records: frozen data classes that cost nothing until one is made.

``dataclasses.dataclass`` writes up to six methods as text and compiles them, for each class: a millisecond. A command
imports some two hundred records, and most of them are of no use to the model at hand. ``record`` leaves all that to the
first use, after which the class is what ``dataclass(frozen=True)`` makes. Of its methods only ``__init__`` is compiled:
what compares, hashes and shows a record asks for its fields, as fast, and takes a quarter of the time to make.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from itertools import pairwise
from operator import attrgetter
from reprlib import recursive_repr
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
    made = vars(like if _finish(like, stubs, eq, repr) else dataclass(frozen=True, eq=eq, repr=repr)(like))
    for name, value in own.items():
        if isinstance(value, Field):
            setattr(cls, name, made[name]) if name in made else delattr(cls, name)
    for name, value in made.items():
        if name in stubs or name in _DESCRIBED or (name not in own and name not in _UNSHARED):
            setattr(cls, name, value)
    del cls.__signature__  # type: ignore[attr-defined]


def _finish(cls: type, wanted: set[str], eq: bool, repr: bool) -> bool:
    """Make a data class of a class, with the methods that are ``wanted``. Returns False, and does nothing, for what is
    left to ``dataclass``: classes that derive from others, and rare fields.

    Raises:
        TypeError: a field with a default stands before one without, in the words of ``dataclasses``.
    """
    kinds = cls.__annotations__
    if kinds.keys() & {"self", "_set", "_later"} or any("InitVar" in str(kind) for kind in kinds.values()):
        return False
    if any(hasattr(base, "__dataclass_fields__") for base in cls.__bases__):
        return False
    dataclass(init=False, repr=False, eq=False)(cls)
    own = fields(cls)
    for before, one in pairwise(one for one in own if one.init and not one.kw_only):
        if _has_default(before) and not _has_default(one):
            raise TypeError(f"non-default argument {one.name!r} follows default argument")
    state = cls.__dataclass_params__  # type: ignore[attr-defined]
    state.init = state.frozen = True
    state.repr, state.eq = repr, eq
    compared = _values([one.name for one in own if one.compare])
    hashed = _values([one.name for one in own if (one.compare if one.hash is None else one.hash)])
    shown = [one.name for one in own if one.repr]

    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def __hash__(self: Any) -> int:
        return hash(hashed(self))

    @recursive_repr()
    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({values})"

    for method in (_initializer(cls, own), __eq__, __hash__, __repr__):
        if method.__name__ in wanted:
            method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
            method.__module__ = cls.__module__
            setattr(cls, method.__name__, method)
    return True


def _has_default(one: Field[Any]) -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of these attributes."""
    if len(names) == 1:
        only = attrgetter(names[0])
        return lambda self: (only(self),)
    return attrgetter(*names) if names else lambda _: ()


class _Made:
    """Stands for the value that a field's ``default_factory`` makes."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE_LATER = _Made()


def _initializer(cls: type, own: tuple[Field[Any], ...]) -> Callable[..., None]:
    """``__init__``, which takes the fields and keeps them."""
    space: dict[str, Any] = {"_set": object.__setattr__, "_later": _MADE_LATER}
    taken: dict[bool, list[str]] = {False: [], True: []}
    lines = []
    for one in own:
        name, factory = one.name, one.default_factory
        if one.init:
            default = one.default if factory is MISSING else _MADE_LATER
            space[f"_default_{name}"] = default
            taken[bool(one.kw_only)].append(name if default is MISSING else f"{name}=_default_{name}")
        if factory is not MISSING:
            space[f"_make_{name}"] = factory
            value = f"_make_{name}()"
            value = f"{value} if {name} is _later else {name}" if one.init else value
            lines.append(f" _set(self, {name!r}, {value})")
        elif one.init:
            lines.append(f" _set(self, {name!r}, {name})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters = ", ".join(["self", *taken[False], *(["*", *taken[True]] if taken[True] else [])])
    exec("\n".join([f"def __init__({parameters}):", *(lines or [" pass"])]), space)
    made: Callable[..., None] = space["__init__"]
    made.__annotations__ = {**{one.name: one.type for one in own if one.init}, "return": None}
    return made


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
