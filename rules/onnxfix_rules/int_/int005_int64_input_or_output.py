"""INT005: int64 inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, Value, rule


@rule(
    "INT005",
    per="model",
    severity=Severity.INFO,
    hazards=[33],
    differs={
        "branch": "about the outputs of the main graph",
        "function": "about the inputs of the main graph, whose types are known",
    },
)
def int64_input_or_output(model: Model) -> Iterator[Match]:
    """An int64 graph input or output.

    ## Why it matters
    TensorRT's bindings have the model's types: if a caller passes int32 to an int64 binding, TensorRT reads half as
    many values, each made of two. TensorRT-RTX 1.7.1 warns when it parses the model: `Make sure input x has Int64
    binding.` Engines of TensorRT 8 have INT32 bindings for the same model, which changed with 9.0 (breaking change in
    the changelog of 9.0 EA): code must change its buffers when it moves from one to the other.

    Information for a TensorRT that computes int64, a warning for TensorRT 8.

    ## Fix
    None: another type would be another interface. If int32 is wanted, export the model with int32 inputs.

    ## References
    - https://github.com/NVIDIA/TensorRT/blob/main/CHANGELOG.md
    """
    old = model.target is not None and not model.target.int64
    for value in model.main.inputs:
        if value.initializer is None and not value.sparse and _is_int64(value, model):
            yield _match("input", value, old)
    for value in dict.fromkeys(model.main.outputs):
        if _is_int64(value, model):
            yield _match("output", value, old)


def _is_int64(value: Value, model: Model) -> bool:
    return model.shapes.elem_type(value) == TensorProto.INT64


def _match(kind: str, value: Value, old: bool) -> Match:
    if old:
        return Match(
            f"int64 {kind} {value.name} becomes an int32 binding in TensorRT 8 and an int64 one from 9.0 "
            "on: use the type that the engine reports",
            value=value,
            severity=Severity.WARNING,
        )
    return Match(f"int64 {kind} {value.name} is an int64 binding: 8 bytes per element, not 4", value=value)


int64_input_or_output.examples = [
    Flagged("an int64 input", "g (int64[N] x) => (float[N] y) { y = Cast<to = FLOAT>(x) }"),
    Flagged("an int64 output", "g (float[N] x) => (int64[M] y) { s = Shape(x)  y = Neg(s) }"),
    Flagged(
        "TensorRT 8 makes int32 bindings",
        "g (int64[N] x) => (int64[N] y) { y = Neg(x) }",
        target="trt8.6",
    ),
    Silent("other types", "g (int32[N] x) => (float[N] y) { y = Cast<to = FLOAT>(x) }"),
    Silent(
        "internal int64",
        "g (int32[N] x) => (int32[N] y) { a = Cast<to = INT64>(x)  b = Neg(a)  y = Cast<to = INT32>(b) }",
    ),
    Silent(
        "an initializer among the inputs is a weight, not a binding",
        """g (int32[N] x, int64[1] k = {2}) => (int32[N] y) { c = Cast<to = INT32>(k)  y = Add(x, c) }""",
    ),
    Silent(
        "outputs of a branch are not bindings",
        """g (float[N] x, bool b) => (float[M] y) {
            s = If(b) <then_branch = p () => (int64[1] u) { u = Shape(x) },
                       else_branch = q () => (int64[1] w) { v = Shape(x)  w = Neg(v) }>
            y = Cast<to = FLOAT>(s) }""",
    ),
]
