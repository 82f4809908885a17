"""OPS014: a transposed convolution with auto_pad and output_shape or output_padding."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops.misimports import _deconv as dc


@rule("OPS014", ops=["ConvTranspose"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[5])
def auto_pad_with_output_shape(node: Node, model: Model) -> Iterator[Match]:
    """A ConvTranspose with `auto_pad` and `output_shape` or `output_padding`: TensorRT ignores the latter two.

    ## Why it matters
    TensorRT parses and builds without a warning, and computes another shape, or the right shape with the image shifted.
    Measured with TensorRT-RTX 1.7.1 by reading the imported network, for an image and a kernel of 3x3 and strides of 2:

    - SAME_UPPER and SAME_LOWER give 6x6 for every `output_shape`, VALID 7x7, with `output_padding = [1, 1]` too, where
      VALID means 8x8.
    - SAME_* with `output_padding` has the right shape. ONNX includes it in the total to cut, and so cuts elsewhere: one
      row at each side instead of one at the end.

    Imported correctly: `auto_pad` alone, an `output_shape` equal to the one that `auto_pad` implies, and an
    `output_padding` that does not move the cut.

    ## Fix
    Write explicit `pads`; `output_padding` stays. Exact by ONNX's equations, also for dynamic images where there is no
    `output_shape`. No fix for a fixed `output_shape` of a dynamic image, for an `output_shape` larger than the full
    result, and before opset 11 where the number to cut is odd (the specification of that time and ONNX Runtime differ).

    ## References
    - https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
    - onnx/onnx issue 4299: what auto_pad means beside output_padding
    """
    if node.attr("auto_pad", "NOTSET") not in ("VALID", *dc.SAME):
        return
    found = dc.deconv(node, model)
    if found is None or found.pads is not None or not (found.output_shape or any(found.output_padding)):
        return
    wrong = [_misread(found, axis) for axis in found.axes]
    if not any(answer is not False for answer in wrong):
        return
    totals = found.totals
    draft = None if totals is None else dc.write_pads(node, found, totals)
    ignored = (
        f"output_shape {list(found.output_shape)}"
        if found.output_shape
        else f"output_padding {list(found.output_padding)}"
    )
    yield Match(
        f"ConvTranspose with auto_pad={found.auto_pad} and {ignored}, which TensorRT ignores",
        node=node,
        severity=Severity.ERROR if any(wrong) else Severity.WARNING,
        fix=Fix("replace auto_pad by explicit pads", draft.edits) if draft is not None else None,
    )


def _misread(found: dc.Deconv, axis: int) -> bool | None:
    """Whether TensorRT keeps another part of the full result along this axis; None where it depends on the size."""
    full, output_padding = found.full(axis), found.output_padding[axis]
    # What TensorRT cuts. Where the kernel is shorter than the stride, SAME_* cuts nothing and the result is too small.
    cut = found.spans[axis] - found.strides[axis] if found.auto_pad in dc.SAME else 0
    if found.output_shape is None and (found.auto_pad == "VALID" or cut < 0):
        return output_padding > 0
    cut = max(0, cut)
    if found.output_shape is not None:
        if full is None:
            return None
        if full - cut != found.output_shape[axis]:
            return True
    return found.begin(cut + output_padding) != found.begin(cut)  # the size is right; is the start?


auto_pad_with_output_shape.examples = [
    Fixed(
        "SAME_UPPER and another size than it implies",
        before="""g (float[N,1,3,3] x, float[1,2,3,3] w) => (float[N,2,5,5] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "SAME_UPPER", output_shape = [5,5]>(x, w) }""",
        after="""g (float[N,1,3,3] x, float[1,2,3,3] w) => (float[N,2,5,5] y) {
            y = ConvTranspose<strides = [2,2], pads = [1,1,1,1]>(x, w) }""",
    ),
    Fixed(
        "VALID and a size, with a bias",
        before="""g (float[1,1,3,3] x, float[1,2,3,3] w, float[2] b) => (float[1,2,6,5] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "VALID", output_shape = [6,5]>(x, w, b) }""",
        after="""g (float[1,1,3,3] x, float[1,2,3,3] w, float[2] b) => (float[1,2,6,5] y) {
            y = ConvTranspose<strides = [2,2], pads = [1,1,0,1]>(x, w, b) }""",
    ),
    Fixed(
        "SAME_UPPER and output_padding, which moves the cut for every image size",
        before="""g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "SAME_UPPER", output_padding = [1,1]>(x, w) }""",
        after="""g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1], pads = [1,1,1,1]>(x, w) }""",
    ),
    Fixed(
        "SAME_LOWER and output_padding, on a signal",
        before="""g (float[1,1,T] x, float[1,2,4] w) => (float[1,2,A] y) {
            y = ConvTranspose<strides = [2], auto_pad = "SAME_LOWER", output_padding = [1]>(x, w) }""",
        after="""g (float[1,1,T] x, float[1,2,4] w) => (float[1,2,A] y) {
            y = ConvTranspose<strides = [2], output_padding = [1], pads = [2,1]>(x, w) }""",
        opset=11,
    ),
    Fixed(
        "VALID and output_padding",
        before="""g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "VALID", output_padding = [1,1]>(x, w) }""",
        after="""g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w) }""",
        opset=22,
    ),
    Flagged(
        "a fixed output_shape of a dynamic image",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,6,6] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "SAME_UPPER", output_shape = [6,6]>(x, w) }""",
    ),
    Flagged(
        "larger than the full result",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,8,8] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "SAME_LOWER", output_shape = [8,8]>(x, w) }""",
    ),
    Flagged(
        "before opset 11 the specification cut the odd element at the other end",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,6,6] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "VALID", output_shape = [6,6]>(x, w) }""",
        opset=10,
    ),
    Silent(
        "auto_pad alone",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "SAME_LOWER">(x, w) }""",
    ),
    Silent(
        "the size that SAME_UPPER implies",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,6,6] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "SAME_UPPER", output_shape = [6,6]>(x, w) }""",
    ),
    Silent(
        "the size that VALID implies",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,7,7] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "VALID", output_shape = [7,7]>(x, w) }""",
    ),
    Silent(
        "output_padding that does not move the cut: half of 3 is half of 2",
        """g (float[1,1,H,W] x, float[1,2,4,4] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "SAME_UPPER", output_padding = [1,1]>(x, w) }""",
    ),
    Silent(
        "output_padding of 0",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "VALID", output_padding = [0,0]>(x, w) }""",
    ),
    Silent(
        "no auto_pad",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "NOTSET", output_padding = [1,1]>(x, w) }""",
    ),
]
