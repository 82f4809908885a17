"""ConvTranspose whose output padding TensorRT reads in another way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, Value, rule
from onnxfix_rules.ops.misimports import _deconv as dc


@rule("OPS018", ops=["ConvTranspose"], safety=Safety.EXACT, severity=Severity.ERROR)
def output_padding_with_bias(node: Node, model: Model) -> Iterator[Match]:
    """A ConvTranspose with a non-constant bias that adds more at the end than it cuts: TensorRT omits the bias there.

    ## Why it matters
    `output_padding` beyond what `pads` cut at the end (and an `output_shape` beyond the full result) adds rows and
    columns to which no input contributes: in ONNX they hold the bias, in TensorRT 0. It parses and builds without a
    warning. Measured with TensorRT-RTX 1.7.1 by reading the imported network: a deconvolution with the bias, followed
    by a slice in mode `FILL`, without a fill value, turns its 7x7 into 8x8. It happens where the bias is a graph input
    or the result of any node, including a Cast or an Identity of a weight. A bias that is a weight is imported
    correctly: a sum after the slice adds it.

    ## Fix
    Remove the bias and add it afterwards. Exact in float32 and float64, where the bias is added last anyway. In half
    precision the sum is rounded once more: it requires `--numeric-fixes`.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ConvTranspose.html: "changing this attribute only adds or removes output
      elements"
    """
    bias = node.require(2)
    if not (node.attribute("output_padding") or node.attribute("output_shape")):
        return
    if not _is_tensor(bias):
        return
    found = dc.deconv(node, model)
    if found is None or found.auto_pad != "NOTSET" or not any(_filled(found, axis) for axis in found.axes):
        return
    yield Match(
        "ConvTranspose with a non-constant bias adds more at the end than it cuts: TensorRT fills in 0 there",
        node=node,
        fix=_add_bias_behind(node, bias, len(found.spans), model),
    )


def _is_tensor(bias: Value) -> bool:
    """Whether TensorRT certainly imports the bias as a tensor; inputs with defaults are imported as weights."""
    if bias.producer is not None:
        return bias.producer.is_onnx and bias.producer.op_type != "Constant"
    return bias.is_input and bias.initializer is None and bias.scope.kind != "function"


def _filled(found: dc.Deconv, axis: int) -> bool:
    """Whether elements are added after the full result along this axis."""
    if found.output_shape is not None:
        total = found.total(axis)
        return total is not None and (total < 0 or found.output_padding[axis] > total - total // 2)
    cut = 0 if found.pads is None else found.pads[axis + len(found.spans)]
    return found.output_padding[axis] > cut


def _add_bias_behind(node: Node, bias: Value, spatial: int, model: Model) -> Fix | None:
    output, elem = node.output(), model.shapes.elem_type(bias)
    if output is None or elem is None or node.opset < 7:
        return None
    draft = Draft(node)
    plain = draft.replace_node(node, "", node.inputs[:2], [draft.name("without_bias")])
    aligned = draft.unsqueeze(bias, [0, *range(2, spatial + 2)])
    draft.add("Add", [plain, aligned], output=output.name)
    is_wide = elem in (TensorProto.FLOAT, TensorProto.DOUBLE)
    return Fix("add the bias afterwards", draft.edits, Safety.EXACT if is_wide else Safety.NUMERIC)


output_padding_with_bias.examples = [
    Fixed(
        "output_padding and no pads; the bias is a graph input",
        before="""g (float[N,1,H,W] x, float[1,2,3,3] w, float[2] b) => (float[N,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w, b) }""",
        after="""g (float[N,1,H,W] x, float[1,2,3,3] w, float[2] b) => (float[N,2,A,B] y) <int64[3] a = {0, 2, 3}> {
            u = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w)
            c = Unsqueeze(b, a)  y = Add(u, c) }""",
    ),
    Fixed(
        "along one axis more is added than cut; the bias is cast",
        before="""g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) <int32[2] h = {1, 2}> {
            b = Cast<to = FLOAT>(h)
            y = ConvTranspose<strides = [3,3], output_padding = [2,1], pads = [1,1,1,1]>(x, w, b) }""",
        after="""g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y)
            <int32[2] h = {1, 2}, int64[3] a = {0, 2, 3}> { b = Cast<to = FLOAT>(h)
            u = ConvTranspose<strides = [3,3], output_padding = [2,1], pads = [1,1,1,1]>(x, w)
            c = Unsqueeze(b, a)  y = Add(u, c) }""",
    ),
    Fixed(
        "an output_shape beyond the full result",
        before="""g (float[1,1,3,3] x, float[1,2,3,3] w, float[2] b) => (float[1,2,8,7] y) {
            y = ConvTranspose<strides = [2,2], output_shape = [8,7]>(x, w, b) }""",
        after="""g (float[1,1,3,3] x, float[1,2,3,3] w, float[2] b) => (float[1,2,8,7] y) <int64[3] a = {0, 2, 3}> {
            u = ConvTranspose<strides = [2,2], output_shape = [8,7]>(x, w)
            c = Unsqueeze(b, a)  y = Add(u, c) }""",
    ),
    Fixed(
        "an output_shape that cuts less at the end than output_padding adds",
        before="""g (float[1,1,3,3] x, float[1,2,7,7] w, float[2] b) => (float[1,2,13,13] y) {
            y = ConvTranspose<strides = [3,3], output_padding = [2,2], output_shape = [13,13]>(x, w, b) }""",
        after="""g (float[1,1,3,3] x, float[1,2,7,7] w, float[2] b) => (float[1,2,13,13] y)
            <int64[3] a = {0, 2, 3}> {
            u = ConvTranspose<strides = [3,3], output_padding = [2,2], output_shape = [13,13]>(x, w)
            c = Unsqueeze(b, a)  y = Add(u, c) }""",
    ),
    Fixed(
        "half precision: the sum is rounded once more",
        before="""g (float16[1,1,2,2] x, float16[1,2,3,3] w, float16[2] b) => (float16[1,2,6,6] y) {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w, b) }""",
        after="""g (float16[1,1,2,2] x, float16[1,2,3,3] w, float16[2] b) => (float16[1,2,6,6] y)
            <int64[3] a = {0, 2, 3}> { u = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w)
            c = Unsqueeze(b, a)  y = Add(u, c) }""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "as much is cut at the end as added, as in PyTorch's upsampling",
        """g (float[1,1,H,W] x, float[1,2,3,3] w, float[2] b) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1], pads = [1,1,1,1]>(x, w, b) }""",
    ),
    Silent(
        "a constant bias: TensorRT adds it afterwards itself",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) <float[2] b = {1, 2}> {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w, b) }""",
    ),
    Silent(
        "a bias with a default, which TensorRT treats as a constant",
        """g (float[1,1,H,W] x, float[1,2,3,3] w, float[2] b) => (float[1,2,A,B] y) <float[2] b = {1, 2}> {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w, b) }""",
    ),
    Silent(
        "no bias",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w) }""",
    ),
    Silent(
        "nothing is added",
        """g (float[1,1,H,W] x, float[1,2,3,3] w, float[2] b) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2]>(x, w, b) }""",
    ),
    Silent(
        "auto_pad: TensorRT adds nothing (OPS014)",
        """g (float[1,1,H,W] x, float[1,2,4,4] w, float[2] b) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], auto_pad = "SAME_UPPER", output_padding = [1,1]>(x, w, b) }""",
    ),
    Silent(
        "a function's input, which may be a constant at the call site",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[1,1,2,2] x, float[1,2,3,3] w) => (float[1,2,6,6] y) <float[2] b = {1, 2}> { y = my.F(x, w, b) }
            <domain: "my", opset_import: ["" : 18]> F (a, k, c) => (r) {
                r = ConvTranspose<strides = [2,2], output_padding = [1,1]>(a, k, c) }""",
    ),
]


@rule("OPS083", ops=["ConvTranspose"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[25])
def output_shape_beyond_padding(node: Node, model: Model) -> Iterator[Match]:
    """A ConvTranspose whose `output_shape` is larger than the full result with `output_padding`.

    ## Why it matters
    TensorRT does not add one element beyond `output_padding`: it gives the full result and one element, whatever
    `output_padding` is. It parses and builds without a warning. Measured with TensorRT-RTX 1.7.1 in opsets 10, 18 and
    22 by reading the imported network: for an image and a kernel of 3x3, strides of 3, `output_padding = [1, 1]` and
    `output_shape = [11, 11]` the result is 10x10. Two or more elements are rejected (`TensorRT does not support
    negative pre-padding in the ConvTranspose operator!`), with and without `output_padding`.

    An `output_shape` of one more than the full result, without `output_padding` along that axis, is imported correctly.

    ## Fix
    Increase `output_padding` by one element, give the padding of the other axes as `pads`, and drop `output_shape`.
    Exact: a single element is added at the end by ONNX's equations, in its own test, in its reference evaluator and in
    ONNX Runtime. No fix for two or more, half of which are added at the start, and where a stride or more is added,
    which ONNX does not allow and nothing runs.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ConvTranspose.html: "changing this attribute only adds or removes output
      elements"; the equations for total_padding and pads
    """
    if node.attribute("output_shape") is None:
        return
    found = dc.deconv(node, model)
    if found is None or found.output_shape is None or found.auto_pad != "NOTSET" or len(found.spans) < 2:
        return
    totals = [total for total in (found.total(axis) for axis in found.axes) if total is not None]
    if len(totals) < len(found.spans):
        return
    beyond = [axis for axis in found.axes if totals[axis] < (0 if found.output_padding[axis] else -1)]
    if not beyond:
        return
    draft = _pad_at_the_end(node, found, totals)
    full = [found.output_shape[axis] + totals[axis] for axis in found.axes]
    yield Match(
        f"ConvTranspose with output_shape {list(found.output_shape)} and output_padding "
        f"{list(found.output_padding)}, which give {full}: TensorRT does not add what is missing",
        node=node,
        fix=None if draft is None else Fix("replace output_shape by output_padding", draft.edits),
    )


def _pad_at_the_end(node: Node, found: dc.Deconv, totals: Sequence[int]) -> Draft | None:
    """``output_padding`` for the whole ``output_shape``; None where ONNX adds some at the start, or implementations
    differ."""
    if min(totals) < -1:
        return None
    output_padding = [found.output_padding[axis] - min(0, totals[axis]) for axis in found.axes]
    cuts = [max(0, total) for total in totals]
    added = (axis for axis in found.axes if totals[axis] < 0)
    if any(output_padding[axis] >= found.strides[axis] for axis in added):
        return None
    if found.opset < 11 and any(cut % 2 for cut in cuts):
        return None
    draft = dc.write_pads(node, found, cuts)
    if draft is not None:
        draft.set_attr(node, "output_padding", output_padding)
    return draft


_IMAGE = "float[N,1,3,3] x, float[1,2,3,3] w"


output_shape_beyond_padding.examples = [
    Fixed(
        "one more than output_padding along both axes",
        before=f"""g ({_IMAGE}) => (float[N,2,11,11] y) {{
            y = ConvTranspose<strides = [3,3], output_padding = [1,1], output_shape = [11,11]>(x, w) }}""",
        after=f"""g ({_IMAGE}) => (float[N,2,11,11] y) {{
            y = ConvTranspose<strides = [3,3], output_padding = [2,2]>(x, w) }}""",
    ),
    Fixed(
        "one more along one axis, a cut along the other; ONNX ignores the pads",
        before=f"""g ({_IMAGE}) => (float[N,2,11,7] y) {{
            y = ConvTranspose<strides = [3,3], pads = [1,1,0,0], output_padding = [1,0], output_shape = [11,7]>(x, w)
            }}""",
        after=f"""g ({_IMAGE}) => (float[N,2,11,7] y) {{
            y = ConvTranspose<strides = [3,3], output_padding = [2,0], pads = [0,1,0,1]>(x, w) }}""",
        opset=22,
    ),
    Fixed(
        "before opset 11, with nothing to cut along the other axis",
        before=f"""g ({_IMAGE}) => (float[N,2,11,10] y) {{
            y = ConvTranspose<strides = [3,3], output_padding = [1,1], output_shape = [11,10]>(x, w) }}""",
        after=f"""g ({_IMAGE}) => (float[N,2,11,10] y) {{
            y = ConvTranspose<strides = [3,3], output_padding = [2,1]>(x, w) }}""",
        opset=10,
    ),
    Flagged(
        "two more, one of them at the start: TensorRT rejects it",
        f"""g ({_IMAGE}) => (float[N,2,11,11] y) {{
            y = ConvTranspose<strides = [3,3], output_shape = [11,11]>(x, w) }}""",
    ),
    Flagged(
        "more than a stride beyond the full result, which ONNX does not allow",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,9,9] y) {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1], output_shape = [9,9]>(x, w) }""",
        runs=False,
    ),
    Flagged(
        "an odd number to cut along the other axis, ambiguous before opset 11",
        f"""g ({_IMAGE}) => (float[N,2,11,8] y) {{
            y = ConvTranspose<strides = [3,3], output_padding = [1,0], output_shape = [11,8]>(x, w) }}""",
        opset=10,
    ),
    Silent(
        "exactly what output_padding gives",
        f"""g ({_IMAGE}) => (float[N,2,10,11] y) {{
            y = ConvTranspose<strides = [3,3], output_padding = [1,2], output_shape = [10,11]>(x, w) }}""",
    ),
    Silent(
        "one more, without output_padding",
        f"""g ({_IMAGE}) => (float[N,2,10,10] y) {{
            y = ConvTranspose<strides = [3,3], output_shape = [10,10]>(x, w) }}""",
    ),
    Silent(
        "output_padding alone",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [3,3], output_padding = [2,2]>(x, w) }""",
    ),
    Silent(
        "a dynamic image, which TensorRT misimports for any output_shape (OPS013)",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,11,11] y) {
            y = ConvTranspose<strides = [3,3], output_padding = [1,1], output_shape = [11,11]>(x, w) }""",
    ),
    Silent(
        "a signal, which TensorRT rejects for any output_shape (OPS013)",
        """g (float[1,1,3] x, float[1,2,3] w) => (float[1,2,11] y) {
            y = ConvTranspose<strides = [3], output_padding = [1], output_shape = [11]>(x, w) }""",
    ),
    Silent(
        "auto_pad (OPS014)",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,11,11] y) {
            y = ConvTranspose<strides = [3,3], auto_pad = "VALID", output_padding = [1,1],
                              output_shape = [11,11]>(x, w) }""",
        runs=False,
    ),
    Silent(
        "a local function, where the image size is unknown",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,11,11] y) { y = my.F(x, w) }
            <domain: "my", opset_import: ["" : 18]> F (a, k) => (r) {
                r = ConvTranspose<strides = [3,3], output_padding = [1,1], output_shape = [11,11]>(a, k) }""",
    ),
]
