"""What each operator demands: conditions from a node and the symbolic shapes of its values.

Each function yields pairs: what a condition is about, as text, and the condition. Unknown ranks and values that are
computed from data have no conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from onnxfix.graph.overlay import Node
from onnxfix.inputs.sizes.demands import Term, at_least, broadcast, extends, largest, multiple, same
from onnxfix.shapes.symbols import Dim, as_dim, equal, product, total

Found = Iterator[tuple[str, Term]]
Shape = tuple[Dim, ...]


class Site:
    """A node with the known shapes and contents of its values."""

    def __init__(self, node: Node) -> None:
        self.node, self.shapes = node, node.model.shapes

    def shape(self, index: int) -> Shape | None:
        """The shape of an input; None if it is omitted or its rank is unknown."""
        value = self.node.input(index)
        return self.shapes.shape(value) if value is not None else None

    def known_shapes(self) -> list[Shape]:
        """The shapes of the inputs, without unknown ones."""
        return [one for one in map(self.shape, range(len(self.node.inputs))) if one is not None]

    def made(self, index: int = 0) -> Shape | None:
        """The shape of an output."""
        value = self.node.output(index)
        return self.shapes.shape(value) if value is not None else None

    def along(self, default: int) -> tuple[Shape, int] | None:
        """The shape of the first input and the place of the axis that the node names; None if one is unknown."""
        shape = self.shape(0)
        axis = _axis(self.node.attr("axis", default), shape) if shape is not None else None
        return (shape, axis) if shape is not None and axis is not None else None

    def largest(self, index: int) -> Dim | None:
        """The greatest element of an input that is computed from shapes, or None."""
        return largest(self.node.input(index))

    def numbers(self, index: int) -> tuple[Dim, ...] | None:
        """The elements of a small integer input, or None."""
        value = self.node.input(index)
        found = self.shapes.value(value) if value is not None else None
        return found.data if found is not None else None

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """Constant integers from an input or, in older opsets, from an attribute; None if they are unknown."""
        if self.node.input(index) is None:
            value = self.node.attr(attribute)
            return None if value is None else [int(one) for one in value]
        found = self.numbers(index)
        if found is None or any(one.value is None for one in found):
            return None
        return [one.value for one in found if one.value is not None]


def _axis(axis: int, shape: Sequence[Dim]) -> int | None:
    return axis % len(shape) if -len(shape) <= axis < len(shape) else None


def _aligned(first: Shape, second: Shape) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of dimensions that are aligned when one shape is broadcast with the other."""
    count = min(len(first), len(second))
    yield from zip(first[len(first) - count :], second[len(second) - count :], strict=True)


def _elementwise(site: Site) -> Found:
    shapes = site.known_shapes()
    for k, first in enumerate(shapes):
        for second in shapes[k + 1 :]:
            for left, right in _aligned(first, second):
                yield "dimension", broadcast(left, right)


def _slope(site: Site) -> Found:
    data, slope = site.shape(0), site.shape(1)
    if data is not None and slope is not None and len(slope) <= len(data):
        for left, right in _aligned(slope, data):
            yield "the slope's dimension", extends(left, right)


def _window(site: Site) -> Found:
    """Convolutions and pools: the window fits into the padded input, and the channels match the weight."""
    data, result = site.shape(0), site.made()
    if result is not None:
        for dim in result[2:]:
            yield "output size", at_least(dim, 1)
    weight = site.shape(1)
    if data is not None and site.node.op_type != "ConvTranspose":
        yield from _too_wide(site.node, data, weight)
    if site.node.op_type in ("Conv", "ConvTranspose") and data and weight and min(len(data), len(weight)) > 1:
        conv = site.node.op_type == "Conv"
        yield (
            "number of channels",
            same(data[1], weight[1] * site.node.attr("group", 1) if conv else weight[0]),
        )


def _too_wide(node: Node, data: Shape, weight: Shape | None) -> Found:
    """Windows that fit at no size; the shape of their output is unknown."""
    kernel = weight[2:] if weight is not None else [as_dim(one) for one in node.attr("kernel_shape") or ()]
    count = len(kernel)
    dilations, pads = node.attr("dilations") or [1] * count, node.attr("pads") or [0] * (2 * count)
    mode = node.attr("auto_pad") or "NOTSET"
    if mode.startswith("SAME") or node.attr("ceil_mode", 0):
        return
    if (len(data), len(dilations), len(pads)) != (count + 2, count, 2 * count):
        return
    for k, size in enumerate(data[2:]):
        padded = size + (pads[k] + pads[k + count] if mode == "NOTSET" else 0)
        span = (kernel[k] - 1) * dilations[k] + 1
        if (padded - span).hi < 0:
            yield "padded size", at_least(padded, span)


