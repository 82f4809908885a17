"""Which tensors of two models belong together: interface, names, and the pairs found so far."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from onnx import TensorProto, ValueInfoProto

from onnxfix.diagnosis import fingerprints
from onnxfix.diagnosis.canonical import SHAPED
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.views import Classes, View
from onnxfix.errors import UsageError
from onnxfix.files import walk


def inputs_of(a: Graph, b: Graph) -> dict[str, str]:
    """B's inputs -> A's: by name, else by position.

    Raises:
        UsageError: their number, types or ranks differ.
    """
    return _partners("input", list(a.inputs.values()), list(b.inputs.values()))


def outputs_of(a: Graph, b: Graph) -> dict[str, str]:
    """B's outputs -> A's: by name, else by position.

    Raises:
        UsageError: their number, types or ranks differ.
    """
    return _partners("output", list(a.proto.graph.output), list(b.proto.graph.output))


def _partners(kind: str, ours: Sequence[ValueInfoProto], theirs: Sequence[ValueInfoProto]) -> dict[str, str]:
    if len(ours) != len(theirs):
        raise UsageError(f"the models have not the same interface: {len(ours)} {kind}s and {len(theirs)}")
    known = {info.name: info for info in ours}
    if set(known) == {info.name for info in theirs}:
        found = [(known[info.name], info) for info in theirs]
    else:
        found = list(zip(ours, theirs, strict=True))
    for one, other in found:
        why = _differs(one, other)
        if why:
            names = one.name if one.name == other.name else f"{one.name} and {other.name}"
            raise UsageError(f"the models have not the same interface: {kind} {names} {why}")
    return {other.name: one.name for one, other in found}


_CLASSES: dict[int, str] = {
    **dict.fromkeys(
        (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16), "float"
    ),
    **dict.fromkeys((TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64), "int"),
    **dict.fromkeys((TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64), "int"),
}
"""Types of which one may take another's place in the other model."""


def _differs(one: ValueInfoProto, other: ValueInfoProto) -> str:
    """How two declarations contradict each other; "" where they do not. Widths of a type may differ."""
    x, y = one.type, other.type
    if not x.WhichOneof("value") or not y.WhichOneof("value"):
        return ""
    if x.WhichOneof("value") != y.WhichOneof("value"):
        return "has another type"
    if not x.HasField("tensor_type"):
        return ""
    types = [kind.tensor_type.elem_type for kind in (x, y)]
    if all(types) and _CLASSES.get(types[0], types[0]) != _CLASSES.get(types[1], types[1]):
        return "has another type"
    if x.tensor_type.HasField("shape") and y.tensor_type.HasField("shape"):
        ranks = [len(kind.tensor_type.shape.dim) for kind in (x, y)]
        if ranks[0] != ranks[1]:
            return f"has rank {ranks[0]} and {ranks[1]}"
    return ""


Pair = tuple[str, str]

EQUAL = 1e-4
"""Share of a tensor's scale up to which values of two runs are equal."""


class Pairs:
    """``to_a`` leads from B's tensors to A's, ``to_b`` back."""

    def __init__(self, a: View, b: View, interface: Mapping[str, str]) -> None:
        self.a, self.b = a, b
        self.to_a: dict[str, str] = dict(interface)
        self.to_b = {ours: theirs for theirs, ours in interface.items()}

    def error(self, theirs: str, ours: str) -> float | None:
        """How far the values of two tensors are from each other; None where they are not known."""
        return fingerprints.error(self.a.prints.get(ours), self.b.prints.get(theirs))

    def is_equal(self, theirs: str, ours: str) -> bool:
        """Whether the values of two tensors are known to be equal."""
        off = self.error(theirs, ours)
        return off is not None and off <= EQUAL

    def is_free(self, theirs: str, ours: str) -> bool:
        """Whether neither is paired."""
        return theirs not in self.to_a and ours not in self.to_b

    def add(self, found: Iterable[Pair], *, reshaped: bool = False) -> int:
        """Take pairs whose tensors are free, have the same shape (unless ``reshaped``) and do not cross those that are
        there or each other. Returns how many were taken."""
        new: dict[str, str] = {}
        taken: set[str] = set()
        for one, other in found:
            theirs, ours = self._by_name(one, other)
            if not self.is_free(theirs, ours) or theirs in new or ours in taken:
                continue
            off = self.error(theirs, ours)
            odd = off is not None and math.isinf(off) and not self._same_shape(theirs, ours)
            if odd and theirs != ours and (not reshaped or self.b.op(theirs) in SHAPED):
                continue
            new[theirs] = ours
            taken.add(ours)
        for theirs in self._crossing(new):
            del new[theirs]
        self.to_a.update(new)
        self.to_b.update({ours: theirs for theirs, ours in new.items()})
        return len(new)

    def _by_name(self, theirs: str, ours: str) -> Pair:
        """The pair, with the end of Casts in place of their begin where the end has the name of the other tensor."""
        if theirs == ours:
            return theirs, ours
        if _ends_in(self.a, ours, theirs):
            return theirs, theirs
        return (ours, ours) if _ends_in(self.b, theirs, ours) else (theirs, ours)

    def _same_shape(self, theirs: str, ours: str) -> bool:
        one, other = self.a.prints[ours], self.b.prints[theirs]
        return one.shape == other.shape and one.kind == other.kind

    def _crossing(self, new: Mapping[str, str]) -> list[str]:
        """The new pairs that must go so that none cross."""
        if not new:
            return []
        every = [*self.to_a.items(), *new.items()]
        bits = {theirs: 1 << number for number, (theirs, _) in enumerate(every)}
        above_a, below_a = _around(self.a, {ours: bits[theirs] for theirs, ours in every})
        above_b, below_b = _around(self.b, bits)
        old = (1 << len(self.to_a)) - 1
        crossed = {
            theirs: (above_a[ours] & below_b[theirs]) | (below_a[ours] & above_b[theirs])
            for theirs, ours in new.items()
        }
        gone = [theirs for theirs, mask in crossed.items() if mask & old]
        alive = ~sum(bits[theirs] for theirs in gone)
        left = sorted(
            (theirs for theirs in new if crossed[theirs] & alive), key=lambda one: -crossed[one].bit_count()
        )
        for theirs in left:
            if theirs not in gone and crossed[theirs] & alive & ~old:
                gone.append(theirs)
                alive &= ~bits[theirs]
        return gone


