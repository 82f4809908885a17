"""INT001: shape arithmetic whose result is known before the engine is built."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import (
    Draft,
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    is_integer,
    name_of,
    rule,
    shared,
)

from ._common import Refused, shape_severity, sums, text_of
from ._known import Known


@rule("INT001", per="model", safety=Safety.EXACT, hazards=[34, 56])
def int64_zero_weight_layers(model: Model) -> Iterator[Match]:
    """Integer nodes without weights that compute a shape known before the engine is built.

    ## Why it matters
    Exporters write shape arithmetic into the graph: Shape, Gather, Unsqueeze, Concat, Cast, Mul, Floor and so on,
    int64 layers without weights (NVIDIA/TensorRT #3609 found them by `polygraphy inspect`). If the shape is static
    their result is a constant, but the parser sees nodes.

    - A reduction over such axes is refused: `Axis input must resolve to a build-time constant`, measured with
      TensorRT-RTX 1.7.1 for a Range, an Add, a Concat and an Unsqueeze of constants, and for a Shape; a Cast or an
      Identity of a constant is accepted, and Unsqueeze, Squeeze, OneHot, TopK and Split accept all of these. Before
      TensorRT 10 more operators require a weight: `inputs.at(0) must be an initializer` (onnx-tensorrt's FAQ).
    - So is a constant of an unsupported type, such as uint16, even if only a Cast reads it.
    - TensorRT 8 moves them between host and device and fails: `ShapeHostToDeviceCopy requires bool I/O but node can
      not be handled by Myelin` (NVIDIA/TensorRT #1698, #3596).
    - Today's builder folds them itself: measured with TensorRT-RTX 1.7.1, 9 layers became 1, 13 became 2 and 25
      became 13, and the engines had the same size within 16 bytes. There the benefit is a graph that parses and is
      readable.

    An error if TensorRT is known to refuse it, else information for a TensorRT that computes int64 and a warning for
    TensorRT 8.

    ## Fix
    The last known values with other readers become constants; nodes that only computed them are removed. Exact: a
    value is known if it follows from constants, from the static dimensions of graph inputs (including `start` and
    `end` of Shape), or by symbolic arithmetic for every size of the dynamic dimensions. Integers, booleans, and
    floats that come from integers are evaluated in their own type, so 5 * 1.5 is 7.5 until it is cast. If such a
    float is a factor of a MatMul, Conv or the like, ONNX Runtime may sum in another order once it is a constant: that
    requires `--numeric-fixes`.

    Not covered: declared shapes of internal values (they may be wrong), initializers that may be overridden, random
    and quantizing operators, division by zero and casts out of range, results over 4 KiB or much larger than what
    they replace, arithmetic on float weights, and values that only a graph or branch output uses.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues/3609
    - https://github.com/NVIDIA/TensorRT/issues/1698 and https://github.com/NVIDIA/TensorRT/issues/3596
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/faq.md
    """
    known = shared(model, Known)
    refused = Refused(model, known.folds)
    for group in known.frontiers():
        yield _match(model, known, group, refused.why(group))


def _match(model: Model, known: Known, group: list[Value], refused: str) -> Match:
    edits: list[Edit] = []
    drafts: dict[Node, Draft] = {}
    for value in group:
        array = known.array(value)
        assert array is not None
        assert value.producer is not None
        draft = drafts.setdefault(value.producer, Draft(value.producer))
        constant = draft.constant(array)
        # Known readers are removed once nothing reads them; those that stay keep their inputs.
        for use in value.uses:
            if not known.folds(use.node):
                draft.set_input(use.node, use.index, constant)
    for draft in drafts.values():
        edits.extend(draft.edits)
    first = group[0]
    assert first.producer is not None
    title = "replace by a constant" if len(group) == 1 else f"replace by {len(group)} constants"
    exact = not any(_summed(known, value) for value in group)
    return Match(
        _message(known, group) + refused,
        node=first.producer,
        fix=Fix(title, edits, Safety.EXACT if exact else Safety.NUMERIC),
        severity=Severity.ERROR if refused else shape_severity(model),
        reads=tuple(value.producer for value in group if value.producer is not None),
    )


def _summed(known: Known, value: Value) -> bool:
    """Whether a float is a factor of sums whose order may depend on whether it is constant."""
    elem = value.scope.model.shapes.elem_type(value)
    readers = (use.node for use in value.uses)
    return not is_integer(elem or 0) and any(sums(node) for node in readers if not known.folds(node))


def _message(known: Known, group: list[Value]) -> str:
    first = group[0]
    array = known.array(first)
    assert array is not None
    assert first.producer is not None
    elem = first.scope.model.shapes.elem_type(first)
    text = f"{first.producer.op_type} computes the {name_of(elem or 0)} {text_of(array)} in the graph"
    if len(group) > 1:
        text += f", and {len(group) - 1} more known values with the same readers"
    return text + ", although it is known before the engine is built"


int64_zero_weight_layers.examples = [
    Fixed(
        "a Reshape's shape computed from a static shape",
        before="""g (float[2,3,4] x) => (float[2,12] y) <int64[1] i = {0}, int64[1] m = {-1}> {
            s = Shape(x)  b = Gather(s, i)  t = Concat<axis = 0>(b, m)  y = Reshape(x, t) }""",
        after="g (float[2,3,4] x) => (float[2,12] y) <int64[2] t = {2, -1}> { y = Reshape(x, t) }",
    ),
    Fixed(
        "one static dimension of a dynamic shape",
        before="""g (float[N,6] x) => (float[M,3] y) <int64[1] one = {1}, int64[1] two = {2}, int64[1] m = {-1}> {
            s = Shape(x)  c = Gather(s, one)  q = Div(c, two)  t = Concat<axis = 0>(m, q)  y = Reshape(x, t) }""",
        after="g (float[N,6] x) => (float[M,3] y) <int64[2] t = {-1, 3}> { y = Reshape(x, t) }",
    ),
    Fixed(
        "a float factor of a product",
        before="""g (float[N,3] x) => (float[N,1] y) <float c = {0.5}, int64[2] t = {3, 1}> {
            s = Shape<start = 1>(x)  f = Cast<to = FLOAT>(s)  p = Mul(f, c)  w = Expand(p, t)  y = MatMul(x, w) }""",
        after="g (float[N,3] x) => (float[N,1] y) <float[3,1] w = {1.5, 1.5, 1.5}> { y = MatMul(x, w) }",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "a float factor, without --numeric-fixes",
        """g (float[N,3] x) => (float[N,1] y) <float c = {0.5}, int64[2] t = {3, 1}> {
            s = Shape<start = 1>(x)  f = Cast<to = FLOAT>(s)  p = Mul(f, c)  w = Expand(p, t)  y = MatMul(x, w) }""",
    ),
    Fixed(
        "the known part of an otherwise dynamic shape",
        before="""g (float[N,6] x, float[1,1] z) => (float[N,6] y) {
            n = Shape<end = 1>(x)  c = Shape<start = 1>(x)  t = Concat<axis = 0>(n, c)  y = Expand(z, t) }""",
        after="""g (float[N,6] x, float[1,1] z) => (float[N,6] y) <int64[1] c = {6}> {
            n = Shape<end = 1>(x)  t = Concat<axis = 0>(n, c)  y = Expand(z, t) }""",
    ),
    Fixed(
        "Shape with start and end",
        before="""g (float[2,3,4,5] x, float z) => (float[3,4] y) {
            s = Shape<start = 1, end = -1>(x)  y = Expand(z, s) }""",
        after="g (float[2,3,4,5] x, float z) => (float[3,4] y) <int64[2] s = {3, 4}> { y = Expand(z, s) }",
    ),
    Fixed(
        "Size: a scalar stays a scalar",
        before="g (float[2,3] x, int64[K] k) => (int64[K] y) { s = Size(x)  y = Add(k, s) }",
        after="g (float[2,3] x, int64[K] k) => (int64[K] y) <int64 s = {6}> { y = Add(k, s) }",
    ),
    Fixed(
        "float shape arithmetic: a size times 1.5 is not truncated in between, and value_float is a float32",
        before="""g (float[1,3,5,8] x) => (float[1,3,7,12] y) <float[4] k = {1, 1, 1.5, 1.5}> {
            one = Constant<value_float = 1.0>()  s = Shape(x)  f = Cast<to = FLOAT>(s)  g = Mul(f, k)  h = Mul(g, one)
            i = Cast<to = INT64>(h)  y = Resize<mode = "nearest">(x, , , i) }""",
        after="""g (float[1,3,5,8] x) => (float[1,3,7,12] y) <int64[4] i = {1, 3, 7, 12}> {
            y = Resize<mode = "nearest">(x, , , i) }""",
    ),
    Fixed(
        "a scale computed from a static size stays a float32",
        before="""g (float[N,16] x) => (float[N,16] y) <int64 i = {1}> {
            s = Shape(x)  d = Gather(s, i)  f = Cast<to = FLOAT>(d)  r = Sqrt(f)  y = Div(x, r) }""",
        after="g (float[N,16] x) => (float[N,16] y) <float r = {4}> { y = Div(x, r) }",
    ),
    Fixed(
        "int32 and bool; division rounds towards zero",
        before="""g (int32[N] x) => (int32[N] y) <int32 a = {-7}, int32 b = {2}, int32 c = {0}> {
            q = Div(a, b)  l = Less(q, c)  w = Where(l, q, b)  y = Add(x, w) }""",
        after="g (int32[N] x) => (int32[N] y) <int32 w = {-3}> { y = Add(x, w) }",
    ),
    Fixed(
        "several known inputs of one node are replaced together",
        before="""g (float[N,4] x, float[2,2] z) => (float[N,2] y) <int64[1] one = {1}, int64[1] two = {2}> {
            a = Shape<start = 1>(z)  b = Mul(a, two)  c = Sub(two, one)  y = Slice(x, a, b, c) }""",
        after="""g (float[N,4] x, float[2,2] z) => (float[N,2] y)
                <int64[1] a = {2}, int64[1] b = {4}, int64[1] c = {1}> {
            y = Slice(x, a, b, c) }""",
    ),
    Fixed(
        "operators of opset 11, with axes as attributes",
        before="""g (float[2,3] x) => (float[1,2,3] y) <int64 i = {0}, int64 j = {1}, int64[1] one = {1}> {
            s = Shape(x)  a = Gather(s, i)  b = Gather(s, j)  c = Unsqueeze<axes = [0]>(a)
            d = Unsqueeze<axes = [0]>(b)  t = Concat<axis = 0>(one, c, d)  y = Reshape(x, t) }""",
        after="g (float[2,3] x) => (float[1,2,3] y) <int64[3] t = {1, 2, 3}> { y = Reshape(x, t) }",
        opset=11,
    ),
    Fixed(
        "before IR version 4 the constant is a node: an initializer would have to be a graph input",
        before="""g (float[2,3] x, float[6] z) => (float[3,2] y) {
            i = Constant<value = int64[2] {1, 0}>()  s = Shape(x)  t = Gather(s, i)  y = Reshape(z, t) }""",
        after="""g (float[2,3] x, float[6] z) => (float[3,2] y) {
            t = Constant<value = int64[2] {3, 2}>()  y = Reshape(z, t) }""",
        opset=8,
        ir_version=3,
    ),
    Fixed(
        "the value is also a graph output: its producers stay, its reader gets the constant",
        before="""g (float[2,3] x) => (float[3,2] y, int64[2] t) <int64[2] i = {1, 0}> {
            s = Shape(x)  t = Gather(s, i)  y = Reshape(x, t) }""",
        after="""g (float[2,3] x) => (float[3,2] y, int64[2] t) <int64[2] i = {1, 0}, int64[2] c = {3, 2}> {
            s = Shape(x)  t = Gather(s, i)  y = Reshape(x, c) }""",
    ),
    Fixed(
        "the trip count of a Loop",
        before="""g (float[4,3] x, float[3] a) => (float[3] y) <int64 i = {0}> {
            s = Shape(x)  n = Gather(s, i)
            y = Loop(n, , a) <body = b (int64 k, bool c, float[3] p) => (bool d, float[3] q) {
                d = Identity(c)  q = Add(p, p) }> }""",
        after="""g (float[4,3] x, float[3] a) => (float[3] y) <int64 n = {4}> {
            y = Loop(n, , a) <body = b (int64 k, bool c, float[3] p) => (bool d, float[3] q) {
                d = Identity(c)  q = Add(p, p) }> }""",
    ),
    Fixed(
        "an empty tensor's shape",
        before="g (float[0,3] x, float z) => (float[0,3] y) { s = Shape(x)  y = Expand(z, s) }",
        after="g (float[0,3] x, float z) => (float[0,3] y) <int64[2] s = {0, 3}> { y = Expand(z, s) }",
    ),
    Silent(
        "a dynamic dimension is not known",
        """g (float[N,C] x, float z) => (float[M] y) <int64[1] i = {0}, float k = {1.5}> {
            s = Shape(x)  a = Gather(s, i)  f = Cast<to = FLOAT>(a)  h = Mul(f, k)  t = Cast<to = INT64>(h)
            y = Expand(z, t) }""",
    ),
    Silent(
        "a declared internal shape may be wrong: only the dimensions of inputs are trusted",
        """g (float[N,3] x, float z) => (float[M,3] y) <float[9,3] h> {
            h = Relu(x)  s = Shape<end = 1>(h)  t = Concat<axis = 0>(s, s)  y = Expand(z, t) }""",
    ),
    Fixed(
        "half precision rounds after each operator, except in ONNX Runtime",
        before="""g (float[5,3] x, float z) => (float[M] y) <int64[1] i = {0}, float[1] c = {0.1}> {
            k = Cast<to = 10>(c)  s = Shape(x)  a = Gather(s, i)  f = Cast<to = 10>(a)  h = Mul(f, k)  g2 = Mul(h, f)
            b = Cast<to = INT64>(g2)  t = Add(b, b)  y = Expand(z, t) }""",
        after="""g (float[5,3] x, float z) => (float[M] y) <int64[1] a = {5}, float[1] c = {0.1}> {
            k = Cast<to = FLOAT16>(c)  f = Cast<to = FLOAT16>(a)  h = Mul(f, k)  g2 = Mul(h, f)
            b = Cast<to = INT64>(g2)  t = Add(b, b)  y = Expand(z, t) }""",
    ),
    Fixed(
        "ONNX Runtime interprets the largest integer as 'to the front' if a Slice steps backwards; ONNX "
        "does not",
        before="""g (float[5,3] x, int64[N] k) => (int64[M] y)
                <int64[1] b = {0}, int64[1] e = {9223372036854775807}, int64[1] m = {-1}> {
            s = Shape(x)  t = Slice(s, b, e, b, m)  y = Concat<axis = 0>(k, t) }""",
        after="""g (float[5,3] x, int64[N] k) => (int64[M] y) <int64[2] s = {5, 3}, int64[1] b = {0},
                int64[1] e = {9223372036854775807}, int64[1] m = {-1}> {
            t = Slice(s, b, e, b, m)  y = Concat<axis = 0>(k, t) }""",
    ),
    Silent(
        "used by a graph output only",
        "g (float[2,3] x) => (int64[2] y) <int64[2] i = {1, 0}> { s = Shape(x)  y = Gather(s, i) }",
    ),
    Silent(
        "a branch output keeps its producer",
        """g (int64[2] x, bool b) => (int64[2] y) <int64[2] c = {1, 2}> {
            y = If(b) <then_branch = t () => (int64[2] u) { u = Add(c, c) },
                       else_branch = e () => (int64[2] w) { w = Identity(x) }> }""",
    ),
    Silent(
        "an initializer that is a graph input is a default, not a constant",
        """g (float[N,3] x, int64[1] i = {3}) => (float[M,K] y) <int64[1] m = {-1}> {
            t = Concat<axis = 0>(m, i)  y = Reshape(x, t) }""",
    ),
    Silent(
        "random values differ in each run",
        """g (float[N] x) => (float[N] y) {
            r = RandomUniform<shape = [1], low = 1.0, high = 9.0>()  i = Cast<to = INT64>(r)  f = Cast<to = FLOAT>(i)
            y = Add(x, f) }""",
    ),
    Silent(
        "the constant would be much larger than the nodes that compute it",
        """g (int64[N,1000] x) => (int64[N,1000] y) <int64 one = {1}, int64[1] n = {1000}> {
            e = Expand(one, n)  y = Add(x, e) }""",
    ),
    Silent(
        "200 bytes that request 2**38 elements",
        """g (int64[N] x) => (int64[N] y) <int64[1] n = {274877906944}, int64[1] i = {0}> {
            e = ConstantOfShape<value = int64[1] {1}>(n)  f = Gather(e, i)  y = Add(x, f) }""",
    ),
    Silent(
        "quantized constants are covered by the quantization rules",
        """g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}, float s = {0.5}, int8 z = {0}> {
            q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  y = Mul(x, d) }""",
    ),
    Silent(
        "arithmetic on float weights is not shape arithmetic",
        """g (float[N,2] x) => (float[N,2] y) <float[2] w = {4, 9}, float[2] v = {1, 2}> {
            q = Add(w, v)  d = Mul(q, v)  y = Mul(x, d) }""",
    ),
    Silent(
        "an attribute that depends on the function's caller",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[3,2] y) { y = my.Turn<first = 3>(x) }
            <opset_import: ["" : 18], domain: "my"> Turn <first> (a) => (b) {
                u = Constant<value_int: int = @first>()  m = Constant<value = int64[1] {-1}>()
                z = Constant<value = int64[1] {0}>()  w = Unsqueeze(u, z)
                t = Concat<axis = 0>(w, m)  b = Reshape(a, t) }""",
    ),
    Silent(
        "division by zero is undefined",
        "g (int64[N] x) => (int64[N] y) <int64 a = {7}, int64 b = {0}> { q = Div(a, b)  y = Add(x, q) }",
    ),
    Silent(
        "a constant divisor of 0 would be refused even for an empty tensor",
        "g (int64[N] x, int64[0,3] z) => (int64[N] y) { s = Shape<end = 1>(z)  y = Div(x, s) }",
    ),
    Silent(
        "an out-of-range cast depends on the processor",
        """g (int32[N] x) => (int32[N] y) <int64 a = {3000000000}> {
            f = Cast<to = DOUBLE>(a)  q = Cast<to = INT32>(f)  w = Neg(q)  y = Add(x, w) }""",
    ),
    Fixed(
        "axes by Range, which TensorRT does not fold",
        before="""g (float[2,3,4] x) => (float[2] y) <int64 a = {1}, int64 b = {3}, int64 d = {1}> {
            r = Range(a, b, d)  y = ReduceMax<keepdims = 0>(x, r) }""",
        after="g (float[2,3,4] x) => (float[2] y) <int64[2] r = {1, 2}> { y = ReduceMax<keepdims = 0>(x, r) }",
        opset=20,
    ),
    Fixed(
        "torch's expand, which replaces -1",
        before="""g (float[1,3] x) => (float[2,3] y) <int64[2] s = {2, -1}, int64[1] n = {2}, int64 m = {-1}> {
            k = ConstantOfShape<value = int64[1] {1}>(n)  q = Mul(k, m)  e = Equal(s, q)
            w = Where(e, k, s)  y = Expand(x, w) }""",
        after="g (float[1,3] x) => (float[2,3] y) <int64[2] w = {2, 1}> { y = Expand(x, w) }",
    ),
]
