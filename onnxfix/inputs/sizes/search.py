"""The search for sizes that a model accepts, as near as possible to wanted sizes, for each path through its control
flow; and the range that one size may have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto

from onnxfix.graph.overlay import Use, Value
from onnxfix.inputs.sizes.demands import Demand, Kind
from onnxfix.inputs.sizes.problem import Problem, bind, open_graph, problem_of
from onnxfix.model import Model

Sizes = dict[str, int]
#: Sizes to try for a dimension: small ones, usual sizes of images, windows and audio, powers of two.
GRID = tuple(
    sorted(
        {*range(18), *range(20, 65, 4), *range(64, 257, 16), *range(256, 1025, 32)}
        | {2**k for k in range(4, 21)}
        | {8000, 16000, 32000, 44100, 48000}
    )
)
_STEPS = 60  # changes of a size before the search ends
_ELSEWHERE = (1, 2, 3, 4, 8)
_TRIED = 8  # sizes of one symbol that are compared in a step
_NEAR = 256  # sizes from the minimum on that are tested one by one


def repaired(
    problem: Problem, wish: Mapping[str, int], fixed: Mapping[str, int] | None = None
) -> Sizes | None:
    """Sizes for all free symbols that satisfy every demand, near to ``wish``; None if none were found.

    ``fixed`` sizes are not changed. A wish that satisfies all demands is returned unchanged. The result is
    deterministic; no model is executed.
    """
    sizes = {name: wish.get(name, 1) for name in problem.free} | dict(fixed or {})
    free = [name for name in problem.free if name not in (fixed or {})]
    seen: set[tuple[tuple[str, int], ...]] = set()
    others: list[Sizes] = []  # alternatives, to return to from a dead end
    for _ in range(_STEPS):
        broken = problem.broken(sizes)
        if not broken:
            return sizes
        seen.add(tuple(sizes.items()))
        moves = [
            {**sizes, name: value}
            for demand in broken[:4]
            for name in sorted(problem.parts(demand).intersection(free))
            for value in _values(problem, sizes, name, demand, wish)
        ]
        # No size of a single symbol helps: start from other sizes.
        moves = moves or [
            {**sizes, name: value}
            for name in sorted(problem.parts(broken[0]).intersection(free))
            for value in _ELSEWHERE
        ]
        fresh = [one for one in moves if tuple(one.items()) not in seen]
        if not fresh:
            others = [one for one in others if tuple(one.items()) not in seen]
            fresh, others = others, []
        if not fresh:
            return None
        far = [sum(_apart(size, wish.get(name, 1)) for name, size in one.items()) for one in fresh]
        sizes = min(zip(fresh, far, strict=True), key=lambda one: (len(problem.broken(one[0])), one[1]))[0]
        others += [one for one in fresh if one is not sizes]
    return None


def fitted(problem: Problem, wish: Mapping[str, int], fixed: Mapping[str, int] | None = None) -> Sizes | None:
    """Sizes that satisfy the demands of all branches or, if there are none, the demands that always apply."""
    for one in dict.fromkeys((problem.strict, problem)):
        found = repaired(one, wish, fixed)
        if found is not None:
            return found
    return None


def _values(
    problem: Problem, sizes: Mapping[str, int], name: str, demand: Demand, wish: Mapping[str, int]
) -> list[int]:
    """Sizes of a symbol for which a demand holds, the nearest to the wanted one first."""
    found = candidates(problem, demand, name, sizes)
    others = [one for one in problem.by_symbol[name] if one is not demand]
    wanted = wish.get(name, 1)
    # Prefer those that break no other demand.
    ranked = sorted(found, key=lambda value: (_apart(value, wanted), value))
    good = [one for one in ranked if not problem.broken({**sizes, name: one}, others)]
    return [*good[:_TRIED], *ranked[:_TRIED]]


def candidates(problem: Problem, demand: Demand, name: str, sizes: Mapping[str, int]) -> list[int]:
    """Sizes of a symbol for which the demand holds: points of a grid, and the ends of valid ranges between them."""

    def gap(size: int) -> int | None:
        return demand.term.gap(problem.sizes({**sizes, name: size}), {})

    def met(size: int) -> bool:
        found = gap(size)
        return found is not None and demand.term.met(found)

    points = sorted({*GRID, *(size for size in sizes.values() if size >= 0)})
    known = [(point, found) for point in points if (found := gap(point)) is not None]
    holds = {point for point, found in known if demand.term.met(found)}
    ends: set[int] = set()
    for (low, first), (high, second) in itertools.pairwise(known):
        if demand.term.kind is Kind.MULTIPLE:
            continue
        if (low in holds) != (high in holds):
            ends.update(_turn(low, high, met if high in holds else lambda size: not met(size)))
        elif first * second < 0 and demand.term.kind is not Kind.AT_LEAST:
            # The gap may be 0 over a range of sizes: find both ends.
            sign = 1 if first < second else -1
            ends.update(_turn(low, high, partial(_reaches, gap, sign, 0)))
            ends.update(_turn(low, high, partial(_reaches, gap, sign, 1)))
    return sorted(holds.union(filter(met, ends)))


def _reaches(gap: Callable[[int], int | None], sign: int, least: int, size: int) -> bool:
    return sign * (gap(size) or 0) >= least


def _turn(low: int, high: int, after: Callable[[int], bool]) -> tuple[int, int]:
    """The neighbors between which ``after`` becomes true, where it is false at ``low`` and true at ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if after(middle) else (middle, high)
    return low, high


