"""Operators that compute an element from many: reductions, sums of products, normalizations.

The order of a sum of floats is no part of its meaning, nor is that of a maximum: such a result is a random function
of the multiset of what is summed, which is the sum of its members' hashes. Sums of whole numbers that do not round
are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import Call, operator
from onnxfix.proof.symbolic.elements import Bounds, add, bounds_of_sums, divide, exact, multiply
from onnxfix.proof.symbolic.hashes import Words
from onnxfix.proof.symbolic.moves import reshape, transpose
from onnxfix.proof.symbolic.tensor import INTEGERS, Tensor, constant, derived, fill
from onnxfix.proof.symbolic.windows import less_zero_point


def _multiset(words: Words, axes: tuple[int, ...]) -> Words:
    """What stands for the elements over some axes, which keep size 1."""
    return hashes.total(hashes.mix("member", words), axes)


def _reduced(x: Tensor, axes: Sequence[int]) -> list[int]:
    return [1 if axis in axes else size for axis, size in enumerate(x.shape)]


def _among(
    x: Tensor,
    axes: tuple[int, ...],
    name: str,
    bounds: Bounds = None,
    within: int = 0,
    compute: Callable[[], Words] | None = None,
) -> Tensor:
    """A function, called ``name``, of the multiset of the elements over some axes, which keep size 1."""
    compute = compute or (lambda: hashes.mix(name, _multiset(x.words, axes)))
    return derived(x.dtype, _reduced(x, axes), f"{name} over {axes}", [x], compute, bounds, within)


def _count(x: Tensor, axes: Sequence[int]) -> int:
    return int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))


def sum_over(x: Tensor, axes: tuple[int, ...], as_real: bool) -> Tensor:
    """Sums over axes, which keep size 1."""
    count = _count(x, axes)
    bounds: Bounds = None
    if x.bounds is not None:
        bounds = min(x.bounds[0] * count, 0), max(x.bounds[1] * count, 0)
    if not count:
        return fill(0, x.dtype, _reduced(x, axes))
    if exact(x.dtype, bounds) or as_real:
        return _among(x, axes, "total", bounds, compute=lambda: hashes.total(x.words, axes))
    if count == 1:
        return add(x, fill(0.0, x.dtype))  # a sum begins with zero, which -0.0 does not outlive
    return _among(x, axes, f"sum {x.dtype}")


_SELECTING, _REDUCING = ("ReduceMax", "ReduceMin"), ("ReduceSum", "ReduceMean", "ReduceProd")


@operator(
    *_SELECTING, *_REDUCING, *(f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare"))
)
def _reduce(call: Call) -> Tensor:
    x = call.ring(0) if call.name == "ReduceSum" else call.tensor(0)
    given = call.integers(1, "axes")
    axes = tuple(sorted(call.axis(axis, len(x.shape)) for axis in given or range(len(x.shape))))
    if not given and call.attributes.get("noop_with_empty_axes"):
        if call.name not in (*_SELECTING, *_REDUCING):
            raise call.stuck("it reduces nothing")
        return x
    count = _count(x, axes)
    if call.name == "ReduceSum":
        result = sum_over(x, axes, call.as_real)
    elif call.name == "ReduceMean":
        result = mean_over(x, axes, call.as_real)
    elif call.name not in _SELECTING:
        result = _among(x, axes, f"{call.name} {x.dtype}")
    elif count:
        result = x if count == 1 else _among(x, axes, call.name, x.bounds, x.within)
    else:
        least = INTEGERS.get(x.dtype, (-np.inf, np.inf))[call.name == "ReduceMin"]
        result = fill(least, x.dtype, _reduced(x, axes))
    if call.flag("keepdims"):
        return result
    return reshape(result, [size for axis, size in enumerate(x.shape) if axis not in axes])


def mean_over(x: Tensor, axes: tuple[int, ...], as_real: bool) -> Tensor:
    """Means over axes, which keep size 1."""
    count = _count(x, axes)
    if as_real and x.is_float:
        return divide(sum_over(x, axes, True), fill(count, x.dtype), True)
    if count == 1 and x.is_float:
        return add(x, fill(0.0, x.dtype))
    return _among(x, axes, f"mean {x.dtype} {count}")


@operator("CumSum")
def _running_sum(call: Call) -> Call | None:
    """The same call, with an axis that is counted from the beginning."""
    x, axis = call.tensor(0), call.tensor(1)
    if axis.known is None and len(x.shape) > 1:
        return None
    place = call.axis(int(axis.known.ravel()[0]), len(x.shape)) if axis.known is not None else 0
    return replace(call, inputs=[x, constant(np.array(place))])


@operator("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: Call) -> Tensor:
    x, axis = call.tensor(0), call.attributes.get("axis", 1)
    axis = call.axis(axis, len(x.shape))
    axes = (axis,) if call.version >= 13 else tuple(range(axis, len(x.shape)))
    name = f"{call.name} {x.dtype}"

    def compute() -> Words:
        words = x.words
        for one in axes if call.name == "Hardmax" else ():  # the first of equal elements is the largest
            places = np.arange(x.shape[one]).reshape(-1, *[1] * (len(x.shape) - 1 - one))
            words = hashes.mix("at", words, hashes.encode(places))
        return hashes.mix(name, words, _multiset(words, axes))

    return derived(x.dtype, x.shape, f"{name} {axes}", [x], compute)


def product(x: Tensor, y: Tensor, dtype: int, as_real: bool) -> Tensor:
    """Products of matrices, as np.matmul multiplies them, in a type that may be wider than that of the operands."""
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(f"{x.shape} and {y.shape} cannot be multiplied")
    bounds = bounds_of_sums(x, y, x.shape[-1])
    whole = exact(dtype, bounds) or as_real

    def compute() -> Words:
        if whole:
            return hashes.dot(x.words, y.words)
        sums = hashes.dot(hashes.mix("factor", x.words), hashes.mix("factor", y.words))
        return hashes.mix(f"sum of products {dtype}", sums)

    shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    return derived(dtype, shape, f"product {whole}", (x, y), compute, bounds if whole else None)


@operator("MatMul")
def _matmul(call: Call) -> Tensor:
    return _times(call.ring(0), call.ring(1), call.as_real)


def _times(x: Tensor, y: Tensor, as_real: bool) -> Tensor:
    first = reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    second = reshape(y, (*y.shape, 1)) if len(y.shape) == 1 else y
    result = product(first, second, x.dtype, as_real)
    return reshape(result, (*result.shape[:-2], *x.shape[-2:-1], *y.shape[1:][-1:]))


@operator("MatMulInteger")
def _matmul_integer(call: Call) -> Tensor:
    return _times(less_zero_point(call, 0, -2), less_zero_point(call, 1, -1), call.as_real)


@operator("Gemm")
def _gemm(call: Call) -> Tensor | None:
    x, y = call.ring(0), call.ring(1)
    if (
        len(x.shape) != 2
        or len(y.shape) != 2
        or (call.version < 7 and call.has(2) and not call.attributes.get("broadcast"))
        or (x.is_integer and not {call.attributes["alpha"], call.attributes["beta"]} <= {0.0, 1.0})
    ):
        return None
    x = transpose(x, (1, 0)) if call.attributes["transA"] else x
    y = transpose(y, (1, 0)) if call.attributes["transB"] else y
    result = product(x, y, x.dtype, call.as_real)
    if call.attributes["alpha"] != 1:
        result = multiply(result, fill(call.attributes["alpha"], result.dtype), call.as_real)
    if not call.has(2) or call.attributes["beta"] == 0:
        return result
    bias = call.ring(2)
    if call.attributes["beta"] != 1:
        bias = multiply(bias, fill(call.attributes["beta"], bias.dtype), call.as_real)
    return add(result, bias, call.as_real)
