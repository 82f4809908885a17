"""The check ``symbolic``: a proof that two models compute the same for all values of their inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import shape_of
from onnxfix.inputs.feeds.signature import Assignment, Signature
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import RungResult, unjudged
from onnxfix.runtime.causes import ENDED

NAME = "symbolic"
_TARGET = "onnxfix.proof.symbolic.files:prove_files"
_FEW = 4096
"""Elements up to which an input may decide a shape."""

_Trial = tuple[Mapping[str, tuple[Any, ...]], Mapping[str, np.ndarray[Any, Any]]]
"""The shapes of all inputs (of a sequence, those of its tensors), and the values of small ones."""


def run(request: Request) -> RungResult:
    """Prove it at the sizes of the inputs that the other checks run with. That it is not proven is no failure."""
    if request.without:
        return unjudged(NAME, "the models have different inputs", "undecided")
    try:
        trials = _list_trials(request)
    except UsageError as error:  # no input can be made for this model
        return unjudged(NAME, str(error), "undecided")
    outcome = request.worker.call(
        _TARGET,
        timeout=request.step + request.total,
        original=str(request.original),
        fixed=str(request.fixed),
        trials=trials,
        limit=request.total,
    )
    if not outcome.ok:
        return unjudged(NAME, outcome.message, ENDED.get(outcome.status, ""))
    count, reason, given = outcome.value
    if reason:
        return unjudged(NAME, reason, "undecided")
    sizes = f"{count} shape" if count == 1 else f"{count} shapes"
    for_values = f", for these values of {', '.join(given)}, which decide shapes" if given else ""
    return RungResult(NAME, "passed", f"for all values at {sizes}{for_values}")


def _list_trials(request: Request) -> list[_Trial]:
    """The shapes that the other checks run with. The inputs themselves, which may be large, are not made.

    Raises:
        UsageError: an input cannot be made.
    """
    known = request.known
    if request.given is not None:
        feeds = {tuple(map(_shape, feed.values())): feed for feed in request.given}
        return [_of_feed(feed) for feed in feeds.values()]
    sweep = plan.assignments(known, request.shapes)
    whole = [sizes for sizes in sweep if 0 not in sizes.values()]
    trials = [_of_sizes(known, sizes, request.seed) for sizes in whole or sweep]
    # Nothing is computed at sizes without an element, and much less is to be said at many.
    return sorted(trials, key=lambda trial: sum(map(_count, trial[0].values())))


def _of_feed(feed: Mapping[str, Any]) -> _Trial:
    few = {
        name: np.asarray(value)
        for name, value in feed.items()
        if not isinstance(value, (list, tuple)) and plan.size(value) <= _FEW
    }
    return {name: _shape(value) for name, value in feed.items()}, few


def _of_sizes(known: Signature, sizes: Assignment, seed: int) -> _Trial:
    made = [one for one in known.inputs if one.default is None or one.name in known.pinned]
    shapes = {one.name: shape_of(known, one, sizes) for one in made if one.kind == "tensor"}
    few = tuple(one for one in made if math.prod(shapes.get(one.name, ())) <= _FEW)
    of_few, values = _of_feed(plan.Feed(sizes, "normal", seed).values(replace(known, inputs=few)))
    return {**shapes, **of_few}, values


def _shape(value: Any) -> tuple[Any, ...]:
    if value is None:
        raise UsageError("an optional input has no value")
    return tuple(map(np.shape, value)) if isinstance(value, (list, tuple)) else np.shape(value)


def _count(shape: tuple[Any, ...]) -> int:
    """Elements of a tensor, or of all tensors of a sequence."""
    return sum(map(_count, shape)) if shape and isinstance(shape[0], tuple) else math.prod(shape)