def _apart(value: int, wanted: int) -> float:
    """The distance of a size from the wanted one, by their ratio; smaller sizes are worse than larger ones."""
    if value == wanted:
        return 0.0
    ratio = math.log2((value + 1) / (wanted + 1))
    return ratio if ratio > 0 else -4 * ratio


# ------------------------------------------------------------------------------------------------------- ranges


@dataclass(frozen=True)
class Range:
    """The valid sizes of a symbol, for valid sizes of the others: from ``least`` to ``most`` in steps of ``step``.

    ``least`` is None if no size was found, ``most`` if no upper bound is known. ``because`` are the demands at the ends
    and between the steps, each in a line. ``tied`` are the symbols whose sizes change this range: the numbers then hold
    for one choice of those sizes, and ``always_same`` says that the size equals that of the first of them.
    """

    symbol: str
    least: int | None
    most: int | None = None
    step: int = 1
    because: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    always_same: bool = False

    @property
    def span(self) -> tuple[int | None, int | None, int]:
        """Minimum, maximum and step: equal for two ranges of the same sizes."""
        return self.least, self.most, self.step


def range_of(problem: Problem, name: str, sizes: Mapping[str, int]) -> Range:
    """The sizes from 1 on that a symbol can have, for these ``sizes`` of the others."""
    demands = problem.by_symbol.get(name, ())

    def valid_at(size: int) -> bool:
        return not problem.broken({**sizes, name: size}, demands)

    points = set(GRID).difference((0,))
    for demand in demands:
        points.update(one for one in candidates(problem, demand, name, sizes) if one > 0)
    valid = sorted(one for one in points if valid_at(one))
    if not valid:
        return Range(name, None)
    least = valid[0]
    near = [one for one in range(least, least + _NEAR) if valid_at(one)]
    step = math.gcd(*(one - least for one in near)) if len(near) > 1 else 1
    top = GRID[-1] - (GRID[-1] - least) % step
    most = None if valid_at(top) else max(valid[-1], near[-1])
    outside = {least - 1, *([] if step == 1 else [least + 1]), *([] if most is None else [most + 1])}
    because: dict[str, None] = {}
    for size in sorted(outside.difference((0,))):
        for demand in problem.broken({**sizes, name: size}, demands)[:1]:
            because[f"{demand.op_type} at {demand.place}: {demand}"] = None
    return Range(name, least, most, step, tuple(because))


_LARGEST = 64 << 20  # bytes of a model that is copied
_VAIN = 3  # searches without a result after which there are no more


class Search:
    """Finds valid sizes near to wanted ones. The demands are computed once for each path through the control flow.

    ``base_dir`` is the folder of the model's external data, and ``given`` are fixed values of inputs.
    """

    def __init__(
        self, proto: ModelProto, base_dir: Path | None = None, given: Mapping[str, Any] | None = None
    ) -> None:
        self._proto, self._base_dir, self._given = proto, base_dir, dict(given or {})
        self._problems: dict[tuple[tuple[str, int], ...], Problem] = {}
        self._near: dict[tuple[tuple[tuple[str, int], ...], ...], Sizes | None] = {}

    @cached_property
    def model(self) -> Model:
        """The model as a graph; an empty one where it cannot be read as a graph."""
        return open_graph(self._proto, self._base_dir)

    @cached_property
    def ways(self) -> list[Pins]:
        """Values of inputs, one set for each path through the control flow; [{}] if no input selects one."""
        found = deciding(self.model)
        open_ones = [
            {name: value for name, value in pins.items() if name not in self._given} for pins in found
        ]
        return [one for place, one in enumerate(open_ones) if one not in open_ones[:place]]

    @cached_property
    def _large(self) -> bool:
        return self._proto.ByteSize() > _LARGEST

    def problem(self, pins: Mapping[str, int], sizes: Mapping[str, int] | None = None) -> Problem:
        """The demands of the model with these values of inputs and with some symbols replaced by their sizes.

        A large model with its weights in memory is not copied for that: values and sizes are ignored then.
        """
        if self._large:
            pins, sizes = {}, None
        key = (*pins.items(), *((f"{name}.size", size) for name, size in (sizes or {}).items()))
        if key not in self._problems:
            values, model = {**self._given, **pins}, self.model
            if values or sizes:
                model = open_graph(bind(self._proto, values, sizes or {}), self._base_dir)
            self._problems[key] = problem_of(model)
        return self._problems[key]

    @property
    def in_vain(self) -> bool:
        """Whether no search has found sizes."""
        return bool(self._near) and all(found is None for found in self._near.values())

    def near(
        self,
        wish: Mapping[str, int],
        fixed: Mapping[str, int] | None = None,
        pins: Mapping[str, int] | None = None,
    ) -> Sizes | None:
        """Sizes near to ``wish`` that the model accepts, as far as known; None if there are none.

        ``fixed`` sizes are not changed; ``pins`` are values of inputs.
        """
        fixed, pins = fixed or {}, pins or {}
        key = tuple(tuple(one.items()) for one in (wish, fixed, pins))
        if key not in self._near:
            vain = self.in_vain and len(self._near) >= _VAIN * len(self.ways)
            self._near[key] = None if vain else self._nearest(wish, fixed, pins)
        found = self._near[key]
        return None if found is None else dict(found)

    def _nearest(
        self, wish: Mapping[str, int], fixed: Mapping[str, int], pins: Mapping[str, int]
    ) -> Sizes | None:
        problem = self.problem(pins)
        unchanged = {name: size for name, size in fixed.items() if name in problem.free}
        found = fitted(problem, wish, unchanged)
        if found is None or self._holds(found, pins, problem):
            return found
        # Which branches run, and shapes that are computed from data, may depend on a size. With all other sizes known,
        # more is known about the last one.
        for name in problem.free:
            rest = {other: size for other, size in found.items() if other != name}
            one = (
                fitted(self.problem(pins, rest), {name: wish.get(name, 1)}) if name not in unchanged else None
            )
            better = {**found, **one} if one is not None else found
            if better != found and self._holds(better, pins, problem):
                return better
        return found

    def _holds(self, sizes: Sizes, pins: Mapping[str, int], problem: Problem) -> bool:
        """Whether every demand holds, including those that are known only with all sizes."""
        if not problem.likely and problem.met(sizes):
            return True
        return not any(one.term.decided is False for one in self.problem(pins, sizes).demands)