def _product(site: Site) -> Found:
    left, right = site.shape(0), site.shape(1)
    if not left or not right:
        return
    inner = right[-2] if len(right) > 1 else right[-1]
    yield "inner dimension", same(left[-1], inner)
    for one, other in _aligned(left[:-2], right[:-2]):
        yield "dimension", broadcast(one, other)


def _gemm(site: Site) -> Found:
    left, right, bias = site.shape(0), site.shape(1), site.shape(2)
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return
    rows, inner = left[::-1] if site.node.attr("transA", 0) else left
    other, columns = right[::-1] if site.node.attr("transB", 0) else right
    yield "inner dimension", same(inner, other)
    if bias is not None and len(bias) <= 2:
        for one, dim in _aligned(bias, (rows, columns)):
            yield "the bias's dimension", extends(one, dim)


def _concat(site: Site) -> Found:
    shapes = site.known_shapes()
    if not shapes or len({len(one) for one in shapes}) > 1:
        return
    axis = _axis(site.node.attr("axis", 0), shapes[0])
    for other in shapes[1:]:
        for k, (left, right) in enumerate(zip(shapes[0], other, strict=True)):
            if k != axis:
                yield "dimension", same(left, right)


def _reshape(site: Site) -> Found:
    data, result, target = site.shape(0), site.made(), site.numbers(1)
    if data is None or result is None:
        return
    for dim in result:
        yield "size", at_least(dim, 0)
    if target is not None and len(target) == len(result):
        if any(one.value == -1 for one in target):
            rest = [dim for dim, one in zip(result, target, strict=True) if one.value != -1]
            yield "number of elements", multiple(product(data), product(rest))
            return
        # A 0 there would copy a dimension that the data does not have.
        behind = () if site.node.attr("allowzero", 0) else target[len(data) :]
        yield from (("size", at_least(one, 1)) for one in behind if one.value is None)
    yield "number of elements", same(product(data), product(result))


def _expand(site: Site) -> Found:
    data, target = site.shape(0), site.numbers(1)
    if data is not None and target is not None:
        for left, right in _aligned(data, target):
            yield "dimension", broadcast(left, right)


def _squeeze(site: Site) -> Found:
    data, axes = site.shape(0), site.integers(1, "axes")
    for axis in axes or ():
        place = _axis(axis, data) if data is not None else None
        if data is not None and place is not None:
            yield "squeezed dimension", same(data[place], 1)


def _split(site: Site) -> Found:
    if (found := site.along(0)) is None:
        return
    size, sizes = found[0][found[1]], site.numbers(1) or site.node.attr("split")
    if sizes:
        yield "split dimension", same(size, total(sizes))
    elif site.node.attr("num_outputs") is None and site.node.input(1) is None:
        yield "split dimension", multiple(size, len(site.node.outputs))


def _gather(site: Site) -> Found:
    if (found := site.along(0)) is None:
        return
    size, known = found[0][found[1]], [one.value for one in site.numbers(1) or () if one.value is not None]
    if known:
        yield "indexed dimension", at_least(size, max(max(known) + 1, -min(known)))
    elif (greatest := site.largest(1)) is not None:
        yield "indexed dimension", at_least(size, greatest + 1)


def _nested(site: Site) -> Found:
    """Indices of GatherND that a Concat makes of one for each dimension."""
    data, indices = site.shape(0), site.node.input(1)
    made = indices.producer if indices is not None else None
    if data is None or made is None or not made.is_onnx or made.op_type != "Concat":
        return
    shapes, parts = site.shape(1), Site(made)
    if shapes is None or made.attr("axis") not in (-1, len(shapes) - 1):
        return
    if shapes[-1].value != len(made.inputs):  # each gives one index
        return
    first = site.node.attr("batch_dims", 0)
    for k, size in enumerate(data[first : first + len(made.inputs)]):
        greatest = parts.largest(k)
        if greatest is not None:
            yield "indexed dimension", at_least(size, greatest + 1)


def _elements(site: Site) -> Found:
    """Indices may be fewer than the data in the other dimensions; updates have the shape of the indices."""
    found, indices, updates = site.along(0), site.shape(1), site.shape(2)
    if found is not None and indices is not None and len(found[0]) == len(indices):
        for k, (size, index) in enumerate(zip(found[0], indices, strict=True)):
            if k != found[1]:
                yield "dimension", at_least(size, index)
    yield from _gather(site)
    if indices is not None and updates is not None and len(updates) == len(indices):
        for update, index in zip(updates, indices, strict=True):
            yield "dimension of updates", same(update, index)


