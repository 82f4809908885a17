"""The quantizers of a model, and input values that show where they saturate.

Random values rarely reach the limits of a quantizer, and never where its scale is 256: an import that reads -128 to 127
as 0 to 255 then passes. Where a graph input reaches a quantizer by moves and simple arithmetic, the values around its
limits are known in advance. Quantizers further inside are measured while the model runs (``extents``). A guess is
enough, as in ``flow``: it shapes test inputs and proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from onnxfix.files import tensors
from onnxfix.inputs.feeds.flow import Flow, Key, Site

if TYPE_CHECKING:
    import numpy.typing as npt

_SMALL = 1 << 16  # bytes of a constant that is looked at
_MOST_POINTS = 64
_MOST_STEPS = 64
"""Nodes on the path from a quantizer to an input, and as many places where paths part."""
#: Operators that quantize what they compute: (operand that is the scale, operand that is the zero point).
_PRODUCTS = {"QLinearConv": (6, 7), "QLinearMatMul": (6, 7)}
_NEGATIVE = {"Neg": -1.0}
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


def _constants(flow: Flow, key: Key | None) -> list[npt.NDArray[Any]]:
    """The small constants that a value may be: one, unless it is a function's and that is called several times; none
    where it may be computed."""
    found: list[npt.NDArray[Any]] = []
    stack, seen = ([key] if key is not None else []), set[Key]()
    while stack:
        one = stack.pop()
        if one in seen:
            continue
        seen.add(one)
        tensor = flow.tensor(one)
        array = tensors.to_array(tensor, None, _SMALL) if tensor is not None else None
        if array is not None:
            found.append(array)
            continue
        site = flow.makers.get(one)
        formal = site is None or (site.node.domain, site.node.op_type) in flow.functions
        passed = formal or (site is not None and site.node.op_type == "Identity")
        sources = flow.kept_from.get(one, []) if passed else []
        if tensor is not None or not sources:
            return []
        stack.extend(sources)
    return found


@dataclass(frozen=True)
class _Step:
    """A value on the way back: the quantizer sees ``gain`` times it plus ``offset``."""

    key: Key
    gain: float = 1.0
    offset: float = 0.0


def find(flow: Flow, inputs: Mapping[str, int]) -> Quantizers:
    """The quantizers of a model whose scale and zero point are constants; ``inputs`` are its graph inputs with their
    element types."""
    points: dict[str, dict[float, None]] = {name: {} for name in inputs}
    computed: list[
        tuple[Key, tuple[float, float, float]]
    ] = []  # data that no input determines, and their limits
    sites = [site for site in flow.sites if (site.node.domain, site.node.op_type) not in flow.functions]
    for site in sites:
        if site.node.op_type != "QuantizeLinear":
            continue
        limits = _limits(flow, site, 1, 2)
        if limits is None:
            continue
        reached = False
        for name, step, more in _ways(flow, _at(site, 0), inputs):
            values = [*more, *(point for one in limits for point in one.points())]
            fed = ((value - step.offset) / step.gain for value in values)
            points[name].update(dict.fromkeys(filter(math.isfinite, fed)))
            reached = True
        if not reached and site.inputs[0] is not None:
            one = max(limits, key=lambda limits: limits.scale)
            ends = (one.least - one.zero) * one.scale, (one.most - one.zero) * one.scale
            computed.append((site.inputs[0], (*ends, 0.0)))
    for op_type, (scale, zero) in _PRODUCTS.items():
        for site in (one for one in sites if one.node.op_type == op_type):
            limits = _limits(flow, site, scale, zero)
            if limits is not None and site.outputs[0] is not None:
                computed.append((site.outputs[0], (limits[0].least, limits[0].most, limits[0].zero)))
    main = {key: None for key, _ in computed if flow.is_main(key)}
    inside = dict.fromkeys(Range(key[1], *ends) for key, ends in computed if key in main)
    hidden = sum(key not in main for key, _ in computed)
    scaled = frozenset(name for name in inputs if main and main.keys() & flow.reach_from_input(name))
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


def _limits(flow: Flow, site: Site, scale: int, zero: int) -> list[_Limits] | None:
    """The limits of a quantizer, for the greatest and the least of its scales; None where they are not constant."""
    found = (
        array for array in _constants(flow, _at(site, scale)) if "float" in array.dtype.name and array.size
    )
    scales = [array for array in found if np.isfinite(array.astype(np.float64)).all()]
    zeros = _constants(flow, _at(site, zero))
    if not scales or (_at(site, zero) is not None and not zeros):
        return None
    wanted = next((one.i for one in site.node.attribute if one.name == "output_dtype"), 0)
    elem = wanted or TensorProto.UINT8
    dtype = zeros[0].dtype if zeros else helper.tensor_dtype_to_np_dtype(elem)
    ends = _ends(dtype)
    if ends is None:
        return None
    points = {float(value) for array in zeros or [np.zeros(1)] for value in _few(array)}
    steps = {float(value) for array in scales for value in _few(array) if value > 0}
    return [
        _Limits(*ends, point, step) for step in sorted(steps, reverse=True) for point in sorted(points)
    ] or None


def _at(site: Site, place: int) -> Key | None:
    return site.inputs[place] if place < len(site.inputs) else None


def _few(array: npt.NDArray[Any]) -> set[float]:
    """The least, the median and the greatest of an array."""
    flat = np.sort(array.astype(np.float64).reshape(-1))
    return {float(flat[0]), float(flat[flat.size // 2]), float(flat[-1])} if flat.size else set()


def _ends(dtype: np.dtype[Any]) -> tuple[float, float] | None:
    """Least and greatest number of an element type that is quantized to."""
    if "int" in dtype.name:
        info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    elif "float" in dtype.name:
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    else:
        return None
    return float(info.min), float(info.max)


# ------------------------------------------------------------------------------------------------- the way back


def _ways(
    flow: Flow, start: Key | None, inputs: Mapping[str, int]
) -> Iterator[tuple[str, _Step, tuple[float, ...]]]:
    """The graph inputs whose values reach a quantizer by moves and simple arithmetic, with how they do, and the bounds
    of the Clips on the way, as the quantizer sees them."""
    stack = [_Step(start)] if start is not None else []
    seen: set[Key] = set()
    bounds: list[float] = []
    while stack and len(seen) < _MOST_STEPS:
        step = stack.pop()
        if step.key in seen:
            continue
        seen.add(step.key)
        if flow.is_main(step.key) and step.key[1] in inputs:
            yield step.key[1], step, tuple(bounds)
            continue
        stack.extend(_Step(source, step.gain, step.offset) for source in flow.kept_from.get(step.key, []))
        site = flow.makers.get(step.key)
        if site is None:
            continue
        if site.node.op_type in _BOUNDED and site.inputs:
            for bound in _bounds(flow, site):
                bounds += [step.gain * bound * share + step.offset for share in (1.0, 1.01)]
            if site.inputs[0] is not None:
                stack.append(_Step(site.inputs[0], step.gain, step.offset))
        stack.extend(_undone(flow, site, step))


def _undone(flow: Flow, site: Site, step: _Step) -> Iterator[_Step]:
    """The step before an addition or a product with a constant: ``gain * (factor * x + term) + offset``."""
    op_type, inputs = site.node.op_type, site.inputs
    if op_type in _NEGATIVE and inputs and inputs[0] is not None:
        yield _Step(inputs[0], -step.gain, step.offset)
    if op_type not in ("Add", "Sub", "Mul", "Div") or len(inputs) != 2:
        return
    for place in (0, 1):
        key, constants = inputs[place], _constants(flow, inputs[1 - place])
        number = _middle(constants)
        if key is None or number is None or _constants(flow, key):
            continue
        factor, term = 1.0, 0.0
        if op_type == "Mul":
            factor = number
        elif op_type == "Div" and place == 0:
            factor = 1.0 / number if number else 0.0
        elif op_type == "Add":
            term = number
        elif op_type == "Sub":
            factor, term = (1.0, -number) if place == 0 else (-1.0, number)
        else:
            continue
        if factor and math.isfinite(factor):
            yield _Step(key, step.gain * factor, step.gain * term + step.offset)


def _middle(constants: list[npt.NDArray[Any]]) -> float | None:
    """The constant of a sum or a product; the median where each channel has its own."""
    if len(constants) != 1 or not constants[0].size or constants[0].dtype.kind in "OUSb":
        return None
    flat = np.sort(constants[0].astype(np.float64).reshape(-1))
    return float(flat[flat.size // 2]) if math.isfinite(flat[flat.size // 2]) else None


def _bounds(flow: Flow, site: Site) -> Iterator[float]:
    """The bounds of a Clip, attributes before opset 11."""
    if site.node.op_type != "Clip":
        return
    for key in site.inputs[1:3]:
        value = _middle(_constants(flow, key))
        if value is not None:
            yield value
    yield from (one.f for one in site.node.attribute if one.name in ("min", "max") and math.isfinite(one.f))
