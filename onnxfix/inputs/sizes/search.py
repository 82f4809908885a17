"""The search for sizes that a model accepts, for each path through its control flow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto

from onnxfix.graph.overlay import Use, Value
from onnxfix.inputs.sizes.problem import Problem, bind, open_graph, problem_of
from onnxfix.inputs.sizes.solve import Sizes, fitted
from onnxfix.model import Model

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
