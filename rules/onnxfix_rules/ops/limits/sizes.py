"""Limits of ranks, of TopK, and of the sizes of layers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import numpy as np

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
    UnknownAttribute,
    Value,
    every_node,
    rule,
    target_of,
)

_SPATIAL = ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool")


@rule("OPS038", ops=[*_SPATIAL, "LSTM"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[74])
def layer_limit(node: Node, model: Model) -> Iterator[Match]:
    """A ConvTranspose with strides and dilations, a convolution or pooling of four dimensions, an LSTM with
    `input_forget`.

    ## Why it matters
    Measured with TensorRT-RTX 1.7.1:

    - ConvTranspose with a stride and a dilation, along the same axis or not: the build fails, `Strided & Dilated Deconv
      are currently not supported`. Either alone builds. TensorRT 10.6.0 is right (executed, H200): no finding for 10.0
      to 10.13. A warning for older releases, not measured, and for 10.14 to 10.16: 10.15.1 imports it.
    - Conv and pooling with more than three spatial dimensions: `condition: (kernelSize).nbDims == 2 ||
      (kernelSize).nbDims == 3`, `The attribute kernel_shape misaligns with the shape of the input tensor.`
    - LSTM with `input_forget`: `Coupled input/forget is unsupported in the LSTM converter`

    One spatial dimension, groups, asymmetric padding, `auto_pad`, `clip` and GRU with `linear_before_reset` are
    supported.

    ## Fix
    The constant weights of a dilated ConvTranspose are written with the zeros between them, and the dilations become 1.
    The window spans the same elements, so padding and sizes stay. The products with 0 add nothing, except that infinity
    times 0 is NaN, and backends may add in another order: it requires `--numeric-fixes`. There is no fix for weights
    that are not constant, and for the other two. OPS037 covers dilated pooling.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    if node.op_type == "LSTM":
        if node.attr("input_forget", 0):
            yield Match("TensorRT has no LSTM with input_forget", node=node)
        return
    data = node.input(0)
    rank = None if data is None else model.shapes.rank(data)
    if rank is not None and rank > 5:
        yield Match(
            f"TensorRT's {node.op_type} supports at most three spatial dimensions, not {rank - 2}", node=node
        )
    elif node.op_type == "ConvTranspose" and _above_one(node, "strides") and _above_one(node, "dilations"):
        target = target_of(model)
        if target.package == "tensorrt" and (10,) <= target.oldest < (10, 14):
            return
        measured = target.package != "tensorrt" or target.oldest >= (11,)
        yield Match(
            f"TensorRT {'has' if measured else 'may have'} no ConvTranspose with strides and dilations combined",
            node=node,
            severity=Severity.ERROR if measured else Severity.WARNING,
            fix=_without_dilations(node, node.attr("dilations")),
        )


def _without_dilations(node: Node, dilations: Sequence[int]) -> Fix | None:
    """Writes the zeros of a dilated kernel into the weights, up to 256 MB of them."""
    weights = node.require(1).constant(1 << 28)
    if weights is None or weights.ndim != len(dilations) + 2 or min(dilations) < 1 or not weights.size:
        return None
    spans = [(size - 1) * by + 1 for size, by in zip(weights.shape[2:], dilations, strict=True)]
    if math.prod((*weights.shape[:2], *spans)) * weights.itemsize > 1 << 28:
        return None
    wide = np.zeros((*weights.shape[:2], *spans), weights.dtype)
    wide[tuple(slice(None, None, by) for by in (1, 1, *dilations))] = weights
    draft = Draft(node)
    draft.set_input(node, 1, draft.constant(wide, "weights"))
    draft.set_attr(node, "dilations", None)
    if node.attr("kernel_shape") is not None:
        draft.set_attr(node, "kernel_shape", spans)
    return Fix("write the zeros between the weights", draft.edits, Safety.NUMERIC)


