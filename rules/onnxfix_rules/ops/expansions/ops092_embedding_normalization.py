"""OPS092: ONNX Runtime's EmbedLayerNormalization."""

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
from onnxfix_rules.ops._runtimes import origin
from onnxfix_rules.ops.expansions._formulas import known_float, layer_normalization


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
    yield Match(
        f"{target_of(model).title} has no importer for {node.domain}.{node.op_type}; {origin(node)}",
        node=node,
        fix=_fix(node, model),
    )


def _fix(node: Node, model: Model) -> Fix | None:
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
    start, axes = (draft.constant(np.array([0], np.int64), hint) for hint in ("start", "axes"))
    if length is not None:
        return draft.add(
            "Slice", [positions, start, draft.constant(np.array([length], np.int64), "length"), axes]
        )
    first, second = (draft.constant(np.array([at], np.int64), "end") for at in (1, 2))
    count = draft.add("Slice", [draft.add("Shape", [ids]), first, second, axes])
    return draft.add("Slice", [positions, start, count, axes])


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_TABLES = f"""<float[9,4] w = {{{",".join(map(str, range(36)))}}},
            float[3,4] p = {{1,3,2,4,3,1,2,4,4,2,1,3}}, float[2,4] e = {{1,2,3,4,4,3,1,2}},
            float[4] s = {{1,2,3,4}}, float[4] b = {{1,2,3,4}}"""
_CALL = "com.microsoft.EmbedLayerNormalization"
_NORM = "LayerNormalization<axis = -1, epsilon = 0.001>"
_fixed = partial(Fixed, runs=False, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)


embedding_normalization.examples = [
    _fixed(
        "word and position ids",
        before=f"""{_HEAD} g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) {_TABLES}> {{
            y = {_CALL}<epsilon = 0.001, mask_index_type = 0>(i, , w, p, , s, b, , o) }}""",
        after=f"""{_HEAD} g (int32[N,3] i, int32[N,3] o) => (float[N,3,4] y) {_TABLES}> {{
            c = Gather<axis = 0>(w, i)  d = Gather<axis = 0>(p, o)  f = Add(c, d)  y = {_NORM}(f, s, b) }}""",
    ),
    _fixed(
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
