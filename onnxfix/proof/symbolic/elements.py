"""Operators that compute each element from the elements at its place: arithmetic, logic, casts, quantization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from operator import add as plus
from operator import mul
from operator import sub as minus

import numpy as np

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import Call, operator
from onnxfix.proof.symbolic.moves import broadcast, number, pick, reshape
from onnxfix.proof.symbolic.tensor import (
    INTEGERS,
    MANTISSAS,
    T,
    Tensor,
    constant,
    contains,
    elementwise,
    fill,
    identify,
    numpy_type,
    strip,
    widest,
)

Bounds = tuple[int, int] | None


def exact(dtype: int, bounds: Bounds) -> bool:
    """Whether a type has each whole number between the bounds: then arithmetic on them does not round."""
    if bounds is None:
        return False
    return dtype in INTEGERS or (dtype in MANTISSAS and max(map(abs, bounds)) <= 1 << MANTISSAS[dtype])


def bounds_of(function: Callable[[int, int], int], x: Tensor, y: Tensor) -> Bounds:
    """Bounds of a function of two whole numbers that grows or falls with each."""
    if x.bounds is None or y.bounds is None:
        return None
    corners = [function(one, other) for one in x.bounds for other in y.bounds]
    return min(corners), max(corners)


def fits(tensor: Tensor, dtype: int) -> bool:
    """Whether an integer type has all numbers that a tensor may have."""
    low, high = INTEGERS[dtype]
    return tensor.bounds is not None and low <= tensor.bounds[0] and tensor.bounds[1] <= high


def bounds_of_sums(x: Tensor, y: Tensor, terms: int) -> Bounds:
    """Bounds of sums of up to so many products of whole numbers."""
    products = bounds_of(mul, x, y)
    return None if products is None else (min(0, products[0] * terms), max(0, products[1] * terms))


def is_all(tensor: Tensor, number: float) -> bool:
    """Whether all elements are known to be one number; 0.0 and -0.0 are two."""
    if tensor.known is None or not tensor.size or tensor.known.dtype.kind in "OSUcb":
        return False
    values = tensor.known.astype(np.float64)
    return bool(np.all(values == number)) and bool(np.all(np.signbit(values) == np.signbit(number)))


def _shape(*tensors: Tensor) -> tuple[int, ...]:
    return np.broadcast_shapes(*(one.shape for one in tensors))


def add(x: Tensor, y: Tensor, as_real: bool = False) -> Tensor:
    """Sums. A float is unchanged by -0.0; the order of two does not matter."""
    for one, other in ((x, y), (y, x)):
        if one.is_float and is_all(other, -0.0):
            return broadcast(one, _shape(x, y))
    bounds = bounds_of(plus, x, y)
    if exact(x.dtype, bounds) or as_real:
        return elementwise(x.dtype, "+", (x, y), bounds, ordered=False, ring=hashes.add)
    return elementwise(x.dtype, f"add {x.dtype}", (x, y), ordered=False)


def negate(x: Tensor, as_real: bool = False) -> Tensor:
    """Negatives; the negative of zero is -0.0 in floats."""
    if x.known is not None and x.known.dtype.kind != "u":
        return constant(np.negative(x.known), x.dtype)
    bounds = None if x.bounds is None else (-x.bounds[1], -x.bounds[0])
    unsigned = as_real or x.is_integer or (bounds is not None and not bounds[0] <= 0 <= bounds[1])
    zero, bounds = (fill(0, T.INT8), bounds) if unsigned else (fill(-0.0, T.DOUBLE), None)
    return elementwise(x.dtype, "-", (zero, x), bounds, x.within, ring=hashes.subtract)


def subtract(x: Tensor, y: Tensor, as_real: bool = False) -> Tensor:
    """Differences."""
    if x.is_integer and x.key == y.key and x.shape == y.shape:
        return fill(0, x.dtype, x.shape)
    bounds = bounds_of(minus, x, y)
    if exact(x.dtype, bounds):
        return elementwise(x.dtype, "-", (x, y), bounds, ring=hashes.subtract)
    return add(x, negate(y, as_real), as_real)


def multiply(x: Tensor, y: Tensor, as_real: bool = False) -> Tensor:
    """Products. A float is unchanged by 1; the order of two does not matter."""
    for one, other in ((x, y), (y, x)):
        if is_all(other, 1):
            return broadcast(one, _shape(x, y))
        if is_all(other, -1) and one.is_float:
            return broadcast(negate(one), _shape(x, y))
    bounds = bounds_of(mul, x, y)
    if bounds is not None and x.is_float and x.bounds is not None and y.bounds is not None:
        lows = x.bounds[0], y.bounds[0]
        if not (min(lows) >= 0 or max(lows) > 0):
            bounds = None  # zero times a negative number is -0.0
    if exact(x.dtype, bounds) or as_real:
        return elementwise(x.dtype, "*", (x, y), bounds, ordered=False, ring=hashes.multiply)
    return elementwise(x.dtype, f"multiply {x.dtype}", (x, y), ordered=False)


def divide(x: Tensor, y: Tensor, as_real: bool = False) -> Tensor:
    """Quotients; of floats, rounded. To divide by a power of two is to multiply by its inverse."""
    if is_all(y, 1):
        return broadcast(x, _shape(x, y))
    if y.known is not None and y.is_float and y.size:
        values = y.known.astype(np.float64)
        fractions = np.frexp(values)[0]
        with np.errstate(all="ignore"):
            inverse = 1.0 / values
            narrow = inverse.astype(numpy_type(y.dtype))
        whole = np.isfinite(inverse) & (narrow.astype(np.float64) == inverse)
        if np.all((np.abs(fractions) == 0.5) & whole):
            return multiply(x, constant(narrow, y.dtype), as_real)
    if as_real and y.is_float:
        return multiply(x, elementwise(y.dtype, "inverse", (y,)), True)
    if x.is_integer and x.bounds is not None:
        most = max(map(abs, x.bounds)) // max(1, (y.bounds or x.bounds)[0])
        bounds = (0 if min(x.bounds[0], (y.bounds or x.bounds)[0]) >= 0 else -most), most
        return elementwise(x.dtype, "divide integers", (x, y), bounds).settled()
    return elementwise(x.dtype, f"divide {x.dtype}", (x, y))


@operator("Add", "Sub", "Mul", "Div")
def _arithmetic(call: Call) -> Tensor:
    if call.name == "Div":
        return divide(call.tensor(0), call.tensor(1), call.as_real)
    function = {"Add": add, "Sub": subtract, "Mul": multiply}[call.name]
    return function(call.ring(0), call.ring(1), call.as_real)


@operator("Neg")
def _neg(call: Call) -> Tensor:
    return negate(call.ring(0), call.as_real)


@operator("Reciprocal")
def _reciprocal(call: Call) -> Tensor:
    return divide(fill(1, call.tensor(0).dtype), call.tensor(0), call.as_real)


def extreme(name: str, x: Tensor, y: Tensor) -> Tensor:
    """The larger ("max") or the smaller ("min") of two."""
    for one, other in ((x, y), (y, x)):
        gap = bounds_of(minus, one, other)
        if gap is not None and (gap[0] >= 0 if name == "max" else gap[1] <= 0):
            return broadcast(one, _shape(x, y))
    bounds = bounds_of(max if name == "max" else min, x, y)
    return elementwise(x.dtype, name, (x, y), bounds, widest([x, y]), ordered=False)


@operator("Sum", "Mean", "Max", "Min")
def _join(call: Call) -> Tensor:
    places = range(count := len(call.inputs))
    if call.name in ("Max", "Min"):
        return reduce(partial(extreme, call.name.lower()), map(call.tensor, places))
    total = reduce(partial(add, as_real=call.as_real), map(call.ring, places))
    if call.name == "Sum":
        return total
    if call.as_real or not count & (count - 1):  # else ONNX leaves open how 1/n rounds
        return divide(total, fill(count, total.dtype), call.as_real)
    return elementwise(total.dtype, f"mean {total.dtype} {count}", (total,))


@operator("Clip")
def _clip(call: Call) -> Tensor:
    result = call.tensor(0)
    for index, (attribute, name) in enumerate((("min", "max"), ("max", "min")), start=1):
        if call.has(index):
            result = extreme(name, result, call.tensor(index))
        elif attribute in call.attributes:
            result = extreme(name, result, fill(call.attributes[attribute], result.dtype))
    return result


def cast(x: Tensor, dtype: int, as_real: bool = False, how: str = "") -> Tensor:
    """The values in another type: the same where each of them is one of that type."""
    # whether ONNX says what each known element is in an integer type
    defined = dtype == T.BOOL or (x.is_integer and dtype not in (T.INT4, T.UINT4))
    defined = dtype in INTEGERS and (defined or fits(x, dtype))
    if x.known is not None and (dtype in _PLAIN or defined):
        with np.errstate(all="ignore"):
            return constant(x.known.astype(numpy_type(dtype)), dtype)
    if x.dtype == dtype:
        return x
    finite = dtype == T.FLOAT8E5M2 and not how  # a saturated infinity is the largest number
    recipe = x.key
    if x.known is not None:  # the same values in another type are told by their hashes
        recipe = identify(b"cast", str(strip(x.shape)).encode(), hashes.digest(x.words).tobytes())
    keep = replace(x, dtype=dtype, known=None, compute=lambda: x.words, recipe=recipe, atom="")
    if x.bounds is not None and dtype in INTEGERS:
        if fits(x, dtype):
            return replace(keep, wraps=False, within=0)
        if dtype == T.BOOL:
            return elementwise(dtype, "not zero", (x,))
        if x.is_integer:
            return replace(keep, wraps=True, within=0)
    elif dtype in MANTISSAS and x.bounds is not None and exact(dtype, x.bounds):
        return replace(keep, within=dtype)
    elif dtype in MANTISSAS and x.is_float and (as_real or (contains(dtype, x.within) and not finite)):
        return keep
    if x.is_float and dtype == T.BOOL:
        return elementwise(dtype, "not zero", (x,))
    return elementwise(dtype, f"cast {dtype} {how}", (x,))


_PLAIN = (T.DOUBLE, T.FLOAT, T.FLOAT16, T.BFLOAT16)


@operator("Cast", "CastLike")
def _cast(call: Call) -> Tensor | None:
    dtype = call.attributes["to"] if call.name == "Cast" else call.tensor(1).dtype
    if call.tensor(0).dtype == T.STRING or dtype == T.STRING or dtype not in {*INTEGERS, *MANTISSAS}:
        return None
    value = call.ring(0)
    if value.wraps and not (
        dtype in INTEGERS and INTEGERS[dtype][1] <= INTEGERS[value.dtype][1] and dtype != T.BOOL
    ):
        value = value.settled()  # only towards fewer bits is a wrapped number wrapped again
    how = "" if call.attributes.get("saturate", 1) else "not saturated"
    return cast(value, dtype, call.as_real, how)


ELEMENTWISE = (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh"),
    *("Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "IsInf"),
    *("IsNaN", "LeakyRelu", "Log", "Mish", "PRelu", "Selu", "Shrink", "Sigmoid", "Sin", "Sinh", "Softplus"),
    *("Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
)
"""Operators that compute each element from the elements at its place: random functions of their hashes."""
_SELECTING = ("Abs", "Floor", "Ceil", "Round", "Relu", "Sign")
"""Operators whose result does not depend on the type in which it is computed."""


def _elementwise(call: Call) -> Tensor | None:
    """A random function of the operands' hashes, by the operator, its attributes and its result's type."""
    if call.version < 7 and call.name == "PRelu":
        return None
    tensors = [call.tensor(index) for index in range(len(call.inputs))]
    dtype = T.BOOL if call.name.startswith("Is") else tensors[0].dtype
    attributes = sorted((name, value) for name, value in call.attributes.items() if name != "consumed_inputs")
    return elementwise(dtype, f"{call.name} {dtype} {attributes}", tensors)


operator(*ELEMENTWISE)(_elementwise)


@operator(*_SELECTING)
def _select(call: Call) -> Tensor | None:
    x = call.tensor(0)
    if x.bounds is None:
        return elementwise(x.dtype, call.name, (x,), None, x.within)
    low, high = x.bounds
    ranges = {"Abs": (0, max(-low, high)), "Relu": (0, max(high, 0)), "Sign": (-1, 1)}
    if call.name not in ranges or (low >= 0 and call.name != "Sign"):
        return x
    return elementwise(x.dtype, call.name, (x,), ranges[call.name], x.within)


@operator("Mod")
def _mod(call: Call) -> Tensor | None:
    if not call.tensor(0).is_integer:
        return _elementwise(call)
    return modulo(call.ring(0), call.tensor(1), call.attributes.get("fmod", 0))


def modulo(x: Tensor, y: Tensor, fmod: int = 0) -> Tensor:
    """What is left over of integers, with the sign of y, or of x if ``fmod``. Of a power of two that is what wraps."""
    for bits, kind in ((8, T.UINT8), (16, T.UINT16), (32, T.UINT32)):
        if is_all(y, 1 << bits) and not fmod and INTEGERS[x.dtype][1] >= (1 << bits) - 1:
            return cast(cast(x, kind).settled(), x.dtype)
    x = x.settled()
    assert x.bounds is not None
    assert y.bounds is not None
    most = max(1, *map(abs, y.bounds)) - 1
    signs = x.bounds if fmod else y.bounds
    bounds = (0 if signs[0] >= 0 else -most), (most if signs[1] > 0 else 0)
    return elementwise(x.dtype, f"Mod {fmod}", (x, y), bounds)


@operator("BitCast")
def _bitcast(call: Call) -> Tensor | None:
    x, dtype = call.tensor(0), call.attributes["to"]
    if x.dtype == T.BOOL and dtype in (T.UINT8, T.INT8):
        return cast(x, dtype)
    if not x.is_integer or dtype not in INTEGERS or T.BOOL in (x.dtype, dtype):
        return None
    same = INTEGERS[dtype][1] - INTEGERS[dtype][0] == INTEGERS[x.dtype][1] - INTEGERS[x.dtype][0]
    return cast(x, dtype).settled() if same else None


@operator("Pow")
def _pow(call: Call) -> Tensor | None:
    x, y = call.tensor(0), call.tensor(1)
    return broadcast(x, _shape(x, y)) if is_all(y, 1) else _elementwise(call)


# ----------------------------------------------------------- quantization, as ONNX defines it by arithmetic


def _along(call: Call, parameter: Tensor) -> Tensor:
    """A parameter of (de)quantization, in a shape that is broadcast to the first input."""
    if parameter.size == 1 and len(parameter.shape) <= 1:
        return reshape(parameter, ())
    if call.version < 13:
        raise call.stuck("it has no axis before opset 13")
    x, block = call.tensor(0), call.attributes.get("block_size", 0)
    axis = call.attributes["axis"] % max(len(x.shape), 1)
    if len(parameter.shape) == 1:
        return reshape(
            parameter, [parameter.shape[0] if place == axis else 1 for place in range(len(x.shape))]
        )
    places = np.arange(x.shape[axis]) // (block or -(-x.shape[axis] // max(parameter.shape[axis], 1)))
    return pick([parameter], np.take(number([parameter])[0], places, axis))


@operator("DequantizeLinear")
def _dequantize(call: Call) -> Tensor | None:
    x, scale = call.tensor(0), call.tensor(1)
    if call.attributes.get("output_dtype"):
        return None
    if not x.is_integer:
        if call.has(2) and not is_all(call.tensor(2), 0.0):
            return None
        return multiply(cast(x, scale.dtype), _along(call, scale), call.as_real)
    level = cast(x, T.INT32)
    if call.has(2):
        level = subtract(level, cast(_along(call, call.tensor(2)), T.INT32)).settled()
    return multiply(cast(level, scale.dtype), _along(call, scale), call.as_real)


@operator("QuantizeLinear")
def _quantize(call: Call) -> Tensor | None:
    x, scale = call.tensor(0), call.tensor(1)
    dtype = call.tensor(2).dtype if call.has(2) else call.attributes.get("output_dtype") or T.UINT8
    if call.attributes.get("precision"):
        return None
    quotient = divide(cast(x, scale.dtype), _along(call, scale))
    if dtype not in INTEGERS:
        how = "" if call.attributes.get("saturate", 1) else "not saturated"
        return cast(quotient, dtype, how=how) if not call.has(2) or is_all(call.tensor(2), 0.0) else None
    low, high = INTEGERS[dtype]
    if not call.has(2):
        return elementwise(dtype, f"round {low} {high}", (quotient,), (low, high))
    zero = call.tensor(2)
    if zero.known is None or zero.size == 0:
        return None
    if np.unique(zero.known).size > 1:
        return None
    point = int(zero.known.astype(np.int64).ravel()[0])
    rounded = elementwise(
        T.INT64, f"round {low - point} {high - point}", (quotient,), (low - point, high - point)
    )
    return cast(add(rounded, constant(np.array(point))), dtype)
