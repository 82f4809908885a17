"""Masks, scales, lengths and windows of attention (OPS015, OPS086, OPS104)."""
# Long because: three rules, with an example of each form of a mask.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
    target_of,
)
from onnxfix_rules.ops.misimports import _seen as visible_keys
from onnxfix_rules.ops.misimports._seen import Seen


@rule("OPS086", ops=["Attention"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[28])
def mask_shorter_than_keys(node: Node, model: Model) -> Iterator[Match]:
    """An Attention whose mask has fewer columns than there are keys: TensorRT does not pad it.

    ## Why it matters
    Since opset 24 keys beyond the mask are excluded: ONNX pads it with -inf. Measured with TensorRT-RTX 1.7.1 by
    reading the imported network:

    - **one column**: TensorRT broadcasts it to every key, where ONNX attends to the first key alone. It parses, and
      builds where the operator builds at all (half precision, heads of 64).
    - **more, with static sizes**: rejected (`Received mask with shape [1,1,2,2]`).
    - **more, with dynamic sizes**: it builds, and the mask is used unchanged, which does not match the scores at run
      time.

    Information where nothing relates the lengths of the mask and the keys: a mask of the same length is correct. ONNX
    Runtime 1.31 rejects shorter masks.

    ## Fix
    Pad the mask with -inf, or with False, to the number of keys. Exact: it is what ONNX defines, and what its function
    body for the operator does. No fix where the number of missing columns is unknown, and where `nonpad_kv_seqlen` or a
    window requires another mask anyway (OPS015).

    A query that may attend to no key gives 0 in ONNX; what TensorRT's kernels compute for such a mask row was not
    measured.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Attention.html: "The last dimension can also be shorter than
      `total_sequence_length` and will be padded to `total_sequence_length` with negative infinity."
    """
    found = _lengths(node, model)
    if found is None:
        return
    less = symbols.less(found.columns, found.keys)
    if less.no:
        return
    shorter = less.yes
    missing = (found.keys - found.columns).value
    yield Match(
        f"Attention with a mask for {found.columns} of {found.keys} keys: TensorRT does not pad it with -inf"
        if shorter
        else f"Attention with a mask for {found.columns} keys, of which there are {found.keys}: TensorRT does not "
        "pad a shorter mask",
        node=node,
        severity=Severity.ERROR if shorter else Severity.INFO,
        fix=_fix(node, found, missing) if shorter and missing is not None else None,
        reads=(found.mask,),
    )


@dataclass(frozen=True)
class _Lengths:
    """A mask of known rank and element type, the number of its columns, and the number of keys."""

    mask: Value
    rank: int
    elem: int
    columns: Dim
    keys: Dim


def _lengths(node: Node, model: Model) -> _Lengths | None:
    mask, key = node.input(3), node.input(1)
    if node.opset < 24 or mask is None or key is None or any(node.input(index) for index in (4, 5, 6)):
        return None
    if node.opset >= 25 and any(node.attr(f"{side}_window_size", -1) >= 0 for side in ("left", "right")):
        return None
    shape, keys, elem = model.shapes.shape(mask), model.shapes.shape(key), model.shapes.elem_type(mask)
    if not shape or keys is None or len(keys) not in (3, 4) or elem is None:
        return None
    return _Lengths(mask, len(shape), elem, shape[-1], keys[-2])


def _fix(node: Node, found: _Lengths, missing: int) -> Fix | None:
    if found.elem != TensorProto.BOOL and not dtypes.is_float(found.elem):
        return None  # integers, which ONNX allows too, have no -inf
    draft = Draft(node)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(found.elem))
    excluded = np.array(False if found.elem == TensorProto.BOOL else -np.inf, dtype=dtype)
    pads = np.array([0] * (2 * found.rank - 1) + [missing], dtype=np.int64)
    padded = draft.add("Pad", [found.mask, draft.constant(pads, "pads"), draft.constant(excluded, "never")])
    draft.set_input(node, 3, padded)
    return Fix("pad the mask to the last key", draft.edits)


