"""Functions of one integer, enumerated: a table of their values for each number that the integer may be.

Each such function is a sum of indicators, ``sum(f(v) * [x = v])``. Hashes are of that sum, so that equal functions have
equal hashes however they are computed, and sums of functions are sums of hashes. The indicators are atoms of ``x``, but
for two that follow from the others: the sum of all is 1, and ``sum(v * [x = v])`` is ``x``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import Call, fold, operator
from onnxfix.proof.symbolic.elements import cast, divide, fits, modulo, multiply, subtract
from onnxfix.proof.symbolic.hashes import Words
from onnxfix.proof.symbolic.logic import combine, where
from onnxfix.proof.symbolic.moves import number, pick, reshape
from onnxfix.proof.symbolic.sums import sum_over
from onnxfix.proof.symbolic.tensor import (
    INTEGERS,
    T,
    Tensor,
    Undecided,
    computed,
    constant,
    elementwise,
    fill,
    identify,
    numpy_type,
    with_table,
)

_Array = np.ndarray[Any, Any]
_WHOLE = 1 << 17
"""Numbers of a range that is enumerated as a whole; of a wider one a window is, and what is below or above."""
_WINDOW = 66
"""The window's last number: shifts by up to 64 bits are inside."""
_ENTRIES = 1 << 22
"""Entries that a table may have."""
_INDICATORS = 3 << 24
"""Indicators that may be computed for a tensor."""
_TERMS = 1 << 22
"""Indicators that are in memory at once."""
_LARGEST = 1 << 40
"""Entries are smaller, so that none of what is computed of them overflows."""
_FARTHEST = 1 << 20
"""The largest number of a domain."""
_WRAPS = 1 << 8, 1 << 16, 1 << 32
_COMPARE = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
_SUMS = ("Add", "Sub", "Mul", "Cast")
"""Operators whose meaning is a sum of products already, which keeps its hash."""
_LINEAR = (*_SUMS, "And", "Or", "Xor", "Not", "Where")
"""Operators whose hashes are sums of products where they are of booleans."""
TABULATED = {
    *(*_COMPARE, *_LINEAR, "Div", "Mod", "Abs", "Sign", "Max", "Min", "Gather"),
    *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
}
"""Operators of integers that are enumerated."""


@dataclass(frozen=True)
class Table:
    """``values[..., i]`` is the function's value where an element of ``base`` is ``domain[i]``; where ``free`` it is
    that element itself, which may be any number below or above the window. ``base`` and ``values[..., 0]`` have the
    rank of the result and are broadcast to its shape. ``ends``: there are numbers below and above the window, for
    which the domain has its first and its last number."""

    base: Tensor
    domain: _Array
    ends: tuple[bool, bool]
    values: _Array
    free: _Array

    def vector(self, values: _Array, free: _Array) -> _Array:
        """Coefficients of the indicators, then of an element below and one above the window as themselves."""
        ends = free[..., [0, -1]] & np.array(self.ends)
        return np.concatenate([np.where(free, 0, values), ends], -1, dtype=np.int64)

    def is_of(self, other: Table) -> bool:
        """Whether both are functions of the same integers."""
        return self.base.key == other.base.key and np.array_equal(self.domain, other.domain)

    def reshape(self, shape: Sequence[int], sizes: Sequence[int]) -> Table:
        """The same where ``shape``, that of the result, becomes ``sizes`` by axes of size 1 alone."""
        axes = [axis for axis, size in enumerate(shape) if size != 1]

        def place(old: Sequence[int]) -> list[int]:
            kept = iter([old[axis] for axis in axes])
            return [1 if size == 1 else next(kept) for size in sizes]

        wide = [*place(self.values.shape), self.domain.size]
        base = reshape(self.base, place(self.base.shape))
        return replace(self, base=base, values=self.values.reshape(wide), free=self.free.reshape(wide))


