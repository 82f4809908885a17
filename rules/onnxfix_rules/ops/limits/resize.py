"""Resize: an input that is empty, and modes that TensorRT does not support."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, equal, rule


@rule("OPS030", ops=["Resize"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[55])
def empty_resize_input(node: Node, model: Model) -> Iterator[Match]:
    """A Resize whose region of interest or scales are an empty initializer.

    ## Why it matters
    Exporters fill the inputs that opset 11 requires this way. TensorRT-RTX 1.7.1 warns (measured): `Empty initializer r
    was provided with non-empty data. Overriding data to nullptr`, and imports the Resize correctly. A warning without
    consequence hides others.

    ## Fix
    Omit the input, which is allowed from opset 13 on. Exact: the meaning is the same. The region stays in the mode that
    uses it.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Resize.html
    """
    if node.opset < 13:
        return
    empty = [i for i in (1, 2) if _is_empty(node, i)]
    if node.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        empty = [i for i in empty if i != 1]
    if not empty:
        return
    draft = Draft(node)
    for index in empty:
        draft.set_input(node, index, None)
    what = " and ".join(("region of interest", "scales")[i - 1] for i in empty)
    yield Match(
        f"the {what} of this Resize: an empty initializer, for which TensorRT logs a warning",
        node=node,
        fix=Fix(f"omit {what}", draft.edits),
    )


def _is_empty(node: Node, index: int) -> bool:
    value = node.input(index)
    if value is None or value.initializer is None or not value.is_constant:
        return False
    if index == 2 and node.input(3) is None:
        return False
    return list(value.initializer.dims) == [0]


empty_resize_input.examples = [
    Fixed(
        "an empty region of interest",
        before="""g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
            y = Resize(x, r, s) }""",
        after="g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }",
        opset=13,
    ),
    Fixed(
        "region and scales share an empty initializer, which another Resize uses too",
        before="""g (float[1,1,N,4] x) => (float[1,1,8,8] y, float[1,1,A,8] z)
            <float[0] r = {}, int64[4] s = {1, 1, 8, 8}, float[4] t = {1, 1, 2, 2}> {
            y = Resize(x, r, r, s)  z = Resize(x, r, t) }""",
        after="""g (float[1,1,N,4] x) => (float[1,1,8,8] y, float[1,1,A,8] z)
            <int64[4] s = {1, 1, 8, 8}, float[4] t = {1, 1, 2, 2}> {
            y = Resize(x, , , s)  z = Resize(x, , t) }""",
    ),
    Silent(
        "omitted",
        "g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }",
    ),
    Silent(
        "opset 11 requires the region",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
            y = Resize(x, r, s) }""",
        opset=11,
    ),
    Silent(
        "a Constant node, for which TensorRT logs no warning",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}> {
            r = Constant<value = float[0] {}>()  y = Resize(x, r, s) }""",
    ),
    Silent(
        "an empty region that the caller may replace",
        """g (float[1,1,4,4] x, float[R] r) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
            y = Resize(x, r, s) }""",
        runs=False,
    ),
    Silent(
        "the mode that uses the region",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
            y = Resize<coordinate_transformation_mode = "tf_crop_and_resize">(x, r, s) }""",
        runs=False,
    ),
]


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
    and cubic mode. Otherwise there is no fix. An interpolation can be decomposed into a matrix product per axis.

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
        yield Match(
            f"TensorRT refuses this Resize for {' and '.join(unused)}, which has no effect here",
            node=node,
            fix=Fix(f"drop {' and '.join(unused)}", draft.edits),
        )
    for reason in _reasons(node, model):
        yield Match(f"TensorRT refuses this Resize: {reason}", node=node)
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


_G = "g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}, float[8] r = {0,0,0,0,1,1,1,1}>"
_Z = "g (float[1,1,4,4] x) => (float[1,1,8,8] y) <int64[4] s = {1, 1, 8, 8}>"
_MODE = "coordinate_transformation_mode"


resize_mode.examples = [
    Flagged(
        "tf_crop_and_resize",
        f'{_G} {{ y = Resize<{_MODE} = "tf_crop_and_resize", mode = "linear">(x, r, s) }}',
    ),
    Flagged(
        "half_pixel_symmetric",
        f'{_Z} {{ y = Resize<{_MODE} = "half_pixel_symmetric">(x, , , s) }}',
        opset=19,
    ),
    Flagged("antialiasing, linear", f'{_Z} {{ y = Resize<antialias = 1, mode = "linear">(x, , , s) }}'),
    Flagged("antialiasing, cubic", f'{_Z} {{ y = Resize<antialias = 1, mode = "cubic">(x, , , s) }}'),
    Flagged(
        "keep_aspect_ratio_policy",
        f'{_Z} {{ y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , s) }}',
    ),
    Fixed(
        "with scales the aspect ratio policy has no effect",
        before=f'{_G} {{ y = Resize<keep_aspect_ratio_policy = "not_smaller">(x, , s) }}',
        after=f"{_G} {{ y = Resize(x, , s) }}",
    ),
    Flagged(
        "tf_half_pixel_for_nn with another rounding mode",
        f'{_G} {{ y = Resize<{_MODE} = "tf_half_pixel_for_nn", nearest_mode = "floor">(x, r, s) }}',
        opset=11,
        runs=False,
    ),
    Fixed(
        "in linear mode nearest_mode has no effect",
        before=f"""{_Z} {{
            y = Resize<{_MODE} = "tf_half_pixel_for_nn", nearest_mode = "floor", mode = "linear">(x, , , s) }}""",
        after=f'{_Z} {{ y = Resize<{_MODE} = "tf_half_pixel_for_nn", mode = "linear">(x, , , s) }}',
        opset=13,
        runs=False,
    ),
    Flagged(
        "cubic along three axes",
        """g (float[1,1,4,4,4] x) => (float[1,1,8,8,8] y) <float[5] s = {1, 1, 2, 2, 2}> {
            y = Resize<mode = "cubic">(x, , s) }""",
        runs=False,
    ),
    Flagged(
        "cubic along an axis that is not among the last two",
        """g (float[1,4,4,3] x) => (float[1,8,8,3] y) <float[2] s = {2, 2}> {
            y = Resize<mode = "cubic", axes = [1,2]>(x, , s) }""",
        runs=False,
    ),
    Flagged(
        "linear along four axes, by sizes",
        """g (float[2,4,4,4] x) => (float[4,8,8,8] y) <int64[4] s = {4, 8, 8, 8}> {
            y = Resize<mode = "linear">(x, , , s) }""",
        runs=False,
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