_KEYS = "float[2,2,2,8] q, float[2,2,3,8] k, float[2,2,3,8] v"
_OUT = "=> (float[2,2,2,8] y)"
_LONG = "float16[B,2,S,64] q, float16[B,2,T,64] k, float16[B,2,T,64] v"
_WIDE = "=> (float16[B,2,S,64] y)"
_CALL = "y = Attention(q, k, v, m)"
_fixed = partial(Fixed, ir_version=10, opset=24)
_flagged = partial(Flagged, ir_version=10, opset=24, runs=False)
_silent = partial(Silent, ir_version=10, opset=24)


mask_shorter_than_keys.examples = [
    _fixed(
        "a boolean mask",
        before=f"g ({_KEYS}, bool[2,2] m) {_OUT} {{ {_CALL} }}",
        after=f"""g ({_KEYS}, bool[2,2] m) {_OUT} <int64[4] e = {{0, 0, 0, 1}}, bool f = {{0}}> {{
            w = Pad(m, e, f)  y = Attention(q, k, v, w) }}""",
    ),
    _fixed(
        "a four-dimensional additive mask",
        before=f"g ({_KEYS}, float[2,1,2,2] m) {_OUT} {{ {_CALL} }}",
        after=f"""g ({_KEYS}, float[2,1,2,2] m) {_OUT} <int64[8] e = {{0,0,0,0,0,0,0,1}}, float f = {{-inf}}> {{
            w = Pad(m, e, f)  y = Attention(q, k, v, w) }}""",
    ),
    _fixed(
        "a mask of one key, which TensorRT broadcasts to all keys",
        before=f"g ({_KEYS}, float[2,1] m) {_OUT} {{ {_CALL} }}",
        after=f"""g ({_KEYS}, float[2,1] m) {_OUT} <int64[4] e = {{0, 0, 0, 2}}, float f = {{-inf}}> {{
            w = Pad(m, e, f)  y = Attention(q, k, v, w) }}""",
    ),
    _fixed(
        "a key prepended to a dynamic number of keys",
        before=f"""g ({_LONG}, float16[B,2,1,64] a, float16[B,2,1,64] b, bool[S,T] m) {_WIDE} {{
            c = Concat<axis = 2>(a, k)  d = Concat<axis = 2>(b, v)  y = Attention(q, c, d, m) }}""",
        after=f"""g ({_LONG}, float16[B,2,1,64] a, float16[B,2,1,64] b, bool[S,T] m) {_WIDE}
            <int64[4] e = {{0, 0, 0, 1}}, bool f = {{0}}> {{
            c = Concat<axis = 2>(a, k)  d = Concat<axis = 2>(b, v)
            w = Pad(m, e, f)  y = Attention(q, c, d, w) }}""",
    ),
    _fixed(
        "three-dimensional",
        before="""g (float[2,2,8] q, float[2,3,8] k, float[2,3,8] v, bool[2,2] m) => (float[2,2,8] y) {
            y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, m) }""",
        after="""g (float[2,2,8] q, float[2,3,8] k, float[2,3,8] v, bool[2,2] m) => (float[2,2,8] y)
            <int64[4] e = {0, 0, 0, 1}, bool f = {0}> {
            w = Pad(m, e, f)  y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, w) }""",
    ),
    Fixed(
        "a one-dimensional mask, in opset 25",
        before=f"g ({_KEYS}, bool[2] m) {_OUT} {{ {_CALL} }}",
        after=f"""g ({_KEYS}, bool[2] m) {_OUT} <int64[2] e = {{0, 1}}, bool f = {{0}}> {{
            w = Pad(m, e, f)  y = Attention(q, k, v, w) }}""",
        opset=25,
        ir_version=10,
    ),
    Flagged(
        "shorter by an unknown number",
        f"""g ({_LONG}, float16[B,2,R,64] a, float16[B,2,R,64] b, float16[B,2,1,64] h, float16[S,T] m) {_WIDE} {{
            c = Concat<axis = 2>(a, h, k)  d = Concat<axis = 2>(b, h, v)  y = Attention(q, c, d, m) }}""",
        opset=24,
        ir_version=10,
    ),
    _flagged(
        "dimensions with different names: information", f"g ({_LONG}, float16[S,M] m) {_WIDE} {{ {_CALL} }}"
    ),
    _flagged(
        "a mask of two keys where there may be more: information",
        f"g ({_LONG}, bool[S,2] m) {_WIDE} {{ {_CALL} }}",
    ),
    _silent("as long as the keys, by name", f"g ({_LONG}, bool[B,1,S,T] m) {_WIDE} {{ {_CALL} }}"),
    _silent("as long as the keys, by static size", f"g ({_KEYS}, float[2,3] m) {_OUT} {{ {_CALL} }}"),
    _silent(
        "a single key",
        """g (float[2,2,2,8] q, float[2,2,1,8] k, float[2,2,1,8] v, bool[2,1] m) => (float[2,2,2,8] y) {
            y = Attention(q, k, v, m) }""",
    ),
    Silent(
        "opset 23 does not allow it: a mask of one key is broadcast",
        f"g ({_KEYS}, float[2,1] m) {_OUT} {{ {_CALL} }}",
        opset=23,
        ir_version=10,
        runs=False,
    ),
    Silent("no mask", f"g ({_KEYS}) {_OUT} {{ y = Attention(q, k, v) }}", opset=24, ir_version=10),
    Silent(
        "in a local function, where the number of keys is unknown",
        f"""<ir_version: 10, opset_import: ["" : 24, "my" : 1]>
            g ({_KEYS}, bool[2,2] m) {_OUT} {{ y = my.F(q, k, v, m) }}
            <domain: "my", opset_import: ["" : 24]> F (q, k, v, m) => (y) {{ {_CALL} }}""",
    ),
    _silent(
        "lengths, where OPS015 replaces the whole mask",
        f"g ({_KEYS}, bool[2,2] m, int64[2] n) {_OUT} {{ y = Attention(q, k, v, m, , , n) }}",
    ),
    Silent(
        "a window, where OPS015 replaces the whole mask",
        f"g ({_KEYS}, bool[2,2] m) {_OUT} {{ y = Attention<left_window_size = 0>(q, k, v, m) }}",
        opset=25,
        ir_version=10,
    ),
    _silent(
        "a cache, which TensorRT rejects",
        """g (float[1,1,2,8] q, float[1,1,2,8] k, float[1,1,2,8] v, bool[2,1] m, float[1,1,3,8] a,
            float[1,1,3,8] b) => (float[1,1,2,8] y) { y = Attention(q, k, v, m, a, b) }""",
    ),
    _flagged("an integer mask: no -inf", f"g ({_KEYS}, int32[2,2] m) {_OUT} {{ {_CALL} }}"),
]


