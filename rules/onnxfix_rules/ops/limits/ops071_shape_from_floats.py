"""OPS071: shapes that are computed from floats or booleans of the caller."""

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
    Value,
    imported,
    name_of,
    rule,
    target_of,
)

PLACES: dict[str, tuple[tuple[int, tuple[int, ...]], ...]] = {
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
"""Inputs that say a shape, and the opset from which on they do."""
FOLLOWED = frozenset(
    {
        "Abs",
        "Add",
        "Cast",
        "Ceil",
        "Concat",
        "Div",
        "Equal",
        "Exp",
        "Floor",
        "Gather",
        "Greater",
        "Identity",
        "Less",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Pow",
        "ReduceMax",
        "ReduceSum",
        "Reshape",
        "Round",
        "Slice",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Unsqueeze",
        "Where",
    }
)
"""Operators through which it was measured that the refusal goes."""
_FAR = 100
"""How many values are looked at for where a shape comes from."""
_FLOATING = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL)


@rule("OPS071", per="model", severity=Severity.ERROR, hazards=[26, 31])
def shape_from_floats(model: Model) -> Iterator[Match]:
    """A shape, size or scale is computed from floats or booleans that come in at run time.

    ## Why it matters
    TensorRT computes shapes on the host, from shapes, integers and constants. From a graph input of floats or booleans
    it does not: `Network input s is a shape tensor and must have type Int32 or Int64`, or `Internal Error (Assertion
    !isInFlight(p.second.symbolicRep) failed`, measured with TensorRT-RTX 1.7.1 for the shape of Reshape, Expand, Tile
    and ConstantOfShape, the scales and sizes of Resize and Upsample, the starts and ends of Slice, the pads of Pad, the
    k of TopK and the ends of Range, through arithmetic, casts, comparisons, moves and reductions. Floats that come from
    a Shape or from an integer input are fine, and so is the result of an ArgMax.

    ## Fix
    None: what comes in has another type. Take the size as an int64 input, or compute it before the engine runs; fixed
    scales are best made a constant.

    ## References
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-dynamic-shapes.html
    """
    if not target_of(model).types_measured:
        return
    for node in imported(model).of(lambda operator: operator[1] in PLACES):
        versions = PLACES[node.op_type]
        if not node.is_onnx:
            continue
        places = next((indices for since, indices in versions if node.opset >= since), ())
        for value in map(node.input, places):
            if value is None or value.is_constant or _is_empty(value, model):
                continue
            source = _float_source(value, model)
            if source is None:
                continue
            kind = name_of(model.shapes.elem_type(source) or 0)
            yield Match(
                f"a size of this {node.op_type} depends on {source.name!r}, a graph input of type {kind}",
                node=node,
                reads=(value, source),
            )
            break


def _float_source(value: Value, model: Model) -> Value | None:
    """A graph input of floats or booleans that the value is computed from, by operators that are followed."""
    seen, stack = {value}, [value]
    while stack:
        one = stack.pop()
        node: Node | None = one.producer
        if node is None:
            if _is_given(one, model) and model.shapes.elem_type(one) in _FLOATING:
                return one
            continue
        if not node.is_onnx or node.op_type not in FOLLOWED:
            continue
        new = [read for read in node.inputs if read is not None and read not in seen]
        seen.update(new)
        stack += new
        if len(seen) > _FAR:
            return None
    return None


def _is_empty(value: Value, model: Model) -> bool:
    """Whether nothing is in it: so Resize is given scales that do not count beside sizes."""
    shape = model.shapes.shape(value)
    return shape is not None and any(dim.value == 0 for dim in shape)


def _is_given(value: Value, model: Model) -> bool:
    """Whether the caller has to give the value; one with a default is a weight to TensorRT."""
    return value.scope is model.main and value.is_input and value.initializer is None and not value.sparse


shape_from_floats.examples = [
    Flagged(
        "a Reshape to a size from float arithmetic",
        """g (float[4,4] x, float s) => (float[A,B] y) <int64[1] m = {-1}, int64[1] z = {0}> {
            f = Floor(s)  i = Cast<to = 7>(f)  k = Unsqueeze(i, z)  t = Concat<axis = 0>(k, m)  y = Reshape(x, t) }""",
    ),
    Flagged(
        "a size that is the data's largest number",
        """g (float[4,4] x) => (float[A,B] y) <int64[1] m = {-1}> {
            r = ReduceMax<keepdims = 0>(x)  i = Cast<to = 7>(r)  k = Reshape(i, m)  t = Concat<axis = 0>(k, m)
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
        "a size chosen by a boolean, in a branch",
        """g (float[4,4] x, bool[2] s, bool c) => (float[A,B] y) <int64[2] p = {4, 4}, int64[2] q = {2, 8}> {
            t = Where(s, p, q)
            y = If(c)<then_branch = v () => (float[A,B] u) { u = Reshape(x, t) },
                      else_branch = w () => (float[4,4] z) { z = Neg(x) }> }""",
    ),
    Silent(
        "floats that come from a shape",
        """g (float[N,4] x) => (float[A,B] y) <int64[1] m = {-1}, float h = {0.5}> {
            s = Shape<end = 1>(x)  f = Cast<to = 1>(s)  g = Mul(f, h)  i = Cast<to = 7>(g)
            t = Concat<axis = 0>(i, m)  y = Reshape(x, t) }""",
    ),
    Silent(
        "floats that come from an integer of the caller's",
        """g (float[4,4] x, int64[1] s) => (float[A,B] y) <int64[1] m = {-1}, float h = {0.5}> {
            f = Cast<to = 1>(s)  g = Mul(f, h)  i = Cast<to = 7>(g)  t = Concat<axis = 0>(i, m)  y = Reshape(x, t) }""",
    ),
    Silent(
        "the place of the largest number, which TensorRT hands over",
        """g (float[4,4] x, float[1,2] s) => (float[A] y) <int64[1] m = {16}> {
            k = ArgMax<axis = 1, keepdims = 0>(s)  t = Add(k, m)  y = Reshape(x, t) }""",
        runs=False,
    ),
    Silent(
        "the shape of floats",
        "g (float[4,4] x, float[N,M] s) => (float[A,B] y) { t = Shape(s)  y = Reshape(x, t) }",
        runs=False,
    ),
    Silent(
        "a weight",
        "g (float[4,4] x, float[2] s = {2, 8}) => (float[A,B] y) { t = Cast<to = 7>(s)  y = Reshape(x, t) }",
    ),
    Silent(
        "in a branch that a constant does not take",
        """g (float[4,4] x, float[2] s) => (float[4,4] y) <bool c = {0}> {
            y = If(c)<then_branch = v () => (float[A,B] u) { t = Cast<to = 7>(s)  u = Reshape(x, t) },
                      else_branch = w () => (float[4,4] z) { z = Neg(x) }> }""",
    ),
    Silent(
        "no scales beside the sizes",
        """g (float[4,4] x, float[0] s) => (float[8,8] y) <int64[2] k = {8, 8}> {
            y = Resize<mode = "nearest">(x, , s, k) }""",
        runs=False,
    ),
    Silent(
        "nothing was measured with TensorRT 10",
        """g (float[1,1,2,2] x, float[4] s) => (float[A,B,C,D] y) { y = Resize<mode = "nearest">(x, , s) }""",
        target="trt10",
    ),
]
