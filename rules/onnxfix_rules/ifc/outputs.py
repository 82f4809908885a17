"""Declared types of subgraphs, and outputs that are boolean, shapes, or without a type."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, TensorProto, helper

from onnxfix.rule import (
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Safety,
    Scope,
    SetValueInfo,
    Severity,
    Silent,
    name_of,
    rule,
    target_of,
)
from onnxfix_rules.gra._common import contradicts


@rule("IFC004", per="scope", hazards=[70])
def wrong_subgraph_type(scope: Scope, model: Model) -> Iterator[Match]:
    """The declared type of a subgraph's input or output, or of a graph input with a default, is wrong.

    ## Why it matters
    TensorRT uses its own inference and gives no warning. Measured with TensorRT-RTX 1.7.1: a branch whose output is
    float and declared float16[7], a loop state declared float16 or with another size, and an input declared [5] with a
    default of 2 elements import and build without a warning. ONNX Runtime refuses a wrong element type (`Type Error`)
    and the default (`Shape of initializer w does not match`). A caller that relies on the declaration passes a buffer
    that does not fit. GRA003 covers intermediate values and the graph's outputs.

    ## Fix
    None: the declarations are the interface of a subgraph. Run type and shape inference again when exporting the model.

    ## References
    - ONNX, "Static tensor shapes": https://onnx.ai/onnx/repo-docs/IR.html
    """
    proto = scope.proto
    if not isinstance(proto, GraphProto):
        return
    if scope is model.main:
        yield from _defaults(scope, proto)
        return
    for info in (*proto.input, *proto.output):
        value = scope.values.get(info.name)
        if value is not None and info.HasField("type") and contradicts(info.type, value, model):
            yield Match(f"the declared type of {info.name!r} is wrong", value=value)


def _defaults(scope: Scope, proto: GraphProto) -> Iterator[Match]:
    """Graph inputs whose declared type contradicts their default, the initializer of the same name."""
    for info in proto.input:
        value = scope.values.get(info.name)
        if value is None or value.initializer is None or not info.type.HasField("tensor_type"):
            continue
        declared, default = info.type.tensor_type, value.initializer
        sizes = [(d.dim_value, d.HasField("dim_value")) for d in declared.shape.dim]
        wrong = declared.elem_type not in (0, default.data_type)
        if declared.HasField("shape"):
            wrong |= len(sizes) != len(default.dims)
            wrong |= any(
                known and size != dim for (size, known), dim in zip(sizes, default.dims, strict=False)
            )
        if wrong:
            yield Match(f"the declared type of input {info.name!r} differs from its default's", value=value)


_IF = """g (float[2] x, bool c) => (float[2] y) { y = If(c)<then_branch = p () => (%s u) { u = Neg(x) },
    else_branch = q () => (float[2] v) { v = Abs(x) }> }"""
_LOOP = """g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x)
    <body = b (int64 i, bool on, %s v) => (bool more, float[2] w) {
        more = Constant<value = bool {1}>()  w = Neg(v) }> }"""
_DEFAULT = "g (float[2] x, %s w) => (float[2] y) <float[2] k = {1, 2}, float[2] w = {1, 2}> { y = Add(x, k) }"


wrong_subgraph_type.examples = [
    Flagged("branch output: wrong element type", _IF % "float16[2]", runs=False),
    Flagged("branch output: wrong size", _IF % "float[7]"),
    Flagged("branch output: wrong rank", _IF % "float[1,2]"),
    Flagged("loop state: wrong element type", _LOOP % "float16[2]", runs=False),
    Flagged("loop state: wrong size", _LOOP % "float[5]"),
    Flagged("input with a default of another size", _DEFAULT % "float[5]", runs=False),
    Flagged("input with a default of another element type", _DEFAULT % "double[2]", runs=False),
    Silent("correct branch output", _IF % "float[2]"),
    Silent("a named dimension does not contradict a size", _IF % "float[K]"),
    Silent("correct loop state", _LOOP % "float[A]"),
    Silent("a default that matches the declaration", _DEFAULT % "float[N]"),
    Silent(
        "outputs of the main graph, which GRA003 reports",
        "g (float[2] x) => (float[3] y) { y = Neg(x) }",
        runs=False,
        differs={"branch": "about the outputs of branches"},
    ),
]


@rule(
    "IFC006",
    per="model",
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
]


@rule(
    "IFC008",
    per="model",
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[70],
    differs={
        "branch": "about the outputs of the main graph",
        "function": "a call's output has its type from inference",
    },
)
def output_without_type(model: Model) -> Iterator[Match]:
    """A graph output is declared without a type.

    ## Why it matters
    The parser converts the declared type of each output before it imports any node, and stops: `Assertion failed:
    convertDtype(output.type().tensor_type().elem_type(), &output_trt_dtype): Failed to convert ONNX date type to
    TensorRT data type.`, measured with TensorRT-RTX 1.7.1. ONNX Runtime infers the type and runs the model; ONNX's
    checker refuses it: `Field 'type' of 'value_info' is required but missing`.

    ## Fix
    Declare the type that the graph computes: the element type, and the shape where the rank is known, with the sizes
    that are known. Exact: no node changes, and a caller sees what ONNX Runtime infers anyway. There is no fix if the
    element type is unknown, as behind operators of other domains.

    ## References
    - https://onnx.ai/onnx/repo-docs/IR.html: graph inputs and outputs require a type
    """
    untyped = [info.name for info in model.proto.graph.output if not info.HasField("type")]
    for name in dict.fromkeys(untyped):
        value = model.main.values.get(name)
        if value is None or value.is_input:
            continue
        elem, shape, fix = model.shapes.elem_type(value), model.shapes.shape(value), None
        if elem:
            dims = None if shape is None else [dim.value for dim in shape]
            info = helper.make_tensor_value_info(name, elem, dims)
            fix = Fix(f"declare {name_of(elem)}", [SetValueInfo(model.main, name, info)])
        yield Match(f"output {name!r} has no declared type", value=value, fix=fix)


output_without_type.examples = [
    Fixed(
        "float",
        before="g (float[2,3] x) => (y) { y = Relu(x) }",
        after="g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }",
    ),
    Fixed(
        "one of two outputs, of dynamic size; integers",
        before="g (float[N,3] x) => (float[N,3] y, i) { y = Neg(x)  i = ArgMax<axis = 1>(y) }",
        after="g (float[N,3] x) => (float[N,3] y, int64[A,1] i) { y = Neg(x)  i = ArgMax<axis = 1>(y) }",
    ),
    Fixed(
        "a boolean of unknown rank",
        before="g (float[N] x, int64[K] s) => (y) { r = Reshape(x, s)  y = IsNaN(r) }",
        after="g (float[N] x, int64[K] s) => (bool[A] y) { r = Reshape(x, s)  y = IsNaN(r) }",
    ),
    Flagged(
        "the result of an operator of another domain",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[2] x) => (y) { y = d.Unknown(x) }""",
        runs=False,
    ),
    Silent("a declared type", "g (float[2,3] x) => (float[A,B] y) { y = Relu(x) }"),
    Silent(
        "an output of a branch, which has its type from inference",
        """g (float[2] x, bool c) => (float[2] y) {
            y = If(c)<then_branch = p () => (u) { u = Neg(x) }, else_branch = q () => (v) { v = Abs(x) }> }""",
    ),
]
