"""Resizes whose sizes, scales or coordinates TensorRT takes otherwise (OPS029, OPS080, OPS081)."""
# Long because: three rules, with an example of each mode and form of the sizes.

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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

_MODE = "coordinate_transformation_mode"

_INT64_MAX = np.iinfo(np.int64).max


@rule("OPS080", ops=["Resize"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[17])
def half_pixel_for_nn(node: Node, model: Model) -> Iterator[Match]:
    """A Resize in linear or cubic mode with `coordinate_transformation_mode = tf_half_pixel_for_nn`.

    ## Why it matters
    ONNX samples the pixel at (x + 0.5) / scale, TensorRT at (x + 0.5) / scale - 0.5: the image is shifted by half an
    input pixel. It parses and builds without a warning. Measured with TensorRT-RTX 1.7.1 by reading the imported
    network, in opsets 11 to 18: the layer has `HALF_PIXEL`. Of four pixels 0, 1, 2, 3 resized by 2, the first ones are
    0, 0.25, 0.75, 1.25 instead of ONNX's 0.25, 0.75, 1.25, 1.75.

    Nearest-neighbor mode is imported correctly: `HALF_PIXEL` and rounding up give the same. With sizes instead of
    scales TensorRT rejects it. ONNX has the mode in opsets 11 and 12; TensorRT and ONNX Runtime accept it in later ones
    too.

    ## Fix
    (x + 0.5) / scale is (2x + 1) / (2 scale): a Resize by twice the scales in the mode `asymmetric`, followed by a
    Slice of every second pixel, starting at the second. Exact: everything is doubled, which floats do without rounding.
    The intermediate image is twice as large along each axis that is resized. No fix where the scales are computed.

    ONNX Runtime copies an image that is resized to its own size, by whatever factor. Where the size is unknown and a
    factor such as 1.1 or 0.6 may give that in one of the two forms, the fix requires `--unsafe-fixes`. Where every
    factor is 0.5, twice of which is a copy, rounding differs, and so do infinities that had a weight of 0:
    `--numeric-fixes`.

    TensorRT layers: one more.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Resize.html: version 11
    """
    if node.opset < 11 or node.attr("mode", "nearest") not in ("linear", "cubic"):
        return
    if node.opset >= 18 and node.attr("antialias", 0):
        return  # rejected, and twice the scales would use another filter: OPS031
    scales = node.require(2)
    if node.attr(_MODE, "half_pixel") != "tf_half_pixel_for_nn" or node.input(3) is not None:
        return
    found = _resized(node, model, scales)
    if found is not None and not found.axes:
        return
    yield Match(
        f"Resize in {node.attr('mode')} mode with tf_half_pixel_for_nn: TensorRT uses half_pixel, half a pixel off",
        node=node,
        fix=None if found is None else _fix(node, found),
        reads=(scales,),
    )


@dataclass(frozen=True)
class _Resized:
    """The axes that are resized, each with its factor and, if static, its size; ``scales`` are the node's."""

    axes: list[int]
    factors: list[np.float32]
    sizes: list[int | None]
    scales: np.ndarray[Any, Any]

    @property
    def may_be_copied(self) -> bool:
        """Whether the image may keep its size in one of the two forms; ONNX Runtime then copies it."""
        twice = [factor * 2 for factor in self.factors]
        return any(
            any(factor != 1 for factor in factors) and all(map(_may_keep_size, self.sizes, factors))
            for factors in (self.factors, twice)
        )


def _may_keep_size(size: int | None, factor: np.float32) -> bool:
    """Whether an axis may keep its size."""
    if size is not None:
        return int(np.float32(size) * factor) == size
    return bool(0.5 < factor < 2)


def _resized(node: Node, model: Model, scales: Value) -> _Resized | None:
    """What the node resizes; None where the scales are unknown."""
    data, values = node.input(0), scales.constant()
    if data is None or values is None or values.ndim != 1:
        return None
    if values.dtype != np.float32 or not (values > 0).all():
        return None
    shape = model.shapes.shape(data)
    named = node.attr("axes") if node.opset >= 18 else None
    if named is not None and shape is None:
        return None
    axes: Sequence[int] = range(len(values))
    if named is not None and shape is not None:
        axes = [axis % len(shape) for axis in named]
    if len(axes) != len(values) or (named is None and shape is not None and len(shape) != len(values)):
        return None
    sizes = {axis: None if shape is None else shape[axis].value for axis in axes}
    moved = {axis: factor for axis, factor in zip(axes, values, strict=True) if factor != 1}
    if all(sizes[axis] == 1 for axis in moved):
        moved = {}
    return _Resized(list(moved), list(moved.values()), [sizes[axis] for axis in moved], values)


def _fix(node: Node, found: _Resized) -> Fix:
    draft = Draft(node)
    scales = np.where(found.scales == 1, found.scales, found.scales * 2).astype(np.float32)
    inputs = [*node.inputs[:2], draft.constant(scales, "scales"), *node.inputs[3:]]
    mode = {_MODE: "asymmetric", "nearest_mode": None}
    doubled = draft.copy_node(node, "", inputs, [draft.name("doubled")], **mode)
    count = len(found.axes)
    hints = ("start", "end", "axes", "step")
    bounds = ([1] * count, [_INT64_MAX] * count, found.axes, [2] * count)
    read = [draft.integers(bound, hint) for bound, hint in zip(bounds, hints, strict=True)]
    draft.replace_output(node, draft.add("Slice", [doubled, *read]))
    safety = Safety.UNSAFE if found.may_be_copied else Safety.EXACT
    if all(factor == 0.5 for factor in found.factors):
        safety = Safety.NUMERIC  # the doubled image is a copy; the original computes sums with weights of 0
    return Fix("resize by twice the scales and slice every second pixel", draft.edits, safety)


_TF = f'{_MODE} = "tf_half_pixel_for_nn"'
_ASYM = f'{_MODE} = "asymmetric"'
_G = "g (float[N,2,4,4] x) => (float[N,2,8,6] y)"
_ROI = "float[0] r = {}"
_ODD = "int64[2] b = {1, 1}, int64[2] e = {9223372036854775807, 9223372036854775807}, int64[2] t = {2, 2}"
_LAST = f"{_ODD}, int64[2] a = {{2, 3}}"
_fixed = partial(Fixed, opset=11)
_silent = partial(Silent, opset=11)


def _resize(x: str, y: str, s_values: str, s: str = "4") -> str:
    return f"""g (float[{x}] x) => (float[{y}] y) <float[0] r = {{}}, float[{s}] s = {{{s_values}}}> {{
        y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn", mode = "linear">(x, r, s) }}"""


half_pixel_for_nn.examples = [
    _fixed(
        "linear, scales of 2 and 1.5",
        before=f'{_G} <{_ROI}, float[4] s = {{1, 1, 2, 1.5}}> {{ y = Resize<{_TF}, mode = "linear">(x, r, s) }}',
        after=f"""{_G} <{_ROI}, float[4] s = {{1, 1, 4, 3}}, {_LAST}> {{
            d = Resize<{_ASYM}, mode = "linear">(x, r, s)  y = Slice(d, b, e, a, t) }}""",
    ),
    _fixed(
        "cubic, of dynamic size, shrinking one axis",
        before=f"""g (float[1,1,H,W] x) => (float[1,1,A,B] z) <{_ROI}, float[4] s = {{1, 1, 2.3, 0.5}}> {{
            y = Resize<{_TF}, mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1>(x, r, s)  z = Neg(y) }}""",
        after=f"""g (float[1,1,H,W] x) => (float[1,1,A,B] z) <{_ROI}, float[4] s = {{1, 1, 4.6, 1}}, {_LAST}> {{
            d = Resize<{_ASYM}, mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1>(x, r, s)
            y = Slice(d, b, e, a, t)  z = Neg(y) }}""",
    ),
    _fixed(
        "an image of dynamic size that may keep its size: ONNX Runtime copies it",
        before=_resize("1,1,H,W", "1,1,A,B", "1, 1, 0.6, 0.6"),
        after=f"""g (float[1,1,H,W] x) => (float[1,1,A,B] y) <{_ROI}, float[4] s = {{1, 1, 1.2, 1.2}}, {_LAST}> {{
            d = Resize<{_ASYM}, mode = "linear">(x, r, s)  y = Slice(d, b, e, a, t) }}""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "the same without --unsafe-fixes: reported only",
        _resize("1,1,H,W", "1,1,A,B", "1, 1, 0.6, 0.6"),
        opset=11,
    ),
    _fixed(
        "the same factors with static sizes",
        before=_resize("N,2,8,8", "N,2,4,4", "1, 1, 0.6, 0.6"),
        after=f"""g (float[N,2,8,8] x) => (float[N,2,4,4] y) <{_ROI}, float[4] s = {{1, 1, 1.2, 1.2}}, {_LAST}> {{
            d = Resize<{_ASYM}, mode = "linear">(x, r, s)  y = Slice(d, b, e, a, t) }}""",
    ),
    Fixed(
        "in a local function that contains the scales",
        before=f"""<ir_version: 9, opset_import: ["" : 11, "my" : 1]> {_G} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 11]> F (x) => (y) {{ r = Constant<value = float[0] {{}}>()
                s = Constant<value = float[4] {{1, 1, 2, 1.5}}>()  y = Resize<{_TF}, mode = "linear">(x, r, s) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 11, "my" : 1]> {_G} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 11]> F (x) => (y) {{ r = Constant<value = float[0] {{}}>()
                s = Constant<value = float[4] {{1, 1, 4, 3}}>()  b = Constant<value = int64[2] {{1, 1}}>()
                e = Constant<value = int64[2] {{9223372036854775807, 9223372036854775807}}>()
                a = Constant<value = int64[2] {{2, 3}}>()  t = Constant<value = int64[2] {{2, 2}}>()
                d = Resize<{_ASYM}, mode = "linear">(x, r, s)  y = Slice(d, b, e, a, t) }}""",
    ),
    Flagged(
        "computed scales",
        f"""g (float[1,1,H,W] x) => (float[1,1,A,B] y) <{_ROI}, float[2] o = {{1, 1}}, float[2] k = {{2, 2}}> {{
            s = Concat<axis = 0>(o, k)  y = Resize<{_TF}, mode = "linear">(x, r, s) }}""",
        opset=11,
    ),
    _silent(
        "nearest mode, for which it is intended",
        f"{_G} <{_ROI}, float[4] s = {{1, 1, 2, 1.5}}> {{ y = Resize<{_TF}>(x, r, s) }}",
    ),
    _silent(
        "half_pixel mode",
        f'{_G} <{_ROI}, float[4] s = {{1, 1, 2, 1.5}}> {{ y = Resize<mode = "linear">(x, r, s) }}',
    ),
    _silent("nothing is resized", _resize("N,2,4,4", "N,2,4,4", "1, 1, 1, 1")),
    _silent("one pixel has no neighbor", _resize("N,2,1,1", "N,2,3,2", "1, 1, 3, 2")),
    _fixed(
        "half of each size: the copy has no rounding of a sum",
        before=_resize("1,2,8", "1,2,4", "1, 1, 0.5", s="3"),
        after=f"""g (float[1,2,8] x) => (float[1,2,4] y) <{_ROI}, float[3] s = {{1, 1, 1}}, int64[1] b = {{1}},
            int64[1] e = {{9223372036854775807}}, int64[1] a = {{2}}, int64[1] t = {{2}}> {{
            d = Resize<{_ASYM}, mode = "linear">(x, r, s)  y = Slice(d, b, e, a, t) }}""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Silent(
        "antialiasing, which TensorRT rejects (OPS031)",
        f"""{_G} <{_ROI}, float[4] s = {{1, 1, 0.5, 1.5}}> {{
            y = Resize<{_TF}, mode = "linear", antialias = 1>(x, r, s) }}""",
        opset=18,
        runs=False,
    ),
    _silent(
        "sizes instead of scales, which TensorRT rejects",
        f"""{_G} <{_ROI}, float[0] s = {{}}, int64[4] z = {{1, 2, 8, 6}}> {{
            y = Resize<{_TF}, mode = "linear">(x, r, s, z) }}""",
        runs=False,
    ),
]


@rule("OPS029", ops=["Resize"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[55])
def resize_with_axes(node: Node, model: Model) -> Iterator[Match]:
    """A Resize to constant sizes of some `axes`, where another axis is dynamic.

    ## Why it matters
    The parser takes the sizes of the other axes from the network's dimensions, and uses the -1 of a dynamic axis as its
    size: `Tensor … has axis 0 with inherently negative length. Proven upper bound is -1. Network must have an instance
    where axis has non-negative length.`, measured with TensorRT-RTX 1.7.1. PyTorch exports an interpolation to a fixed
    size this way. `scales`, computed sizes, and models where only resized axes are dynamic are imported correctly.

    ## Fix
    Give the sizes of all axes, the others by Shape, and drop `axes`. Exact: the scale of the other axes is 1 in both. A
    region of interest, which only the mode `tf_crop_and_resize` uses, is dropped.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Resize.html, since opset 18
    """
    data, sizes = node.require(0), node.require(3)
    if node.opset < 18 or node.attr("axes") is None:
        return
    shape = model.shapes.shape(data)
    wanted = sizes.constant()
    # Else the sizes are not those of the result, or the region of interest matters.
    plain = node.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    if shape is None or wanted is None or not plain or mode == "tf_crop_and_resize":
        return
    axes = [axis + len(shape) if axis < 0 else axis for axis in node.attr("axes")]
    if wanted.shape != (len(axes),) or len(set(axes)) != len(axes) or not set(axes) <= set(range(len(shape))):
        return
    given = dict(zip(axes, (int(size) for size in wanted), strict=True))
    if all(axis in given or dim.value is not None for axis, dim in enumerate(shape)):
        return
    draft = Draft(node)
    draft.set_input(node, 3, _all_sizes(draft, data, shape, given))
    draft.set_input(node, 1, None)
    draft.set_attr(node, "axes", None)
    some = ", ".join(str(d) for axis, d in enumerate(shape) if axis not in given and d.value is None)
    yield Match(
        f"Resize to the sizes {wanted.tolist()} of the axes {sorted(axes)}: TensorRT uses -1 as the size of {some}",
        node=node,
        fix=Fix("give the sizes of all axes", draft.edits),
        reads=(data, sizes),
    )


def _all_sizes(draft: Draft, data: Value, shape: Sequence[Dim], given: dict[int, int]) -> str:
    """The sizes of all axes as one value: known ones as constants, runs of dynamic ones by Shape."""
    sizes = [given.get(axis, dim.value) for axis, dim in enumerate(shape)]
    parts: list[str] = []
    for is_dynamic, run in itertools.groupby(range(len(sizes)), lambda axis: sizes[axis] is None):
        axes = list(run)
        if is_dynamic:
            first, end = axes[0], axes[-1] + 1
            parts.append(draft.add("Shape", [data], hint=f"sizes_{first}", start=first, end=end))
        else:
            parts.append(draft.integers([sizes[axis] for axis in axes], "sizes"))
    return parts[0] if len(parts) == 1 else draft.add("Concat", parts, hint="all_sizes", axis=0)


_SIZES = "int64[2] s = {8, 6}"


resize_with_axes.examples = [
    Fixed(
        "a dynamic batch",
        before=f"g (float[N,3,4,4] x) => (float[N,3,8,6] y) <{_SIZES}> {{ y = Resize<axes = [2,3]>(x, , , s) }}",
        after="""g (float[N,3,4,4] x) => (float[N,3,8,6] y) <int64[3] s = {3, 8, 6}> {
            b = Shape<start = 0, end = 1>(x)  f = Concat<axis = 0>(b, s)  y = Resize(x, , , f) }""",
    ),
    Fixed(
        "negative axes in another order, linear, with an unused region of interest",
        before=f"""g (float[N,M,4,4] x) => (float[N,M,6,8] y) <{_SIZES}, float[4] r = {{0, 0, 1, 1}}> {{
            y = Resize<axes = [-1,-2], mode = "linear">(x, r, , s) }}""",
        after="""g (float[N,M,4,4] x) => (float[N,M,6,8] y) <int64[2] s = {6, 8}> {
            b = Shape<start = 0, end = 2>(x)  f = Concat<axis = 0>(b, s)
            y = Resize<mode = "linear">(x, , , f) }""",
    ),
    Fixed(
        "one axis between dynamic ones, sizes from a Constant node",
        before="""g (float[N,3,H,W] x) => (float[N,3,5,W] y) {
            s = Constant<value_ints = [5]>()  y = Resize<axes = [2]>(x, , , s) }""",
        after="""g (float[N,3,H,W] x) => (float[N,3,5,W] y) <int64[2] s = {3, 5}> {
            b = Shape<start = 0, end = 1>(x)  w = Shape<start = 3, end = 4>(x)
            f = Concat<axis = 0>(b, s, w)  y = Resize(x, , , f) }""",
    ),
    Silent(
        "the other axes are static",
        f"g (float[2,3,H,W] x) => (float[2,3,8,6] y) <{_SIZES}> {{ y = Resize<axes = [2,3]>(x, , , s) }}",
    ),
    Silent(
        "scales instead of sizes",
        """g (float[N,3,4,4] x) => (float[N,3,8,8] y) <float[2] s = {2, 2}> {
            y = Resize<axes = [2,3]>(x, , s) }""",
    ),
    Silent(
        "sizes of all axes",
        "g (float[N,4] x) => (float[2,8] y) <int64[2] s = {2, 8}> { y = Resize(x, , , s) }",
    ),
    Silent(
        "computed sizes",
        """g (float[N,3,4,4] x, float[H,W] z) => (float[N,3,H,W] y) {
            s = Shape(z)  y = Resize<axes = [2,3]>(x, , , s) }""",
    ),
    Silent(
        "keep_aspect_ratio_policy changes the sizes of the result: OPS031",
        f"""g (float[N,3,4,4] x) => (float[N,3,H,W] y) <{_SIZES}> {{
            y = Resize<axes = [2,3], keep_aspect_ratio_policy = "not_larger">(x, , , s) }}""",
    ),
    Silent(
        "of unknown rank",
        """g (float[A,B] x, int64[K] h, int64[K] k) => (float[C] y) <int64[1] s = {8}> {
            r = Reshape(x, h)  y0 = Resize<axes = [0]>(r, , , s)  y = Reshape(y0, k) }""",
        runs=False,
    ),
]

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


_UP = "g (float[1,1,4,5] x) => (float[1,1,6,8] y)"
_DYNAMIC = "g (float[1,1,H,W] x) => (float[1,1,A,B] y)"
_PARTS = "float[2] o = {1, 1}, float[2] k = {1.7, 1.7}"
_JOIN = "s = Concat<axis = 0>(o, k)"
_S = "float[4] s = {1, 1, 1.7, 1.7}"
_T = _S.replace(" s ", " t ")
_OF_SHAPE = """l = Shape<start = 2>(x)  f = Cast<to = FLOAT>(l)"""


resize_by_computed_scales.examples = [
    Fixed(
        "a Concat of constants",
        before=f'{_UP} <{_PARTS}> {{ {_JOIN}  y = Resize<mode = "linear">(x, , s) }}',
        after=f'{_UP} <{_S}> {{ y = Resize<mode = "linear">(x, , s) }}',
    ),
    Fixed(
        "a Cast of a double-precision constant; cubic",
        before=f"""{_UP} {{ d = Constant<value = double[4] {{1, 1, 1.7, 1.7}}>()  s = Cast<to = FLOAT>(d)
            y = Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">(x, , s) }}""",
        after=f"""{_UP} <{_S}> {{
            y = Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">(x, , s) }}""",
        opset=13,
    ),
    Fixed(
        "a constant divided by a static size, with all axes listed",
        before=f"""{_UP} <float[2] o = {{1, 1}}, float[2] n = {{6.8, 8.5}}> {{ {_OF_SHAPE}
            q = Div(n, f)  s = Concat<axis = 0>(o, q)  y = Resize<mode = "linear", axes = [0,1,2,-1]>(x, , s) }}""",
        after=f"""{_UP} <{_S}> {{ y = Resize<mode = "linear", axes = [0,1,2,-1]>(x, , s) }}""",
    ),
    Fixed(
        "scales of some axes, which TensorRT rejects unless they are constant",
        before=f"""{_UP} <float[1] k = {{1.7}}> {{ s = Concat<axis = 0>(k, k)  y = Resize<axes = [2,3]>(x, , s) }}""",
        after=f"""{_UP} <float[2] s = {{1.7, 1.7}}> {{ y = Resize<axes = [2,3]>(x, , s) }}""",
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
        before=f'{_UP} <{_PARTS}> {{ {_JOIN}  y = Resize<nearest_mode = "floor">(x, , s) }}',
        after=f'{_UP} <{_S}> {{ y = Resize<nearest_mode = "floor">(x, , s) }}',
    ),
    Fixed(
        "before opset 11",
        before=f'{_UP} <{_PARTS}> {{ {_JOIN}  y = Resize<mode = "linear">(x, s) }}',
        after=f'{_UP} <{_S}> {{ y = Resize<mode = "linear">(x, s) }}',
        opset=10,
    ),
    Fixed(
        "Upsample",
        before=f'{_UP} <{_PARTS}> {{ {_JOIN}  y = Upsample<mode = "linear">(x, s) }}',
        after=f'{_UP} <{_S}> {{ y = Upsample<mode = "linear">(x, s) }}',
        opset=9,
    ),
    Fixed(
        "in a local function, where no size is known",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_UP} {{ y = my.F(x) }}
            <domain: "my", opset_import: ["" : 18]> F (x) => (y) {{ o = Constant<value = float[2] {{1, 1}}>()
                k = Constant<value = float[2] {{1.7, 1.7}}>()  {_JOIN}  y = Resize<mode = "linear">(x, , s) }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_UP} {{ y = my.F(x) }}
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
    Silent(
        "constant scales, which TensorRT keeps", f'{_UP} <{_S}> {{ y = Resize<mode = "linear">(x, , s) }}'
    ),
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
        f"""{_UP} <{_PARTS}> {{ {_JOIN}
            y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , s) }}""",
    ),
    Silent(
        "nearest mode with the same neighbors",
        """g (float[1,1,4,4] x) => (float[1,1,9,9] y) <float[2] o = {1, 1}, float[2] k = {2.3, 2.3}> {
            s = Concat<axis = 0>(o, k)  y = Resize<coordinate_transformation_mode = "asymmetric",
            nearest_mode = "floor">(x, , s) }""",
    ),
]
