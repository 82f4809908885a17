"""Whether the reference evaluator adds anything to what ONNX Runtime shows."""

from __future__ import annotations

from onnxfix import backends, walk
from onnxfix.backends import reference
from onnxfix.verification.feeds import plan
from onnxfix.verification.request import Request

CHEAP = 20_000_000
"""Estimated element-operations of all inputs up to which the evaluator costs next to nothing: about 0.2 s."""
BYTES_CUT_OFF = frozenset(
    (
        "MatMulInteger",
        "ConvInteger",
        "QLinearMatMul",
        "QLinearConv",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
    )
)
"""Operators that ONNX Runtime computes wrongly on some processors (``backends.ort.cuts_off``)."""


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
