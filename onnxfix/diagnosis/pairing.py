"""The pairs found so far: one to one, and never crossing (upstream in one model, downstream in the other)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from onnxfix import walk
from onnxfix.diagnosis import fingerprints
from onnxfix.diagnosis.canonical import SHAPED
from onnxfix.diagnosis.views import View

How = Literal["name", "structure", "weights", "values"]
Pair = tuple[str, str]

EQUAL = 1e-4
"""Share of a tensor's scale up to which values of two runs are equal."""


class Pairs:
    """``to_a`` leads from B's tensors to A's, ``to_b`` back, ``how`` says by what (by B's tensor). ``fixed`` are the
    pairs of the interface, which stay; ``banned`` are those that were taken back."""

    def __init__(self, a: View, b: View, fixed: Mapping[str, str]) -> None:
        self.a, self.b = a, b
        self.to_a: dict[str, str] = dict(fixed)
        self.to_b = {ours: theirs for theirs, ours in fixed.items()}
        self.how: dict[str, How] = {}
        self.fixed = frozenset(fixed)
        self.banned: set[Pair] = set()

    def error(self, theirs: str, ours: str) -> float | None:
        """How far the values of two tensors are from each other; None where they are not known."""
        return fingerprints.error(self.a.prints.get(ours), self.b.prints.get(theirs))

    def is_equal(self, theirs: str, ours: str) -> bool:
        """Whether the values of two tensors are known to be equal."""
        off = self.error(theirs, ours)
        return off is not None and off <= EQUAL

    def is_free(self, theirs: str, ours: str) -> bool:
        """Whether neither is paired, and the two were not refused before."""
        return theirs not in self.to_a and ours not in self.to_b and (theirs, ours) not in self.banned

    def add(self, found: Iterable[Pair], how: How, *, reshaped: bool = False) -> int:
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
        self.how.update((theirs, "name" if theirs == ours else how) for theirs, ours in new.items())
        return len(new)

    def _by_name(self, theirs: str, ours: str) -> Pair:
        """The pair, with the end of Casts in place of their begin where the end has the name of the other tensor."""
        if theirs == ours:
            return theirs, ours
        if _ends_in(self.a, ours, theirs):
            return theirs, theirs
        return (ours, ours) if _ends_in(self.b, theirs, ours) else (theirs, ours)

    def ban(self, theirs: str) -> None:
        """Take a pair back, for good."""
        ours = self.to_a.pop(theirs)
        del self.to_b[ours]
        self.how.pop(theirs, None)
        self.banned.add((theirs, ours))

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


def nearest(view: View, known: Mapping[str, object], name: str) -> set[str]:
    """The closest paired values that a value is computed from."""

    def makers(names: Iterable[str]) -> list[int]:
        return [view.at[one][0] for one in names if one in view.at]

    reads = view.graph.reads
    numbers = walk.reached(makers([name]), lambda at: makers(one for one in reads[at] if one not in known))
    return {value for number in numbers for value in reads[number] if value in known}


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
