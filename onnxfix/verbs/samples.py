"""Inputs on which ``diagnose``, ``precision`` and ``reduce`` run a model: the user's own, or generated ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import Kind
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import Assignment, Signature

Shapes = Sequence[str] | Mapping[str, Sequence[int]]
_MILD: tuple[Kind, ...] = ("normal", "small", "ones")


def list_sizes(known: Signature, shapes: Shapes) -> list[Assignment]:
    """Sizes of the model's symbols to try, some of which the user may have fixed by shapes of inputs.

    Raises:
        UsageError: the shapes do not fit the model.
    """
    return plan.assignments(known, plan.bind_sizes(known, shapes))


def generate_mild(known: Signature, shapes: Shapes, seed: int) -> Iterator[Mapping[str, Any]]:
    """Mixed sizes first, then milder values, until the model accepts some."""
    sizes = list_sizes(known, shapes)
    order = [sizes[min(2, len(sizes) - 1)], *sizes]
    for kind in _MILD:
        for number, one in enumerate(order):
            try:
                yield Feed(one, kind, seed + number).values(known)
            except MemoryError:
                continue


def generate_large(known: Signature, shapes: Shapes, seed: int, count: int) -> Iterator[Mapping[str, Any]]:
    """``count`` samples, of larger sizes first: they show more values. Then some of sizes that the model may need."""
    every = list_sizes(known, shapes)
    sizes = [
        one for one in every if all(size or name.endswith(".value") for name, size in one.items())
    ] or every
    sizes.reverse()
    grown = list(plan.grown(known, plan.bind_sizes(known, shapes)))
    for number, one in enumerate([*itertools.islice(itertools.cycle(sizes), count), *grown]):
        yield Feed(one, "normal", seed + number).values(known)
