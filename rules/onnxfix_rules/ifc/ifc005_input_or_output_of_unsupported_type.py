"""IFC005: graph inputs and outputs of a type that the target does not support."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import (
    Flagged,
    Match,
    Model,
    Node,
    Severity,
    Silent,
    Target,
    Value,
    imported,
    name_of,
    rule,
    target_of,
)


@rule(
    "IFC005",
    per="model",
    severity=Severity.ERROR,
    hazards=[50],
    differs={
        "branch": "about the outputs of the main graph",
        "function": "about the inputs of the main graph, whose types are known",
    },
)
def input_or_output_of_unsupported_type(model: Model) -> Iterator[Match]:
    """A graph input or output has a type that TensorRT does not support.

    ## Why it matters
    The parser converts the types of all inputs before it imports any node, and stops: `Failed to convert ONNX date type
    to TensorRT data type.` Measured with TensorRT-RTX 1.7.1, also for unused inputs: int16, uint16, uint32, uint64,
    uint4, int2, uint2, the float8 types except float8e4m3fn, strings, complex numbers, sequences and optionals. A
    weight that is also an input fails as a weight: `Failed to import initializer: w`. An output of such a type comes
    from a node that TensorRT refuses: `Unsupported data type for the Cast operator!`

    TensorRT 8.6.1 does not build an int8 input or output without quantization in the graph: `input/output with DataType
    Int8 in network without Q/DQ layers must have dynamic range set when no calibrator is used`.

    The types that a target supports are data with a source, which the message names. TensorRT does not support float64
    either, but silently imports it as float32: see IFC002.

    ## Fix
    None: another type would change the interface. Integers of 16 bits, and unsigned ones whose elements are small
    enough, can be passed as int32; text, sequences and optionals have to be handled outside the engine.

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


_WHICH = "a type that {target.title} does not support (source: {target.source})"
_NESTED = {"sequence_type": "a sequence", "optional_type": "an optional"}


def _is_quantizer(node: Node) -> bool:
    return node.op_type in ("QuantizeLinear", "DequantizeLinear")


def _missing(value: Value, model: Model, target: Target) -> str:
    """The value's type if the target does not support it; "" if it does or the type is unknown."""
    elem = model.shapes.elem_type(value)
    if elem == TensorProto.INT8 and not target.int64 and not any(map(_is_quantizer, imported(model))):
        return "int8 without QuantizeLinear or DequantizeLinear in the graph"
    if elem is not None:
        return "" if not elem or target.has_type(elem) else name_of(elem)
    declared = value.declared
    if declared is None or (value.producer is not None and not value.producer.is_onnx):
        return ""
    return _NESTED.get(declared.WhichOneof("value") or "", "")


input_or_output_of_unsupported_type.examples = [
    Flagged(
        "an int8 input that TensorRT 8.6 cannot scale",
        "g (int8[2] x, int8[2] z) => (int8[2] y) { y = Max(x, z) }",
        target="trt8.6",
    ),
    Flagged("an int16 input", "g (int16[2] x) => (float[2] y) { y = Cast<to = FLOAT>(x) }"),
    Flagged("a uint32 output", "g (float[2] x) => (uint32[2] y) { y = Cast<to = UINT32>(x) }"),
    Flagged(
        "a string input",
        "g (string[2] s, float[2] x) => (string[2] t, float[2] y) { t = Identity(s)  y = Neg(x) }",
    ),
    Flagged("an unused input", "g (float[2] x, uint64[2] u) => (float[2] y) { y = Neg(x) }"),
    Flagged(
        "an input with an initializer",
        """g (float[2] x, uint16[2] w) => (float[2] y) <uint16[2] w = {1, 2}> {
            a = Cast<to = FLOAT>(w)  y = Add(x, a) }""",
    ),
    Flagged(
        "inputs of float8e5m2 and uint4",
        """g (float8e5m2[2] x, uint4[2] u) => (float[2] y, float[2] z) {
            y = Cast<to = FLOAT>(x)  z = Cast<to = FLOAT>(u) }""",
        opset=21,
    ),
    Flagged(
        "complex input and output", "g (complex64[2] x) => (complex64[2] y) { y = Identity(x) }", runs=False
    ),
    Flagged(
        "a sequence input and an optional input",
        """g (seq(float[2]) s, optional(float[2]) o) => (float[2] y, float[2] z) <int64 k = {0}> {
            y = SequenceAt(s, k)  z = OptionalGetElement(o) }""",
    ),
    Flagged("a sequence output", "g (float[2] x) => (seq(float[2]) s) { s = SequenceConstruct(x, x) }"),
    Flagged(
        "bfloat16, which TensorRT 8.6 does not support",
        "g (bfloat16[2] x) => (float[2] y) { y = Cast<to = FLOAT>(x) }",
        target="trt8.6",
    ),
    Silent("uint8 input and output", "g (uint8[2] x) => (uint8[2] y) { y = Identity(x) }"),
    Silent("float64, imported as float32 (IFC002)", "g (double[2] x) => (double[2] y) { y = Neg(x) }"),
    Silent(
        "int8 and float8e4m3fn",
        """g (int8[2] x, float8e4m3fn[2] e) => (int8[2] y, float8e4m3fn[2] z) {
            y = Identity(x)  z = Identity(e) }""",
        opset=21,
    ),
    Silent(
        "bfloat16, which TensorRT 11 supports",
        "g (bfloat16[2] x) => (float[2] y) { y = Cast<to = FLOAT>(x) }",
    ),
    Silent(
        "the output of a branch is not a binding",
        """g (float[2] x, bool c) => (float[2] y) {
            t = If(c)<then_branch = p () => (uint16[2] u) { u = Cast<to = UINT16>(x) },
                      else_branch = q () => (uint16[2] v) { w = Abs(x)  v = Cast<to = UINT16>(w) }>
            y = Cast<to = FLOAT>(t) }""",
    ),
    Silent(
        "an initializer that is not an input",
        "g (float[2] x) => (float[2] y) <uint16[2] w = {1, 2}> { a = Cast<to = FLOAT>(w)  y = Add(x, a) }",
    ),
    Silent(
        "a wrong declared output type, which TensorRT ignores",
        "g (float[2] x) => (uint16[2] y) { y = Neg(x) }",
        runs=False,
    ),
]
