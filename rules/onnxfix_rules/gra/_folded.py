"""Folds a BatchNormalization in inference mode into weights and a bias: computed in float64, rounded once."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from onnxfix.rule import Node, Value

Array = np.ndarray[Any, Any]

WEIGHT_LIMIT = 256 << 20
"""Maximum bytes of a weight that is folded."""
COPY_LIMIT = 1 << 20
"""Maximum bytes of all copies of a shared weight, if every reader had its own."""
NEAR_ZERO = 1e-9
"""Below this sum of variance and epsilon, rounding errors decide the factor."""

_TYPES = ("float16", "bfloat16", "float32", "float64")
_PARAMETERS = ("scale", "bias", "mean", "variance")


class Refused(Exception):
    """The weights could be folded, but the result would be wrong or too large; the message is the reason."""


class Affine(NamedTuple):
    """``y = x * factor + shift`` for each channel, in float64."""

    factor: Array
    shift: Array


class Layout(NamedTuple):
    """The axes of a weight: groups, inputs per group, outputs per group, and all further axes combined."""

    groups: int
    inputs: int
    outputs: int
    rest: int

    @property
    def channels(self) -> int:
        return self.groups * self.outputs


def parameters(node: Node) -> list[Array] | None:
    """Scale, bias, mean and variance as float64, if all are constant vectors of one length; else None."""
    values = [node.input(index) for index in range(1, 5)]
    arrays = [None if value is None else value.constant() for value in values]
    known = [array for array in arrays if array is not None and array.dtype.name in _TYPES]
    if len(known) < len(_PARAMETERS) or len({array.shape for array in known}) > 1 or known[0].ndim != 1:
        return None
    return [array.astype(np.float64) for array in known] if known[0].size else None


def affine(values: list[Array], epsilon: float) -> Affine:
    """The affine function that a BatchNormalization applies to each channel.

    Raises:
        Refused: a parameter is not finite, or a variance is negative or too close to 0.
    """
    for array, name in zip(values, _PARAMETERS, strict=True):
        if not np.isfinite(array).all():
            raise Refused(f"its {name} is not finite")
    scale, bias, mean, variance = values
    if (variance < 0).any():
        raise Refused("a variance is negative")
    if not np.isfinite(epsilon) or (variance + epsilon < NEAR_ZERO).any():
        raise Refused("a variance is 0 or almost 0")
    factor = scale / np.sqrt(variance + epsilon)
    return Affine(factor, bias - mean * factor)


def layout(node: Node, weight: Array) -> Layout | None:
    """The layout of the weight of a Conv, ConvTranspose or Gemm; None if it is invalid for the node."""
    if not weight.size:
        return None
    if node.op_type == "Gemm":
        if weight.ndim != 2:
            return None
        rows, columns = weight.shape
        return Layout(1, 1, rows, columns) if node.attr("transB", 0) else Layout(1, rows, columns, 1)
    if weight.ndim < 3:
        return None
    groups, first, second = int(node.attr("group", 1)), weight.shape[0], weight.shape[1]
    if groups < 1 or first % groups:
        return None
    rest = weight.size // (first * second)
    if node.op_type == "Conv":
        return Layout(1, 1, first, second * rest)
    return Layout(groups, first // groups, second, rest)


def weights(weight: Array, seen: Layout, factor: Array) -> Array:
    """The weight times the factor of each output channel, in the weight's type."""
    with np.errstate(all="ignore"):
        product = _product(weight, seen, factor)
        return product.astype(weight.dtype).reshape(weight.shape)


def check_weights(weight: Array, seen: Layout, factor: Array) -> None:
    """Check that the product of weight and factor fits the weight's type.

    Raises:
        Refused: a weight is not finite, would overflow, or would lose bits as a subnormal of a 16-bit type.
    """
    with np.errstate(all="ignore"):
        limits = ml_dtypes.finfo(weight.dtype)  # type: ignore[no-untyped-call]
        # The largest weight of each channel suffices, without a copy in float64.
        if weight.dtype.itemsize > 2:
            parts = weight.reshape(seen)
            largest = np.maximum(parts.max(axis=(1, 3)), -parts.min(axis=(1, 3))).astype(np.float64)
            product, rounded = largest * np.abs(factor.reshape(largest.shape)), None
        else:
            largest = weight.astype(np.float64)
            product = _product(weight, seen, factor)
            rounded = product.astype(weight.dtype).astype(np.float64)
    if not np.isfinite(largest).all():
        raise Refused("a weight is not finite")
    if not (np.abs(product) <= float(limits.max)).all():
        raise Refused(f"a weight would exceed {weight.dtype.name}'s range")
    if rounded is not None:
        size = np.abs(product).reshape(seen)
        lost = (size < float(limits.smallest_normal)) & (rounded.reshape(seen) != product.reshape(seen))
        # Next to a normal number in the same channel, the loss is no larger than the rounding error of that one.
        if (lost & (size.max(axis=(1, 3), keepdims=True) < float(limits.smallest_normal))).any():
            raise Refused(f"all weights of a channel would become subnormal in {weight.dtype.name}")


def bias(node: Node, values: Affine, dtype: np.dtype[Any]) -> Array | None:
    """The new bias, of rank 2 for a Gemm (see BRC001); None if the old one is not constant or not per channel.

    Raises:
        Refused: an element of it is not finite or would overflow.
    """
    given, count = node.input(2), values.factor.size
    old = np.zeros(count)
    if given is not None:
        array = given.constant()
        if array is None or array.dtype != dtype:
            return None
        if node.op_type == "Gemm":
            if array.size not in (1, count) or array.ndim > 2 or (array.shape or (1,))[-1] != array.size:
                return None
            array = array.astype(np.float64) * float(node.attr("beta", 1.0))
        elif array.shape != (count,):
            return None
        if not np.isfinite(array.astype(np.float64)).all():
            raise Refused("the bias is not finite")
        old = np.broadcast_to(array.astype(np.float64).reshape(-1), (count,))
    with np.errstate(all="ignore"):
        made = old * values.factor + values.shift
        limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        if not (np.abs(made) <= float(limits.max)).all():
            raise Refused(f"the bias would exceed {dtype.name}'s range")
        return made.astype(dtype).reshape((1, -1) if node.op_type == "Gemm" else (-1,))


def weight_of(node: Node) -> Array | None:
    """The constant weight of the node; None if it is not constant, too large, or of an unsupported type."""
    value = node.input(1)
    array = None if value is None else value.constant(WEIGHT_LIMIT)
    return array if array is not None and array.dtype.name in _TYPES else None


def check_growth(value: Value, size: int) -> None:
    """Check the cost of copying a weight of ``size`` bytes that other nodes read too.

    Raises:
        Refused: copies for all readers would be too large.
    """
    if (value.use_count > 1 or not value.replaceable) and size * value.use_count > COPY_LIMIT:
        raise Refused(
            f"{value.use_count} nodes share the weight, and each would need a copy of {size:,} bytes"
        )


def _product(weight: Array, seen: Layout, factor: Array) -> Array:
    product: Array = weight.astype(np.float64).reshape(seen)
    product *= factor.reshape(seen.groups, 1, seen.outputs, 1)
    return product
