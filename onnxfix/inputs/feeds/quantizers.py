"""The quantizers of a model, and input values that show where they saturate.

Random values rarely reach the limits of a quantizer, and never where its scale is 256: an import that reads -128 to 127
as 0 to 255 then passes. Where a graph input reaches a quantizer by moves and simple arithmetic, the values around its
limits are known in advance. Quantizers further inside are measured while the model runs (``extents``). A guess is
enough, as in ``flow``: it shapes test inputs and proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from onnxfix.graph.overlay import Node, Value
from onnxfix.inputs.feeds.flow import Flow, read_constant
from onnxfix.inputs.sizes.demands import scale_and_shift

if TYPE_CHECKING:
    import numpy.typing as npt

_SMALL = 1 << 16  # bytes of a constant that is looked at
_MOST_POINTS = 64
_MOST_STEPS = 64
"""Nodes on the path from a quantizer to an input, and as many places where paths part."""
#: Operators that quantize what they compute: (operand that is the scale, operand that is the zero point).
_PRODUCTS = {"QLinearConv": (6, 7), "QLinearMatMul": (6, 7)}
#: Operators that let through what is inside their bounds.
_BOUNDED = ("Relu", "Clip")


@dataclass(frozen=True)
class Range:
    """The range of a quantizer in the units of the tensor ``name`` of the main graph: its data, or what an operator on
    integers gives. ``low`` and ``high`` are its limits, ``center`` what becomes the zero point."""

    name: str
    low: float
    high: float
    center: float


@dataclass(frozen=True)
class Quantizers:
    """``points`` are values to feed, by graph input, the most informative ones first: around the limits of the
    quantizers that its values reach. ``inside`` are quantizers without such a value, ``scaled`` the inputs that they
    depend on, and ``hidden`` how many are in subgraphs and functions, which are not analyzed."""

    points: Mapping[str, tuple[float, ...]]
    inside: tuple[Range, ...] = ()
    scaled: frozenset[str] = frozenset()
    hidden: int = 0


def _constants(flow: Flow, value: Value | None) -> list[npt.NDArray[Any]]:
    """The small constants that a value may be: one, unless it is a function's and that is called several times; none
    where it may be computed."""
    found: list[npt.NDArray[Any]] = []
    stack, seen = ([value] if value is not None else []), set[Value]()
    while stack:
        one = stack.pop()
        if one in seen:
            continue
        seen.add(one)
        array = read_constant(one, _SMALL)
        if array is not None:
            found.append(array)
            continue
        node = one.producer
        passed = node is None or node.function is not None or node.op_type == "Identity"
        sources = flow.kept_from.get(one, []) if passed else []
        if one.initializer is not None or not sources:
            return []
        stack.extend(sources)
    return found


@dataclass(frozen=True)
class _Step:
    """A value on the way back: the quantizer sees ``gain`` times it plus ``offset``."""

    value: Value
    gain: float = 1.0
    offset: float = 0.0


def find(flow: Flow, inputs: Mapping[str, int]) -> Quantizers:
    """The quantizers of a model whose scale and zero point are constants; ``inputs`` are its graph inputs with their
    element types."""
    points: dict[str, dict[float, None]] = {name: {} for name in inputs}
    computed: list[tuple[Value, float, float, float]] = []  # data that no input determines, and their limits
    nodes = [node for node in flow.nodes if node.function is None]
    for node in nodes:
        limits = _limits(flow, node, 1, 2) if node.op_type == "QuantizeLinear" else None
        if limits is None:
            continue
        reached = False
        for step, more in _ways(flow, node.input(0), inputs):
            values = [*more, *(point for one in limits for point in one.points())]
            fed = ((value - step.offset) / step.gain for value in values)
            points[step.value.name].update(dict.fromkeys(filter(math.isfinite, fed)))
            reached = True
        data = node.input(0)
        if not reached and data is not None:
            one = max(limits, key=lambda limits: limits.scale)
            computed.append(
                (data, (one.least - one.zero) * one.scale, (one.most - one.zero) * one.scale, 0.0)
            )
    for op_type, (scale, zero) in _PRODUCTS.items():
        for node in (one for one in nodes if one.op_type == op_type):
            limits, result = _limits(flow, node, scale, zero), node.output()
            if limits is not None and result is not None:
                computed.append((result, limits[0].least, limits[0].most, limits[0].zero))
    main = {value for value, *_ in computed if value.scope is flow.main}
    inside = dict.fromkeys(Range(value.name, *ends) for value, *ends in computed if value in main)
    hidden = sum(value not in main for value, *_ in computed)
    scaled = frozenset(name for name in inputs if main and main & flow.reach_from_input(name))
    chosen: dict[str, tuple[float, ...]] = {}
    for name, known in points.items():
        if known:  # of many values, those of all quantizers in turn
            chosen[name] = tuple(known)[:: max(1, math.ceil(len(known) / _MOST_POINTS))]
    return Quantizers(chosen, tuple(inside), scaled, hidden)


@dataclass(frozen=True)
class _Limits:
    """Least and greatest quantized number, the zero point, and the scale."""

    least: float
    most: float
    zero: float
    scale: float

    def points(self) -> Iterator[float]:
        """What is quantized to the limits, next to them, beyond them, to the limits of the type of the other sign, in
        the middle between two steps, and to the zero point."""
        half = (self.most - self.least + 1) // 2
        numbers = (
            *(self.most + 2, self.least - 2, self.most, self.least, self.zero + half, self.zero - half - 1),
            *(self.most - 1, self.least + 1, self.zero + half - 1, self.zero - half, self.zero),
            *(self.most + half, self.least - half, self.zero + 0.5, self.zero + 1.5, self.zero - 0.5),
            *(self.most - 0.5, self.least + 0.5, self.most + 0.5, self.least - 0.5),
        )
        return ((number - self.zero) * self.scale for number in numbers)


def _limits(flow: Flow, node: Node, scale: int, zero: int) -> list[_Limits] | None:
    """The limits of a quantizer, for the greatest and the least of its scales; None where they are not constant."""
    found = (
        array for array in _constants(flow, node.input(scale)) if "float" in array.dtype.name and array.size
    )
    scales = [array for array in found if np.isfinite(array.astype(np.float64)).all()]
    zeros = _constants(flow, node.input(zero))
    if not scales or (node.input(zero) is not None and not zeros):
        return None
    wanted = next((one.i for one in node.proto.attribute if one.name == "output_dtype"), 0)
    elem = wanted or TensorProto.UINT8
    dtype = zeros[0].dtype if zeros else helper.tensor_dtype_to_np_dtype(elem)
    if "int" in dtype.name:
        info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    elif "float" in dtype.name:
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    else:
        return None
    points = {float(value) for array in zeros or [np.zeros(1)] for value in _few(array)}
    steps = {float(value) for array in scales for value in _few(array) if value > 0}
    return [
        _Limits(float(info.min), float(info.max), point, step)
        for step in sorted(steps, reverse=True)
        for point in sorted(points)
    ] or None


def _few(array: npt.NDArray[Any]) -> set[float]:
    """The least, the median and the greatest of an array."""
    flat = np.sort(array.astype(np.float64).reshape(-1))
    return {float(flat[0]), float(flat[flat.size // 2]), float(flat[-1])} if flat.size else set()


# ------------------------------------------------------------------------------------------------- the way back


def _ways(
    flow: Flow, start: Value | None, inputs: Mapping[str, int]
) -> Iterator[tuple[_Step, tuple[float, ...]]]:
    """The graph inputs whose values reach a quantizer by moves and simple arithmetic, with how they do, and the bounds
    of the Clips on the way, as the quantizer sees them."""
    stack = [_Step(start)] if start is not None else []
    seen: set[Value] = set()
    bounds: list[float] = []
    while stack and len(seen) < _MOST_STEPS:
        step = stack.pop()
        if step.value in seen:
            continue
        seen.add(step.value)
        if step.value.scope is flow.main and step.value.name in inputs:
            yield step, tuple(bounds)
            continue
        stack.extend(replace(step, value=source) for source in flow.kept_from.get(step.value, []))
        node = step.value.producer
        if node is None:
            continue
        if node.op_type in _BOUNDED and node.inputs:
            numbers = [_middle(_constants(flow, value)) for value in node.inputs[1:3]]
            # attributes before opset 11
            numbers += [one.f for one in node.proto.attribute if one.name in ("min", "max")]
            for bound in numbers if node.op_type == "Clip" else ():
                if bound is not None and math.isfinite(bound):
                    bounds += [step.gain * bound * share + step.offset for share in (1.0, 1.01)]
            if node.inputs[0] is not None:
                stack.append(replace(step, value=node.inputs[0]))
        stack.extend(_undo(flow, node, step))


def _undo(flow: Flow, node: Node, step: _Step) -> Iterator[_Step]:
    """The step before an addition or a product with a constant: ``gain * (factor * x + term) + offset``."""
    op_type, inputs = node.op_type, node.inputs
    if op_type == "Neg" and inputs and inputs[0] is not None:
        yield _Step(inputs[0], -step.gain, step.offset)
    if op_type not in ("Add", "Sub", "Mul", "Div") or len(inputs) != 2:
        return
    for place in (0, 1):
        value, number = inputs[place], _middle(_constants(flow, inputs[1 - place]))
        if value is None or number is None or _constants(flow, value):
            continue
        arithmetic = scale_and_shift(op_type, place, number)
        if arithmetic is not None and math.isfinite(arithmetic[0]):
            factor, term = arithmetic
            yield _Step(value, step.gain * factor, step.gain * term + step.offset)


def _middle(constants: list[npt.NDArray[Any]]) -> float | None:
    """The constant of a sum or a product; the median where each channel has its own."""
    if len(constants) != 1 or not constants[0].size or constants[0].dtype.kind in "OUSb":
        return None
    flat = np.sort(constants[0].astype(np.float64).reshape(-1))
    return float(flat[flat.size // 2]) if math.isfinite(flat[flat.size // 2]) else None
