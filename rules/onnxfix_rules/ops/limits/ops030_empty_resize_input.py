"""OPS030: inputs of Resize that are there and empty."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule


@rule("OPS030", ops=["Resize"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[25])
def empty_resize_input(node: Node, model: Model) -> Iterator[Match]:
    """A Resize whose region of interest or scales are an initializer without elements.

    ## Why it matters
    Exporters fill the places of opset 11 so. TensorRT-RTX 1.7.1 warns (measured): `Empty initializer r was provided
    with non-empty data. Overriding data to nullptr`, and imports the Resize as it should. A warning that says nothing
    hides others.

    ## Fix
    Leave the input out, from opset 13 on, where it may be. Exact: it means the same. The region stays in the mode that
    reads it.

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
        f"the {what} of this Resize: an initializer without elements, about which TensorRT warns",
        node=node,
        fix=Fix(f"leave out {what}", draft.edits),
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
        "a region of interest without elements",
        before="""g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
            y = Resize(x, r, s) }""",
        after="g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }",
        opset=13,
    ),
    Fixed(
        "region and scales are the same empty initializer, which another Resize reads",
        before="""g (float[1,1,N,4] x) => (float[1,1,8,8] y, float[1,1,A,8] z)
            <float[0] r = {}, int64[4] s = {1, 1, 8, 8}, float[4] t = {1, 1, 2, 2}> {
            y = Resize(x, r, r, s)  z = Resize(x, r, t) }""",
        after="""g (float[1,1,N,4] x) => (float[1,1,8,8] y, float[1,1,A,8] z)
            <int64[4] s = {1, 1, 8, 8}, float[4] t = {1, 1, 2, 2}> {
            y = Resize(x, , , s)  z = Resize(x, , t) }""",
    ),
    Silent(
        "left out",
        "g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }",
    ),
    Silent(
        "in opset 11 the region has to be there",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
            y = Resize(x, r, s) }""",
        opset=11,
    ),
    Silent(
        "a Constant, of which TensorRT says nothing",
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
        "the mode that reads the region",
        """g (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
            y = Resize<coordinate_transformation_mode = "tf_crop_and_resize">(x, r, s) }""",
        runs=False,
    ),
]