@rule("OPS104", ops=["MatMul"], safety=Safety.NUMERIC, severity=Severity.ERROR)
def attention_scaled_twice(node: Node, model: Model) -> Iterator[Match]:
    """Queries and transposed keys that are both scaled before they are multiplied: TensorRT 10.6 drops one factor.

    ## Why it matters
    PyTorch's legacy exporter writes `scaled_dot_product_attention` so: queries and keys are each multiplied by the root
    of the scale. The engine of TensorRT 10.6.0 multiplies only one of them, without a warning, so that all scores are
    too large, 2.8-fold at a head size of 64. Measured with TensorRT 10.6.0 on an H200: the legacy exports of timm's
    deit_tiny, crossvit_tiny and pvt_v2_b0 are off by 0.01361, 0.01280 and 0.00334 of the largest logit, in float32,
    strongly typed or not (deit_tiny at optimization levels 0, 1 and 3); ONNX Runtime on the same models with one factor
    dropped is off by 0.01361, 0.01280 and 0.00334. The dynamo exports, whose keys pass a Reshape after the Transpose,
    are right, and so is TensorRT-RTX 1.6.1. Reported for 10.7, and fixed in 10.8 (NVIDIA/TensorRT issues 4333 and
    4328). The imported network is right: no check but `trt-gpu` sees it. It is not the pattern alone: in seven
    small models with nothing but an attention (factors alike or not, a mask, one or two Transposes, fused or not)
    10.6.0 multiplies both.

    ## Fix
    Multiply the queries by the product of both factors, and the keys by none. NUMERIC: equal up to rounding. Executed
    on 10.6.0: with it the engine of deit_tiny is right. No fix before opset 7, for queries of unknown rank, and where
    the product of the factors is 0 or not finite in their type.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues/4333, https://github.com/NVIDIA/TensorRT/issues/4328
    """
    target = target_of(model)
    if target.package != "tensorrt" or not (10,) <= target.oldest < (10, 8):
        return
    query, key = node.require(0), node.require(1)
    queries, keys = _scaled(query, model), _scaled(key, model)
    if queries is None or keys is None or not _is_transposed(keys[0]) or not _feeds_softmax(node):
        return
    fix = None
    rank, factors = model.shapes.rank(queries[0]), (queries[1], keys[1])
    if rank is not None and max(model.shapes.rank(one) or 0 for one in factors) <= rank and node.opset >= 7:
        draft = Draft(node)
        scale = draft.add("Mul", factors, hint="scale")
        draft.set_input(node, 0, draft.add("Mul", [queries[0], scale], hint="scaled"))
        draft.set_input(node, 1, keys[0])
        what = "scale the queries alone, by the product of both factors"
        fix = None if _vanishes(*factors) else Fix(what, draft.edits, Safety.NUMERIC)
    yield Match(
        f"queries and transposed keys are both scaled: {target.title} may drop one of the factors (10.6 and 10.7 do)",
        node=node,
        fix=fix,
        reads=(query, key),
    )


