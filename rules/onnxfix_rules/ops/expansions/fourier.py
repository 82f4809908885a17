"""Fourier transforms, as products with matrices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
    rule,
    target_of,
)

LIMIT = 1 << 22
"""Maximum elements of a matrix."""


@dataclass(frozen=True)
class Transform:
    """A DFT along an axis: of ``length`` elements of ``parts`` components (1 for real, 2 for complex), padded with
    zeros or cut to ``points``."""

    length: int
    parts: int
    points: int
    inverse: bool
    onesided: bool

    @property
    def results(self) -> int:
        """The number of result elements."""
        return self.points // 2 + 1 if self.onesided and not self.inverse else self.points

    @property
    def result_parts(self) -> int:
        """The number of components of each result element."""
        return 1 if self.onesided and self.inverse else 2

    @property
    def size(self) -> int:
        """Elements of the matrix."""
        return self.length * self.parts * self.results * self.result_parts

    def matrix(self, dtype: np.dtype[Any], columns: int | None = None) -> np.ndarray[Any, Any]:
        """The matrix of shape [length * parts, results * result_parts]; zero columns up to ``columns`` results."""
        used = min(self.length, self.points // 2 + 1 if self.result_parts == 1 else self.points)
        # Angles are computed modulo a full turn, so that quarter turns have exact sines.
        turns = np.outer(np.arange(used), np.arange(self.results)) % self.points / self.points
        sign = 1 if self.inverse else -1
        cosines, sines = _cosine(turns), sign * _cosine((turns - 0.25) % 1)
        wide = np.zeros((self.length, self.parts, columns or self.results, self.result_parts))
        wide[:used, 0, : self.results, 0] = cosines
        if self.result_parts == 2:
            wide[:used, 0, : self.results, 1] = sines
        if self.parts == 2:
            wide[:used, 1, : self.results, 0] = -sines
            if self.result_parts == 2:
                wide[:used, 1, : self.results, 1] = cosines
        if self.result_parts == 1:
            # All but the first, and the middle one of an even number, stand for a conjugate pair.
            weights = np.full(used, 2.0)
            weights[:1] = 1
            if self.points % 2 == 0 and used == self.points // 2 + 1:
                weights[-1] = 1
            wide[:used] *= weights[:, None, None, None]
        if self.inverse:
            wide /= self.points
        return wide.reshape(self.length * self.parts, -1).astype(dtype) + 0  # no negative zeros


def _cosine(turns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The cosine of angles in turns from 0 to 1; exact for quarter turns."""
    cosines = np.cos(2 * np.pi * turns)
    return np.where((turns == 0.25) | (turns == 0.75), 0.0, cosines)


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)


@rule("OPS057", ops=["DFT"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43])
def fourier_transform(node: Node, model: Model) -> Iterator[Match]:
    """A DFT, which TensorRT-RTX does not import.

    ## Why it matters
    TensorRT-RTX has STFT but not DFT: `Plugin not found, are the plugin name, version, and namespace correct?`,
    measured with 1.7.1.

    ## Fix
    A product with a constant matrix of cosines and sines, where the axis has a static length; between two Transposes
    for any axis but the second-to-last. Where the axis itself is not constant, the transform is computed along all of
    them, and the result is selected and cut to its size; all dimensions must be static for that. The cost is the number
    of the matrix's elements, at most 4 million, so long signals take far more work than a fast transform. Rounding
    differs, so the fix requires `--numeric-fixes`.

    TensorRT layers: 4 to 7; with a non-constant axis 31 to 59.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DFT.html
    """
    data, output = node.require(0), node.require_output()
    if target_of(model).imports("DFT") is not False:
        return
    fix = _fix(node, model, data, output)
    yield Match(
        "TensorRT has no DFT" + ("" if fix else ", and its length is dynamic or too large for a matrix"),
        node=node,
        fix=fix,
        reads=tuple(value for value in node.inputs[1:] if value is not None),
    )


