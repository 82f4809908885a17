"""A place in a model, as data. Its text is made here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onnxfix.source import Source, source_of

if TYPE_CHECKING:
    from onnx import NodeProto


@dataclass(frozen=True, eq=False)
class Place:
    """A node, a value, a graph, or (all empty) the model as a whole.

    ``graph`` names the surrounding subgraphs and local function, outermost first. ``node`` and ``op_type`` are the
    node's name and operator, ``output`` is its first output, or the name of a value. ``index`` is the stored position
    in the main graph of the node or of the node around it (-1: unknown). ``around`` is that node of the main graph, if
    it is another one. ``layer`` is TensorRT's layer, if no node is known.
    ``source`` is the code that the node comes from.

    Two places are equal if graph, output, node and layer are.
    """

    graph: tuple[str, ...] = ()
    node: str = ""
    op_type: str = ""
    output: str = ""
    index: int = -1
    around: Place | None = None
    layer: str = ""
    source: Source | None = None

    #: Properties that JSON has besides the fields.
    RENDERED: ClassVar[tuple[str, ...]] = ("text",)

    @property
    def known(self) -> bool:
        """Whether it is a part of the model, not the model as a whole."""
        return bool(self.graph or self.label or self.node or self.layer)

    @property
    def label(self) -> str:
        """Its name within its graph, that of its output; "" for a graph."""
        if self.output:
            return self.output
        is_node = bool(self.op_type) and (self.index >= 0 or bool(self.node or self.graph))
        return f"<{self.op_type} without outputs>" if is_node else ""

    @property
    def text(self) -> str:
        """For people: ``graph path / first output``, and the node's own name where it has one."""
        if self.layer or not self.known:
            return f"layer {self.layer}" if self.layer else "the graph"
        where = " / ".join((*self.graph, *([self.label] if self.label else [])))
        return f"{where} ({self.node})" if self.node and self.node != self.output else where

    @property
    def short(self) -> str:
        """For people, by one name: ``graph path / node``, or the output's name where the node has none."""
        if self.layer or not self.known:
            return self.text
        own = self.node or self.label
        return " / ".join((*self.graph, *([own] if own else [])))

    @property
    def _key(self) -> tuple[object, ...]:
        return self.graph, self.label, "" if self.node == self.output else self.node, self.layer

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Place) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return self.text


def place_of(node: NodeProto, index: int = -1, graph: tuple[str, ...] = ()) -> Place:
    """The place of a node of the main graph, where ``index`` is its position, or of a node inside ``graph``."""
    output = next((name for name in node.output[:] if name), "")
    return Place(graph, node.name, node.op_type, output, index, source=source_of(node))


NOWHERE = Place()
"""The model as a whole, or an unknown place."""
