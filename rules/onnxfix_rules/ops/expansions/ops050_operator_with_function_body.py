"""OPS050: operators that the target rejects and that ONNX defines by other operators."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from onnx import NodeProto

from onnxfix.rule import (
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Operator,
    Safety,
    Severity,
    Silent,
    Target,
    UnknownAttribute,
    imported,
    is_read,
    rule,
    symbols,
    target_of,
)
from onnxfix.targets.documented import names
from onnxfix_rules.ops._nested import flat
from onnxfix_rules.ops.expansions._refused import data_of, reason

if TYPE_CHECKING:
    from onnxfix_rules.ops.expansions._bodies import Body

FUNCTIONS = names(
    "AffineGrid Attention BlackmanWindow CastLike CausalConvWithState Celu CenterCropPad Clip DepthToSpace "
    "DynamicQuantizeLinear Elu Gelu GreaterOrEqual GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish "
    "LayerNormalization LeakyRelu LessOrEqual LinearAttention LogSoftmax MeanVarianceNormalization Mish "
    "NegativeLogLikelihoodLoss PRelu RMSNormalization Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceSumSquare Relu RotaryEmbedding Selu Shrink Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth "
    "SwiGLU Swish ThresholdedRelu ai.onnx.preview::FlexAttention"
)
"""ONNX's operators with a function body, except SequenceMap (TensorRT has no sequences) and Bernoulli (random)."""


