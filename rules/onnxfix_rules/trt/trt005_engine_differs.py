"""TRT005."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.rule import Match, Place, Severity, rule

if TYPE_CHECKING:
    from onnxfix.verification.verdict import Executed

_HALF_PRECISION = tuple(f"PRC00{number}" for number in (1, 2, 3, 5, 6, 7, 8, 9))


@rule("TRT005", per="execution", severity=Severity.ERROR)
def engine_differs(executed: Executed) -> Iterator[Match]:
    """The engine was executed, and its outputs differ from the model's by more than rounding.

    ## Why it matters
    TensorRT builds the model, and the engine computes something else: a layer was imported with another meaning, half
    precision overflows, or a kernel is wrong. The rung `trt-gpu` of `apply` and `verify` executes engines of the
    original and of the fixed model and compares both with what ONNX Runtime, or the reference evaluator, computes. A
    fix that makes an engine worse is withdrawn. This finding is about what is left: the engine of the model that is
    written is wrong, and the original's engine was no better.

    Where the rung `trt-network` has found the node that TensorRT imports differently, TRT004 says so and is marked as
    confirmed on the engine, and this finding is left out.

    ## Fix
    Repair what the finding points to: a model in half precision often needs `--numeric-fixes`. Where nothing is pointed
    to, compare in parts: `onnxfix lift` writes what TensorRT imported, and tensors of a smaller model that ends earlier
    show where the values part. If rounding alone explains it, your inputs say more than generated ones: `--inputs`.

    ## References
    - Accuracy in the TensorRT documentation:
      https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/accuracy-considerations.html
    - Strong typing: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/advanced.html#strongly-typed-networks
    """
    if executed.outcome in ("alike", "wrong"):
        yield Match(
            f"on {executed.gpu or 'the GPU'}, {executed.reason}",
            at=Place(output=executed.output),
            about=_HALF_PRECISION,
        )
