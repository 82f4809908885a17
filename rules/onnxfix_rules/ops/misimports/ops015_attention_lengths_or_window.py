"""OPS015: attention restricted by sequence lengths or a window."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    Dim,
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
    dtypes,
    rule,
    symbols,
)
from onnxfix_rules.ops.misimports import _seen as visible_keys
from onnxfix_rules.ops.misimports._seen import Seen


@rule("OPS015", ops=["Attention"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[6, 7])
def attention_lengths_or_window(node: Node, model: Model) -> Iterator[Match]:
    """An Attention with `nonpad_kv_seqlen`, `left_window_size` or `right_window_size`: TensorRT ignores them.

    ## Why it matters
    All keys are attended to, including padding and keys outside the window. It parses, and builds where the operator
    builds at all. Measured with TensorRT-RTX 1.7.1 by reading the imported network:

    - `nonpad_kv_seqlen` (opset 24) is unused (the log's only mention is `Unused Input: n`), and with `is_causal` the
      mask is `UPPER_LEFT`, where ONNX counts from the last key that is not padding.
    - the window sizes (opset 25): the attention has neither a mask nor a causal kind.

    A `right_window_size` beside `is_causal`, a window that includes every key, and lengths equal to the number of keys
    have no effect and are not reported.

    ## Fix
    Express the same by `attn_mask`, which TensorRT reads: the keys that each query may attend to, including causality
    (TensorRT supports no mask beside `is_causal`) and the existing mask. Exact for windows: ONNX adds 0 and -inf for
    each of these. Lengths require `--numeric-fixes`: ONNX's function body adds -inf for them too, but ONNX Runtime
    skips the padding, and so differs where padding holds infinities or NaN.

    For compute capability 8.9 an Attention with a mask builds in half precision and bfloat16 with heads of 64; in
    float32 and with heads of 4 or 8 it does not, though a three-dimensional one without restrictions builds there. A
    model that built but computed something else may therefore be rejected after the fix: it needs ONNX's function body.

    A query that may attend to no key gives 0 in ONNX; what TensorRT's kernels compute for such a mask row was not
    measured. No fix with a cache (`past_key`: TensorRT rejects it) or where the mask may be shorter than the keys by an
    unknown number.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Attention.html
    """
    found = _attention(node, model)
    if found is None or not found.limits:
        return
    what = " and ".join(found.limits)
    message = f"Attention with {what}, which TensorRT ignores: it attends to all keys"
    yield Match(message, node=node, fix=_fix(node, found, model))


def _attention(node: Node, model: Model) -> Seen | None:
    query, key = node.input(0), node.input(1)
    if node.opset < 24 or query is None or key is None:
        return None
    shapes = [model.shapes.shape(value) for value in (query, key)]
    axis = {3: 1, 4: 2}.get(len(shapes[0] or ()), 0)
    queries, keys = (s[axis] if axis and s is not None and len(s) == axis + 2 else None for s in shapes)
    lengths, causal = node.input(6), node.attr("is_causal", 0) == 1
    left, right = (
        node.attr(f"{side}_window_size", -1) if node.opset >= 25 else -1 for side in ("left", "right")
    )
    limits = []
    if lengths is not None and not _is_full(lengths, queries, keys, causal):
        limits.append("nonpad_kv_seqlen")
    plain = lengths is None and node.input(4) is None
    if left >= 0 and not (plain and queries is not None and symbols.less(queries, left + 2).yes):
        limits.append(f"left_window_size {left}")
    if right >= 0 and not causal and not (plain and keys is not None and symbols.less(keys, right + 2).yes):
        limits.append(f"right_window_size {right}")
    return Seen(queries, keys, axis, lengths, causal, left, right, tuple(limits))


def _is_full(lengths: Value, queries: Dim | None, keys: Dim | None, causal: bool) -> bool:
    """Whether no key is padding and causality begins where it does without lengths."""
    array = lengths.constant()
    if array is None or keys is None or queries is None or keys.value is None:
        return False
    return bool((array == keys.value).all()) and (not causal or queries is keys)


def _fix(node: Node, found: Seen, model: Model) -> Fix | None:
    mask, query, key = node.input(3), node.input(0), node.input(1)
    past = node.input(4) is not None or node.input(5) is not None
    if past or found.queries is None or found.keys is None or query is None or key is None:
        return None
    elem, shape = (None, None) if mask is None else (model.shapes.elem_type(mask), model.shapes.shape(mask))
    short = 0
    if mask is not None:
        missing = _missing(shape, found.keys)
        if elem is None or missing is None or not (elem == TensorProto.BOOL or dtypes.is_float(elem)):
            return None  # integers, which ONNX allows too, have no -inf
        short = missing
    draft = Draft(node)
    rows = None if shape is None or len(shape) < 2 else shape[-2]
    allowed = visible_keys.mask(draft, found, query, key, rows)
    if mask is not None and elem is not None and shape is not None:
        allowed = _joined(draft, mask, elem, allowed, [0] * (2 * len(shape) - 1) + [short])
    if found.lengths is not None:
        draft.set_input(node, 6, None)
    draft.set_input(node, 3, allowed)
    for name in ("is_causal", "left_window_size", "right_window_size"):
        if node.attribute(name) is not None:
            draft.set_attr(node, name, None)
    safety = Safety.EXACT if found.lengths is None else Safety.NUMERIC
    return Fix("express the restriction by attn_mask", draft.edits, safety)


def _missing(shape: tuple[Dim, ...] | None, keys: Dim) -> int | None:
    """How many keys the mask is short of at its end; None where unknown."""
    if not shape:
        return None
    if symbols.equal(shape[-1], keys).yes:
        return 0
    if shape[-1].value is None or keys.value is None or shape[-1].value > keys.value:
        return None
    return keys.value - shape[-1].value


def _joined(draft: Draft, mask: Value, elem: int, allowed: str, pads: list[int]) -> str:
    """The existing mask combined with the new one; keys beyond the existing mask are excluded."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    boolean = elem == TensorProto.BOOL
    excluded = (
        draft.constant(np.array(not boolean and -np.inf, dtype=dtype), "never")
        if any(pads) or not boolean
        else ""
    )
    given: Value | str = mask
    if any(pads):
        given = draft.add("Pad", [mask, draft.integers(pads, "pads"), excluded])
    if boolean:
        return draft.add("And", [given, allowed])
    zero = draft.constant(np.array(0, dtype=dtype), "score")
    return draft.add("Add", [given, draft.add("Where", [allowed, zero, excluded])])


_QKV = "float[2,2,2,8] q, float[2,2,3,8] k, float[2,2,3,8] v"
_OUT = "=> (float[2,2,2,8] y)"
_DYNAMIC = "float[B,2,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v"
_fixed = partial(Fixed, ir_version=10, opset=24, safety=Safety.NUMERIC)
_flagged = partial(Flagged, ir_version=10, opset=24)
_silent = partial(Silent, ir_version=10, opset=25)


attention_lengths_or_window.examples = [
    _fixed(
        "lengths: keys beyond them are padding",
        before=f"g ({_QKV}, int64[2] n) {_OUT} {{ y = Attention(q, k, v, , , , n) }}",
        after=f"""g ({_QKV}, int64[2] n) {_OUT}
            <int64[3] a = {{1, 2, 3}}, int64[3] j = {{0, 1, 2}}, bool[2,1] r = {{1, 1}}> {{
            m = Unsqueeze(n, a)  p = Less(j, m)  w = And(p, r)  y = Attention(q, k, v, w) }}""",
    ),
    _fixed(
        "lengths and causality",
        before=f"g ({_QKV}, int64[2] n) {_OUT} {{ y = Attention<is_causal = 1>(q, k, v, , , , n) }}",
        after=f"""g ({_QKV}, int64[2] n) {_OUT}
            <int64[3] a = {{1, 2, 3}}, int64[3] j = {{0, 1, 2}}, int64[2,1] i = {{-2, -1}}> {{
            m = Unsqueeze(n, a)  p = Add(m, i)  c = LessOrEqual(j, p)  y = Attention(q, k, v, c) }}""",
    ),
    _fixed(
        "lengths and a mask, in half precision",
        before="""g (float16[2,2,2,8] q, float16[2,2,3,8] k, float16[2,2,3,8] v, bool[2,3] b, int64[2] n)
            => (float16[2,2,2,8] y) { y = Attention<scale = 0.5>(q, k, v, b, , , n) }""",
        after="""g (float16[2,2,2,8] q, float16[2,2,3,8] k, float16[2,2,3,8] v, bool[2,3] b, int64[2] n)
            => (float16[2,2,2,8] y) <int64[3] a = {1, 2, 3}, int64[3] j = {0, 1, 2}> {
            m = Unsqueeze(n, a)  p = Less(j, m)  w = And(b, p)  y = Attention<scale = 0.5>(q, k, v, w) }""",
    ),
    _fixed(
        "lengths, and sequences of dynamic length",
        before=f"g ({_DYNAMIC}, int64[B] n) => (float[B,2,S,8] y) {{ y = Attention(q, k, v, , , , n) }}",
        after=f"""g ({_DYNAMIC}, int64[B] n) => (float[B,2,S,8] y)
            <int64[3] a = {{1, 2, 3}}, int64 o = {{0}}, int64 u = {{1}}, int64[1] b = {{1}}> {{
            t = Shape<start = 2, end = 3>(k)  t0 = Squeeze(t)  j = Range(o, t0, u)
            m = Unsqueeze(n, a)  p = Less(j, m)
            s = Shape<start = 2, end = 3>(q)  s0 = Squeeze(s)  r = Range(o, s0, u)  i = Unsqueeze(r, b)
            e = Equal(i, i)  w = And(p, e)  y = Attention(q, k, v, w) }}""",
    ),
    _fixed(
        "lengths and an additive mask",
        before=f"g ({_QKV}, float[2,1,2,3] b, int64[2] n) {_OUT} {{ y = Attention(q, k, v, b, , , n) }}",
        after=f"""g ({_QKV}, float[2,1,2,3] b, int64[2] n) {_OUT}
            <int64[3] a = {{1, 2, 3}}, int64[3] j = {{0, 1, 2}}, float o = {{0}}, float e = {{-inf}}> {{
            m = Unsqueeze(n, a)  p = Less(j, m)  s = Where(p, o, e)  w = Add(b, s)  y = Attention(q, k, v, w) }}""",
    ),
    Fixed(
        "a left window with static sizes: the mask is a constant",
        before=f"g ({_QKV}) {_OUT} {{ y = Attention<left_window_size = 0>(q, k, v) }}",
        after=f"""g ({_QKV}) {_OUT} <bool[2,3] m = {{1, 1, 1, 0, 1, 1}}> {{ y = Attention(q, k, v, m) }}""",
        opset=25,
        ir_version=10,
    ),
    Fixed(
        "a window on both sides, three-dimensional",
        before="""g (float[2,3,8] q, float[2,3,8] k, float[2,3,8] v) => (float[2,3,8] y) {
            y = Attention<q_num_heads = 2, kv_num_heads = 2, left_window_size = 1, right_window_size = 0>(q, k, v) }""",
        after="""g (float[2,3,8] q, float[2,3,8] k, float[2,3,8] v) => (float[2,3,8] y)
            <bool[3,3] m = {1, 0, 0, 1, 1, 0, 0, 1, 1}> {
            y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, m) }""",
        opset=25,
        ir_version=10,
    ),
    Fixed(
        "a causal window with dynamic sizes",
        before=f"""g ({_DYNAMIC}) => (float[B,2,S,8] y) {{
            y = Attention<is_causal = 1, left_window_size = 2>(q, k, v) }}""",
        after=f"""g ({_DYNAMIC}) => (float[B,2,S,8] y)
            <int64 o = {{0}}, int64 u = {{1}}, int64[1] a = {{1}}, int64 c = {{2}}> {{
            s = Shape<start = 2, end = 3>(q)  s0 = Squeeze(s)  r = Range(o, s0, u)  i = Unsqueeze(r, a)
            t = Shape<start = 2, end = 3>(k)  t0 = Squeeze(t)  j = Range(o, t0, u)
            d = LessOrEqual(j, i)  l = Sub(i, c)  e = GreaterOrEqual(j, l)  m = And(d, e)
            y = Attention(q, k, v, m) }}""",
        opset=25,
        ir_version=10,
    ),
    _flagged(
        "without --numeric-fixes: reported only",
        f"g ({_QKV}, int64[2] n) {_OUT} {{ y = Attention(q, k, v, , , , n) }}",
    ),
    _fixed(
        "lengths equal to the number of keys but longer than the queries: causality begins elsewhere",
        before=f"g ({_QKV}) {_OUT} <int64[2] n = {{3, 3}}> {{ y = Attention<is_causal = 1>(q, k, v, , , , n) }}",
        after=f"""g ({_QKV}) {_OUT}
            <int64[2] n = {{3, 3}}, int64[3] a = {{1, 2, 3}}, int64[3] j = {{0, 1, 2}}, int64[2,1] i = {{-2, -1}}> {{
            m = Unsqueeze(n, a)  p = Add(m, i)  c = LessOrEqual(j, p)  y = Attention(q, k, v, c) }}""",
    ),
    Flagged(
        "with a cache: TensorRT rejects it anyway",
        """g (float[1,1,2,8] q, float[1,1,2,8] k, float[1,1,2,8] v, float[1,1,3,8] pk, float[1,1,3,8] pv)
            => (float[1,1,2,8] y) { y = Attention<left_window_size = 1>(q, k, v, , pk, pv) }""",
        opset=25,
        ir_version=10,
    ),
    _fixed(
        "a mask shorter than the keys",
        before=f"g ({_QKV}, bool[2,2] b, int64[2] n) {_OUT} {{ y = Attention(q, k, v, b, , , n) }}",
        after=f"""g ({_QKV}, bool[2,2] b, int64[2] n) {_OUT}
            <int64[3] a = {{1, 2, 3}}, int64[3] j = {{0, 1, 2}}, int64[4] e = {{0, 0, 0, 1}}, bool f = {{0}}> {{
            m = Unsqueeze(n, a)  p = Less(j, m)  c = Pad(b, e, f)  w = And(c, p)  y = Attention(q, k, v, w) }}""",
    ),
    _flagged(
        "a mask that may be shorter than the keys",
        f"""g ({_DYNAMIC}, bool[S,M] b, int64[B] n) => (float[B,2,S,8] y) {{
            y = Attention(q, k, v, b, , , n) }}""",
        runs=False,
    ),
    _silent(
        "explicit -1: no window",
        f"g ({_QKV}) {_OUT} {{ y = Attention<left_window_size = -1, right_window_size = -1>(q, k, v) }}",
    ),
    _silent(
        "a window that includes every key",
        f"""g ({_QKV}) {_OUT} {{
            y = Attention<left_window_size = 1, right_window_size = 2>(q, k, v) }}""",
    ),
    _silent(
        "a right window that causality makes irrelevant",
        f"""g ({_DYNAMIC}) => (float[B,2,S,8] y) {{
            y = Attention<is_causal = 1, right_window_size = 0>(q, k, v) }}""",
    ),
    Silent(
        "lengths equal to the number of keys",
        f"g ({_QKV}) {_OUT} <int64[2] n = {{3, 3}}> {{ y = Attention(q, k, v, , , , n) }}",
        opset=24,
        ir_version=10,
    ),
    Silent(
        "a mask or causality alone",
        f"""g ({_QKV}, bool[2,3] b) {_OUT} {{
            h = Attention<is_causal = 1>(q, k, v)  y = Attention(h, k, v, b) }}""",
        opset=24,
        ir_version=10,
    ),
    _flagged(
        "an integer mask: no -inf",
        f"g ({_QKV}, int64[2] n, int32[2,3] m) {_OUT} {{ y = Attention(q, k, v, m, , , n) }}",
        runs=False,
    ),
]
