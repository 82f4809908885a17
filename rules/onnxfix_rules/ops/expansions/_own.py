"""Bodies for operators whose function ONNX does not define, or not as models need it."""

from __future__ import annotations

from string import Template
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TypeProto, helper, numpy_helper, parser

_HEAD = """<domain: "onnxfix", opset_import: ["" : 20]>
grid (theta, size) => (grid) {
    zero = Constant<value_int = 0>()  one = Constant<value_int = 1>()  last = Constant<value_ints = [-1]>()
    from0 = Constant<value_ints = [0]>()  from1 = Constant<value_ints = [1]>()  from2 = Constant<value_ints = [2]>()
    end = Constant<value_ints = [$rank]>()
    one_f = Constant<value_float = 1.0>()  two_f = Constant<value_float = 2.0>()
    one_t = CastLike(one_f, theta)  two_t = CastLike(two_f, theta)  first = Neg(one_t)
    batch = Slice(size, from0, from1)  image = Slice(size, from2, end)
    nothing = ConstantOfShape<value = float[1] {0}>(image)  zeros = CastLike(nothing, theta)  ones = Add(zeros, one_t)
"""
_AXIS = """
    index$a = Constant<value_int = $a>()  size$a = Gather(size, index$a)  count$a = CastLike(size$a, theta)
    numbers$a = Range(zero, size$a, one)  numbers_t$a = CastLike(numbers$a, theta)
    $step
    offset$a = Mul(numbers_t$a, step$a)  line$a = Add(offset$a, start$a)
    shape$a = Constant<value_ints = [$shape]>()  shaped$a = Reshape(line$a, shape$a)
    filled$a = Add(shaped$a, zeros)  column$a = Unsqueeze(filled$a, last)
"""
_CENTERS = "step$a = Div(two_t, count$a)  half$a = Div(step$a, two_t)  start$a = Add(first, half$a)"
# A size of 1 has no two corners, and 2 / (1 - 1) is undefined. The single point is put at -1, as in ONNX's body for the
# depth and in ONNX's reference for all sizes. ONNX Runtime puts it at 0.
_CORNERS = """gaps$a = Sub(count$a, one_t)  some$a = Max(gaps$a, one_t)  step$a = Div(two_t, some$a)
    start$a = Identity(first)"""
_TAIL = """
    column_one = Unsqueeze(ones, last)  points = Concat<axis = -1>($columns, column_one)
    flat = Constant<value_ints = [-1, $coordinates]>()  rows = Reshape(points, flat)
    turned = Transpose<perm = [0, 2, 1]>(theta)  moved = MatMul(rows, turned)
    dims = Constant<value_ints = [$dims]>()  shape = Concat<axis = 0>(batch, image, dims)
    grid = Reshape(moved, shape)
}"""


def affine_grid(call: NodeProto, types: tuple[bytes, ...], version: int) -> FunctionProto | None:
    """A body for this call; None where the number of dimensions is unknown. Opset 20 is valid for all."""
    dims = _dimensions(types)
    if dims is None or len(call.input) != 2:
        return None
    align = aligns(call)
    axes = range(2, dims + 2)
    text = Template(_HEAD).substitute(rank=dims + 2)
    for axis in axes:
        step = _CORNERS if align else _CENTERS
        text += Template(_AXIS).substitute(
            a=axis,
            step=Template(step).substitute(a=axis),
            shape=", ".join("-1" if other == axis else "1" for other in axes),
        )
    columns = ", ".join(f"column{axis}" for axis in reversed(axes))
    text += Template(_TAIL).substitute(columns=columns, coordinates=dims + 1, dims=dims)
    found: FunctionProto = parser.parse_function(text)
    return found


def aligns(call: NodeProto) -> bool:
    """Whether the grid's outermost points are the image's corners, not the centers of its corner pixels."""
    return any(helper.get_attribute_value(a) for a in call.attribute if a.name == "align_corners")


def _dimensions(types: tuple[bytes, ...]) -> int | None:
    """2 or 3, from the number of sizes or from theta's last dimension."""
    if len(types) != 2 or not all(types):
        return None
    theta, size = (TypeProto.FromString(kind).tensor_type.shape.dim for kind in types)
    if len(size) == 1 and size[0].dim_value in (4, 5):
        return int(size[0].dim_value) - 2
    if len(theta) == 3 and theta[2].dim_value in (3, 4):
        return int(theta[2].dim_value) - 1
    return None


