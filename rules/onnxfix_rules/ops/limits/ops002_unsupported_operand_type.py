"""OPS002: operands of a type that the target's parser refuses for the operator."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import (
    Flagged,
    Match,
    Model,
    Operator,
    Severity,
    Silent,
    elem_types,
    imported,
    name_of,
    rule,
    target_of,
)
from onnxfix_rules.ops.limits._quantized import is_quantized

TYPES = (
    TensorProto.BOOL,
    TensorProto.UINT8,
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
)
"""Types that only some operators support. INT006 covers other integers; int8 and narrower types count as quantized."""

_DATA = {"Where": 1, "OneHot": 2}
_ELSEWHERE = frozenset({"Cast", "CastLike", "DequantizeLinear", "QuantizeLinear", "If", "Loop", "Scan"})
"""CST covers casts, QDQ quantization; for control flow the nodes in the bodies are checked."""
_RANKING = frozenset({"ArgMax", "ArgMin", "TopK"})
"""ONNX does not define these for booleans, but exporters write them."""


@rule("OPS002", per="model", severity=Severity.ERROR, hazards=[49, 66], general=True)
def unsupported_operand_type(model: Model) -> Iterator[Match]:
    """A standard operator on data of a type that the target's parser does not accept for it.

    ## Why it matters
    TensorRT has the type and the operator, but not the combination. The parser stops: `Found unsupported input type of
    BOOL` (ReduceMax, ReduceMin, DepthToSpace, SpaceToDepth, Resize), `Found unsupported input type of UINT8` (nearly
    all operators except Cast: uint8 is supported only for network inputs and outputs), `Invalid input type for
    ConstantOfShape` (uint8), `first input has type Bool but must have type Float, ...` (ArgMax, ArgMin and TopK, which
    ONNX does not define for booleans either), `Only FLOAT, HALF or INT8` for bfloat16 (HardSwish, Mish, LpPool,
    GlobalLpPool, LpNormalization, GRU), measured with TensorRT-RTX 1.7.1, for each operator and type with a single-node
    model. In half precision MeanVarianceNormalization does not parse at all.

    The rule covers only targets whose types were measured: TensorRT-RTX, TensorRT 11 with its parser of the same
    generation, and TensorRT 10.6. It does not report constants, which the parser may convert, outputs of a
    QuantizeLinear in the graph, which TensorRT treats as int8, or types that only the builder refused, since it may
    accept another model.

    ## Fix
    None. Cast the data to a supported type and the result back: bool to int32, uint8 to int32 if nothing wraps around,
    bfloat16 to float. Data movement (Transpose, Reshape, Slice) gives the same result after the Cast.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    if not target.types_measured:
        return
    present = elem_types(model).intersection(TYPES)

    def refuses(operator: Operator) -> bool:
        domain, op_type = operator
        if domain != "" or op_type in _ELSEWHERE or target.operator(op_type) is None:
            return False
        return op_type in _RANKING or any(target.accepts(op_type, elem) is False for elem in present)

    for node in imported(model).of(refuses):
        if not node.is_onnx:
            continue
        data = node.output() if node.op_type == "ConstantOfShape" else node.input(_DATA.get(node.op_type, 0))
        elem = (
            None
            if data is None or data.initializer is not None or data.is_constant
            else model.shapes.elem_type(data)
        )
        if data is None or elem is None or elem not in TYPES or is_quantized(data, model):
            continue
        ranked = elem == TensorProto.BOOL and node.op_type in _RANKING
        if ranked or target.accepts(node.op_type, elem) is False:
            yield Match(
                f"{target.title} does not support {name_of(elem)} in {node.op_type} (source: {target.source})",
                node=node,
            )


_LP = "g (TYPE[1,4,8,8] x) => (TYPE[1,4,7,7] y) { y = LpPool<kernel_shape=[2,2]>(x) }"


unsupported_operand_type.examples = [
    Flagged(
        "ReduceMax of booleans",
        "g (bool[2,3] x) => (bool[2,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        opset=20,
    ),
    Flagged(
        "uint8 transposed before the Cast",
        "g (uint8[2,3] x) => (float[3,2] y) { t = Transpose(x)  y = Cast<to=FLOAT>(t) }",
    ),
    Flagged(
        "Where of booleans is supported, Where of uint8 is not",
        """g (bool[2] c, bool[2] p, bool[2] q, uint8[2] s, uint8[2] t) => (bool[2] y, uint8[2] z) {
            y = Where(c, p, q)  z = Where(c, s, t) }""",
    ),
    Flagged("LpPool of bfloat16", _LP.replace("TYPE", "bfloat16"), opset=22, runs=False),
    Flagged(
        "inside a branch",
        """g (bool[2,3] x, bool c) => (bool[1,1] y) {
            y = If(c)<then_branch = p () => (bool[1,1] u) { u = ReduceMin(x) },
                      else_branch = q () => (bool[1,1] v) { v = Constant<value = bool[1,1] {1}>() }> }""",
        opset=20,
    ),
    Flagged(
        "ArgMax of booleans, which ONNX does not define either",
        "g (bool[2,3] x) => (int64[1,3] y) { y = ArgMax(x) }",
        runs=False,
    ),
    Flagged(
        "ConstantOfShape of uint8",
        "g (int64[1] s) => (uint8[N] y) { y = ConstantOfShape<value = uint8[1] {3}>(s) }",
    ),
    Silent(
        "ConstantOfShape of int32",
        "g (int64[1] s) => (int32[N] y) { y = ConstantOfShape<value = int32[1] {3}>(s) }",
    ),
    Silent("LpPool of half precision", _LP.replace("TYPE", "float16"), opset=22),
    Silent(
        "ReduceMax of integers",
        "g (int64[2,3] x) => (int64[2,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        opset=20,
    ),
    Silent(
        "integers without a kernel, INT006's subject",
        "g (int32[2,3] x, int32[3,2] w) => (int32[2,2] y) { y = MatMul(x, w) }",
    ),
    Silent(
        "uint8 cast immediately",
        "g (uint8[2,3] x) => (float[3,2] y) { t = Cast<to=FLOAT>(x)  y = Transpose(t) }",
    ),
    Silent(
        "uint8 from a QuantizeLinear, which TensorRT treats as int8",
        """g (float[2,3] x) => (float[3,2] y) <float s = {0.1}, uint8 z = {0}> {
            q = QuantizeLinear(x, s, z)  t = Transpose(q)  y = DequantizeLinear(t, s, z) }""",
    ),
    Silent(
        "a constant, which the parser may convert",
        "g (int64[2] i) => (float[2] y) <uint8[3] c = {1, 2, 3}> { g = Gather(c, i)  y = Cast<to=FLOAT>(g) }",
    ),
    Silent(
        "TensorRT 10 was not measured",
        "g (bool[2,3] x) => (bool[2,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        opset=20,
        target="trt10",
    ),
    Silent(
        "in a function that is never called",
        """<ir_version: 9, opset_import: ["" : 20, "my" : 1]> g (bool[2,3] x) => (bool[2,3] y) { y = Not(x) }
            <domain: "my", opset_import: ["" : 20]> F (a) => (b) { c = Cast<to=BOOL>(a)  b = ReduceMax(c) }""",
    ),
    Silent(
        "a Cast to uint8 for a graph output", "g (float[2,3] x) => (uint8[2,3] y) { y = Cast<to=UINT8>(x) }"
    ),
]
