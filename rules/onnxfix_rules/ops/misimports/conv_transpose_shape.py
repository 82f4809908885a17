"""ConvTranspose whose output_shape TensorRT reads in another way."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops.misimports import _deconv as dc


@rule("OPS013", ops=["ConvTranspose"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[4])
def conv_transpose_output_shape(node: Node, model: Model) -> Iterator[Match]:
    """A ConvTranspose with `output_shape` for which TensorRT computes other padding than ONNX.

    ## Why it matters
    ONNX cuts the full result down to `output_shape`; where the number of elements to cut is odd, the odd one is cut at
    the start (since opset 11). TensorRT cuts it at the end: the shape is right, the image is shifted by a pixel, and it
    parses and builds without a warning. Measured with TensorRT-RTX 1.7.1 in opsets 11, 18 and 22 by reading the
    imported network: for an image and a kernel of 3x3, strides of 2 and `output_shape = [6, 6]` the deconvolution has
    `pre_padding (0, 0), post_padding (1, 1)`. With the values 1 to 9 in both, its first row is 1, 2, 5, 4, 9, 6 instead
    of ONNX's 5, 14, 10, 24, 15, 18.

    - **A dynamic image**: TensorRT computes the padding at import and uses -1 for the unknown size. It rejects the node
      (`TensorRT does not support negative pre-padding in the ConvTranspose operator!`) or, with a large kernel, pads by
      a wrong amount.
    - **A signal** (one spatial axis): the same error, whatever the length.

    With two and three spatial axes, an even number to cut, including 0, is imported correctly. tensorflow-onnx prefers
    `output_shape` to `pads`.

    ## Fix
    Replace `output_shape` by explicit `pads`. Exact: ONNX gives the equations. No fix where the image is dynamic; where
    `output_shape` is larger than the full result; before opset 11 where the number to cut is odd (the specification and
    ONNX Runtime differ); and where ONNX's reference evaluator, which uses `pads` as given, would differ from the
    specification.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ConvTranspose.html: the equations for total_padding and pads
    - onnx/tensorflow-onnx issue 1501: where such nodes come from
    """
    if node.attribute("output_shape") is None:
        return
    found = dc.deconv(node, model)
    if found is None or found.output_shape is None or found.auto_pad != "NOTSET":
        return
    problem = _problem(found)
    if not problem:
        return
    totals = found.totals
    draft = None if totals is None else dc.write_pads(node, found, totals)
    yield Match(
        f"ConvTranspose with output_shape {list(found.output_shape)}: {problem}",
        node=node,
        fix=Fix("replace output_shape by explicit pads", draft.edits) if draft is not None else None,
    )


def _problem(found: dc.Deconv) -> str:
    """What TensorRT does differently, or "" where it imports the node correctly."""
    if None in found.sizes:
        return (
            "TensorRT computes the padding with -1 for a dynamic size, and rejects the node or pads wrongly"
        )
    assert found.output_shape is not None
    if len(found.spans) == 1 and found.output_shape[0] != 1:
        return "TensorRT rejects it with one spatial axis"
    totals = [found.total(axis) or 0 for axis in found.axes]
    if found.opset >= 11 and any(total > 0 and total % 2 for total in totals):
        return f"of the {totals} elements to cut, ONNX cuts the odd one at the start, TensorRT at the end"
    return ""


_IMAGE = "g (float[N,1,3,3] x, float[1,2,3,3] w) => (float[N,2,6,6] y)"


def _conv_transpose(x: str, y: str, attributes: str, w: str = "1,2,3,3") -> str:
    return f"""g (float[{x}] x, float[{w}] w) => (float[{y}] y) {{
        y = ConvTranspose<{attributes}>(x, w) }}"""


conv_transpose_output_shape.examples = [
    Fixed(
        "one pixel to cut along each axis",
        before=f"{_IMAGE} {{ y = ConvTranspose<strides = [2,2], output_shape = [6,6]>(x, w) }}",
        after=f"{_IMAGE} {{ y = ConvTranspose<strides = [2,2], pads = [1,1,0,0]>(x, w) }}",
    ),
    Fixed(
        "explicit auto_pad = NOTSET; ONNX ignores the pads",
        before=f'{_IMAGE} {{ y = ConvTranspose<strides = [2,2], auto_pad = "NOTSET", pads = [1,1,0,0], '
        "output_shape = [6,6]>(x, w) }",
        after=f"{_IMAGE} {{ y = ConvTranspose<strides = [2,2], pads = [1,1,0,0]>(x, w) }}",
        opset=11,
    ),
    Fixed(
        "an odd and an even axis, a dilated kernel, a bias",
        before="""g (float[1,2,3,3] x, float[2,1,3,2] w, float[1] b) => (float[1,1,8,5] y) {
            y = ConvTranspose<strides = [2,2], dilations = [2,1], output_shape = [8,5]>(x, w, b) }""",
        after="""g (float[1,2,3,3] x, float[2,1,3,2] w, float[1] b) => (float[1,1,8,5] y) {
            y = ConvTranspose<strides = [2,2], dilations = [2,1], pads = [1,1,0,0]>(x, w, b) }""",
        opset=22,
    ),
    Fixed(
        "with output_padding",
        before=f"{_IMAGE} {{ y = ConvTranspose<strides = [3,3], output_padding = [1,1], output_shape = [7,7]>(x, w) }}",
        after=f"{_IMAGE} {{ y = ConvTranspose<strides = [3,3], output_padding = [1,1], pads = [2,2,1,1]>(x, w) }}",
        opset=14,
    ),
    Fixed(
        "a signal: TensorRT rejects any length",
        before=_conv_transpose("N,1,3", "N,2,5", "strides = [2], output_shape = [5]", w="1,2,3"),
        after=_conv_transpose("N,1,3", "N,2,5", "strides = [2], pads = [1,1]", w="1,2,3"),
    ),
    Flagged(
        "a dynamic image: the padding depends on its size",
        _conv_transpose("1,1,H,W", "1,2,6,6", "strides = [2,2], output_shape = [6,6]"),
    ),
    Flagged(
        "the result includes output_padding; ONNX's reference evaluator differs",
        _conv_transpose(
            "1,1,3,3", "1,2,7,7", "strides = [2,2], output_padding = [1,1], output_shape = [7,7]"
        ),
    ),
    Flagged(
        "longer than the full result: ONNX does not define where the extra elements go",
        _conv_transpose("1,1,3", "1,2,8", "strides = [2], output_shape = [8]", w="1,2,3"),
    ),
    Silent(
        "an even number of elements to cut",
        _conv_transpose("1,1,3,3", "1,2,5,5", "strides = [2,2], output_shape = [5,5]"),
    ),
    Silent("nothing to cut", _conv_transpose("1,1,3,3", "1,2,7,7", "strides = [2,2], output_shape = [7,7]")),
    Silent(
        "larger than the full result: added at the end, by TensorRT and in ONNX's own test",
        _conv_transpose("1,1,3,3", "1,2,8,8", "strides = [2,2], output_shape = [8,8]"),
    ),
    Silent(
        "before opset 11 ONNX cut the odd element at the end, as TensorRT does",
        f"{_IMAGE} {{ y = ConvTranspose<strides = [2,2], output_shape = [6,6]>(x, w) }}",
        opset=10,
    ),
    Silent("explicit pads", _conv_transpose("1,1,H,W", "1,2,A,B", "strides = [2,2], pads = [1,1,0,0]")),
    Silent(
        "a dynamic kernel",
        _conv_transpose("1,1,3,3", "1,2,6,6", "strides = [2,2], output_shape = [6,6]", w="1,2,A,B"),
    ),
]


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
        before=_conv_transpose(
            "N,1,3,3", "N,2,5,5", 'strides = [2,2], auto_pad = "SAME_UPPER", output_shape = [5,5]'
        ),
        after=_conv_transpose("N,1,3,3", "N,2,5,5", "strides = [2,2], pads = [1,1,1,1]"),
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
        before=_conv_transpose(
            "1,1,H,W", "1,2,A,B", 'strides = [2,2], auto_pad = "SAME_UPPER", output_padding = [1,1]'
        ),
        after=_conv_transpose(
            "1,1,H,W", "1,2,A,B", "strides = [2,2], output_padding = [1,1], pads = [1,1,1,1]"
        ),
    ),
    Fixed(
        "SAME_LOWER and output_padding, on a signal",
        before=_conv_transpose(
            "1,1,T", "1,2,A", 'strides = [2], auto_pad = "SAME_LOWER", output_padding = [1]', w="1,2,4"
        ),
        after=_conv_transpose(
            "1,1,T", "1,2,A", "strides = [2], output_padding = [1], pads = [2,1]", w="1,2,4"
        ),
        opset=11,
    ),
    Fixed(
        "VALID and output_padding",
        before=_conv_transpose(
            "1,1,H,W", "1,2,A,B", 'strides = [2,2], auto_pad = "VALID", output_padding = [1,1]'
        ),
        after=_conv_transpose("1,1,H,W", "1,2,A,B", "strides = [2,2], output_padding = [1,1]"),
        opset=22,
    ),
    Flagged(
        "a fixed output_shape of a dynamic image",
        _conv_transpose(
            "1,1,H,W", "1,2,6,6", 'strides = [2,2], auto_pad = "SAME_UPPER", output_shape = [6,6]'
        ),
    ),
    Flagged(
        "larger than the full result",
        _conv_transpose(
            "1,1,3,3", "1,2,8,8", 'strides = [2,2], auto_pad = "SAME_LOWER", output_shape = [8,8]'
        ),
    ),
    Flagged(
        "before opset 11 the specification cut the odd element at the other end",
        _conv_transpose("1,1,3,3", "1,2,6,6", 'strides = [2,2], auto_pad = "VALID", output_shape = [6,6]'),
        opset=10,
    ),
    Silent(
        "auto_pad alone", _conv_transpose("1,1,H,W", "1,2,A,B", 'strides = [2,2], auto_pad = "SAME_LOWER"')
    ),
    Silent(
        "the size that SAME_UPPER implies",
        _conv_transpose(
            "1,1,3,3", "1,2,6,6", 'strides = [2,2], auto_pad = "SAME_UPPER", output_shape = [6,6]'
        ),
    ),
    Silent(
        "the size that VALID implies",
        _conv_transpose("1,1,3,3", "1,2,7,7", 'strides = [2,2], auto_pad = "VALID", output_shape = [7,7]'),
    ),
    Silent(
        "output_padding that does not move the cut: half of 3 is half of 2",
        _conv_transpose(
            "1,1,H,W",
            "1,2,A,B",
            'strides = [2,2], auto_pad = "SAME_UPPER", output_padding = [1,1]',
            w="1,2,4,4",
        ),
    ),
    Silent(
        "output_padding of 0",
        _conv_transpose("1,1,H,W", "1,2,A,B", 'strides = [2,2], auto_pad = "VALID", output_padding = [0,0]'),
    ),
    Silent(
        "no auto_pad",
        _conv_transpose("1,1,H,W", "1,2,A,B", 'strides = [2,2], auto_pad = "NOTSET", output_padding = [1,1]'),
    ),
]
