"""Layers that compute each element from the elements at its place.

What NvInfer.h and the operators' pages leave open was read off TensorRT-RTX 1.7.1 itself, which evaluates what a shape
depends on while a network is made, without a GPU ("folding" in comments): the tests do it again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxfix.tensorrt.lift import network
from onnxfix.tensorrt.lift.emit import Emit, lifts
from onnxfix.tensorrt.lift.network import Layer, Unliftable
from onnxfix.tensorrt.lift.records import FLOATS, INTEGERS, numpy_type

#: Types for which ONNX Runtime's CPU provider has a kernel of an operator, since version 1.23.
_REAL = ("FLOAT", "HALF")
_WIDE = (*_REAL, "INT32", "INT64")
_KERNELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Greater", "Less", "TopK", "CumSum", "Clip", "Neg"),
        _WIDE,
    ),
    **dict.fromkeys(("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"), _WIDE),
    **dict.fromkeys(("Mod", "Abs", "Sign"), (*_REAL, *INTEGERS)),
    **dict.fromkeys(("And", "Or", "Xor", "Not"), ("BOOL",)),
    "Equal": (*_WIDE, "BOOL"),
    "Where": (*_WIDE, "UINT8"),
    "NonZero": (*_WIDE, "BOOL"),
    "OneHot": ("FLOAT", "INT64"),
}
#: A type with more kernels that holds all values of another, and in which operations round or wrap around no earlier.
_WIDER = {"HALF": "FLOAT", "BF16": "FLOAT", "INT8": "INT32", "UINT8": "INT32", "INT32": "INT64"}
#: The same for types in which ONNX computes nothing: for operators that only pick or compare elements.
_HELD = {"BOOL": "INT32", "INT4": "INT32", "FP8": "FLOAT", "FP4": "FLOAT", "E8M0": "FLOAT"}
_PICK = ("Where", "TopK", "OneHot", "Equal")


def runs_in(op: str, dtype: str) -> str:
    """The type in which ONNX Runtime computes the operator ``op`` of values of TensorRT's type ``dtype``.

    Raises:
        Unliftable: it has no kernel for this type nor for a wider one.
    """
    have = dtype
    while have not in _KERNELS.get(op, _REAL):
        wider = _WIDER.get(have) or (_HELD.get(have) if op in _PICK else None)
        if wider is None:
            raise Unliftable(f"no runtime computes {op} of {dtype}")
        have = wider
    return have


def compute(e: Emit, op: str, dtype: str, *values: str, result: str = "", **attributes: Any) -> str:
    """An operator of values of one type, in a wider one where that has no kernel. ``result`` is the type of what comes
    out, where that is another one.

    Raises:
        Unliftable: ONNX Runtime computes the operator in no type that would do.
    """
    wide = runs_in(op, dtype)
    made = e.op(op, *(e.turn(value, dtype, wide) for value in values), **attributes)
    return made if result else e.turn(made, wide, dtype)


def bits(mask: int, rank: int) -> tuple[int, ...]:
    """The axes of a bit mask: bit i is axis i of the tensor (NvInfer.h, IReduceLayer::setReduceAxes).

    Raises:
        Unliftable: it names an axis that the tensor does not have.
    """
    if mask >> rank:
        raise Unliftable(f"axes {mask:#b} of a tensor of {rank} dimensions")
    return tuple(axis for axis in range(rank) if mask >> axis & 1)


# -- one input

_ACTIVATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "SIGMOID": ("Sigmoid", {}),
    "TANH": ("Tanh", {}),
    "SOFTSIGN": ("Softsign", {}),
    "LEAKY_RELU": ("LeakyRelu", {"alpha": "alpha"}),
    "ELU": ("Elu", {"alpha": "alpha"}),
    "SELU": ("Selu", {"alpha": "alpha", "gamma": "beta"}),
    "HARD_SIGMOID": ("HardSigmoid", {"alpha": "alpha", "beta": "beta"}),
    "THRESHOLDED_RELU": ("ThresholdedRelu", {"alpha": "alpha"}),
}
_GELU = {"GELU_ERF": "none", "GELU_TANH": "tanh"}


@lifts("ACTIVATION")
def _activation(e: Emit, layer: Layer) -> str:
    """NvInfer.h, ActivationType: each formula there is ONNX's operator, except for the factors of two."""
    tensor, kind = layer.need(0), layer.word("type")
    value, dtype = e.of(tensor), tensor.dtype
    if kind == "RELU":
        if dtype in INTEGERS:  # ONNX has a Relu of these, ONNX Runtime of few
            return compute(e, "Max", dtype, value, e.const(0, dtype))
        return compute(e, "Relu", dtype, value)
    if kind == "CLIP":
        return _clip(e, dtype, value, float(layer.native.alpha), float(layer.native.beta))
    if kind in _GELU:
        return compute(e, "Gelu", dtype, value, approximate=_GELU[kind])
    if kind in ("SOFTPLUS", "SCALED_TANH"):  # alpha * f(beta * x)
        inner = _scaled(e, dtype, value, float(layer.native.beta))
        found = compute(e, "Softplus" if kind == "SOFTPLUS" else "Tanh", dtype, inner)
        return _scaled(e, dtype, found, float(layer.native.alpha))
    if kind not in _ACTIVATIONS:
        raise Unliftable(f"the activation {kind} is not known")
    op, names = _ACTIVATIONS[kind]
    given: dict[str, Any] = {name: float(getattr(layer.native, own)) for name, own in names.items()}
    return compute(e, op, dtype, value, **given)


