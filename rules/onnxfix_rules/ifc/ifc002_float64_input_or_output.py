"""IFC002: float64 inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, Value, rule


@rule(
    "IFC002",
    per="model",
    severity=Severity.WARNING,
    hazards=[46],
    types=[TensorProto.DOUBLE],
    differs={
        "branch": "about the outputs of the main graph",
        "function": "about the inputs of the main graph, whose types are known",
    },
)
def float64_input_or_output(model: Model) -> Iterator[Match]:
    """A graph input or output is float64: TensorRT's binding is float32.

    ## Why it matters
    TensorRT has no float64 and imports every such tensor as float32, bindings included, without a warning. Measured
    with TensorRT-RTX 1.7.1: `double[2] x` and its negation become a network whose input and output are FLOAT, and it
    builds. A caller that uses the model's types passes twice the bytes, of which TensorRT interprets the first half as
    float32, and interprets the results as the wrong type.

    ## Fix
    None: another type would change the interface. Export the model with float32 inputs and outputs, or pass and read
    float32 where the model declares float64.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md: "There is limited support for DOUBLE type.
      TensorRT will attempt to cast DOUBLE down to FLOAT"
    """
    for value in model.main.inputs:
        if value.initializer is None and not value.sparse and _is_double(value, model):
            yield Match(f"float64 input {value.name!r} becomes a float32 binding", value=value)
    for value in dict.fromkeys(model.main.outputs):
        if _is_double(value, model):
            yield Match(f"float64 output {value.name!r} becomes a float32 binding", value=value)


def _is_double(value: Value, model: Model) -> bool:
    return model.shapes.elem_type(value) == TensorProto.DOUBLE


float64_input_or_output.examples = [
    Flagged("an input", "g (double[2] x) => (float[2] y) { y = Cast<to = FLOAT>(x) }"),
    Flagged("an output", "g (float[2] x) => (double[2] y) { y = Cast<to = DOUBLE>(x) }"),
    Flagged("both", "g (double[N] x) => (double[N] y) { y = Neg(x) }", target="trt8.6"),
    Silent(
        "float64 inside only",
        "g (float[2] x) => (float[2] y) { a = Cast<to = DOUBLE>(x)  b = Sqrt(a)  y = Cast<to = FLOAT>(b) }",
    ),
    Silent(
        "an input with an initializer is not a binding",
        """g (float[2] x, double[2] k) => (float[2] y) <double[2] k = {1, 2}> {
            c = Cast<to = FLOAT>(k)  y = Add(x, c) }""",
    ),
    Silent(
        "outputs of a branch are not bindings",
        """g (float[2] x, bool c) => (float[2] y) {
            t = If(c)<then_branch = p () => (double[2] u) { u = Cast<to = DOUBLE>(x) },
                      else_branch = q () => (double[2] v) { w = Cast<to = DOUBLE>(x)  v = Neg(w) }>
            y = Cast<to = FLOAT>(t) }""",
    ),
    Silent("other types", "g (float[2] x) => (float16[2] y) { y = Cast<to = FLOAT16>(x) }"),
]
