"""What several rules ask of a model, computed once for each state of the model and not once for each rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from onnxfix.graph.overlay import Node

if TYPE_CHECKING:
    from onnxfix.model import Model

T = TypeVar("T")
Operator = tuple[str, str]
"""Domain and operator, as a node has them."""


def shared(model: Model, make: Callable[[Model], T]) -> T:
    """``make(model)``, computed once and kept until the model is edited (``Model.invalidate``).

    ``make`` is the key: a function of a module, never one made on the spot. Its result may depend on the model's graph
    alone, not on the target.
    """
    known = model.derived
    if make not in known:
        known[make] = make(model)
    found: T = known[make]
    return found


class Listing:
    """Nodes in an order, indexed by operator: a rule about three operators should not visit every node."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = list(nodes)
        self._places: dict[Operator, list[int]] = {}
        for place, node in enumerate(self.nodes):
            operator = (node.domain, node.op_type)
            places = self._places.get(operator)
            if places is None:
                self._places[operator] = [place]
            else:
                places.append(place)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @property
    def operators(self) -> Collection[Operator]:
        """Every operator that occurs."""
        return self._places.keys()

    def of(self, wanted: Callable[[Operator], object]) -> list[Node]:
        """The nodes whose operator is ``wanted`` (called once for each operator), in the listing's order."""
        found = [places for operator, places in self._places.items() if wanted(operator)]
        if len(found) < 2:
            return [self.nodes[place] for places in found for place in places]
        return [self.nodes[place] for place in sorted(place for places in found for place in places)]


def every_node(model: Model) -> Listing:
    """All nodes of all scopes, in stored order."""
    return shared(model, _every_node)


def _every_node(model: Model) -> Listing:
    return Listing(model.nodes())


def elem_types(model: Model) -> frozenset[int]:
    """The element types (TensorProto numbers) of all values with a known type, and of all Casts."""
    return shared(model, _elem_types)


def _elem_types(model: Model) -> frozenset[int]:
    types = {info.elem for info in model.shapes.kinds}
    known = model.shapes.elem_type
    for node in every_node(model).of(lambda operator: operator == ("", "Cast")):
        made = node.output()
        if made is None or known(made) is None:  # unknown, as in subgraphs nested too deeply
            types |= {int(a.i) for a in node.proto.attribute if a.name == "to"}
    return frozenset(elem for elem in types if elem is not None)
