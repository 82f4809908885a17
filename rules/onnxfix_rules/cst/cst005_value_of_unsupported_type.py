"""CST005: internal values of a type that the target does not support."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import (
    Flagged,
    Match,
    Model,
    Node,
    Severity,
    Silent,
    Value,
    elem_types,
    imported,
    name_of,
    rule,
    target_of,
)
from onnxfix_rules.cst import _common as cst

_PACKED = (TensorProto.INT4, TensorProto.FLOAT4E2M1)


@rule("CST005", per="model", severity=Severity.ERROR, hazards=[50], general=True)
def value_of_unsupported_type(model: Model) -> Iterator[Match]:
    """A value inside the graph has a type that TensorRT does not support.

    ## Why it matters
    The parser fails where such a type first occurs, measured with TensorRT-RTX 1.7.1 for int16, uint16, uint32,
    uint64, uint4, strings, and every float8 but float8e4m3fn: at a Cast (`Unsupported data type for the Cast
    operator!`), at a weight (`Failed to import initializer: w`, used or not), at a Constant, and at a ConstantOfShape
    (`Unable to convert ONNX weights`). Each target lists its supported types with a source, which the message names.

    int4 and float4e2m1 are supported for quantized tensors only: the builder refuses Casts from or to them (`Tensor y
    has datatype Int4 but is not produced by IPluginLayer, ..., IQuantizeLayer, ...`). Targets with a different parser
    get a warning.

    One finding where the type first occurs: values computed from it in the same type are not reported again. If
    another rule has a fix for the same node, this one is silent: Cast chains (CST001, CST003, CST004), foldable
    constants (INT001, GRA010), data that is only moved (OPS032), arithmetic in a wider type (OPS054), quantized data
    (QDQ002, QDQ006). Graph inputs and outputs are covered by IFC005.

    ## Fix
    None here: in another type integers wrap and fractions round differently. int32 holds the values of int16, uint16
    and of uint32 below 2**31, as long as no computation relies on wrapping.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    shapes = model.shapes

    types = elem_types(model)
    absent = {elem for elem in types if elem != 0 and not target.has_type(elem)}
    if not absent and types.isdisjoint(_PACKED):
        return

    def missing(value: Value | None) -> bool:
        return value is not None and shapes.elem_type(value) in absent

    seen: set[Value] = set()
    for node in imported(model):
        if cst.is_cast(node):
            yield from _packed(node, model)
        reads = [value for value in node.inputs if value is not None and missing(value)]
        for value in reads:
            if value.initializer is not None and not value.is_input and value not in seen:
                seen.add(value)
                if shapes.elem_type(value) != TensorProto.STRING:
                    yield _match(value, node, model, "weight")
        if reads or (node.is_onnx and target.imports(node.op_type) is False) or node.subgraphs:
            continue
        if node.function is not None:
            continue  # its body says so
        for made in node.outputs:
            if made is not None and missing(made) and _inner(made, model):
                if node.op_type == "Constant" and shapes.elem_type(made) == TensorProto.STRING:
                    continue
                yield _match(made, _reader(made) or node, model, f"result of {node.op_type}")


def _packed(node: Node, model: Model) -> Iterator[Match]:
    """A Cast to or from a type that is supported for quantized tensors only; float8e4m3fn is covered by QDQ013."""
    target = target_of(model)
    for value, side in ((node.input(0), "from"), (node.output(), "to")):
        elem = None if value is None else model.shapes.elem_type(value)
        if value is not None and elem in _PACKED and target.has_type(elem):
            yield Match(
                f"Cast {side} {name_of(elem)}, which {target.title} supports for quantized tensors only",
                node=node,
                severity=Severity.ERROR if target.types_measured else Severity.WARNING,
                reads=(value,),
            )


def _inner(value: Value, model: Model) -> bool:
    """Whether the value is used, and is neither a graph input nor a graph output."""
    out = value.is_output and value.scope is model.main
    return not out and (value.use_count > 0 or not value.replaceable)


def _reader(value: Value) -> Node | None:
    """The node where another rule would report the value: the Cast after a Cast, the reader of a Constant."""
    if value.use_count != 1 or not value.replaceable:
        return None
    reader = value.uses[0].node
    assert value.producer is not None
    behind = cst.is_cast(value.producer) and cst.is_cast(reader)
    return reader if behind or value.producer.op_type == "Constant" else None


