"""OPS086: attention with a mask that is shorter than the keys."""

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
        "three-dimensional, in a branch",
        before="""g (float[2,2,8] q, float[2,3,8] k, float[2,3,8] v, bool[2,2] m, bool c) => (float[2,2,8] y) {
            y = If(c)<then_branch = p () => (float[2,2,8] u) {
                          u = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, m) },
                      else_branch = r () => (float[2,2,8] o) { o = Neg(q) }> }""",
        after="""g (float[2,2,8] q, float[2,3,8] k, float[2,3,8] v, bool[2,2] m, bool c) => (float[2,2,8] y) {
            y = If(c)<then_branch = p () => (float[2,2,8] u) <int64[4] e = {0, 0, 0, 1}, bool f = {0}> {
                          w = Pad(m, e, f)  u = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, w) },
                      else_branch = r () => (float[2,2,8] o) { o = Neg(q) }> }""",
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