def _above_one(node: Node, name: str) -> bool:
    return any(size > 1 for size in node.attr(name) or ())


_UP = "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,A,B] y)"
_LSTM = "g (float[T,B,2] x, float[1,16,2] w, float[1,16,4] r) => (float[T,1,B,4] y)"


def _conv(x: str, w: str, y: str) -> str:
    return f"g (float[{x}] x, float[{w}] w) => (float[{y}] y) {{ y = Conv(x, w) }}"


layer_limit.examples = [
    Fixed(
        "constant weights, with padding and a kernel_shape",
        before="""g (float[1,1,N] x) => (float[1,1,M] y) <float[1,1,3] w = {1, 2, 3}> {
            y = ConvTranspose<strides = [2], dilations = [2], kernel_shape = [3], pads = [1,0]>(x, w) }""",
        after="""g (float[1,1,N] x) => (float[1,1,M] y) <float[1,1,5] w = {1, 0, 2, 0, 3}> {
            y = ConvTranspose<strides = [2], kernel_shape = [5], pads = [1,0]>(x, w) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "two groups, a bias, and a dilation along one axis",
        before="""g (float[1,2,4,4] x) => (float[1,2,8,6] y)
            <float[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] b = {1, 2}> {
            y = ConvTranspose<strides = [2,1], dilations = [1,2], group = 2>(x, w, b) }""",
        after="""g (float[1,2,4,4] x) => (float[1,2,8,6] y)
            <float[2,1,2,3] w = {1, 0, 2, 3, 0, 4, 5, 0, 6, 7, 0, 8}, float[2] b = {1, 2}> {
            y = ConvTranspose<strides = [2,1], group = 2>(x, w, b) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "SAME_UPPER, whose padding follows from the same span",
        before="""g (float[1,1,4] x) => (float[1,1,8] y) <float[1,1,2] w = {1, 2}> {
            t = ConvTranspose<strides = [2], dilations = [3], auto_pad = "SAME_UPPER">(x, w)  y = Neg(t) }""",
        after="""g (float[1,1,4] x) => (float[1,1,8] y) <float[1,1,4] w = {1, 0, 0, 2}> {
            t = ConvTranspose<strides = [2], auto_pad = "SAME_UPPER">(x, w)  y = Neg(t) }""",
        safety=Safety.NUMERIC,
        opset=11,
    ),
    Flagged(
        "strides and dilations combined",
        f"{_UP} {{ y = ConvTranspose<strides = [2,2], dilations = [2,2]>(x, w) }}",
    ),
    Flagged(
        "strides along one axis, dilations along the other",
        f"{_UP} {{ y = ConvTranspose<strides = [2,1], dilations = [1,2]>(x, w) }}",
    ),
    Flagged("a Conv with four spatial dimensions", _conv("1,1,4,4,4,4", "1,1,2,2,2,2", "1,1,3,3,3,3")),
    Flagged(
        "pooling with four spatial dimensions",
        """g (float[1,1,4,4,4,4] x) => (float[1,1,3,3,3,3] y) {
            y = AveragePool<kernel_shape = [2,2,2,2]>(x) }""",
        runs=False,
    ),
    Flagged(
        "an LSTM with input_forget", f"{_LSTM} {{ y = LSTM<hidden_size = 4, input_forget = 1>(x, w, r) }}"
    ),
    Silent(
        "TensorRT 10.6 combines strides and dilations",
        f"{_UP} {{ y = ConvTranspose<strides = [2,2], dilations = [2,2]>(x, w) }}",
        target="10.6",
    ),
    Silent("strides alone", f"{_UP} {{ y = ConvTranspose<strides = [2,2], dilations = [1,1]>(x, w) }}"),
    Silent("dilations alone", f"{_UP} {{ y = ConvTranspose<dilations = [2,2]>(x, w) }}"),
    Silent(
        "strides and dilations of a Conv",
        """g (float[1,1,6,6] x, float[1,1,2,2] w) => (float[1,1,A,B] y) {
            y = Conv<strides = [2,2], dilations = [2,2]>(x, w) }""",
    ),
    Silent("three spatial dimensions", _conv("1,1,4,4,4", "1,1,2,2,2", "1,1,3,3,3")),
    Silent("one spatial dimension", _conv("1,1,4", "1,1,2", "1,1,3")),
    Silent("an LSTM with clip", f"{_LSTM} {{ y = LSTM<hidden_size = 4, clip = 1.0>(x, w, r) }}"),
    Silent(
        "asymmetric padding, groups and auto_pad",
        """g (float[1,1,9] x, float[1,4,4,4] u, float[4,1,2,2] w, float[4,4,2,2] v)
            => (float[1,1,9] y, float[1,2,5,5] z, float[1,4,4,4] t) {
            y = MaxPool<kernel_shape = [2], pads = [0,1]>(x)  z = ConvTranspose<group = 2>(u, w)
            t = Conv<auto_pad = "SAME_UPPER">(u, v) }""",
    ),
    Silent(
        "a GRU with linear_before_reset",
        """g (float[T,B,2] x, float[1,12,2] w, float[1,12,4] r) => (float[T,1,B,4] y) {
            y = GRU<hidden_size = 4, linear_before_reset = 1>(x, w, r) }""",
    ),
]


LIMIT = 3840


@rule("OPS044", ops=["TopK"], severity=Severity.ERROR, hazards=[54])
def top_k_too_large(node: Node, model: Model) -> Iterator[Match]:
    """A TopK of more than 3840 elements.

    ## Why it matters
    The build fails: `K exceeds the maximum value allowed (3840).`, measured with TensorRT-RTX 1.7.1, where 3840 builds
    and 3841 does not; users of TensorRT 10 hit the same limit. Detectors sort all boxes this way before non-maximum
    suppression, and PyTorch exports argsort as a TopK of all elements. `sorted = 0` is accepted.

    ## Fix
    None. Reduce k, as the suppression that follows does anyway, or sort outside the engine.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - NVIDIA/TensorRT issues 4244, 4390
    """
    if node.opset < 10:
        wanted = node.attr("k")
    else:
        value = node.input(1)
        known = None if value is None else model.shapes.value(value)
        static = None if known is None else known.static
        wanted = static[0] if static is not None and len(static) == 1 else None
    if wanted is not None and wanted > LIMIT:
        yield Match(
            f"TopK of {wanted} elements: {target_of(model).title} supports at most {LIMIT}", node=node
        )


_G = "g (float[2,5000] x) => (float[2,K] y, int64[2,K] i)"


top_k_too_large.examples = [
    Flagged("one above the limit", f"{_G} <int64[1] k = {{3841}}> {{ y, i = TopK(x, k) }}"),
    Flagged(
        "all elements: a sort",
        """g (float[1,8400] x) => (int64[1,8400] i) {
            k = Constant<value_ints = [8400]>()  v, i = TopK<sorted = 1>(x, k) }""",
    ),
    Flagged("k as an attribute", f"{_G} {{ y, i = TopK<k = 4000>(x) }}", opset=9, runs=False),
    Flagged(
        "k from a Shape",
        """g (float[2,5000] x) => (float[2,5000] y, int64[2,5000] i) {
            k = Shape<start = 1>(x)  y, i = TopK(x, k) }""",
    ),
    Silent("k at the limit", f"{_G} <int64[1] k = {{3840}}> {{ y, i = TopK(x, k) }}"),
    Silent(
        "k is not constant",
        "g (float[2,N] x, int64[1] k) => (float[2,K] y, int64[2,K] i) { y, i = TopK(x, k) }",
    ),
    Silent(
        "unsorted, which is accepted today",
        f"{_G} <int64[1] k = {{5}}> {{ y, i = TopK<sorted = 0>(x, k) }}",
        runs=False,
    ),
]


@rule("OPS045", per="model", safety=Safety.EXACT, severity=Severity.ERROR, hazards=[67])
def rank_above_eight(model: Model) -> Iterator[Match]:
    """A tensor of more than eight dimensions, which TensorRT does not support.

    ## Why it matters
    The parser stops: `Failed to convert ONNX dimensions to TensorRT dimensions.` for an input, `Number of dimensions
    (9) is not in the valid range` for the result of a Reshape, measured with TensorRT-RTX 1.7.1. Window partitions and
    pixel shuffles in three dimensions use nine and more.

    ## Fix
    If such a tensor is only transposed between two Reshapes and its shape is static, axes of length 1 are dropped and
    axes that stay adjacent are merged, which is enough in most cases. Exact. Otherwise there is no fix.

    ## References
    - tensorrt.Dims.MAX_DIMS, which is 8
    """
    limit = target_of(model).max_rank
    if all(info.shape is None or len(info.shape) <= limit for info in model.shapes.kinds):
        return  # the usual case, fast
    for node in every_node(model):
        with contextlib.suppress(UnknownAttribute):  # of a Transpose in a local function
            yield from list(_matches(node, model, limit))


def _matches(node: Node, model: Model, limit: int) -> Iterator[Match]:
    for value in node.outputs:
        rank = None if value is None else model.shapes.rank(value)
        if value is None or rank is None or rank <= limit:
            continue
        if _has_wide_input(node, model, limit):
            continue
        yield Match(
            f"{value.name} has {rank} dimensions; {target_of(model).title} supports at most {limit}",
            node=node,
            fix=_narrowed(node, value, model, limit),
            reads=tuple(use.node for use in value.uses[:1]),
        )


def _has_wide_input(node: Node, model: Model, limit: int) -> bool:
    """Whether an input is above the limit too, so that the finding belongs to its producer."""
    ranks = (None if v is None or v.scope is not node.scope else model.shapes.rank(v) for v in node.inputs)
    wide = any(rank is not None and rank > limit for rank in ranks)
    from_graph = any(
        v is not None and v.producer is None and (model.shapes.rank(v) or 0) > limit for v in node.inputs
    )
    return wide and not from_graph


def _narrowed(node: Node, value: Value, model: Model, limit: int) -> Fix | None:
    """Merge axes of the Reshape, Transpose and Reshape that begin at ``node``."""
    sizes = model.shapes.static_shape(value)
    uses = value.uses
    if node.op_type != "Reshape" or not node.is_onnx:
        return None
    if sizes is None or len(uses) != 1 or not value.replaceable:
        return None
    transpose = uses[0].node
    transposed = transpose.output()
    if transpose.op_type != "Transpose" or not transpose.is_onnx:
        return None
    if transpose.scope is not node.scope or transposed is None:
        return None
    if not transposed.replaceable or not all(_keeps_result(use.node, use.index) for use in transposed.uses):
        return None
    order = transpose.attr("perm", list(reversed(range(len(sizes)))))
    if 0 in sizes or sorted(order) != list(range(len(sizes))):
        return None
    shape, perm = _merged(sizes, order)
    if len(shape) > limit:
        return None
    draft = Draft(node)
    draft.set_input(node, 1, draft.integers(shape, "fewer_axes"))
    draft.set_attr(node, "allowzero", None)
    draft.set_attr(transpose, "perm", perm)
    return Fix(f"transpose {len(shape)} merged axes", draft.edits)


def _keeps_result(node: Node, index: int) -> bool:
    """Whether a node is a Reshape to a constant shape without 0: its result depends only on the elements."""
    if node.op_type != "Reshape" or not node.is_onnx or index != 0:
        return False
    shape = node.input(1)
    wanted = None if shape is None else shape.constant()
    return wanted is not None and bool((wanted != 0).all())


def _merged(sizes: tuple[int, ...], order: list[int]) -> tuple[list[int], list[int]]:
    """Sizes and permutation without axes of length 1, and with axes that stay adjacent merged."""
    order = [axis for axis in order if sizes[axis] != 1]
    kept = sorted(order)
    rank = {axis: i for i, axis in enumerate(kept)}
    groups: list[list[int]] = []
    for axis in order:
        if groups and rank[axis] == rank[groups[-1][-1]] + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    first = sorted(groups)
    position = {group[0]: i for i, group in enumerate(first)}
    shape = [math.prod(sizes[axis] for axis in group) for group in first]
    return (shape, [position[group[0]] for group in groups]) if shape else ([1], [0])


_WIDE = "int64[9] s = {2,1,1,3,1,1,1,2,2}"


rank_above_eight.examples = [
    Fixed(
        "a Transpose of nine dimensions between two Reshapes",
        before=f"""g (float[2,3,4] x) => (float[4,6] y) <{_WIDE}, int64[2] t = {{4,6}}> {{
            r = Reshape(x, s)  p = Transpose<perm = [8,7,1,2,0,4,5,6,3]>(r)  y = Reshape(p, t) }}""",
        after="""g (float[2,3,4] x) => (float[4,6] y) <int64[3] s = {6,2,2}, int64[2] t = {4,6}> {
            r = Reshape(x, s)  p = Transpose<perm = [2,1,0]>(r)  y = Reshape(p, t) }""",
    ),
    Fixed(
        "axes that stay adjacent are merged",
        before="""g (float[512] x) => (float[512] y) <int64[9] s = {2,2,2,2,2,2,2,2,2}, int64[1] t = {512}> {
            r = Reshape(x, s)  p = Transpose<perm = [4,5,6,7,8,0,1,2,3]>(r)  y = Reshape(p, t) }""",
        after="""g (float[512] x) => (float[512] y) <int64[2] s = {16,32}, int64[1] t = {512}> {
            r = Reshape(x, s)  p = Transpose<perm = [1,0]>(r)  y = Reshape(p, t) }""",
    ),
    Flagged(
        "nine axes that are all permuted",
        """g (float[512] x) => (float[512] y) <int64[9] s = {2,2,2,2,2,2,2,2,2}, int64[1] t = {512}> {
            r = Reshape(x, s)  p = Transpose<perm = [8,7,6,5,4,3,2,1,0]>(r)  y = Reshape(p, t) }""",
    ),
    Flagged(
        "another use of the nine dimensions",
        f"""g (float[2,3,4] x) => (float[4,6] y, float[A,B,C,D,E,F,G,H,I] z) <{_WIDE}, int64[2] t = {{4,6}}> {{
            r = Reshape(x, s)  p = Transpose<perm = [8,7,1,2,0,4,5,6,3]>(r)  y = Reshape(p, t)  z = Neg(r) }}""",
        differs={"function": "the call's input has nine dimensions too"},
    ),
    Flagged(
        "a graph input",
        "g (float[1,1,1,1,1,1,1,2,3] x) => (float[1,1,1,1,1,1,1,2,3] y) { y = Relu(x) }",
        differs={"function": "the call's output has nine dimensions too"},
    ),
    Silent("eight dimensions", "g (float[1,1,1,1,1,1,2,3] x) => (float[1,1,1,1,1,1,2,3] y) { y = Relu(x) }"),
    Silent(
        "of unknown rank",
        "g (float[A,B] x, int64[K] h) => (float[C,D] y) { r = Reshape(x, h)  n = Neg(r)  y = Reshape(n, h) }",
        runs=False,
    ),
    Flagged(
        "nine dimensions, one of them dynamic",
        """g (float[N,4] x) => (float[A,4] y) <int64[9] s = {-1,1,1,1,1,1,1,2,2}, int64[2] t = {-1,4}> {
            r = Reshape(x, s)  p = Transpose<perm = [0,1,2,3,4,5,6,8,7]>(r)  y = Reshape(p, t) }""",
    ),
]
