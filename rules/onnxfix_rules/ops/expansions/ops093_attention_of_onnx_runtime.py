"""OPS093: ONNX Runtime's Attention, which includes the products with the query, key and value weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

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
    target_of,
)
from onnxfix_rules.ops._runtimes import origin
from onnxfix_rules.ops.expansions import _formulas
from onnxfix_rules.ops.expansions._formulas import known_float


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


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
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


def _before(
    inputs: str = "x, w, c", attributes: str = "num_heads = 2", more: str = "", result: str = ""
) -> str:
    head = _G.format(more=more)
    return f"{_HEAD} {head[:-1]}{result}) {{ y = com.microsoft.Attention<{attributes}>({inputs}) }}"


_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)
attention_of_onnx_runtime.examples = [
    Fixed(
        "two heads of size 2",
        before=_before(),
        after=f"{_HEAD} {_G.format(more='')} <{_SHAPES}> {{ {_SPLIT} {_END.format(scores='s2')}",
        safety=Safety.NUMERIC,
    ),
    Flagged("without --numeric-fixes: reported only", _before()),
    Fixed(
        "a mask with a 0 for each masked key",
        before=_before("x, w, c, m", more=", int32[B,S] m"),
        after=f"""{_HEAD} {_G.format(more=", int32[B,S] m")} <{_SHAPES}, int32 z = {{0}}, float n = {{0}},
            float d = {{-10000}}, int64[2] e = {{1,2}}> {{ {_SPLIT}
            g1 = Greater(m, z)  g2 = Where(g1, n, d)  g3 = Unsqueeze(g2, e)  s3 = Add(s2, g3)
            {_END.format(scores="s3")}""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Fixed(
        "unidirectional: later keys are masked",
        before=_before(attributes="num_heads = 2, unidirectional = 1"),
        after=f"""{_HEAD} {_G.format(more="")} <{_SHAPES}, int64 n0 = {{0}}, int64 n1 = {{1}}, int64 n2 = {{2}},
            int64[1] e = {{1}}, int64 m0 = {{0}}, int64 m1 = {{1}}, int64 m2 = {{2}}, float b = {{-3.4028235e38}}> {{
            {_SPLIT} g1 = Shape(q)  g2 = Gather<axis = 0>(g1, n2)  g3 = Range(n0, g2, n1)  g4 = Cast<to = INT32>(g3)
            g5 = Unsqueeze(g4, e)  j1 = Shape(k)  j2 = Gather<axis = 0>(j1, m2)  j3 = Range(m0, j2, m1)
            j4 = Cast<to = INT32>(j3)  g6 = Less(g5, j4)  s3 = Where(g6, b, s2)  {_END.format(scores="s3")}""",
        safety=Safety.NUMERIC,
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
