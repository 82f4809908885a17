"""OPS036: reflection padding wider than the axis allows."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule


@rule("OPS036", ops=["Pad"], severity=Severity.ERROR, hazards=[73])
def reflect_padding_too_wide(node: Node, model: Model) -> Iterator[Match]:
    """A Pad by reflection that is wider than the axis it reflects.

    ## Why it matters
    An axis of 3 elements has 2 to reflect, since the one at the edge is not repeated. ONNX Runtime fails: `Pad reflect:
    pre-pad (4) exceeds maximum allowed (2) for axis 3`. TensorRT-RTX 1.7.1 parses and builds it without a warning
    (measured), as a Slice layer that keeps reflecting.

    ## Fix
    None: ONNX does not define the result.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Pad.html
    - PyTorch's reflection_pad2d: "Padding size should be less than the corresponding input dimension"
    """
    data = node.input(0)
    shape = None if data is None else model.shapes.shape(data)
    if shape is None or node.attr("mode", "constant") != "reflect":
        return
    pads, axes = _pads(node), list(range(len(shape)))
    if node.opset >= 18 and node.input(3) is not None:
        given = node.inputs[3].constant() if node.inputs[3] is not None else None
        if given is None:
            return
        axes = [int(a) + (len(shape) if a < 0 else 0) for a in given.reshape(-1)]
    if pads is None or len(pads) != 2 * len(axes) or not set(axes) <= set(range(len(shape))):
        return
    for index, axis in enumerate(axes):
        size = shape[axis].value
        widest = max(pads[index], pads[index + len(axes)])
        if size is not None and size > 0 and widest > size - 1:
            yield Match(
                f"reflection padding of {widest} on axis {axis}, which has {size} elements", node=node
            )
            return


def _pads(node: Node) -> list[int] | None:
    if node.opset < 11:
        return node.attr("pads")  # type: ignore[no-any-return]
    value = node.input(1)
    array = None if value is None else value.constant()
    return None if array is None else [int(p) for p in array.reshape(-1)]


reflect_padding_too_wide.examples = [
    Flagged(
        "as wide as the axis",
        'g (float[1,3] x) => (float[1,6] y) <int64[4] p = {0, 0, 0, 3}> { y = Pad<mode = "reflect">(x, p) }',
        runs=False,
    ),
    Flagged(
        "one axis, by the axes input",
        """g (float[N,3] x) => (float[N,7] y) <int64[2] p = {4, 0}, int64[1] a = {-1}> {
            y = Pad<mode = "reflect">(x, p, , a) }""",
        runs=False,
    ),
    Flagged(
        "pads as an attribute",
        'g (float[1,3] x) => (float[1,6] y) { y = Pad<mode = "reflect", pads = [0, 0, 0, 3]>(x) }',
        opset=10,
        runs=False,
    ),
    Silent(
        "one less than the axis",
        'g (float[1,3] x) => (float[1,7] y) <int64[4] p = {0, 2, 0, 2}> { y = Pad<mode = "reflect">(x, p) }',
    ),
    Silent(
        "mode = wrap may be wider than the axis",
        'g (float[1,3] x) => (float[1,12] y) <int64[4] p = {0, 4, 0, 5}> { y = Pad<mode = "wrap">(x, p) }',
        opset=19,
    ),
    Silent(
        "constant padding",
        "g (float[1,3] x) => (float[1,12] y) <int64[4] p = {0, 4, 0, 5}> { y = Pad(x, p) }",
    ),
    Silent(
        "a dynamic axis",
        'g (float[1,N] x) => (float[1,M] y) <int64[4] p = {0, 4, 0, 5}> { y = Pad<mode = "reflect">(x, p) }',
        runs=False,
    ),
    Silent(
        "edge padding of any width; negative pads",
        """g (float[1,3] x) => (float[1,12] y, float[1,1] z)
            <int64[4] p = {0, 4, 0, 5}, int64[4] q = {0, -1, 0, -1}> {
            y = Pad<mode = "edge">(x, p)  z = Pad<mode = "reflect">(x, q) }""",
    ),
]
