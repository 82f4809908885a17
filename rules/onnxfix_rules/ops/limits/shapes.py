"""Shapes that TensorRT does not follow."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import (
    Draft,
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
    imported,
    name_of,
    rule,
    target_of,
)
from onnxfix.targets.documented import names


@rule("OPS046", ops=["EyeLike"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[56])
def identity_of_dynamic_shape(node: Node, model: Model) -> Iterator[Match]:
    """An EyeLike of a dynamic shape.

    ## Why it matters
    The parser stops: `Eyelike does not work for dynamically shaped tensors.`, measured with TensorRT-RTX 1.7.1. With a
    static shape it is a constant.

    ## Fix
    Compare row and column indices, computed by Shape and Range, and cast the result. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__EyeLike.html
    """
    data = node.input(0)
    node.require_output()
    shape = None if data is None else model.shapes.shape(data)
    if data is None or shape is None or len(shape) != 2:
        return
    if all(size.value is not None for size in shape):
        return
    kind = node.attr("dtype") or model.shapes.elem_type(data)
    fix = None
    if node.opset >= 11 and kind is not None:
        draft = Draft(node)
        draft.replace_output(node, _compare(draft, data, int(kind), int(node.attr("k", 0))))
        fix = Fix("compare row and column indices", draft.edits)
    yield Match("EyeLike of a dynamic shape, which TensorRT does not have", node=node, fix=fix)


def _compare(draft: Draft, data: Value, kind: int, diagonal: int) -> str:
    zero, one = draft.integers(0, "zero"), draft.integers(1, "one")
    sizes = draft.add("Shape", [data])
    rows = draft.add("Range", [zero, draft.add("Gather", [sizes, zero]), one])
    columns = draft.add("Range", [zero, draft.add("Gather", [sizes, one]), one])
    rows, columns = draft.unsqueeze(rows, [1]), draft.unsqueeze(columns, [0])
    if diagonal:
        rows = draft.add("Add", [rows, draft.integers([[diagonal]], "diagonal")])
    same = draft.add("Equal", [rows, columns])
    return same if kind == TensorProto.BOOL else draft.cast(same, kind)


_RANGES = """s = Shape(x)  a = Gather(s, zero)  b = Gather(s, one)
            r = Range(zero, a, one)  c = Range(zero, b, one)"""
_SCALARS = "int64 zero = {0}, int64 one = {1}, int64[1] v = {1}, int64[1] w = {0}"


identity_of_dynamic_shape.examples = [
    Fixed(
        "the type of its input",
        before="g (float[A,B] x) => (float[A,B] y) { y = EyeLike(x) }",
        after=f"""g (float[A,B] x) => (float[A,B] y) <{_SCALARS}> {{
            {_RANGES}  i = Unsqueeze(r, v)  j = Unsqueeze(c, w)  e = Equal(i, j)  y = Cast<to = FLOAT>(e) }}""",
        opset=13,
    ),
    Fixed(
        "another diagonal and type",
        before="g (float[3,N] x) => (int64[3,N] y) { y = EyeLike<k = -1, dtype = 7>(x) }",
        after=f"""g (float[3,N] x) => (int64[3,N] y) <{_SCALARS}, int64[1,1] k = {{-1}}> {{
            {_RANGES}  i = Unsqueeze(r, v)  m = Add(i, k)  j = Unsqueeze(c, w)  e = Equal(m, j)
            y = Cast<to = INT64>(e) }}""",
    ),
    Fixed(
        "booleans, before opset 13",
        before="g (float[A,B] x) => (bool[A,B] z) { y = EyeLike<dtype = 9>(x)  z = Not(y) }",
        after="""g (float[A,B] x) => (bool[A,B] z) <int64 zero = {0}, int64 one = {1}> {
            s = Shape(x)  a = Gather(s, zero)  b = Gather(s, one)  r = Range(zero, a, one)  c = Range(zero, b, one)
            i = Unsqueeze<axes = [1]>(r)  j = Unsqueeze<axes = [0]>(c)  y = Equal(i, j)  z = Not(y) }""",
        opset=11,
    ),
    Flagged(
        "before opset 11 there is no Range", "g (float[A,B] x) => (float[A,B] y) { y = EyeLike(x) }", opset=9
    ),
    Silent("a static shape", "g (float[3,4] x) => (float[3,4] y) { y = EyeLike<k = 1>(x) }"),
    Silent(
        "a static shape, inferred from a constant",
        "g (float[N] x) => (float[2,2] y) { s = ConstantOfShape(k)  k = Constant<value_ints = [2,2]>()"
        "  y = EyeLike(s) }",
    ),
]


SHAPE_INPUTS: dict[str, tuple[tuple[int, tuple[int, ...]], ...]] = {
    **dict.fromkeys(("Expand", "Reshape"), ((5, (1,)),)),
    "Tile": ((6, (1,)),),
    "Upsample": ((9, (1,)),),
    "ConstantOfShape": ((9, (0,)),),
    "Range": ((11, (0, 1, 2)),),
    "Slice": ((10, (1, 2)),),
    "TopK": ((10, (1,)),),
    "Pad": ((11, (1,)),),
    "Resize": ((11, (2, 3)), (10, (1,))),
}
"""Inputs that determine a shape, and the first opset where they do."""
FOLLOWED = names(
    "Abs Add Cast Ceil Concat Div Equal Exp Floor Gather Greater Identity Less Max Min Mul Neg Pow ReduceMax "
    "ReduceSum Reshape Round Slice Sqrt Squeeze Sub Unsqueeze Where"
)
"""Operators between the graph input and the shape for which the refusal was measured."""
_MOST_VISITED = 100
"""Maximum number of values that are visited upstream of a shape."""
_FLOATING = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL)


@rule("OPS071", per="model", severity=Severity.ERROR, hazards=[56, 61])
def shape_from_floats(model: Model) -> Iterator[Match]:
    """A shape, size or scale is computed from a graph input of floats or booleans.

    ## Why it matters
    TensorRT computes shapes on the host, from shapes, integers and constants. It cannot compute them from a graph input
    of floats or booleans: `Network input s is a shape tensor and must have type Int32 or Int64`, or `Internal Error
    (Assertion !isInFlight(p.second.symbolicRep) failed`, measured with TensorRT-RTX 1.7.1 for the shape of Reshape,
    Expand, Tile and ConstantOfShape, the scales and sizes of Resize and Upsample, the starts and ends of Slice, the
    pads of Pad, the k of TopK and the ends of Range, through arithmetic, casts, comparisons, data movement and
    reductions. TensorRT 10.6.0 (executed, H200), 10.15.1 and 11.2.1 refuse the same. Floats computed from a Shape or
    from an integer input are supported, and so is the result of an ArgMax.

    If the graph input has a dynamic size, the shape is computed on the device. TensorRT 11.2.1 imports such models, and
    TensorRT-RTX 1.7.1 builds Expand, Reshape, Tile, Pad, ConstantOfShape, Slice, TopK and Range. Its builder fails for
    Resize, and may crash in a branch of an If. A warning for 10.0 to 10.13: of two models that expand a number to the
    count of a mask, 10.6.0 computes one right and stops at the other, `Has no upper bound` (executed, H200).

    ## Fix
    None: it would change the type of a graph input. Pass the size as an int64 input, or compute it before the engine
    runs; make fixed scales a constant.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-dynamic-shapes.html
    """
    target = target_of(model)
    if target.package == "tensorrt" and target.oldest < (10,):
        return
    for node in imported(model).of(lambda operator: operator[1] in SHAPE_INPUTS):
        versions = SHAPE_INPUTS[node.op_type]
        if not node.is_onnx:
            continue
        indices_of_shapes = next((indices for since, indices in versions if node.opset >= since), ())
        for value in map(node.input, indices_of_shapes):
            if value is None or value.is_constant or _is_empty(value, model):
                continue
            on_host = node.op_type in ("Resize", "Upsample") or node.scope.parent is not None
            source, severity = _float_source(value, model, on_host), Severity.ERROR
            if source is None and target.package == "tensorrt" and target.oldest < (10, 14):
                source, severity = _float_source(value, model, True), Severity.WARNING
            if source is None:
                continue
            kind = name_of(model.shapes.elem_type(source) or 0)
            yield Match(
                f"a size of this {node.op_type} depends on {source.name!r}, a graph input of type {kind}",
                node=node,
                severity=severity,
                reads=(value, source),
            )
            break


def _float_source(value: Value, model: Model, dynamic: bool) -> Value | None:
    """A graph input of floats or booleans that the value is computed from, through ``FOLLOWED`` operators; ``dynamic``:
    also one of dynamic size."""
    seen, stack = {value}, [value]
    while stack:
        one = stack.pop()
        node: Node | None = one.producer
        if node is None:
            weight = one.initializer is not None or one.sparse  # as which TensorRT treats a default
            if (
                one.is_input
                and one.scope is model.main
                and not weight
                and model.shapes.elem_type(one) in _FLOATING
                and (dynamic or model.shapes.static_shape(one) is not None)
            ):
                return one
            continue
        if not node.is_onnx or node.op_type not in FOLLOWED:
            continue
        new = [read for read in node.inputs if read is not None and read not in seen]
        seen.update(new)
        stack += new
        if len(seen) > _MOST_VISITED:
            return None
    return None


def _is_empty(value: Value, model: Model) -> bool:
    """Whether the tensor is empty, as scales of Resize are that are unused because sizes are given."""
    shape = model.shapes.shape(value)
    return shape is not None and any(dim.value == 0 for dim in shape)


shape_from_floats.examples = [
    Flagged(
        "a Reshape to a size from float arithmetic",
        """g (float[4,4] x, float s) => (float[A,B] y) <int64[1] m = {-1}, int64[1] z = {0}> {
            f = Floor(s)  i = Cast<to = 7>(f)  k = Unsqueeze(i, z)  t = Concat<axis = 0>(k, m)  y = Reshape(x, t) }""",
    ),
    Flagged(
        "a size that is the maximum of the data",
        """g (float[4,4] x) => (float[A,B] y) <int64[1] m = {-1}> {
            r = ReduceMax<keepdims = 0>(x)  i = Cast<to = INT64>(r)  k = Reshape(i, m)  t = Concat<axis = 0>(k, m)
            y = Reshape(x, t) }""",
    ),
    Flagged(
        "the scales of a Resize",
        """g (float[1,1,2,2] x, float[4] s) => (float[A,B,C,D] y) { y = Resize<mode = "nearest">(x, , s) }""",
    ),
    Flagged(
        "a Range of floats",
        "g (float n) => (float[N] y) <float a = {0}, float d = {1}> { y = Range(a, n, d) }",
    ),
    Flagged(
        "a size selected by a boolean, in a branch",
        """g (float[4,4] x, bool[2] s, bool c) => (float[A,B] y) <int64[2] p = {4, 4}, int64[2] q = {2, 8}> {
            t = Where(s, p, q)
            y = If(c)<then_branch = v () => (float[A,B] u) { u = Reshape(x, t) },
                      else_branch = w () => (float[4,4] z) { z = Neg(x) }> }""",
    ),
    Silent(
        "floats computed from a shape",
        """g (float[N,4] x) => (float[A,B] y) <int64[1] m = {-1}, float h = {0.5}> {
            s = Shape<end = 1>(x)  f = Cast<to = FLOAT>(s)  g = Mul(f, h)  i = Cast<to = INT64>(g)
            t = Concat<axis = 0>(i, m)  y = Reshape(x, t) }""",
    ),
    Silent(
        "floats computed from an integer graph input",
        """g (float[4,4] x, int64[1] s) => (float[A,B] y) <int64[1] m = {-1}, float h = {0.5}> {
            f = Cast<to = 1>(s)  g = Mul(f, h)  i = Cast<to = 7>(g)  t = Concat<axis = 0>(i, m)  y = Reshape(x, t) }""",
    ),
    Silent(
        "the result of an ArgMax, which TensorRT supports",
        """g (float[4,4] x, float[1,2] s) => (float[A] y) <int64[1] m = {16}> {
            k = ArgMax<axis = 1, keepdims = 0>(s)  t = Add(k, m)  y = Reshape(x, t) }""",
        runs=False,
    ),
    Silent(
        "the shape of a float tensor",
        "g (float[4,4] x, float[N,M] s) => (float[A,B] y) { t = Shape(s)  y = Reshape(x, t) }",
        runs=False,
    ),
    Silent(
        "a default, which TensorRT treats as a weight",
        "g (float[4,4] x, float[2] s = {2, 8}) => (float[A,B] y) { t = Cast<to = INT64>(s)  y = Reshape(x, t) }",
    ),
    Silent(
        "in a branch that a constant condition does not take",
        """g (float[4,4] x, float[2] s) => (float[4,4] y) <bool c = {0}> {
            y = If(c)<then_branch = v () => (float[A,B] u) { t = Cast<to = INT64>(s)  u = Reshape(x, t) },
                      else_branch = w () => (float[4,4] z) { z = Neg(x) }> }""",
    ),
    Silent(
        "empty scales with sizes",
        """g (float[4,4] x, float[0] s) => (float[8,8] y) <int64[2] k = {8, 8}> {
            y = Resize<mode = "nearest">(x, , s, k) }""",
        runs=False,
    ),
    Flagged(
        "the scales of a Resize, from an input of dynamic size",
        """g (float[1,1,2,2] x, float[N] s) => (float[A,B,C,D] y) <int64[4] i = {0, 1, 2, 3}> {
            k = Gather(s, i)  y = Resize<mode = "nearest">(x, , k) }""",
        target="10.15",
        runs=False,
    ),
    Silent(
        "the number of rows that a mask of dynamic size selects: computed on the device",
        """g (bool[B,S] m) => (float[A,8] y) <float v = {1.5}, int64[1] n = {-1}, int64[1] w = {8}> {
            r = Reshape(m, n)  c = Cast<to = INT64>(r)  k = ReduceSum(c)  t = Concat<axis = 0>(k, w)
            y = Expand(v, t) }""",
        differs={"branch": "there the builder fails"},
    ),
    Silent(
        "TensorRT 8.6 was not measured",
        """g (float[1,1,2,2] x, float[4] s) => (float[A,B,C,D] y) { y = Resize<mode = "nearest">(x, , s) }""",
        target="8.6",
    ),
]
