"""GRA013: a model that onnx.checker refuses before it is fixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.rule import Match, Severity, rule

if TYPE_CHECKING:
    from onnxfix.verification.validity import Checked


@rule("GRA013", per="validity", severity=Severity.WARNING)
def invalid_original(original: Checked, fixed: Checked) -> Iterator[Match]:
    """The model is not valid ONNX as it came in: what was fixed is a reading of it.

    ## Why it matters
    ONNX does not say what such a model computes. `onnx.checker` refuses it, ONNX Runtime most of the time, while
    TensorRT and other readers take many and make of them what they can. What comes out of the fixes may be valid; that
    it is what was meant is proven only as far as a rung of the ladder could run the original. Whatever wrote the model
    has a bug.

    `apply` finds this where it fixes something: the rung `contract` asks `onnx.checker` of the original and of the
    fixed model, with `full_check`, which infers types and shapes. Declared shapes of anything but inputs are left out
    of that: a wrong one is GRA003's finding, and makes no model compute something else.

    - **warning**: `onnx.checker` itself refuses the model: nodes that are not sorted, an attribute or a number of
      inputs that the operator does not have, an opset that lacks the operator.
    - **info**: only `full_check` does: operands of different types, shapes that do not fit. Most such models are
      invalid, but not all: onnx 1.23 refuses ONNX's own `MeanVarianceNormalization` without `axes`.

    ## Fix
    None: look at what made the model. The message says whether the fixed model is valid, and the applied fixes say what
    was repaired. `--ignore GRA013` where that is what you want.

    ## References
    - `onnx.checker.check_model` and its `full_check`: https://onnx.ai/onnx/api/checker.html
    - What a valid model is: https://onnx.ai/onnx/repo-docs/IR.html
    """
    from onnxfix.verification.validity import invalid  # lazy: start-up

    if original.complaint:
        severity = Severity.WARNING if original.refused else Severity.INFO
        yield Match(invalid(original, fixed), severity=severity)
