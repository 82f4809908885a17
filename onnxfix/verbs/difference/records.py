"""Differences between two models, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from onnxfix.place import Place

Sign = Literal["removed", "added", "changed"]
#: What is different. "constant" is a Constant node; "model" is what stands beside the graph, such as the IR version.
Subject = Literal["model", "opset", "function", "input", "output", "node", "constant", "initializer"]


@dataclass(frozen=True)
class Detail:
    """A part of something that changed, and its text in both models; "" where it is not there."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class ModelChange:
    """Something that only one model has, or that both have with other contents.

    ``place`` is that of the first model, or of the second for what was added; its ``output`` is the name of a value,
    domain or function that is no node. ``details`` are what changed, or the contents of a constant that is new or
    gone. ``rules`` are the codes of the rules whose fixes did it, as far as that is known. Changes of one ``region``
    are connected (-1: with no other).
    """

    sign: Sign
    subject: Subject
    place: Place
    details: tuple[Detail, ...] = ()
    rules: tuple[str, ...] = ()
    region: int = -1


@dataclass(frozen=True)
class ChangeGroup:
    """Changes of nodes and constants with one cause: the fixes of ``rule``, or where that is not known ("") the same
    replacement at ``times`` places.

    ``removed``, ``added`` and ``changed`` count the nodes by operator, in all places; of a node that became another
    operator, one is removed and one added. ``changes`` are numbers of ``ModelDifference.changes``.
    """

    rule: str
    times: int
    removed: Mapping[str, int]
    added: Mapping[str, int]
    changed: Mapping[str, int]
    changes: tuple[int, ...]
    examples: tuple[int, ...]


@dataclass(frozen=True)
class ModelDifference:
    """All differences between the models ``path`` and ``other``, in the order of the first model.

    ``groups`` are the changes of nodes and constants by their cause, the largest group first. ``removed``, ``added``
    and ``changed`` count nodes, without Constants.
    """

    path: str
    other: str
    changes: tuple[ModelChange, ...] = ()
    groups: tuple[ChangeGroup, ...] = ()

    RENDERED: ClassVar[tuple[str, ...]] = ("removed", "added", "changed", "exit_code")

    @property
    def removed(self) -> int:
        """How many nodes only the first model has."""
        return self._count("removed")

    @property
    def added(self) -> int:
        """How many nodes only the second model has."""
        return self._count("added")

    @property
    def changed(self) -> int:
        """How many nodes have other inputs, outputs or attributes, or are another operator."""
        return self._count("changed")

    def _count(self, sign: Sign) -> int:
        return sum(one.sign == sign and one.subject == "node" for one in self.changes)

    @property
    def exit_code(self) -> int:
        """0 where nothing differs, else 1."""
        return int(bool(self.changes))
