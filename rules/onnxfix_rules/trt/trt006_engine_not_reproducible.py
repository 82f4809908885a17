"""TRT006: an engine that computes something else each time that it is loaded or built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.rule import Match, Place, Severity, rule

if TYPE_CHECKING:
    from onnxfix.verification.verdict import Executed


@rule("TRT006", per="execution", severity=Severity.ERROR)
def engine_not_reproducible(executed: Executed) -> Iterator[Match]:
    """The engine is right in some contexts and wrong in others, on the same inputs.

    ## Why it matters
    TensorRT chooses or compiles a kernel that is wrong now and then. A single run proves nothing then, and neither does
    an engine that was right in a test. Measured with TensorRT-RTX 1.6.1 on an H200 (compute capability 9.0, which
    NVIDIA does not list for it): of 20 contexts of FastViT's dynamo export 6 were wrong in every element, of the
    original as of the fixed model; within a context all runs agree. 24 contexts with TensorRT 10.6.0 were right.

    Where the new model's engine is wrong and a fix looks to blame, the check `trt-gpu` loads it twice more, builds it a
    second time and loads that three times, each in a process that has compiled no kernel. If one of these is right, no
    fix is withdrawn, and this is reported.

    ## Fix
    Use another release of TensorRT, or a GPU that it lists. `onnxfix diagnose --against trt-gpu` looks for the nodes;
    another export of the same model may avoid the kernel: FastViT's legacy export was always right.
    """
    if executed.outcome == "unsteady":
        yield Match(f"on {executed.gpu or 'the GPU'}, {executed.reason}", at=Place(output=executed.output))
