"""OPS018: a transposed convolution that extends its result and has a computed bias."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfix.rule import AddNode, Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, Value, rule
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
        fix=_fix(node, bias, len(found.spans), model),
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


def _fix(node: Node, bias: Value, spatial: int, model: Model) -> Fix | None:
    output, elem = node.output(), model.shapes.elem_type(bias)
    if output is None or elem is None or node.opset < 7:
        return None
    draft = Draft(node)
    draft.remove(node)
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    del proto.input[2:]
    proto.output[0] = draft.name("without_bias")
    axes = [0, *range(2, spatial + 2)]
    if node.opset < 13:
        aligned = draft.add("Unsqueeze", [bias], hint="bias", axes=axes)
    else:
        axes_name = draft.constant(np.array(axes, dtype=np.int64), "axes")
        aligned = draft.add("Unsqueeze", [bias, axes_name], hint="bias")
    draft.edits.append(AddNode(node.scope, proto, node))
    draft.add("Add", [proto.output[0], aligned], output=output.name)
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
        "a signal, in an opset where the axes of Unsqueeze are an attribute",
        before="""g (float[1,1,T] x, float[1,2,3] w, float[2] b) => (float[1,2,A] y) {
            y = ConvTranspose<strides = [2], output_padding = [1]>(x, w, b) }""",
        after="""g (float[1,1,T] x, float[1,2,3] w, float[2] b) => (float[1,2,A] y) {
            u = ConvTranspose<strides = [2], output_padding = [1]>(x, w)
            c = Unsqueeze<axes = [0,2]>(b)  y = Add(u, c) }""",
        opset=11,
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
        "other nodes also read the bias",
        before="""g (float[1,1,2,2] x, float[1,2,3,3] w, float[2] c) => (float[1,2,6,6] y, float[2] z) { b = Abs(c)
            y = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w, b)  z = Neg(b) }""",
        after="""g (float[1,1,2,2] x, float[1,2,3,3] w, float[2] c) => (float[1,2,6,6] y, float[2] z)
            <int64[3] a = {0, 2, 3}> { b = Abs(c)  u = ConvTranspose<strides = [2,2], output_padding = [1,1]>(x, w)
            d = Unsqueeze(b, a)  y = Add(u, d)  z = Neg(b) }""",
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
