"""The nodes around a finding or a fix, as records that renderers draw. Gathered by ``verbs.picturing``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxfix.place import Place

#: "node": an operator. "input", "output": of the graph, or a value from outside of the subgraph.
Kind = Literal["node", "input", "output"]
#: What became of a node between the original and the result. "": it is in both, unchanged, or there is one model only.
Mark = Literal["", "removed", "added", "changed"]


@dataclass(frozen=True)
class Box:
    """A node, an input or an output of the graph.

    ``title`` is the operator or the value's name, ``name`` the node's name or its output's. ``lines`` are its
    attributes and constant inputs. ``focus``: the finding is here. ``above`` counts the omitted nodes that it
    reads, and ``below`` the omitted nodes that read it.
    """

    kind: Kind
    title: str
    name: str = ""
    lines: tuple[str, ...] = ()
    focus: bool = False
    mark: Mark = ""
    above: int = 0
    below: int = 0


@dataclass(frozen=True)
class Wire:
    """A value, from box ``source`` to box ``target``. ``label`` is its type and shape, as far as they are known."""

    source: int
    target: int
    value: str
    label: str = ""


@dataclass(frozen=True)
class Neighborhood:
    """Some nodes of a graph and the values between them. Wires run from a box to a later one."""

    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]


@dataclass(frozen=True)
class Picture:
    """What is around ``place``, where rule ``code`` has a finding or a fix, in the model that it was found in.
    ``after`` is the same part of the result, for a fix that was applied; None for a finding."""

    code: str
    place: Place
    before: Neighborhood | None
    after: Neighborhood | None = None
