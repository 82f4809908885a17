"""OPS029: Resize to constant sizes of some axes while others are dynamic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.rule import Dim, Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, Value, rule


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
    parts: list[str] = []
    known: list[int] = []
    axis = 0
    while axis < len(shape):
        size = given.get(axis, shape[axis].value)
        if size is not None:
            known.append(size)
            axis += 1
            continue
        if known:
            parts.append(draft.integers(known, "sizes"))
            known = []
        end = axis
        while end < len(shape) and end not in given and shape[end].value is None:
            end += 1
        parts.append(draft.add("Shape", [data], hint=f"sizes_{axis}", start=axis, end=end))
        axis = end
    if known:
        parts.append(draft.integers(known, "sizes"))
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
    Fixed(
        "inside a branch, of captured data",
        before="""g (float[N,4] x, bool c) => (float[N,8] y) <int64[1] s = {8}> {
            y = If(c)<then_branch = p () => (float[N,8] u) { u = Resize<axes = [1]>(x, , , s) },
                      else_branch = q () => (float[N,8] v) { v = Concat<axis = 1>(x, x) }> }""",
        after="""g (float[N,4] x, bool c) => (float[N,8] y) {
            y = If(c)<then_branch = p () => (float[N,8] u) <int64[1] s = {8}> {
                          b = Shape<start = 0, end = 1>(x)  f = Concat<axis = 0>(b, s)  u = Resize(x, , , f) },
                      else_branch = q () => (float[N,8] v) { v = Concat<axis = 1>(x, x) }> }""",
        opset=19,
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
