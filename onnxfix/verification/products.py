"""Products of bytes, which ONNX Runtime computes wrongly on some processors."""

from __future__ import annotations

from onnxfix import walk
from onnxfix.verification.compare.twin_unsigned import product
from onnxfix.verification.request import Request

CUT_OFF = (
    "they differ where ONNX Runtime multiplies uint8 by int8, whose sums saturate at 16 bits on this processor; "
    "another check has compared them"
)
UNSIGNED = (
    "ONNX Runtime's sums of products of uint8 and int8 saturate at 16 bits on this processor: where outputs differed, "
    "both models ran once more with the same weights as uint8, whose sums do not"
)


def cut_off(request: Request) -> bool:
    """Whether ONNX Runtime's CPU provider may cause a difference: it multiplies bytes wrongly on this processor, and
    the original has such a product."""
    if not any(product(node) is not None for node in walk.model_nodes(request.known.model)):
        return False
    outcome = request.worker.call("onnxfix.backends.ort:cuts_off", timeout=request.step)
    return bool(outcome.ok and outcome.value)
