"""8-bit integer arithmetic in int32, and provable ranges of integers.

TensorRT supports uint8 only for network inputs and outputs, and int8 as a quantized type. So their arithmetic is done
in int32 between Casts, and wrapped around by Mod if the result may leave the type. Where the target does not compute
int8 at all, int8 is dequantized and quantized with the scale 1, which is exact: TensorRT 10.6.0 does not build what
reads a Cast of an int8 input ("cannot be quantized by x. You might want to add a DQ node"), nor an int32 node between
a DQ and a Q ("output has type Int32 but must have type Float"). Mod is imported as ``x - y * floor(x
/ y)``, as ONNX defines it, also for negative values (read from the network that TensorRT-RTX 1.7.1 makes).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cached_property

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import INTEGERS, Draft, Model, Node, Value, target_of
from onnxfix.targets.documented import names

DEPTH = 6
"""Maximum number of nodes that are followed upstream along one path."""
SMALL = (TensorProto.UINT8, TensorProto.INT8)
WIDE = (TensorProto.INT32, TensorProto.INT64)
Range = tuple[int, int]

_SAME = names("Expand Flatten Gather Identity Reshape Slice Squeeze Tile Transpose Unsqueeze")


def wide_of(elem: int) -> int:
    """The type in which integers of type ``elem`` are computed."""
    return TensorProto.INT32 if elem in SMALL else elem


def is_only_quantized(node: Node, model: Model) -> bool:
    """Whether the target takes int8 for a quantized type only, and ``node`` may stand between Q and DQ."""
    return target_of(model).accepts("Add", TensorProto.INT8) is False and node.scope.opset() >= 10


def bits_of(elem: int) -> int:
    """The width of the type in bits."""
    return (INTEGERS[elem].high - INTEGERS[elem].low).bit_length()


def is_signed(elem: int) -> bool:
    """Whether the type is signed."""
    return INTEGERS[elem].low < 0


def fits(value: Value, elem: int, model: Model) -> bool:
    """Whether every element certainly fits the type ``elem``."""
    low, high = range_of(value, model)
    return INTEGERS[elem].low <= low and high <= INTEGERS[elem].high


def range_of(value: Value | None, model: Model, depth: int = DEPTH) -> Range:
    """The minimum and maximum of an integer tensor: those of its type if nothing more is known."""
    elem = None if value is None else model.shapes.elem_type(value)
    if value is None or elem not in INTEGERS:
        return INTEGERS[TensorProto.INT64].low, INTEGERS[TensorProto.UINT64].high
    full = INTEGERS[elem].low, INTEGERS[elem].high
    array = value.constant()
    if array is not None:
        return (int(array.min()), int(array.max())) if array.size else (0, 0)
    node = value.producer
    if node is None or not node.is_onnx or depth <= 0:
        return full
    found = range_after(node, lambda index: range_of(node.input(index), model, depth - 1))
    return found if found is not None and full[0] <= found[0] and found[1] <= full[1] else full


def range_after(node: Node, of: Callable[[int], Range]) -> Range | None:
    """The range of the node's result before wraparound, from those of its inputs; None if unknown."""
    kind = node.op_type
    if kind == "Cast" or kind in _SAME:
        source = node.input(0)
        known = source is not None and source.scope.model.shapes.elem_type(source) in INTEGERS
        return of(0) if known else None
    if kind == "Where":
        return _both(of(1), of(2))
    if kind == "Concat" and len(node.inputs) <= 4:
        parts = [of(index) for index in range(len(node.inputs))]
        return min(low for low, _ in parts), max(high for _, high in parts)
    if kind in ("Add", "Sub", "Mul"):
        operation = {"Add": int.__add__, "Sub": int.__sub__, "Mul": int.__mul__}[kind]
        ends = [operation(a, b) for a, b in itertools.product(of(0), of(1))]
        return min(ends), max(ends)
    if kind == "Mod":
        return _mod(of(0), of(1), node.attr("fmod", 0))
    if kind == "Div":
        (low, high), (divisor, _) = of(0), of(1)
        return (min(low, 0), max(high, 0)) if divisor >= 1 else None
    if kind in ("Min", "Max") and len(node.inputs) == 2:
        pick = min if kind == "Min" else max
        return pick(of(0)[0], of(1)[0]), pick(of(0)[1], of(1)[1])
    return None


def _both(first: Range, second: Range) -> Range:
    return min(first[0], second[0]), max(first[1], second[1])


