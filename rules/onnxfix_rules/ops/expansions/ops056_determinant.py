"""OPS056: determinants of small matrices."""

from __future__ import annotations

import itertools
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
    Severity,
    Silent,
    Value,
    rule,
    target_of,
)

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_ROWS = range(2, 5)


@rule("OPS056", ops=["Det"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43])
def determinant(node: Node, model: Model) -> Iterator[Match]:
    """A Det, which TensorRT does not import.

    ## Why it matters
    TensorRT does not import it: `UNSUPPORTED_NODE`, measured with TensorRT-RTX 1.7.1. Models of rotations and boxes use
    small ones.

    ## Fix
    Matrices of two to four rows: the products of the formula, by the minors of the last two rows. The products differ
    from ONNX Runtime's elimination, so the fix requires `--numeric-fixes`. No fix for larger matrices.

    TensorRT layers: 21, 28 and 44 for two, three and four rows.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Det.html
    """
    data, output = node.require(0), node.require_output()
    if target_of(model).imports("Det") is not False:
        return
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    fix = None
    if shape is not None and len(shape) >= 2 and elem in _FLOATS:
        size = shape[-1].value
        if size is not None and size in _ROWS and shape[-2].value == size:
            fix = _decomposed(node, data, output, size, elem, len(shape))
    yield Match(
        "TensorRT has no Det" + ("" if fix else ", and the fix needs a static matrix of two to four rows"),
        node=node,
        fix=fix,
    )


def _decomposed(node: Node, data: Value, output: Value, size: int, elem: int, rank: int) -> Fix:
    draft = Draft(node)
    rows = [
        draft.add("Gather", [data, draft.constant(np.array(row, np.int64), "row")], axis=-2)
        for row in range(size)
    ]
    pairs: list[tuple[int, ...]] = list(itertools.combinations(range(size), 2))
    if size == 2:
        draft.replace_output(node, draft.squeeze(_minors(draft, rows[0], rows[1], pairs), [-1]))
    else:
        # Each column, or pair of columns, with the minor of the remaining columns.
        own = [(column,) for column in range(3)] if size == 3 else pairs
        left = [tuple(column for column in range(size) if column not in columns) for columns in own]
        signs = [_sign((*columns, *rest)) for columns, rest in zip(own, left, strict=True)]
        first = rows[0] if size == 3 else _minors(draft, rows[0], rows[1], pairs)
        product = draft.add("Mul", [first, _minors(draft, rows[-2], rows[-1], left)])
        weights = draft.constant(np.array(signs, helper.tensor_dtype_to_np_dtype(elem)), "signs")
        weighed = draft.add("Mul", [product, weights])
        draft.replace_output(node, draft.sum(weighed, [rank - 2]))
    return Fix("decompose the determinant", draft.edits, Safety.NUMERIC)


def _sign(order: tuple[int, ...]) -> int:
    """The sign of a permutation."""
    return -1 if sum(a > b for a, b in itertools.combinations(order, 2)) % 2 else 1


def _minors(draft: Draft, above: str, below: str, pairs: list[tuple[int, ...]]) -> str:
    """The determinants of two rows for pairs of columns."""
    first, second = (
        draft.constant(np.array([pair[index] for pair in pairs], np.int64), "columns") for index in range(2)
    )

    def product(columns: str, others: str) -> str:
        parts = [
            draft.add("Gather", [above, columns], axis=-1),
            draft.add("Gather", [below, others], axis=-1),
        ]
        return draft.add("Mul", parts)

    return draft.add("Sub", [product(first, second), product(second, first)])


determinant.examples = [
    Fixed(
        "two rows and columns",
        before="g (float[N,2,2] x) => (float[N] y) { y = Det(x) }",
        after="""g (float[N,2,2] x) => (float[N] y)
            <int64 k = {0}, int64 l = {1}, int64[1] p = {0}, int64[1] q = {1}, int64[1] last = {-1}> {
            r = Gather<axis = -2>(x, k)  s = Gather<axis = -2>(x, l)
            a = Gather<axis = -1>(r, p)  b = Gather<axis = -1>(s, q)  c = Mul(a, b)
            d = Gather<axis = -1>(r, q)  e = Gather<axis = -1>(s, p)  f = Mul(d, e)
            h = Sub(c, f)  y = Squeeze(h, last) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "three rows, a single matrix",
        before="g (float[3,3] x) => (float y) { y = Det(x) }",
        after="""g (float[3,3] x) => (float y)
            <int64 i = {0}, int64 j = {1}, int64 k = {2}, int64[3] p = {1, 0, 0}, int64[3] q = {2, 2, 1},
             float[3] signs = {1, -1, 1}, int64[1] last = {0}> {
            t = Gather<axis = -2>(x, i)  r = Gather<axis = -2>(x, j)  s = Gather<axis = -2>(x, k)
            a = Gather<axis = -1>(r, p)  b = Gather<axis = -1>(s, q)  c = Mul(a, b)
            d = Gather<axis = -1>(r, q)  e = Gather<axis = -1>(s, p)  f = Mul(d, e)
            h = Sub(c, f)  u = Mul(t, h)  v = Mul(u, signs)  y = ReduceSum<keepdims = 0>(v, last) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "four rows",
        before="g (float[N,4,4] x) => (float[N] y) { y = Det(x) }",
        after="""g (float[N,4,4] x) => (float[N] y)
            <int64 i = {0}, int64 j = {1}, int64 k = {2}, int64 l = {3},
             int64[6] p = {0, 0, 0, 1, 1, 2}, int64[6] q = {1, 2, 3, 2, 3, 3},
             int64[6] m = {2, 1, 1, 0, 0, 0}, int64[6] n = {3, 3, 2, 3, 2, 1},
             float[6] signs = {1, -1, 1, 1, -1, 1}, int64[1] last = {1}> {
            r = Gather<axis = -2>(x, i)  s = Gather<axis = -2>(x, j)  t = Gather<axis = -2>(x, k)
            u = Gather<axis = -2>(x, l)
            a = Gather<axis = -1>(r, p)  b = Gather<axis = -1>(s, q)  c = Mul(a, b)
            d = Gather<axis = -1>(r, q)  e = Gather<axis = -1>(s, p)  f = Mul(d, e)  h = Sub(c, f)
            aa = Gather<axis = -1>(t, m)  bb = Gather<axis = -1>(u, n)  cc = Mul(aa, bb)
            dd = Gather<axis = -1>(t, n)  ee = Gather<axis = -1>(u, m)  ff = Mul(dd, ee)  hh = Sub(cc, ff)
            v = Mul(h, hh)  w = Mul(v, signs)  y = ReduceSum<keepdims = 0>(w, last) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged("five rows", "g (float[N,5,5] x) => (float[N] y) { y = Det(x) }", safety=Safety.NUMERIC),
    Flagged("unknown size", "g (float[N,M,M] x) => (float[N] y) { y = Det(x) }", safety=Safety.NUMERIC),
    Silent(
        "a local function of that name",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,2,2] x) => (float[N] y) { y = my.Det(x) }
            <domain: "my", opset_import: ["" : 18]> Det (a) => (b) { b = ReduceSum<keepdims = 0>(a) }""",
        runs=False,
    ),
]
