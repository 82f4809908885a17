"""Data of a model that rules share until it is edited: its nodes by operator, element types, imported nodes; and a hash
that recognizes a state in which the model was before, without keeping the states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from onnx import GraphProto

from onnxfix.files import walk
from onnxfix.graph.overlay import Node, Scope

if TYPE_CHECKING:
    from onnxfix.model import Model

T = TypeVar("T")
Operator = tuple[str, str]
"""The domain and the operator type of a node, as stored."""


def shared(model: Model, make: Callable[[Model], T]) -> T:
    """``make(model)``, computed once and kept until the model is edited (``Model.invalidate``).

    ``make`` is the key, so it must be a module-level function, not a lambda. Its result may depend on the model's
    graph, but not on the target.
    """
    results = model.derived
    if make not in results:
        results[make] = make(model)
    result: T = results[make]
    return result


def _kept(make: Callable[[Model], T]) -> Callable[[Model], T]:
    """Decorator: ``shared`` with this function."""
    return wraps(make)(lambda model: shared(model, make))


class Listing:
    """Nodes in order, with an index by operator: a rule about three operators need not visit every node."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = list(nodes)
        self._places = defaultdict[Operator, list[int]](list)
        for place, node in enumerate(self.nodes):
            self._places[node.domain, node.op_type].append(place)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @property
    def operators(self) -> Collection[Operator]:
        """Every operator that occurs."""
        return self._places.keys()

    def of(self, wanted: Callable[[Operator], object]) -> list[Node]:
        """The nodes whose operator ``wanted`` accepts (one call for each operator), in the listing's order."""
        matches = [places for operator, places in self._places.items() if wanted(operator)]
        if len(matches) < 2:
            return [self.nodes[place] for places in matches for place in places]
        return [self.nodes[place] for place in sorted(place for places in matches for place in places)]


@_kept
def every_node(model: Model) -> Listing:
    """All nodes of all scopes, in stored order."""
    return Listing(model.nodes())


@_kept
def elem_types(model: Model) -> frozenset[int]:
    """The element types (TensorProto numbers) of all values with a known type, and of all Casts."""
    types = {info.elem for info in model.shapes.kinds}
    known = model.shapes.elem_type
    for node in every_node(model).of(lambda operator: operator == ("", "Cast")):
        output = node.output()
        if output is None or known(output) is None:  # unknown, as in subgraphs nested too deeply
            types |= {int(a.i) for a in node.proto.attribute if a.name == "to"}
    return frozenset(elem for elem in types if elem is not None)


@_kept
def imported(model: Model) -> Listing:
    """The nodes that the parser certainly imports, dead nodes included.

    Measured with TensorRT-RTX 1.7.1: it imports every node of the graph, of loop bodies and of called functions.
    Of an If, it imports both branches, or only the taken branch if the condition is a weight.
    """
    return Listing(_walk(model)) if len(model.scopes) > 1 else every_node(model)


@_kept
def imported_nodes(model: Model) -> frozenset[Node]:
    """The nodes of ``imported``, as a set."""
    return frozenset(imported(model))


def _walk(model: Model) -> Iterator[Node]:
    bodies = dict(model.called)
    stack = [model.main]
    while stack:
        for node in stack.pop().nodes:
            yield node
            body = bodies.pop((node.domain, node.op_type, node.overload), None) if bodies else None
            if body is not None:
                stack.append(body)
            stack.extend(sub for sub in node.subgraphs if _entered(node, sub))


def _entered(node: Node, sub: Scope) -> bool:
    """Whether the parser certainly imports this subgraph."""
    if node.op_type != "If":
        return True
    condition = node.input(0)
    if condition is None:
        return False
    if condition.producer is not None and condition.producer.op_type != "Constant":
        return True
    if condition.initializer is None and condition.is_input and condition.scope is node.scope.model.main:
        return True
    # The condition is a weight, or an input of a function or a loop body, which may get a weight from outside.
    value = condition.constant()
    if value is None or value.size != 1:
        return False
    return sub.attr == ("then_branch" if value.reshape(-1)[0] else "else_branch")


def fingerprint(model: Model, digests: dict[Node, bytes]) -> bytes:
    """A hash of everything that fixes change. Initializers count by name, type and shape, not by their bytes.

    ``digests`` caches the hashes of the nodes.
    """
    from hashlib import blake2b  # lazy: start-up, brings OpenSSL

    digest = blake2b(digest_size=16)
    digest.update(repr([(entry.domain, entry.version) for entry in model.proto.opset_import]).encode())
    for scope in model.scopes:
        digest.update(scope.path.encode())
        for node in scope.nodes:
            if node not in digests:
                digests[node] = blake2b(_content(node), digest_size=16).digest()
        digest.update(b"".join(map(digests.__getitem__, scope.nodes)))
        if isinstance(scope.proto, GraphProto):
            for tensor in scope.proto.initializer:
                digest.update(repr((tensor.name, tensor.data_type, list(tensor.dims))).encode())
            for sparse in scope.proto.sparse_initializer:
                digest.update(repr((sparse.values.name, list(sparse.dims))).encode())
            for info in (*scope.proto.value_info, *scope.proto.output):
                digest.update(info.SerializeToString(deterministic=True))
    return digest.digest()


def _content(node: Node) -> bytes:
    """The parts of a node that fixes change, without its subgraphs: they are hashed as scopes of their own."""
    proto = node.proto
    if node.subgraphs:
        plain = [one for one in proto.attribute if not walk.attribute_graphs(one)]
        own = [one.SerializeToString(deterministic=True) for one in plain]
        return repr((proto.name, list(proto.input), list(proto.output), own)).encode()
    return bytes(proto.SerializeToString(deterministic=True))
