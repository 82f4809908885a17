"""IFC005: graph inputs and outputs of a type that the target has not."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import (
    Flagged,
    Match,
    Model,
    Severity,
    Silent,
    Target,
    Value,
    name_of,
    rule,
    target_of,
)


@rule("IFC005", per="model", severity=Severity.ERROR, hazards=[20])
def input_or_output_of_unsupported_type(model: Model) -> Iterator[Match]:
    """A graph input or output is of a type that TensorRT has no tensors of.

    ## Why it matters
    The parser converts the type of every input before it looks at a node, and stops: `Failed to convert ONNX date type
    to TensorRT data type.` Measured with TensorRT-RTX 1.7.1, for inputs that nothing reads too: int16, uint16, uint32,
    uint64, uint4, int2, uint2, the float8 types but float8e4m3fn, strings, complex numbers, sequences and optionals. A
    weight that is an input as well fails as a weight: `Failed to import initializer: w`. An output of such a type has
    to come from a node that TensorRT refuses: `Unsupported data type for the Cast operator!`

    Which types a target has is data with a source, which the message names. float64 it has not either, and reads it as
    float32 without a warning: that is IFC002.

    ## Fix
    None: another type would be another interface. Integers of 16 bits, and unsigned ones of which no element is too
    large, can come in and go out as int32; text, sequences and optionals are work for the program around the engine.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    for value in model.main.inputs:
        kind = _missing(value, model, target)
        if kind:
            yield Match(f"input {value.name!r} is {kind}, {_WHICH.format(target=target)}", value=value)
    for value in dict.fromkeys(model.main.outputs):
        kind = "" if value.is_input else _missing(value, model, target)
        if kind:
            yield Match(f"output {value.name!r} is {kind}, {_WHICH.format(target=target)}", value=value)


_WHICH = "which {target.title} has no tensors of (source: {target.source})"
_NESTED = {"sequence_type": "a sequence", "optional_type": "an optional"}


def _missing(value: Value, model: Model, target: Target) -> str:
    """What the value is, where the target has no such type; "" where it has, or nobody knows."""
    elem = model.shapes.elem_type(value)
    if elem is not None:
        return "" if not elem or target.has_type(elem) else name_of(elem)
    declared = value.declared
    if declared is None or (value.producer is not None and not value.producer.is_onnx):
        return ""
    return _NESTED.get(declared.WhichOneof("value") or "", "")


input_or_output_of_unsupported_type.examples = [
    Flagged("an input of int16", "g (int16[2] x) => (float[2] y) { y = Cast<to = 1>(x) }"),
    Flagged("an output of uint32", "g (float[2] x) => (uint32[2] y) { y = Cast<to = 12>(x) }"),
    Flagged(
        "strings come in",
        "g (string[2] s, float[2] x) => (string[2] t, float[2] y) { t = Identity(s)  y = Neg(x) }",
    ),
    Flagged("an input that nothing reads", "g (float[2] x, uint64[2] u) => (float[2] y) { y = Neg(x) }"),
    Flagged(
        "a weight among the inputs",
        """g (float[2] x, uint16[2] w) => (float[2] y) <uint16[2] w = {1, 2}> {
            a = Cast<to = 1>(w)  y = Add(x, a) }""",
    ),
    Flagged(
        "the other float8, packed integers of 4 bits without a sign",
        """g (float8e5m2[2] x, uint4[2] u) => (float[2] y, float[2] z) {
            y = Cast<to = 1>(x)  z = Cast<to = 1>(u) }""",
        opset=21,
    ),
    Flagged("complex numbers", "g (complex64[2] x) => (complex64[2] y) { y = Identity(x) }", runs=False),
    Flagged(
        "a sequence and an optional come in",
        """g (seq(float[2]) s, optional(float[2]) o) => (float[2] y, float[2] z) <int64 k = {0}> {
            y = SequenceAt(s, k)  z = OptionalGetElement(o) }""",
    ),
    Flagged("a sequence goes out", "g (float[2] x) => (seq(float[2]) s) { s = SequenceConstruct(x, x) }"),
    Flagged(
        "TensorRT 8.6 has no bfloat16",
        "g (bfloat16[2] x) => (float[2] y) { y = Cast<to = 1>(x) }",
        target="trt8.6",
    ),
    Silent("uint8 may come in and go out", "g (uint8[2] x) => (uint8[2] y) { y = Identity(x) }"),
    Silent(
        "float64 is read as float32, which IFC002 reports", "g (double[2] x) => (double[2] y) { y = Neg(x) }"
    ),
    Silent(
        "types that a quantized tensor has",
        """g (int8[2] x, float8e4m3fn[2] e) => (int8[2] y, float8e4m3fn[2] z) {
            y = Identity(x)  z = Identity(e) }""",
        opset=21,
    ),
    Silent("bfloat16, which TensorRT 11 has", "g (bfloat16[2] x) => (float[2] y) { y = Cast<to = 1>(x) }"),
    Silent(
        "a branch's output is no binding",
        """g (float[2] x, bool c) => (float[2] y) {
            t = If(c)<then_branch = p () => (uint16[2] u) { u = Cast<to = 4>(x) },
                      else_branch = q () => (uint16[2] v) { w = Abs(x)  v = Cast<to = 4>(w) }>
            y = Cast<to = 1>(t) }""",
    ),
    Silent(
        "what a weight is, where it is not an input as well, is no binding",
        "g (float[2] x) => (float[2] y) <uint16[2] w = {1, 2}> { a = Cast<to = 1>(w)  y = Add(x, a) }",
    ),
    Silent(
        "the declared type of an output may be a lie, and TensorRT takes no notice of it",
        "g (float[2] x) => (uint16[2] y) { y = Neg(x) }",
        runs=False,
    ),
]