def _top(site: Site) -> Found:
    found, count = site.along(-1), site.numbers(1)
    if found is not None and count and len(count) == 1:
        yield "dimension of TopK", at_least(found[0][found[1]], count[0])


def _pad(site: Site) -> Found:
    data, result, pads = site.shape(0), site.made(), site.integers(1, "pads")
    for dim in result or ():
        yield "padded size", at_least(dim, 0)
    if site.node.attr("mode", "constant") != "reflect" or data is None or pads is None:
        return
    axes = site.integers(3, "") if site.node.input(3) is not None else list(range(len(data)))
    if axes is None or len(pads) != 2 * len(axes):
        return
    for k, axis in enumerate(axes):
        place = _axis(axis, data)
        if place is not None and (most := max(pads[k], pads[k + len(axes)])) > 0:
            yield "dimension padded by reflection", at_least(data[place], most + 1)


def _recurrence(site: Site) -> Found:
    data, weight, state = site.shape(0), site.shape(1), site.shape(5)
    first = 0 if site.node.attr("layout", 0) else 1
    if data is None or len(data) != 3:
        return
    yield "sequence length", at_least(data[1 - first], 1)
    if weight is not None and len(weight) == 3:
        yield "input size", same(data[2], weight[2])
    if state is not None and len(state) == 3:
        yield "batch of the state", same(state[first], data[first])


def _channels(site: Site) -> Found:
    data = site.shape(0)
    for k in range(1, len(site.node.inputs)):
        one = site.shape(k)
        if data is not None and len(data) > 1 and one is not None and len(one) == 1:
            yield "number of channels", same(data[1], one[0])


def _last(site: Site) -> Found:
    data, scale, found = site.shape(0), site.shape(1), site.along(-1)
    if found is not None:
        for dim in found[0][found[1] :]:
            yield "normalized dimension", at_least(dim, 1)
    if data is not None and scale is not None:
        for left, right in _aligned(scale, data):
            yield "the scale's dimension", extends(left, right)


def _blocks(site: Site) -> Found:
    data, size = site.shape(0), site.node.attr("blocksize", 1)
    if data is None or len(data) != 4:
        return
    if site.node.op_type == "DepthToSpace":
        yield "number of channels", multiple(data[1], size * size)
    else:
        for dim in data[2:]:
            yield "size", multiple(dim, size)


def _filled(site: Site) -> Found:
    for one in site.numbers(0) or ():
        yield "size", at_least(one, 0)


def _extreme(site: Site) -> Found:
    """An empty axis has no maximum."""
    if (found := site.along(0)) is not None:
        yield "searched dimension", at_least(found[0][found[1]], 1)


def _resized(site: Site) -> Found:
    """Resized dimensions are at least 1; other dimensions may be 0, such as an empty batch."""
    data, result = site.shape(0), site.made() or ()
    for k, dim in enumerate(result):
        if data is None or len(data) != len(result) or not equal(dim, data[k]).yes:
            yield "size", at_least(dim, 1)


def _attention(site: Site) -> Found:
    """A mask is as long as the cache and the new keys; from opset 24 on, a shorter one is padded.

    Of a mask that is always of length 1 nothing is demanded: ONNX broadcasts it, ONNX Runtime refuses it, and
    onnx.reference pads it.
    """
    keys, mask, cache = site.shape(1), site.shape(3), site.shape(4)
    if not mask or not keys or len(keys) < 3 or mask[-1].value == 1:
        return
    if site.node.input(4) is not None and (cache is None or len(cache) != 4):
        return
    whole = keys[-2] + cache[2] if cache is not None else keys[-2]
    yield "length of the mask", at_least(whole, mask[-1]) if site.node.opset > 23 else same(mask[-1], whole)
    if len(mask) > 1 and (queries := site.shape(0)) is not None and len(queries) > 2:
        yield "rows of the mask", extends(mask[-2], queries[-2])


Demander = Callable[[Site], Found]
_ELEMENTWISE = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip
TABLE: dict[str, Demander] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("ArgMax", "ArgMin"), _extreme),
    "Attention": _attention,
    **dict.fromkeys(("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool"), _window),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _channels),
    "Concat": _concat,
    "ConstantOfShape": _filled,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _nested,
    **dict.fromkeys(("GatherElements", "ScatterElements"), _elements),
    "Gemm": _gemm,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrence),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _last),
    "MatMul": _product,
    "PRelu": _slope,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resized,
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _top,
}
"""ONNX's operators with demands on sizes, in every opset with the inputs that are read here."""


def demanded(node: Node) -> Found:
    """The demands of a node, as far as known; none for operators of other domains."""
    demander = TABLE.get(node.op_type) if node.is_onnx else None
    if demander is not None:
        yield from demander(Site(node))
