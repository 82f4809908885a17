"""OPS091 and OPS092: normalizations of ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto

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
from onnxfix_rules.ops._runtimes import is_imported, no_importer, origin
from onnxfix_rules.ops.expansions._formulas import (
    Operand,
    deviation,
    known_float,
    layer_normalization,
    mean,
    rms_normalization,
    widened,
)

_ROOTS = ("SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization")


@rule(
    "OPS091",
    ops=[
        "com.microsoft::SkipLayerNormalization",
        "com.microsoft::SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization",
    ],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def fused_normalization(node: Node, model: Model) -> Iterator[Match]:
    """A SkipLayerNormalization, SkipSimplifiedLayerNormalization or SimplifiedLayerNormalization of ONNX Runtime.

    ## Why it matters
    ONNX Runtime's optimizers write them into the models that they save. TensorRT finds no importer for
    SkipLayerNormalization: `Plugin not found, are the plugin name, version, and namespace correct?`, measured with
    TensorRT-RTX 1.7.1. It imports the other two, SimplifiedLayerNormalization with one output only: `Node has more
    output tensors than TRT expected`. TensorRT 8 has neither.

    ## Fix
    Add for the sum with the skip tensor and the bias, then LayerNormalization, or without the mean RMSNormalization,
    where opset and target have it; otherwise their definition by ReduceMean, in float32 for data in half precision.
    Mean, inverse deviation and the sum are computed where they are read. NUMERIC: ONNX Runtime sums in another order,
    and in half precision does not round the sum. Measured to be accepted.

    No fix for another axis than the last, bfloat16, an epsilon that is not positive, and for the mean of a norm that
    does not compute it. Better: save the model before ONNX Runtime optimizes it, or with `ORT_ENABLE_BASIC`.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.SkipLayerNormalization
    - https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """
    data, output = node.require(0), node.require_output()
    if node.function is not None:
        return
    target = target_of(model)
    imported = is_imported(node.op_type, target)
    has_extra_outputs = not node.domain and any(is_read(value) for value in node.outputs[1:])
    if imported is None or (imported and not has_extra_outputs):
        return
    name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    problem = f"supports only one output of {name}" if imported else f"has no importer for {name}"
    yield Match(f"{target.title} {problem}; {origin(node)}", node=node, fix=_fix(node, data, output, model))


def _fix(node: Node, data: Value, output: Value, model: Model) -> Fix | None:
    skips, root = node.op_type.startswith("Skip"), node.op_type in _ROOTS
    inputs = list(node.inputs) + [None] * (5 - len(node.inputs))
    addends = [inputs[1], inputs[3 if root else 4]] if skips else []
    scale, beta = (inputs[2], None if root else inputs[3]) if skips else (inputs[1], None)
    if scale is None or (skips and addends[0] is None):
        return None
    elem = known_float(node, data, scale, *(one for one in (*addends, beta) if one is not None))
    epsilon = float(node.attr("epsilon", 1e-12 if skips else 1e-5))
    if elem is None or not (0 < epsilon < math.inf) or not _is_expressible(node, data, elem, model):
        return None
    draft, target = Draft(node), target_of(model)
    draft.remove(node)
    total = _sum(draft, node, data, addends)
    if root:
        rms_normalization(draft, total, scale, epsilon, elem, target, output.name)
    else:
        layer_normalization(draft, total, scale, beta, epsilon, elem, target, output.name)
    if not _statistics(draft, node, total, elem, epsilon):
        return None
    return Fix(f"decompose {node.op_type}", draft.edits, Safety.NUMERIC)


def _is_expressible(node: Node, data: Value, elem: int, model: Model) -> bool:
    """Whether opset, axis and outputs allow the fix."""
    axis, rank = node.attr("axis", -1), model.shapes.rank(data)
    last = axis == -1 or (rank is not None and axis == rank - 1)
    known = node.op_type != "SimplifiedLayerNormalization" or node.attr("stash_type", 1) == TensorProto.FLOAT
    return last and known and node.scope.opset() >= 7 and takes("ReduceMean", node.scope.opset(), elem)


def _sum(draft: Draft, node: Node, data: Value, addends: list[Value | None]) -> Operand:
    """The normalized sum, under its own name where it is an output that is read."""
    own = node.output(3)
    terms = [one for one in addends if one is not None]
    total: Operand = data
    for number, term in enumerate(terms, 1):
        last = number == len(terms) and own is not None and is_read(own)
        total = draft.add("Add", [total, term], output=own.name if last and own is not None else "")
    return total


def _statistics(draft: Draft, node: Node, total: Operand, elem: int, epsilon: float) -> bool:
    """Mean and inverse deviation, where they are read; False where this norm has none."""
    root = node.op_type in _ROOTS
    average, inverse = (None, node.output(1)) if not node.domain else (node.output(1), node.output(2))
    average, inverse = (value if is_read(value) else None for value in (average, inverse))
    if average is None and inverse is None:
        return True
    declared = [value.declared for value in (average, inverse) if value is not None]
    if any(one is not None and one.tensor_type.elem_type != TensorProto.FLOAT for one in declared):
        return False
    if (root and average is not None) or elem == TensorProto.DOUBLE:
        return False
    wide, kind = widened(draft, total, elem)
    if not root:
        middle = mean(draft, wide, "" if average is None else average.name)
        if inverse is not None:
            wide = draft.add("Sub", [wide, middle])
    if inverse is not None:
        draft.add("Reciprocal", [deviation(draft, wide, epsilon, kind)], output=inverse.name)
    return True


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_NEW = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
_OLD = '<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>'
_S = "g (float[B,S,8] x, float[B,S,8] k, float[8] s) => (float[B,S,8] y)"
_A = "float[8] b, float[8] c"
_SKIP = "y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>"
_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)


fused_normalization.examples = [
    _fixed(
        "a sum and its norm",
        before=f"{_HEAD} {_S} {{ {_SKIP}(x, k, s) }}",
        after=f"{_HEAD} {_S} {{ a = Add(x, k)  y = LayerNormalization<axis = -1, epsilon = 0.001>(a, s) }}",
    ),
    Flagged("without --numeric-fixes: reported only", f"{_HEAD} {_S} {{ {_SKIP}(x, k, s) }}"),
    _fixed(
        "beta and bias; the sum is read; the skip tensor has no batch",
        before=f"""{_HEAD} g (float[B,S,8] x, float[S,8] k, float[8] s, {_A}) => (float[B,S,8] y, float[B,S,8] z) {{
            y, , , z = com.microsoft.SkipLayerNormalization(x, k, s, b, c) }}""",
        after=f"""{_HEAD} g (float[B,S,8] x, float[S,8] k, float[8] s, {_A}) => (float[B,S,8] y, float[B,S,8] z) {{
            a = Add(x, k)  z = Add(a, c)  y = LayerNormalization<axis = -1, epsilon = 1e-12>(z, s, b) }}""",
    ),
    _fixed(
        "mean and inverse deviation are read",
        before=f"""{_HEAD} g (float[2,3,8] x, float[8] s) => (float[2,3,8] y, float[2,3,1] m, float[2,3,1] i) {{
            y, m, i = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, x, s) }}""",
        after=f"""{_HEAD} g (float[2,3,8] x, float[8] s) => (float[2,3,8] y, float[2,3,1] m, float[2,3,1] i)
            <float e = {{0.001}}> {{
            a = Add(x, x)  y = LayerNormalization<axis = -1, epsilon = 0.001>(a, s)
            m = ReduceMean<axes = [-1], keepdims = 1>(a)  d = Sub(a, m)  q = Mul(d, d)
            v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)  i = Reciprocal(r) }}""",
    ),
    _fixed(
        "opset 13 has no LayerNormalization",
        before=f"{_OLD} {_S} {{ {_SKIP}(x, k, s) }}",
        after=f"""{_OLD} {_S} <float e = {{0.001}}> {{ a = Add(x, k)  m = ReduceMean<axes = [-1], keepdims = 1>(a)
            d = Sub(a, m)  q = Mul(d, d)  v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)
            n = Div(d, r)  y = Mul(n, s) }}""",
    ),
    _fixed(
        "half precision: computed in float32, since squares overflow",
        before=f"{_OLD} {_S} {{ {_SKIP}(x, k, s) }}".replace("float[", "float16["),
        after=f"""{_OLD} {_S} <float e = {{0.001}}> {{ a = Add(x, k)  w = Cast<to = FLOAT>(a)
            m = ReduceMean<axes = [-1], keepdims = 1>(w)  d = Sub(w, m)  q = Mul(d, d)
            v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)  n = Div(d, r)
            f = Cast<to = FLOAT>(s)  o = Mul(n, f)  y = Cast<to = FLOAT16>(o) }}""".replace(
            "float[", "float16["
        ),
    ),
    _fixed(
        "without the mean, for a target without an importer",
        before=f"{_HEAD} {_S} {{ y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(x, k, s) }}",
        after=f"""{_HEAD} {_S} <float e = {{0.001}}> {{ a = Add(x, k)  q = Mul(a, a)
            v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)  n = Div(a, r)
            y = Mul(n, s) }}""",
        target="trt8.6",
    ),
    _fixed(
        "opset 23 has RMSNormalization; TensorRT-RTX does not import the second output",
        before=f"""{_NEW} g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] i) {{
            y, i = SimplifiedLayerNormalization<epsilon = 0.001>(x, s) }}""",
        after=f"""{_NEW} g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] i)
            <float e = {{0.001}}, int64[1] a = {{-1}}> {{
            y = RMSNormalization<axis = -1, epsilon = 0.001>(x, s)  q = Mul(x, x)
            v = ReduceMean<keepdims = 1>(q, a)  p = Add(v, e)  r = Sqrt(p)  i = Reciprocal(r) }}""",
        target="rtx",
    ),
    _fixed(
        "a second output, which TensorRT-RTX does not import",
        before=f"""{_HEAD} g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] i) {{
            y, i = SimplifiedLayerNormalization(x, s) }}""",
        after=f"""{_HEAD} g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] i)
            <float e = {{1e-5}}, float e2 = {{1e-5}}> {{
            q = Mul(x, x)  v = ReduceMean<axes = [-1], keepdims = 1>(q)  p = Add(v, e)  r = Sqrt(p)  n = Div(x, r)
            y = Mul(n, s)  q2 = Mul(x, x)  v2 = ReduceMean<axes = [-1], keepdims = 1>(q2)  p2 = Add(v2, e2)
            r2 = Sqrt(p2)  i = Reciprocal(r2) }}""",
        target="rtx",
    ),
    Flagged(
        "another axis than the last",
        f"""{_HEAD} g (float[2,3,8] x, float[3,8] s) => (float[2,3,8] y) {{
            y = SimplifiedLayerNormalization<axis = 1>(x, s) }}""",
        safety=Safety.NUMERIC,
        target="trt8.6",
    ),
    _flagged(
        "the mean, which this norm does not compute",
        f"""{_HEAD} g (float[2,3,8] x, float[8] s) => (float[2,3,8] y, float[2,3,1] m) {{
            y, m = com.microsoft.SkipSimplifiedLayerNormalization(x, x, s) }}""",
        target="trt8.6",
    ),
    _flagged(
        "statistics declared in half precision, which they never have",
        f"""{_HEAD} g (float16[2,8] x, float16[8] s) => (float16[2,8] y, float16[2,1] m) {{
            y, m = com.microsoft.SkipLayerNormalization(x, x, s) }}""",
    ),
    _flagged("bfloat16", f"{_HEAD} {_S} {{ {_SKIP}(x, k, s) }}".replace("float[", "bfloat16[")),
    Silent(
        "norms that TensorRT-RTX imports",
        f"""{_HEAD} {_S} {{ z = com.microsoft.SkipSimplifiedLayerNormalization(x, k, s)
            y = SimplifiedLayerNormalization(z, s) }}""",
        target="rtx",
    ),
    Silent("ONNX's norm", f"{_HEAD} {_S} {{ a = Add(x, k)  y = LayerNormalization<axis = -1>(a, s) }}"),
]


@rule(
    "OPS092",
    ops=["com.microsoft::EmbedLayerNormalization"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43],
)
def embedding_normalization(node: Node, model: Model) -> Iterator[Match]:
    """An EmbedLayerNormalization of ONNX Runtime: embeddings of words, positions and segments, and a norm of their sum.

    ## Why it matters
    `onnxruntime.transformers.optimizer` writes it into BERT and its relatives. TensorRT finds no importer: `Plugin not
    found, are the plugin name, version, and namespace correct?`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    A Gather for each table, Add, and the norm as in OPS091. Without position ids, the first rows of the position table
    are used. The lengths, where they are read, count the ones in the mask; the sum is computed where it is read.
    NUMERIC: ONNX Runtime sums in another order.

    No fix where the lengths are read and there is no mask, and where only one of segment ids and their table is given.
    Better: give TensorRT the model from before the optimizer.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.EmbedLayerNormalization
    """
    if node.function is not None or node.input(0) is None or node.output() is None:
        return
    yield Match(no_importer(node), node=node, fix=_embedded(node, model))


def _embedded(node: Node, model: Model) -> Fix | None:
    ids, segments, words, positions, table, scale, bias, mask, position_ids = (
        node.input(index) for index in range(9)
    )
    output, lengths, total = (node.output(index) for index in range(3))
    if ids is None or words is None or positions is None or scale is None or bias is None or output is None:
        return None
    if (segments is None) != (table is None) or (is_read(lengths) and mask is None):
        return None
    elem = known_float(node, words, positions, scale, bias, *([] if table is None else [table]))
    if any(
        model.shapes.elem_type(one) != TensorProto.INT32
        for one in (ids, segments, mask, position_ids)
        if one is not None
    ):
        return None
    epsilon = float(node.attr("epsilon", 1e-12))
    opset = node.scope.opset()
    if elem is None or not 0 < epsilon < math.inf or opset < 10 or not takes("ReduceMean", opset, elem):
        return None
    draft = Draft(node)
    draft.remove(node)
    word_embedding = draft.add("Gather", [words, ids], axis=0)
    position_embedding = (
        _first_positions(draft, positions, ids, model)
        if position_ids is None
        else draft.add("Gather", [positions, position_ids], axis=0)
    )
    own = total.name if total is not None and is_read(total) else ""
    last = draft.add("Add", [word_embedding, position_embedding], output=own if table is None else "")
    if table is not None:
        last = draft.add("Add", [last, draft.add("Gather", [table, segments], axis=0)], output=own)
    layer_normalization(draft, last, scale, bias, epsilon, elem, target_of(model), output.name)
    if lengths is not None and mask is not None and is_read(lengths):
        one = draft.constant(np.array(1, np.int32), "one")
        ones = draft.add("Cast", [draft.add("Equal", [mask, one])], to=TensorProto.INT32)
        draft.add("Identity", [draft.sum(ones, [1])], output=lengths.name)
    return Fix("decompose EmbedLayerNormalization", draft.edits, Safety.NUMERIC)


def _first_positions(draft: Draft, positions: Value, ids: Value, model: Model) -> str:
    """The first rows of the position table, as many as there are ids in a sequence."""
    shape = model.shapes.shape(ids)
    length = None if shape is None or len(shape) != 2 else shape[1].value
    start, axes = (draft.integers([0], hint) for hint in ("start", "axes"))
    if length is not None:
        return draft.add("Slice", [positions, start, draft.integers([length], "length"), axes])
    first, second = (draft.integers([at], "end") for at in (1, 2))
    count = draft.add("Slice", [draft.add("Shape", [ids]), first, second, axes])
    return draft.add("Slice", [positions, start, count, axes])


_TABLES = f"""<float[9,4] w = {{{",".join(map(str, range(36)))}}},
            float[3,4] p = {{1,3,2,4,3,1,2,4,4,2,1,3}}, float[2,4] e = {{1,2,3,4,4,3,1,2}},
            float[4] s = {{1,2,3,4}}, float[4] b = {{1,2,3,4}}"""
_CALL = "com.microsoft.EmbedLayerNormalization"
_NORM = "LayerNormalization<axis = -1, epsilon = 0.001>"
_not_run = partial(Fixed, runs=False, safety=Safety.NUMERIC)


embedding_normalization.examples = [
    _not_run(
        "word and position ids",
        before=f"""{_HEAD} g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) {_TABLES}> {{
            y = {_CALL}<epsilon = 0.001, mask_index_type = 0>(i, , w, p, , s, b, , o) }}""",
        after=f"""{_HEAD} g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) {_TABLES}> {{
            c = Gather<axis = 0>(w, i)  d = Gather<axis = 0>(p, o)  f = Add(c, d)  y = {_NORM}(f, s, b) }}""",
    ),
    _not_run(
        "word and segment ids, without position ids; the sum is read",
        before=f"""{_HEAD} g (int32[N,3] i, int32[N,3] t) => (float[N,3,4] y, float[N,3,4] z) {_TABLES}> {{
            y, , z = {_CALL}<epsilon = 0.001>(i, t, w, p, e, s, b) }}""",
        after=f"""{_HEAD} g (int32[N,3] i, int32[N,3] t) => (float[N,3,4] y, float[N,3,4] z) {_TABLES},
            int64[1] k = {{0}}, int64[1] l = {{3}}, int64[1] a = {{0}}> {{
            c = Gather<axis = 0>(w, i)  d = Slice(p, k, l, a)  f = Add(c, d)  g = Gather<axis = 0>(e, t)
            z = Add(f, g)  y = {_NORM}(z, s, b) }}""",
    ),
    Flagged(
        "without --numeric-fixes: reported only",
        f"""{_HEAD} g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) {_TABLES}> {{
            y = {_CALL}<epsilon = 0.001, mask_index_type = 0>(i, , w, p, , s, b, , o) }}""",
        runs=False,
    ),
    _flagged(
        "the lengths without a mask",
        f"""{_HEAD} g (int32[N,3] i) => (float[N,3,4] y, int32[N] m) {_TABLES}> {{
            y, m = {_CALL}(i, , w, p, , s, b) }}""",
    ),
    _flagged(
        "a segment table without ids",
        f"""{_HEAD} g (int32[N,3] i) => (float[N,3,4] y) {_TABLES}> {{
            y = {_CALL}<mask_index_type = 0>(i, , w, p, e, s, b) }}""",
    ),
    Silent(
        "the operators that it was fused from",
        f"""{_HEAD} g (int32[N,3] i) => (float[N,3,4] y) {_TABLES}> {{
            c = Gather(w, i)  d = Add(c, p)  y = {_NORM}(d, s, b) }}""",
    ),
]