Pins = dict[str, int]
_INTEGERS = (
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip
#: Operators that pass a single number on.
_PASSES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_COMPARES = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_MOST = 4  # combinations of values: each has runs of its own


def deciding(model: Model) -> list[Pins]:
    """Values of inputs with one element that select a path through the control flow, by input name; [{}] if none does.

    For integers that are compared with constants: a value for each side of each comparison. The constant itself is a
    number that the model knows (a sampling rate); if there are only tests for equality, half of the smallest constant
    is tried for all other numbers. For booleans that are conditions of an If: both. Every value is used at least once;
    if there are few combinations, all of them are.
    """
    named: dict[str, list[int]] = {}
    for value in model.main.inputs:
        elem, sides = _single(value), list[int]()
        if elem == TensorProto.BOOL:
            conditions = (use.node.op_type == "If" for use in _uses(value, _PASSES | {"Not"}))
            sides = [1, 0] if any(conditions) else []
        elif elem:
            sides = _sides(value)
        if sides:
            named[value.name] = sides
    combined = list(itertools.islice(itertools.product(*named.values()), _MOST + 1))
    if len(combined) > _MOST:
        turns = range(min(_MOST, max(map(len, named.values()))))
        combined = [tuple(sides[turn % len(sides)] for sides in named.values()) for turn in turns]
    return [dict(zip(named, one, strict=True)) for one in combined]


def _single(value: Value) -> int:
    """The element type of a tensor of one integer or boolean, without a default; 0 for any other value."""
    declared = value.declared
    if declared is None or not declared.HasField("tensor_type") or value.initializer is not None:
        return 0
    tensor = declared.tensor_type
    single = tensor.HasField("shape") and all(dim.dim_value == 1 for dim in tensor.shape.dim)
    return int(tensor.elem_type) if single and tensor.elem_type in (*_INTEGERS, TensorProto.BOOL) else 0


def _sides(value: Value) -> list[int]:
    """For each constant that the value is compared with: the constant and a number on the other side."""
    known: dict[int, None] = {}
    compared = [use for use in _uses(value, _PASSES) if use.node.op_type in _COMPARES]
    others = [(use.node, use.node.inputs[1 - use.index]) for use in compared if len(use.node.inputs) == 2]
    pairs = [(node, other) for node, other in others if other is not None]
    for node, other in pairs:
        array = other.constant()
        if array is None or array.size != 1:
            continue
        number = int(array.reshape(-1)[0])
        known[number] = None
        if node.op_type in ("Greater", "LessOrEqual"):
            known[number + 1] = None
        elif node.op_type in ("Less", "GreaterOrEqual"):
            known[number - 1] = None
    if known and all(node.op_type == "Equal" for node, _ in pairs):
        other_one = next((n for n in (min(known) // 2, max(known) + 1) if n not in known), None)
        known.update({} if other_one is None else {other_one: None})
    return list(known)


def _uses(value: Value, passing: Set[str]) -> Iterator[Use]:
    """The uses of a value by ONNX's operators, and of what ``passing`` operators make of it."""
    pending, seen = [value], {value}
    while pending:
        for use in pending.pop().uses:
            if not use.node.is_onnx:
                continue
            yield use
            if use.node.op_type in passing and use.index == 0:
                fresh = [out for out in use.node.outputs if out is not None and out not in seen]
                seen.update(fresh)
                pending.extend(fresh)
