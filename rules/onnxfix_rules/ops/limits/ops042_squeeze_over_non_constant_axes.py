"""OPS042: Unsqueeze and Squeeze whose axes come at run time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from onnxfix.rule import (
    Dim,
    Draft,
    Fix,
    Fixed,
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
from onnxfix_rules.ops._result import put
from onnxfix_rules.ops.limits import _axes
from onnxfix_rules.ops.limits._axes import ONE, Axes, Choice


@rule("OPS042", ops=["Squeeze", "Unsqueeze"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[26])
def squeeze_over_non_constant_axes(node: Node, model: Model) -> Iterator[Match]:
    """An Unsqueeze or Squeeze whose axes come at run time, but of which it is known how many they are.

    ## Why it matters
    TensorRT wants to know the axes when it builds: `unsqueeze axis is not a constant` and `squeeze axis is not a
    constant`, measured with TensorRT-RTX 1.7.1. NVIDIA's list for TensorRT 10 says "axes must fold to a constant".

    ## Fix
    A Reshape. The shape is looked up in a table by a number that is computed from the axes, which are a shape tensor to
    TensorRT; they may count from the end and come in any order. Axes that ONNX forbids, as they repeat or are not of
    length 1, have no shape there. 7 layers of TensorRT-RTX 1.7.1 for one axis, 8 for more, and 5 more with a dynamic
    dimension. Where only one choice is possible, or all have the same result, the axes are written as a constant.
    Exact.

    None where the rank or the number of axes is not known, where the axes are computed from floats, which TensorRT
    takes for no shape, and before opset 14, whose Reshape cannot say 0, with dimensions that may be 0. An empty list of
    axes means nothing to Unsqueeze; to Squeeze it means all axes of length 1 for ONNX Runtime, and none for ONNX's
    reference. The optimization profile of such a model has to name axes: the least and the greatest that may come.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - https://onnx.ai/onnx/operators/onnx__Unsqueeze.html
    """
    data, output = node.require(0), node.require_output()
    axes = _axes.at_run_time(node, model)
    if axes is None or node.opset < 13:
        return
    target, elem = target_of(model), model.shapes.elem_type(data)
    count, shape = _axes.count_of(axes, model), model.shapes.shape(data)
    if count is None or (elem and target.accepts("Reshape", elem) is False):
        return
    if count == 0:
        fix = _none(node, data)
    elif shape is None or not max(len(shape), count, _rank(node, shape, count)) <= target.max_rank:
        fix = None
    else:
        fix = _some(node, data, output, axes, shape, count)
    if fix is not None:
        yield Match(
            f"the axes of this {node.op_type} come at run time, and TensorRT wants a constant",
            node=node,
            fix=fix,
            reads=(axes, data),
        )


def _rank(node: Node, shape: tuple[Dim, ...], count: int) -> int:
    """The rank that the axes count in."""
    return len(shape) + count if node.op_type == "Unsqueeze" else len(shape)


def _none(node: Node, data: Value) -> Fix | None:
    if node.op_type == "Squeeze":
        return None
    draft = Draft(node)
    draft.bypass(node, data)
    return Fix("read the data itself", draft.edits)


def _some(
    node: Node, data: Value, output: Value, axes: Value, shape: tuple[Dim, ...], count: int
) -> Fix | None:
    draft = Draft(node)
    rank = _rank(node, shape, count)
    rows = _added(rank, count) if node.op_type == "Unsqueeze" else _removed(shape, count)
    if not rows:
        return None
    sizes = {tuple(_size(shape, dim) for dim in row) for row in rows.values()}
    if len(sizes) == 1:
        draft.set_input(node, 1, draft.constant(np.array(next(iter(rows)), np.int64), "axes"))
        return Fix("write the axes, of which only one choice is possible", draft.edits)
    if not _axes.is_shape_tensor(axes, node.model):
        return None
    choice = Choice(draft, data, axes, rank=rank, count=count)
    empty = any(dim.value in (None, 0) for dim in shape)
    made = _axes.reshaped(draft, data, choice.shape(rows), empty=empty)
    if made is None:
        return None
    put(draft, made, output)
    return Fix(f"reshape to one of {len(sizes)} shapes", draft.edits)


def _added(rank: int, count: int) -> dict[Axes, list[int]]:
    """The dimensions of the result, by the axes that are new."""
    rows = {}
    for new in itertools.combinations(range(rank), count):
        old = iter(range(rank - count))
        rows[new] = [ONE if axis in new else next(old) for axis in range(rank)]
    return rows


def _removed(shape: tuple[Dim, ...], count: int) -> dict[Axes, list[int]]:
    """The dimensions of the result, by the axes that go: those that are of length 1, or may be."""
    may_go = [axis for axis, dim in enumerate(shape) if dim.value in (None, 1)]
    return {
        gone: [axis for axis in range(len(shape)) if axis not in gone]
        for gone in itertools.combinations(may_go, count)
    }


def _size(shape: tuple[Dim, ...], dim: int) -> tuple[str, int]:
    """What a dimension is: a number, or one of the data's."""
    if dim == ONE:
        return "size", 1
    known = shape[dim].value
    return ("size", known) if known is not None else ("dim", dim)


_ADD = "g (float[2,3] x, int64[1] a) => (float[A,B,C] y)"


