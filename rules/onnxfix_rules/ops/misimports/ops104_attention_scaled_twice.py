"""OPS104: attention whose queries and keys are both scaled, as PyTorch exports it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
    target_of,
)


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
    if target.package != "tensorrt" or not (10,) <= target.oldest < (10, 14):
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
