"""GRA008: string constants."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Flagged, Match, Model, Scope, Severity, Silent, rule


@rule("GRA008", per="scope", severity=Severity.ERROR, hazards=[60], alike=["GRA001", "GRA002"])
def string_constant(scope: Scope, model: Model) -> Iterator[Match]:
    """A constant of strings, a type that TensorRT does not support.

    ## Why it matters
    The parser imports every initializer and every Constant, used or not, and stops at the first one of strings: `Failed
    to import initializer: s`, or `This version of TensorRT does not support the sparse_value, value_string and
    value_strings attributes.`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    None here. GRA001 and GRA002 remove unused constants. Used ones belong to text processing, which has to happen
    outside of TensorRT: split the model there.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    for tensor in getattr(scope.proto, "initializer", ()):
        if tensor.data_type == TensorProto.STRING and tensor.name in scope.values:
            yield Match(f"initializer {tensor.name} contains strings", value=scope.values[tensor.name])
    for node in scope.nodes:
        if node.op_type != "Constant" or not node.is_onnx:
            continue
        for attribute in node.proto.attribute[:]:
            if attribute.name in ("value_string", "value_strings") or (
                attribute.name == "value" and attribute.t.data_type == TensorProto.STRING
            ):
                yield Match("this Constant contains strings", node=node)


string_constant.examples = [
    Flagged(
        "a Constant with one string, of which only the shape is used",
        """g (int64[K] x) => (int64[L] y) {
            c = Constant<value_string = "abc">()  s = Shape(c)  y = Concat<axis = 0>(s, x) }""",
    ),
    Flagged(
        "a Constant with strings, in a branch",
        """g (int64[1] x, bool c) => (int64[1] y) {
            y = If(c)<then_branch = p () => (int64[1] u) { k = Constant<value_strings = ["a", "b"]>()  u = Shape(k) },
                      else_branch = q () => (int64[1] v) { v = Neg(x) }> }""",
    ),
    Flagged(
        "an initializer, which GRA002 removes",
        'g (float[2] x) => (float[2] y) <string[2] s = {"a", "b"}> { y = Neg(x) }',
    ),
    Flagged(
        "a Constant with a tensor of strings",
        """g (float[2] x) => (float[2] y) {
            s = Constant<value = string[1] {"a"}>()  y = Neg(x) }""",
    ),
    Silent(
        "a string attribute, which is not a tensor",
        'g (float[2,2] x) => (float[2] y) { y = Einsum<equation = "ii->i">(x) }',
    ),
    Silent(
        "numbers", "g (float[1] x) => (float[1] y) { c = Constant<value_floats = [1.0]>()  y = Add(x, c) }"
    ),
]
