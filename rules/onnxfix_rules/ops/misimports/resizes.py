"""OPS029 and OPS080: Resizes whose sizes or coordinates TensorRT takes otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
    Fixed(
        "linear, one axis; nearest_mode has no effect",
        before=f"""g (float[1,1,4] x) => (float[1,1,8] y) <{_ROI}, float[3] s = {{1, 1, 2}}> {{
            y = Resize<{_TF}, mode = "linear", nearest_mode = "round_prefer_floor">(x, r, s) }}""",
        after=f"""g (float[1,1,4] x) => (float[1,1,8] y) <{_ROI}, float[3] s = {{1, 1, 4}}, int64[1] b = {{1}},
            int64[1] e = {{9223372036854775807}}, int64[1] a = {{2}}, int64[1] t = {{2}}> {{
            d = Resize<{_ASYM}, mode = "linear">(x, r, s)  y = Slice(d, b, e, a, t) }}""",
        opset=12,
        runs=False,
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
    Fixed(
        "the resized axis is dynamic as well",
        before="g (float[N,H] x) => (float[N,5] y) <int64[1] s = {5}> { y = Resize<axes = [1]>(x, , , s) }",
        after="""g (float[N,H] x) => (float[N,5] y) <int64[1] s = {5}> {
            b = Shape<start = 0, end = 1>(x)  f = Concat<axis = 0>(b, s)  y = Resize(x, , , f) }""",
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
