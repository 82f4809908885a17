"""The examples of the norm rules. ONNX's text format writes a float16 by its bits: 16384 is 2, 5145 is 0.001."""

from __future__ import annotations

from functools import partial

from onnxfix.rule import Fixed, Flagged, Safety, Silent

TWO, ONE, EPSILON = "float16 two = {f16(2.0)}", "float16 one = {f16(1.0)}", "float16 e = {f16(0.001)}"
_E32 = "float e2 = {0.0010004043579101562}"
_ONES = ", ".join(["15360"] * 8)
_SCALE = f"float16[8] g = {{{', '.join(str(15360 + 64 * i) for i in range(8))}}}"
_BIAS = f"float16[8] b = {{{', '.join(str(14336 + 64 * i) for i in range(8))}}}"
_ONLY = f"<{TWO}, {EPSILON}>"


def _layer(axes: str = "[-1]", out: str = "y") -> str:
    return (
        f"m = ReduceMean<axes={axes}>(x)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean<axes={axes}>(q)"
        f"  a = Add(v, e)  s = Sqrt(a)  {out} = Div(d, s)"
    )


def _wide(axes: str = "[-1]", out: str = "y", to: int = 1) -> str:
    return (
        f"w = Cast<to={to}>(x)  m = ReduceMean<axes={axes}>(w)  d = Sub(w, m)  q = Mul(d, d)"
        f"  v = ReduceMean<axes={axes}>(q)  a = Add(v, e2)  s = Sqrt(a)  t = Div(d, s)  {out} = Cast<to=FLOAT16>(t)"
    )


def _rms(end: str) -> str:
    return f"q = Mul(x, x)  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)  s = Sqrt(a)  {end}"


_WIDE_RMS = (
    f"g (float16[2,8] x) => (float16[2,8] y) <{_E32}> {{ w = Cast<to=FLOAT>(x)  q = Mul(w, w)"
    "  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e2)  s = Sqrt(a)  t = Div(w, s)  y = Cast<to=FLOAT16>(t) }"
)
_IO = "g (float16[2,8] x) => (float16[2,8] y)"
_DOUBLE = (
    "m = ReduceMean<axes=[-1]>(x)  h = Sub(x, m)  d = Cast<to=DOUBLE>(h)  q = Pow(d, two)"
    "  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)  s = Sqrt(a)  t = Div(d, s)  y = Cast<to=FLOAT16>(t)"
)


_numeric = partial(Fixed, safety=Safety.NUMERIC, opset=17, ir_version=8)


