"""OPS039: updates that are added, multiplied or compared with what is there."""

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
    dtypes,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.ops import _places
from onnxfix_rules.ops import _rewrite as rw
from onnxfix_rules.ops._result import put
from onnxfix_rules.ops.limits import _scatter

_OPS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


@rule(
    "OPS039", ops=["ScatterElements", "ScatterND"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[32]
)
def scatter_with_reduction(node: Node, model: Model) -> Iterator[Match]:
    """A ScatterND or ScatterElements with `reduction`.

    ## Why it matters
    The parser stops: `ScatterND with reduction is not supported.`, measured with TensorRT-RTX 1.7.1, and so does that
    of TensorRT 10.1. For ScatterElements TensorRT has a plugin, which TensorRT-RTX has not: `Unsupported reduction
    type`.

    ## Fix
    With constant indices of which no two are the same place: gather what is there, compute, and scatter the result.
    Exact for sums and products of integers, float and double; maxima and minima of floats, and half precision, may
    differ in NaN, the sign of zero and rounding between backends and take `--numeric-fixes`.

    With two the same, or indices that come at run time, each element's place is compared with each index, and the
    updates that meet it are reduced and combined with what was there: exact for maxima and minima of integers, with
    `--numeric-fixes` for the rest: floats are added in another order, and ONNX Runtime 1.31 computes sums and products
    of integers in double. All shapes must be static, and elements times updates 4 million at most; what is
    larger has no fix.

    TensorRT layers: 4 by gathering; 14 to 20 by comparing.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ScatterND.html
    """
    kind = node.attr("reduction", "none")
    if kind not in _OPS or (node.op_type == "ScatterElements" and target_of(model).package == "tensorrt"):
        return
    if _places.distinct(node, model) is True:
        fix = _gathered(node, model, _OPS[kind])
    else:
        fix = _compared(node, model, _OPS[kind])
    yield Match(
        f"TensorRT has no {node.op_type} with reduction={kind}"
        + ("" if fix else ", and two indices may be the same place"),
        node=node,
        fix=fix,
        reads=tuple(v for v in node.inputs[1:2] if v is not None),
    )


def _gathered(node: Node, model: Model, op: str) -> Fix | None:
    data, indices, updates = node.inputs[:3]
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or indices is None or updates is None or elem is None or not _combines(node, op, elem):
        return None
    draft = Draft(node)
    if node.op_type == "ScatterND":
        there = draft.add("GatherND", [data, indices])
    else:
        there = draft.add("GatherElements", [data, indices], axis=node.attr("axis", 0))
    proto = rw.copy_of(node)
    proto.input[2] = _combined(draft, op, there, updates, integer=dtypes.is_integer(elem))
    rw.set_attribute(proto, "reduction", None)
    rw.replace(draft, node, proto)
    exact = dtypes.is_integer(elem) or (
        op in ("Add", "Mul") and elem in (TensorProto.FLOAT, TensorProto.DOUBLE)
    )
    return Fix(
        f"gather what is there, combine by {op}, and scatter the result",
        draft.edits,
        Safety.EXACT if exact else Safety.NUMERIC,
    )


def _compared(node: Node, model: Model, op: str) -> Fix | None:
    """For indices that may name one place twice."""
    data, output = node.input(0), node.output()
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or output is None or elem is None or not target_of(model).between(elem):
        return None
    if not _combines(node, op, elem):
        return None
    draft = Draft(node)
    total = _scatter.reduced(draft, node, model, op)
    if not total:
        return None
    put(draft, _combined(draft, op, data.name, total, integer=dtypes.is_integer(elem)), output)
    return Fix(
        "compare each element's place with each index, and reduce the updates that meet it",
        draft.edits,
        Safety.EXACT if dtypes.is_integer(elem) and op in ("Max", "Min") else Safety.NUMERIC,
    )


def _combines(node: Node, op: str, elem: int) -> bool:
    """Whether there are operators of this opset that combine such elements. A scatter takes booleans, too."""
    if dtypes.is_integer(elem) and op in ("Max", "Min"):
        op = "Less"
    opset = node.scope.opset()
    return takes(op, opset, elem) and takes("Where", opset, elem, 1)


def _combined(draft: Draft, op: str, there: str, updates: Value | str, *, integer: bool) -> str:
    """What is there and the update, combined. ONNX Runtime 1.31 has Max(2**31, 0) = 0 for int64, so not by Max."""
    if not integer or op in ("Add", "Mul"):
        return draft.add(op, [there, updates])
    smaller = draft.add("Less", [there, updates] if op == "Max" else [updates, there])
    return draft.add("Where", [smaller, updates, there])


_ND = "g (float[4,3] x, float[2,3] u) => (float[4,3] y)"
_EL = "g (float[4,3] x, float[2,3] u) => (float[4,3] y)"
_ROWS = "<int64[2,1] i = {0, 2}>"
_PLACES = "<int64[2,3] i = {0, 1, 2, 3, 0, 1}>"


scatter_with_reduction.examples = [
    *(
        Fixed(
            f"ScatterND, {reduction}: rows that differ",
            before=f'{_ND} {_ROWS} {{ y = ScatterND<reduction = "{reduction}">(x, i, u) }}',
            after=f"{_ND} {_ROWS} {{ g = GatherND(x, i)  r = {op}(g, u)  y = ScatterND(x, i, r) }}",
            safety=Safety.EXACT if reduction in ("add", "mul") else Safety.NUMERIC,
        )
        for reduction, op in (("add", "Add"), ("mul", "Mul"), ("max", "Max"), ("min", "Min"))
    ),
    Fixed(
        "integers, the largest: exact; one index counts from the end",
        before="""g (int64[4,3] x, int64[2,3] u) => (int64[4,3] y) <int64[2,1] i = {0, -1}> {
            y = ScatterND<reduction = "max">(x, i, u) }""",
        after="""g (int64[4,3] x, int64[2,3] u) => (int64[4,3] y) <int64[2,1] i = {0, -1}> {
            g = GatherND(x, i)  l = Less(g, u)  r = Where(l, u, g)  y = ScatterND(x, i, r) }""",
    ),
    Fixed(
        "of a dynamic axis, inside a branch",
        before="""g (float[N,3] x, float[1,3] u, bool c) => (float[N,3] y) <int64[1,1] i = {0}> {
            y = If(c)<then_branch = p () => (float[N,3] v) { v = ScatterND<reduction = "add">(x, i, u) },
                      else_branch = q () => (float[N,3] w) { w = Neg(x) }> }""",
        after="""g (float[N,3] x, float[1,3] u, bool c) => (float[N,3] y) <int64[1,1] i = {0}> {
            y = If(c)<then_branch = p () => (float[N,3] v) {
                          g = GatherND(x, i)  r = Add(g, u)  v = ScatterND(x, i, r) },
                      else_branch = q () => (float[N,3] w) { w = Neg(x) }> }""",
        opset=16,
    ),
    Fixed(
        "ScatterElements, places that differ",
        before=f'{_EL} {_PLACES} {{ y = ScatterElements<axis = 0, reduction = "add">(x, i, u) }}',
        after=f"""{_EL} {_PLACES} {{
            g = GatherElements<axis = 0>(x, i)  r = Add(g, u)  y = ScatterElements<axis = 0>(x, i, r) }}""",
        target="rtx",
    ),
    Flagged(
        "the same row twice",
        f'{_ND} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND<reduction = "add">(x, i, u) }}',
    ),
    Flagged(
        "the same row twice, once counted from the end",
        f'{_ND} <int64[2,1] i = {{3, -1}}> {{ y = ScatterND<reduction = "add">(x, i, u) }}',
    ),
    Flagged(
        "perhaps the same row: the axis is dynamic",
        """g (float[N,3] x, float[2,3] u) => (float[N,3] y) <int64[2,1] i = {0, -1}> {
            y = ScatterND<reduction = "add">(x, i, u) }""",
        runs=False,
    ),
    Fixed(
        "indices at run time: each place is compared with each",
        before="""g (int32[4,3] x, int32[2,3] u, int64[2,1] i) => (int32[4,3] y) {
            y = ScatterND<reduction = "add">(x, i, u) }""",
        after="""g (int32[4,3] x, int32[2,3] u, int64[2,1] i) => (int32[4,3] y)
            <int64[2] a = {2, 1}, int64[1] n = {4}, int64[3] b = {1, 2, 1}, int64[4,1,1] r = {0, 1, 2, 3},
             int64[3] c = {1, 2, 3}, int32 zero = {0}, int64[1] k = {1}, int64[2] s = {4, 3}> {
            d = Reshape(i, a)  e = Mod(d, n)  f = Reshape(e, b)  h = Equal(f, r)
            v = Reshape(u, c)  w = Where(h, v, zero)  t = ReduceSum<keepdims = 0>(w, k)  q = Reshape(t, s)
            y = Add(x, q) }""",
        safety=Safety.NUMERIC,
        runs=False,  # indices that are out of range
    ),
    Fixed(
        "the same row twice, with numeric fixes",
        before=f'{_ND} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND<reduction = "max">(x, i, u) }}',
        after=f"""{_ND} <int64[2,1] i = {{1, 1}}, int64[2] a = {{2, 1}}, int64[1] n = {{4}}, int64[3] b = {{1, 2, 1}},
             int64[4,1,1] r = {{0, 1, 2, 3}}, int64[3] c = {{1, 2, 3}}, float zero = {{-inf}}, int64[1] k = {{1}},
             int64[2] s = {{4, 3}}> {{
            d = Reshape(i, a)  e = Mod(d, n)  f = Reshape(e, b)  h = Equal(f, r)
            v = Reshape(u, c)  w = Where(h, v, zero)  t = ReduceMax<keepdims = 0>(w, k)  q = Reshape(t, s)
            y = Max(x, q) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "ScatterElements with indices at run time",
        before="""g (int32[3,2] x, int32[2,2] u, int64[2,2] i) => (int32[3,2] y) {
            y = ScatterElements<axis = 0, reduction = "mul">(x, i, u) }""",
        after="""g (int32[3,2] x, int32[2,2] u, int64[2,2] i) => (int32[3,2] y)
            <int64 n = {3}, int64[3,1] r = {0, 1, 2}, int32 one = {1}, int64[1] a = {1}, int64[1] f = {1},
             int64[1] b = {2}> {
            it = Transpose<perm = [1,0]>(i)  ut = Transpose<perm = [1,0]>(u)
            c = Mod(it, n)  d = Unsqueeze(c, a)  h = Equal(d, r)  v = Unsqueeze(ut, f)  w = Where(h, v, one)
            t = ReduceProd<keepdims = 0>(w, b)  q = Transpose<perm = [1,0]>(t)  y = Mul(x, q) }""",
        safety=Safety.NUMERIC,
        target="rtx",
        runs=False,
    ),
    Flagged(
        "int8, which ONNX does not add along an axis",
        """g (int8[4,3] x, int8[2,3] u, int64[2,1] i) => (int8[4,3] y) {
            y = ScatterND<reduction = "add">(x, i, u) }""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Flagged(
        "indices at run time into a dynamic axis",
        """g (float[N,3] x, float[2,3] u, int64[2,1] i) => (float[N,3] y) {
            y = ScatterND<reduction = "add">(x, i, u) }""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Silent(
        "for ScatterElements TensorRT has a plugin",
        f'{_EL} {_PLACES} {{ y = ScatterElements<axis = 0, reduction = "add">(x, i, u) }}',
    ),
    Silent("no reduction", f"{_ND} {_ROWS} {{ y = ScatterND(x, i, u) }}"),
    Silent("none, written", f'{_ND} {_ROWS} {{ y = ScatterND<reduction = "none">(x, i, u) }}'),
    Flagged(
        "booleans, which a scatter adds and Add does not",
        """g (bool[4] x, bool[2] u) => (bool[4] y) <int64[2,1] i = {0, 2}> {
            y = ScatterND<reduction = "add">(x, i, u) }""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
]
