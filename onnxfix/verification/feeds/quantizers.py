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

from onnxfix.verification.feeds.backward import Backward
from onnxfix.verification.feeds.flow import Key, Site

if TYPE_CHECKING:
    import numpy.typing as npt

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


@dataclass(frozen=True)
class _Step:
    """A value on the way back: the quantizer sees ``gain`` times it plus ``offset``."""

    key: Key
    gain: float = 1.0
    offset: float = 0.0


def find(flow: Backward, inputs: Mapping[str, int]) -> Quantizers:
    """The quantizers of a model whose scale and zero point are constants; ``inputs`` are its graph inputs with their
    element types."""
    points: dict[str, dict[float, None]] = {name: {} for name in inputs}
    inside: list[tuple[Range, Key]] = []
    hidden = 0
    for site in flow.sites(("QuantizeLinear",)):
        known = _limits(flow, site, 1, 2)
        if known is None:
            continue
        reached = False
        for name, step, more in _ways(flow, _at(site, 0), inputs):
            values = [*more, *(point for one in known for point in one.points())]
            points[name].update(dict.fromkeys(_before(step, values)))
            reached = True
        if not reached and site.inputs[0] is not None:
            hidden += _add(inside, flow, site.inputs[0], _widest(known))
    for op_type, (scale, zero) in _PRODUCTS.items():
        for site in flow.sites((op_type,)):
            known = _limits(flow, site, scale, zero)
            if known is not None and site.outputs[0] is not None:
                first = known[0]
                hidden += _add(inside, flow, site.outputs[0], (first.least, first.most, first.zero))
    chosen = {name: _spread(list(values)) for name, values in points.items() if values}
    return Quantizers(chosen, *_reachable(flow, inside, inputs), hidden)


def _add(
    inside: list[tuple[Range, Key]], flow: Backward, key: Key, limits: tuple[float, float, float]
) -> int:
    """Note a quantizer whose data is computed; returns 1 where nobody can look at them."""
    if not flow.is_main(key):
        return 1
    inside.append((Range(key[1], *limits), key))
    return 0


def _reachable(
    flow: Backward, inside: list[tuple[Range, Key]], inputs: Mapping[str, int]
) -> tuple[tuple[Range, ...], frozenset[str]]:
    keys = {key for _, key in inside}
    scaled = frozenset(name for name in inputs if keys and keys & flow.reached_from(name))
    return tuple(dict.fromkeys(one for one, _ in inside)), scaled


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


def _widest(known: list[_Limits]) -> tuple[float, float, float]:
    one = max(known, key=lambda limits: limits.scale)
    return (one.least - one.zero) * one.scale, (one.most - one.zero) * one.scale, 0.0


def _limits(flow: Backward, site: Site, scale: int, zero: int) -> list[_Limits] | None:
    """The limits of a quantizer, for the greatest and the least of its scales; None where they are not constant."""
    scales = [array for array in flow.constants(_at(site, scale)) if _numbers(array)]
    zeros = flow.constants(_at(site, zero))
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


def _numbers(array: npt.NDArray[Any]) -> bool:
    return (
        "float" in array.dtype.name and array.size > 0 and bool(np.isfinite(array.astype(np.float64)).all())
    )


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
    flow: Backward, start: Key | None, inputs: Mapping[str, int]
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
        stack.extend(_Step(source, step.gain, step.offset) for source in flow.sources(step.key))
        site = flow.site_of(step.key)
        if site is None:
            continue
        if site.node.op_type in _BOUNDED and site.inputs:
            for bound in _bounds(flow, site):
                bounds += [step.gain * bound * share + step.offset for share in (1.0, 1.01)]
            if site.inputs[0] is not None:
                stack.append(_Step(site.inputs[0], step.gain, step.offset))
        stack.extend(_undone(flow, site, step))


def _undone(flow: Backward, site: Site, step: _Step) -> Iterator[_Step]:
    """The step before an addition or a product with a constant: ``gain * (factor * x + term) + offset``."""
    op_type, inputs = site.node.op_type, site.inputs
    if op_type in _NEGATIVE and inputs and inputs[0] is not None:
        yield _Step(inputs[0], -step.gain, step.offset)
    if op_type not in ("Add", "Sub", "Mul", "Div") or len(inputs) != 2:
        return
    for place in (0, 1):
        key, constants = inputs[place], flow.constants(inputs[1 - place])
        number = _middle(constants)
        if key is None or number is None or flow.constants(key):
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


def _bounds(flow: Backward, site: Site) -> Iterator[float]:
    """The bounds of a Clip, attributes before opset 11."""
    if site.node.op_type != "Clip":
        return
    for key in site.inputs[1:3]:
        value = _middle(flow.constants(key))
        if value is not None:
            yield value
    yield from (one.f for one in site.node.attribute if one.name in ("min", "max") and math.isfinite(one.f))


def _before(step: _Step, values: list[float]) -> Iterator[float]:
    """The values of the input that the quantizer sees as ``values``."""
    for value in values:
        found = (value - step.offset) / step.gain
        if math.isfinite(found):
            yield found


def _spread(values: list[float]) -> tuple[float, ...]:
    """At most so many of the values, those of all quantizers in turn."""
    step = max(1, math.ceil(len(values) / _MOST_POINTS))
    return tuple(values[::step])