_flagged = partial(Flagged, safety=Safety.NUMERIC, opset=17, ir_version=8)
_silent = partial(Silent, opset=17, ir_version=8)
FUSED = [
    _numeric(
        "with scale and bias of the normalized shape",
        f"g (float16[N,8] x) => (float16[N,8] y) <{TWO}, {EPSILON}, {_SCALE}, {_BIAS}>"
        f" {{ {_layer(out='n')}  p = Mul(g, n)  y = Add(p, b) }}",
        f"g (float16[N,8] x) => (float16[N,8] y) <{_SCALE}, {_BIAS}>"
        " { y = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, g, b) }",
    ),
    _numeric(
        "without a scale: a scale of ones is added",
        f"{_IO} {_ONLY} {{ {_layer()} }}",
        f"{_IO} <float16[8] g = {{{_ONES}}}>"
        " { y = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, g) }",
    ),
    _numeric(
        "axes as an input, and the square by Mul",
        f"{_IO} <{EPSILON}, int64[1] k = {{1}}, {_SCALE}> {{ m = ReduceMean(x, k)  d = Sub(x, m)  q = Mul(d, d)"
        "  v = ReduceMean(q, k)  a = Add(e, v)  s = Sqrt(a)  n = Div(d, s)  y = Mul(n, g) }",
        f"{_IO} <{_SCALE}> {{ y = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, g) }}",
        opset=18,
    ),
    _numeric(
        "a scale and a bias of a rank other than the normalized shape's stay outside",
        f"g (float16[2,8] x, float16[1,8] g) => (float16[2,8] y) <{TWO}, {EPSILON}, {_BIAS}>"
        f" {{ {_layer(out='n')}  p = Mul(n, g)  y = Add(p, b) }}",
        f"g (float16[2,8] x, float16[1,8] g) => (float16[2,8] y) <float16[8] o = {{{_ONES}}}, {_BIAS}>"
        " { n = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, o)  p = Mul(n, g)  y = Add(p, b) }",
    ),
    _numeric(
        "constants with leading dimensions of 1",
        f"{_IO} <float16[1,1] two = {{16384}}, float16[1,1] e = {{5145}}, {_SCALE.replace('[8]', '[1,8]')}, {_BIAS}>"
        f" {{ {_layer(out='n')}  p = Mul(g, n)  y = Add(p, b) }}",
        f"{_IO} <{_SCALE}, {_BIAS}>"
        " { y = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, g, b) }",
    ),
    _numeric(
        "a scale with a leading dimension other than 1 stays outside",
        f"{_IO} <{TWO}, {EPSILON}, float16[2,8] g = {{{_ONES}, {_ONES}}}> {{ {_layer(out='n')}  y = Mul(n, g) }}",
        f"{_IO} <float16[8] o = {{{_ONES}}}, float16[2,8] g = {{{_ONES}, {_ONES}}}>"
        " { n = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, o)  y = Mul(n, g) }",
    ),
    _numeric(
        "means without the reduced dimension, restored by Unsqueeze",
        f"{_IO} <{TWO}, {EPSILON}, {_SCALE}, int64[1] k = {{1}}> {{ r = ReduceMean<axes=[1], keepdims=0>(x)"
        "  m = Unsqueeze(r, k)  d = Sub(x, m)  q = Pow(d, two)  t = ReduceMean<axes=[-1], keepdims=0>(q)"
        "  v = Unsqueeze(t, k)  a = Add(v, e)  s = Sqrt(a)  n = Div(d, s)  y = Mul(n, g) }",
        f"{_IO} <{_SCALE}> {{ y = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, g) }}",
    ),
    _numeric(
        "sums divided by the number of elements, and a power of -0.5",
        f"{_IO} <{EPSILON}, {_SCALE}, int64[1] k = {{1}}, float16 c = {{f16(0.125)}}, float16 o = {{f16(8.0)}},"
        " float16 h = {f16(-0.5)}> { u = ReduceSum(x, k)  m = Mul(u, c)  d = Sub(x, m)  q = Mul(d, d)"
        "  w = ReduceSum(q, k)  v = Div(w, o)  a = Add(v, e)  s = Pow(a, h)  n = Mul(d, s)  y = Mul(n, g) }",
        f"{_IO} <{_SCALE}> {{ y = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, g) }}",
    ),
    _numeric(
        "over the last two dimensions, the scale a graph input",
        f"g (float16[2,4,8] x, float16[4,8] g) => (float16[2,4,8] y) {_ONLY}"
        f" {{ {_layer('[1,2]', 'n')}  y = Mul(n, g) }}",
        "g (float16[2,4,8] x, float16[4,8] g) => (float16[2,4,8] y)"
        " { y = LayerNormalization<axis=-2, epsilon=0.0010004043579101562>(x, g) }",
    ),
    _numeric(
        "over all axes",
        f"{_IO} {_ONLY} {{ m = ReduceMean(x)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean(q)  a = Add(v, e)"
        "  s = Sqrt(a)  y = Div(d, s) }",
        f"{_IO} <float16[2,8] g = {{{_ONES}, {_ONES}}}>"
        " { y = LayerNormalization<axis=-2, epsilon=0.0010004043579101562>(x, g) }",
    ),
    _numeric(
        "the mean in half precision, the variance in double",
        f"{_IO} <double two = {{2}}, double e = {{0.001}}, {_SCALE}>"
        f" {{ {_DOUBLE.replace('y =', 'n =')}  y = Mul(n, g) }}",
        f"{_IO} <{_SCALE}> {{ y = LayerNormalization<axis=-1, epsilon=0.001>(x, g) }}",
    ),
    _numeric(
        "in a branch of an If, around captured values",
        f"g (float16[2,8] x, bool p) => (float16[2,8] y) <{TWO}, {EPSILON}, {_SCALE}> {{"
        f" y = If(p) <then_branch = t () => (float16[2,8] u) {{ {_layer(out='n')}  u = Mul(n, g) }},"
        " else_branch = f () => (float16[2,8] z) { z = Mul(x, g) }> }",
        f"g (float16[2,8] x, bool p) => (float16[2,8] y) <{_SCALE}> {{"
        " y = If(p) <then_branch = t () => (float16[2,8] u) {"
        " u = LayerNormalization<axis=-1, epsilon=0.0010004043579101562>(x, g) },"
        " else_branch = f () => (float16[2,8] z) { z = Mul(x, g) }> }",
    ),
    _numeric(
        "an RMSNorm, from opset 23",
        f"{_IO} <{EPSILON}, {_SCALE}> {{ q = Mul(x, x)  k = Constant<value_ints=[-1]>()  v = ReduceMean(q, k)"
        "  a = Add(v, e)  s = Sqrt(a)  n = Div(x, s)  y = Mul(n, g) }",
        f"{_IO} <{_SCALE}> {{ y = RMSNormalization<axis=-1, epsilon=0.0010004043579101562>(x, g) }}",
        opset=23,
        ir_version=11,
    ),
]
"""Norms that become one operator."""