squeeze_over_non_constant_axes.examples = [
    Fixed(
        "where the axis is added",
        before=f"{_ADD} {{ y = Unsqueeze(x, a) }}",
        after=f"""{_ADD} <int64[1] rank = {{3}}, int64[1] zero = {{0}},
            int64[6,3] shapes = {{1, 2, 3, 2, 1, 3, 2, 3, 1, 1, 2, 3, 2, 1, 3, 2, 3, 1}}> {{
            p = Add(a, rank)  c = Squeeze(p, zero)  s = Gather<axis = 0>(shapes, c)  y = Reshape(x, s) }}""",
        opset=13,
    ),
    Fixed(
        "two axes; the data have one, which is dynamic and may be empty",
        before="g (int32[N] x, int64[2] a) => (int32[A,B,C] y) { y = Unsqueeze(x, a) }",
        after="""g (int32[N] x, int64[2] a) => (int32[A,B,C] y)
            <int64[1] rank = {3}, int64[6] powers = {1, 2, 4, 1, 2, 4}, int64[1] zero = {0}, int64[2] more = {1, 0},
            int64[9,3] dims = {2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 0, 2, 2, 2, 1, 0, 1, 0, 1, 1, 2, 2, 2, 2, 2, 2}> {
            p = Add(a, rank)  b = Gather(powers, p)  c = ReduceSum<keepdims = 0>(b, zero)
            j = Gather<axis = 0>(dims, c)  h = Shape(x)  e = Concat<axis = 0>(h, more)
            s = Gather(e, j)  y = Reshape<allowzero = 1>(x, s) }""",
    ),
    Fixed(
        "which of two axes goes",
        before="g (float[1,3,1] x, int64[1] a) => (float[A,B] y) { y = Squeeze(x, a) }",
        after="""g (float[1,3,1] x, int64[1] a) => (float[A,B] y) <int64[1] rank = {3}, int64[1] zero = {0},
            int64[6,2] shapes = {3, 1, 0, 0, 1, 3, 3, 1, 0, 0, 1, 3}> {
            p = Add(a, rank)  c = Squeeze(p, zero)  s = Gather<axis = 0>(shapes, c)  y = Reshape(x, s) }""",
        opset=13,
        runs=False,  # axes that are made up do not fit
    ),
    Fixed(
        "only one axis can go",
        before="g (float[1,3,4] x, int64[1] a) => (float[A,B] y) { y = Squeeze(x, a) }",
        after="g (float[1,3,4] x, int64[1] a) => (float[A,B] y) <int64[1] b = {0}> { y = Squeeze(x, b) }",
    ),
    Fixed(
        "whichever goes, the result is the same",
        before="g (float[1,1,3] x, int64[1] a) => (float[A,B] y) { y = Squeeze(x, a) }",
        after="g (float[1,1,3] x, int64[1] a) => (float[A,B] y) <int64[1] b = {0}> { y = Squeeze(x, b) }",
    ),
    Fixed(
        "a scalar gets two axes",
        before="g (float x, int64[2] a) => (float[A,B] y) { y = Unsqueeze(x, a) }",
        after="g (float x, int64[2] a) => (float[A,B] y) <int64[2] b = {0, 1}> { y = Unsqueeze(x, b) }",
    ),
    Fixed(
        "no axis is added",
        before="g (float[N] x, int64[0] a) => (float[N] y) { u = Unsqueeze(x, a)  y = Neg(u) }",
        after="g (float[N] x, int64[0] a) => (float[N] y) { y = Neg(x) }",
    ),
    Silent(
        "an empty list of axes to remove: all of length 1 for ONNX Runtime, none for ONNX's reference",
        "g (float[1,3] x, int64[0] a) => (float[A] y) { y = Squeeze(x, a) }",
        runs=False,
    ),
    Silent(
        "nothing can go: the model is broken",
        "g (float[2,3] x, int64[1] a) => (float[A] y) { y = Squeeze(x, a) }",
        runs=False,
    ),
    Silent(
        "axes that are computed from floats, which TensorRT takes for no shape",
        """g (float[2,3] x, float[1] f) => (float[A,B,C] y) { a = Cast<to = 7>(f)  y = Unsqueeze(x, a) }""",
        runs=False,
    ),
    Silent(
        "an unknown number of axes",
        "g (float[2,3] x, int64[K] a) => (float[A,B,C] y) { y = Unsqueeze(x, a) }",
        runs=False,
    ),
    Silent(
        "a dynamic axis before opset 14: a Reshape cannot say that it is empty",
        "g (float[N,3] x, int64[1] a) => (float[A,B,C] y) { y = Unsqueeze(x, a) }",
        opset=13,
        runs=False,
    ),
    Silent(
        "more than eight dimensions, which TensorRT has not",
        "g (float[1,1,1,2,1,1,1,2] x, int64[1] a) => (float[A,B,C,D,E,F,G,H,I] y) { y = Unsqueeze(x, a) }",
        runs=False,
    ),
    Silent(
        "constant axes", "g (float[2,3] x) => (float[2,1,3] y) <int64[1] a = {1}> { y = Unsqueeze(x, a) }"
    ),
    Silent("no axes: all of length 1", "g (float[1,3] x) => (float[3] y) { y = Squeeze(x) }"),
    Silent(
        "before opset 13 axes are an attribute",
        "g (float[2,3] x) => (float[2,1,3] y) { y = Unsqueeze<axes = [1]>(x) }",
        opset=12,
    ),
    Silent(
        "computed from a default that a caller may override, which is a weight to TensorRT",
        """g (float[2,1] x, int64[1] a = {1}) => (float[A] y) <int64[1] z = {0}> {
            b = Add(a, z)  y = Squeeze(x, b) }""",
    ),
]