@rule(
    "OPS050",
    per="model",
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[43, 52, 69],
    alike=["INT006", "OPS021"],
)
def operator_with_function_body(model: Model) -> Iterator[Match]:
    """An operator that the target rejects in this form, and that ONNX defines by operators that the target supports.

    ## Why it matters
    TensorRT has no importer for many of ONNX's newer operators, and supports others only in part. ONNX defines most of
    them by a function body: a few operators that TensorRT has long supported. Rejected, measured with TensorRT-RTX
    1.7.1:

    - no importer (`UNSUPPORTED_NODE`, `Plugin not found, are the plugin name, version, and namespace correct?`):
      NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss, CenterCropPad, AffineGrid, SwiGLU, FlexAttention; imported as
      a plugin that does not exist: CausalConvWithState, LinearAttention.
    - LayerNormalization whose mean or deviation is read (`This version of TensorRT doesn't support mode than 1 outputs
      for LayerNormalization nodes!`).
    - Attention with a cache (`Setting past_key for the Attention node is not supported`), a softcap, softmax_precision,
      a mask beside is_causal, more than one output, or values of another size than the keys. TensorRT-RTX parses other
      attention and builds it outside of If, Loop and Scan only, in half precision and bfloat16 with heads of 9 to 256
      (`decompose`, in Myelin's words, for others), or with three static dimensions, without mask and causality.
    - types: Celu in half precision, Mish and HardSwish in bfloat16, PRelu of int32, DepthToSpace of bool, ...

    A target's list of operators gives the same for older ones, such as LayerNormalization for TensorRT 8.4. Silent
    where the list says nothing, and where the target would reject the body.

    ## Fix
    The body replaces the operator, with its attributes and their defaults substituted; bodies inside it follow in the
    next round. Of ONNX's 1,884 node models 246 build only with this fix, each with the outputs that ONNX expects. Exact
    where the body only moves data and computes with integers (CenterCropPad, DepthToSpace, a loss without reduction and
    weights); otherwise within tolerance, by `--numeric-fixes`: sums are computed in another order. A fused operator
    becomes a dozen layers (attention: 100).

    Three bodies are not ONNX's own. LayerNormalization stays, and mean and deviation are computed separately;
    SoftmaxCrossEntropyLoss from opset 13 is LogSoftmax and NegativeLogLikelihoodLoss, since ONNX's reshapes fail on
    empty tensors; ONNX's AffineGrid body has an If by the number of dimensions, which is known. LinearAttention's is a
    Scan, which TensorRT supports for any number of steps; where there may be none, the fix is unsafe. No fix where the
    semantics of a body's operator changed between the body's opset and the model's, and for nodes in local functions.

    A grid with aligned corners has no step along an axis of size 1. ONNX's body divides by zero there, except for the
    depth, which it puts at -1; ONNX's reference puts all of them at -1, ONNX Runtime and PyTorch at 0. The fix uses -1,
    and where a size is 1 or may be, it is unsafe.

    ## References
    - https://github.com/onnx/onnx/blob/main/docs/Operators.md: "Function" marks them
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    for node in imported(model).of(lambda operator: _has_body(operator, model)):
        try:
            match = _match(node, model, target)
        except UnknownAttribute:
            continue
        if match is not None:
            yield match


def _has_body(operator: Operator, model: Model) -> bool:
    domain, op_type = operator
    name = f"{domain}::{op_type}" if domain else op_type
    return name in FUNCTIONS and operator not in model.function_names


def _match(node: Node, model: Model, target: Target) -> Match | None:
    rejection = reason(node, model, target)
    if not rejection or data_of(node) is None:
        return None
    from onnxfix_rules.ops.expansions import _bodies  # lazy: start-up

    body = _bodies.body_of(node, allow_self=target.imports(node.op_type) is True)
    if body is None or len(body.outputs) < len(node.outputs):
        return None
    wanted = [is_read(value) for value in node.outputs]
    nodes = body.live(wanted)
    if not any(wanted) or not _accepted(body, nodes, target):
        return None
    unsafe = body.may_have_no_steps(nodes) or _may_have_one_corner(node, model)
    safety = Safety.UNSAFE if unsafe else _bodies.safety_of(body, nodes)
    count = sum(inner.op_type != "Constant" for inner in flat(nodes))
    return Match(
        f"{target.title} rejects this {node.op_type} ({rejection}); ONNX defines it by {count} supported operators",
        node=node,
        fix=Fix(f"decompose into {count} operators", _bodies.edits_for(node, body, nodes, wanted), safety),
    )


def _may_have_one_corner(node: Node, model: Model) -> bool:
    """Whether this is a grid with aligned corners and a size that may be 1: backends disagree on its position."""
    if node.op_type != "AffineGrid" or node.attr("align_corners", 0) == 0:
        return False
    size = node.input(1)
    known = None if size is None else model.shapes.value(size)
    return known is None or not all(symbols.equal(dim, symbols.as_dim(1)).no for dim in known.data[2:])


def _accepted(body: Body, nodes: list[NodeProto], target: Target) -> bool:
    """Whether the target supports every operator, or its body, with the type that it has there."""
    if target.imports("Scan") is not True and any(node.op_type == "Scan" for node in nodes):
        return False
    for node in flat(nodes):
        if node.op_type == "Constant":
            continue
        value = node.input[0] if node.input else node.output[0]
        elem = body.elem_type(value)
        if not elem:
            return False
        if target.accepts(node.op_type, elem):
            continue
        inner = body.inside(node) if node.op_type in FUNCTIONS else None
        if inner is None or not _accepted(inner, list(inner.nodes), target):
            return False
    return True


_NLL = "g (float[3,5] x, int64[3] t) => (float[3] y)"
_GATHERED = """z = Constant<value = int64[1] {0}>()  o = Constant<value = int64[1] {1}>()
    a = Constant<value = int64[1] {1}>()  u = Unsqueeze(t, a)  p = GatherElements<axis = 1>(SOURCE, u)  n = Neg(p)
    s = Slice(n, z, o, o)  y = Squeeze(s, a)"""
_NORM = "g (float[B,S,8] x, float[8] s) => (float[B,S,8] y, float[B,S,1] m)"
_QKV = "g (TYPE[1,2,16,64] q, TYPE[1,2,16,64] k, TYPE[1,2,16,64] v) => (TYPE[1,2,16,64] y)"

_CORNERS = """zero = Constant<value_int = 0>()  one = Constant<value_int = 1>()
            last = Constant<value_ints = [-1]>()  f0 = Constant<value_ints = [0]>()
            f1 = Constant<value_ints = [1]>()  f2 = Constant<value_ints = [2]>()  f4 = Constant<value_ints = [4]>()
            one_f = Constant<value_float = 1.0>()  two_f = Constant<value_float = 2.0>()
            one_t = CastLike(one_f, t)  two_t = CastLike(two_f, t)  first = Neg(one_t)
            batch = Slice(s, f0, f1)  image = Slice(s, f2, f4)
            nothing = ConstantOfShape<value = float[1] {0}>(image)  zeros = CastLike(nothing, t)
            ones = Add(zeros, one_t)
            i2 = Constant<value_int = 2>()  n2 = Gather(s, i2)  c2 = CastLike(n2, t)
            r2 = Range(zero, n2, one)  k2 = CastLike(r2, t)
            g2 = Sub(c2, one_t)  m2 = Max(g2, one_t)  d2 = Div(two_t, m2)  b2 = Identity(first)
            o2 = Mul(k2, d2)  l2 = Add(o2, b2)  p2 = Constant<value_ints = [-1, 1]>()
            q2 = Reshape(l2, p2)  v2 = Add(q2, zeros)  w2 = Unsqueeze(v2, last)
            i3 = Constant<value_int = 3>()  n3 = Gather(s, i3)  c3 = CastLike(n3, t)
            r3 = Range(zero, n3, one)  k3 = CastLike(r3, t)
            g3 = Sub(c3, one_t)  m3 = Max(g3, one_t)  d3 = Div(two_t, m3)  b3 = Identity(first)
            o3 = Mul(k3, d3)  l3 = Add(o3, b3)  p3 = Constant<value_ints = [1, -1]>()
            q3 = Reshape(l3, p3)  v3 = Add(q3, zeros)  w3 = Unsqueeze(v3, last)
            u = Unsqueeze(ones, last)  x = Concat<axis = -1>(w3, w2, u)
            flat = Constant<value_ints = [-1, 3]>()  rows = Reshape(x, flat)
            turned = Transpose<perm = [0, 2, 1]>(t)  moved = MatMul(rows, turned)
            dims = Constant<value_ints = [2]>()  h = Concat<axis = 0>(batch, image, dims)
            y = Reshape(moved, h)"""
_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, opset=23)
_silent = partial(Silent, ir_version=11, opset=23)


operator_with_function_body.examples = [
    Fixed(
        "a loss that only gathers: exact",
        before=f"""{_NLL} {{ y = NegativeLogLikelihoodLoss<reduction = "none">(x, t) }}""",
        after=f"{_NLL} {{ {_GATHERED.replace('SOURCE', 'x')} }}",
    ),
    Fixed(
        "CenterCropPad: exact",
        before="g (float[N,9,3] x) => (float[N,6,3] y) <int64[1] s = {6}> { y = CenterCropPad<axes = [1]>(x, s) }",
        after="""g (float[N,9,3] x) => (float[N,6,3] y) <int64[1] s = {6}> {
            two = Constant<value = int64[1] {2}>()  a = Constant<value_ints = [1]>()
            h = Shape(x)  d = Gather(h, a)  m = Max(d, s)  p = Sub(m, d)  l = Div(p, two)  r = Sub(p, l)
            q = Concat<axis = 0>(l, r)  w = Pad(x, q, , a)
            h2 = Shape(w)  d2 = Gather(h2, a)  c = Sub(d2, s)  b = Div(c, two)  e = Add(b, s)
            y = Slice(w, b, e, a) }""",
    ),
    Fixed(
        "DepthToSpace of booleans: exact",
        before="g (bool[1,4,2,2] x) => (bool[1,1,4,4] y) { y = DepthToSpace<blocksize = 2>(x) }",
        after="""g (bool[1,4,2,2] x) => (bool[1,1,4,4] y) {
            b = Constant<value = int64[1] {2}>()  bb = Constant<value = int64[1] {4}>()
            i0 = Constant<value = int64[1] {0}>()  i1 = Constant<value = int64[1] {1}>()
            i2 = Constant<value = int64[1] {2}>()  i3 = Constant<value = int64[1] {3}>()
            i4 = Constant<value = int64[1] {4}>()  h = Shape(x)
            n = Slice(h, i0, i1)  c = Slice(h, i1, i2)  r = Slice(h, i2, i3)  w = Slice(h, i3, i4)
            rb = Mul(r, b)  wb = Mul(w, b)  cb = Div(c, bb)
            s = Concat<axis = 0>(n, b, b, cb, r, w)  t = Reshape<allowzero = 1>(x, s)
            u = Transpose<perm = [0, 3, 4, 1, 5, 2]>(t)  v = Concat<axis = 0>(n, cb, rb, wb)
            y = Reshape<allowzero = 1>(u, v) }""",
        opset=28,
        ir_version=13,
    ),
    _fixed(
        "a body whose operator has a body: SoftmaxCrossEntropyLoss",
        before="""g (float[N,C] x, int64[N] t) => (float[N] y, float[N,C] l) {
            y, l = SoftmaxCrossEntropyLoss<reduction = "none">(x, t) }""",
        after=f"""g (float[N,C] x, int64[N] t) => (float[N] y, float[N,C] l) {{
            l = LogSoftmax<axis = 1>(x)  {_GATHERED.replace("SOURCE", "l")} }}""",
        opset=13,
        ir_version=8,
    ),
    _fixed(
        "LayerNormalization whose mean is read; the batch may be empty",
        before=f"{_NORM} {{ y, m = LayerNormalization(x, s) }}",
        after=f"""{_NORM} {{ y = LayerNormalization(x, s)  w = Cast<to = FLOAT>(x)
            a = ReduceMean<axes = [-1], keepdims = 1>(w)  r = Constant<value = int64[3] {{0, 0, 1}}>()
            m = Reshape(a, r) }}""",
        opset=17,
    ),
    _fixed(
        "the inverse deviation of a LayerNormalization over two axes, in a branch",
        before="""g (float[2,3,4] x, float[3,4] s, bool c) => (float[2,1,1] z) {
            z = If(c)<then_branch = p () => (float[2,1,1] i) {
                          y, , i = LayerNormalization<axis = 1, epsilon = 0.5>(x, s) },
                      else_branch = q () => (float[2,1,1] j) { j = Constant<value = float[2,1,1] {1, 2}>() }> }""",
        after="""g (float[2,3,4] x, float[3,4] s, bool c) => (float[2,1,1] z) {
            z = If(c)<then_branch = p () => (float[2,1,1] i) {
                          w = Cast<to = FLOAT>(x)  a = Constant<value = int64[2] {1, 2}>()
                          m = ReduceMean<keepdims = 1>(w, a)  d = Sub(w, m)  e = Mul(d, d)
                          b = Constant<value = int64[2] {1, 2}>()  v = ReduceMean<keepdims = 1>(e, b)
                          g = Constant<value = float {0.5}>()  f = Cast<to = FLOAT>(g)  h = Add(v, f)  r = Sqrt(h)
                          i = Reciprocal(r) },
                      else_branch = q () => (float[2,1,1] j) { j = Constant<value = float[2,1,1] {1, 2}>() }> }""",
    ),
    _fixed(
        "an operator without an importer",
        before="g (float[B,8] x, float[B,8] z) => (float[B,8] y) { y = SwiGLU(x, z) }",
        after="g (float[B,8] x, float[B,8] z) => (float[B,8] y) { s = Swish<alpha = 1.0>(x)  y = Mul(s, z) }",
        opset=28,
        ir_version=13,
    ),
    _fixed(
        "half precision, which TensorRT's importer does not support",
        before="g (float16[2,3] x) => (float16[2,3] y) { y = Celu<alpha = 2.0>(x) }",
        after="""g (float16[2,3] x) => (float16[2,3] y) {
            a = Constant<value_float = 2.0>()  b = CastLike(a, x)  c = Div(x, b)  d = Elu<alpha = 1.0>(c)
            y = Mul(b, d) }""",
        opset=28,
        ir_version=13,
    ),
    _flagged(
        "attention with a softcap: not by default, since it changes the computation",
        f"{_QKV} {{ y = Attention<softcap = 30.0>(q, k, v) }}".replace("TYPE", "float16"),
        ir_version=11,
    ),
    _flagged(
        "float32 attention, for which TensorRT-RTX has no kernel",
        f"{_QKV} {{ y = Attention(q, k, v) }}".replace("TYPE", "float"),
        target="rtx",
        ir_version=11,
    ),
    Flagged(
        "LayerNormalization, which TensorRT 8.4 lacks",
        "g (float[2,8] x, float[8] s) => (float[2,8] y) { y = LayerNormalization(x, s) }",
        target="trt8.4",
        opset=17,
    ),
    _silent(
        "attention that TensorRT supports",
        f"{_QKV} {{ y = Attention<is_causal = 1>(q, k, v) }}".replace("TYPE", "float16"),
        target="rtx",
        differs={"branch": "TensorRT-RTX builds no attention there"},
    ),
    _silent(
        "TensorRT 11, about whose builder nothing is known",
        f"{_QKV} {{ y = Attention(q, k, v) }}".replace("TYPE", "float"),
    ),
    _silent(
        "three static dimensions: not fused attention",
        f"{_QKV} {{ y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v) }}".replace(
            "TYPE[1,2", "float[2"
        ),
        target="rtx",
        differs={"branch": "TensorRT-RTX builds no attention there"},
    ),
    Silent(
        "LayerNormalization with one output; an unused mean is OPS021's",
        """g (float[2,8] x, float[8] s) => (float[2,8] y) {
            h = LayerNormalization(x, s)  y, m = LayerNormalization(h, s) }""",
        opset=17,
    ),
    Silent(
        "a body that the target rejects too: DynamicQuantizeLinear",
        """g (float[2,3] x) => (uint8[2,3] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }""",
    ),
    Silent(
        "a body with a loop",
        "g (float16 a, float16 b, float16 c) => (float16[N] y) { y = Range(a, b, c) }",
        opset=27,
        ir_version=13,
        runs=False,
    ),
    Silent(
        "a body that adds float32 to float16",
        "g (float16[1,2,3,3] x) => (float16[1,2,3,3] y) { y = MeanVarianceNormalization(x) }",
        runs=False,
    ),
    Silent("random values", "g (float[2] x) => (float[2] y) { y = Bernoulli<seed = 1.0>(x) }", runs=False),
    Silent(
        "in a local function, where types are unknown",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[3,5] x, int64[3] t) => (float y) { y = my.Loss(x, t) }
            <domain: "my", opset_import: ["" : 18]> Loss (a, b) => (c) { c = NegativeLogLikelihoodLoss(a, b) }""",
    ),
    Flagged(
        "AffineGrid for a rotated image",
        """g (float[1,2,3] t) => (float[1,4,5,2] y) <int64[4] s = {1,1,4,5}> { y = AffineGrid(t, s) }""",
        opset=20,
    ),
    _fixed(
        "aligned corners; no size is 1",
        before="""g (float[1,2,3] t) => (float[1,4,5,2] y) <int64[4] s = {1,1,4,5}> {
            y = AffineGrid<align_corners = 1>(t, s) }""",
        after=f"g (float[1,2,3] t) => (float[1,4,5,2] y) <int64[4] s = {{1,1,4,5}}> {{ {_CORNERS} }}",
        opset=20,
    ),
    Flagged(
        "aligned corners of a size of 1, where ONNX Runtime and ONNX's reference disagree",
        """g (float[1,2,3] t) => (float[1,4,1,2] y) <int64[4] s = {1,1,4,1}> {
            y = AffineGrid<align_corners = 1>(t, s) }""",
        safety=Safety.NUMERIC,
        opset=20,
        runs=False,
    ),
    Flagged(
        "aligned corners of dynamic sizes",
        """g (float[B,2,3] t, int64[4] s) => (float[B,H,W,2] y) { y = AffineGrid<align_corners = 1>(t, s) }""",
        safety=Safety.NUMERIC,
        opset=20,
    ),
    Silent(
        "HannWindow of a constant size, which TensorRT imports",
        "g (float[8] x) => (float[8] y) <int64 n = {8}> { w = HannWindow(n) y = Mul(x, w) }",
    ),
    _flagged(
        "a cache (past_key, present)",
        """g (float16[1,2,16,64] q, float16[1,2,16,64] k, float16[1,2,16,64] v, float16[1,2,4,64] pk,
            float16[1,2,4,64] pv) => (float16[1,2,16,64] y, float16[1,2,20,64] a, float16[1,2,20,64] b) { y, a,
            b = Attention(q, k, v, , pk, pv) }""",
    ),
    _flagged(
        "softmax_precision",
        f"{_QKV} {{ y = Attention<softmax_precision = 1>(q, k, v) }}".replace("TYPE", "float16"),
    ),
]
