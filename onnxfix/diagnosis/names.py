"""Tensors that have the same name in two models: whether they are each other's."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from onnxfix.diagnosis.pairing import Pair, Pairs
from onnxfix.diagnosis.views import SINGLE, Classes, View

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
        return [(name, name) for name in plain if self._is_likely(name, classes)]

    def confirmed(self, names: Sequence[str], classes: Classes) -> list[Pair]:
        """Names of which values or neighbors agree."""
        return [(name, name) for name in names if self._is_confirmed(name, classes)]

    def _is_likely(self, name: str, classes: Classes) -> bool:
        return self._is_alike(name) or self._shared(name, classes)[0] > 0 or self._is_read_alike(name)

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
        if same_op and self._trusted:
            return True
        if (
            self.pairs.error(name, name) == math.inf
        ):  # of another shape: the fault, or a number that tells nothing
            return same_op and shared > 0 and not name.isdigit()
        read = self._is_read_alike(name)
        return (same_op or read) and (shared > 0 or read)

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

    def _is_read_alike(self, name: str) -> bool:
        """Whether nodes with paired outputs read both, as the same input."""
        return any(
            self.b.roles[one].op == self.a.roles[other].op
            and (slot == their_slot or self.b.roles[one].commutative)
            and self._is_pair(one, other)
            for one, slot in _readers(self.b, name)
            for other, their_slot in _readers(self.a, name)
        )

    def _is_pair(self, theirs: int, ours: int) -> bool:
        outputs = self.a.graph.nodes[ours].output
        made = [name for name in self.b.graph.nodes[theirs].output if name]
        return any(self.pairs.to_a.get(name, "") in outputs for name in made)


def _readers(view: View, name: str) -> Iterator[tuple[int, int]]:
    """The nodes that read a value, behind Casts too, and as which input."""
    for number, slot in view.uses.get(name, ()):
        if view.roles[number].op in SINGLE:
            yield from _readers(view, view.graph.nodes[number].output[0])
        else:
            yield number, slot
