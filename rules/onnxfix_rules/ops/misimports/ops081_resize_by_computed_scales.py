"""OPS081: Resize by computed scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from onnxfix.rule import (
    Dim,
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
)
from onnxfix_rules.ops._rounding import ROUNDED
from onnxfix_rules.ops.misimports._ratios import Ratio, ratios

_HAS = {
    Severity.ERROR: "has a fraction",
    Severity.WARNING: "has a fraction for some sizes",
    Severity.INFO: "may have a fraction",
}
_TOLERANCE = 1e-4
"""Negligible shift, in pixels."""


@rule("OPS081", ops=["Resize", "Upsample"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[18])
def resize_by_computed_scales(node: Node, model: Model) -> Iterator[Match]:
    """A Resize or Upsample by computed scales, where a scale times a length has a fraction.

    ## Why it matters
    TensorRT keeps scales that are an initializer or a Constant. From all others, including a Concat of constants, it
    computes the lengths of the result, rounded down, and resizes by their ratio: by 8/5 instead of 1.7 for a width of
    5, so that the last pixels are off by a third of a pixel. It parses and builds without a warning. Measured with
    TensorRT-RTX 1.7.1 by reading the imported network, in opsets 9 to 18: the layer has no `scales`, and an input
    computed by `SHAPE`, `PROD`, `FLOOR` and `CAST`.

    Computed scales for some `axes` are rejected, whatever they are: `` Currently, `axes` attribute is supported with
    `scales` tensor only when it's trivial ``.

    It makes no difference where scale times length is whole, as for a size divided by a size; where the transformation
    is align_corners; and where the nearest neighbors are the same.

    An error where the sizes are static; a warning where the scale is known and not whole, and the sizes are dynamic;
    information where the scale depends on sizes and nothing is proven about it.

    ## Fix
    Make the scales a constant, where their values are known. Exact: the casts, products and quotients are evaluated
    with the same rounding.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Resize.html
    - NVIDIA/TensorRT issue 823: other results by scales than by sizes
    """
    index = 2 if node.op_type == "Resize" and node.opset >= 11 else 1
    data, scales = node.require(0), node.require(index)
    if node.opset < 9 or node.input(3) is not None:
        return
    if scales.producer is None or scales.is_constant:
        return
    found = ratios(scales, model)
    for_some_axes = _some_axes(node, data, model)
    severity = Severity.ERROR if for_some_axes else _severity(node, found, _sizes(node, data, model, found))
    if severity is None:
        return
    fix = None
    if found is not None and all(one.value is not None for one in found):
        draft = Draft(node)
        values = np.array([one.value for one in found], np.float32)
        draft.set_input(node, index, draft.constant(values, "scales"))
        fix = Fix("make the scales a constant", draft.edits)
    how = (
        "rejects them for some of the axes"
        if for_some_axes
        else f"uses lengths, and scale times length {_HAS[severity]}"
    )
    message = f"{node.op_type} by computed scales: TensorRT {how}"
    yield Match(message, node=node, severity=severity, fix=fix, reads=(scales,))


def _some_axes(node: Node, data: Value, model: Model) -> bool:
    """Whether the scales are certainly not for all axes in their order."""
    axes, rank = node.attr("axes") if node.opset >= 18 else None, model.shapes.rank(data)
    if axes is None:
        return False
    if rank is None:
        return any(axis not in (index, index - len(axes)) for index, axis in enumerate(axes))
    return [axis + rank if axis < 0 else axis for axis in axes] != list(range(rank))


def _sizes(node: Node, data: Value, model: Model, found: tuple[Ratio, ...] | None) -> list[Dim] | None:
    """The sizes of the axes that the scales are for."""
    shape = model.shapes.shape(data)
    axes = node.attr("axes") if node.opset >= 18 else None
    if shape is None or found is None:
        return None
    sizes = (
        list(shape) if axes is None else [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
    )
    return sizes if len(sizes) == len(found) else None


def _severity(node: Node, found: tuple[Ratio, ...] | None, sizes: list[Dim] | None) -> Severity | None:
    """How certain it is that TensorRT uses other coordinates; None where it does not."""
    where = node.attr("coordinate_transformation_mode", "half_pixel") if node.opset >= 11 else "asymmetric"
    if where not in _COORDINATES:
        return None
    if found is None:
        return Severity.INFO
    worst = None
    for index, one in enumerate(found):
        constant = one.constant
        if constant is not None and constant.denominator == 1:
            continue
        size = None if sizes is None else sizes[index]
        is_whole = None if size is None else one.is_whole(size)
        if is_whole is not None and is_whole.yes:
            continue
        if size is not None and size.value is not None and one.value is not None:
            severity = Severity.ERROR if _differs(node, where, size.value, one.value) else None
        else:
            severity = Severity.INFO if constant is None else Severity.WARNING
        if severity is not None and (worst is None or severity > worst):
            worst = severity
    return worst


def _half_pixel(positions: Any, scale: float) -> Any:
    return (positions + 0.5) / scale - 0.5


_COORDINATES: dict[str, Callable[[Any, float], Any]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda positions, scale: _half_pixel(positions, scale) * (len(positions) > 1),
    "asymmetric": lambda positions, scale: positions / scale,
}


def _differs(node: Node, where: str, size: int, scale: np.float32) -> bool:
    """Whether the ratio of the lengths samples some pixel elsewhere than the scale."""
    length = int(np.float32(size) * scale)
    if length < 1 or size == 1:  # a single pixel is always the same
        return False
    positions = np.arange(min(length, 1 << 16), dtype=np.float64)
    at = [_COORDINATES[where](positions, factor) for factor in (float(scale), length / size)]
    if node.attr("mode", "nearest") == "nearest":
        rounding = node.attr("nearest_mode", "round_prefer_floor") if node.opset >= 11 else "floor"
        at = [np.clip(ROUNDED.get(rounding, np.floor)(one), 0, size - 1) for one in at]
    elif node.attr("mode") == "linear":
        at = [np.clip(one, 0, size - 1) for one in at]
    return bool(np.abs(at[0] - at[1]).max() > _TOLERANCE)


_G = "g (float[1,1,4,5] x) => (float[1,1,6,8] y)"
_DYNAMIC = "g (float[1,1,H,W] x) => (float[1,1,A,B] y)"
_PARTS = "float[2] o = {1, 1}, float[2] k = {1.7, 1.7}"
_JOIN = "s = Concat<axis = 0>(o, k)"
_S = "float[4] s = {1, 1, 1.7, 1.7}"
_T = _S.replace(" s ", " t ")
_OF_SHAPE = """l = Shape<start = 2>(x)  f = Cast<to = FLOAT>(l)"""


resize_by_computed_scales.examples = [
    Fixed(
        "a Concat of constants",
        before=f'{_G} <{_PARTS}> {{ {_JOIN}  y = Resize<mode = "linear">(x, , s) }}',
        after=f'{_G} <{_S}> {{ y = Resize<mode = "linear">(x, , s) }}',
    ),
    Fixed(
        "a Cast of a double-precision constant; cubic",
        before=f"""{_G} {{ d = Constant<value = double[4] {{1, 1, 1.7, 1.7}}>()  s = Cast<to = FLOAT>(d)
            y = Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">(x, , s) }}""",
        after=f"""{_G} <{_S}> {{
            y = Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">(x, , s) }}""",
        opset=13,
    ),
    Fixed(
        "a constant divided by a static size, with all axes listed",
        before=f"""{_G} <float[2] o = {{1, 1}}, float[2] n = {{6.8, 8.5}}> {{ {_OF_SHAPE}
            q = Div(n, f)  s = Concat<axis = 0>(o, q)  y = Resize<mode = "linear", axes = [0,1,2,-1]>(x, , s) }}""",
        after=f"""{_G} <{_S}> {{ y = Resize<mode = "linear", axes = [0,1,2,-1]>(x, , s) }}""",
    ),
    Fixed(
        "scales of some axes, which TensorRT rejects unless they are constant",
        before=f"""{_G} <float[1] k = {{1.7}}> {{ s = Concat<axis = 0>(k, k)  y = Resize<axes = [2,3]>(x, , s) }}""",
        after=f"""{_G} <float[2] s = {{1.7, 1.7}}> {{ y = Resize<axes = [2,3]>(x, , s) }}""",
    ),
    Flagged(
        "scales of some axes, computed from sizes",
        """g (float[1,1,H,W] x, float[1,1,P,Q] z) => (float[1,1,P,Q] y) {
            l = Shape<start = 2>(x)  f = Cast<to = FLOAT>(l)  m = Shape<start = 2>(z)  n = Cast<to = FLOAT>(m)
            s = Div(n, f)  y = Resize<mode = "linear", axes = [2,3]>(x, , s) }""",
    ),
    Fixed(
        "dynamic sizes and a constant factor",
        before=f'{_DYNAMIC} <{_PARTS}> {{ {_JOIN}  y = Resize<mode = "linear">(x, , s) }}',
        after=f'{_DYNAMIC} <{_S}> {{ y = Resize<mode = "linear">(x, , s) }}',
    ),
    Flagged(
        "dynamic sizes that cancel in the factor",
        f"""{_DYNAMIC} <float[2] o = {{1, 1}}, float k = {{1.7}}> {{ {_OF_SHAPE}
            q = Div(f, f)  m = Mul(q, k)  s = Concat<axis = 0>(o, m)  y = Resize<mode = "linear">(x, , s) }}""",
    ),
    Flagged(
        "a factor that depends on sizes: nothing is proven",
        f"""{_DYNAMIC} <float[2] o = {{1, 1}}, float[1] k = {{0.4}}> {{ {_OF_SHAPE}
            q = Mul(k, f)  s = Concat<axis = 0>(o, q)  y = Resize<mode = "linear">(x, , s) }}""",
    ),
    Flagged(
        "arithmetic that the rule does not follow: nothing is proven",
        f"""{_DYNAMIC} <float[2] o = {{1, 1}}> {{ {_OF_SHAPE}
            q = Sqrt(f)  s = Concat<axis = 0>(o, q)  y = Resize<mode = "linear">(x, , s) }}""",
    ),
    Fixed(
        "nearest mode with another neighbor",
        before=f'{_G} <{_PARTS}> {{ {_JOIN}  y = Resize<nearest_mode = "floor">(x, , s) }}',
        after=f'{_G} <{_S}> {{ y = Resize<nearest_mode = "floor">(x, , s) }}',
    ),
    Fixed(
        "before opset 11",
        before=f'{_G} <{_PARTS}> {{ {_JOIN}  y = Resize<mode = "linear">(x, s) }}',
        after=f'{_G} <{_S}> {{ y = Resize<mode = "linear">(x, s) }}',
        opset=10,
    ),
    Fixed(
        "Upsample",
        before=f'{_G} <{_PARTS}> {{ {_JOIN}  y = Upsample<mode = "linear">(x, s) }}',
        after=f'{_G} <{_S}> {{ y = Upsample<mode = "linear">(x, s) }}',
        opset=9,
    ),
    Fixed(
        "in a local function, where no size is known",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_G} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (x) => (y) {{ o = Constant<value = float[2] {{1, 1}}>()
                k = Constant<value = float[2] {{1.7, 1.7}}>()  {_JOIN}  y = Resize<mode = "linear">(x, , s) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_G} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (x) => (y) {{
                s = Constant<value = float[4] {{1, 1, 1.7, 1.7}}>()  y = Resize<mode = "linear">(x, , s) }}""",
    ),
    Silent(
        "a size divided by a size, as exporters write it: whole lengths",
        f"""g (float[1,1,H,W] x, float[1,1,P,Q] z) => (float[1,1,P,Q] y) <float[2] o = {{1, 1}}> {{ {_OF_SHAPE}
            m = Shape<start = 2>(z)  n = Cast<to = FLOAT>(m)  q = Div(n, f)  s = Concat<axis = 0>(o, q)
            y = Resize<mode = "linear">(x, , s) }}""",
    ),
    Silent(
        "a constant divided by a size",
        f"""{_DYNAMIC} <float[2] o = {{1, 1}}, float[2] n = {{64, 48}}> {{ {_OF_SHAPE}
            q = Div(n, f)  s = Concat<axis = 0>(o, q)  y = Resize<mode = "linear">(x, , s) }}""",
    ),
    Silent(
        "one pixel, cubic",
        """g (float[1,1,4,1] x) => (float[1,1,8,1] y) <float[2] o = {1, 1}, float[2] k = {2, 1.3}> {
            s = Concat<axis = 0>(o, k)  y = Resize<mode = "cubic">(x, , s) }""",
    ),
    Silent(
        "a whole factor",
        f"""{_DYNAMIC} <float[2] o = {{1, 1}}, float[2] k = {{2, 3}}> {{ {_JOIN}
            y = Resize<mode = "linear">(x, , s) }}""",
    ),
    Silent(
        "a whole factor, where no size is known",
        f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[1,1,H,W] x) => (float[1,1,A,B] y) {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (x) => (y) {{ o = Constant<value = float[2] {{1, 1}}>()
                k = Constant<value = float[2] {{2, 2}}>()  {_JOIN}  y = Resize<mode = "linear">(x, , s) }}""",
    ),
    Silent(
        "a whole factor, with all axes listed",
        f"""{_DYNAMIC} <float[2] o = {{1, 1}}, float[2] k = {{2, 3}}> {{ {_JOIN}
            y = Resize<mode = "linear", axes = [0,1,2,-1]>(x, , s) }}""",
    ),
    Silent(
        "half of an even size",
        """g (float[1,1,H,W] x) => (float[1,1,A,B] y) <float[2] o = {1, 1}, float[2] k = {0.5, 1}> {
            d = Concat<axis = 2>(x, x)  s = Concat<axis = 0>(o, k)  y = Resize<mode = "linear">(d, , s) }""",
    ),
    Silent("constant scales, which TensorRT keeps", f'{_G} <{_S}> {{ y = Resize<mode = "linear">(x, , s) }}'),
    Silent(
        "a default of a graph input, which TensorRT treats as a constant",
        f"""g (float[1,1,4,5] x, float[4] s) => (float[1,1,6,8] y) <{_S}> {{
            y = Resize<mode = "linear">(x, , s) }}""",
        differs={"function": "an input of a function is not known to have a default"},
    ),
    Silent(
        "sizes instead of scales",
        f"""{_DYNAMIC} <int64[2] o = {{1, 1}}, int64[2] k = {{7, 9}}> {{
            {_JOIN}  y = Resize<mode = "linear">(x, , , s) }}""",
    ),
    Silent(
        "align_corners, where ONNX Runtime uses the lengths too",
        f"""{_G} <{_PARTS}> {{ {_JOIN}
            y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s) }}""",
    ),
    Silent(
        "nearest mode with the same neighbors",
        """g (float[1,1,4,4] x) => (float[1,1,9,9] y) <float[2] o = {1, 1}, float[2] k = {2.3, 2.3}> {
            s = Concat<axis = 0>(o, k)  y = Resize<coordinate_transformation_mode = "asymmetric",
            nearest_mode = "floor">(x, , s) }""",
    ),
]
