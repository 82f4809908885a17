"""Known faults for which another form of the nodes computes the same: the pattern of each, and the form.

A function for each fault returns a ``Hit`` where the pattern is proven, and None where it is not or is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Model, Node, Safety, Severity, Value, target_of
from onnxfix_rules.ops._bounds import number
from onnxfix_rules.ops._integers import range_of
from onnxfix_rules.prc._common import producer

_EXACT_IN_FLOAT = 1 << 24
WHOLE = (TensorProto.INT32, TensorProto.INT64)


class Hit(NamedTuple):
    """A place with the pattern of a fault."""

    fix: Fix | None = None
    reads: tuple[Node | Value, ...] = ()


class Known(NamedTuple):
    """The operators at which a fault is looked for, its pattern, what it does, and a severity that is not that of its
    certainty."""

    operators: str
    find: Callable[[Node, Model], Hit | None]
    effect: str
    severity: Severity | None = None


def sole_producer(value: Value | None, op_type: str) -> Node | None:
    """``producer`` of a value that nothing else reads."""
    return (
        producer(value, op_type) if value is not None and value.use_count == 1 and value.replaceable else None
    )


def readers(value: Value | None, *op_types: str) -> list[tuple[Node, int]]:
    """The nodes of these operators that read a value, and at which input."""
    uses = [] if value is None else value.uses
    return [(use.node, use.index) for use in uses if use.node.is_onnx and use.node.op_type in op_types]


def shape_of(node: Node, model: Model, index: int) -> tuple[int, ...] | None:
    """The static shape of an input."""
    value = node.input(index)
    return None if value is None else model.shapes.static_shape(value)


def elem_of(node: Node, model: Model, index: int) -> int | None:
    """The element type of an input."""
    value = node.input(index)
    return None if value is None else model.shapes.elem_type(value)


def is_depthwise(conv: Node, model: Model) -> bool:
    """Whether each group of a Conv has one channel."""
    shape = shape_of(conv, model, 1)
    return shape is not None and len(shape) > 2 and shape[1] == 1 and conv.attr("group", 1) > 1


def is_small(value: Value, model: Model) -> bool:
    """Whether float32 holds all integers that a value may have, as far as is known: sizes of tensors are small."""
    known = model.shapes.value(value)
    if known is not None and all(item.is_count for item in known.data):
        return all(abs(item.value or 0) <= _EXACT_IN_FLOAT for item in known.data)
    low, high = range_of(value, model)
    return low >= -_EXACT_IN_FLOAT and high <= _EXACT_IN_FLOAT


def _computed_kernel(node: Node, model: Model) -> Hit | None:
    weights, shape = node.require(1), shape_of(node, model, 1)
    if weights.is_constant or weights.initializer is not None or shape is None or len(shape) < 3:
        return None
    if node.attr("kernel_shape") is not None:
        return None
    draft = Draft(node)
    draft.set_attr(node, "kernel_shape", list(shape[2:]))
    return Hit(Fix("write kernel_shape", draft.edits), (weights,))


def _output_padding(node: Node, model: Model) -> Hit | None:
    data, weights = node.require(0), node.require(1)
    if model.shapes.rank(data) != 3 or not any(node.attr("output_padding", [])):
        return None
    if node.attr("output_shape") is not None or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return Hit()
    draft = Draft(node)
    longer = {"strides": [1], "dilations": [1], "output_padding": [0]}
    lists: dict[str, Any] = {
        name: [*node.attr(name), *more] for name, more in longer.items() if node.attr(name) is not None
    }
    if node.attr("pads") is not None:
        before, after = node.attr("pads")
        lists["pads"] = [before, 0, after, 0]
    kernel = model.shapes.static_shape(weights)
    if kernel is None:
        return Hit()
    lists["kernel_shape"] = [kernel[2], 1]
    inputs = [draft.unsqueeze(data, [3]), _reshaped(draft, weights, (*kernel, 1)), *node.inputs[2:]]
    wide = draft.copy_node(node, inputs=inputs, outputs=[draft.name("wide")], **lists)
    draft.replace_output(node, draft.squeeze(wide, [3]))
    return Hit(Fix("compute it with a second dimension of 1", draft.edits, Safety.NUMERIC), (data, weights))


def _reshaped(draft: Draft, weights: Value, shape: tuple[int, ...]) -> str:
    """Weights in another shape; a constant stays one, as weights of older releases have to be."""
    array = weights.constant()
    return draft.reshape(weights, shape) if array is None else draft.constant(array.reshape(shape), "weights")


def _flatten_vector(node: Node, model: Model) -> Hit | None:
    if model.shapes.rank(node.require(0)) != 1:
        return None
    draft = Draft(node)
    first = node.attr("axis", 1) in (0, -1)
    draft.replace_output(node, draft.reshape(node.require(0), [1, -1] if first else [-1, 1]))
    return Hit(Fix("write it as a Reshape", draft.edits))


def _flatten_nothing(node: Node, model: Model) -> Hit | None:
    if model.shapes.rank(node.require(0)) != 2 or node.attr("axis", 1) not in (1, -1):
        return None
    draft = Draft(node)
    draft.replace_output(node, node.require(0))
    return Hit(Fix("take its input", draft.edits))


def _largest_trip_count(node: Node, model: Model) -> Hit | None:
    count = number(node.require(0))
    if count is None or count < (1 << 31) - 1 or node.input(1) is None:
        return None
    draft = Draft(node)
    draft.set_input(node, 0, None)
    endless = count >= 1 << 62
    return Hit(Fix("drop the trip count, which no loop reaches", draft.edits) if endless else None)


def _noop_reduction(node: Node, model: Model) -> Hit | None:
    axes = node.input(1)
    if node.opset < (13 if node.op_type == "ReduceSum" else 18) or not node.attr("noop_with_empty_axes", 0):
        return None
    if axes is not None and model.shapes.static_shape(axes) != (0,):
        return None
    if node.op_type not in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        return Hit()
    draft = Draft(node)
    draft.replace_output(node, node.require(0))
    return Hit(Fix("take its input", draft.edits), () if axes is None else (axes,))


def _uneven_split(node: Node, model: Model) -> Hit | None:
    data, parts = node.require(0), node.attr("num_outputs")
    shape, axis = model.shapes.shape(data), node.attr("axis", 0)
    if node.opset < 18 or not parts or node.input(1) is not None or shape is None or not shape:
        return None
    size = shape[axis].value
    if size is None or size % parts == 0:
        return None
    longest = -(-size // parts)
    last = size - longest * (parts - 1)
    if last < 1:
        return Hit()
    draft = Draft(node)
    sizes = draft.integers([longest] * (parts - 1) + [last], "sizes")
    draft.replace_node(node, inputs=[data, sizes], num_outputs=None)
    return Hit(Fix("write the sizes of the parts", draft.edits), (data,))


def _pointwise_groups(node: Node, model: Model) -> Hit | None:
    shape, kernel, weights = model.shapes.shape(node.require(0)), shape_of(node, model, 1), node.require(1)
    if kernel is None or len(kernel) != 5 or set(kernel[2:]) != {1} or node.attr("group", 1) < 2:
        return None
    sizes = [dim.value for dim in shape[2:] if dim.value] if shape is not None else []
    plain = not any(node.attr("pads", [])) and set(node.attr("strides", [1])) == {1}
    if not plain or len(sizes) != 3 or node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return Hit()
    draft = Draft(node)
    rows = draft.reshape(node.require(0), [0, 0, int(np.prod(sizes))])
    inputs = [rows, _reshaped(draft, weights, kernel[:3])]
    lists: dict[str, Any] = dict.fromkeys(("strides", "dilations", "pads", "auto_pad"))
    flat = draft.copy_node(
        node, inputs=[*inputs, *node.inputs[2:]], outputs=[draft.name("flat")], kernel_shape=[1], **lists
    )
    draft.replace_output(node, draft.reshape(flat, [0, 0, *sizes]))
    return Hit(Fix("compute it along one dimension", draft.edits, Safety.NUMERIC), (weights,))


def _large_maximum(node: Node, model: Model) -> Hit | None:
    data, elem = node.require(0), elem_of(node, model, 0)
    if elem not in WHOLE or is_small(data, model):
        return None
    reduction, opset = node.op_type.replace("Arg", "Reduce"), node.scope.opset()
    if not 12 <= opset < 18 or target_of(model).accepts(reduction, elem) is not True:
        return Hit()  # since 18 the axes of a reduction are an input, which the same releases ignore
    draft = Draft(node)
    extreme = draft.along(reduction, data, [node.attr("axis", 0)], keepdims=1)
    places = draft.cast(draft.add("Equal", [data, extreme]), TensorProto.FLOAT)
    draft.replace_node(node, "ArgMax", [places])
    return Hit(
        Fix("compare with the extreme element, and take the place of the first 1", draft.edits), (data,)
    )


def _product_between_transposes(node: Node, model: Model) -> Hit | None:
    product, permutation = sole_producer(node.input(0), "Mul"), node.attr("perm")
    if product is None or permutation is None or elem_of(node, model, 0) not in WHOLE:
        return None
    before = [producer(value, "Transpose") for value in product.inputs]
    inverse = [int(axis) for axis in np.argsort(permutation)]
    sources = [one.require(0) for one in before if one is not None and one.attr("perm") == inverse]
    if len(sources) != 2:
        return None
    draft = Draft(node)
    draft.replace_output(node, draft.add("Mul", sources))
    return Hit(
        Fix("multiply what the Transposes read", draft.edits), (product, *(one for one in before if one))
    )


def _product_of_reshapes(node: Node, model: Model) -> Hit | None:
    product, reduced = sole_producer(node.input(0), "Mul"), node.require(0)
    axes = node.attr("axes") if node.input(1) is None else node.require(1).constant()
    if product is None or axes is None or model.shapes.rank(reduced) != 3 or list(axes) not in ([-1], [2]):
        return None
    first, second = (producer(value, "Reshape") for value in product.inputs)
    if first is None or second is None:
        return None
    shape, other = first.require(1).constant(), second.require(1).constant()
    if shape is None or other is None or 0 in shape or shape[0] != -1 or list(shape) != list(other):
        return None
    sources = [first.require(0), second.require(0)]
    fix = None
    if model.shapes.same_shape(*sources).yes:
        draft = Draft(node)
        draft.set_input(node, 0, draft.add("Reshape", [draft.add("Mul", sources), first.require(1)]))
        fix = Fix("multiply before the Reshape", draft.edits)
    return Hit(fix, (product, first, second))


def _half_groups(node: Node, model: Model) -> Hit | None:
    if elem_of(node, model, 0) != TensorProto.FLOAT16 or node.attr("num_groups", 8) % 8 == 0:
        return None
    draft = Draft(node)
    inputs = [draft.cast(node.require(index), TensorProto.FLOAT) for index in range(3)]
    wide = draft.copy_node(node, inputs=inputs, outputs=[draft.name("wide")])
    draft.replace_output(node, draft.cast(wide, TensorProto.FLOAT16))
    return Hit(Fix("normalize in float32", draft.edits, Safety.NUMERIC))


def _large_remainder(node: Node, model: Model) -> Hit | None:
    data, divisor, elem = node.require(0), node.require(1), elem_of(node, model, 0)
    if elem not in WHOLE or node.attr("fmod", 0) or is_small(data, model):
        return None
    array = divisor.constant()
    if array is None or array.size == 0 or array.min() < 1:
        return Hit()
    draft, zero = Draft(node), np.zeros((), array.dtype)
    whole = draft.add("Mul", [draft.add("Div", [data, divisor]), divisor])
    rest = draft.add("Sub", [data, whole], hint="rest")
    low = draft.add("Less", [rest, draft.constant(zero, "zero")])
    draft.replace_output(node, draft.add("Where", [low, draft.add("Add", [rest, divisor]), rest]))
    return Hit(Fix("subtract the whole multiples", draft.edits), (data, divisor))


def _another_axis(node: Node, model: Model) -> Hit | None:
    own = _axis_of(node, model)
    others = [one for one in node.scope.nodes if one.is_onnx and one.op_type == "CumSum" and one is not node]
    axes = [_axis_of(one, model) for one in others]
    known = [axis for axis in axes if axis is not None]
    if own is None or all(axis == own for axis in known):
        return None
    common, rank = min([own, *known]), model.shapes.rank(node.require(0))
    if own == common or rank is None:
        return Hit(reads=tuple(others))
    draft, order = Draft(node), list(range(rank))
    order[own], order[common] = common, own
    turned = draft.add("Transpose", [node.require(0)], perm=order)
    total = draft.copy_node(
        node, inputs=[turned, draft.constant(np.array(common), "axis")], outputs=[draft.name("total")]
    )
    draft.replace_output(node, draft.add("Transpose", [total], perm=order))
    return Hit(Fix("sum along the same axis as the others", draft.edits, Safety.NUMERIC), tuple(others))


def _axis_of(node: Node, model: Model) -> int | None:
    """The constant axis of a CumSum, from 0."""
    array, data = node.require(1).constant(), node.input(0)
    rank = None if data is None else model.shapes.rank(data)
    return None if array is None or array.size != 1 or not rank else int(array.reshape(())) % rank


def _clip_after_bias(node: Node, model: Model) -> Hit | None:
    add = sole_producer(node.input(0), "Add")
    for value, bias in (add.inputs, add.inputs[::-1]) if add is not None else ():
        product = sole_producer(value, "MatMul")
        if add is None or product is None or bias is None or not bias.is_constant:
            continue
        if product.require(1).is_constant and number(node.input(1)) == 0:
            return _clip(node, model, add, product)
    return None


def _clip_after_conv(node: Node, model: Model) -> Hit | None:
    conv = sole_producer(node.input(0), "Conv")
    return None if conv is None else _clip(node, model, conv)


def _clip(node: Node, model: Model, *reads: Node) -> Hit | None:
    low, high = number(node.input(1)), number(node.input(2))
    if elem_of(node, model, 0) != TensorProto.FLOAT or low is None or high is None or not np.isfinite(high):
        return None
    draft = Draft(node)
    raised = draft.add("Max", [node.require(0), node.require(1)])
    draft.replace_output(node, draft.add("Min", [raised, node.require(2)]))
    fix = Fix("replace by Max and Min", draft.edits, Safety.NUMERIC)
    return Hit(fix if low <= high else None, reads)


_REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp"
)
WORKAROUNDS: dict[str, Known] = {
    "conv-tensor-weights-no-kernel-shape": Known("Conv ConvTranspose", _computed_kernel,
        "weights that are not constant need the attribute kernel_shape"),
    "convtranspose-1d-output-padding": Known("ConvTranspose", _output_padding,
        "output_padding of a ConvTranspose of one dimension does not build"),
    "flatten-1d": Known("Flatten", _flatten_vector, "Flatten of a vector is refused"),
    "flatten-noop-84": Known("Flatten", _flatten_nothing, "Flatten of a matrix is refused before 8.4.2"),
    "loop-int-max-trip": Known("Loop", _largest_trip_count,
        "a Loop with the largest trip count does not build"),
    "reduce-noop-empty-axes-ignored": Known(_REDUCTIONS, _noop_reduction,
        "noop_with_empty_axes is ignored, and all axes are reduced", Severity.ERROR),
    "split-uneven-num-outputs": Known("Split", _uneven_split,
        "parts of unequal sizes get floor(size / parts) elements each", Severity.ERROR),
    "conv3d-groups-kernel1": Known("Conv", _pointwise_groups, "no kernel for groups of a 1x1x1 Conv"),
    "argmax-int32-via-float": Known("ArgMax ArgMin", _large_maximum,
        "integers are compared as float32, which rounds from 2^24 on", Severity.INFO),
    "mul-between-transposes-int": Known("Transpose", _product_between_transposes,
        "Mul of integers between Transposes is wrong"),
    "reshape-mul-reducesum": Known("ReduceSum", _product_of_reshapes,
        "ReduceSum of a Mul of two Reshapes is wrong"),
    "groupnorm-half-groups": Known("GroupNormalization", _half_groups,
        "groups that are not a multiple of 8 do not build in half precision"),
    "mod-int-large": Known("Mod", _large_remainder, "Mod of integers from 2^24 on may give -1"),
    "cumsum-several-axes": Known("CumSum", _another_axis,
        "all CumSums of a graph sum along the axis of one of them"),
    "matmul-add-clip": Known("Clip", _clip_after_bias, "the upper bound of the Clip is lost"),
    "conv-clip-100": Known("Clip", _clip_after_conv, "Conv and Clip compute something else"),
}  # fmt: skip
