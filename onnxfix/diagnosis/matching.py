"""Which tensor of one model corresponds to which of another, although exporters, opsets and tools differ.

Evidence in the order of its strength, again and again until nothing is added: the interface; equal computations from
what is paired; equal values of a run (with a probe); weights that occur once; names that surroundings confirm; nodes
with paired inputs whose attributes or weights differ; inputs of paired nodes; nodes of other operators where a
difference begins. A wrong pair would make a node look wrong that is not, while a missing one only makes a region
larger: so what is unclear stays apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from onnxfix.diagnosis.canonical import SHAPED
from onnxfix.diagnosis.fingerprints import Fingerprint, Probe
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.pairing import (
    EQUAL,
    Names,
    Pair,
    Pairs,
    following,
    inputs_of,
    outputs_of,
)
from onnxfix.diagnosis.views import SINGLE, Classes, View

_ROUNDS = 400


@dataclass(frozen=True)
class Matching:
    """``pairs`` leads from B's tensors to A's, inputs included, constants not."""

    pairs: Mapping[str, str]
    notes: tuple[str, ...] = ()


def match(
    a: Graph, b: Graph, probe: Probe | None = None, interface: Mapping[str, str] | None = None
) -> Matching:
    """The tensors of B that correspond to tensors of A. ``probe`` is called once at most, where structure alone leaves
    something open. ``interface`` are inputs and outputs that belong together (B's -> A's), where that is known.

    Raises:
        UsageError: the models have not the same interface.
        ModelError: a file of weights has changed.
    """
    if interface is None:
        interface = {**inputs_of(a, b), **outputs_of(a, b)}
    one, other = View(a), View(b)
    pairs = Pairs(one, other, interface)
    _Matcher(one, other, pairs).run(probe)
    computed = [name for name in other.tensors if not other.is_constant(name)]
    paired = sum(name in pairs.to_a for name in other.tensors)
    note = f"{paired} of {len(computed)} tensors of the second model correspond to one of the first"
    return Matching(dict(pairs.to_a), (note,) if paired < len(computed) else ())


# ---------------------------------------------------------------------------------------------------- evidence


class _Matcher:
    def __init__(self, a: View, b: View, pairs: Pairs) -> None:
        self.a, self.b, self.pairs = a, b, pairs
        self.classes = Classes(a, b, pairs.to_a)
        self.names = Names(a, b, pairs)

    def run(self, probe: Probe | None) -> None:
        """Pair what can be paired."""
        self.names.alone = probe is None
        self._settle([self._equal_computations, self._equal_names])
        if probe is not None and self._free(self.b) and self._free(self.a):
            wanted = [[*view.graph.inputs, *view.tensors] for view in (self.a, self.b)]
            self.a.prints, self.b.prints = probe(*wanted)
        self.names.alone = True
        self._settle(self._steps())

    def _steps(self) -> list[Callable[[], int]]:
        steps = [self._equal_computations, self._speaking_names, self._equal_values, self._equal_weights]
        same_inputs = partial(self._unique, self._inputs_key, reshaped=True)
        steps += [self._equal_names, same_inputs, self._inputs_of_pairs]
        return [*steps, partial(self._unique, self._begins_key)] if self.a.prints else steps

    def _settle(self, steps: Sequence[Callable[[], int]]) -> None:
        """Take evidence, the strongest first, until none is left."""
        for _ in range(_ROUNDS):
            self.classes = Classes(self.a, self.b, self.pairs.to_a)
            if not any(step() for step in steps):
                return

    def _free(self, view: View) -> list[str]:
        known = self.pairs.to_a if view is self.b else self.pairs.to_b
        return [name for name in view.tensors if name not in known and not view.is_constant(name)]

    # ------------------------------------------------------------------------------------------- by computation

    def _equal_computations(self) -> int:
        """Values of the same class: the same operators on the same inputs and constants."""
        ours = _grouped((self.classes.a[name], name) for name in self._free(self.a))
        theirs = _grouped((self.classes.b[name], name) for name in self._free(self.b))
        found = [
            pair for key, names in theirs.items() if key in ours for pair in self._aligned(names, ours[key])
        ]
        return self.pairs.add(found)

    def _aligned(self, theirs: Sequence[str], ours: Sequence[str]) -> Iterator[Pair]:
        """Pairs among values that are all equal: those of one name, then those of one operator, then in order."""
        left_b, left_a = list(theirs), list(ours)
        keys: tuple[Callable[[View, str], Any], ...] = (
            lambda view, name: name,
            lambda view, name: (view.op(name), view.at[name][1]),
            lambda view, name: view.op(name) not in SINGLE,
        )
        for key in keys:
            waiting = _grouped((key(self.a, name), name) for name in left_a)
            for name in list(left_b):
                same = waiting.get(key(self.b, name))
                if same:
                    partner = same.pop(0)
                    left_a.remove(partner)
                    left_b.remove(name)
                    yield name, partner

    # ------------------------------------------------------------------------------------------------ by values

    def _equal_values(self) -> int:
        """Values that are equal in a run of both models, where that is unlikely by chance."""
        if not self.a.prints:
            return 0
        buckets: dict[Any, tuple[list[str], list[str]]] = {}
        for side, view in enumerate((self.a, self.b)):
            for name in self._free(view):
                seen = view.prints.get(name)
                if seen is not None and seen.telling and not seen.odd:
                    buckets.setdefault(seen.shape, ([], []))[side].append(name)
        found: list[Pair] = []
        for ours, theirs in buckets.values():
            if ours and theirs:
                found.extend(self._equal_among(ours, theirs))
        return self.pairs.add(found)

    def _equal_among(self, ours: Sequence[str], theirs: Sequence[str]) -> Iterator[Pair]:
        table = np.array([_row(self.a.prints[name]) for name in ours])
        groups: dict[tuple[int, ...], list[str]] = {}
        for name in theirs:
            row = _row(self.b.prints[name])
            scale = max(self.b.prints[name].scale, 1e-30)
            near = np.flatnonzero(np.abs(table - row).max(axis=1) <= EQUAL * scale)
            close = [at for at in near.tolist() if self.pairs.is_equal(name, ours[at])]
            if close:
                groups.setdefault(tuple(close), []).append(name)
        for places, names in groups.items():
            yield from self._aligned(names, [ours[at] for at in places])

    # ----------------------------------------------------------------------------------------------- by weights

    def _equal_weights(self) -> int:
        """Outputs of nodes that use a weight which occurs once in this use."""
        return self.pairs.add(_unique_pairs(self.b.weight_uses(), self.a.weight_uses()))

    # ------------------------------------------------------------------------------------------------- by names

    def _equal_names(self) -> int:
        """Values of the same name, where what is around them says the same."""
        return self.pairs.add(self.names.confirmed(self._same_name(), self.classes), reshaped=True)

    def _speaking_names(self) -> int:
        """Values of the same name without a number in it, in models that share their names."""
        return self.pairs.add(self.names.speaking(self._same_name(), self.classes), reshaped=True)

    def _same_name(self) -> list[str]:
        return [name for name in self._free(self.b) if name in self.a.at]

    # -------------------------------------------------------------------------------- by neighbors of unequal nodes

    def _inputs_key(self, view: View, name: str) -> Any:
        """Nodes of one operator with the same inputs, the only ones on both sides: attributes or constants differ."""
        number, index = view.at[name]
        one = view.roles[number]
        sources = self.classes.sources(view, number)
        if one.op in SINGLE or not sources or not all(source in self._common for source in sources):
            return None
        if one.op in SHAPED and name not in view.prints:
            return None  # nothing says which of the shapes
        return (
            one.op,
            tuple(sorted(sources) if one.commutative else sources),
            len(one.data) - len(sources),
            index,
        )

    def _begins_key(self, view: View, name: str) -> Any:
        """Nodes with the same inputs and other operators, where these values are equal and a difference begins: further
        down it could be another way to compute the same."""
        number, index = view.at[name]
        one = view.roles[number]
        known = self.pairs.to_a if view is self.b else self.pairs.to_b
        sources = [view.source(value) for value in view.signals(number)]
        if one.op in SINGLE or not sources or name not in view.prints:
            return None
        if not all(value in known for value in sources):
            return None

        def equal(value: str) -> bool:
            return (
                self.pairs.is_equal(value, known[value])
                if view is self.b
                else self.pairs.is_equal(known[value], value)
            )

        begins = all(map(equal, sources)) and not all(map(equal, following(view, known, name)))
        if not begins:
            return None
        return (
            tuple(self.classes.sources(view, number)),
            len(one.data) - len(sources),
            index,
            view.prints[name].shape,
        )

    def _unique(self, key: Callable[[View, str], Any], *, reshaped: bool = False) -> int:
        """Pair values of nodes that are the only ones with a key on both sides."""
        self._common = set(self.classes.a.values()) & set(self.classes.b.values())
        ours, theirs = (
            [(found, name) for name in self._free(view) if (found := key(view, name)) is not None]
            for view in (self.a, self.b)
        )
        return self.pairs.add(_unique_pairs(theirs, ours), reshaped=reshaped)

    def _inputs_of_pairs(self) -> int:
        """The inputs of paired nodes that are left, where nodes of one operator compute them."""
        found: list[Pair] = []
        for theirs, ours in list(self.pairs.to_a.items()):
            if theirs not in self.b.at or ours not in self.a.at or self.b.op(theirs) != self.a.op(ours):
                continue
            found.extend(self._inputs(self.b.at[theirs][0], self.a.at[ours][0]))
        return self.pairs.add(found)

    def _inputs(self, theirs: int, ours: int) -> Iterator[Pair]:
        left_b, left_a = self._open(self.b, theirs), self._open(self.a, ours)
        if self.b.roles[theirs].commutative:
            if len(left_b) == len(left_a) == 1 and len(self.b.signals(theirs)) == len(self.a.signals(ours)):
                couples = [(next(iter(left_b.values())), next(iter(left_a.values())))]
            else:
                couples = []
        else:
            couples = [(name, left_a[slot]) for slot, name in left_b.items() if slot in left_a]
        for one, other in couples:
            same_sources = sorted(self.classes.sources(self.b, self.b.at[one][0])) == sorted(
                self.classes.sources(self.a, self.a.at[other][0])
            )
            if self.b.op(one) == self.a.op(other) or same_sources or self.pairs.is_equal(one, other):
                yield one, other

    def _open(self, view: View, number: int) -> dict[int, str]:
        """A node's inputs that are not paired, before Casts, by number."""
        known = self.pairs.to_a if view is self.b else self.pairs.to_b
        found = {}
        for slot, name in view.roles[number].data:
            source = view.source(name)
            if (
                name not in known
                and source not in known
                and source in view.at
                and not view.is_constant(source)
            ):
                found[slot] = source
        return found


def _row(seen: Fingerprint) -> list[float]:
    return [seen.mean, seen.norm, seen.scale, *seen.samples]


def _grouped(items: Iterable[tuple[Any, str]]) -> dict[Any, list[str]]:
    found: dict[Any, list[str]] = {}
    for key, name in items:
        found.setdefault(key, []).append(name)
    return found


def _unique_pairs(theirs: Iterable[tuple[Any, str]], ours: Iterable[tuple[Any, str]]) -> list[Pair]:
    """The values that are the only ones with a key on both sides."""
    known = _grouped(ours)
    return [
        (names[0], known[key][0])
        for key, names in _grouped(theirs).items()
        if len(names) == 1 and len(known.get(key, ())) == 1
    ]
