"""OPS046: EyeLike of a dynamic shape."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, Value, rule


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
    data, output = node.input(0), node.require_output()
    shape = None if data is None else model.shapes.shape(data)
    if data is None or shape is None or len(shape) != 2:
        return
    if all(size.value is not None for size in shape):
        return
    kind = node.attr("dtype") or model.shapes.elem_type(data)
    fix = None
    if node.opset >= 11 and kind is not None:
        draft = Draft(node)
        draft.remove(node)
        _compare(draft, data, output, int(kind), int(node.attr("k", 0)))
        fix = Fix("compare row and column indices", draft.edits)
    yield Match("EyeLike of a dynamic shape, which TensorRT does not have", node=node, fix=fix)


def _compare(draft: Draft, data: Value, output: Value, kind: int, diagonal: int) -> None:
    zero, one = draft.constant(np.array(0, np.int64), "zero"), draft.constant(np.array(1, np.int64), "one")
    sizes = draft.add("Shape", [data])
    rows = draft.add("Range", [zero, draft.add("Gather", [sizes, zero]), one])
    columns = draft.add("Range", [zero, draft.add("Gather", [sizes, one]), one])
    rows, columns = draft.unsqueeze(rows, [1]), draft.unsqueeze(columns, [0])
    if diagonal:
        rows = draft.add("Add", [rows, draft.constant(np.array([[diagonal]], np.int64), "diagonal")])
    if kind == TensorProto.BOOL:
        draft.add("Equal", [rows, columns], output=output.name)
    else:
        draft.add("Cast", [draft.add("Equal", [rows, columns])], output=output.name, to=kind)


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