def _match(value: Value, node: Node, model: Model, what: str) -> Match:
    target = target_of(model)
    kind = name_of(model.shapes.elem_type(value) or 0)
    return Match(
        f"the {what}, {value.name!r}, is {kind}, which {target.title} does not support (source: "
        f"{target.source})",
        node=node,
        reads=(value,),
    )


def _cast(attributes: str) -> str:
    return (
        f"g (float[2] x) => (float[2] y) {{ a = Cast<{attributes}>(x)  b = Neg(a)  y = Cast<to = FLOAT>(b) }}"
    )


value_of_unsupported_type.examples = [
    Flagged(
        "computed in uint16",
        "g (int32[2] x) => (int32[2] y) { a = Cast<to = UINT16>(x)  b = Add(a, a)  y = Cast<to = INT32>(b) }",
        opset=14,
    ),
    Flagged(
        "cast to 16 bits, then to another type",
        "g (float[2] x) => (int32[2] y) { a = Cast<to = INT16>(x)  y = Cast<to = INT32>(a) }",
    ),
    Flagged(
        "only its shape is read", "g (float[2] x) => (int64[1] y) { a = Cast<to = UINT32>(x)  y = Shape(a) }"
    ),
    Flagged(
        "a uint16 weight",
        "g (float[2] x) => (float[2] y) <uint16[2] w = {1, 2}> { a = Cast<to = FLOAT>(w)  y = Add(x, a) }",
    ),
    Flagged(
        "an int16 Constant",
        """g (int32[2] x) => (int32[2] y) {
            w = Constant<value = int16[2] {1, 2}>()  a = Cast<to = INT32>(w)  y = Add(x, a) }""",
    ),
    Flagged(
        "from ConstantOfShape",
        """g (int64[1] s) => (bool[N] y) {
            k = ConstantOfShape<value = uint32[1] {3}>(s)  y = Equal(k, k) }""",
    ),
    Flagged(
        "cast to int4, which is supported for quantized tensors only",
        "g (float[2] x) => (int4[2] y) { y = Cast<to = INT4>(x) }",
        opset=21,
    ),
    Flagged(
        "cast from float4e2m1",
        "g (float4e2m1[2] x) => (float[2] y) { y = Cast<to = FLOAT>(x) }",
        opset=23,
        runs=False,
    ),
    Silent(
        "dequantized int4",
        "g (int4[2] x) => (float[2] y) <float s = {0.5}> { y = DequantizeLinear(x, s) }",
        opset=21,
    ),
    Flagged("TensorRT 8.6 does not support bfloat16", _cast("to = BFLOAT16"), target="trt8.6"),
    Silent("TensorRT 11 supports it", _cast("to = BFLOAT16")),
    Silent(
        "inputs and outputs are covered by IFC005, derived values are not repeated",
        "g (uint16[2] x) => (uint16[2] y) { a = Add(x, x)  y = Mul(a, x) }",
        opset=14,
    ),
    Silent(
        "in the branch not taken for a constant condition",
        """g (float[2] x) => (float[2] y) <bool c = {0}> {
            y = If(c)<then_branch = p () => (float[2] u) <uint16[2] w = {1, 2}> { a = Cast<to = 1>(w)  u = Add(x, a) },
                      else_branch = q () => (float[2] v) { v = Abs(x) }> }""",
    ),
    Silent(
        "in an unused function",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[2] x) => (float[2] y) { y = Neg(x) }
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) { c = Cast<to = 4>(a)  b = Cast<to = 6>(c) }""",
    ),
    Silent(
        "an unused weight is covered by GRA002",
        "g (float[2] x) => (float[2] y) <uint16[2] w = {1, 2}> { y = Neg(x) }",
    ),
    Silent(
        "an unused node is covered by GRA001",
        "g (float[2] x) => (float[2] y) { a = Cast<to = UINT16>(x)  y = Neg(x) }",
    ),
    Silent(
        "float64 is imported as float32, covered by IFC003",
        "g (float[2] x) => (float[2] y) { a = Cast<to = DOUBLE>(x)  b = Sqrt(a)  y = Cast<to = FLOAT>(b) }",
    ),
    Silent(
        "string constants are covered by GRA008",
        'g (float[2] x) => (float[2] y, string[1] t) <string[1] s = {"a"}> { y = Neg(x)  t = Identity(s) }',
    ),
    Silent(
        "from an unsupported operator, covered by OPS001",
        """g (float16[2] x) => (float16[2] y) { a = BitCast<to = UINT16>(x)  y = BitCast<to = FLOAT16>(a) }""",
        opset=26,
        runs=False,
    ),
    Silent("supported types", _cast("to = INT32")),
]
