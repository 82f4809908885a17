"""Where an engine begins to differ: a few inner tensors as outputs at a time, chosen by bisection.

Every tensor that becomes an output is written to memory, which breaks fusions and may change the result. So no build
has more than a few, and what a marked build says is believed only if its own outputs still show the difference that is
looked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from onnxfix.diagnosis.child import Kind, Reply, Values, kind_of
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.graph import Graph, upstream
from onnxfix.diagnosis.records import Marking

CUTS = 3
"""Places of the graph that are looked at with one build."""
FEW = 6
"""Tensors at one place, at most."""
WINDOW = 16
"""Nodes at which the search ends: their own errors are measured together."""
_BUILDS = 14
_KEPT = 0.5  # of the difference that a marked build must still show


class Bisection:
    """Looks for the nodes where an output begins to differ, on one sample; all by the names of ``graph``.

    ``run_marked`` runs the whole model with inner tensors as additional outputs, ``plain`` are the outputs of the
    unmarked engine; ``values`` gives the truth's values of tensors, as far as there are any. ``differs`` says whether a
    distance of a tensor is beyond rounding. ``kinds`` are types and shapes of tensors: others are not marked.

    ``seen`` are the distances of all tensors that were looked at, ``markings`` the builds, and ``reason`` says why the
    search ended early.
    """

    def __init__(
        self,
        graph: Graph,
        run_marked: Callable[[Sequence[str]], Reply],
        plain: Values,
        values: Callable[[Sequence[str]], Values],
        differs: Callable[[Kind, Distance], bool],
        kinds: Mapping[str, Kind],
        say: Callable[[str], None],
    ) -> None:
        self.graph, self.run_marked, self.plain, self.kinds = graph, run_marked, plain, kinds
        self.values, self.differs, self.say = values, differs, say
        self.seen: dict[str, Distance] = {}
        self.markings: list[Marking] = []
        self.spoiled: set[str] = set()
        self.reason = ""

    def run(self, output: str, truth: Any, over: Callable[[], bool]) -> list[int]:
        """Narrow down what ``output``, whose true value is ``truth``, depends on: the nodes that are left, one of which
        begins to differ. ``over`` says when to stop."""
        self.output, self.truth = output, truth
        wrong = [output]
        order, cuts = self._cone(wrong, range(len(self.graph.nodes))), CUTS
        while len(order) > WINDOW:
            if len(self.markings) >= _BUILDS or over():
                self.reason = "the search was stopped" if over() else f"it ended after {_BUILDS} builds"
                break
            found = self._cuts(order, cuts)
            if not found:
                self.reason = "no tensors are left that can be marked"
                break
            states = self._look(found)
            if states is None:
                # What several marks changed may be the work of one of them: from then on one place at a time.
                cuts = 1
                continue
            low, high = 0, len(order)
            for at, wrong_here in sorted(states.items()):
                if wrong_here:
                    high, wrong = at, wrong_here
                    break
                low = at
            order = self._cone(wrong, order[low:high])
        return order

    def _is_right(self, name: str) -> bool:
        """Whether a tensor was seen not to differ."""
        return name in self.seen and not self.differs(self.kinds[name], self.seen[name])

    def _cone(self, wrong: Collection[str], among: Collection[int]) -> list[int]:
        """The nodes among these that the wrong tensors depend on, other than by tensors that were seen to be right."""
        right = frozenset(filter(self._is_right, self.seen))
        members = set(among)
        return [
            number
            for number in upstream(self.graph, list(wrong), right - set(wrong))
            if number in members and self.graph.nodes[number].op_type != "Constant"
        ]

    def _cuts(self, order: Sequence[int], count: int) -> dict[int, list[str]]:
        """Positions in ``order`` with the tensors alive there: the narrowest around each quarter, or around the middle
        for a ``count`` of one; the one nearest to the middle where there are none."""
        alive = self._alive(order)
        fits = [
            at
            for at in range(1, len(order))
            if 0 < len(alive[at]) <= FEW
            and all(name in self.kinds and name not in self.spoiled for name in alive[at])
        ]
        found: dict[int, list[str]] = {}
        span = len(order) // (count + 1)
        for middle in range(span, span * count + 1, span):
            near = [at for at in fits if abs(at - middle) <= max(1, span // 2)]
            if near:
                best = min(near, key=lambda at: (len(alive[at]), abs(at - middle)))
                found[best] = alive[best]
        if fits and not found:
            best = min(fits, key=lambda at: abs(at - len(order) // 2))
            found[best] = alive[best]
        return found

    def _alive(self, order: Sequence[int]) -> list[list[str]]:
        """For each position, the tensors that nodes before it make of inputs and nodes from it on read."""
        last: dict[str, int] = {}
        for at, number in enumerate(order):
            last.update((name, at) for name in self.graph.reads[number] if name in self.graph.varying)
        alive: list[list[str]] = [[]]
        now: list[str] = []
        for at, number in enumerate(order):
            now = [name for name in now if last.get(name, -1) > at]
            now += [name for name in self.graph.nodes[number].output if name and last.get(name, -1) > at]
            alive.append([name for name in now if self._matters(name)])
        return alive

    def _matters(self, name: str) -> bool:
        """Whether a tensor must be seen to know that all is right: not where it was seen to be, and no shape."""
        kind = self.kinds.get(name)
        return kind is None or (not self._is_right(name) and bool(kind.dtype) and not kind.is_shape)

    def _look(self, cuts: Mapping[int, Sequence[str]]) -> dict[int, list[str]] | None:
        """Mark the tensors of all cuts in one build: position -> what is wrong there. None where the build is not
        believed, or the truth has no values to compare with."""
        names = list(dict.fromkeys(name for tensors in cuts.values() for name in tensors))
        whole = self.values(names)
        lacking = [name for name in names if name not in whole]
        if lacking:
            self.spoiled.update(lacking)
            return None  # choose again, without them
        self.say(f"building with {len(names)} inner tensors as outputs")
        began = time.perf_counter()
        reply = self.run_marked(names)
        seconds = time.perf_counter() - began
        fault = reply.error or self._changed(reply)
        unchanged = not reply.error and all(
            name in reply.values and not distance(value, reply.values[name]).differing
            for name, value in self.plain.items()
        )
        self.markings.append(Marking(tuple(names), unchanged, seconds, fault, believed=not fault))
        if fault:
            self.spoiled.update(names if len(cuts) == 1 else ())
            return None
        self.seen.update(
            (name, distance(whole[name], reply.values[name])) for name in names if name in reply.values
        )
        return {
            at: [name for name in tensors if name in self.seen and not self._is_right(name)]
            for at, tensors in cuts.items()
        }

    def _changed(self, reply: Reply) -> str:
        """Why a marked build does not show the difference any more; "" where it does."""
        if self.output not in reply.values:
            return f"with these outputs the engine does not return {self.output}"
        kind = kind_of(self.truth)
        before = distance(self.truth, self.plain[self.output])
        after = distance(self.truth, reply.values[self.output])
        kept = after.relative >= _KEPT * before.relative or before.special or before.shape
        if not self.differs(kind, before) or (kept and self.differs(kind, after)):
            return ""
        share = f"{after.relative:.2g} of its scale off, not {before.relative:.2g}"
        return f"with these outputs {self.output} is {share}"
