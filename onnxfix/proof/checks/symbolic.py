"""The check ``symbolic``: a proof that two models compute the same for all values of their inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import shape_of
from onnxfix.inputs.feeds.signature import Assignment, Signature, signature
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import RungResult, unjudged
from onnxfix.runtime.causes import ENDED

NAME = "symbolic"
LATE = "time limit exceeded"
"""What an obstacle says where no time was left."""
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
        if request.given is None:
            trials = _make_trials(request.known, request.shapes, request.seed)
        else:
            feeds = {tuple(map(_shape, feed.values())): feed for feed in request.given}
            trials = [_of_feed(feed) for feed in feeds.values()]
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
    late = count > 0 and LATE in reason  # what was proven before stays proven
    if reason and not late:
        return unjudged(NAME, reason, "undecided")
    sizes = f"{count}{f' of {len(trials)}' * late} shape{'s' * (max(count, len(trials) * late) > 1)}"
    for_values = f", for these values of {', '.join(given)}, which decide shapes" if given else ""
    return RungResult(NAME, "passed", f"for all values at {sizes}{for_values}")


def find_obstacle(original: ModelProto, fixed: ModelProto) -> str:
    """Why it is not proven in this process that two small models compute the same; empty where it is."""
    from onnxfix.proof.symbolic.prove import prove  # lazy: start-up, else in the child

    for shapes, values in _make_trials(signature(original), {}, 0):
        outcome = prove(original, fixed, shapes, values)
        if not outcome.proven:
            return outcome.reason
    return ""


def make_largest(model: ModelProto) -> dict[str, Any]:
    """Inputs of the largest shape at which it is tried to prove something of a model."""
    known = signature(model)
    feeds = [plan.Feed(sizes, "normal", 0) for sizes in _list_sizes(known, {})]
    return max(feeds, key=lambda feed: plan.elements(known, feed.assignment)).values(known)


def _list_sizes(known: Signature, shapes: Assignment) -> list[Assignment]:
    """Sizes of symbols with which no input is empty, or where there are none, all."""
    sweep = plan.assignments(known, shapes)
    return [sizes for sizes in sweep if 0 not in sizes.values()] or sweep


def _make_trials(known: Signature, shapes: Assignment, seed: int) -> list[_Trial]:
    """The shapes that the other checks run with. The inputs themselves, which may be large, are not made."""
    trials = [_of_sizes(known, sizes, seed) for sizes in _list_sizes(known, shapes)]
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