def _scaled(value: Value, model: Model) -> tuple[Value, Value] | None:
    """What a Mul scales, and by what single number; None where it is no such Mul."""
    node = value.producer
    if node is None or not (node.is_onnx and node.op_type == "Mul"):
        return None
    sides = node.require(0), node.require(1)
    for data, factor in (sides, sides[::-1]):
        shape = model.shapes.static_shape(factor)
        if (
            shape is not None
            and all(size == 1 for size in shape)
            and model.shapes.static_shape(data) != shape
        ):
            return data, factor
    return None


def _is_transposed(keys: Value) -> bool:
    """Whether a Transpose moves the keys' last axis; an exporter may have fused two of them."""
    node = keys.producer
    if node is None or not (node.is_onnx and node.op_type == "Transpose"):
        return False
    perm = node.attr("perm", None)
    return perm is None or list(perm)[-1:] != [len(perm) - 1]


def _vanishes(first: Value, second: Value) -> bool:
    """Whether the product of two constants is 0 or not finite in their type."""
    arrays = first.constant(), second.constant()
    if arrays[0] is None or arrays[1] is None:
        return False
    with np.errstate(all="ignore"):
        product = np.asarray(arrays[0] * arrays[1], np.float64)
    return not np.isfinite(product).all() or not product.all()


def _feeds_softmax(node: Node) -> bool:
    """Whether a Softmax reads the product, or the product with one mask or another added."""
    waiting, seen = [node], set[int]()
    while waiting:
        for use in (use for value in waiting.pop().outputs if value is not None for use in value.uses):
            if use.node.is_onnx and use.node.op_type == "Softmax":
                return True
            if use.node.is_onnx and use.node.op_type == "Add" and id(use.node) not in seen:
                seen.add(id(use.node))
                waiting.append(use.node)
    return False


_HEAD = "g (float[N,3,5,4] q, float[N,3,5,4] k) => (float[N,3,5,5] y)"
_SCALE = "float s = {0.70710677}"
_SCORES = "a = Mul(q, s)  t = Transpose<perm = [0, 1, 3, 2]>(k)  b = Mul(t, s)  m = MatMul(a, b)"
_ONCE = "t = Transpose<perm = [0, 1, 3, 2]>(k)  c = Mul(s, s)  a = Mul(q, c)  m = MatMul(a, t)"

