"""IFC001: graph inputs whose shape is not declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import ModelProto

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, rule


@rule("IFC001", per="model", severity=Severity.ERROR, hazards=[48])
def input_without_shape(model: Model) -> Iterator[Match]:
    """A graph input has no declared shape, not even a rank.

    ## Why it matters
    TensorRT imports it as a scalar. Measured with TensorRT-RTX 1.7.1: a float input without shape becomes a network
    input of shape `()`, the shapes of all later layers are inferred from that, and the engine builds without an error
    or a warning. It then accepts one number where the model accepts a tensor. A named or unknown dimension is
    different: it is dynamic, and needs an optimization profile. ONNX Runtime's TensorRT provider refuses such a model
    instead: `TensorRT input: X has no shape specified. Please run shape inference`.

    ## Fix
    None: the rank is not known, and a guess would change the model. Declare the shape at export; give dynamic
    dimensions a name.

    ## References
    - https://github.com/microsoft/onnxruntime/issues/10443
    - https://github.com/microsoft/onnxruntime/issues/14849
    """
    for value in model.main.inputs:
        declared = value.declared
        if value.initializer is not None or value.sparse or declared is None:
            continue
        if declared.WhichOneof("value") == "tensor_type" and not declared.tensor_type.HasField("shape"):
            yield Match(
                f"input {value.name!r} has no shape: TensorRT imports it as a scalar",
                value=value,
            )


_HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'


def _without_shape(text: str, name: str) -> Callable[[], ModelProto]:
    """The model without the shape of input ``name``, which the text format cannot express."""

    def build() -> ModelProto:
        model = onnx.parser.parse_model(_HEADER + text)
        for info in model.graph.input:
            if info.name == name:
                info.type.tensor_type.ClearField("shape")
        return model

    return build


_ONE = "g (float[2] x, float[2] z) => (float[2] y) { y = Add(x, z) }"


def _with_size_of_minus_one() -> ModelProto:
    model = onnx.parser.parse_model(_HEADER + "g (float[2] x) => (float[N] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    return model


def _body_without_shapes() -> ModelProto:
    model = onnx.parser.parse_model(
        _HEADER
        + """g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x)
        <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
            more = Constant<value = bool {1}>()  w = Neg(v) }> }"""
    )
    for info in model.graph.node[0].attribute[0].g.input:
        info.type.tensor_type.ClearField("shape")
    return model


input_without_shape.examples = [
    Flagged("one of two inputs", _without_shape(_ONE, "z")),
    Flagged(
        "an unused input", _without_shape("g (float[2] x, float[2] z) => (float[2] y) { y = Neg(x) }", "z")
    ),
    Flagged(
        "read by a branch only",
        _without_shape(
            """g (float[2] x, float[2] z, bool c) => (float[2] y) {
            y = If(c)<then_branch = p () => (float[2] u) { u = Neg(z) },
                      else_branch = q () => (float[2] v) { v = Abs(x) }> }""",
            "z",
        ),
    ),
    Silent("a scalar has a shape, with no dimensions", "g (float x) => (float y) { y = Neg(x) }"),
    Silent("dynamic dimensions", "g (float[N,M] x) => (float[N,M] y) { y = Neg(x) }"),
    Silent(
        "an input with an initializer, which has a shape",
        _without_shape(
            "g (float[2] x, float[2] z) => (float[2] y) <float[2] z = {1, 2}> { y = Add(x, z) }", "z"
        ),
    ),
    Silent("inputs of a loop body need no shape", lambda: _body_without_shapes(), runs=False),
    Silent(
        "a sequence has no shape",
        "g (seq(float[2]) s, float[2] x) => (float[2] y) { y = Neg(x) }",
        runs=False,
    ),
    Silent("a size of -1 counts as dynamic", lambda: _with_size_of_minus_one()),
]
