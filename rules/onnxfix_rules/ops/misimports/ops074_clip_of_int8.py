"""OPS074: Clip of int8 whose bounds are constants."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, Value, rule
from onnxfix_rules.ops import _bounds
from onnxfix_rules.ops._integers import Computer


@rule(
    "OPS074",
    ops=["Clip"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[58],
    types=[TensorProto.INT8],
)
def clip_of_int8(node: Node, model: Model) -> Iterator[Match]:
    """A Clip of int8 whose bounds are constants: TensorRT takes the bounds for 0.

    ## Why it matters
    TensorRT imports an activation layer, `ActivationType.CLIP`, with alpha = 0.0 and beta = 0.0 whatever the bounds
    are, so that every element becomes 0; with a lower bound alone, negative ones do. It parses and builds without a
    word. Measured with TensorRT-RTX 1.7.1 by reading the imported network, in opsets 12, 13 and 21, with initializers,
    Constants and defaults of graph inputs; engines for other bounds are byte for byte the same. No engine was
    executed. Floats, half precision, int32 and int64 are read right, and int8 without bounds is. An upper bound alone
    and bounds that come at run time are refused (OPS054).

    ## Fix
    Clip in int32, between Casts. Exact. TensorRT reads it right, between QuantizeLinear and DequantizeLinear too. None
    for bounds that are defaults of graph inputs: TensorRT refuses a Cast of such an int8 (`Quantized constant (a) is
    only allowed before DQ`); make them initializers.

    TensorRT layers: 4 to 7.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Clip.html, which has integers since opset 12
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    data, output = node.require(0), node.require_output()
    if node.opset < 12 or not _bounds.are_taken_for_zero(node):
        return
    types = {model.shapes.elem_type(value) for value in node.inputs if value is not None}
    if TensorProto.INT8 not in types or _is_right(node, model, data):
        return
    low_alone = node.input(2) is None
    yield Match(
        "Clip of int8: TensorRT takes the lower bound for 0"
        if low_alone
        else "Clip of int8: TensorRT takes both bounds for 0, and gives 0 everywhere",
        node=node,
        fix=_fix(node, model, output),
        reads=tuple(value for value in node.inputs if value is not None),
    )


def _fix(node: Node, model: Model, output: Value) -> Fix | None:
    if not all(value.is_constant for value in node.inputs[1:] if value is not None):
        return None
    computer = Computer(Draft(node), model, TensorProto.INT8)
    operands = [computer.widened(value) for value in node.inputs if value is not None]
    computer.finish(computer.add("Clip", *operands), output)
    return Fix("clip in int32", computer.draft.edits)


def _is_right(node: Node, model: Model, data: Value) -> bool:
    """Whether bounds of 0 come to the same."""
    shape = model.shapes.shape(data)
    if shape is not None and any(dim.value == 0 for dim in shape):
        return True
    low, high = (_number(node.input(index)) for index in (1, 2))
    if node.input(2) is None:
        return low == 0
    return low is not None and high == 0 and low >= 0


def _number(value: Value | None) -> int | None:
    array = None if value is None else value.constant()
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


_BOTH = "<int8 a = {-10}, int8 b = {20}>"
_WIDE = "<int32 a = {-10}, int32 b = {20}>"