def _fix(node: Node, model: Model, data: Value, output: Value) -> Fix | None:
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    if shape is None or len(shape) < 2 or elem not in _FLOATS:
        return None
    sizes = [dim.value for dim in shape]
    axis = _axis(node, len(sizes))
    found: dict[int, Transform] = {}
    for candidate in range(len(sizes) - 1) if axis is None else [axis]:
        transform = _transform(node, sizes[candidate], sizes[-1])
        if transform is not None:
            found[candidate] = transform
    if not found or sum(one.size for one in found.values()) > LIMIT:
        return None
    draft = Draft(node)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    if axis is not None:
        draft.replace_output(node, _along(draft, data, axis, len(sizes), found[axis], dtype))
        return Fix("multiply by the transform's matrix", draft.edits, Safety.NUMERIC)
    static = [size for size in sizes if size is not None]
    if len(static) < len(sizes) or 0 in static or not _fits(found, _largest(_table(static, found))):
        return None
    draft.replace_output(node, _selected(draft, node, static, found, dtype))
    return Fix("multiply by the transforms' matrices and select one", draft.edits, Safety.NUMERIC)


def _axis(node: Node, rank: int) -> int | None:
    """The axis; None where it is not constant."""
    if node.opset < 20:
        return int(node.attr("axis", 1)) % rank
    value = node.input(2)
    if value is None:
        return rank - 2
    array = value.constant()
    return None if array is None or array.size != 1 else int(array.reshape(-1)[0]) % rank


def _transform(node: Node, length: int | None, parts: int | None) -> Transform | None:
    """The transform along an axis of this length; None where unknown or invalid."""
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if not length or parts not in (1, 2) or (onesided and (parts == 1) == inverse):
        return None
    points = 2 * (length - 1) if inverse and onesided else length
    given = node.input(1)
    if given is not None:
        array = given.constant()
        if array is None or array.size != 1:
            return None
        points = int(array.reshape(-1)[0])
    return Transform(length, parts, points, inverse, onesided) if points >= 1 else None


def _along(
    draft: Draft,
    data: Value,
    axis: int,
    rank: int,
    transform: Transform,
    dtype: np.dtype[np.generic],
    results: int | None = None,
) -> str:
    """The transform along one axis, as the name of a value; padded with zeros to ``results`` elements."""
    order = [*(other for other in range(rank - 1) if other != axis), axis, rank - 1]
    name = data.name if axis == rank - 2 else draft.add("Transpose", [data], perm=order)
    matrix = draft.constant(transform.matrix(dtype, results), "matrix")
    others = [0] * (rank - 2)
    rows = draft.integers([*(others or [1]), transform.length * transform.parts], "rows")
    product = draft.add("MatMul", [draft.add("Reshape", [name, rows]), matrix])
    last = [results or transform.results, transform.result_parts]
    name = draft.add("Reshape", [product, draft.integers([*others, *last], "shape")])
    if axis == rank - 2:
        return name
    return draft.add("Transpose", [name], perm=[order.index(index) for index in range(rank)])


def _table(sizes: list[int], found: dict[int, Transform]) -> list[list[int]]:
    """The shape of the result for each axis."""
    parts = next(iter(found.values())).result_parts
    table = [[*sizes[:-1], parts] for _ in range(len(sizes) - 1)]
    for index, transform in found.items():
        table[index][index] = transform.results
    return table


def _largest(table: list[list[int]]) -> list[int]:
    """The largest size of each dimension among the shapes."""
    return [max(column) for column in zip(*table, strict=True)]


def _fits(found: dict[int, Transform], largest: list[int]) -> bool:
    """Whether the matrices stay within the limit when they are padded to the largest sizes."""
    padded = (one.length * one.parts * largest[index] * one.result_parts for index, one in found.items())
    return sum(padded) <= LIMIT


def _selected(
    draft: Draft, node: Node, sizes: list[int], found: dict[int, Transform], dtype: np.dtype[np.generic]
) -> str:
    """The transform along a non-constant axis: all are padded to the largest size, then one is selected and cut."""
    data, axis, rank = node.require(0), node.require(2), len(sizes)
    table = _table(sizes, found)
    largest = _largest(table)
    counted = draft.add("Mod", [axis, draft.integers(rank, "rank")])
    result = ""
    for index, transform in found.items():
        name = _along(draft, data, index, rank, transform, dtype, largest[index])
        missing = [big - size for big, size in zip(largest, sizes, strict=True)]
        missing[index] = missing[-1] = 0
        if any(missing):
            amounts = draft.integers([0] * rank + missing, "pads")
            name = draft.add("Pad", [name, amounts])
        if result:
            same = draft.add("Equal", [counted, draft.integers(index, "place")])
            name = draft.add("Where", [same, name, result])
        result = name
    if all(row == largest for row in table):
        return result
    row = draft.add("Gather", [draft.integers(table, "sizes"), counted], axis=0)
    return draft.add("Slice", [result, draft.constant(np.zeros(rank, np.int64), "starts"), row])