attention_scaled_twice.examples = [
    Fixed(
        "as PyTorch's legacy exporter writes it",
        before=f"{_HEAD} <{_SCALE}> {{ {_SCORES}  y = Softmax<axis = -1>(m) }}",
        after=f"{_HEAD} <{_SCALE}> {{ {_ONCE}  y = Softmax<axis = -1>(m) }}",
        safety=Safety.NUMERIC,
        target="trt10.6",
    ),
    Fixed(
        "with a mask; the factor comes first and is of rank 4",
        before=f"""{_HEAD} <float[1,1,1,1] s = {{0.70710677}}, float[1,1,5,5] z = {{
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}> {{
            a = Mul(s, q)  t = Transpose<perm = [0, 1, 3, 2]>(k)  b = Mul(s, t)  m = MatMul(a, b)
            n = Add(m, z)  y = Softmax<axis = -1>(n) }}""",
        after=f"""{_HEAD} <float[1,1,1,1] s = {{0.70710677}}, float[1,1,5,5] z = {{
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}> {{
            t = Transpose<perm = [0, 1, 3, 2]>(k)  c = Mul(s, s)  a = Mul(q, c)  m = MatMul(a, t)
            n = Add(m, z)  y = Softmax<axis = -1>(n) }}""",
        safety=Safety.NUMERIC,
        target="trt10.6",
    ),
    Flagged(
        "queries of unknown rank: the factor might have more dimensions",
        f"""g (float[N,3,5,4] k, float[2] q, int64[r] to) => (float[N,3,5,5] y) <{_SCALE}> {{
            w = Reshape(q, to)  a = Mul(w, s)  t = Transpose<perm = [0, 1, 3, 2]>(k)  b = Mul(t, s)
            m = MatMul(a, b)  y = Softmax<axis = -1>(m) }}""",
        target="trt10.6",
    ),
    Silent("TensorRT 11", f"{_HEAD} <{_SCALE}> {{ {_SCORES}  y = Softmax<axis = -1>(m) }}"),
    Silent("no softmax", f"{_HEAD} <{_SCALE}> {{ {_SCORES}  y = Relu(m) }}", target="trt10.6"),
    Silent(
        "keys that pass a Reshape after the Transpose, as the dynamo exporter writes it",
        f"""{_HEAD} <{_SCALE}, int64[3] flat = {{-1, 5, 4}}, int64[4] heads = {{-1, 3, 4, 5}}> {{
            a = Mul(q, s)  f = Reshape(k, flat)  t = Transpose<perm = [0, 2, 1]>(f)  r = Reshape(t, heads)
            b = Mul(r, s)  m = MatMul(a, b)  y = Softmax<axis = -1>(m) }}""",
        target="trt10.6",
    ),
    Silent(
        "the keys are not scaled",
        f"""{_HEAD} <{_SCALE}> {{ a = Mul(q, s)  t = Transpose<perm = [0, 1, 3, 2]>(k)  m = MatMul(a, t)
            y = Softmax<axis = -1>(m) }}""",
        target="trt10.6",
    ),
]


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
    yield Match(message, node=node, fix=_restriction(node, found, model))


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


def _restriction(node: Node, found: Seen, model: Model) -> Fix | None:
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
_DYNAMIC = "float[B,2,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v"
_restricted = partial(Fixed, ir_version=10, opset=24, safety=Safety.NUMERIC)
_unrestricted = partial(Flagged, ir_version=10, opset=24)
_unlimited = partial(Silent, ir_version=10, opset=25)


