"""Quantization and dequantization, as ONNX defines them by arithmetic."""

from __future__ import annotations

import numpy as np

from onnxfix.proof.symbolic.calls import Call, operator
from onnxfix.proof.symbolic.elements import add, cast, divide, is_all, multiply, subtract
from onnxfix.proof.symbolic.moves import number, pick, reshape
from onnxfix.proof.symbolic.tensor import INTEGERS, T, Tensor, constant, elementwise


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