def _around(view: View, bits: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """For each tensor in ``bits``: the bits of those upstream, and of those downstream."""
    graph = view.graph
    above: dict[int, int] = {}
    up = dict.fromkeys(bits, 0)
    for number, names in enumerate(graph.reads):
        mask = 0
        for name in names:
            mask |= bits.get(name, 0)
            if name in graph.producer:
                mask |= above.get(graph.producer[name], 0)
        above[number] = mask
        up.update((name, mask) for name in graph.nodes[number].output if name in bits)
    below: dict[str, int] = {}
    down = dict.fromkeys(bits, 0)
    for number in range(len(graph.nodes) - 1, -1, -1):
        mask = 0
        for name in graph.nodes[number].output:
            mask |= bits.get(name, 0) | below.get(name, 0)
        for name in graph.reads[number]:
            below[name] = below.get(name, 0) | mask
    down.update((name, below.get(name, 0)) for name in bits)
    return up, down


def following(view: View, known: Mapping[str, object], name: str) -> set[str]:
    """The closest paired values that are computed from a value."""

    def after(number: int) -> Iterator[int]:
        for value in view.graph.nodes[number].output:
            if value and value not in known:
                yield from view.readers.get(value, ())

    numbers = walk.reached(view.readers.get(name, ()), after)
    return {value for number in numbers for value in view.graph.nodes[number].output if value in known}


_CASTS = frozenset({"Cast", "Identity"})


def _ends_in(view: View, name: str, last: str) -> bool:
    """Whether a tensor goes through Casts alone into one that is called ``last``: what the other model calls so
    corresponds to the end of these Casts, though it may be equal to their begin."""
    while last in view.at and view.op(last) in _CASTS:
        last = view.roles[view.at[last][0]].data[0][1]
        if last == name:
            return True
    return False


_SHARED, _ALIKE = 0.5, 0.8
"""Share of B's names that A has too, and share of these with the same operator, from which on the two share names."""

_NUMBER = re.compile(r"\d[^/]*$")


class Names:
    """``alone``: whether names count of which only some neighbors agree."""

    def __init__(self, a: View, b: View, pairs: Pairs) -> None:
        self.a, self.b, self.pairs, self.alone = a, b, pairs, True

    @cached_property
    def _trusted(self) -> bool:
        """Whether the two models share their names."""
        ours = [name for name in self.b.tensors if name in self.a.at]
        alike = sum(self._is_alike(name) for name in ours)
        return len(ours) >= _SHARED * len(self.b.tensors) and alike >= _ALIKE * len(ours)

    def speaking(self, names: Sequence[str], classes: Classes) -> list[Pair]:
        """Names without a number at their end, in models that share their names: exporters do not count these, so that
        an inserted node does not shift them."""
        if not self._trusted or not self.alone:
            return []
        plain = [name for name in names if not _NUMBER.search(name)]
        return [(name, name) for name in plain if self._is_alike(name) or self._shared(name, classes)[0]]

    def confirmed(self, names: Sequence[str], classes: Classes) -> list[Pair]:
        """Names of which values or neighbors agree."""
        return [(name, name) for name in names if self._is_confirmed(name, classes)]

    def _is_alike(self, name: str) -> bool:
        """Whether nodes of one operator compute both, before Casts."""
        ours, theirs = self.a.source(name), self.b.source(name)
        return self.a.op(name) == self.b.op(name) or self.a.op(ours) == self.b.op(theirs) != ""

    def _shared(self, name: str, classes: Classes) -> tuple[int, int, int]:
        """How many inputs two nodes share, and how many each has."""
        ours = classes.sources(self.a, self.a.at[name][0])
        theirs = classes.sources(self.b, self.b.at[name][0])
        return sum((Counter(ours) & Counter(theirs)).values()), len(ours), len(theirs)

    def _is_confirmed(self, name: str, classes: Classes) -> bool:
        if self.pairs.is_equal(name, name):
            return True
        shared, ours, theirs = self._shared(name, classes)
        same_op = self.a.op(name) == self.b.op(name)
        if same_op and theirs and shared == ours == theirs:
            return not self._elsewhere(self.a.at[name][0], self.b.at[name][0])
        if not self.alone:
            return False
        if self._trusted and self._is_alike(name):
            return True
        # of another shape: the fault, or a number that tells nothing
        if self.pairs.error(name, name) == math.inf:
            return same_op and shared > 0 and not name.isdigit()
        return same_op and shared > 0

    def _elsewhere(self, ours: int, theirs: int) -> bool:
        """Whether the weights of both nodes differ, and B's is that of another node of A: then it is another node."""
        one = {content.key for _, content in self.a.weights(ours)}
        other = {content.key for _, content in self.b.weights(theirs)}
        if not one or not other or one & other:
            return False
        return bool(other & self._all_weights)

    @cached_property
    def _all_weights(self) -> set[Any]:
        numbers = range(len(self.a.roles))
        return {content.key for number in numbers for _, content in self.a.weights(number)}