attention_lengths_or_window.examples = [
    _restricted(
        "lengths: keys beyond them are padding",
        before=f"g ({_QKV}, int64[2] n) {_OUT} {{ y = Attention(q, k, v, , , , n) }}",
        after=f"""g ({_QKV}, int64[2] n) {_OUT}
            <int64[3] a = {{1, 2, 3}}, int64[3] j = {{0, 1, 2}}, bool[2,1] r = {{1, 1}}> {{
            m = Unsqueeze(n, a)  p = Less(j, m)  w = And(p, r)  y = Attention(q, k, v, w) }}""",
    ),
    _restricted(
        "lengths and causality",
        before=f"g ({_QKV}, int64[2] n) {_OUT} {{ y = Attention<is_causal = 1>(q, k, v, , , , n) }}",
        after=f"""g ({_QKV}, int64[2] n) {_OUT}
            <int64[3] a = {{1, 2, 3}}, int64[3] j = {{0, 1, 2}}, int64[2,1] i = {{-2, -1}}> {{
            m = Unsqueeze(n, a)  p = Add(m, i)  c = LessOrEqual(j, p)  y = Attention(q, k, v, c) }}""",
    ),
    _restricted(
        "lengths and a mask, in half precision",
        before="""g (float16[2,2,2,8] q, float16[2,2,3,8] k, float16[2,2,3,8] v, bool[2,3] b, int64[2] n)
            => (float16[2,2,2,8] y) { y = Attention<scale = 0.5>(q, k, v, b, , , n) }""",
        after="""g (float16[2,2,2,8] q, float16[2,2,3,8] k, float16[2,2,3,8] v, bool[2,3] b, int64[2] n)
            => (float16[2,2,2,8] y) <int64[3] a = {1, 2, 3}, int64[3] j = {0, 1, 2}> {
            m = Unsqueeze(n, a)  p = Less(j, m)  w = And(b, p)  y = Attention<scale = 0.5>(q, k, v, w) }""",
    ),
    _restricted(
        "lengths, and sequences of dynamic length",
        before=f"g ({_DYNAMIC}, int64[B] n) => (float[B,2,S,8] y) {{ y = Attention(q, k, v, , , , n) }}",
        after=f"""g ({_DYNAMIC}, int64[B] n) => (float[B,2,S,8] y)
            <int64[3] a = {{1, 2, 3}}, int64 o = {{0}}, int64 u = {{1}}, int64[1] b = {{1}}> {{
            t = Shape<start = 2, end = 3>(k)  t0 = Squeeze(t)  j = Range(o, t0, u)
            m = Unsqueeze(n, a)  p = Less(j, m)
            s = Shape<start = 2, end = 3>(q)  s0 = Squeeze(s)  r = Range(o, s0, u)  i = Unsqueeze(r, b)
            e = Equal(i, i)  w = And(p, e)  y = Attention(q, k, v, w) }}""",
    ),
    _restricted(
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
    _unrestricted(
        "without --numeric-fixes: reported only",
        f"g ({_QKV}, int64[2] n) {_OUT} {{ y = Attention(q, k, v, , , , n) }}",
    ),
    _restricted(
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
    _restricted(
        "a mask shorter than the keys",
        before=f"g ({_QKV}, bool[2,2] b, int64[2] n) {_OUT} {{ y = Attention(q, k, v, b, , , n) }}",
        after=f"""g ({_QKV}, bool[2,2] b, int64[2] n) {_OUT}
            <int64[3] a = {{1, 2, 3}}, int64[3] j = {{0, 1, 2}}, int64[4] e = {{0, 0, 0, 1}}, bool f = {{0}}> {{
            m = Unsqueeze(n, a)  p = Less(j, m)  c = Pad(b, e, f)  w = And(c, p)  y = Attention(q, k, v, w) }}""",
    ),
    _unrestricted(
        "a mask that may be shorter than the keys",
        f"""g ({_DYNAMIC}, bool[S,M] b, int64[B] n) => (float[B,2,S,8] y) {{
            y = Attention(q, k, v, b, , , n) }}""",
        runs=False,
    ),
    _unlimited(
        "explicit -1: no window",
        f"g ({_QKV}) {_OUT} {{ y = Attention<left_window_size = -1, right_window_size = -1>(q, k, v) }}",
    ),
    _unlimited(
        "a window that includes every key",
        f"""g ({_QKV}) {_OUT} {{
            y = Attention<left_window_size = 1, right_window_size = 2>(q, k, v) }}""",
    ),
    _unlimited(
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
    _unrestricted(
        "an integer mask: no -inf",
        f"g ({_QKV}, int64[2] n, int32[2,3] m) {_OUT} {{ y = Attention(q, k, v, m, , , n) }}",
        runs=False,
    ),
]
