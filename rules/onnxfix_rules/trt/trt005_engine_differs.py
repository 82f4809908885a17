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
    """The executed engine's outputs differ from the model's by more than rounding.

    ## Why it matters
    TensorRT builds the model, but the engine computes something else: a layer was misimported, half precision
    overflows, or a kernel is wrong. The check `trt-gpu` of `apply` and `verify` executes engines of the original and
    of the fixed model and compares both with the results of ONNX Runtime, or the reference evaluator. A fix that
    makes an engine worse is withdrawn. This finding reports the rest: the engine of the written model is wrong, and
    the original's engine was no better.

    If the check `trt-network` has found the misimported node, TRT004 reports it and is marked as confirmed on the
    engine, and this finding is omitted.

    ## Fix
    Fix what the finding names: a model in half precision often needs `--numeric-fixes`. If nothing is named, compare
    in parts: `onnxfix lift` writes what TensorRT imported, and a smaller model that ends earlier shows where the
    values start to differ. If rounding alone explains it, real inputs are more meaningful than generated ones:
    `--inputs`.

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
