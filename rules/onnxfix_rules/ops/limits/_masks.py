"""Values that a NonZero selects, written as values of the whole tensor: outside of the mask they have no meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import Draft, Model, Node, Severity, Value, dtypes, equal, takes, target_of

_ROUNDED = frozenset(
    {"Cos", "Erf", "Exp", "Log", "Pow", "Reciprocal", "Sigmoid", "Sin", "Softplus", "Sqrt", "Tanh"}
)
"""Operators whose last bits may depend on an element's place in a vector."""
_OF_ZEROS = frozenset({"Max", "Min"})
"""Operators of floats that take either of 0 and -0, depending on the place."""
_COMPUTES = _ROUNDED | {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Floor", "Greater", "Less", "Max", "Min", "Mul", "Neg",
    "Not", "Or", "Relu", "Sign", "Sub", "Where",
}  # fmt: skip
_SAME_ORDER = frozenset({"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_FIRM = frozenset({*dtypes.INTEGERS, TensorProto.BOOL, TensorProto.FLOAT, TensorProto.DOUBLE})
"""Types that every backend rounds after each operator."""
DEPTH = 24
"""Most nodes between a NonZero and what needs its result."""


def severity(model: Model, release: tuple[int, ...] = (), is_refused: bool = False) -> Severity:
    """An error where the target has no NonZero, or is the release of TensorRT that refuses it all the same."""
    target = target_of(model)
    if is_refused and target.package == "tensorrt" and target.oldest == release == target.newest:
        return Severity.ERROR
    return Severity.ERROR if target.imports("NonZero") is False else Severity.INFO


def mask_of(indices: Value, model: Model) -> Value | None:
    """The mask whose places these are, in the form of GatherND ([number, rank]) or, for a vector, in any form."""
    node, turned, rearranged = indices.producer, False, False
    for _ in range(DEPTH):
        if node is None or not node.is_onnx or node.op_type == "NonZero":
            break
        source, output = node.input(0), node.output()
        if node.op_type == "Transpose":
            turned, rearranged = not turned, rearranged or node.attr("perm", [1, 0]) != [1, 0]
        elif node.op_type not in _SAME_ORDER or source is None or output is None or _repeats(node, model):
            return None
        else:
            rearranged = rearranged or node.op_type != "Identity"
        node = None if source is None else source.producer
    if node is None or not node.is_onnx or node.op_type != "NonZero":
        return None
    mask = root_of(node.require(0), model)
    rank = model.shapes.rank(mask)
    return mask if rank == 1 or (rank and turned and not rearranged) else None


def _repeats(node: Node, model: Model) -> bool:
    return (
        node.op_type == "Expand" and not model.shapes.same_shape(node.require(0), node.require_output()).yes
    )


def root_of(mask: Value, model: Model) -> Value:
    """The mask without Casts from booleans and without Expands to its own shape."""
    node = mask.producer
    while node is not None and node.is_onnx and (source := node.input(0)) is not None:
        boolean = node.op_type == "Cast" and model.shapes.elem_type(source) == TensorProto.BOOL
        if not boolean and node.op_type != "Identity" and (node.op_type != "Expand" or _repeats(node, model)):
            break
        mask, node = source, source.producer
    return mask


def base_of(mask: Value, model: Model) -> Value:
    """The mask before Unsqueeze and Expand repeated it along axes at the end."""
    expand = mask.producer
    if expand is None or not expand.is_onnx or expand.op_type != "Expand":
        return mask
    between = expand.require(0)
    unsqueeze = between.producer
    if unsqueeze is None or not unsqueeze.is_onnx or unsqueeze.op_type != "Unsqueeze":
        return mask
    base = root_of(unsqueeze.require(0), model)
    small, middle, whole = (model.shapes.shape(value) for value in (base, between, mask))
    if not small or middle is None or whole is None or len(middle) != len(whole):
        return mask
    rank = len(small)
    same = all(
        equal(*pair).yes for other in (middle, whole) for pair in zip(small, other[:rank], strict=True)
    )
    return base if same and all(dim.value == 1 for dim in middle[rank:]) else mask


def can_test(node: Node, mask: Value, model: Model) -> bool:
    """Whether ``condition`` can be written in the node's opset."""
    elem, opset = model.shapes.elem_type(mask), node.scope.opset()
    boolean = elem == TensorProto.BOOL or (elem is not None and takes("Equal", opset, elem))
    return opset >= 11 and boolean and bool(model.shapes.rank(mask))


def condition(draft: Draft, mask: Value, rank: int, model: Model) -> Value | str:
    """The mask as booleans, with more axes at the end up to ``rank``. NaN is not zero."""
    elem = model.shapes.elem_type(mask)
    chosen: Value | str = mask
    if elem != TensorProto.BOOL:
        zero = np.zeros((), helper.tensor_dtype_to_np_dtype(elem or TensorProto.FLOAT))
        chosen = draft.add("Not", [draft.add("Equal", [mask, draft.constant(zero, "zero")])])
    own = model.shapes.rank(mask) or rank
    return chosen if own == rank else draft.unsqueeze(chosen, list(range(own, rank)))


def neutral(op: str, elem: int) -> np.ndarray[Any, Any] | None:
    """What changes no result of the reduction, in the type of its operand; None if there is no such reduction."""
    ends = dtypes.INTEGERS.get(elem)
    if ends is None and elem not in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
        return None
    if op in ("ReduceL2", "ReduceMean") and elem not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        return None
    low, high = (-math.inf, math.inf) if ends is None else (ends.low, ends.high)
    value = {"ReduceMax": low, "ReduceMin": high, "ReduceProd": 1}.get(op, 0)
    return np.array(value, helper.tensor_dtype_to_np_dtype(elem))


def gathered(node: Node, model: Model) -> tuple[Value, Value] | None:
    """The mask and the data of a GatherND, or of a Gather of rows, by the places of a mask."""
    if not node.is_onnx or node.op_type not in ("Gather", "GatherND"):
        return None
    data, indices = node.require(0), node.require(1)
    mask = mask_of(indices, model) if not node.attr("batch_dims", 0) and not node.attr("axis", 0) else None
    if mask is None:
        return None
    shape, kept, places = (model.shapes.shape(value) for value in (data, mask, indices))
    if shape is None or kept is None or places is None or len(shape) < len(kept):
        return None
    rows = len(places) == 1 if node.op_type == "Gather" else len(places) == 2 and places[1].value == len(kept)
    same = all(equal(*pair).yes for pair in zip(kept, shape[: len(kept)], strict=True))
    return (mask, data) if rows and same else None


def selection(value: Value, model: Model) -> tuple[Value, Value] | None:
    """The mask and the tensor behind values that were selected and then computed with."""
    seen: set[Value] = set()
    stack = [value]
    while stack and len(seen) < DEPTH:
        node = stack.pop().producer
        if node is None or not node.is_onnx:
            continue
        found = gathered(node, model)
        if found is not None:
            return found
        if node.op_type in _COMPUTES | _SAME_ORDER:
            operands = [
                operand for operand in node.inputs[: 1 if node.op_type in _SAME_ORDER else None] if operand
            ]
            stack += [operand for operand in operands if operand not in seen]
            seen.update(operands)
    return None


def may_be_minus_zero(value: Value) -> bool:
    """Whether a float may be -0.0, as far as the last operators tell."""
    array, node = value.constant(), value.producer
    if array is not None:
        return bool(((array == 0) & np.signbit(array.astype(np.float64))).any())
    if node is None or not node.is_onnx or not node.inputs:
        return True
    operands = [operand for operand in node.inputs if operand is not None]
    if node.op_type == "Add":  # -0.0 only from two of them
        return all(operand.constant() is None or may_be_minus_zero(operand) for operand in operands)
    return node.op_type not in _SAME_ORDER or may_be_minus_zero(operands[0])


@dataclass
class Spread:
    """Writes values that the mask ``base`` selects as values of the shape of ``like``. ``exact``: with the same bits.

    ``counted``: the reader requires as many values as the mask selects, so that an Expand repeats none."""

    draft: Draft
    model: Model
    base: Value
    like: Value
    counted: bool = False
    exact: bool = True
    _done: dict[Value, Value | str | None] = field(default_factory=dict)

    def updates(self, value: Value) -> Value | str | None:
        """The updates of a ScatterND, which has one for each place of the mask."""
        node = value.producer
        while node is not None and node.is_onnx and node.op_type in _SAME_ORDER - {"Expand"}:
            node = node.require(0).producer
        if node is None or not node.is_onnx or node.op_type != "Slice" or not _from_start(node):
            return self.of(value)
        self.counted = False
        return self.of(node.require(0)) or self._in_order(node.require(0))

    def of(self, value: Value, depth: int = DEPTH) -> Value | str | None:
        """The values; a scalar that is the same for all; or None where they are not known."""
        if value not in self._done:
            mark, before = len(self.draft.edits), dict(self._done)
            found = self._written(value, depth) if depth else None
            if found is None:
                del self.draft.edits[mark:]
                self._done = before
            self._done[value] = found
        return self._done[value]

    def _written(self, value: Value, depth: int) -> Value | str | None:
        if self._is_single(value):
            return self.draft.reshape(value, []) if self.model.shapes.rank(value) else value
        node = value.producer
        if node is None or not node.is_onnx:
            return None
        found = gathered(node, self.model)
        if found is not None:
            same = self.model.shapes.same_shape(found[1], self.like).yes
            return found[1] if same and base_of(found[0], self.model) is self.base else None
        if node.op_type in _SAME_ORDER:
            source = node.require(0)
            kept = self.counted or self._is_single(source) or not _repeats(node, self.model)
            return self.of(source, depth - 1) if kept else None
        return self._computed(node, value, depth) if node.op_type in _COMPUTES else None

    def _is_single(self, value: Value) -> bool:
        shape = self.model.shapes.static_shape(value)
        return shape is not None and all(size == 1 for size in shape)

    def _computed(self, node: Node, value: Value, depth: int) -> str | None:
        elem, rank = self.model.shapes.elem_type(value), self.model.shapes.rank(value)
        if elem is None or rank is None or (node.op_type == "Div" and not dtypes.is_float(elem)):
            return None  # an integer divisor outside of the mask may be 0
        operands: list[Value | str | None] = []
        for operand in node.inputs:
            if operand is None:
                operands.append(None)
                continue
            counted = self.counted and rank == 1  # else a single selected value may be repeated
            aligned = self._is_single(operand) or (counted and self.model.shapes.rank(operand) == 1)
            if not aligned and not self.model.shapes.same_shape(operand, value).yes:
                return None  # repeated against another operand
            operands.append(self.of(operand, depth - 1))
            if operands[-1] is None:
                return None
        inexact = _ROUNDED | (_OF_ZEROS if dtypes.is_float(elem) else frozenset())
        self.exact = self.exact and node.op_type not in inexact and elem in _FIRM
        kept = {attribute.name: node.attr(attribute.name) for attribute in node.proto.attribute[:]}
        return self.draft.add(node.op_type, operands, **kept)

    def _in_order(self, source: Value) -> str | None:
        """The next element of a vector for each place of the mask, as masked_scatter takes them."""
        model, draft = self.model, self.draft
        elem, rank = model.shapes.elem_type(source), model.shapes.rank(self.like)
        if model.shapes.rank(source) != 1 or elem is None or rank is None or draft.anchor.scope.opset() < 14:
            return None
        shape = draft.add("Shape", [self.like])
        chosen = draft.cast(condition(draft, self.base, rank, model), TensorProto.INT32)
        if model.shapes.rank(self.base) != rank:
            chosen = draft.add("Expand", [chosen, shape])
        flat = draft.reshape(chosen, [-1])
        before = draft.add("CumSum", [flat, draft.integers(0, "axis")], exclusive=1)
        number = draft.add("Mul", [before, flat])
        spare = draft.constant(np.zeros(1, helper.tensor_dtype_to_np_dtype(elem)), "spare")
        values = draft.add("Gather", [draft.add("Concat", [source, spare], axis=0), number], axis=0)
        return draft.add("Reshape", [values, shape], allowzero=1)  # the tensor may be empty


def _from_start(node: Node) -> bool:
    """Whether a Slice of a vector keeps its first elements."""
    if node.opset < 10:
        return False
    given = [node.input(index) for index in (1, 3, 4)]
    known = [None if value is None else value.constant() for value in given]
    return all(
        value is None or (array is not None and array.reshape(-1).tolist() == [wanted])
        for value, array, wanted in zip(given, known, (0, 0, 1), strict=True)
    )
