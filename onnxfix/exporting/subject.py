"""What the proof of an export needs of the module that was exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from onnxfix.record import record


@record
class Given:
    """A tensor among the arguments: its array, and the name of its parameter ("" where it lies within one)."""

    name: str
    array: Any


class Subject(Protocol):
    """A module with the arguments that it was exported with.

    ``torch`` is the version that runs it, ``exporter`` "dynamo", "legacy" or "". ``given`` are the tensors among its
    arguments, in order. ``bounds`` are the least and the greatest size of dynamic dimensions, by name, where the
    user set any.
    """

    @property
    def torch(self) -> str: ...
    @property
    def exporter(self) -> str: ...
    @property
    def given(self) -> Sequence[Given]: ...
    @property
    def bounds(self) -> Mapping[str, tuple[int, int]]: ...

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The tensors of its outputs, for these in the place of the given ones.

        Raises:
            Exception: whatever the module raises.
        """


@record
class Case:
    """Inputs to compare on: ``label`` says which, ``arrays`` are in the order of ``Subject.given``."""

    label: str
    arrays: tuple[Any, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
