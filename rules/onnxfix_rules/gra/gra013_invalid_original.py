"""GRA013: models that onnx.checker refuses before any fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.rule import Match, Severity, rule

if TYPE_CHECKING:
    from onnxfix.verification.validity import Checked


@rule("GRA013", per="validity", severity=Severity.WARNING)
def invalid_original(original: Checked, fixed: Checked) -> Iterator[Match]:
    """The original model is not valid ONNX, so the fixes rely on an interpretation of it.

    ## Why it matters
    ONNX does not define what such a model computes. `onnx.checker` refuses it, ONNX Runtime usually does, while
    TensorRT and other tools accept many and interpret them in their own way. The fixed model may be valid; its results
    are proven only as far as a verification check could run the original. The tool that wrote the model has a bug.

    `apply` reports this if it fixes something: the check `contract` runs `onnx.checker` on the original and on the
    fixed model with `full_check`, which infers types and shapes. It ignores declared shapes of everything but inputs:
    GRA003 reports wrong ones, and they do not change what a model computes.

    - **warning**: `onnx.checker` itself refuses the model: unsorted nodes, an attribute or a number of inputs that the
      operator does not have, an opset that lacks the operator.
    - **info**: only `full_check` does: operands of different types, incompatible shapes. Most such models are invalid,
      but not all: onnx 1.23 refuses ONNX's own `MeanVarianceNormalization` without `axes`. Or the nodes were only
      unsorted, and the fixed model is valid: what such a model computes is clear.

    ## Fix
    None: correct the exporter. The message says whether the fixed model is valid, and the applied fixes show what was
    repaired. If that is intended, use `--ignore GRA013`.

    ## References
    - `onnx.checker.check_model` and its `full_check`: https://onnx.ai/onnx/api/checker.html
    - What a valid model is: https://onnx.ai/onnx/repo-docs/IR.html
    """
    from onnxfix.verification.validity import invalid  # lazy: start-up

    if original.complaint:
        sorted_only = original.unsorted and not fixed.complaint
        severity = Severity.WARNING if original.refused and not sorted_only else Severity.INFO
        yield Match(invalid(original, fixed), severity=severity)