def itself(tensor: Tensor) -> Table | None:
    """The table of a tensor that is the integer; None if it is none, or too large a one."""
    if tensor.bounds is None or tensor.bounds[0] == tensor.bounds[1] or not tensor.is_integer:
        return None
    low, high = tensor.bounds
    wide = high - low >= _WHOLE
    ends = wide and low < -_WINDOW, wide and high > _WINDOW
    low, high = -_WINDOW - 1 if ends[0] else low, _WINDOW + 1 if ends[1] else high
    if not 0 < high - low < _WHOLE or max(-low, high) > _FARTHEST:
        return None
    domain = np.arange(low, high + 1)
    free = np.zeros(domain.shape, np.bool_)
    free[0], free[-1] = ends
    shape = (*[1] * len(tensor.shape), domain.size)
    return Table(tensor, domain, ends, domain.reshape(shape), free.reshape(shape))


def _parts(table: Table) -> tuple[_Array, _Array, _Array]:
    """A function as a number, plus a multiple of the integer, plus multiples of the indicators that are left."""
    identity = itself(table.base)
    assert identity is not None
    function = table.vector(table.values, table.free)
    linear = table.vector(identity.values, identity.free)
    ones = table.vector(np.ones_like(identity.values), np.zeros_like(identity.free))
    slope = function[..., 1:2] - function[..., :1]
    if any(table.ends):
        slope = function[..., [-1 if table.ends[1] else -2]]
    rest = function - slope * linear
    begin = rest[..., :1]
    return begin[..., 0], slope[..., 0], rest - begin * ones


