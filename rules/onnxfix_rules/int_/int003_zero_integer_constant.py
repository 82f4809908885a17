"""INT003: an all-zero integer constant that makes its node a no-op."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from onnxfix.rule import (
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
    equal,
    name_of,
    rule,
)
from onnxfix.shapes.symbols import DIM_MAX, at_least

from ._common import is_zeros


@rule(
    "INT003",
    ops=["Add", "Sub", "Pad", "Slice", "Reshape", "Trilu"],
    safety=Safety.EXACT,
    severity=Severity.INFO,
    hazards=[34],
)
def zero_integer_constant(node: Node, model: Model) -> Iterator[Match]:
    """A node that an all-zero integer constant makes a no-op.

    ## Why it matters
    Another meaning of "int64 zero-weight layers" (NVIDIA/TensorRT #3609): int64 weights that are all zero, from
    exporters that write `offset + 0`, empty paddings and full slices. Each is a layer and an int64 weight, which
    TensorRT 8 reports with `Your ONNX model has been generated with INT64 weights`; the builder of later versions
    removes most. No-op pads and slices also keep TensorRT from detecting that a convolution follows.

    ## Fix
    The node is replaced by its input; if both are graph inputs or outputs, an Identity stays. Exact:

    - Add, Sub: integers only (for floats, -0.0 + 0.0 is 0.0), and only if broadcasting against the zeros provably
      preserves the data's shape for all dynamic dimensions.
    - Pad whose pads are all zero, for any mode and axes.
    - Slice from 0 in steps of 1 to an end that is at least the size: a sentinel of 2**31 - 1 or more, or a value that
      is not below a known size.
    - Reshape to a 0 for every dimension (without `allowzero`): each is copied.
    - Trilu's optional `k`, whose default is 0.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues/3609
    - https://onnx.ai/onnx/operators/onnx__Pad.html and https://onnx.ai/onnx/operators/onnx__Slice.html
    """
    if node.op_type == "Trilu":
        if is_zeros(node.input(1)):
            draft = Draft(node)
            draft.set_input(node, 1, None)
            yield Match("the input k of Trilu is 0, its default", node=node, fix=Fix("omit k", draft.edits))
        return
    source, zeros = _idle(node, model)
    if source is None or zeros is None:
        return
    draft = Draft(node)
    draft.bypass(node, source)
    elem = name_of(model.shapes.elem_type(zeros) or 0)
    message = f"{node.op_type} with the {elem} zeros {zeros.name} changes nothing"
    yield Match(message, node=node, fix=Fix(f"remove the {node.op_type}", draft.edits), reads=(source, zeros))


Idle = tuple[Value | None, Value | None]
"""The input that the node returns unchanged, and the zeros responsible; None, None if it is not a no-op."""
BUSY: Idle = (None, None)


def _idle(node: Node, model: Model) -> Idle:
    if len(node.outputs) != 1 or node.outputs[0] is None or node.input(0) is None:
        return BUSY
    return _IDLE[node.op_type](node, model)


def _add(node: Node, model: Model) -> Idle:
    a, b = node.input(0), node.input(1)
    if node.opset < 7:
        return BUSY  # broadcasting by attribute
    if is_zeros(b) and _keeps_shape(a, b, model):
        return a, b
    if node.op_type == "Add" and is_zeros(a) and _keeps_shape(b, a, model):
        return b, a
    return BUSY


def _keeps_shape(data: Value | None, zeros: Value | None, model: Model) -> bool:
    """Whether broadcasting against ``zeros`` preserves the shape of ``data`` for all sizes."""
    array = None if zeros is None else zeros.constant()
    if data is None or array is None:
        return False
    if array.ndim == 0:
        return True
    shape = model.shapes.shape(data)
    if shape is None or len(shape) < array.ndim:
        return False
    aligned = shape[len(shape) - array.ndim :]
    return all(size == 1 or equal(dim, size).yes for size, dim in zip(array.shape, aligned, strict=True))


def _pad(node: Node, model: Model) -> Idle:
    pads = node.input(1)
    return (node.input(0), pads) if node.opset >= 11 and is_zeros(pads) else BUSY


def _reshape(node: Node, model: Model) -> Idle:
    """Zeros for every dimension: each is copied."""
    data, shape = node.input(0), node.input(1)
    if node.opset < 5 or data is None or shape is None or not is_zeros(shape) or node.attr("allowzero", 0):
        return BUSY
    array = shape.constant()
    return (data, shape) if array is not None and array.shape == (model.shapes.rank(data),) else BUSY


def _slice(node: Node, model: Model) -> Idle:
    data, starts, ends = node.input(0), node.input(1), node.input(2)
    if node.opset < 10 or data is None or starts is None or ends is None or not is_zeros(starts):
        return BUSY
    first, last, steps = starts.constant(), ends.constant(), _constant_input(node, 4)
    if first is None or last is None or first.shape != last.shape or steps is None or not (steps == 1).all():
        return BUSY
    axes = _constant_input(node, 3)
    if axes is None:
        return BUSY
    positions = axes.tolist() if node.input(3) is not None else list(range(first.size))
    if len(positions) != last.size:
        return BUSY
    shape = model.shapes.shape(data)
    for axis, end in zip(positions, last.reshape(-1).tolist(), strict=True):
        if end >= DIM_MAX:
            continue
        if end < 0 or shape is None or not -len(shape) <= axis < len(shape):
            return BUSY
        if not at_least(end - shape[axis], 0).yes:
            return BUSY
    return data, starts


def _constant_input(node: Node, index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    """The optional input if it is constant; an empty array if it is absent; None if it is computed."""
    value = node.input(index)
    if value is None:
        return np.zeros(0, np.int64)
    array = value.constant()
    return None if array is None else array.astype(np.int64).reshape(-1)


_IDLE: dict[str, Callable[[Node, Model], Idle]] = {
    "Add": _add,
    "Sub": _add,
    "Pad": _pad,
    "Slice": _slice,
    "Reshape": _reshape,
}


zero_integer_constant.examples = [
    Fixed(
        "adding zeros of the data's shape",
        before="g (int64[N,3] x) => (int64[N,3] y) <int64[3] z = {0, 0, 0}> { a = Add(x, z)  y = Neg(a) }",
        after="g (int64[N,3] x) => (int64[N,3] y) { y = Neg(x) }",
    ),
    Fixed(
        "either operand of an Add, and a scalar for any rank",
        before="g (int64[] x) => (int64[] y) <int64 z = {0}> { a = Add(z, x)  y = Neg(a) }",
        after="g (int64[] x) => (int64[] y) { y = Neg(x) }",
    ),
    Fixed(
        "subtracting zeros, for another integer type",
        before="g (int32[N] x) => (int32[N] y) <int32[1] z = {0}> { a = Sub(x, z)  y = Neg(a) }",
        after="g (int32[N] x) => (int32[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "from a graph input to a graph output: both names stay",
        before="g (int64[N] x) => (int64[N] y) <int64 z = {0}> { y = Add(x, z) }",
        after="g (int64[N] x) => (int64[N] y) { y = Identity(x) }",
        differs={"function": "an input keeps its name"},
    ),
    Fixed(
        "a graph output keeps its name",
        before="g (int64[N] x) => (int64[N] y) <int64 z = {0}> { a = Neg(x)  y = Add(a, z) }",
        after="g (int64[N] x) => (int64[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "no padding, in any mode and of any type",
        before="""g (float[N,3] x) => (float[N,3] y) <int64[4] p = {0, 0, 0, 0}> {
            a = Pad<mode = "reflect">(x, p)  y = Relu(a) }""",
        after="g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    ),
    Fixed(
        "no padding of some axes; another node uses the same zeros",
        before="""g (float[N,3] x) => (float[N,3] y, int64[2] w)
                <int64[2] p = {0, 0}, int64[1] k = {1}, float v = {7}> {
            a = Pad(x, p, v, k)  y = Relu(a)  s = Shape(x)  w = Mul(s, p) }""",
        after="""g (float[N,3] x) => (float[N,3] y, int64[2] w) <int64[2] p = {0, 0}> {
            y = Relu(x)  s = Shape(x)  w = Mul(s, p) }""",
    ),
    Fixed(
        "a full slice, by a sentinel and by the size",
        before="""g (float[N,3] x) => (float[N,3] y) <int64[2] b = {0, 0}, int64[2] e = {9223372036854775807, 3},
                                                     int64[2] k = {0, -1}, int64[2] s = {1, 1}> {
            a = Slice(x, b, e, k, s)  y = Relu(a) }""",
        after="g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    ),
    Fixed(
        "a Reshape that copies every dimension",
        before="g (float[N,M] x) => (float[N,M] y) <int64[2] s = {0, 0}> { a = Reshape(x, s)  y = Relu(a) }",
        after="g (float[N,M] x) => (float[N,M] y) { y = Relu(x) }",
    ),
    Fixed(
        "the default of an optional input",
        before="g (float[N,N] x) => (float[N,N] y) <int64 k = {0}> { y = Trilu<upper = 0>(x, k) }",
        after="g (float[N,N] x) => (float[N,N] y) { y = Trilu<upper = 0>(x) }",
    ),
    Silent(
        "the zeros broadcast the data: dimension N may be 1",
        "g (int64[N] x) => (int64[M] y) <int64[3] z = {0, 0, 0}> { y = Add(x, z) }",
    ),
    Silent(
        "the zeros raise the rank", "g (int64[3] x) => (int64[1,3] y) <int64[1,1] z = {0}> { y = Add(x, z) }"
    ),
    Silent(
        "a one-element vector may raise the rank of a scalar",
        "g (int64[] x) => (int64[] y) <int64[1] z = {0}> { y = Add(x, z) }",
    ),
    Silent(
        "float zeros are not a no-op: -0.0 + 0.0 is 0.0",
        "g (float[N] x) => (float[N] y) <float z = {0}> { y = Add(x, z) }",
    ),
    Silent("0 - x", "g (int64[N] x) => (int64[N] y) <int64 z = {0}> { y = Sub(z, x) }"),
    Silent("0 * x", "g (int64[N] x) => (int64[N] y) <int64 z = {0}> { y = Mul(x, z) }"),
    Silent(
        "a default that a caller can override",
        "g (int64[N] x, int64[1] z = {0}) => (int64[N] y) { y = Add(x, z) }",
    ),
    Silent(
        "a slice that does or may end early",
        """g (float[N,5] x) => (float[M,5] y) <int64[1] b = {0}, int64[1] e = {8}> { y = Slice(x, b, e) }""",
    ),
    Silent(
        "a slice with step 2",
        """g (float[N] x) => (float[M] y)
                <int64[1] b = {0}, int64[1] e = {9223372036854775807}, int64[1] s = {2}> {
            y = Slice(x, b, e, b, s) }""",
    ),
    Silent(
        "with allowzero the zeros are sizes",
        "g (float[0,M] x) => (float[0,0] y) <int64[2] s = {0, 0}> { y = Reshape<allowzero = 1>(x, s) }",
    ),
    Silent(
        "zeros for some of the dimensions only",
        "g (float[N,1] x) => (float[N] y) <int64[1] s = {0}> { y = Reshape(x, s) }",
    ),
]
