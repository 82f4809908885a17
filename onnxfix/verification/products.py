"""Products of bytes, which ONNX Runtime computes wrongly on some processors."""

from __future__ import annotations

from onnxfix import walk
from onnxfix.verification.request import Request

CUT_OFF = (
    "they differ where ONNX Runtime multiplies uint8 by int8, whose sums saturate at 16 bits on this processor; "
    "another check has compared them"
)
_OPERATORS = frozenset(
    (
        "MatMulInteger",
        "ConvInteger",
        "QLinearMatMul",
        "QLinearConv",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
    )
)


def cut_off(request: Request) -> bool:
    """Whether ONNX Runtime's CPU provider may cause a difference: it multiplies bytes wrongly on this processor, and
    another rung has found no difference between the two models."""
    if not request.shown:
        return False
    if not any(node.op_type in _OPERATORS for node in walk.model_nodes(request.known.model)):
        return False
    outcome = request.worker.call("onnxfix.backends.ort:cuts_off", timeout=request.step)
    return bool(outcome.ok and outcome.value)
