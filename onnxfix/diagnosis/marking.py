"""Where an engine begins to differ: a few inner tensors as outputs at a time, chosen by bisection.

Every tensor that becomes an output is written to memory, which breaks fusions and may change the result. So no build
has more than a few, and what a marked build says is believed only if its own outputs still show the difference that is
looked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.evidence import upstream
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.records import Marking
from onnxfix.diagnosis.store import Held

CUTS = 3
"""Places of the graph that are looked at with one build."""
FEW = 6
"""Tensors at one place, at most."""
WINDOW = 16
"""Nodes at which the search ends: their own errors are measured together."""
_BUILDS = 14
_KEPT = 0.5  # of the difference that a marked build must still show
_SHAPE = 64  # elements up to which integers are taken for shapes, which stay on the host


class Engine(Protocol):
    """Runs the whole model with inner tensors as additional outputs."""

    def whole(self, marks: Sequence[str]) -> Reply:
        """The model's outputs and those tensors, or why there are none."""
        ...


@dataclass(frozen=True)
class Window:
    """What is left: the nodes (by number, in order) one of which begins to differ, the distance of each tensor that was
    seen, and the builds. ``reason`` says why the search ended early."""

    nodes: tuple[int, ...]
    seen: Mapping[str, Distance] = field(default_factory=dict)
    markings: tuple[Marking, ...] = ()
    reason: str = ""


class Bisection:
    """Looks for the window on one sample.

    ``plain`` are the outputs of the unmarked engine and ``truth`` those of the truth; ``values`` gives the truth's
    values of inner tensors, as far as there are any; all by the names of ``graph``. ``differs`` says whether a tensor
    (name, type and shape, distance) is beyond rounding. ``kinds`` are types and shapes of inner tensors: those that are
    not in it are not marked.
    """

    def __init__(
        self,
        graph: Graph,
        engine: Engine,
        plain: Mapping[str, Held],
        truth: Mapping[str, Held],
        values: Callable[[Sequence[str]], Mapping[str, Held]],
        differs: Callable[[str, Held, Distance], bool],
        kinds: Mapping[str, Held],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.graph, self.engine, self.plain, self.truth = graph, engine, plain, truth
        self.values, self.differs, self.say = values, differs, say
        self.seen: dict[str, Distance] = {}
        self.markings: list[Marking] = []
        self.spoiled: set[str] = set()
        self.kinds = kinds

    def run(self, wrong: Collection[str], over: Callable[[], bool] = lambda: False) -> Window:
        """Narrow down what the outputs in ``wrong`` depend on."""
        order = [
            number
            for number in upstream(self.graph, list(wrong), frozenset())
            if self.graph.nodes[number].op_type != "Constant"
        ]
        low, high, reason = 0, len(order), ""  # before ``low`` all is right, at ``high`` something is wrong
        while high - low > WINDOW and not reason:
            if len(self.markings) >= _BUILDS or over():
                reason = "the search was stopped" if over() else f"it ended after {_BUILDS} builds"
                break
            cuts = self._cuts(order, low, high)
            if not cuts:
                reason = "no tensors are left that can be marked"
                break
            states = self._look(cuts)
            if states is None:
                continue
            for at, is_off in sorted(states.items()):
                if is_off:
                    high = at
                    break
                low = at
        return Window(tuple(order[low:high]), self.seen, tuple(self.markings), reason)

    def _cuts(self, order: Sequence[int], low: int, high: int) -> dict[int, list[str]]:
        """Positions between ``low`` and ``high`` with the tensors alive there: the narrowest around each quarter."""
        alive = self._alive(order)
        found: dict[int, list[str]] = {}
        span = (high - low) // (CUTS + 1)
        for number in range(1, CUTS + 1):
            middle = low + number * span
            reach = max(1, span // 2)
            near = range(max(low + 1, middle - reach), min(high, middle + reach + 1))
            fitting = [at for at in near if 0 < len(alive[at]) <= FEW and self._marks(alive[at])]
            if fitting:
                best = min(fitting, key=lambda at: (len(alive[at]), abs(at - middle)))
                found[best] = alive[best]
        return found

    def _marks(self, names: Sequence[str]) -> bool:
        return all(name in self.kinds and name not in self.spoiled for name in names)

    def _alive(self, order: Sequence[int]) -> list[list[str]]:
        """For each position, the tensors that nodes before it make of inputs and nodes from it on read."""
        varying = set(self.graph.inputs)  # what is made of weights alone shows where it meets these
        for number in order:
            if not varying.isdisjoint(self.graph.reads[number]):
                varying.update(name for name in self.graph.nodes[number].output if name)
        last: dict[str, int] = {}
        for at, number in enumerate(order):
            for name in self.graph.reads[number]:
                if name in varying and name in self.graph.producer:
                    last[name] = at
        alive: list[list[str]] = [[]]
        now: list[str] = []
        for at, number in enumerate(order):
            now = [name for name in now if last.get(name, -1) > at]
            now += [name for name in self.graph.nodes[number].output if name and last.get(name, -1) > at]
            alive.append([name for name in now if self._matters(name)])
        return alive

    def _matters(self, name: str) -> bool:
        """Whether a tensor must be seen to know that all is right: not where it was seen to be, and no shape."""
        held, seen = self.kinds.get(name), self.seen.get(name)
        if held is None:
            return True
        if seen is not None and not self.differs(name, held, seen):
            return False
        whole = held.dtype.startswith(("int", "uint", "bool"))
        return held.is_tensor and not (whole and math.prod(held.shape) <= _SHAPE)

    def _look(self, cuts: Mapping[int, Sequence[str]]) -> dict[int, bool] | None:
        """Mark the tensors of all cuts in one build: position -> whether something is wrong there. None where the build
        is not believed, or a tensor turned out to be no mark."""
        names = list(dict.fromkeys(name for tensors in cuts.values() for name in tensors))
        whole = self.values(names)
        self.spoiled.update(name for name in names if name not in whole)
        if self.spoiled.intersection(names):
            return None  # choose again, without them
        self.say(f"building with {len(names)} inner tensors as outputs")
        began = time.perf_counter()
        reply = self.engine.whole(names)
        seconds = time.perf_counter() - began
        fault = reply.error or self._changed(reply)
        unchanged = not reply.error and all(
            not distance(self.plain[name].load(), reply.values[name].load()).differing
            for name in self.plain
            if name in reply.values
        )
        self.markings.append(Marking(tuple(names), unchanged, seconds, fault, believed=not fault))
        if fault:
            self.spoiled.update(names)
            return None
        for name in names:
            if name in reply.values:
                self.seen[name] = distance(whole[name].load(), reply.values[name].load())
        return {
            at: any(self.differs(name, whole[name], self.seen[name]) for name in tensors if name in self.seen)
            for at, tensors in cuts.items()
        }

    def _changed(self, reply: Reply) -> str:
        """Why a marked build does not show the difference any more; "" where it does."""
        for name, truth in self.truth.items():
            if name not in self.plain or name not in reply.values:
                continue
            before = distance(truth.load(), self.plain[name].load())
            after = distance(truth.load(), reply.values[name].load())
            if not self.differs(name, truth, before):
                continue
            same = self.differs(name, truth, after)
            if same and (after.relative >= _KEPT * before.relative or before.special or before.shape):
                return ""
            return f"with these outputs {name} is {after.relative:.2g} of its scale off, not {before.relative:.2g}"
        return ""
