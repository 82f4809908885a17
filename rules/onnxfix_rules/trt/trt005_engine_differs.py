"""TRT005: differences between the outputs of the engine and of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.rule import Match, Place, Severity, rule

if TYPE_CHECKING:
    from onnxfix.verification.verdict import Executed

_HALF_PRECISION = tuple(f"PRC00{number}" for number in (1, 2, 3, 5, 6, 7, 8, 9))


@rule("TRT005", per="execution", severity=Severity.ERROR)
def engine_differs(executed: Executed) -> Iterator[Match]:
    """The engine's outputs differ from the model's by more than rounding.

    ## Why it matters
    TensorRT builds the model, but the engine computes something else: a layer was imported with another meaning, half
    precision overflows, or a kernel is wrong. The check `trt-gpu` of `apply` and `verify` runs engines of the original
    and of the fixed model and compares both with the results of ONNX Runtime or the reference evaluator. A fix that
    makes an engine worse is withdrawn. This finding is about the rest: the engine of the written model is wrong, and
    the original's engine was no better.

    If the check `trt-network` has found the node that TensorRT imports differently, TRT004 reports it, confirmed on the
    engine, and this finding is omitted.

    ## Fix
    Repair what the finding points to: a model in half precision often needs `--numeric-fixes`. If it points to nothing,
    narrow the cause down: `onnxfix lift` writes what TensorRT imported, and the outputs of a truncated model show where
    the values start to differ. If rounding alone could explain the difference, test with real inputs: `--inputs`.

    ## References
    - Accuracy in the TensorRT documentation:
      https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/accuracy-considerations.html
    - Strong typing:
      https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/advanced.html#strongly-typed-networks
    """
    if executed.outcome in ("alike", "wrong"):
        yield Match(
            f"on {executed.gpu or 'the GPU'}, {executed.reason}",
            at=Place(output=executed.output),
            about=_HALF_PRECISION,
        )
