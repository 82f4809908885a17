"""GRA013: a model that onnx.checker refuses before it is fixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.rule import Match, Severity, rule

if TYPE_CHECKING:
    from onnxfix.verification.validity import Checked


@rule("GRA013", per="validity", severity=Severity.WARNING)
def invalid_original(original: Checked, fixed: Checked) -> Iterator[Match]:
    """The original model is not valid ONNX, so the fixes are based on an interpretation of it.

    ## Why it matters
    ONNX does not define what such a model computes. `onnx.checker` refuses it, ONNX Runtime usually too, while
    TensorRT and other tools accept many and interpret them. The fixed model may be valid; it is proven to match the
    intent only as far as a check could run the original. The tool that wrote the model has a bug.

    `apply` reports this if it fixes something: the check `contract` runs `onnx.checker` on the original and on the
    fixed model, with `full_check`, which infers types and shapes. Declared shapes of anything but inputs are
    excluded: a wrong one is reported by GRA003, and does not change the results.

    - **warning**: `onnx.checker` itself refuses the model: unsorted nodes, an attribute or a number of inputs that
      the operator does not have, an opset that lacks the operator.
    - **info**: only `full_check` does: operands of different types, shapes that do not fit. Most such models are
      invalid, but not all: onnx 1.23 refuses ONNX's own `MeanVarianceNormalization` without `axes`.

    ## Fix
    None: check the tool that wrote the model. The message says whether the fixed model is valid, and the applied
    fixes show what was corrected. Use `--ignore GRA013` if that is intended.

    ## References
    - `onnx.checker.check_model` and its `full_check`: https://onnx.ai/onnx/api/checker.html
    - What a valid model is: https://onnx.ai/onnx/repo-docs/IR.html
    """
    from onnxfix.verification.validity import invalid  # lazy: start-up

    if original.complaint:
        severity = Severity.WARNING if original.refused else Severity.INFO
        yield Match(invalid(original, fixed), severity=severity)
