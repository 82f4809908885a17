"""Models that demand something of the sizes of their inputs, and whether ONNX Runtime runs one at given sizes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import signature
from support import models
from support.ort import session

WEIGHTS = {"w": (4, 3, 5, 5), "w1": (4, 1, 7), "lw": (1, 8, 3), "lr": (1, 8, 2), "bn": (6,), "m": (5, 7)}

DEMANDS = {
    "a kernel": "g (float[B,3,H,W] x) => (float[B,4,A,C] y) { y = Conv<strides=[2,3]>(x, w) }",
    "a padded kernel": "g (float[B,3,H,9] x) => (float[B,4,A,C] y) { y = Conv<pads=[1,0,1,0], dilations=[2,1]>(x, w) }",
    "channels": "g (float[1,C,8,8] x) => (float[1,4,A,B] y) { y = Conv(x, w) }",
    "a pool": "g (float[1,3,H] x) => (float[1,3,A] y) { y = MaxPool<kernel_shape=[6], strides=[2]>(x) }",
    "reflection": """g (float[B,S] x) => (float[B,T] y) <int64[4] p = {0,3,0,5}> {
        y = Pad<mode="reflect">(x, p) }""",
    "equal dimensions": "g (float[N,2] x, float[M,2] z) => (float[A,2] y) { y = Add(x, z) }",
    "three operands": "g (bool[N] c, float[M] x, float[K] z) => (float[A] y) { y = Where(c, x, z) }",
    "inner dimensions": "g (float[N,K] x) => (float[N,7] y) { y = MatMul(x, m) }",
    "batches of products": "g (float[B,2,3] x, float[C,3,2] z) => (float[D,2,2] y) { y = MatMul(x, z) }",
    "a bias": "g (float[N,5] x, float[M,7] b) => (float[N,7] y) { y = Gemm(x, m, b) }",
    "a slope": "g (float[2,N,4] x, float[C,1] s) => (float[2,N,4] y) { y = PRelu(x, s) }",
    "a concatenation": "g (float[N,H] x, float[M,K] z) => (float[A,B] y) { y = Concat<axis=1>(x, z) }",
    "upsampled and joined": """g (float[1,3,H,8] x) => (float[1,C,A,B] y) <float[4] f = {1, 1, 2, 1}> {
        a = MaxPool<kernel_shape=[2,1], strides=[2,1]>(x)  b = Resize<mode="nearest">(a, , f)
        y = Concat<axis=1>(x, b) }""",
    "a volume": "g (float[B,S] x) => (float[C,4,3] y) <int64[3] s = {-1, 4, 3}> { y = Reshape(x, s) }",
    "a whole volume": "g (float[B,S] x) => (float[4,6] y) <int64[2] s = {4, 6}> { y = Reshape(x, s) }",
    "equal parts": "g (float[N] x) => (float[A] y, float[B] z, float[C] u) { y, z, u = Split<axis=0>(x) }",
    "given parts": "g (float[N] x) => (float[4] y, float[7] z) <int64[2] s = {4, 7}> { y, z = Split<axis=0>(x, s) }",
    "an index": "g (float[N,3] x) => (float[3] y) <int64 i = {9}> { y = Gather<axis=0>(x, i) }",
    "an index from the end": "g (float[N] x) => (float y) <int64 i = {-6}> { y = Gather<axis=0>(x, i) }",
    "a mask read by numbers, as decoders do": """g (float[B,T] mask, float[B,S] x, float[B,P] z) => (float[B,1,A] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] back = {-1}, int64[2] outer = {1, 2}> {
        hx = Shape(x)  s = Gather(hx, one)  hz = Shape(z)  p = Gather(hz, one)  n = Add(s, p)
        b = Gather(hx, zero)  hm = Shape(mask)  t = Gather(hm, one)
        rows = Range(zero, b, one)  u = Unsqueeze(rows, outer)  v = Mul(u, t)
        keys = Range(zero, n, one)  i = Add(v, keys)  f = Reshape(mask, back)  y = Gather(f, i) }""",
    "a mask read by coordinates": """g (float[B,T] mask, float[B,S] x, float[B,P] z) => (float[B,A] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[1] second = {1}> {
        hx = Shape(x)  s = Gather(hx, one)  hz = Shape(z)  p = Gather(hz, one)  n = Add(s, p)
        b = Gather(hx, zero)  rows = Range(zero, b, one)  r = Unsqueeze(rows, second)
        keys = Range(zero, n, one)  k = Mul(r, zero)  c = Add(k, keys)  d = Mul(c, zero)  e = Add(d, r)
        e1 = Unsqueeze(e, last)  c1 = Unsqueeze(c, last)  i = Concat<axis = -1>(e1, c1)  y = GatherND(mask, i) }""",
    "elements": "g (float[N,3] x, int64[2,M] i) => (float[2,M] y) { y = GatherElements<axis=0>(x, i) }",
    "scattered elements": """g (float[4,N] x, int64[M,2] i, float[K,2] u) => (float[4,N] y) {
        y = ScatterElements<axis=1>(x, i, u) }""",
    "the best k": "g (float[N] x) => (float[12] y, int64[12] z) <int64[1] k = {12}> { y, z = TopK(x, k) }",
    "an expansion": "g (float[N,3] x) => (float[5,3] y) <int64[2] s = {5, 3}> { y = Expand(x, s) }",
    "a squeezed dimension": "g (float[N,3] x) => (float[3] y) <int64[1] a = {0}> { y = Squeeze(x, a) }",
    "a state": """g (float[S,B,3] x, float[1,C,2] h) => (float[S,1,B,2] y) {
        y = LSTM<hidden_size=2>(x, lw, lr, , , h, h) }""",
    "normalized channels": """g (float[1,C,2] x) => (float[1,C,2] y) { y = BatchNormalization(x, bn, bn, bn, bn) }""",
    "blocks": "g (float[1,C,2,2] x) => (float[1,D,6,6] y) { y = DepthToSpace<blocksize=3>(x) }",
    "space to blocks": "g (float[1,2,H,W] x) => (float[1,32,A,B] y) { y = SpaceToDepth<blocksize=4>(x) }",
    "a mask over cache and keys": """<ir_version: 11, opset_import: ["" : 23]>
        g (float[1,2,S,4] x, float[S,T] f, float[1,2,P,4] c) => (float[1,2,S,4] y, float[1,2,U,4] k, float[1,2,U,4] v) {
        y, k, v = Attention(x, x, x, f, c, c) }""",
    "arithmetic on shapes": """g (float[B,S] x) => (float[A,B2] y)
            <int64[1] one = {1}, int64[1] two = {2}, int64[1] z = {0}> {
        h = Shape(x)  n = Slice(h, one, two)  k = Div(n, two)  t = Concat<axis=0>(two, k)  b = Slice(h, z, one)
        u = Concat<axis=0>(b, t)  y = Reshape(x, u) }""",
}  # fmt: skip

RATES = """g (float[B,S] x, int64 rate) => (float[B,T] y) <int64 high = {16000}> {
    c = Equal(rate, high)
    y = If(c)<then_branch = t () => (float[B,U] a) {
                  p = Constant<value_ints = [0, 40, 0, 40]>()  a = Pad<mode="reflect">(x, p) },
              else_branch = e () => (float[B,V] b) {
                  q = Constant<value_ints = [0, 9, 0, 9]>()  b = Pad<mode="reflect">(x, q) }> }"""


def model(body: str) -> onnx.ModelProto:
    """A model from ONNX's text; the names of WEIGHTS are initializers."""
    made = models.model(body, 17, 8)
    used = {name for node in made.graph.node for name in node.input}
    for name, shape in WEIGHTS.items():
        if name in used:
            made.graph.initializer.append(numpy_helper.from_array(np.full(shape, 0.1, np.float32), name))
    return made


def runs(proto: onnx.ModelProto, sizes: dict[str, int]) -> bool:
    """Whether ONNX Runtime runs the model at these sizes."""
    known = signature(proto)
    loaded = session(proto)
    try:
        loaded.run(None, plan.Feed(sizes, "small", 1).values(known))
    except Exception:
        return False
    return True
