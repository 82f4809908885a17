"""OPS053 and OPS056: cumulative products and determinants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

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
    dtypes,
    is_small,
    rule,
    target_of,
)

_LAYERS = 200
_STEP_LAYERS = 8
"""TensorRT layers of a Gather, a Where and a Mul, including constants."""


@rule("OPS053", ops=["CumProd"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43])
def cumulative_product(node: Node, model: Model) -> Iterator[Match]:
    """A CumProd, which TensorRT does not import.

    ## Why it matters
    TensorRT has CumSum but not CumProd: `Plugin not found, are the plugin name, version, and namespace correct?`,
    measured with TensorRT-RTX 1.7.1.

    ## Fix
    Each element is multiplied by the one before it, then by the one two before it, four, and so on: a Gather that
    shifts the tensor, a Where and a Mul for each doubling, where the axis has a static length. Where the axis itself is
    not constant, the product is computed along all of them and selected: all lengths must be static. Exact for
    integers; for floats the order of the products changes, which requires `--numeric-fixes`. No fix where that would be
    more than 200 layers.

    TensorRT layers: up to 8 for each doubling, 47 for an axis of 64; 18 to 27 for ONNX's own test models, whose axis is
    not constant.

    ## References
    - https://onnx.ai/onnx/operators/onnx__CumProd.html
    """
    data, axis, output = node.input(0), node.require(1), node.require_output()
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or target_of(model).imports("CumProd") is not False:
        return
    fix = None
    if elem and target_of(model).has_type(elem):
        fix = _fix(node, data, axis, output)
    yield Match(
        "TensorRT has no CumProd" + ("" if fix else ", and the length of the axis is dynamic or too large"),
        node=node,
        fix=fix,
        reads=(axis,),
    )


def _fix(node: Node, data: Value, axis: Value, output: Value) -> Fix | None:
    model = node.model
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    if not shape or elem is None:
        return None
    chosen = axis.constant()
    axes = (
        [int(chosen.reshape(-1)[0]) % len(shape)]
        if chosen is not None and chosen.size == 1
        else range(len(shape))
    )
    lengths = {index: shape[index].value for index in axes}
    doublings = [max(length - 1, 0).bit_length() for length in lengths.values() if length is not None]
    if len(doublings) < len(lengths) or _STEP_LAYERS * (sum(doublings) + len(doublings)) > _LAYERS:
        return None
    if not all(is_small(length or 0, *[1] * (len(shape) - 1)) for length in lengths.values()):
        return None
    draft = Draft(node)
    scan = _Scan(draft, node, elem, len(shape))
    products = {
        index: scan.along(data, index, length) for index, length in lengths.items() if length is not None
    }
    if chosen is None and len(products) > 1:
        result = _selected(draft, axis, products, model)
    else:
        result = next(iter(products.values()))
    draft.replace_output(node, result)
    safety = Safety.EXACT if dtypes.is_integer(elem) else Safety.NUMERIC
    return Fix("multiply by copies shifted by 1, 2, 4, ...", draft.edits, safety)


class _Scan:
    """Products along an axis, by doubling."""

    def __init__(self, draft: Draft, node: Node, elem: int, rank: int) -> None:
        self.draft, self.rank = draft, rank
        self.reverse, self.exclusive = bool(node.attr("reverse", 0)), bool(node.attr("exclusive", 0))
        self.one = draft.constant(np.array(1, helper.tensor_dtype_to_np_dtype(elem)), "one")
        self._constants: dict[tuple[tuple[int, ...], bytes], str] = {}

    def along(self, data: Value, axis: int, length: int) -> str:
        """All products along one axis, as the name of a value."""
        name = data.name
        if not length:
            return name
        if self.exclusive:
            name = self._shifted(name, axis, 1, length)
        step = 1
        while step < length:
            name = self.draft.add("Mul", [name, self._shifted(name, axis, step, length)])
            step *= 2
        return name

    def _shifted(self, name: str, axis: int, by: int, length: int) -> str:
        """The elements ``by`` positions before, or after in reverse; 1 outside of the axis."""
        positions = np.arange(length) + (by if self.reverse else -by)
        taken = self.draft.add("Gather", [name, self._constant(np.clip(positions, 0, length - 1))], axis=axis)
        outside = (positions < 0) | (positions >= length)
        mask = self._constant(outside.reshape([-1 if other == axis else 1 for other in range(self.rank)]))
        return self.draft.add("Where", [mask, self.one, taken])

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        key = (array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.draft.constant(
                array, "places" if array.dtype == np.int64 else "outside"
            )
        return self._constants[key]


def _selected(draft: Draft, axis: Value, products: dict[int, str], model: Model) -> str:
    """The product along a non-constant axis, which may be negative."""
    dtype = np.int32 if model.shapes.elem_type(axis) == TensorProto.INT32 else np.int64
    counted = draft.add("Mod", [axis, draft.constant(np.array(len(products), dtype), "rank")])
    *first, last = products
    result = products[last]
    for index in reversed(first):
        same = draft.add("Equal", [counted, draft.constant(np.array(index, dtype), "index")])
        result = draft.add("Where", [same, products[index], result])
    return result


_fixed = partial(Fixed, ir_version=13, opset=26)
cumulative_product.examples = [
    _fixed(
        "four elements: two doublings",
        before="g (float[N,4] x) => (float[N,4] y) <int64 a = {1}> { y = CumProd(x, a) }",
        after="""g (float[N,4] x) => (float[N,4] y)
            <float one = {1}, int64[4] i = {0, 0, 1, 2}, int64[4] j = {0, 0, 0, 1},
             bool[1,4] m = {1, 0, 0, 0}, bool[1,4] n = {1, 1, 0, 0}> {
            s = Gather<axis = 1>(x, i)  b = Where(m, one, s)  c = Mul(x, b)
            t = Gather<axis = 1>(c, j)  d = Where(n, one, t)  y = Mul(c, d) }""",
        safety=Safety.NUMERIC,
    ),
    _fixed(
        "integers, reverse and exclusive: exact",
        before="g (int32[3] x) => (int32[3] y) <int64 a = {-1}> { y = CumProd<reverse = 1, exclusive = 1>(x, a) }",
        after="""g (int32[3] x) => (int32[3] y) <int32 one = {1}, int64[3] i = {1, 2, 2}, int64[3] j = {2, 2, 2},
            bool[3] m = {0, 0, 1}, bool[3] n = {0, 1, 1}> {
            r = Gather<axis = 0>(x, i)  e = Where(m, one, r)  s = Gather<axis = 0>(e, i)  b = Where(m, one, s)
            c = Mul(e, b)  t = Gather<axis = 0>(c, j)  d = Where(n, one, t)  y = Mul(c, d) }""",
    ),
    _fixed(
        "a non-constant axis: computed along each, and one is selected",
        before="g (int32[2,2] x, int32 a) => (int32[2,2] y) { y = CumProd(x, a) }",
        after="""g (int32[2,2] x, int32 a) => (int32[2,2] y)
            <int32 one = {1}, int64[2] i = {0, 0}, bool[2,1] m = {1, 0}, bool[1,2] n = {1, 0}, int32 two = {2},
             int32 z = {0}> {
            s = Gather<axis = 0>(x, i)  b = Where(m, one, s)  c = Mul(x, b)
            t = Gather<axis = 1>(x, i)  d = Where(n, one, t)  e = Mul(x, d)
            r = Mod(a, two)  f = Equal(r, z)  y = Where(f, c, e) }""",
        runs=False,  # ONNX's reference treats an axis out of range as none
    ),
    Flagged(
        "along a dynamic axis: unknown number of steps",
        "g (float[N,4] x) => (float[N,4] y) <int64 a = {0}> { y = CumProd(x, a) }",
        safety=Safety.NUMERIC,
        opset=26,
        ir_version=13,
    ),
    Silent(
        "a cumulative sum, which TensorRT has",
        "g (float[N,4] x) => (float[N,4] y) <int64 a = {1}> { y = CumSum(x, a) }",
    ),
]


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
    rows = [draft.add("Gather", [data, draft.integers(row, "row")], axis=-2) for row in range(size)]
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
    first, second = (draft.integers([pair[index] for pair in pairs], "columns") for index in range(2))

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
