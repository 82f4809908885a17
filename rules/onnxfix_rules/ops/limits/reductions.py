"""Reductions of scalars, of booleans, and along an axis without elements."""
# Long because: three rules, with an example of each reduction.

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    Severity,
    Silent,
    Value,
    dtypes,
    is_small,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.gra._common import is_data
from onnxfix_rules.ops.limits import _masks
from onnxfix_rules.prc._common import producer
from onnxfix_rules.prc._norm import axes_of

_COPIES = ("ReduceMax", "ReduceMin", "ReduceProd")
_SUMS = ("ReduceMean", "ReduceSum")
_OTHERS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


@rule("OPS024", ops=[*_COPIES, *_SUMS, *_OTHERS], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[44])
def reduction_of_scalar(node: Node, model: Model) -> Iterator[Match]:
    """A reduction of a scalar, which has no axis to reduce.

    ## Why it matters
    ONNX allows it: the result is a scalar. TensorRT stops: `ITensor::getDimensions: Error Code 3: API Usage Error (…:
    at least 1 dimensions are required for input.`, measured with TensorRT-RTX 1.7.1 for all ten reductions, with and
    without `keepdims`. With `noop_with_empty_axes` set it imports an Identity.

    ## Fix
    Product, maximum and minimum of one element are that element; so are sum and mean of an integer. ReduceL1 becomes
    Abs, ReduceSumSquare `Mul(x, x)`, ReduceLogSum Log. The sum of a single -0.0 is 0.0 in ONNX Runtime and the
    reference, so sum and mean of a float become `Add(x, 0)`. ReduceL2 and ReduceLogSumExp may overflow in an
    intermediate result; they stay and get an axis of length 1. All exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ReduceSum.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    data = node.require(0)
    node.require_output()
    if model.shapes.rank(data) != 0:
        return
    if node.attr("noop_with_empty_axes", 0) != 0:
        return
    message = f"{node.op_type} of a scalar: TensorRT requires an axis to reduce"
    yield Match(message, node=node, fix=_fix(node, data, model))


def _fix(node: Node, data: Value, model: Model) -> Fix | None:
    draft = Draft(node)
    elem = model.shapes.elem_type(data)
    if node.op_type in _COPIES or (node.op_type in _SUMS and elem is not None and dtypes.is_integer(elem)):
        draft.bypass(node, data)
        return Fix("use the scalar itself", draft.edits)
    if elem is None or not (dtypes.is_float(elem) or node.op_type in ("ReduceL1", "ReduceSumSquare")):
        return None
    if node.op_type in ("ReduceL2", "ReduceLogSumExp"):
        return _with_axis(node, data, draft)
    if node.op_type == "ReduceSumSquare" and not takes("Mul", node.opset, elem):
        return None  # opset 6 and before multiply floats only
    if node.op_type in _SUMS:
        zero = draft.constant(np.zeros((), helper.tensor_dtype_to_np_dtype(elem)), "zero")
        result = draft.add("Add", [data, zero])
    elif node.op_type == "ReduceSumSquare":
        result = draft.add("Mul", [data, data])
    else:
        result = draft.add("Abs" if node.op_type == "ReduceL1" else "Log", [data])
    draft.replace_output(node, result)
    return Fix("compute it without a reduction", draft.edits)


def _with_axis(node: Node, data: Value, draft: Draft) -> Fix:
    row = draft.unsqueeze(data, [0])
    if node.opset >= 18:
        axes = draft.constant(np.zeros(1, np.int64), "axes")
        draft.replace_node(node, inputs=[row, axes], axes=None, keepdims=0)
    else:
        draft.replace_node(node, inputs=[row], axes=[0], keepdims=0)
    return Fix("unsqueeze the scalar before the reduction", draft.edits)


def _of_scalar(call: str, elem: str = "float") -> str:
    return f"g ({elem} x) => ({elem} y) {{ y = {call}(x) }}"


reduction_of_scalar.examples = [
    *(
        Fixed(
            f"{op}: a copy",
            before=f"g (float x) => (float y) {{ r = {op}(x)  y = Neg(r) }}",
            after=_of_scalar("Neg"),
        )
        for op in _COPIES
    ),
    *(
        Fixed(
            f"{op} in opset {opset}: a copy, except that -0.0 becomes 0.0",
            before=f"g (float x) => (float y) {{ y = {op}(x) }}",
            after="g (float x) => (float y) <float z = {0}> { y = Add(x, z) }",
            opset=opset,
        )
        for op, opset in (("ReduceMean", 11), ("ReduceMean", 20), ("ReduceSum", 11), ("ReduceSum", 20))
    ),
    Fixed(
        "a copy that is the graph's output",
        before=_of_scalar("ReduceProd<keepdims = 0>"),
        after=_of_scalar("Identity"),
    ),
    Fixed(
        "of integers, with empty axes",
        before="g (int64 x) => (int64 y) <int64[0] a = {}> { r = ReduceSum(x, a)  y = Neg(r) }",
        after=_of_scalar("Neg", elem="int64"),
        opset=13,
    ),
    Fixed(
        "the second of two reductions",
        before="g (float[N] x) => (float y) { a = ReduceMax<keepdims = 0>(x)  m = ReduceMax(a)  y = Neg(m) }",
        after="g (float[N] x) => (float y) { a = ReduceMax<keepdims = 0>(x)  y = Neg(a) }",
        opset=11,
    ),
    Fixed("ReduceL1: Abs", before=_of_scalar("ReduceL1"), after=_of_scalar("Abs")),
    Fixed(
        "ReduceSumSquare: a product",
        before=_of_scalar("ReduceSumSquare<keepdims = 0>", elem="int64"),
        after="g (int64 x) => (int64 y) { y = Mul(x, x) }",
        opset=11,
    ),
    Fixed("ReduceLogSum: Log", before=_of_scalar("ReduceLogSum"), after=_of_scalar("Log")),
    Fixed(
        "reductions whose intermediate result may overflow get an axis",
        before="g (float x) => (float y, float z) { y = ReduceL2(x)  z = ReduceLogSumExp<keepdims = 0>(x) }",
        after="""g (float x) => (float y, float z)
            <int64[1] a = {0}, int64[1] b = {0}, int64[1] c = {0}, int64[1] d = {0}> {
            u = Unsqueeze(x, a)  y = ReduceL2<keepdims = 0>(u, b)
            v = Unsqueeze(x, c)  z = ReduceLogSumExp<keepdims = 0>(v, d) }""",
    ),
    Fixed(
        "the same with axes as an attribute",
        before=_of_scalar("ReduceL2"),
        after="""g (float x) => (float y) <int64[1] a = {0}> {
            u = Unsqueeze(x, a)  y = ReduceL2<keepdims = 0, axes = [0]>(u) }""",
        opset=13,
    ),
    Fixed(
        "inside a branch, of a captured scalar",
        before="""g (float x, bool c) => (float y) {
            y = If(c)<then_branch = p () => (float u) { u = ReduceL1(x) },
                      else_branch = q () => (float v) { v = ReduceMin(x) }> }""",
        after="""g (float x, bool c) => (float y) {
            y = If(c)<then_branch = p () => (float u) { u = Abs(x) },
                      else_branch = q () => (float v) { v = Identity(x) }> }""",
    ),
    Flagged(
        "no kernel for the logarithm of integers either", _of_scalar("ReduceLogSum", elem="int32"), runs=False
    ),
    Silent(
        "noop_with_empty_axes, which TensorRT supports", _of_scalar("ReduceSum<noop_with_empty_axes = 1>")
    ),
    Silent("of a vector", "g (float[1] x) => (float[1] y) { y = ReduceSum(x) }"),
    Silent(
        "of unknown rank",
        "g (float[A,B] x, int64[K] h) => (float[C] y) { r = Reshape(x, h)  y = ReduceSum<keepdims = 0>(r) }",
        runs=False,
    ),
]


@rule("OPS025", ops=["ReduceMax", "ReduceMin"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[66])
def reduction_of_booleans(node: Node, model: Model) -> Iterator[Match]:
    """A ReduceMax or ReduceMin of booleans: whether any, or all, of them are true.

    ## Why it matters
    ONNX has it since opset 20. TensorRT does not: `Found unsupported input type of BOOL`, measured with TensorRT-RTX
    1.7.1. And, Or, Xor, Not, Equal, Where, Concat, Slice, Gather and Scatter of booleans are supported.

    ## Fix
    Cast to int32, reduce, and convert back: ReduceMin by a Cast, ReduceMax by `Greater(…, 0)`, because the maximum of
    an empty tensor is the smallest int32, which a Cast would make true. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ReduceMax.html
    """
    data, output = node.require(0), node.require_output()
    if model.shapes.elem_type(data) != TensorProto.BOOL:
        return
    if model.shapes.rank(data) == 0 and node.attr("noop_with_empty_axes", 0) == 0:
        return  # OPS024 has a simpler fix
    ones = [1] * (model.shapes.rank(output) or 0)
    if not is_small(*ones):
        return
    draft = Draft(node)
    cast = draft.add("Cast", [data], hint="int32", to=TensorProto.INT32)
    reduced = draft.replace_node(node, "", [cast, *node.inputs[1:]], [draft.name("reduced")])
    if node.op_type == "ReduceMin":
        draft.add("Cast", [reduced], output=output.name, to=TensorProto.BOOL)
    else:
        zero = np.zeros(ones, np.int32)
        draft.add("Greater", [reduced, draft.constant(zero, "zero")], output=output.name)
    yield Match(
        f"TensorRT has no {node.op_type} of booleans", node=node, fix=Fix("reduce in int32", draft.edits)
    )


reduction_of_booleans.examples = [
    Fixed(
        "ReduceMax: whether any is true",
        before="g (bool[N,3] x) => (bool[N,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        after="""g (bool[N,3] x) => (bool[N,1] y) <int64[1] a = {1}, int32[1,1] z = {0}> {
            i = Cast<to = INT32>(x)  m = ReduceMax(i, a)  y = Greater(m, z) }""",
        opset=20,
    ),
    Fixed(
        "ReduceMin: whether all are true",
        before="""g (bool[N,3] x) => (bool[3] z) <int64[1] a = {0}> {
            y = ReduceMin<keepdims = 0>(x, a)  z = Not(y) }""",
        after="""g (bool[N,3] x) => (bool[3] z) <int64[1] a = {0}> {
            i = Cast<to = INT32>(x)  m = ReduceMin<keepdims = 0>(i, a)  y = Cast<to = BOOL>(m)  z = Not(y) }""",
        opset=20,
    ),
    Fixed(
        "an empty tensor: the maximum is false",
        before="g (bool[0,3] x) => (bool[1,3] y) <int64[1] a = {0}> { y = ReduceMax(x, a) }",
        after="""g (bool[0,3] x) => (bool[1,3] y) <int64[1] a = {0}, int32[1,1] z = {0}> {
            i = Cast<to = INT32>(x)  m = ReduceMax(i, a)  y = Greater(m, z) }""",
        opset=20,
        runs=False,
    ),
    Fixed(
        "along all axes",
        before="""g (bool[2,3] x) => (bool y, bool z) {
            y = ReduceMax<keepdims = 0>(x)  z = ReduceMin<keepdims = 0>(x) }""",
        after="""g (bool[2,3] x) => (bool y, bool z) <int32 c = {0}> {
            i = Cast<to = INT32>(x)  m = ReduceMax<keepdims = 0>(i)  y = Greater(m, c)
            j = Cast<to = INT32>(x)  n = ReduceMin<keepdims = 0>(j)  z = Cast<to = BOOL>(n) }""",
        opset=20,
    ),
    Silent(
        "integers", "g (int32[N,3] x) => (int32[N,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }", opset=20
    ),
    Silent(
        "booleans already cast to integers",
        """g (bool[N,3] x) => (bool[N,1] y) <int64[1] a = {1}> {
            i = Cast<to = INT32>(x)  m = ReduceMax(i, a)  y = Cast<to = BOOL>(m) }""",
        opset=20,
    ),
    Silent(
        "of unknown type",
        """<ir_version: 9, opset_import: ["" : 20, "my" : 1]>
            g (bool[2,3] x) => (bool[1,1] y) { u = my.Unknown(x)  y = ReduceMax(u) }""",
        runs=False,
    ),
]

_OPS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
_WHOLE = (TensorProto.INT32, TensorProto.INT64)


@rule("OPS125", ops=_OPS, safety=Safety.EXACT, severity=Severity.WARNING, hazards=[61])
def reduction_over_empty_axis(node: Node, model: Model) -> Iterator[Match]:
    """A reduction along an axis that has no elements, or that a Slice may leave without elements.

    ## Why it matters
    TensorRT 10.6.0 and 8.6.1, executed on an H200, stop where a profile leaves the axis without elements: `This backend
    does not support reduction over statically empty tensor …. Dimensions are [0,4].`, and `Myelin does not support
    reduction over statically empty tensor`. A sum, a product and a maximum over an axis of size 0, each alone in its
    model, were right with 10.6.0; TensorRT-RTX 1.7.1 builds them. A warning in both cases:

    - the axis has size 0, for TensorRT 8.6 to 10.6
    - a Slice whose start or end is data cuts the axis, as in an unrolled EmbeddingBag. A profile whose values leave the
      Slice empty is refused, four of four exports; in a branch, 10.6.0 builds it. The mean of an empty Slice is 0 in
      ONNX Runtime and NaN in TensorRT 10.6.0, executed; ONNX leaves it undefined. After the rewrite below all seven
      exports with such reductions were right with 10.6.0.

    ## Fix
    If the axis has size 0, a constant of the result's shape: 0 for sums and norms, 1 for a product, the smallest value
    of the type for a maximum, the largest for a minimum, infinities among them. Exact, since ONNX defines these values.
    No fix for a mean, which ONNX leaves undefined.

    After a Slice, the whole axis is reduced; a Where replaces what is outside of the Slice by those values. A mean is
    the sum over the number of elements, or over 1 if there are none. What outside of the Slice would select rows of a
    table selects its first row. No size depends on data any more, but all of the axis is computed. Exact for integers.
    NUMERIC for floats, which are added in another order, and whose maximum may be NaN before and not after if an
    element is NaN. Not in loops; CTL014 and CTL021 are about those.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ReduceMean.html: `Reduction over an empty set of values yields undefined`
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.EmbeddingBag.html
    """
    data = node.require(0)
    shape, elem, reduced = model.shapes.shape(data), model.shapes.elem_type(data), axes_of(node, model)
    if not shape or elem is None or reduced == ():
        return
    axes = list(range(len(shape))) if reduced is None else [axis + len(shape) for axis in reduced]
    empty = [axis for axis in axes if shape[axis].value == 0]
    if empty:
        target = target_of(model)
        if target.package == "tensorrt" and (8, 6) <= target.oldest <= (10, 6):
            text = (
                f"axis {empty[0]} of {data.name!r} has no elements: TensorRT may not build the {node.op_type}"
            )
            yield Match(text, node=node, fix=_constant(node, elem, axes, model), reads=(data,))
        return
    rows = producer(data, "Gather") if axes == [0] else None
    part = producer(data if rows is None else rows.input(1), "Slice")
    if part is not None and len(axes) == 1 and _is_cut(part, rows, axes[0], model):
        yield Match(
            f"data decides how many elements of {part.require(0).name!r} this {node.op_type} reduces, perhaps none",
            node=node,
            fix=_masked(node, part, rows, axes[0], model),
            reads=(data, part, *(one for one in (rows, *part.inputs[1:3]) if one is not None)),
        )


def _constant(node: Node, elem: int, axes: list[int], model: Model) -> Fix | None:
    """The result of a reduction over nothing; None for a mean."""
    data, value = node.require(0), _masks.neutral(node.op_type, elem)
    if value is None or node.op_type == "ReduceMean" or node.scope.opset() < 9:
        return None
    draft, shape, keepdims = Draft(node), model.shapes.shape(data) or (), node.attr("keepdims", 1)
    left = [axis for axis in range(len(shape)) if keepdims or axis not in axes]
    sizes = [1 if axis in axes else shape[axis].value for axis in left]
    if None in sizes:
        parts = [draft.add("Shape", [data]), draft.integers([1], "one")]
        places = [len(shape) if axis in axes else axis for axis in left]
        size = draft.add("Gather", [draft.add("Concat", parts, axis=0), draft.integers(places)], axis=0)
    else:
        size = draft.integers(sizes, "shape")
    tensor = helper.make_tensor("", elem, [1], [value.item()])
    draft.replace_output(node, draft.add("ConstantOfShape", [size], value=tensor))
    return Fix("use the value that ONNX defines for no elements", draft.edits)


def _is_cut(part: Node, rows: Node | None, axis: int, model: Model) -> bool:
    """Whether a Slice cuts only this axis, by data, in no loop; ``rows`` takes rows of a table by its result."""
    source, start, end, along, step = (part.input(index) for index in range(5))
    rank = 0 if source is None else model.shapes.rank(source)
    if not rank or start is None or end is None or along is None or part.scope.opset() < 11:
        return False
    if rows is not None:
        table = model.shapes.shape(rows.require(0))
        if rank != 1 or rows.attr("axis", 0) or not table or not table[0].value:
            return False
    cut, steps = along.constant(8), None if step is None else step.constant(8)
    if cut is None or [int(one) % rank for one in cut.reshape(-1)] != [axis]:
        return False
    if step is not None and (steps is None or steps.reshape(-1).tolist() != [1]):
        return False
    scope: Scope | None = part.scope
    while scope is not None and (scope.owner is None or scope.owner.op_type == "If"):
        scope = scope.parent
    return scope is None and any(is_data(bound, model) for bound in (start, end))


def _masked(node: Node, part: Node, rows: Node | None, axis: int, model: Model) -> Fix | None:
    """The reduction of the whole axis, where what is outside of the Slice changes nothing."""
    whole, elem = part.require(0), model.shapes.elem_type(node.require(0)) or 0
    neutral, rank = _masks.neutral(node.op_type, elem), model.shapes.rank(node.require(0)) or 0
    counted = [part.require(1), part.require(2), *([] if rows is None else [whole])]
    if neutral is None or any(model.shapes.elem_type(value) not in _WHOLE for value in counted):
        return None
    draft = Draft(node)
    zero, one, at = (draft.integers(number) for number in (0, 1, axis))
    length = draft.add("Gather", [draft.add("Shape", [whole]), at], axis=0)
    place = draft.add("Range", [zero, length, one])
    start, end = (_from_the_front(draft, part.require(index), length, zero, model) for index in (1, 2))
    after = draft.add("Not", [draft.add("Less", [place, start])])
    chosen = draft.add("And", [after, draft.add("Less", [place, end])])
    values: Value | str = whole
    if rows is not None:  # what is outside of the Slice may be no row of the table
        row = np.zeros((), np.int32 if model.shapes.elem_type(whole) == TensorProto.INT32 else np.int64)
        values = draft.add("Where", [chosen, whole, draft.constant(row, "row")])
        values = draft.add("Gather", [rows.require(0), values], axis=0)
    beyond = list(range(1, rank - axis))
    mask = draft.unsqueeze(chosen, beyond) if beyond else chosen
    kept = draft.add("Where", [mask, values, draft.constant(neutral, "neutral")])
    op = "ReduceSum" if node.op_type == "ReduceMean" else node.op_type
    total = draft.along(op, kept, [axis], keepdims=node.attr("keepdims", 1))
    if op != node.op_type:
        number = draft.cast(draft.sum(draft.cast(chosen, TensorProto.INT64), [0]), elem)
        least = draft.add("Max", [number, draft.constant(np.ones_like(neutral), "least")])
        total = draft.add("Div", [total, least])
    draft.replace_output(node, total)
    safety = Safety.EXACT if dtypes.is_integer(elem) else Safety.NUMERIC
    return Fix("reduce the whole axis, by a mask", draft.edits, safety)


def _from_the_front(draft: Draft, bound: Value, length: str, zero: str, model: Model) -> str:
    """A bound of a Slice, which counts from the end where it is negative, as int64."""
    is_int32 = model.shapes.elem_type(bound) == TensorProto.INT32
    name = draft.cast(bound, TensorProto.INT64) if is_int32 else bound.name
    return draft.add("Where", [draft.add("Less", [name, zero]), draft.add("Add", [name, length]), name])


_G = "g (float[N,4] x, int64[1] s, int64[1] e)"
_MASK = """k = Shape(x)  l = Gather<axis = 0>(k, z)  p = Range(z, l, o)
    a = Less(s, z)  b = Add(s, l)  c = Where(a, b, s)  d = Less(e, z)  f = Add(e, l)  h = Where(d, f, e)
    i = Less(p, c)  j = Not(i)  m = Less(p, h)  n = And(j, m)"""
_SCALARS = "int64 z = {0}, int64 o = {1}"


reduction_over_empty_axis.examples = [
    Fixed(
        "a sum of no rows",
        before="""g (float[0,4] x) => (float[4] y) <int64[1] a = {0}> {
            u = Abs(x)  s = ReduceSum<keepdims = 0>(u, a)  y = Exp(s) }""",
        after="""g (float[0,4] x) => (float[4] y) <int64[1] n = {4}> {
            s = ConstantOfShape<value = float[1] {0}>(n)  y = Exp(s) }""",
        target="trt10.6",
    ),
    Fixed(
        "a maximum of no columns, of dynamic other sizes",
        before="""g (int32[N,0,M] x) => (int32[N,1,M] y) <int64[1] a = {-2}> { s = ReduceMax(x, a)  y = Abs(s) }""",
        after="""g (int32[N,0,M] x) => (int32[N,1,M] y) <int64[1] o = {1}, int64[3] p = {0, 3, 2}> {
            h = Shape(x)  c = Concat<axis = 0>(h, o)  n = Gather<axis = 0>(c, p)
            s = ConstantOfShape<value = int32[1] {-2147483648}>(n)  y = Abs(s) }""",
        target="trt8.6",
    ),
    Flagged(
        "a mean of no rows",
        "g (float[0,4] x) => (float[4] y) <int64[1] a = {0}> { y = ReduceMean<keepdims = 0>(x, a) }",
        target="trt10.6",
    ),
    Fixed(
        "a sum of some rows",
        before=f"""{_G} => (float[4] y) <int64[1] a = {{0}}> {{
            u = Slice(x, s, e, a)  r = ReduceSum<keepdims = 0>(u, a)  y = Neg(r) }}""",
        after=f"""{_G} => (float[4] y)
            <{_SCALARS}, int64 at = {{0}}, int64[1] q = {{1}}, float v = {{0}}, int64[1] w = {{0}}> {{
            {_MASK.replace("(k, z)", "(k, at)")}  t = Unsqueeze(n, q)  u = Where(t, x, v)
            r = ReduceSum<keepdims = 0>(u, w)  y = Neg(r) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a bag of an EmbeddingBag: the mean of some rows of a table, for opset 13",
        before="""g (int64[L] x, int64[1] s, int64[1] e, float[5,4] v) => (float[1,4] y) <int64[1] a = {0}> {
            u = Slice(x, s, e, a)  g = Gather(v, u)  r = ReduceMean<axes = [0]>(g)  y = Neg(r) }""",
        after=f"""g (int64[L] x, int64[1] s, int64[1] e, float[5,4] v) => (float[1,4] y)
            <{_SCALARS}, int64 at = {{0}}, int64 first = {{0}}, int64[1] q = {{1}}, float w = {{0}},
            int64[1] ax = {{0}}, int64[1] ay = {{0}}, float least = {{1}}> {{ {_MASK.replace("(k, z)", "(k, at)")}
            u = Where(n, x, first)  g = Gather<axis = 0>(v, u)  t = Unsqueeze(n, q)  kept = Where(t, g, w)
            total = ReduceSum<keepdims = 1>(kept, ax)  w1 = Cast<to = INT64>(n)  w2 = ReduceSum<keepdims = 0>(w1, ay)
            w3 = Cast<to = FLOAT>(w2)  w4 = Max(w3, least)  r = Div(total, w4)  y = Neg(r) }}""",
        safety=Safety.NUMERIC,
        opset=13,
    ),
    Fixed(
        "a maximum of integers: exact",
        before="""g (int32[3,N] x, int64[1] s, int64[1] e) => (int32[3] y) <int64[1] a = {1}> {
            u = Slice(x, s, e, a)  r = ReduceMax<keepdims = 0>(u, a)  y = Neg(r) }""",
        after=f"""g (int32[3,N] x, int64[1] s, int64[1] e) => (int32[3] y)
            <{_SCALARS}, int64 at = {{1}}, int32 v = {{-2147483648}}, int64[1] w = {{1}}> {{
            {_MASK.replace("(k, z)", "(k, at)")}  u = Where(n, x, v)
            r = ReduceMax<keepdims = 0>(u, w)  y = Neg(r) }}""",
    ),
    Flagged(
        "a mean of half precision",
        """g (float16[N,4] x, int64[1] e) => (float16[4] y) <int64[1] a = {0}> {
            u = Slice(x, a, e, a)  y = ReduceMean<keepdims = 0>(u, a) }""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "no rows, for a TensorRT that builds it",
        "g (float[0,4] x) => (float[4] y) <int64[1] a = {0}> { y = ReduceSum<keepdims = 0>(x, a) }",
    ),
    Silent(
        "a size that another tensor's shape decides",
        """g (float[N,4] x, float[M] w) => (float[4] y) <int64[1] a = {0}> {
            e = Shape(w)  u = Slice(x, a, e, a)  y = ReduceSum<keepdims = 0>(u, a) }""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "another axis than the reduced one",
        f"""{_G} => (float[K] y) <int64[1] a = {{0}}, int64[1] b = {{1}}> {{
            u = Slice(x, s, e, a)  y = ReduceSum<keepdims = 0>(u, b) }}""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a Slice that goes backward",
        f"""{_G} => (float[4] y) <int64[1] a = {{0}}, int64[1] b = {{-1}}> {{
            u = Slice(x, s, e, a, b)  y = ReduceSum<keepdims = 0>(u, a) }}""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a table that may have no row",
        """g (int64[L] x, int64[1] s, int64[1] e, float[V,4] v) => (float[4] y) <int64[1] a = {0}> {
            u = Slice(x, s, e, a)  g = Gather(v, u)  y = ReduceSum<keepdims = 0>(g, a) }""",
        safety=Safety.NUMERIC,
    ),
]
