"""Whether the reference evaluator adds anything to what ONNX Runtime shows."""

from __future__ import annotations

from onnxfix import backends
from onnxfix.backends import reference
from onnxfix.verification.feeds import plan
from onnxfix.verification.request import Request

CHEAP = 200_000_000
"""Element-operations on all shapes up to which the evaluator costs next to nothing: less than a second."""
NOTHING_ADDED = "adds nothing to ort-cpu"


def too_large(request: Request) -> str | None:
    """Why the evaluator would take too long for any input; None where it should not."""
    sizes = elements(request)
    tried = sizes if request.given is not None else sizes[:2]
    return reference.infeasible(request.known.model, min(tried))


def elements(request: Request) -> list[int]:
    """How many elements the planned or given inputs have, for each of them."""
    if request.given is not None:
        return [sum(map(plan.size, feed.values())) for feed in request.given]
    return [plan.elements(request.known, one) for one in plan.assignments(request.known, request.shapes)]


def is_spare(request: Request, half: str) -> bool:
    """Whether the evaluator shows nothing that ONNX Runtime does not show, and costs something. Half precision (the
    type ``half``) is not judged without it."""
    if request.effort.whole or half or backends.missing("ort-cpu") is not None:
        return False
    return sum(reference.work(request.known.model, count) for count in elements(request)) > CHEAP