def _scaled(e: Emit, dtype: str, value: str, factor: float) -> str:
    return value if factor == 1 else compute(e, "Mul", dtype, value, e.const(factor, dtype))


def _clip(e: Emit, dtype: str, value: str, low: float, high: float) -> str:
    """max(low, min(high, x)): where the bounds cross, the lower one wins, whereas ONNX's Clip gives the upper one."""
    least, most = (e.const(bound, dtype) for bound in (_bound(low, dtype), _bound(high, dtype)))
    if low <= high:
        return compute(e, "Clip", dtype, value, least, most)
    return compute(e, "Max", dtype, least, compute(e, "Min", dtype, most, value))


def _bound(bound: float, dtype: str) -> float:
    """A bound of a clip in the tensor's own type: the layer holds floats, whatever that is.

    Raises:
        Unliftable: an integer is to be clipped at a fraction, whose rounding TensorRT does not document.
    """
    if dtype not in INTEGERS:
        with np.errstate(over="ignore"):
            return float(np.float32(bound).astype(numpy_type(dtype)))
    range_ = np.iinfo(numpy_type(dtype))
    if range_.min <= bound <= range_.max and bound != math.floor(bound):
        raise Unliftable(f"clips {dtype} at {bound}, which is not an integer")
    return max(range_.min, min(range_.max, int(max(-(2.0**63), min(2.0**63, bound)))))


@lifts("CAST")
def _cast(e: Emit, layer: Layer) -> str:
    """Floats lose their fraction and anything but 0 is true, as in ONNX (the operator's page, Cast). What lies beyond
    the range of an integer type is undefined in ONNX; TensorRT says so of UINT8 and nothing of the others."""
    tensor, to = layer.need(0), layer.word("to_type")
    if to in ("FP8", "FP4", "E8M0", "INT4") and tensor.dtype != to:
        raise Unliftable(f"TensorRT documents no conversion from {tensor.dtype} to {to} but by quantizing")
    e.uses(tensor.dtype)
    return e.as_type(tensor, to) if tensor.dtype != to else e.op("Identity", e.of(tensor))


#: ROUND is to the nearest, halves to even, in both.
_SAME = "EXP LOG SQRT ABS NEG SIN COS TAN SINH COSH ASIN ACOS ATAN ASINH ACOSH ATANH CEIL FLOOR ERF NOT SIGN ROUND"
_UNARY = {word: word.capitalize() for word in _SAME.split()}
_UNARY |= {"RECIP": "Reciprocal", "ISINF": "IsInf", "ISNAN": "IsNaN"}


@lifts("UNARY")
def _unary(e: Emit, layer: Layer) -> str:
    """NvInfer.h, UnaryOperation. Integers wrap around: -(-128) of INT8 is -128."""
    tensor, kind = layer.need(0), layer.word("op")
    if kind not in _UNARY:
        raise Unliftable(f"the operation {kind} is not known")
    result = "BOOL" if kind in ("ISINF", "ISNAN") else ""
    return compute(e, _UNARY[kind], tensor.dtype, e.of(tensor), result=result)