def function(
    call: NodeProto, types: tuple[bytes, ...], version: int, *, allow_self: bool
) -> FunctionProto | None:
    """A body for this call, in operators of opset ``version``; None where ONNX's own is used.

    ``itself``: the operator may occur in its own body, in a simpler form.
    """
    if call.domain or (call.op_type == "LayerNormalization" and not allow_self):
        return None
    if not all(kind or not name for kind, name in zip(types, call.input, strict=True)):
        return None
    builder = {
        "AffineGrid": affine_grid,
        "LayerNormalization": _layer_normalization,
        "SoftmaxCrossEntropyLoss": _cross_entropy,
    }.get(call.op_type)
    return None if builder is None else builder(call, types, version)


def attributes(call: NodeProto) -> dict[str, Any]:
    """The call's attributes as Python values."""
    return {a.name: helper.get_attribute_value(a) for a in call.attribute}


def _function(
    call: NodeProto, inputs: list[str], outputs: list[str], nodes: list[NodeProto]
) -> FunctionProto:
    return helper.make_function("onnxfix", call.op_type, inputs, outputs, nodes, [helper.make_opsetid("", 1)])


def _layer_normalization(call: NodeProto, types: tuple[bytes, ...], version: int) -> FunctionProto | None:
    """The norm itself, with mean and inverse deviation computed separately."""
    given = attributes(call)
    axis, stash = given.get("axis", -1), given.get("stash_type", 1)
    kind = TypeProto.FromString(types[0]).tensor_type
    if axis >= 0 and not kind.HasField("shape"):
        return None
    axes = list(range(axis, len(kind.shape.dim) if axis >= 0 else 0))
    dims = kind.shape.dim
    rank = len(dims) if any(not dim.dim_value for dim in dims) else None
    inputs = ["x", "scale", "bias"][: len(call.input)]
    norm = helper.make_node("LayerNormalization", inputs, ["y"])
    norm.attribute.extend(call.attribute)
    epsilon = np.array(given.get("epsilon", 1e-5), np.float32)
    nodes = [
        norm,
        helper.make_node("Cast", ["x"], ["wide"], to=stash),
        *_means("wide", "mean", axes, version, rank),
        helper.make_node("Sub", ["wide", "mean"], ["deviation"]),
        helper.make_node("Mul", ["deviation", "deviation"], ["square"]),
        *_means("square", "variance", axes, version, rank),
        _constant("given_epsilon", epsilon),
        helper.make_node("Cast", ["given_epsilon"], ["epsilon"], to=stash),
        helper.make_node("Add", ["variance", "epsilon"], ["positive"]),
        helper.make_node("Sqrt", ["positive"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["inverse"]),
    ]
    return _function(call, inputs, ["y", "mean", "inverse"], nodes)


def _means(source: str, target: str, axes: list[int], version: int, rank: int | None) -> list[NodeProto]:
    """Means along ``axes``, which are kept with length 1; ``rank`` where the tensor may be empty.

    ONNX Runtime 1.31 does not reduce the axes of an empty tensor: a Reshape gives the shape that ONNX defines.
    """
    named, unreshaped = f"{target} axes", target if rank is None else f"{target} whole"
    nodes = [_constant(named, np.array(axes, np.int64))] if version >= 18 else []
    if version < 18:
        nodes.append(helper.make_node("ReduceMean", [source], [unreshaped], axes=axes, keepdims=1))
    else:
        nodes.append(helper.make_node("ReduceMean", [source, named], [unreshaped], keepdims=1))
    if rank is not None:
        shape = np.zeros(rank, np.int64)  # 0: unchanged
        shape[axes] = 1
        nodes.append(_constant(f"{target} shape", shape))
        nodes.append(helper.make_node("Reshape", [unreshaped, f"{target} shape"], [target]))
    return nodes


def _constant(name: str, array: np.ndarray[Any, Any]) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def _cross_entropy(call: NodeProto, types: tuple[bytes, ...], version: int) -> FunctionProto | None:
    """The logarithms of the probabilities, and their loss."""
    if version < 13:
        return None  # LogSoftmax flattened the dimensions from axis on
    inputs = ["scores", "labels", "weights"][: len(call.input)]
    loss = helper.make_node("NegativeLogLikelihoodLoss", ["log_prob", *inputs[1:]], ["loss"])
    loss.attribute.extend(call.attribute)
    nodes = [helper.make_node("LogSoftmax", ["scores"], ["log_prob"], axis=1), loss]
    return _function(call, inputs, ["loss", "log_prob"], nodes)
