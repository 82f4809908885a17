"""AffineGrid, decomposed.

ONNX's own body selects two or three dimensions by an If, and squeezes away a batch of 1. Here the number of dimensions
is known, and the same formulas give the same grid.
"""

from __future__ import annotations

from string import Template

from onnx import FunctionProto, NodeProto, TypeProto, helper, parser

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


def function(call: NodeProto, types: tuple[bytes, ...], version: int) -> FunctionProto | None:
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
