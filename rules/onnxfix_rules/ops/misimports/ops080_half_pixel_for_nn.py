"""OPS080: linear or cubic Resize in TensorFlow's half-pixel mode for nearest neighbors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, Value, rule

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
    if (
        data is None
        or values is None
        or values.ndim != 1
        or values.dtype != np.float32
        or not (values > 0).all()
    ):
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
    output = node.output()
    assert output is not None
    scales = np.where(found.scales == 1, found.scales, found.scales * 2).astype(np.float32)
    inputs = [*node.inputs[:2], draft.constant(scales, "scales"), *node.inputs[3:]]
    mode = {_MODE: "asymmetric", "nearest_mode": None}
    doubled = draft.copy_node(node, "", inputs, [draft.name("doubled")], **mode)
    count = len(found.axes)
    slice_inputs = {
        "start": [1] * count,
        "end": [_INT64_MAX] * count,
        "axes": found.axes,
        "step": [2] * count,
    }
    read = [draft.integers(value, name) for name, value in slice_inputs.items()]
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
        before=f"""g (float[1,1,H,W] x) => (float[1,1,A,B] y) <{_ROI}, float[4] s = {{1, 1, 0.6, 0.6}}> {{
            y = Resize<{_TF}, mode = "linear">(x, r, s) }}""",
        after=f"""g (float[1,1,H,W] x) => (float[1,1,A,B] y) <{_ROI}, float[4] s = {{1, 1, 1.2, 1.2}}, {_LAST}> {{
            d = Resize<{_ASYM}, mode = "linear">(x, r, s)  y = Slice(d, b, e, a, t) }}""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "the same without --unsafe-fixes: reported only",
        f"""g (float[1,1,H,W] x) => (float[1,1,A,B] y) <{_ROI}, float[4] s = {{1, 1, 0.6, 0.6}}> {{
            y = Resize<{_TF}, mode = "linear">(x, r, s) }}""",
        opset=11,
    ),
    _fixed(
        "the same factors with static sizes",
        before=f"""g (float[N,2,8,8] x) => (float[N,2,4,4] y) <{_ROI}, float[4] s = {{1, 1, 0.6, 0.6}}> {{
            y = Resize<{_TF}, mode = "linear">(x, r, s) }}""",
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
    _silent(
        "nothing is resized",
        f"""g (float[N,2,4,4] x) => (float[N,2,4,4] y) <{_ROI}, float[4] s = {{1, 1, 1, 1}}> {{
            y = Resize<{_TF}, mode = "linear">(x, r, s) }}""",
    ),
    _silent(
        "one pixel has no neighbor",
        f"""g (float[N,2,1,1] x) => (float[N,2,3,2] y) <{_ROI}, float[4] s = {{1, 1, 3, 2}}> {{
            y = Resize<{_TF}, mode = "linear">(x, r, s) }}""",
    ),
    _fixed(
        "half of each size: the copy has no rounding of a sum",
        before=f"""g (float[1,2,8] x) => (float[1,2,4] y) <{_ROI}, float[3] s = {{1, 1, 0.5}}> {{
            y = Resize<{_TF}, mode = "linear">(x, r, s) }}""",
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