WIDENED = [
    _numeric(
        "before opset 17 there is no LayerNormalization",
        f"{_IO} {_ONLY} {{ {_layer()} }}",
        f"{_IO} <{_E32}> {{ {_wide()} }}",
        opset=13,
    ),
    _numeric(
        "a target without LayerNormalization",
        f"{_IO} {_ONLY} {{ {_layer()} }}",
        f"{_IO} <{_E32}> {{ {_wide()} }}",
        target="trt8.4",
    ),
    _numeric(
        "the mean in half precision, the variance in double: computed in float32",
        f"{_IO} <double two = {{2}}, double e = {{0.0010004043579101562}}> {{ {_DOUBLE} }}",
        f"{_IO} <{_E32}> {{ {_wide()} }}",
        opset=13,
    ),
    _numeric(
        "an epsilon that only double represents",
        f"{_IO} <double two = {{2}}, double e = {{1e-60}}> {{ {_DOUBLE} }}",
        f"{_IO} <double e2 = {{1e-60}}> {{ {_wide(to=11)} }}",
        opset=13,
    ),
    _numeric(
        "a result in double",
        "g (float16[2,8] x) => (double[2,8] y) <double two = {2}, double e = {0.001}>"
        f" {{ {_DOUBLE.replace('t = Div', 'y = Div').replace('y = Cast<to=FLOAT16>(t)', '')} }}",
        f"g (float16[2,8] x) => (double[2,8] y) <double e2 = {{0.001}}>"
        f" {{ {_wide(to=11).replace('t = Div', 'y = Div').replace('y = Cast<to=FLOAT16>(t)', '')} }}",
        opset=13,
        runs=False,  # within double's tolerance a half-precision mean differs
    ),
    _numeric(
        "an RMSNorm by a power of 0.5, the mean restored by Unsqueeze, opset 11",
        f"{_IO} <{EPSILON}, float16 h = {{f16(0.5)}}> {{ q = Mul(x, x)  r = ReduceMean<axes=[1], keepdims=0>(q)"
        "  v = Unsqueeze<axes=[-1]>(r)  a = Add(v, e)  s = Pow(a, h)  y = Div(x, s) }",
        f"{_IO} <{_E32}> {{ w = Cast<to=FLOAT>(x)  q = Mul(w, w)"
        "  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e2)  s = Sqrt(a)  t = Div(w, s)  y = Cast<to=FLOAT16>(t) }",
        opset=11,
    ),
    _numeric(
        "over channels that are not the last axis",
        f"g (float16[2,8,3] x) => (float16[2,8,3] y) {_ONLY} {{ {_layer('[1]')} }}",
        f"g (float16[2,8,3] x) => (float16[2,8,3] y) <{_E32}> {{ {_wide('[1]')} }}",
    ),
    _numeric(
        "a dynamic normalized dimension, without a scale",
        f"g (float16[8,N] x) => (float16[8,N] y, float16[8,N] z) {_ONLY} {{ {_layer('[0]')}  z = Neg(y) }}",
        f"g (float16[8,N] x) => (float16[8,N] y, float16[8,N] z) <{_E32}> {{ {_wide('[0]')}  z = Neg(y) }}",
    ),
    _numeric("an RMSNorm", f"{_IO} <{EPSILON}> {{ {_rms('y = Div(x, s)')} }}", _WIDE_RMS),
    _numeric(
        "an RMSNorm by Reciprocal",
        f"{_IO} <{EPSILON}> {{ {_rms('r = Reciprocal(s)  y = Mul(r, x)')} }}",
        _WIDE_RMS,
    ),
    _numeric(
        "an RMSNorm by 1 / s",
        f"{_IO} <{EPSILON}, {ONE}> {{ {_rms('r = Div(one, s)  y = Mul(x, r)')} }}",
        _WIDE_RMS,
    ),
    _numeric(
        "minus the mean of another tensor: the RMSNorm of a difference",
        f"g (float16[2,8] p, float16[2,8] z) => (float16[2,8] y) <{EPSILON}>"
        f" {{ m = ReduceMean<axes=[-1]>(z)  x = Sub(p, m)  {_rms('y = Div(x, s)')} }}",
        f"g (float16[2,8] p, float16[2,8] z) => (float16[2,8] y) <{_E32}>"
        " { m = ReduceMean<axes=[-1]>(z)  x = Sub(p, m)  w = Cast<to=FLOAT>(x)  q = Mul(w, w)"
        "  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e2)  s = Sqrt(a)  t = Div(w, s)  y = Cast<to=FLOAT16>(t) }",
    ),
    _numeric(
        "minus a mean over other axes: the RMSNorm of a difference",
        f"{_IO} {_ONLY} {{ {_layer().replace('[-1]>(x)', '[0]>(x)')} }}",
        f"{_IO} <{_E32}> {{ m = ReduceMean<axes=[0]>(x)  d = Sub(x, m)  w = Cast<to=FLOAT>(d)  q = Mul(w, w)"
        "  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e2)  s = Sqrt(a)  t = Div(w, s)  y = Cast<to=FLOAT16>(t) }",
    ),
    _numeric(
        "two norms with the same weights",
        f"{_IO} {_ONLY} {{ {_layer(out='n')}  m2 = ReduceMean<axes=[1]>(n)  d2 = Sub(n, m2)  q2 = Pow(d2, two)"
        "  v2 = ReduceMean<axes=[1]>(q2)  a2 = Add(v2, e)  s2 = Sqrt(a2)  y = Div(d2, s2) }",
        f"{_IO} <{_E32}, {_E32.replace('e2', 'e3')}> {{ {_wide(out='n')}  w2 = Cast<to=FLOAT>(n)"
        "  m2 = ReduceMean<axes=[1]>(w2)  d2 = Sub(w2, m2)  q2 = Mul(d2, d2)  v2 = ReduceMean<axes=[1]>(q2)"
        "  a2 = Add(v2, e3)  s2 = Sqrt(a2)  t2 = Div(d2, s2)  y = Cast<to=FLOAT16>(t2) }",
        opset=13,
    ),
    Flagged(
        "over nonadjacent axes, without --numeric-fixes",
        """g (float16[2,3,8] x) => (float16[2,3,8] y) <float16 e = {f16(0.001)}> {
            q = Mul(x, x)  v = ReduceMean<axes=[0,2]>(q)  a = Add(v, e)  s = Sqrt(a)  y = Div(x, s) }""",
        opset=17,
    ),
    Flagged(
        "the scale in float32, after a Cast of the quotient, without --numeric-fixes",
        """g (float16[2,8] x) => (float[2,8] y) <float16 e = {f16(0.001)}, float[8] g = {1,2,3,4,5,6,7,8}> {
            q = Mul(x, x)  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)  s = Sqrt(a)  d = Div(x, s)
            f = Cast<to=FLOAT>(d)  y = Mul(f, g) }""",
        opset=17,
    ),
]
"""Norms that are computed in a wider type."""

