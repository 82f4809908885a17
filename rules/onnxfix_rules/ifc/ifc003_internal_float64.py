"""IFC003: float64 tensors between inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Flagged, Match, Model, Scope, Severity, Silent, Value, elem_types, rule

_LIMIT = float(np.finfo(np.float32).max)


@rule(
    "IFC003",
    per="scope",
    severity=Severity.WARNING,
    hazards=[46],
    types=[TensorProto.DOUBLE],
)
def internal_float64(scope: Scope, model: Model) -> Iterator[Match]:
    """Intermediate values are float64, which TensorRT computes in float32.

    ## Why it matters
    TensorRT has no float64: it silently imports every such tensor as FLOAT. Measured with TensorRT-RTX 1.7.1: results
    of float64 arithmetic are FLOAT tensors, and a Cast to float64 imports as a Cast to FLOAT. It warns only of weights
    outside the range of float32: `Weight at index 0: 1e+300 is out of range. Clamping to: 3.40282e+38`. The differences
    are mostly rounding (7e-9 between float64 and float32 arithmetic on a probe, by ONNX Runtime), and large where the
    model needs float64: long sums, differences of nearly equal numbers, integers above 2**24, 1e300 for infinity.

    One finding per graph, at the first such value.

    ## Fix
    None: TensorRT changes the result, and declaring float32 in the model would only document that. Compare the outputs,
    and rewrite the computations that need the precision.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    if TensorProto.DOUBLE not in elem_types(model):
        return
    elem_type = model.shapes.elem_type
    double = [value for value in scope.values.values() if elem_type(value) == TensorProto.DOUBLE]
    wide = [value for value in double if _counts(value, scope, model)]
    if not wide:
        return
    more = "" if len(wide) == 1 else f", and {len(wide) - 1} more in this graph"
    beyond = next((value for value in wide if _beyond(value)), None)
    if beyond is not None:
        message = (
            f"float64 weight {beyond.name!r} has values outside float32's range, which TensorRT clamps{more}"
        )
    else:
        message = f"{wide[0].name!r} is float64, which TensorRT computes in float32{more}"
    yield Match(message, value=beyond if beyond is not None else wide[0])


def _counts(value: Value, scope: Scope, model: Model) -> bool:
    """Whether the float64 value is read and used in arithmetic."""
    if scope is model.main and (value.is_output or (value.is_input and value.initializer is None)):
        return False
    if not (value.use_count or value.is_output):
        return False
    node = value.producer
    cast = node is not None and node.op_type == "Cast" and node.is_onnx
    return not (
        cast and not value.is_output and all(u.node.op_type == "Cast" and u.node.is_onnx for u in value.uses)
    )


def _beyond(value: Value) -> bool:
    array = value.constant()
    if array is None or array.dtype != np.float64:
        return False
    return bool((np.isfinite(array) & (np.abs(array) > _LIMIT)).any())


internal_float64.examples = [
    Flagged(
        "computed in float64",
        "g (float[2] x) => (float[2] y) { a = Cast<to = DOUBLE>(x)  b = Sqrt(a)  y = Cast<to = FLOAT>(b) }",
    ),
    Flagged(
        "a weight outside the range of float32",
        """g (float[2] x) => (float[2] y) <double[1] k = {1e300}> {
            a = Cast<to = DOUBLE>(x)  b = Min(a, k)  y = Cast<to = FLOAT>(b) }""",
        differs={"branch": "one finding for each graph"},
    ),
    Flagged(
        "a Constant",
        """g (float[2] x) => (float[2] y) { k = Constant<value = double[2] {0.1, 0.2}>()
            a = Cast<to = DOUBLE>(x)  b = Add(a, k)  y = Cast<to = FLOAT>(b) }""",
    ),
    Silent("no float64", "g (float[2] x) => (float[2] y) { y = Sqrt(x) }"),
    Silent(
        "inputs and outputs, which IFC002 reports",
        "g (double[2] x) => (double[2] y) { y = Neg(x) }",
        differs={"branch": "the output of a branch is an inner value"},
    ),
    Silent(
        "a cast to float64 and directly back, exact in float32 too",
        "g (float[2] x) => (float[2] y) { a = Cast<to = DOUBLE>(x)  y = Cast<to = FLOAT>(a) }",
    ),
    Silent("an unused weight", "g (float[2] x) => (float[2] y) <double[1] k = {1}> { y = Neg(x) }"),
]
