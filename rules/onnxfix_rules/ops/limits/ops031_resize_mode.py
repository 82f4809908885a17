"""OPS031: ways to resize that TensorRT does not have."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, equal, rule

_KNOWN = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn")


@rule("OPS031", ops=["Resize"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[25])
def resize_mode(node: Node, model: Model) -> Iterator[Match]:
    """A Resize in a way that TensorRT does not have: crops, antialiasing, a kept aspect ratio, too many axes.

    ## Why it matters
    The parser or the builder stops, measured with TensorRT-RTX 1.7.1:

    - `coordinate_transformation_mode` tf_crop_and_resize or half_pixel_symmetric: `TensorRT only supports half_pixel,
      pytorch_half_pixel, tf_half_pixel_for_nn, asymmetric and align_corners`
    - `antialias`: `Antialiasing is not supported currently.`
    - `keep_aspect_ratio_policy`: `` Only `stretch` is supported currently ``, with scales too, where it means nothing
    - tf_half_pixel_for_nn with another `nearest_mode` than round_prefer_floor, in every mode: `This version of TensorRT
      only support round_prefer_floor nearest mode in tf_half_pixel_for_nn!`
    - cubic by scales along more than the last two axes: `This version of TensorRT only supports cubic resizing on the
      outermost 2 dimensions.`; linear along more than the last three: the same with 3, and by sizes `Linear resize mode
      only supports resize up to last 3 dimensions` from the builder. Cubic by scales that `axes` names is taken
      everywhere, although the layer is documented for the last two: a warning

    ## Fix
    An attribute that has no effect is dropped, exactly: the aspect ratio beside scales, the rounding of neighbors in
    linear and cubic mode. The others mean something; there is no fix. An interpolation is a product with a matrix for
    each axis, which may be written instead.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Resize.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md, which lists the supported modes
    """
    if node.opset < 11:
        return
    idle = list(_idle(node))
    if idle:
        draft = Draft(node)
        for name in idle:
            draft.set_attr(node, name, None)
        yield Match(
            f"TensorRT refuses this Resize for {' and '.join(idle)}, which has no effect here",
            node=node,
            fix=Fix(f"drop {' and '.join(idle)}", draft.edits),
        )
    for reason in _reasons(node, model):
        yield Match(f"TensorRT refuses this Resize: {reason}", node=node)
    yield from _cubic_by_axes(node, model)


def _idle(node: Node) -> Iterator[str]:
    """Attributes that mean nothing in this node, and for which the parser refuses it all the same."""
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch" and node.input(3) is None:
        yield "keep_aspect_ratio_policy"
    if _rounds_otherwise(node) and node.attr("mode", "nearest") in ("linear", "cubic"):
        yield "nearest_mode"


def _rounds_otherwise(node: Node) -> bool:
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    rounding = node.attr("nearest_mode", "round_prefer_floor")
    return bool(mode == "tf_half_pixel_for_nn" and rounding != "round_prefer_floor")


def _reasons(node: Node, model: Model) -> Iterator[str]:
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    if mode not in _KNOWN:
        yield f"it has no {mode}"
    if node.attr("antialias", 0):
        yield "it has no antialiasing"
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch" and node.input(3) is not None:
        yield "it does not keep the aspect ratio"
    if _rounds_otherwise(node) and node.attr("mode", "nearest") == "nearest":
        yield "tf_half_pixel_for_nn goes with round_prefer_floor only"
    kind = node.attr("mode", "nearest")
    last = {"linear": 3, "cubic": 2}.get(kind)
    first = _first_resized(node, model) if last is not None else None
    if (
        first is not None
        and last is not None
        and first[0] < first[1] - last
        and (kind == "linear" or (first[2] and not _names_axes(node, first[1])))
    ):
        yield f"{kind} goes along the last {last} axes only, and axis {first[0]} of {first[1]} is resized"


def _names_axes(node: Node, rank: int) -> bool:
    """Whether the scales are for some axes only."""
    axes = node.attr("axes") if node.opset >= 18 else None
    return axes is not None and len(axes) < rank


def _cubic_by_axes(node: Node, model: Model) -> Iterator[Match]:
    """The check that refuses cubic interpolation elsewhere does not see scales that name their axes."""
    first = _first_resized(node, model) if node.attr("mode", "nearest") == "cubic" else None
    if first is not None and first[2] and first[0] < first[1] - 2 and _names_axes(node, first[1]):
        yield Match(
            f"cubic goes along the last 2 axes only, and axis {first[0]} of {first[1]} is resized; named by axes, "
            "TensorRT takes it all the same",
            node=node,
            severity=Severity.WARNING,
        )


def _first_resized(node: Node, model: Model) -> tuple[int, int, bool] | None:
    """The first axis that is certainly resized, the number of axes, and whether by scales; None where not known."""
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
    Flagged("crops", f'{_G} {{ y = Resize<{_MODE} = "tf_crop_and_resize", mode = "linear">(x, r, s) }}'),
    Flagged(
        "symmetric half pixels",
        f'{_Z} {{ y = Resize<{_MODE} = "half_pixel_symmetric">(x, , , s) }}',
        opset=19,
    ),
    Flagged("antialiasing, linear", f'{_Z} {{ y = Resize<antialias = 1, mode = "linear">(x, , , s) }}'),
    Flagged("antialiasing, cubic", f'{_Z} {{ y = Resize<antialias = 1, mode = "cubic">(x, , , s) }}'),
    Flagged(
        "the aspect ratio is kept",
        f'{_Z} {{ y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , s) }}',
    ),
    Fixed(
        "with scales there is no aspect ratio to keep",
        before=f'{_G} {{ y = Resize<keep_aspect_ratio_policy = "not_smaller">(x, , s) }}',
        after=f"{_G} {{ y = Resize(x, , s) }}",
    ),
    Flagged(
        "half pixels for the nearest neighbor, rounded otherwise",
        f'{_G} {{ y = Resize<{_MODE} = "tf_half_pixel_for_nn", nearest_mode = "floor">(x, r, s) }}',
        opset=11,
        runs=False,
    ),
    Fixed(
        "how neighbors are rounded is nothing to a linear one",
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
        "cubic, four axes of which two stay as they are",
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
        "cubic of three axes by sizes, which the parser does not count",
        """g (float[1,4,4,4] x) => (float[1,8,8,8] y) <int64[4] s = {1, 8, 8, 8}> {
            y = Resize<mode = "cubic">(x, , , s) }""",
        runs=False,
    ),
    *(
        Silent(f"the mode {mode}", f'{_G} {{ y = Resize<{_MODE} = "{mode}">(x, r, s) }}', opset=13)
        for mode in ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")
    ),
    Silent(
        "half pixels for the nearest neighbor, rounded as TensorRT does",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}> {
            y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "round_prefer_floor">
                (x, , s) }""",
        opset=13,
    ),
]
