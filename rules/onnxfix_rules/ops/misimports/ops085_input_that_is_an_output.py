"""OPS085: a graph input that is also a graph output."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, rule


@rule(
    "OPS085",
    per="model",
    severity=Severity.ERROR,
    hazards=[27],
    differs={"branch": "about inputs that the main graph returns"},
)
def input_that_is_an_output(model: Model) -> Iterator[Match]:
    """A graph input that is also an output of the graph: TensorRT renames the network's input.

    ## Why it matters
    Two tensors of a network cannot share a name, and the output keeps it: the input `x` becomes `__x`. A caller who
    binds the input by the model's name finds an output there. Measured with TensorRT-RTX 1.7.1, for every type, for
    used and unused inputs. There is no warning, and the engine builds. Where the name `__x` is taken, the input keeps
    its name and the output gets another one (`ONNXTRT_identity_output`).

    ## Fix
    None: in ONNX the two are one value, and either name is part of the model's interface. Drop the output, since the
    caller already has its value; give it its own name after an Identity; or bind the input as `__x`.

    ## References
    - onnx/onnx-tensorrt: `ONNXTRT_identity`, the layer that the parser inserts between such an input and its output
    """
    inputs = {value.name for value in model.main.inputs}
    for value in model.main.inputs:
        if not value.is_output or value.initializer is not None or value.sparse:
            continue
        other = f"__{value.name}"
        renamed = "its output" if other in inputs else f"the network's input, to {other!r}"
        yield Match(
            f"the graph input {value.name!r} is also an output: TensorRT renames {renamed}", value=value
        )


input_that_is_an_output.examples = [
    Flagged(
        "passed through, next to another output",
        "g (float[2] x, float[2] z) => (float[2] y, float[2] x) { y = Add(x, z) }",
    ),
    Flagged("no node reads it", "g (float[N] x, int64[2] n) => (float[N] y, int64[2] n) { y = Neg(x) }"),
    Flagged(
        "the condition of an If",
        """g (float[2] x, bool c) => (float[2] y, bool c) {
            y = If(c)<then_branch = p () => (float[2] u) { u = Abs(x) },
                      else_branch = q () => (float[2] v) { v = Neg(x) }> }""",
    ),
    Flagged(
        "the condition of a Loop",
        """g (float[2] x, bool c, int64 n) => (float[2] y, bool c) {
            y = Loop(n, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                more = Identity(on)  w = Neg(v) }> }""",
    ),
    Flagged(
        "another input has the name that TensorRT gives",
        "g (float[2] x, float[2] __x) => (float[2] y, float[2] x) { y = Add(x, __x) }",
    ),
    Silent(
        "an Identity between them",
        "g (float[2] x) => (float[2] y, float[2] k) { k = Identity(x)  y = Neg(x) }",
    ),
    Silent(
        "an initializer that is an output",
        "g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add(x, w) }",
    ),
    Silent(
        "an input with a default, which TensorRT treats as a constant",
        "g (float[2] x, float[2] w) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add(x, w) }",
    ),
    Silent(
        "a branch that returns an input, and a body that passes one through",
        """g (float[2] x, bool c, int64 n) => (float[2] y) {
            a = If(c)<then_branch = p () => (float[2] u) { u = Identity(x) },
                      else_branch = q () => (float[2] v) { v = Neg(x) }>
            y = Loop(n, , a)<body = b (int64 i, bool on, float[2] v) => (bool on, float[2] w) { w = Neg(v) }> }""",
        runs=False,
    ),
    Silent(
        "a local function that returns its input",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2] x) => (float[2] y, float[2] k) { y, k = my.F(x) }
            <domain: "my", opset_import: ["" : 18]> F (a) => (b, d) { b = Neg(a)  d = Identity(a) }""",
    ),
]