clip_of_int8.examples = [
    Fixed(
        "both bounds",
        before=f"g (int8[N,3] x) => (int8[N,3] y) {_BOTH} {{ y = Clip(x, a, b) }}",
        after=f"""g (int8[N,3] x) => (int8[N,3] y) {_WIDE} {{
            v = Cast<to = 6>(x)  c = Clip(v, a, b)  y = Cast<to = 3>(c) }}""",
    ),
    Fixed(
        "a lower bound alone, in the first opset that has Clip of integers",
        before="g (int8[7] x) => (int8[7] y) <int8 a = {-10}> { y = Clip(x, a) }",
        after="""g (int8[7] x) => (int8[7] y) <int32 a = {-10}> {
            v = Cast<to = 6>(x)  c = Clip(v, a)  y = Cast<to = 3>(c) }""",
        opset=12,
    ),
    Fixed(
        "a lower bound alone, with the upper one written as left out",
        before="g (int8[7] x) => (int8[7] y) <int8 a = {5}> { y = Clip(x, a, ) }",
        after="""g (int8[7] x) => (int8[7] y) <int32 a = {5}> {
            v = Cast<to = 6>(x)  c = Clip(v, a)  y = Cast<to = 3>(c) }""",
    ),
    Fixed(
        "between quantization and back",
        before="""g (float[7] x) => (float[7] y) <float s = {0.5}, int8 z = {0}, int8 a = {-10}, int8 b = {20}> {
            q = QuantizeLinear(x, s, z)  c = Clip(q, a, b)  y = DequantizeLinear(c, s, z) }""",
        after="""g (float[7] x) => (float[7] y) <float s = {0.5}, int8 z = {0}, int32 a = {-10}, int32 b = {20}> {
            q = QuantizeLinear(x, s, z)  v = Cast<to = 6>(q)  d = Clip(v, a, b)  c = Cast<to = 3>(d)
            y = DequantizeLinear(c, s, z) }""",
        opset=21,
    ),
    Flagged(
        "defaults that a caller may override, which TensorRT takes for weights",
        "g (int8[7] x, int8 a = {-10}, int8 b = {20}) => (int8[7] y) { y = Clip(x, a, b) }",
    ),
    Fixed(
        "inside a branch, with bounds from outside of it and from a Constant",
        before="""g (int8[7] x, bool k) => (int8[7] y) <int8 a = {-10}> {
            y = If(k)<then_branch = p () => (int8[7] u) { b = Constant<value = int8 {20}>()  u = Clip(x, a, b) },
                      else_branch = q () => (int8[7] v) { v = Identity(x) }> }""",
        after="""g (int8[7] x, bool k) => (int8[7] y) {
            y = If(k)<then_branch = p () => (int8[7] u) <int32 a = {-10}, int32 b = {20}> {
                          w = Cast<to = 6>(x)  c = Clip(w, a, b)  u = Cast<to = 3>(c) },
                      else_branch = q () => (int8[7] v) { v = Identity(x) }> }""",
    ),
    Fixed(
        "the whole type within its bounds",
        before="g (int8[7] x) => (int8[7] y) <int8 a = {-128}, int8 b = {127}> { y = Clip(x, a, b) }",
        after="""g (int8[7] x) => (int8[7] y) <int32 a = {-128}, int32 b = {127}> {
            v = Cast<to = 6>(x)  c = Clip(v, a, b)  y = Cast<to = 3>(c) }""",
    ),
    Fixed(
        "crossed bounds: ONNX gives the upper one everywhere",
        before="g (int8[7] x) => (int8[7] y) <int8 a = {5}, int8 b = {-3}> { y = Clip(x, a, b) }",
        after="""g (int8[7] x) => (int8[7] y) <int32 a = {5}, int32 b = {-3}> {
            v = Cast<to = 6>(x)  c = Clip(v, a, b)  y = Cast<to = 3>(c) }""",
    ),
    Silent(
        "bounds that are 0", "g (int8[7] x) => (int8[7] y) <int8 a = {0}, int8 b = {0}> { y = Clip(x, a, b) }"
    ),
    Silent(
        "0 and more, which is what TensorRT takes it for",
        "g (int8[7] x) => (int8[7] y) <int8 a = {0}> { y = Clip(x, a) }",
    ),
    Silent(
        "0 everywhere, by crossed bounds",
        "g (int8[7] x) => (int8[7] y) <int8 a = {5}, int8 b = {0}> { y = Clip(x, a, b) }",
    ),
    Silent("no bounds", "g (int8[7] x) => (int8[7] y) { y = Clip(x) }"),
    Silent(
        "an upper bound alone, which is refused (OPS054)",
        "g (int8[7] x) => (int8[7] y) <int8 b = {20}> { y = Clip(x, , b) }",
    ),
    Silent(
        "a bound that comes at run time, which is refused (OPS054)",
        "g (int8[7] x, int8 b) => (int8[7] y) <int8 a = {-10}> { y = Clip(x, a, b) }",
    ),
    Silent(
        "a bound that a node makes, which is refused (OPS054)",
        f"g (int8[7] x) => (int8[7] y) {_BOTH} {{ m = Identity(a)  y = Clip(x, m, b) }}",
    ),
    Silent(
        "a function's input, which may be a weight where the function is called",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (int8[7] x) => (int8[7] y) <int8 a = {-10}> { y = my.F(x, a) }
            <domain: "my", opset_import: ["" : 18]> F (t, u) => (r) { r = Clip(t, u) }""",
    ),
    Silent("nothing in it", f"g (int8[0] x) => (int8[0] y) {_BOTH} {{ y = Clip(x, a, b) }}"),
    Silent(
        "opset 11 has no Clip of integers",
        f"g (int8[7] x) => (int8[7] y) {_BOTH} {{ y = Clip(x, a, b) }}",
        opset=11,
    ),
    Silent("int32", f"g (int32[7] x) => (int32[7] y) {_WIDE} {{ y = Clip(x, a, b) }}"),
    Silent(
        "uint8, which is refused",
        "g (uint8[7] x) => (uint8[7] y) <uint8 a = {1}, uint8 b = {20}> { y = Clip(x, a, b) }",
    ),
    Silent(
        "floats", "g (float[7] x) => (float[7] y) <float a = {-10}, float b = {20}> { y = Clip(x, a, b) }"
    ),
]
