"""OPS053: cumulative products."""

from __future__ import annotations

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
