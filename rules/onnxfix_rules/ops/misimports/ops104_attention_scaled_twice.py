"""OPS104: attention whose queries and keys are both scaled, as PyTorch exports it."""

from __future__ import annotations

from collections.abc import Iterator

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
    too large, 2.8-fold at a head size of 64. Measured with TensorRT 10.6.0 on an H200: the
    legacy exports of timm's deit_tiny, crossvit_tiny and pvt_v2_b0 are off by 0.01361, 0.01280 and 0.00334 of the
    largest logit, in float32, at any optimization level, strongly typed or not; ONNX Runtime on the same models with
    one factor dropped is off by 0.01361, 0.01280 and 0.00334. The dynamo exports, whose keys pass a Reshape after the
    Transpose, are right, and so is TensorRT-RTX 1.6.1. Reported for 10.7, and fixed in 10.8 (NVIDIA/TensorRT issue
    4333). The imported network is right: no check but `trt-gpu` sees it.

    ## Fix
    Multiply the queries by the product of both factors, and the keys by none. NUMERIC: equal up to rounding. Said to be
    right in that report and in issue 4328; not executed here.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues/4333, https://github.com/NVIDIA/TensorRT/issues/4328
    """
    target = target_of(model)
    if target.package != "tensorrt" or not (10,) <= target.oldest < (10, 14):
        return
    query, key = node.require(0), node.require(1)
    sides = [_scaled(query, model), _scaled(key, model)]
    if sides[0] is None or sides[1] is None or not _feeds_softmax(node):
        return
    (queries, first), (keys, second) = sides
    if not _swaps_last_two(keys.producer):
        return
    fix = None
    rank = model.shapes.rank(queries)
    if rank is not None and max(model.shapes.rank(one) or 0 for one in (first, second)) <= rank:
        draft = Draft(node)
        scaled = draft.add("Mul", [queries, draft.add("Mul", [first, second], hint="scale")], hint="scaled")
        draft.set_input(node, 0, scaled)
        draft.set_input(node, 1, keys)
        what = "scale the queries alone, by the product of both factors"
        fix = Fix(what, draft.edits, Safety.NUMERIC)
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


def _swaps_last_two(node: Node | None) -> bool:
    is_transpose = node is not None and node.is_onnx and node.op_type == "Transpose"
    perm = node.attr("perm", None) if node is not None and is_transpose else None
    rank = len(perm) if perm else 0
    return rank > 1 and list(perm or ())[-2:] == [rank - 1, rank - 2]


def _feeds_softmax(node: Node) -> bool:
    """Whether a Softmax reads the product, or the product with a mask added."""
    readers = [use.node for value in node.outputs if value is not None for use in value.uses]
    for one in readers:
        if one.is_onnx and one.op_type == "Add":
            readers.extend(use.node for value in one.outputs if value is not None for use in value.uses)
    return any(one.is_onnx and one.op_type == "Softmax" for one in readers)


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
    Silent(
        "TensorRT 11",
        f"{_HEAD} <{_SCALE}> {{ {_SCORES}  y = Softmax<axis = -1>(m) }}",
    ),
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