_fixed = partial(Fixed, opset=20, safety=Safety.NUMERIC, target="rtx")
_flagged = partial(Flagged, opset=20, safety=Safety.NUMERIC, target="rtx")
fourier_transform.examples = [
    _fixed(
        "two real values: their sum and difference",
        before="g (float[N,2,1] x) => (float[N,2,2] y) { y = DFT(x) }",
        after="""g (float[N,2,1] x) => (float[N,2,2] y)
            <int64[2] r = {0, 2}, float[2,4] w = {1, 0, 1, 0, 1, 0, -1, 0}, int64[3] s = {0, 2, 2}> {
            a = Reshape(x, r)  b = MatMul(a, w)  y = Reshape(b, s) }""",
    ),
    Fixed(
        "four real values, one-sided; the axis is an attribute",
        before="g (float[1,4,N,1] x) => (float[1,3,N,2] y) { y = DFT<axis = 1, onesided = 1>(x) }",
        after="""g (float[1,4,N,1] x) => (float[1,3,N,2] y)
            <int64[3] r = {0, 0, 4}, int64[4] s = {0, 0, 3, 2},
             float[4,6] w = {1,0,1,0,1,0, 1,0,0,-1,-1,0, 1,0,-1,0,1,0, 1,0,0,1,-1,0}> {
            t = Transpose<perm = [0,2,1,3]>(x)  a = Reshape(t, r)  b = MatMul(a, w)  c = Reshape(b, s)
            y = Transpose<perm = [0,2,1,3]>(c) }""",
        safety=Safety.NUMERIC,
        opset=17,
        target="rtx",
    ),
    _fixed(
        "inverse, one complex value padded to two",
        before="g (float[1,2] x) => (float[2,2] y) <int64 n = {2}> { y = DFT<inverse = 1>(x, n) }",
        after="""g (float[1,2] x) => (float[2,2] y)
            <int64[2] r = {1, 2}, float[2,4] w = {0.5, 0, 0.5, 0, 0, 0.5, 0, 0.5}, int64[2] s = {2, 2}> {
            a = Reshape(x, r)  b = MatMul(a, w)  y = Reshape(b, s) }""",
    ),
    _fixed(
        "a non-constant axis: computed along each, and one is selected",
        before="g (float[1,2,2] x, int64 a) => (float[1,2,2] y) { y = DFT(x, , a) }",
        after="""g (float[1,2,2] x, int64 a) => (float[1,2,2] y)
            <int64[2] r = {0, 2}, float[2,2] v = {1, 0, 0, 1}, int64[3] s = {0, 1, 2},
             int64[2] q = {0, 4}, float[4,4] w = {1,0,1,0, 0,1,0,1, 1,0,-1,0, 0,1,0,-1}, int64[3] t = {0, 2, 2},
             int64 three = {3}, int64 one = {1}> {
            b = Transpose<perm = [1,0,2]>(x)  c = Reshape(b, r)  d = MatMul(c, v)  e = Reshape(d, s)
            f = Transpose<perm = [1,0,2]>(e)
            h = Reshape(x, q)  i = MatMul(h, w)  j = Reshape(i, t)
            k = Mod(a, three)  l = Equal(k, one)  y = Where(l, j, f) }""",
        runs=False,  # an axis out of range means the last one, or an error
    ),
    _flagged("along a dynamic axis", "g (float[2,N,1] x) => (float[2,N,2] y) { y = DFT(x) }"),
    _flagged("a non-constant length", "g (float[2,4,1] x, int64 n) => (float[2,N,2] y) { y = DFT(x, n) }"),
    Silent(
        "TensorRT 11 has the plugin",
        "g (float[2,4,1] x) => (float[2,4,2] y) { y = DFT(x) }",
        target="trt11",
        opset=20,
    ),
    Silent(
        "STFT, which TensorRT has",
        "g (float[1,16,1] x) => (float[1,3,5,2] y) <int64 s = {4}, int64 n = {8}> { y = STFT(x, s, , n) }",
        opset=20,
        target="rtx",
    ),
]
