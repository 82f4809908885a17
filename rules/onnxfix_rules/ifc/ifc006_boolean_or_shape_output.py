"""IFC006: boolean and shape outputs, for TensorRT 8."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, rule, target_of


@rule(
    "IFC006",
    per="model",
    severity=Severity.WARNING,
    hazards=[66],
    differs={
        "branch": "about the outputs of the main graph",
        "function": "about the outputs of the main graph",
    },
)
def boolean_or_shape_output(model: Model) -> Iterator[Match]:
    """A graph output is boolean or a shape, and the target is TensorRT 8.

    ## Why it matters
    Users of TensorRT 8 report builds that fail with such outputs, while the same model without them builds:
    `ShapeHostToDeviceCopy requires bool I/O but node can not be handled by Myelin` (NVIDIA/TensorRT #1698, #3596).
    Reported, not measured: TensorRT-RTX 1.7.1 was measured to accept both, and there is no evidence for TensorRT 10 and
    11.

    ## Fix
    None: another type, or one output fewer, would change the interface. Cast booleans to int32 at export, and remove
    shape outputs that the caller knows from its own buffers.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues/1698
    - https://github.com/NVIDIA/TensorRT/issues/3596
    """
    target = target_of(model)
    if target.int64:
        return  # newer than 8
    for value in dict.fromkeys(model.main.outputs):
        node = value.producer
        if node is not None and node.is_onnx and node.op_type in ("Shape", "Size"):
            yield Match(f"output {value.name!r} is a shape: {target.title} may fail to build it", value=value)
        elif node is not None and model.shapes.elem_type(value) == TensorProto.BOOL:
            yield Match(f"output {value.name!r} is boolean: {target.title} may fail to build it", value=value)


boolean_or_shape_output.examples = [
    Flagged(
        "outputs of Equal and Shape",
        "g (float[N] x) => (bool[N] y, int64[1] s) { y = Equal(x, x)  s = Shape(x) }",
        target="trt8.6",
    ),
    Flagged(
        "output of Size",
        "g (float[N] x) => (float[N] y, int64 s) { y = Neg(x)  s = Size(x) }",
        target="trt8.4",
    ),
    Silent(
        "TensorRT 10, without reports of failures",
        "g (float[N] x) => (bool[N] y, int64[1] s) { y = Equal(x, x)  s = Shape(x) }",
        target="trt10",
    ),
    Silent(
        "TensorRT-RTX, measured to accept them",
        "g (float[N] x) => (bool[N] y, int64[1] s) { y = Equal(x, x)  s = Shape(x) }",
        target="rtx",
    ),
    Silent(
        "intermediate booleans and shapes",
        "g (float[N] x) => (float[N] y) <float z = {0}> { c = Less(x, z)  s = Shape(x)  e = Expand(z, s) "
        " y = Where(c, e, x) }",
        target="trt8.6",
    ),
    Silent(
        "boolean input",
        "g (float[N] x, bool[N] c) => (float[N] y) <float z = {0}> { y = Where(c, x, z) }",
        target="trt8.6",
    ),
    Silent(
        "the output of a branch is not an engine output",
        """g (float[2] x, bool k) => (float[2] y) <float z = {0}> {
            c = If(k)<then_branch = p () => (bool[2] u) { u = Less(x, z) },
                      else_branch = q () => (bool[2] v) { v = Equal(x, z) }>
            y = Where(c, x, z) }""",
        target="trt8.6",
    ),
]
