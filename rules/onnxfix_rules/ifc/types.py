"""Types at the interface: of subgraphs, of outputs, and types that TensorRT does not support."""
# Long because: six rules, with an example of each type.

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
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
    Target,
    Value,
    elem_types,
    imported,
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


@rule(
    "IFC002",
    per="model",
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
    Silent("other types", "g (float[2] x) => (float16[2] y) { y = Cast<to = FLOAT16>(x) }"),
]


_LIMIT = float(np.finfo(np.float32).max)


@rule("IFC003", per="scope", hazards=[46], types=[TensorProto.DOUBLE])
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
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
_NESTED = {"sequence_type": "a sequence", "optional_type": "an optional"}


def _missing(value: Value, model: Model, target: Target) -> str:
    """The value's type if the target does not support it; "" if it does or the type is unknown."""
    elem = model.shapes.elem_type(value)
    if (
        elem == TensorProto.INT8
        and not target.int64
        and not imported(model).of(lambda one: one[1] in _QUANTIZERS)
    ):
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
        "an initializer that is not an input",
        "g (float[2] x) => (float[2] y) <uint16[2] w = {1, 2}> { a = Cast<to = FLOAT>(w)  y = Add(x, a) }",
    ),
    Silent(
        "a wrong declared output type, which TensorRT ignores",
        "g (float[2] x) => (uint16[2] y) { y = Neg(x) }",
        runs=False,
    ),
]
