"""OPS068 and OPS093: products that ONNX Runtime fuses, alone and in attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

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
    is_read,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.ops._runtimes import origin
from onnxfix_rules.ops.expansions import _formulas
from onnxfix_rules.ops.expansions._formulas import known_float

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
_fixed = partial(Fixed, safety=Safety.NUMERIC)


fused_matmul.examples = [
    Fixed(
        "a plain product",
        before=f"{_PRODUCT} {{ y = com.microsoft.FusedMatMul(x, w) }}",
        after=f"{_PRODUCT} {{ y = MatMul(x, w) }}",
    ),
    _fixed(
        "the second factor transposed, and the product scaled",
        before=f"""{_HEAD} g (float[2,N,3] q, float[2,M,3] k) => (float[2,N,M] y) {{
            y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.125>(q, k) }}""",
        after=f"""{_HEAD} g (float[2,N,3] q, float[2,M,3] k) => (float[2,N,M] y) <float s = {{0.125}}> {{
            t = Transpose<perm = [0,2,1]>(k)  m = MatMul(q, t)  y = Mul(m, s) }}""",
    ),
    Flagged(
        "without --numeric-fixes: reported only",
        f"""{_HEAD} g (float[2,N,3] q, float[2,M,3] k) => (float[2,N,M] y) {{
            y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.125>(q, k) }}""",
    ),
    _fixed(
        "the first factor transposed, with its batch after its rows",
        before=f"""{_HEAD} g (float[3,2,5,4] x, float[2,5,3,6] w) => (float[2,5,4,6] y) {{
            y = com.microsoft.FusedMatMul<transA = 1, transBatchA = 1>(x, w) }}""",
        after=f"""{_HEAD} g (float[3,2,5,4] x, float[2,5,3,6] w) => (float[2,5,4,6] y) {{
            t = Transpose<perm = [1,2,3,0]>(x)  y = MatMul(t, w) }}""",
    ),
    _fixed(
        "a vector is not transposed",
        before=f"""{_HEAD} g (float[3] x, float[3,4] w) => (float[4] y) {{
            y = com.microsoft.FusedMatMul<transA = 1>(x, w) }}""",
        after=f"{_HEAD} g (float[3] x, float[3,4] w) => (float[4] y) {{ y = MatMul(x, w) }}",
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
    _fixed(
        "a vector times a transposed matrix",
        before=f"""{_HEAD} g (float[3] x, float[4,3] w) => (float[4] y) {{
            y = com.microsoft.FusedMatMul<transA = 1, transB = 1>(x, w) }}""",
        after=f"""{_HEAD} g (float[3] x, float[4,3] w) => (float[4] y) {{
            t = Transpose<perm = [1,0]>(w)  y = MatMul(x, t) }}""",
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


@rule(
    "OPS093", ops=["com.microsoft::Attention"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43]
)
def attention_of_onnx_runtime(node: Node, model: Model) -> Iterator[Match]:
    """An Attention of ONNX Runtime: the products with the weights, the heads and the masks in one operator.

    ## Why it matters
    `onnxruntime.transformers.optimizer` writes it into BERT, GPT-2 and their relatives. TensorRT imports it as ONNX's
    Attention, whose inputs are queries, keys and values: TensorRT-RTX 1.7.1 was measured to reject it (`Q, K, and V
    inputs must have the same number of dimensions`).

    ## Fix
    MatMul and Add for the weights, Split into queries, keys and values, and multi-head attention by its definition.
    Length masks and masks of zeros and ones add `mask_filter_value`; `unidirectional` masks later keys; the attention
    bias is added. Past keys and values come first, and the present ones are computed where they are read. NUMERIC: ONNX
    Runtime sums in another order. Measured to be accepted.

    No fix for a buffer that past and present share, for rotary embeddings inside, for masks of starts and ends or of an
    unknown form, and for types other than float32 and float16. Better: give TensorRT the model from before the
    optimizer.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.Attention
    """
    if node.function is not None or node.input(0) is None or node.output() is None:
        return
    target = target_of(model)
    problem = "imports it as ONNX's Attention" if target.imports("Attention") else "has no importer for it"
    yield Match(
        f"com.microsoft.Attention: {target.title} {problem}; {origin(node)}", node=node, fix=_fix(node, model)
    )


def _fix(node: Node, model: Model) -> Fix | None:
    data, weight, bias, mask, past, added = (node.input(index) for index in range(6))
    output, present = node.output(0), node.output(1)
    if data is None or weight is None or output is None or node.input(6) is not None:
        return None
    if node.attr("do_rotary", 0) or node.attr("past_present_share_buffer", 0):
        return None
    elem = known_float(node, data, weight, *(one for one in (bias, past) if one is not None))
    shape, sizes = model.shapes.shape(data), _sizes(node, weight, model)
    heads = int(node.attr("num_heads", 0))
    if elem not in _formulas.ATTENTION_TYPES or shape is None or len(shape) != 3 or sizes is None:
        return None
    if heads < 1 or any(size % heads or size < heads for size in sizes) or sizes[0] != sizes[1]:
        return None
    masks = _formulas.masking(node, mask, added, shape[0], elem)
    if masks is None or ((past is not None or is_read(present)) and sizes[0] != sizes[2]):
        return None
    if past is not None and (masks.lengths is not None or model.shapes.rank(past) != 5):
        return None
    draft = Draft(node)
    product = draft.add("MatMul", [data, weight])
    parts = draft.split(product if bias is None else draft.add("Add", [product, bias]), sizes, 2)
    query, key, value = (
        _formulas.headed(draft, part, heads, size // heads) for part, size in zip(parts, sizes, strict=True)
    )
    if past is not None:
        states = [draft.integers(number, "state") for number in (0, 1)]
        old = [draft.add("Gather", [past, state], axis=0) for state in states]  # keys and values
        key, value = (draft.add("Concat", pair, axis=2) for pair in ((old[0], key), (old[1], value)))
        masks = replace(masks, past=old[0])
    scale = float(node.attr("scale", 0.0)) or 1 / math.sqrt(sizes[0] // heads)
    if present is not None and is_read(present):
        both = [draft.unsqueeze(one, [0]) for one in (key, value)]
        draft.add("Concat", both, output=present.name, axis=0)
    draft.replace_output(node, _formulas.attend(draft, (query, key, value), scale, masks, elem, sizes[2]))
    return Fix("decompose Attention", draft.edits, Safety.NUMERIC)


def _sizes(node: Node, weight: Value, model: Model) -> tuple[int, int, int] | None:
    """The widths of queries, keys and values; None where unknown."""
    shape = model.shapes.shape(weight)
    width = shape[1].value if shape is not None and len(shape) == 2 else None
    given = node.attr("qkv_hidden_sizes", []) or None
    if width is None or (given is not None and (len(given) != 3 or sum(given) != width or min(given) < 1)):
        return None
    if given is not None:
        return int(given[0]), int(given[1]), int(given[2])
    return (width // 3,) * 3 if width % 3 == 0 else None


_G = "g (float[B,S,4] x, float[4,12] w, float[12] c{more}) => (float[B,S,4] y)"
_SPLIT = """p = MatMul(x, w)  r = Add(p, c)  q1, k1, v1 = Split<axis = 2>(r, l)
            q2 = Reshape(q1, h)  q = Transpose<perm = [0, 2, 1, 3]>(q2)
            k2 = Reshape(k1, h2)  k = Transpose<perm = [0, 2, 1, 3]>(k2)
            v2 = Reshape(v1, h3)  v = Transpose<perm = [0, 2, 1, 3]>(v2)
            t = Transpose<perm = [0, 1, 3, 2]>(k)  s1 = MatMul(q, t)  s2 = Mul(s1, f)"""
_END = """a = Softmax<axis = 3>({scores})  o1 = MatMul(a, v)  o2 = Transpose<perm = [0, 2, 1, 3]>(o1)
            y = Reshape(o2, o) }}"""
_SHAPES = """int64[3] l = {4,4,4}, int64[4] h = {0,0,2,2}, int64[4] h2 = {0,0,2,2}, int64[4] h3 = {0,0,2,2},
            float f = {0.70710678}, int64[3] o = {0,0,4}"""


def _before(inputs: str = "x, w, c", attributes: str = "num_heads = 2", more: str = "") -> str:
    return f"{_HEAD} {_G.format(more=more)} {{ y = com.microsoft.Attention<{attributes}>({inputs}) }}"


_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)
attention_of_onnx_runtime.examples = [
    _fixed(
        "two heads of size 2",
        before=_before(),
        after=f"{_HEAD} {_G.format(more='')} <{_SHAPES}> {{ {_SPLIT} {_END.format(scores='s2')}",
    ),
    Flagged("without --numeric-fixes: reported only", _before()),
    _fixed(
        "a mask with a 0 for each masked key",
        before=_before("x, w, c, m", more=", int32[B,S] m"),
        after=f"""{_HEAD} {_G.format(more=", int32[B,S] m")} <{_SHAPES}, int32 z = {{0}}, float n = {{0}},
            float d = {{-10000}}, int64[2] e = {{1,2}}> {{ {_SPLIT}
            g1 = Greater(m, z)  g2 = Where(g1, n, d)  g3 = Unsqueeze(g2, e)  s3 = Add(s2, g3)
            {_END.format(scores="s3")}""",
        runs=False,
    ),
    _fixed(
        "unidirectional: later keys are masked",
        before=_before(attributes="num_heads = 2, unidirectional = 1"),
        after=f"""{_HEAD} {_G.format(more="")} <{_SHAPES}, int64 n0 = {{0}}, int64 n1 = {{1}}, int64 n2 = {{2}},
            int64[1] e = {{1}}, int64 m0 = {{0}}, int64 m1 = {{1}}, int64 m2 = {{2}}, float b = {{-3.4028235e38}}> {{
            {_SPLIT} g1 = Shape(q)  g2 = Gather<axis = 0>(g1, n2)  g3 = Range(n0, g2, n1)  g4 = Cast<to = INT32>(g3)
            g5 = Unsqueeze(g4, e)  j1 = Shape(k)  j2 = Gather<axis = 0>(j1, m2)  j3 = Range(m0, j2, m1)
            j4 = Cast<to = INT32>(j3)  g6 = Less(g5, j4)  s3 = Where(g6, b, s2)  {_END.format(scores="s3")}""",
    ),
    _flagged(
        "past states in a buffer shared with the present",
        _before(
            "x, w, c, , p, , l",
            "num_heads = 2, past_present_share_buffer = 1",
            more=", float[2,B,2,P,2] p, int32[1] l",
        ),
    ),
    _flagged("a mask of unknown form", _before("x, w, c, m", more=", int32[M] m")),
    _flagged("rotary embeddings inside", _before(attributes="num_heads = 2, do_rotary = 1")),
    Silent(
        "ONNX's Attention",
        """<ir_version: 10, opset_import: ["" : 23]> g (float[1,2,S,4] q, float[1,2,S,4] k, float[1,2,S,4] v) =>
            (float[1,2,S,4] y) { y = Attention(q, k, v) }""",
    ),
    Silent(
        "a local function of that name (OPS060)",
        f"""{_HEAD} g (float[2] x) => (float[2] y) {{ y = com.microsoft.Attention(x) }}
            <domain: "com.microsoft", opset_import: ["" : 17]> Attention (a) => (b) {{ b = Neg(a) }}""",
    ),
]
