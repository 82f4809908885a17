"""The check ``symbolic``: a proof that two models compute the same for all values of their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfix.errors import UsageError
from onnxfix.inputs.feeds import plan
from onnxfix.proof.request import Request
from onnxfix.proof.verdict import RungResult, unjudged
from onnxfix.runtime.causes import ENDED

NAME = "symbolic"
_TARGET = "onnxfix.proof.symbolic.files:prove_files"
_FEW = 4096
"""Elements up to which an input may decide a shape."""


def run(request: Request) -> RungResult:
    """Prove it at the sizes of the inputs that the other checks run with. That it is not proven is no failure."""
    if request.without:
        return unjudged(NAME, "the models have different inputs", "undecided")
    try:
        feeds = _list_feeds(request)
    except UsageError as error:  # no input can be made for this model
        return unjudged(NAME, str(error), "undecided")
    trials = [
        (
            {name: np.shape(value) for name, value in feed.items()},
            {name: np.asarray(value) for name, value in feed.items() if plan.size(value) <= _FEW},
        )
        for feed in feeds
        if not any(isinstance(value, (list, tuple)) for value in feed.values())
    ]
    if len(trials) < len(feeds):
        return unjudged(NAME, "an input is a sequence", "undecided")
    outcome = request.worker.call(
        _TARGET,
        timeout=request.total,
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


def _list_feeds(request: Request) -> list[dict[str, Any]]:
    """Inputs of each shape that the other checks run with.

    Raises:
        UsageError: no inputs can be made.
    """
    if request.given is not None:
        feeds = {tuple(map(np.shape, feed.values())): feed for feed in request.given}
        return list(feeds.values())
    known = request.known
    sweep = plan.assignments(known, request.shapes)
    whole = [sizes for sizes in sweep if 0 not in sizes.values()]
    made = [plan.Feed(sizes, "normal", request.seed).values(known) for sizes in whole or sweep]
    # Nothing is computed at sizes without an element, and much less is to be said at many.
    return sorted(made, key=lambda feed: sum(map(plan.size, feed.values())))
