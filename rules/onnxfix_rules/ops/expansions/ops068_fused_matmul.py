"""OPS068: ONNX Runtime's FusedMatMul."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    takes,
)

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@rule(
    "OPS068", ops=["com.microsoft::FusedMatMul"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43]
)
def fused_matmul(node: Node, model: Model) -> Iterator[Match]:
    """A FusedMatMul, which ONNX Runtime's optimizer writes into models that it saves.

    ## Why it matters
    It is an operator of ONNX Runtime, a MatMul with transposed factors and a scale. TensorRT looks for a plugin of that
    name and finds none: `Plugin not found, are the plugin name, version, and namespace correct?`, measured with
    TensorRT-RTX 1.7.1. A model that ONNX Runtime has optimized and saved is full of them.

    ## Fix
    Transpose, MatMul and Mul, measured to be accepted. Exact where nothing is transposed or scaled: then it is MatMul
    by another name. Otherwise NUMERIC, because ONNX Runtime scales and transposes inside the product (differences of
    2.4e-7 on probes). `transBatchA` and `transBatchB`, which move the first dimension after the batch, are supported.
    No fix where a factor of unknown rank would be transposed, or one of unknown type scaled; where ONNX Runtime itself
    rejects it (`transBatchA` of a matrix, or of factors of different ranks); and for a transposed matrix times a
    vector: ONNX Runtime 1.31.1 was measured to compute another product there. Better: export again, without ONNX
    Runtime's optimizer.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.FusedMatMul
    """
    left, right = node.require(0), node.require(1)
    node.require_output()
    if node.function is not None or len(node.inputs) != 2:
        return
    fix = _decomposed(node, left, right, model)
    yield Match("TensorRT has no FusedMatMul, neither as an importer nor as a plugin", node=node, fix=fix)


def _decomposed(node: Node, left: Value, right: Value, model: Model) -> Fix | None:
    alpha = node.attr("alpha", 1.0)
    elem, other = model.shapes.elem_type(left), model.shapes.elem_type(right)
    if node.scope.opset() < 7 or not math.isfinite(alpha):
        return None
    if len({elem, other, None}) > 2:
        return None  # ONNX Runtime rejects that
    for kind in (elem, other):  # bfloat16 requires opset 13
        if kind is not None and not all(
            takes(op, node.scope.opset(), kind) for op in ("MatMul", "Transpose")
        ):
            return None
    draft = Draft(node)
    factors: list[Value | str] = []
    ranks = model.shapes.rank(left), model.shapes.rank(right)
    moves_batch = bool(node.attr("transBatchA", 0) or node.attr("transBatchB", 0))
    if moves_batch and (ranks[0] is None or ranks[0] < 3 or ranks[0] != ranks[1]):
        return None  # ONNX Runtime rejects that
    if node.attr("transA", 0) and ranks[0] != 1 and (ranks[1] is None or ranks[1] < 2):
        return None  # ONNX Runtime multiplies the vector by another matrix
    exact = alpha == 1.0
    for value, side, rank in ((left, "A", ranks[0]), (right, "B", ranks[1])):
        transpose, batch = bool(node.attr(f"trans{side}", 0)), bool(node.attr(f"transBatch{side}", 0))
        if not (transpose or batch):
            factors.append(value)
            continue
        exact = False
        if rank is None:
            return None
        perm = _order(rank, transpose, batch)
        factors.append(value if perm == sorted(perm) else draft.add("Transpose", [value], perm=perm))
    result = draft.add("MatMul", factors)
    if alpha != 1.0:
        if elem not in _FLOATS:
            return None
        scale = np.array(alpha, helper.tensor_dtype_to_np_dtype(elem))
        if not np.isfinite(scale):
            return None
        result = draft.add("Mul", [result, draft.constant(scale, "scale")])
    draft.replace_output(node, result)
    return Fix(
        "replace by MatMul" if exact else "decompose into Transpose, MatMul and Mul",
        draft.edits,
        Safety.EXACT if exact else Safety.NUMERIC,
    )


def _order(rank: int, transpose: bool, batch: bool) -> list[int]:
    """The permutation of the dimensions; ONNX Runtime moves the batch first, and transposes matrices, not vectors."""
    order = list(range(rank))
    if batch:
        order = [*order[1:-1], 0, order[-1]]
    if transpose and rank > 1:
        order[-2:] = reversed(order[-2:])
    return order


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_PRODUCT = f"{_HEAD} g (float[N,3] x, float[3,4] w) => (float[N,4] y)"


fused_matmul.examples = [
    Fixed(
        "a plain product",
        before=f"{_PRODUCT} {{ y = com.microsoft.FusedMatMul(x, w) }}",
        after=f"{_PRODUCT} {{ y = MatMul(x, w) }}",
    ),
    Fixed(
        "the second factor transposed, and the product scaled",
        before=f"""{_HEAD} g (float[2,N,3] q, float[2,M,3] k) => (float[2,N,M] y) {{
            y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.125>(q, k) }}""",
        after=f"""{_HEAD} g (float[2,N,3] q, float[2,M,3] k) => (float[2,N,M] y) <float s = {{0.125}}> {{
            t = Transpose<perm = [0,2,1]>(k)  m = MatMul(q, t)  y = Mul(m, s) }}""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "without --numeric-fixes: reported only",
        f"""{_HEAD} g (float[2,N,3] q, float[2,M,3] k) => (float[2,N,M] y) {{
            y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.125>(q, k) }}""",
    ),
    Fixed(
        "the first factor transposed, with its batch after its rows",
        before=f"""{_HEAD} g (float[3,2,5,4] x, float[2,5,3,6] w) => (float[2,5,4,6] y) {{
            y = com.microsoft.FusedMatMul<transA = 1, transBatchA = 1>(x, w) }}""",
        after=f"""{_HEAD} g (float[3,2,5,4] x, float[2,5,3,6] w) => (float[2,5,4,6] y) {{
            t = Transpose<perm = [1,2,3,0]>(x)  y = MatMul(t, w) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a vector is not transposed",
        before=f"""{_HEAD} g (float[3] x, float[3,4] w) => (float[4] y) {{
            y = com.microsoft.FusedMatMul<transA = 1>(x, w) }}""",
        after=f"{_HEAD} g (float[3] x, float[3,4] w) => (float[4] y) {{ y = MatMul(x, w) }}",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "a factor of unknown rank, transposed",
        f"""{_HEAD} g (float x, float[4,3] w) => (float[N,4] y) {{
            u = com.microsoft.Unheard(x)  y = com.microsoft.FusedMatMul<transA = 1>(u, w) }}""",
        runs=False,
    ),
    Silent("ONNX's MatMul", f"{_PRODUCT} {{ y = MatMul(x, w) }}"),
    Flagged(
        "a transposed matrix times a vector, where ONNX Runtime differs",
        f"""{_HEAD} g (float[3,4] x, float[3] w) => (float[4] y) {{
            y = com.microsoft.FusedMatMul<transA = 1>(x, w) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a vector times a transposed matrix",
        before=f"""{_HEAD} g (float[3] x, float[4,3] w) => (float[4] y) {{
            y = com.microsoft.FusedMatMul<transA = 1, transB = 1>(x, w) }}""",
        after=f"""{_HEAD} g (float[3] x, float[4,3] w) => (float[4] y) {{
            t = Transpose<perm = [1,0]>(w)  y = MatMul(x, t) }}""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "another fused product, for which a plugin may exist",
        f"{_PRODUCT} {{ y = com.microsoft.FusedGemm<transB = 0>(x, w) }}",
        runs=False,
    ),
    Flagged(
        "bfloat16, in an opset where MatMul does not support it",
        """<ir_version: 8, opset_import: ["" : 12, "com.microsoft" : 1]>
            g (bfloat16[2,3] x, bfloat16[3,4] w) => (bfloat16[2,4] y) { y = com.microsoft.FusedMatMul(x, w) }""",
        runs=False,
    ),
]
