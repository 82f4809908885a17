"""OPS002: operands of a type that the target's parser refuses."""

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
"""Types that one operator takes and another does not. Integers are INT006's, int8 and narrower types quantized ones."""

_DATA = {"Where": 1, "OneHot": 2}
_ELSEWHERE = frozenset({"Cast", "CastLike", "DequantizeLinear", "QuantizeLinear", "If", "Loop", "Scan"})
"""Casts are the matter of CST, quantization that of QDQ; bodies hold the nodes that count."""
_RANKING = frozenset({"ArgMax", "ArgMin", "TopK"})
"""ONNX does not define these for booleans, and they are exported nevertheless."""


@rule("OPS002", per="model", severity=Severity.ERROR, hazards=[19, 36], general=True)
def unsupported_operand_type(model: Model) -> Iterator[Match]:
    """A standard operator on data of a type that the target's parser refuses there.

    ## Why it matters
    TensorRT has the type and the operator, but not both together. The parser stops: `Found unsupported input type of
    BOOL` (ReduceMax, ReduceMin, DepthToSpace, SpaceToDepth, Resize), `Found unsupported input type of UINT8` (nearly
    everything but a Cast: uint8 may only come in and go out), `Invalid input type for ConstantOfShape` (uint8), `first
    input has type Bool but must have type Float, ...` (ArgMax, ArgMin and TopK, which ONNX does not define for booleans
    either), `Only FLOAT, HALF or INT8` for bfloat16 (HardSwish, Mish, LpPool, GlobalLpPool, LpNormalization, GRU),
    measured with TensorRT-RTX 1.7.1, for each operator and type by a model of one node. In half precision
    MeanVarianceNormalization does not parse at all.

    Only for targets whose types were measured: TensorRT-RTX, and TensorRT 11 with its parser of the same time. Silent
    about constants, which the parser may convert, about bytes that a QuantizeLinear in the graph makes, which count as
    int8, and about what the builder refused: it may take another model.

    ## Fix
    None here. Cast the data to a type that the operator takes, and the result back: bool to int32, uint8 to int32
    where nothing wraps, bfloat16 to float. Moves of uint8 (Transpose, Reshape, Slice) give the same after the Cast.

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
                f"{target.title} takes no {name_of(elem)} in {node.op_type} (source: {target.source})",
                node=node,
            )


_LP = "g (TYPE[1,4,8,8] x) => (TYPE[1,4,7,7] y) { y = LpPool<kernel_shape=[2,2]>(x) }"


unsupported_operand_type.examples = [
    Flagged(
        "the maximum of booleans",
        "g (bool[2,3] x) => (bool[2,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        opset=20,
    ),
    Flagged(
        "uint8 moved before it is cast",
        "g (uint8[2,3] x) => (float[3,2] y) { t = Transpose(x)  y = Cast<to=1>(t) }",
    ),
    Flagged(
        "selected booleans are fine, selected uint8 are not",
        """g (bool[2] c, bool[2] p, bool[2] q, uint8[2] s, uint8[2] t) => (bool[2] y, uint8[2] z) {
            y = Where(c, p, q)  z = Where(c, s, t) }""",
    ),
    Flagged("pooling of bfloat16", _LP.replace("TYPE", "bfloat16"), opset=22, runs=False),
    Flagged(
        "inside a branch",
        """g (bool[2,3] x, bool c) => (bool[1,1] y) {
            y = If(c)<then_branch = p () => (bool[1,1] u) { u = ReduceMin(x) },
                      else_branch = q () => (bool[1,1] v) { v = Constant<value = bool[1,1] {1}>() }> }""",
        opset=20,
    ),
    Flagged(
        "the place of the first true, which ONNX does not define either",
        "g (bool[2,3] x) => (int64[1,3] y) { y = ArgMax(x) }",
        runs=False,
    ),
    Flagged(
        "filled with uint8", "g (int64[1] s) => (uint8[N] y) { y = ConstantOfShape<value = uint8[1] {3}>(s) }"
    ),
    Silent(
        "filled with int32", "g (int64[1] s) => (int32[N] y) { y = ConstantOfShape<value = int32[1] {3}>(s) }"
    ),
    Silent("pooling of half", _LP.replace("TYPE", "float16"), opset=22),
    Silent(
        "the maximum of integers",
        "g (int64[2,3] x) => (int64[2,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        opset=20,
    ),
    Silent(
        "integers without a kernel are INT006's",
        "g (int32[2,3] x, int32[3,2] w) => (int32[2,2] y) { y = MatMul(x, w) }",
    ),
    Silent(
        "uint8 that is cast at once",
        "g (uint8[2,3] x) => (float[3,2] y) { t = Cast<to=1>(x)  y = Transpose(t) }",
    ),
    Silent(
        "uint8 that the graph quantizes, which TensorRT reads as int8",
        """g (float[2,3] x) => (float[3,2] y) <float s = {0.1}, uint8 z = {0}> {
            q = QuantizeLinear(x, s, z)  t = Transpose(q)  y = DequantizeLinear(t, s, z) }""",
    ),
    Silent(
        "a constant, which the parser may convert",
        "g (int64[2] i) => (float[2] y) <uint8[3] c = {1, 2, 3}> { g = Gather(c, i)  y = Cast<to=1>(g) }",
    ),
    Silent(
        "nothing was measured with TensorRT 10",
        "g (bool[2,3] x) => (bool[2,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        opset=20,
        target="trt10",
    ),
    Silent(
        "in a function that nobody calls",
        """<ir_version: 9, opset_import: ["" : 20, "my" : 1]> g (bool[2,3] x) => (bool[2,3] y) { y = Not(x) }
            <domain: "my", opset_import: ["" : 20]> F (a) => (b) { c = Cast<to=9>(a)  b = ReduceMax(c) }""",
    ),
    Silent("a Cast to uint8 that goes out", "g (float[2,3] x) => (uint8[2,3] y) { y = Cast<to=2>(x) }"),
]
