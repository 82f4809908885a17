"""What several rules ask of a model, worked out once for each state of it and not once for each rule."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from onnxfix.graph.overlay import Node

if TYPE_CHECKING:
    from onnxfix.model import Model

T = TypeVar("T")
Operator = tuple[str, str]
"""Domain and operator, as a node has them."""

_KEPT = "_shared"


def shared(model: Model, make: Callable[[Model], T]) -> T:
    """What ``make(model)`` gives, computed for whoever asks first and kept until the model is edited.

    ``make`` is a function of a module, never one made on the spot: it is the key. What it gives may depend on the
    model's graph alone, not on the target.
    """
    # Kept with the model: a dictionary of its own would keep the model alive.
    try:
        found: T = model.__dict__[_KEPT][make]
    except KeyError:
        found = make(model)
        model.__dict__.setdefault(_KEPT, {})[make] = found
    return found


def forget(model: Model) -> None:
    """Drop what was kept, and the shapes; for the code that edits."""
    vars(model).pop(_KEPT, None)
    model.forget_shapes()


class Listing:
    """Nodes in an order, found by operator: a rule about three operators should not look at every node."""

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
        """The nodes whose operator ``wanted`` is true of, which is asked once for each, in the listing's order."""
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
    """The element types (TensorProto numbers) that any value is known to have, or that a Cast asks for."""
    return shared(model, _elem_types)


def _elem_types(model: Model) -> frozenset[int]:
    types = {info.elem for info in model.shapes.kinds}
    known = model.shapes.elem_type
    for node in every_node(model).of(lambda operator: operator == ("", "Cast")):
        made = node.output()
        if made is None or known(made) is None:  # nothing is known of it, as in bodies that lie too deep
            types |= {int(a.i) for a in node.proto.attribute if a.name == "to"}
    return frozenset(elem for elem in types if elem is not None)


@contextmanager
def paused_collection() -> Iterator[None]:
    """No garbage collection in here: many objects come to be, hardly any goes, and looking for it costs a third."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
