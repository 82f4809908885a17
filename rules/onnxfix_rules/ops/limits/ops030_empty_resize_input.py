"""OPS030: a Resize with an empty input."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule


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
    message = f"the {what} of this Resize: an empty initializer, for which TensorRT logs a warning"
    yield Match(message, node=node, fix=Fix(f"omit {what}", draft.edits))


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