def _words(table: Table) -> Words:
    """The hashes of a function."""
    begin, slope, rest = _parts(table)
    base = table.base.words
    words = hashes.add(hashes.encode(begin), hashes.multiply(hashes.encode(slope), base))
    needed = np.flatnonzero(np.any(rest != 0, tuple(range(rest.ndim - 1))))
    if not needed.size:
        return words
    names = np.concatenate([table.domain, [-1, -2]])
    names[[0, -3]] += np.array(table.ends) * np.array([-_LARGEST, _LARGEST])  # not one number, but all beyond
    names[-2:] = [-2 * _LARGEST, 2 * _LARGEST]
    # Each function is computed of each of the different elements, as a product of matrices, and then those that are.
    elements, which = np.unique(base.reshape(2, -1), axis=1, return_inverse=True)
    flat = rest[..., needed].reshape(-1, needed.size)
    numbers = {row.tobytes(): place for place, row in enumerate(flat)}
    functions = hashes.encode(flat[list(numbers.values())].T)
    order = dict(zip(numbers, range(len(numbers)), strict=True))
    rows = np.array([order[row.tobytes()] for row in flat]).reshape(rest.shape[:-1])
    each = max(_TERMS // needed.size, 1)
    sums = [
        hashes.dot(hashes.mix("is", part[..., None], hashes.encode(names[needed])), functions)
        for part in np.split(elements, range(each, elements.shape[1], each), axis=1)
    ]
    return hashes.add(words, np.concatenate(sums, 1)[:, which.reshape(base.shape[1:]), rows])


def _tabulated(dtype: int, table: Table, like: Tensor | None = None) -> Tensor | None:
    """A tensor by its table; with the hashes of ``like``, if that is given. None if the table is too large."""
    shape = np.broadcast_shapes(table.base.shape, table.values.shape[:-1])
    fixed = table.values[~table.free]
    low, high = int(fixed.min()), int(fixed.max())
    if table.base.size * table.domain.size > _INDICATORS or max(-low, high) > _LARGEST:
        return None
    bounds = INTEGERS[dtype] if table.free.any() else (low, high)
    if like is not None:
        result = replace(like, bounds=bounds)
    else:
        arrays = [one.tobytes() for one in (table.domain, table.values, table.free)]
        recipe = identify(b"table", table.base.key, str((table.values.shape, shape)).encode(), *arrays)
        result = computed(dtype, shape, recipe, lambda: _words(table), bounds)
    return with_table(result, table)


def table_of(tensor: Tensor, rank: int) -> Table | None:
    """The table of a tensor of a higher rank."""
    table: Table | None = tensor.table or itself(tensor)
    if table is None:
        return None
    ones = [1] * (rank - len(tensor.shape))
    arrays = [one.reshape(*ones, *one.shape) for one in (table.values, table.free)]
    return Table(reshape(table.base, (*ones, *table.base.shape)), table.domain, table.ends, *arrays)


def apply(x: Tensor, dtype: int, function: Callable[[_Array], _Array]) -> Tensor | None:
    """A function of integers, which is constant beyond the window. It is given the domain as the last axis."""
    if x.known is not None:
        return constant(
            function(x.known.astype(np.int64)[..., None])[..., 0].astype(numpy_type(dtype)), dtype
        )
    table = table_of(x, len(x.shape))
    if table is None or (x.table is not None and table.free.any()):
        return None
    values = function(table.values)
    return _tabulated(dtype, replace(table, values=values, free=np.zeros(values.shape, np.bool_)))


def tabulate(call: Call, result: Tensor) -> Tensor:
    """The result of an operator of integers that are functions of one integer, by its table."""
    tensors = [one.settled() for one in call.inputs if isinstance(one, Tensor)]
    if call.name not in TABULATED or len(tensors) < len(call.inputs) or result.known is not None:
        return result
    if any(not one.is_integer or one.dtype == T.UINT64 for one in (*tensors, result)):
        return result
    rank, unknown = len(result.shape), [one for one in tensors if one.known is None]
    tables = [table_of(one, rank) for one in unknown]
    first = tables[0] if tables else None
    if first is None or any(one is None or not one.is_of(first) for one in tables):
        return result
    gather = call.name == "Gather"
    if gather and (tensors[0].known is None or len(tensors[0].shape) != 1):
        return result
    if first.domain.size == 2 and call.name in _LINEAR:
        return result
    divisor = tensors[1].known if call.name == "Mod" else None
    wraps = result.wraps or (divisor is not None and np.isin(divisor, _WRAPS).all())
    if wraps and all(one.table is None for one in unknown):
        return result  # what wraps has a hash that does not depend on bounds
    arrays, free, rest = list[_Array](), list[_Array](), iter(tables)
    for one in tensors:
        if one.known is None and (table := next(rest)) is not None:
            arrays.append(table.values.astype(numpy_type(one.dtype)))
            free.append(table.free)
        elif one.known is not None:
            ones = [1] * (rank - one.known.ndim)
            arrays.append(one.known if gather else one.known.reshape(*ones, *one.shape, 1))
            free.append(np.zeros((1,) * (rank + 1), np.bool_))
    values = _enumerate(call, arrays, gather)
    stays = None if values is None else _free_after(call.name, [one.astype(np.int64) for one in arrays], free)
    if values is None or stays is None:
        return result
    if call.name == "Cast" and np.any(stays) and not fits(first.base, result.dtype):
        return result
    table = replace(first, values=values, free=np.broadcast_to(stays, values.shape))
    kept = result if call.name in _SUMS and not result.wraps else None
    if kept is not None and not _parts(table)[2].any():
        return result
    return _tabulated(result.dtype, table, kept) or result


def _enumerate(call: Call, arrays: Sequence[_Array], gather: bool) -> _Array | None:
    """The results for all numbers; None for too many, or where ONNX does not say what one is."""
    sizes = [1] if gather else np.broadcast_shapes(*(one.shape for one in arrays))
    if math.prod(sizes) > _ENTRIES:
        return None
    if call.name in ("Div", "Mod") and arrays[1].min() <= 0:
        return None
    if gather and not -len(arrays[0]) <= arrays[1].min() <= arrays[1].max() < len(arrays[0]):
        return None
    with suppress(Undecided):
        return np.asarray(fold(call, arrays)[0]).astype(np.int64)
    return None


def _free_after(name: str, numbers: Sequence[_Array], free: Sequence[_Array]) -> _Array | None:
    """Where the result is the integer itself beyond the window; None if one number does not speak for all there."""
    if not any(one.any() for one in free):
        return np.zeros_like(free[0], shape=(1,) * free[0].ndim)
    if name == "Where" and not free[0].any():
        return np.where(numbers[0], free[1], free[2])
    if name == "Cast":
        return free[0]
    pairs = zip(free, numbers, strict=True)
    within = all(np.all(kept | ((one >= -_WINDOW) & (one <= _WINDOW))) for kept, one in pairs)
    return np.zeros_like(free[0], shape=(1,) * free[0].ndim) if name in _COMPARE and within else None


def _width(tensor: Tensor) -> int:
    low, high = INTEGERS[tensor.dtype]
    return (high - low).bit_length()


@operator("BitShift")
def _shift(call: Call) -> Tensor | None:
    """Products with, or quotients by, powers of two; a shift by the width or more, or by a negative number, is one by
    the width."""
    x, y, width = call.tensor(0), call.tensor(1), _width(call.tensor(0))

    def power(counts: _Array) -> _Array:
        return 1 << np.where((counts < 0) | (counts > width), width, counts)

    factor = apply(y, T.INT64, power) if width <= 32 else None
    if factor is None:
        return elementwise(x.dtype, f"shift {call.attributes['direction']}", (x, y))
    if call.attributes["direction"] == "LEFT":
        return cast(multiply(cast(x, T.INT64), factor), x.dtype)
    whole = cast(x, T.INT64)
    if INTEGERS[x.dtype][0]:
        whole = subtract(whole, modulo(whole, factor))
    return cast(divide(whole, factor), x.dtype)


@operator("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bitwise(call: Call) -> Tensor | None:
    """Sums of products of bits."""
    x, y = call.tensor(0), call.tensor(1)
    bits = [_bits(one, len(np.broadcast_shapes(x.shape, y.shape))) for one in (x, y)]
    if bits[0] is None or bits[1] is None:
        return elementwise(x.dtype, call.name, (x, y), ordered=False)
    result = combine(call.name.removeprefix("Bitwise"), bits[0], bits[1])
    weights = 1 << np.arange(_width(x))
    weights[-1] *= -1 if INTEGERS[x.dtype][0] else 1
    summed = sum_over(multiply(cast(result, T.INT64), constant(weights)), (len(result.shape) - 1,), False)
    return cast(reshape(summed, summed.shape[:-1]), x.dtype)


def _bits(tensor: Tensor, rank: int) -> Tensor | None:
    """The bits of integers of up to 32 bits on a last axis, as booleans. Those of 32 bits are split into halves."""
    x = reshape(tensor, (*[1] * (rank - len(tensor.shape)), *tensor.shape, 1))
    width, places = _width(tensor), np.arange(_width(tensor))
    if width == 32:
        half = fill(1 << 16, x.dtype)
        low = modulo(x, half)
        high = divide(subtract(x, low).settled(), half)
        x, places = where(constant(places < 16), low, high), places % 16
    return apply(x, T.BOOL, lambda numbers: numbers >> places[:, None] & 1) if width <= 32 else None


@operator("BitwiseNot")
def _bitwise_not(call: Call) -> Tensor:
    x = call.tensor(0)
    return cast(subtract(constant(np.array(sum(INTEGERS[x.dtype]))), cast(x, T.INT64)), x.dtype)


@operator("CumProd")
def _cumulate(call: Call) -> Tensor | None:
    """Products of integers up to each place on the axis, which is one of the axes if it is not known."""
    x, axis = call.ring(0), call.tensor(1)
    if not x.is_integer:
        return None
    place = modulo(axis, constant(np.array(len(x.shape), numpy_type(axis.dtype))))
    result = _running_product(call, x, 0)
    for other in range(1, len(x.shape)):
        here = apply(reshape(place, ()), T.BOOL, partial(np.equal, other))
        if here is None:
            return None
        result = where(here, _running_product(call, x, other), result)
    return result


def _running_product(call: Call, x: Tensor, axis: int) -> Tensor:
    places = np.moveaxis(number([x])[0], axis, 0)
    rows = [pick([x], one) for one in (places[::-1] if call.flag("reverse") else places)]
    results = list(itertools.accumulate(rows, multiply))
    if call.flag("exclusive"):
        results = [fill(1, x.dtype, rows[0].shape), *results[:-1]]
    results = results[::-1] if call.flag("reverse") else results
    return pick(results, np.stack(number(results), axis))
