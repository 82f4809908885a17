"""What the inputs of a check cost, and which of the planned ones its budget allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnx import ModelProto

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import Kind, shape_of
from onnxfix.inputs.feeds.signature import Assignment, Signature
from onnxfix.proof.request import Request
from onnxfix.runtime import backends
from onnxfix.runtime.backends import reference
from onnxfix.runtime.effort import Effort

#: Kinds of data to try, in this order, if the original rejects the planned kind.
MILDER: tuple[Kind, ...] = ("small", "ones", "zeros")
SEARCH = 60.0  # seconds to look for inputs that the original accepts
ENOUGH = 3  # number of assignments on which to compare a model with dynamic shapes


@dataclass
class Budget:
    """Measures runs of a pair of models, and predicts what others cost. All times are seconds of the processor.

    Nothing is known before the first run; until then everything is affordable.
    """

    known: Signature
    effort: Effort
    _price: float = 0.0  # of loading both models and running each of them once
    _most: float = math.inf
    _spent: float = 0.0
    _runs: dict[float, float] = field(default_factory=dict)  # weight of the inputs -> seconds

    def loaded(self, seconds: float) -> None:
        """Both models were loaded."""
        if not self._runs:
            self._price += seconds

    def ran(self, sizes: Mapping[str, int], seconds: float) -> None:
        """Both models ran on inputs of these sizes."""
        weight = _weight(self.known, sizes)
        if not self._runs:
            self._price += seconds
            self._most = self.effort.budget(self._price)
        else:
            self._spent += seconds
        # Of two runs of one weight the cheaper one says what it costs: other processes only add.
        self._runs[weight] = min(seconds, self._runs.get(weight, math.inf))

    def allows(self, *sizes: Mapping[str, int]) -> bool:
        """Whether runs on inputs of these sizes, one each, are within the budget, as far as is known. What costs
        nothing always is."""
        cost = sum(map(self.predicted, sizes))
        return not cost or self._spent + cost <= self._most

    def remaining(self, feeds: Sequence[Mapping[str, int]]) -> float:
        """What runs on inputs of these sizes cost, as far as they are within the budget."""
        return max(0.0, min(sum(map(self.predicted, feeds)), self._most - self._spent))

    def predicted(self, sizes: Mapping[str, int]) -> float:
        """What a run on inputs of these sizes costs; 0 where nothing is known, or all of them are empty.

        Between two that ran, the cost is between theirs. Beyond the largest, it grows as it did between the last two of
        different weight, and in proportion to the weight where there is only one.
        """
        weight = _weight(self.known, sizes)
        if not self._runs or not weight:
            return 0.0
        weights = sorted(self._runs)
        after = next((place for place, other in enumerate(weights) if other >= weight), len(weights) - 1)
        last, before = weights[after], weights[max(after - 1, 0)]
        if last == weight or (last > weight and not after):
            return self._runs[last]
        if last == before:
            return self._runs[last] * weight / max(last, 1.0)
        slope = max(0.0, self._runs[last] - self._runs[before]) / (last - before)
        return max(0.0, self._runs[last] + slope * (weight - last))

    def largest(self, candidates: list[Assignment]) -> Assignment:
        """Of some sizes the largest that the budget allows, else the cheapest; empty ones where there are no others."""
        full = [sizes for sizes in candidates if _weight(self.known, sizes)]
        ranked = sorted(full or candidates, key=lambda sizes: _weight(self.known, sizes))
        return next((sizes for sizes in reversed(ranked) if self.allows(sizes)), ranked[0])


def _weight(known: Signature, sizes: Mapping[str, int]) -> float:
    """How much work inputs of these sizes stand for, in proportion: their elements, and once more their open sizes but
    for the leading one, since attention compares each position with each other."""
    total = 0.0
    for one in known.inputs:
        if one.default is not None:
            continue
        shape = shape_of(known, one, sizes)
        open_sizes = [
            size
            for axis, size in enumerate(shape)
            if axis and (one.dims is None or isinstance(one.dims[axis], str))
        ]
        total += math.prod(shape) * math.prod(open_sizes)
    return total


# ------------------------------------------------------------------------------------- what the evaluator would cost

CHEAP = 200_000_000
"""Element-operations on all shapes up to which the evaluator costs next to nothing: less than a second."""


def too_large(request: Request, *models: ModelProto) -> str | None:
    """Why the evaluator would take too long for any input of the original, or of one of these models; None where it
    should not."""
    sizes = _elements(request)
    tried = min(sizes if request.given is not None else sizes[:2])
    reasons = (reference.infeasible(one, tried) for one in models or (request.known.model,))
    return next(filter(None, reasons), None)


def _elements(request: Request) -> list[int]:
    """How many elements the planned or given inputs have, for each of them."""
    if request.given is not None:
        return [sum(map(plan.size, feed.values())) for feed in request.given]
    return [plan.elements(request.known, one) for one in plan.assignments(request.known, request.shapes)]


def is_redundant(request: Request, half: str) -> bool:
    """Whether the evaluator shows nothing that ONNX Runtime does not show, and costs something. Half precision (the
    type ``half``) is not judged without it."""
    if request.effort.whole or half or backends.missing("ort-cpu") is not None:
        return False
    return sum(reference.work(request.known.model, count) for count in _elements(request)) > CHEAP
