"""OPS031: modes of Resize that TensorRT does not support, as products with constant matrices."""
# Long because: a table of modes, the matrix of each, and an example of each.

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

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
    Value,
    equal,
    is_small,
    rule,
)
from onnxfix_rules.ops._rounding import ROUNDED

_KNOWN = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")


@rule("OPS031", ops=["Resize"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[55])
def resize_mode(node: Node, model: Model) -> Iterator[Match]:
    """A Resize form that TensorRT does not support: crops, antialiasing, a kept aspect ratio, too many axes.

    ## Why it matters
    The parser or the builder stops, measured with TensorRT-RTX 1.7.1:

    - `coordinate_transformation_mode` tf_crop_and_resize or half_pixel_symmetric: `TensorRT only supports half_pixel,
      pytorch_half_pixel, tf_half_pixel_for_nn, asymmetric and align_corners`
    - `antialias`: `Antialiasing is not supported currently.`
    - `keep_aspect_ratio_policy`: `` Only `stretch` is supported currently ``, even with scales, where it has no effect
    - tf_half_pixel_for_nn with a `nearest_mode` other than round_prefer_floor, in every mode: `This version of TensorRT
      only support round_prefer_floor nearest mode in tf_half_pixel_for_nn!`
    - cubic by scales along more than the last two axes: `This version of TensorRT only supports cubic resizing on the
      outermost 2 dimensions.`; linear along more than the last three: the same with 3, and by sizes `Linear resize mode
      only supports resize up to last 3 dimensions` from the builder. Cubic by scales with `axes` is accepted for all
      axes, although the layer is documented for the last two: a warning

    ## Fix
    An attribute without effect is dropped, exactly: the aspect ratio policy with scales, the rounding mode in linear
    and cubic mode.

    With `--numeric-fixes` a linear or cubic Resize of known sizes becomes an Einsum with a constant matrix along each
    axis that changes: interpolation is linear in the data and separable, and row i of the matrix has the weights of
    element i of the result. Only the order of sums differs. Measured over all modes (800 models), ONNX Runtime and the
    result are at most 2e-5 apart. A nearest Resize becomes a Gather along each axis, unless the rounding of float32
    decides which element is nearest. There is no fix for a crop with an extrapolation value, and none for one element
    in pytorch_half_pixel, about which ONNX Runtime and onnx.reference disagree.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Resize.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md, which lists the supported modes
    """
    if node.opset < 11:
        return
    unused = list(_unused_attributes(node))
    if unused:
        draft = Draft(node)
        for name in unused:
            draft.set_attr(node, name, None)
        message = f"TensorRT refuses this Resize for {' and '.join(unused)}, which has no effect here"
        yield Match(message, node=node, fix=Fix(f"drop {' and '.join(unused)}", draft.edits))
    for reason in _reasons(node, model):
        fix = _multiply_along_axes(node, model)
        yield Match(f"TensorRT refuses this Resize: {reason}", node=node, fix=fix, reads=_constants(node))
    yield from _cubic_by_axes(node, model)


def _unused_attributes(node: Node) -> Iterator[str]:
    """Attributes without effect in this node, because of which the parser refuses it."""
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch" and node.input(3) is None:
        yield "keep_aspect_ratio_policy"
    if _has_other_rounding(node) and node.attr("mode", "nearest") in ("linear", "cubic"):
        yield "nearest_mode"


def _has_other_rounding(node: Node) -> bool:
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    rounding = node.attr("nearest_mode", "round_prefer_floor")
    return bool(mode == "tf_half_pixel_for_nn" and rounding != "round_prefer_floor")


def _reasons(node: Node, model: Model) -> Iterator[str]:
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    if mode not in _KNOWN:
        yield f"no {mode}"
    if node.attr("antialias", 0):
        yield "no antialiasing"
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch" and node.input(3) is not None:
        yield "no keep_aspect_ratio_policy but stretch"
    if _has_other_rounding(node) and node.attr("mode", "nearest") == "nearest":
        yield "tf_half_pixel_for_nn only with round_prefer_floor"
    kind = node.attr("mode", "nearest")
    last = {"linear": 3, "cubic": 2}.get(kind)
    first = _first_resized(node, model) if last is not None else None
    if (
        first is not None
        and last is not None
        and first[0] < first[1] - last
        and (kind == "linear" or (first[2] and not _names_axes(node, first[1])))
    ):
        yield f"{kind} only along the last {last} axes, and axis {first[0]} of {first[1]} is resized"


def _names_axes(node: Node, rank: int) -> bool:
    """Whether the scales apply to some axes only."""
    axes = node.attr("axes") if node.opset >= 18 else None
    return axes is not None and len(axes) < rank


def _cubic_by_axes(node: Node, model: Model) -> Iterator[Match]:
    """Report cubic interpolation by scales with `axes`, which the parser's check misses."""
    first = _first_resized(node, model) if node.attr("mode", "nearest") == "cubic" else None
    if first is not None and first[2] and first[0] < first[1] - 2 and _names_axes(node, first[1]):
        yield Match(
            f"cubic is documented for the last 2 axes only, and axis {first[0]} of {first[1]} is resized; with axes, "
            "TensorRT accepts it",
            node=node,
            severity=Severity.WARNING,
        )


def _first_resized(node: Node, model: Model) -> tuple[int, int, bool] | None:
    """The first axis that is certainly resized, the rank, and whether by scales; None if unknown."""
    data, scales, sizes = node.input(0), node.input(2), node.input(3)
    shape = None if data is None else model.shapes.shape(data)
    values = scales if sizes is None else sizes
    wanted = None if values is None else values.constant()
    if shape is None or wanted is None or wanted.ndim != 1:
        return None
    axes = node.attr("axes") if node.opset >= 18 else None
    axes = list(range(len(shape))) if axes is None else [a + len(shape) if a < 0 else a for a in axes]
    if len(axes) != len(wanted) or not set(axes) <= set(range(len(shape))):
        return None
    if sizes is None:
        changed = [a for a, scale in zip(axes, wanted, strict=True) if scale != 1]
    else:
        changed = [a for a, size in zip(axes, wanted, strict=True) if equal(shape[a], int(size)).no]
    return (min(changed), len(shape), sizes is None) if changed else None


@dataclass(frozen=True)
class _Axis:
    """How an axis is resized: its ``size``, the ``length`` of the result, and the region that is cropped, from
    ``start`` to ``end`` as shares of the size."""

    size: int
    length: int
    scale: float
    start: float
    end: float


def _constants(node: Node) -> tuple[Value, ...]:
    return tuple(value for value in node.inputs[1:] if value is not None)


def _multiply_along_axes(node: Node, model: Model) -> Fix | None:
    """An Einsum or a Gather along each axis that is resized; None where sizes or scales are not known."""
    data, is_nearest = node.require(0), node.attr("mode", "nearest") == "nearest"
    rank, elem, axes = model.shapes.rank(data), model.shapes.elem_type(data), _resized_axes(node, model)
    if rank is None or not axes or not 0 < rank <= 25:
        return None
    if elem not in (TensorProto.FLOAT, TensorProto.FLOAT16) and not is_nearest:
        return None
    draft, letters = Draft(node), "abcdefghijklmnopqrstuvwxy"[:rank]
    result: Value | str = data
    for number, axis in axes.items():
        if axis.size < 1 or axis.length < 1 or not is_small(axis.size, axis.length):
            return None
        at = _coordinates(node, axis)
        nearest = _nearest(node, at, axis) if is_nearest and at is not None else None
        if at is None or (is_nearest and nearest is None):
            return None
        if nearest is not None:
            indices = draft.constant(nearest, f"nearest_{number}")
            result = draft.add("Gather", [result, indices], axis=number)
            continue
        dtype = np.float16 if elem == TensorProto.FLOAT16 else np.float32
        weights = draft.constant(_weights(node, at, axis).astype(dtype), f"weights_{number}")
        letter = letters[number]
        equation = f"{letters},z{letter}->{letters.replace(letter, 'z')}"
        result = draft.add("Einsum", [result, weights], equation=equation)
    draft.replace_output(node, result)
    how = "gather the nearest elements" if is_nearest else "multiply by a constant matrix"
    return Fix(f"{how} along each axis", draft.edits, safety=Safety.NUMERIC)


def _resized_axes(node: Node, model: Model) -> dict[int, _Axis]:
    """The axes that are resized or cropped; empty where something about one of them is not known."""
    by_sizes = node.input(3) is not None
    given = _wanted(node, model)
    shape, crops = model.shapes.shape(node.require(0)), _crops(node)
    if shape is None or given is None or crops is None:
        return {}
    axes = node.attr("axes") if node.opset >= 18 else None
    axes = list(range(len(shape))) if axes is None else [axis % len(shape) for axis in axes]
    crops = crops or [(0.0, 1.0)] * len(axes)
    if not len(axes) == len(set(axes)) == len(given) == len(crops):
        return {}
    dims = [shape[axis] for axis in axes]
    policy = node.attr("keep_aspect_ratio_policy", "stretch") if by_sizes else "stretch"
    if policy != "stretch" and not all(dim.value for dim in dims):
        return {}
    choose = max if policy == "not_smaller" else min
    common = choose((length or 0) / (dim.value or 1) for dim, length in zip(dims, given, strict=True))
    found = {}
    for number, dim, wanted, (start, end) in zip(axes, dims, given, crops, strict=True):
        size, is_cropped = dim.value, (start, end) != (0.0, 1.0)
        if not is_cropped and policy == "stretch":
            result = model.shapes.shape(node.require_output())
            if by_sizes and wanted is None and result and equal(dim, result[number]).yes:
                continue
            if wanted is not None and (equal(dim, int(wanted)).yes if by_sizes else wanted == 1):
                continue
        if not size or wanted is None:
            return {}
        if policy != "stretch":
            length, scale = math.floor(common * size + 0.5), common
        elif by_sizes:
            length, scale = int(wanted), wanted / size
        else:
            length, scale = math.floor(size * wanted), wanted
            if is_cropped or length != int(np.float32(size) * np.float32(wanted)):
                return {}  # ONNX Runtime does not count the crop, and multiplies in float32
        found[number] = _Axis(size, length, scale, start, end)
    return found


def _wanted(node: Node, model: Model) -> list[float | None] | None:
    """The sizes or scales, None for a size that is not known; None where they are not constant."""
    given, axes = node.require(3 if node.input(3) is not None else 2), node.attr("axes")
    array, shape = given.constant(), model.shapes.shape(node.require_output())
    if array is not None:
        return list(array.tolist()) if array.ndim == 1 else None
    if (
        node.input(3) is None
        or shape is None
        or node.attr("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        return None
    return [shape[axis].value for axis in (range(len(shape)) if axes is None else axes)]


def _crops(node: Node) -> list[tuple[float, float]] | None:
    """Start and end of each axis; [] where nothing is cropped, None where the region is not known."""
    if node.attr("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        return []
    region = node.require(1).constant()
    if region is None or region.ndim != 1 or len(region) % 2 or node.attr("extrapolation_value", 0.0) != 0:
        return None
    return [(float(start), float(end)) for start, end in region.reshape(2, -1).T]


def _coordinates(node: Node, axis: _Axis) -> Any:
    """The place in the data of each element of the result (double [length]); None where backends disagree."""
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    at, last = np.arange(axis.length, dtype=np.float64), axis.size - 1
    if mode == "asymmetric":
        return at / axis.scale
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / axis.scale
    if mode == "align_corners":
        whole = axis.length == axis.scale * axis.size
        return at * (last / (axis.length - 1) if axis.length > 1 else 0.0) if whole else None
    if mode == "tf_crop_and_resize":
        if axis.length == 1:
            return at + 0.5 * (axis.start + axis.end) * last
        return axis.start * last + at * (axis.end - axis.start) * last / (axis.length - 1)
    if mode == "pytorch_half_pixel" and axis.length == 1:
        return None
    middle = axis.size / 2 * (1 - axis.length / (axis.scale * axis.size))
    return (at + 0.5) / axis.scale - 0.5 + (middle if mode == "half_pixel_symmetric" else 0.0)


def _nearest(node: Node, at: Any, axis: _Axis) -> Any:
    """The index of the nearest element (int64 [length]); None where that depends on rounding, or lies outside."""
    crops = node.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if crops and (at.min() < 0 or at.max() > axis.size - 1):
        return None
    rounding, margin = node.attr("nearest_mode", "round_prefer_floor"), 1e-6 * axis.size
    round_to = ROUNDED[rounding]
    exact, below, above = (np.clip(round_to(at + off), 0, axis.size - 1) for off in (0, -margin, margin))
    # Whole numbers and halves have no error; ONNX Runtime rounds halves up in its own way.
    is_sure = (below == above) | ((at * 2 == np.rint(at * 2)) & (rounding != "round_prefer_ceil"))
    return exact.astype(np.int64) if bool(is_sure.all()) else None


def _weights(node: Node, at: Any, axis: _Axis) -> Any:
    """The matrix that interpolates along an axis (double [length, size])."""
    is_cubic, antialias = node.attr("mode", "nearest") == "cubic", bool(node.attr("antialias", 0))
    a, excludes = node.attr("cubic_coeff_a", -0.75), bool(node.attr("exclude_outside", 0))
    width = max(1.0, 1 / axis.scale) if antialias else 1.0
    reach = math.ceil((2 if is_cubic else 1) * width) + 1
    taps = np.floor(at)[:, None] + np.arange(-reach, reach + 1)
    far = np.abs(taps - at[:, None]) / width
    if is_cubic:
        near = ((a + 2) * far - (a + 3)) * far**2 + 1
        weights = np.where(
            far <= 1, near, np.where(far < 2, ((a * far - 5 * a) * far + 8 * a) * far - 4 * a, 0)
        )
    else:
        weights = np.maximum(0, 1 - far)
    if excludes and (is_cubic or antialias):
        weights = np.where((taps < 0) | (taps >= axis.size), 0, weights)
    if antialias or (excludes and is_cubic):
        weights = weights / weights.sum(1, keepdims=True)
    if node.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        weights[(at < 0) | (at > axis.size - 1)] = 0
    matrix = np.zeros((axis.length, axis.size))
    rows = np.broadcast_to(np.arange(axis.length)[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, axis.size - 1).astype(np.int64)), weights)
    return matrix


_G = "g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}, float[8] r = {0,0,0,0,1,1,1,1}>"
_Z = "g (float[1,1,4,4] x) => (float[1,1,8,8] y) <int64[4] s = {1, 1, 8, 8}>"
_A = "g (float[1,1,4,4] x) => (float[1,1,4,2] y)"
_A16 = _A.replace("float", "float16")
_MODE = "coordinate_transformation_mode"
_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False)


resize_mode.examples = [
    _fixed(
        "tf_crop_and_resize, linear, by sizes",
        before="""g (float[N,3] x) => (float[N,2] y) <int64[1] s = {2}> {
            o = Constant<value = float[2] {0, 0.5}>()
            y = Resize<coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear", axes = [1]>(x, o, , s)
            }""",
        after="""g (float[N,3] x) => (float[N,2] y) <float[2,3] w = {1, 0, 0, 0, 1, 0}> {
            y = Einsum<equation = "ab,zb->az">(x, w) }""",
    ),
    Flagged(
        "a crop with a value for what lies outside",
        f'{_G} {{ y = Resize<{_MODE} = "tf_crop_and_resize", extrapolation_value = 2.0>(x, r, s) }}',
    ),
    _fixed(
        "half_pixel_symmetric, nearest, between other nodes",
        before="""g (float[N,4] x) => (float[N,2] y) <int64[1] s = {2}> { a = Neg(x)
            r = Resize<coordinate_transformation_mode = "half_pixel_symmetric", axes = [-1]>(a, , , s)  y = Abs(r) }""",
        after="""g (float[N,4] x) => (float[N,2] y) <int64[2] i = {0, 2}> {
            a = Neg(x)  r = Gather<axis = 1>(a, i)  y = Abs(r) }""",
        opset=19,
    ),
    _fixed(
        "antialiasing, linear, along one axis of several",
        before=f"""{_A} <int64[4] s = {{1, 1, 4, 2}}> {{
            y = Resize<antialias = 1, mode = "linear">(x, , , s) }}""",
        after=f"""{_A} <float[2,4] w = {{0.5, 0.375, 0.125, 0, 0, 0.125, 0.375, 0.5}}> {{
            y = Einsum<equation = "abcd,zd->abcz">(x, w) }}""",
    ),
    _fixed(
        "antialiasing of float16, by scales",
        before=f"""{_A16} <float[4] s = {{1, 1, 1, 0.5}}> {{
            y = Resize<antialias = 1, mode = "linear">(x, , s) }}""",
        after=f"""{_A16} <float16[2,4] w = {{f16(0.5), f16(0.375), f16(0.125), f16(0), f16(0), f16(0.125), f16(0.375),
            f16(0.5)}}> {{ y = Einsum<equation = "abcd,zd->abcz">(x, w) }}""",
    ),
    _fixed(
        "antialiasing to sizes of which the batch is computed, and without what is outside, as PyTorch writes them",
        before="""g (float[N,1,4,4] x) => (float[N,1,2,4] y) <int64[2] k = {2, 4}> {
            b = Shape<end = 2>(x)  s = Concat<axis = 0>(b, k)
            y = Resize<antialias = 1, exclude_outside = 1, mode = "linear">(x, , , s) }""",
        after="""g (float[N,1,4,4] x) => (float[N,1,2,4] y)
            <float[2,4] w = {0.42857143, 0.42857143, 0.14285715, 0, 0, 0.14285715, 0.42857143, 0.42857143}> {
            y = Einsum<equation = "abcd,zc->abzd">(x, w) }""",
    ),
    Flagged(
        "antialiasing along axes of unknown size",
        """g (float[1,1,H,W] x) => (float[1,1,8,8] y) <int64[4] s = {1, 1, 8, 8}> {
            y = Resize<antialias = 1, mode = "cubic">(x, , , s) }""",
    ),
    _flagged(
        "antialiasing to sizes that are an input",
        """g (float[1,1,4,4] x, int64[4] s) => (float[A,B,C,D] y) {
            y = Resize<antialias = 1, mode = "linear">(x, , , s) }""",
    ),
    _fixed(
        "a kept aspect ratio: 4 and 2 become 6 and 3",
        before="""g (float[1,1,4,2] x) => (float[1,1,6,3] y) <int64[2] s = {6, 8}> {
            y = Resize<keep_aspect_ratio_policy = "not_larger", axes = [2,3], mode = "linear",
                coordinate_transformation_mode = "asymmetric">(x, , , s) }""",
        after="""g (float[1,1,4,2] x) => (float[1,1,6,3] y)
            <float[6,4] w = {1, 0, 0, 0, 0.33333334, 0.6666667, 0, 0, 0, 0.6666667, 0.33333334, 0, 0, 0, 1, 0,
                0, 0, 0.33333334, 0.6666667, 0, 0, 0, 1},
             float[3,2] v = {1, 0, 0.33333334, 0.6666667, 0, 1}> {
            a = Einsum<equation = "abcd,zc->abzd">(x, w)  y = Einsum<equation = "abcd,zd->abcz">(a, v) }""",
    ),
    Flagged(
        "keep_aspect_ratio_policy",
        f'{_Z} {{ y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , s) }}',
    ),
    Fixed(
        "with scales the aspect ratio policy has no effect",
        before=f'{_G} {{ y = Resize<keep_aspect_ratio_policy = "not_smaller">(x, , s) }}',
        after=f"{_G} {{ y = Resize(x, , s) }}",
    ),
    _flagged(
        "tf_half_pixel_for_nn with another rounding mode",
        f'{_G} {{ y = Resize<{_MODE} = "tf_half_pixel_for_nn", nearest_mode = "floor">(x, r, s) }}',
        opset=11,
    ),
    Fixed(
        "in linear mode nearest_mode has no effect",
        before=f"""{_Z} {{
            y = Resize<{_MODE} = "tf_half_pixel_for_nn", nearest_mode = "floor", mode = "linear">(x, , , s) }}""",
        after=f'{_Z} {{ y = Resize<{_MODE} = "tf_half_pixel_for_nn", mode = "linear">(x, , , s) }}',
        opset=13,
        runs=False,
    ),
    _flagged(
        "cubic along three axes",
        """g (float[1,1,4,4,4] x) => (float[1,1,8,8,8] y) <float[5] s = {1, 1, 2, 2, 2}> {
            y = Resize<mode = "cubic">(x, , s) }""",
    ),
    _flagged(
        "cubic along an axis that is not among the last two",
        """g (float[1,4,4,3] x) => (float[1,8,8,3] y) <float[2] s = {2, 2}> {
            y = Resize<mode = "cubic", axes = [1,2]>(x, , s) }""",
    ),
    _flagged(
        "linear along four axes, by sizes",
        """g (float[2,4,4,4] x) => (float[4,8,8,8] y) <int64[4] s = {4, 8, 8, 8}> {
            y = Resize<mode = "linear">(x, , , s) }""",
    ),
    Silent(
        "cubic, four axes of which two are unchanged",
        f'{_G} {{ y = Resize<mode = "cubic", exclude_outside = 1>(x, , s) }}',
    ),
    Silent(
        "linear along three of five axes",
        """g (float[1,1,4,4,4] x) => (float[1,1,8,8,8] y) <float[5] s = {1, 1, 2, 2, 2}> {
            y = Resize<mode = "linear">(x, , s) }""",
    ),
    Silent(
        "channels last, linear",
        """g (float[1,4,4,3] x) => (float[1,8,8,3] y) <float[4] s = {1, 2, 2, 1}> {
            y = Resize<mode = "linear">(x, , s) }""",
    ),
    Silent(
        "cubic of three axes by sizes, which the parser does not check",
        """g (float[1,4,4,4] x) => (float[1,8,8,8] y) <int64[4] s = {1, 8, 8, 8}> {
            y = Resize<mode = "cubic">(x, , , s) }""",
        runs=False,
    ),
    *(
        Silent(f"the mode {mode}", f'{_G} {{ y = Resize<{_MODE} = "{mode}">(x, r, s) }}', opset=13)
        for mode in ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")
    ),
    Silent(
        "tf_half_pixel_for_nn with the rounding mode that TensorRT supports",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}> {
            y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "round_prefer_floor">
                (x, , s) }""",
        opset=13,
    ),
]
