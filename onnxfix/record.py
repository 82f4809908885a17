"""Records: frozen data classes, which is what everything in onnxfix is passed around as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform, overload

_Class = TypeVar("_Class", bound=type)


@overload
def record(cls: _Class, /) -> _Class: ...
@overload
def record(*, eq: bool = True, repr: bool = True) -> Callable[[_Class], _Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: Any = None, /, *, eq: bool = True, repr: bool = True) -> Any:
    """Make a frozen data class of a class."""
    make = dataclass(frozen=True, eq=eq, repr=repr)
    return make if cls is None else make(cls)