def _mod(data: Range, divisor: Range, fmod: int) -> Range | None:
    if divisor[0] < 1:
        return None
    top = min(data[1], divisor[1] - 1) if data[0] >= 0 else divisor[1] - 1
    return (max(data[0], 1 - divisor[1]) if fmod and data[0] < 0 else 0), max(top, 0)


class Computer:
    """Builds integer arithmetic for the node ``draft.anchor``, whose operands have the TensorProto type ``elem``.

    All values have the type ``wide``, which can represent the operands.
    """

    def __init__(self, draft: Draft, model: Model, elem: int, wide: int | None = None) -> None:
        self.draft, self.model, self.elem = draft, model, elem
        self.wide = wide_of(elem) if wide is None else wide
        self.bits, self.signed = bits_of(elem), is_signed(elem)
        self._only_quantized = elem == TensorProto.INT8 and is_only_quantized(draft.anchor, model)
        self._numbers: dict[int, str] = {}
        self._widened: dict[Value, str] = {}

    @cached_property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy dtype of the wide type."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.wide))

    def number(self, value: int) -> str:
        """A scalar constant, shared by equal values."""
        if value not in self._numbers:
            self._numbers[value] = self.array(value, "number")
        return self._numbers[value]

    def array(self, values: object, hint: str) -> str:
        """A constant of the wide type."""
        return self.draft.constant(np.array(values, dtype=self.dtype), hint)

    def add(self, op_type: str, *inputs: str) -> str:
        """A node with one output."""
        return self.draft.add(op_type, inputs)

    def widened(self, value: Value) -> str:
        """The operand in the wide type, or the value that it was losslessly narrowed from."""
        if self.wide == self.elem:
            return value.name
        if value not in self._widened:
            self._widened[value] = self._cast(value)
        return self._widened[value]

    def _cast(self, value: Value) -> str:
        array = value.constant()
        if array is not None:
            return self.array(array, "wide")
        before = unnarrowed(value, self.draft.anchor, self.model)
        if before is not None and self.model.shapes.elem_type(before) == self.wide:
            return before.name
        if before is None and self._only_quantized:
            real = self.draft.add("DequantizeLinear", [value, self._one], hint="wide")
            return real if self.wide == TensorProto.FLOAT else self._to(real, self.wide)
        return self.draft.add("Cast", [value if before is None else before], hint="wide", to=self.wide)

    @cached_property
    def _one(self) -> str:
        """The scale 1."""
        return self.draft.constant(np.array(1, np.float32), "scale")

    def _to(self, name: str, elem: int) -> str:
        return self.draft.add("Cast", [name], to=elem)

    def wrapped(self, name: str) -> str:
        """The result wrapped around to the range of ``elem``."""
        if not self.signed:
            return self.add("Mod", name, self.number(1 << self.bits))
        half = 1 << (self.bits - 1)
        if self.wide == TensorProto.FLOAT:  # for which Mod is another one
            turns = self.add("Mul", self.add("Add", name, self.number(half)), self.array(0.5 / half, "turn"))
            return self.add("Sub", name, self.add("Mul", self.add("Floor", turns), self.number(2 * half)))
        shifted = self.add("Mod", self.add("Add", name, self.number(half)), self.number(2 * half))
        return self.add("Sub", shifted, self.number(half))

    def finish(self, name: str, output: Value) -> None:
        """Replace the node's ``output`` by the result, which must fit ``elem``."""
        if self.wide != self.elem and self._only_quantized:
            real = name if self.wide == TensorProto.FLOAT else self._to(name, TensorProto.FLOAT)
            zero = self.draft.constant(np.array(0, np.int8), "zero_point")
            name = self.draft.add("QuantizeLinear", [real, self._one, zero])
        elif self.wide != self.elem:
            name = self._to(name, self.elem)
        self.draft.replace_output(self.draft.anchor, name)


def unnarrowed(value: Value, node: Node, model: Model) -> Value | None:
    """The int32 or int64 that was losslessly cast to ``value``, if it is visible to ``node``."""
    producer = value.producer
    if producer is None or not producer.is_onnx or producer.op_type != "Cast":
        return None
    before, elem = producer.input(0), model.shapes.elem_type(value)
    if before is None or elem not in SMALL or node.scope.lookup(before.name) is not before:
        return None
    return before if model.shapes.elem_type(before) in WIDE and fits(before, elem, model) else None
