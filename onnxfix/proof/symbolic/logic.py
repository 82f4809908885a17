"""Logic, comparisons and choices."""

from __future__ import annotations

import numpy as np

from onnxfix.proof.symbolic import hashes
from onnxfix.proof.symbolic.calls import Call, operator
from onnxfix.proof.symbolic.hashes import Words
from onnxfix.proof.symbolic.moves import broadcast
from onnxfix.proof.symbolic.tensor import (
    T,
    Tensor,
    computed,
    elementwise,
    fill,
    hull,
    identify,
    strip,
    widest,
)


def _contrary(x: Tensor) -> Tensor:
    return elementwise(T.BOOL, "-", (fill(1, T.BOOL), x), (0, 1), ring=hashes.subtract)


@operator("Not")
def _not(call: Call) -> Tensor:
    return _contrary(call.tensor(0))


@operator("And", "Or", "Xor")
def _logic(call: Call) -> Tensor:
    x, y = call.tensor(0), call.tensor(1)
    if x.same_as(y):
        return x if call.name != "Xor" else fill(0, T.BOOL, x.shape)
    return combine(call.name, x, y)


def combine(name: str, x: Tensor, y: Tensor) -> Tensor:
    """Return "And", "Or", "Xor" of booleans, as polynomials of 0 and 1."""

    def ring(first: Words, second: Words) -> Words:
        both = hashes.multiply(first, second)
        if name == "And":
            return both
        either = hashes.subtract(hashes.add(first, second), both)
        return either if name == "Or" else hashes.subtract(either, both)

    return elementwise(T.BOOL, name, (x, y), (0, 1), ordered=False, ring=ring)


@operator("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
def _compare(call: Call) -> Tensor:
    x, y = call.tensor(0), call.tensor(1)
    if call.name == "Equal":
        return elementwise(T.BOOL, "equal", (x, y), ordered=False)
    if call.name.startswith("Greater"):
        x, y = y, x
    if not call.name.endswith("OrEqual"):
        return elementwise(T.BOOL, "less", (x, y))
    if x.bounds is None or y.bounds is None:
        return elementwise(T.BOOL, "less or equal", (x, y))
    return _contrary(elementwise(T.BOOL, "less", (y, x)))  # of numbers that are ordered, not NaN


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The elements of x where the condition holds, else those of y. As a polynomial in the condition it is linear, so
    that the order of conditions and their negations do not matter."""
    shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
    within, bounds = widest([x, y]), hull([x, y])
    if condition.known is not None and (np.all(condition.known) or not np.any(condition.known)):
        return broadcast(x if np.all(condition.known) else y, shape)
    first, second = broadcast(x, shape), broadcast(y, shape)
    if first.same_as(second):
        return first
    recipe = identify(b"where", str(strip(shape)).encode(), condition.key, first.key, second.key)

    def compute() -> Words:
        if condition.known is not None:
            return np.where(condition.known, first.words, second.words)
        chosen = broadcast(condition, shape).words
        return hashes.add(second.words, hashes.multiply(chosen, hashes.subtract(first.words, second.words)))

    return computed(x.dtype, shape, recipe, compute, bounds, within)


@operator("Where")
def _where(call: Call) -> Tensor:
    return where(call.tensor(0), call.ring(1), call.ring(2))