# -- two inputs and more, whose dimensions of 1 stretch; their ranks are equal

_BINARY = {
    "SUM": "Add",
    "PROD": "Mul",
    "MAX": "Max",
    "MIN": "Min",
    "SUB": "Sub",
    "DIV": "Div",  # of integers: towards zero, as in ONNX (folding: -7 / 2 is -3)
    "POW": "Pow",  # of integers: what is left of 2 ** -1 is 0 (folding)
    "AND": "And",
    "OR": "Or",
    "XOR": "Xor",
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "LESS": "Less",
}


@lifts("ELEMENTWISE")
def _elementwise(e: Emit, layer: Layer) -> str:
    """NvInfer.h, ElementWiseOperation. It does not say which of a number and NaN is the larger one."""
    first, second, kind = layer.need(0), layer.need(1), layer.word("op")
    if first.dtype != second.dtype:
        raise Unliftable(f"{kind} of {first.dtype} and {second.dtype}")
    dtype, values = first.dtype, (e.of(first), e.of(second))
    if kind == "FLOOR_DIV":
        return _floor_div(e, dtype, *values)
    if kind not in _BINARY:
        raise Unliftable(f"the operation {kind} is not known")
    return compute(
        e, _BINARY[kind], dtype, *values, result="BOOL" if kind in ("EQUAL", "GREATER", "LESS") else ""
    )


def _floor_div(e: Emit, dtype: str, first: str, second: str) -> str:
    """The largest integer that is not above the quotient (folding: -7 by 2 is -4, and so of floats)."""
    wide = runs_in("Div", dtype)
    one, other = (e.turn(value, dtype, wide) for value in (first, second))
    quotient = e.op("Div", one, other)
    if wide in _REAL:
        return e.turn(e.op("Floor", quotient), wide, dtype)
    # ONNX cuts the quotient off. That is one too many where its two remainders, with the sign of the divisor and of
    # the dividend, differ. Subtracting a remainder first would overflow at the ends of the range.
    same = e.op("Equal", e.op("Mod", one, other), e.op("Mod", one, other, fmod=1))
    return e.turn(e.op("Sub", quotient, e.cast(e.op("Not", same), wide)), wide, dtype)


@lifts("SELECT")
def _select(e: Emit, layer: Layer) -> str:
    condition, yes, no = (layer.need(place) for place in range(3))
    if yes.dtype != no.dtype:
        raise Unliftable(f"a choice between {yes.dtype} and {no.dtype}")
    wide = runs_in("Where", yes.dtype)
    sides = [e.as_type(side, wide) for side in (yes, no)]
    return e.turn(e.op("Where", e.of(condition), *sides), wide, yes.dtype)


@lifts("PARAMETRIC_RELU")
def _parametric_relu(e: Emit, layer: Layer) -> str:
    """The slopes have the rank of the input, and sizes of 1 or its own: ONNX's rule."""
    data, slopes = layer.need(0), layer.need(1)
    return compute(e, "PRelu", data.dtype, e.of(data), e.of(slopes))


@lifts("SCALE")
def _scale(e: Emit, layer: Layer) -> str:
    """(x * scale + shift) ** power; weights that are not there change nothing (NvInfer.h, IScaleLayer). The parser
    makes it with one weight for each channel."""
    tensor, mode = layer.need(0), layer.word("mode")
    if tensor.dtype not in FLOATS:
        raise Unliftable(f"a scale of {tensor.dtype}, which quantizes")
    if mode != "CHANNEL":
        raise Unliftable(f"a scale with weights {mode}")
    value, behind = e.of(tensor), tensor.rank - int(layer.native.channel_axis) - 1
    for name, op in (("scale", "Mul"), ("shift", "Add"), ("power", "Pow")):
        native = getattr(layer.native, name)
        if native is not None and native.size:
            array, _ = network.weights_of(native, tensor.dtype, (int(native.size), *(1,) * behind))
            value = compute(e, op, tensor.dtype, value, e.const(array, hint=name))
    return value if value != e.of(tensor) else e.op("Identity", value)