LEFT = [
    _flagged(
        "the mean is a graph output",
        f"g (float16[2,8] x) => (float16[2,8] y, float16[2,1] m) {_ONLY} {{ {_layer()} }}",
    ),
    _flagged(
        "another node reads the difference",
        f"g (float16[2,8] x) => (float16[2,8] y, float16[2,8] z) {_ONLY} {{ {_layer()}  z = Neg(d) }}",
    ),
    _flagged(
        "a branch captures the variance",
        f"g (float16[2,8] x, bool p) => (float16[2,8] y, float16[2,1] z) {_ONLY} {{ {_layer()}"
        "  z = If(p) <then_branch = t () => (float16[2,1] u) { u = Neg(v) },"
        " else_branch = f () => (float16[2,1] w) { w = Abs(v) }> }",
    ),
    _flagged(
        "an epsilon that is 0 in half precision is covered by PRC002",
        f"{_IO} <{TWO}, float16 e = {{f16(0.0)}}> {{ {_layer()} }}",
    ),
    _silent(
        "in float32",
        _layer().join(("g (float[2,8] x) => (float[2,8] y) <float two = {2}, float e = {0.1}> { ", " }")),
    ),
    _silent(
        "in bfloat16, which has the range of float32",
        f"g (bfloat16[2,8] x) => (bfloat16[2,8] y) <bfloat16 two = {{16384}}, bfloat16 e = {{15104}}> {{ {_layer()} }}",
    ),
    _silent(
        "only the division is in half precision",
        f"{_IO} <float e = {{0.001}}> {{ w = Cast<to=FLOAT>(x)  q = Mul(w, w)  v = ReduceMean<axes=[-1]>(q)"
        "  a = Add(v, e)  s = Sqrt(a)  h = Cast<to=FLOAT16>(s)  y = Div(x, h) }",
    ),
    _silent(
        "a mean without the reduced dimension",
        f"g (float16[8,8] x) => (float16[8,8] y) {_ONLY}"
        f" {{ {_layer().replace('axes=[-1]', 'axes=[-1], keepdims=0')} }}",
    ),
    _silent(
        "a mean whose dimension is restored at another axis",
        f"g (float16[8,8] x) => (float16[8,8] y) <{EPSILON}, int64[1] k = {{0}}> {{ q = Mul(x, x)"
        "  r = ReduceMean<axes=[1], keepdims=0>(q)  v = Unsqueeze(r, k)  a = Add(v, e)  s = Sqrt(a)  y = Div(x, s) }",
    ),
    _silent(
        "a sum multiplied by something other than one over its length",
        f"{_IO} <{EPSILON}, int64[1] k = {{1}}, float16 c = {{f16(0.25)}}> {{ q = Mul(x, x)  r = ReduceSum(q, k)"
        "  v = Mul(r, c)  a = Add(v, e)  s = Sqrt(a)  y = Div(x, s) }",
    ),
    _silent(
        "a sum of dynamic length, multiplied by a constant",
        f"g (float16[2,N] x) => (float16[2,N] y) <{EPSILON}, int64[1] k = {{1}}, float16 c = {{f16(0.125)}}>"
        " { q = Mul(x, x)  r = ReduceSum(q, k)  v = Mul(r, c)  a = Add(v, e)  s = Sqrt(a)  y = Div(x, s) }",
    ),
    _silent(
        "a third root",
        f"{_IO} <{EPSILON}, float16 h = {{f16(0.3333)}}>"
        " { q = Mul(x, x)  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)  s = Pow(a, h)  y = Div(x, s) }",
    ),
    _silent(
        "an epsilon that raises the result's rank",
        "g (float16[2,8] x) => (float16[1,2,8] y) <float16[1,1,1] e = {f16(0.001)}> { q = Mul(x, x)"
        "  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)  s = Sqrt(a)  y = Div(x, s) }",
    ),
    _silent("a cube", f"{_IO} <float16 two = {{f16(3.0)}}, {EPSILON}> {{ {_layer()} }}"),
    _silent(
        "a product of two different tensors",
        f"g (float16[2,8] x, float16[2,8] z) => (float16[2,8] y) <{EPSILON}>"
        f" {{ {_rms('y = Div(x, s)').replace('Mul(x, x)', 'Mul(x, z)')} }}",
    ),
    _silent(
        "another tensor is divided",
        f"g (float16[2,8] x, float16[2,8] z) => (float16[2,8] y) <{EPSILON}> {{ {_rms('y = Div(z, s)')} }}",
    ),
    _silent("the root is the dividend", f"{_IO} <{EPSILON}> {{ {_rms('y = Div(s, x)')} }}"),
    _silent(
        "an epsilon that may be overridden",
        f"g (float16[2,8] x, float16 e) => (float16[2,8] y) <{TWO}, {EPSILON}> {{ {_layer()} }}",
    ),
    _silent(
        "an epsilon for each row", f"{_IO} <{TWO}, float16[2,1] e = {{f16(0.001, 0.001)}}> {{ {_layer()} }}"
    ),
    _silent(
        "axes that are not constant",
        f"g (float16[2,8] x, int64[1] k) => (float16[2,8] y) <{EPSILON}> {{ q = Mul(x, x)  v = ReduceMean(q, k)"
        "  a = Add(v, e)  s = Sqrt(a)  y = Div(x, s) }",
        opset=18,
    ),
    _silent(
        "without axes, and no reduction",
        f"{_IO} <{EPSILON}> {{ q = Mul(x, x)  v = ReduceMean<noop_with_empty_axes=1>(q)  a = Add(v, e)"
        "  s = Sqrt(a)  y = Div(x, s) }",
        opset=18,
    ),
    _silent(
        "a scalar that an exponent of rank 1 turns into a vector",
        "g (float16 x) => (float16[1] y) <float16[1] two = {f16(2.0)}, float16 e = {f16(0.001)}> { q = Pow(x, two)"
        "  v = ReduceMean(q)  a = Add(v, e)  s = Sqrt(a)  y = Div(x, s) }",
    ),
]
"""Norms reported without a fix, and what is not a half-precision norm."""

NORMS = [*FUSED, *WIDENED, *LEFT]
