"""OPS086 and OPS104: masks and scales of attention."""

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
