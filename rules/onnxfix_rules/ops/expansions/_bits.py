"""Bitwise And of two integers, by arithmetic that does not overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import INTEGERS
from onnxfix_rules.ops._integers import Computer

_EXACT = 32
"""Bits summed at once: ONNX Runtime 1.31 rounds sums of int64 to double."""
_HALF = 16
"""The same for int32, whose quotients and sums TensorRT 10.6 may round to float32."""
_EXACT_FLOATS = 1 << 23
"""Integers up to twice this are exact in float32."""
LIMIT = 1 << 16
"""Maximum size of a mask that is decomposed in a constant, in bytes."""
_MAX_RUNS = 3
"""Maximum runs of ones that are extracted one by one; for more, a bit-by-bit product takes fewer layers."""
Array = np.ndarray[Any, Any]


def is_simple(computer: Computer, mask: int) -> bool:
    """Whether ``of_mask`` needs few nodes for it."""
    all_ones = (1 << computer.bits) - 1
    return min(len(_runs(mask & all_ones)), len(_runs(~mask & all_ones))) <= _MAX_RUNS


def of_mask(computer: Computer, x: str, mask: int) -> str:
    """``x & mask`` for a known mask: for each run of ones, the bits below its end minus the bits below its start."""
    all_ones = (1 << computer.bits) - 1
    mask, rest = mask & all_ones, ~mask & all_ones
    if len(_runs(rest)) < len(_runs(mask)) or not rest:
        return x if not rest else computer.add("Sub", x, of_mask(computer, x, rest))
    parts = [_below(computer, x, end, start) for start, end in _runs(mask)]
    if not parts:
        return computer.add("Mul", x, computer.number(0))  # of x's shape
    total = parts[0]
    for part in parts[1:]:
        total = computer.add("Add", total, part)
    return total


def _runs(mask: int) -> list[tuple[int, int]]:
    """The start and end of each run of ones in a mask, from the lowest."""
    found, bit = [], 0
    while mask >> bit:
        if mask >> bit & 1:
            start = bit
            while mask >> bit & 1:
                bit += 1
            found.append((start, bit))
        bit += 1
    return found


def _below(computer: Computer, x: str, end: int, start: int) -> str:
    """The bits from ``start`` up to, not including, ``end``; the highest bit of a signed type counts as negative."""
    sign = ""
    if computer.signed and end == computer.bits:
        sign = _sign_weight(computer, computer.add("Less", x, computer.number(0)))
        end -= 1
    if end == start:
        return sign
    upper = _low(computer, x, end)
    part = upper if start == 0 else computer.add("Sub", upper, _low(computer, x, start))
    return computer.add("Add", part, sign) if sign else part


def _low(computer: Computer, x: str, end: int) -> str:
    """The lowest bits, as a nonnegative value."""
    if not computer.signed and end == computer.bits:
        return x
    if 1 << end <= INTEGERS[computer.wide].high:
        return _modulo(computer, x, 1 << end)
    return computer.add("Sub", x, _sign_weight(computer, computer.add("Less", x, computer.number(0))))


def is_rounded(computer: Computer) -> bool:
    """Whether TensorRT may round quotients and sums of the operands."""
    return computer.elem == TensorProto.INT32


def _modulo(computer: Computer, x: str, divisor: int) -> str:
    """The remainder. TensorRT's Mod subtracts an exact product with a rounded quotient, so that of a large int32 it is
    off by a multiple of the divisor: by at most one below 0 for a large divisor. The Mod of a small number is right."""
    number = computer.number(divisor)
    remainder = computer.add("Mod", x, number)
    if not is_rounded(computer):
        return remainder
    if divisor < _EXACT_FLOATS:
        return computer.add("Mod", remainder, number)
    is_below = computer.add("Less", remainder, computer.number(0))
    return computer.add("Where", is_below, computer.add("Add", remainder, number), remainder)


def _sign_weight(computer: Computer, negative: str) -> str:
    """The weight of the sign bit where it is set, else 0."""
    return computer.add("Where", negative, computer.number(-(1 << (computer.bits - 1))), computer.number(0))


def common(computer: Computer, x: str, y: str | Array, rank: int) -> str:
    """``x & y``, bit by bit along a new axis; for signed types the sign bit is handled separately.

    ``y`` is an array where it is known. ``rank`` is the rank of the result.
    """
    bits = _Bits(computer, rank)
    if isinstance(y, str):
        both = computer.add("Mul", bits.of(x), bits.of(y))
        parts = [(both, weights) for weights in bits.weights(np.array(-1))]
    else:
        ones = bits.of(x)
        parts = [(ones, weights) for weights in bits.weights(y)]
    totals = [bits.total(ones, weights) for ones, weights in parts]
    total = totals[0]
    if len(totals) > 1:
        total = computer.add("Add", total, computer.add("Mul", totals[1], computer.number(1 << _EXACT)))
    if not computer.signed:
        return total
    if isinstance(y, str):
        sign = _sign_weight(computer, computer.add("And", *bits.signs))
    elif (y >= 0).all():
        return total
    else:
        sign_weight = computer.array(np.where(y < 0, -(1 << (computer.bits - 1)), 0), "signs")
        sign = computer.add("Where", bits.signs[0], sign_weight, computer.number(0))
    return computer.add("Add", total, sign)


def by_halves(computer: Computer, logic: str, x: str, y: str | Array, rank: int) -> str:
    """And, Or or Xor of int32, bit by bit along a new axis. No quotient and no sum needs more than 17 bits.

    ``y`` is an array where it is known. ``rank`` is the rank of the result.
    """
    bits = np.arange(2 * _HALF)
    powers = 1 << bits % _HALF
    axis = computer.draft.integers([-1], "axis")
    is_low = computer.draft.constant(bits < _HALF, "low")
    spans, below = computer.array(2 * powers, "spans"), computer.array(powers - 1, "below")

    def bits_of(operand: str) -> str:
        column = computer.add("Unsqueeze", operand, axis)
        low = _modulo(computer, column, 1 << _HALF)
        high = computer.add("Div", computer.add("Sub", column, low), computer.number(1 << _HALF))
        rest = computer.add("Mod", computer.add("Where", is_low, low, high), spans)
        return computer.add("Greater", rest, below)

    first = bits_of(x)
    if isinstance(y, str):
        second = bits_of(y)
    else:
        second = computer.draft.constant((y[..., None].astype(np.int64) >> bits & 1).astype(bool), "bits")
    ones = computer.add(logic, first, second)
    totals = []
    for weights in (np.where(bits < _HALF, powers, 0), np.where(bits < _HALF, 0, powers)):
        if weights[-1]:
            weights[-1] *= -1  # the sign
        weighted = computer.add("Where", ones, computer.array(weights, "weights"), computer.number(0))
        totals.append(computer.draft.sum(weighted, [rank]))
    return computer.add("Add", totals[0], computer.add("Mul", totals[1], computer.number(1 << _HALF)))


class _Bits:
    """The bits of operands, without the sign bit, along a new last axis (axis ``rank`` of the result)."""

    def __init__(self, computer: Computer, rank: int) -> None:
        self.computer, self.rank, self.count = computer, rank, computer.bits - computer.signed
        self.signs: list[str] = []
        self.axis = computer.draft.integers([-1], "axis")
        self.powers = computer.array([1 << bit for bit in range(self.count)], "powers")

    def of(self, operand: str) -> str:
        """1 or 0 for each bit."""
        low = operand
        if self.computer.signed:
            self.signs.append(self.computer.add("Less", operand, self.computer.number(0)))
            low = self.computer.add("Sub", operand, _sign_weight(self.computer, self.signs[-1]))
        parts = self.computer.add("Div", self.computer.add("Unsqueeze", low, self.axis), self.powers)
        return self.computer.add("Mod", parts, self.computer.number(2))

    def weights(self, mask: Array) -> list[str]:
        """The weights of a mask's set bits, 0 for the others: of the lower 32 bits, and of those above them."""
        found = []
        for start in range(0, self.count, _EXACT):
            bits = range(self.count)
            weights = [1 << bit - start if start <= bit < start + _EXACT else 0 for bit in bits]
            ones = (mask[..., None].astype(object) >> np.array(bits, dtype=object)) & 1
            found.append(self.computer.array(ones * np.array(weights, dtype=object), "weights"))
        return found

    def total(self, ones: str, weights: str) -> str:
        """The sum of the weights of the ones."""
        return self.computer.draft.sum(self.computer.add("Mul", ones, weights), [self.rank])
