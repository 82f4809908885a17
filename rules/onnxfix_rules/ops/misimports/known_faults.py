"""OPS123: known faults of single releases of TensorRT, and forms without them."""
# Long because: two examples of each fault.

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial

from onnxfix.names import Releases
from onnxfix.rule import (
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Unknown,
    rule,
    target_of,
)
from onnxfix.targets.documented import RELEASES, Fault, faults, faults_of
from onnxfix_rules.ops.misimports._faults import KNOWN
from onnxfix_rules.ops.misimports._workarounds import Known

_OPERATORS = tuple(dict.fromkeys(name for known in KNOWN.values() for name in known.operators.split()))


@rule("OPS123", ops=_OPERATORS, safety=Safety.NUMERIC, severity=Severity.WARNING)
def known_fault(node: Node, model: Model) -> Iterator[Match]:
    """A pattern with a known fault of the target's release, by public reports, release notes or the parser's source.

    ## Why it matters
    Not confirmed here: of the releases with these faults onnxfix executed none. TensorRT 10.6.0, which has none of
    them, was right with 19 of the models (H200). Each fault has its releases, its effect, who saw it, and the
    source, read on 2026-11-30; public reports change. [The table](../faults.md) has the words of each source.

    {faults}

    The releases are those of which the source speaks; others may be affected, too. A target that stands for several
    releases is judged as the newest one. A warning where NVIDIA confirmed the fault, or others reproduced it; an error
    where the parser's source reads so for each such node; information for the rest. Nothing is reported where the
    pattern is not proven: unknown types, ranks or sizes. Faults that other rules find are in the table.

    ## Fix
    Another form that computes the same for all values. Exact where nothing but the form changes, or integers are
    computed; NUMERIC for convolutions and normalizations, for Max and Min in place of a Clip, and for Where. That the
    other form is right is the source's word, or follows from the pattern. No fix for the others.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues, by the numbers above
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md
    """
    target = target_of(model)
    if target.package != "tensorrt":
        return
    for fault, known in _active(target.oldest, target.newest).get(node.op_type, ()):
        with suppress(Unknown):
            hit = known.find(node, model)
            if hit is not None:
                yield Match(
                    _describe(fault, known),
                    node=node,
                    fix=hit.fix,
                    severity=_severity(fault, known),
                    reads=hit.reads,
                )


@cache
def _active(oldest: tuple[int, ...], newest: tuple[int, ...]) -> dict[str, list[tuple[Fault, Known]]]:
    """The faults of the newest release of a target, by operator."""
    line = Releases("", oldest, newest)
    found: dict[str, list[tuple[Fault, Known]]] = {}
    for fault in faults_of(max(version for version in RELEASES if line.contain(version))):
        if fault.id in KNOWN:
            for operator in KNOWN[fault.id].operators.split():
                found.setdefault(operator, []).append((fault, KNOWN[fault.id]))
    return found


def _span(fault: Fault, before: str = ", ") -> str:
    """The releases, and the GPUs if not all."""
    releases = fault.first if fault.first == fault.last else f"{fault.first} to {fault.last}"
    return releases + ("" if fault.where.startswith("any") else f"{before}{fault.where}")


def _describe(fault: Fault, known: Known) -> str:
    span = _span(fault, " on ")
    return f"known fault of TensorRT {span} ({fault.source.split(';')[0]}): {known.effect}"


def _list_faults() -> str:
    """A line for each fault: its releases, its effect, who saw it, and the source."""
    lines = []
    for fault in (one for one in faults().values() if one.id in KNOWN):
        source = re.sub(r" \([^()]*\)$", "", fault.source.split(";")[0])
        source = source.replace("onnx/onnx-tensorrt docs/Changelog.md", "onnx-tensorrt's changelog")
        source = source.replace("onnx/onnx-tensorrt, parser source", "the parser's source")
        text = f"- `{fault.id}`: {_span(fault)}, {fault.effect}, {fault.certainty} ({source})"
        lines += textwrap.wrap(text, 113, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


known_fault.doc = known_fault.doc.format(faults=_list_faults())


def _severity(fault: Fault, known: Known) -> Severity:
    """A report that was not confirmed, or is about some GPUs, is information."""
    if known.severity is not None:
        return known.severity
    once = fault.certainty == "reported once" or not fault.where.startswith("any")
    return Severity.INFO if once else Severity.WARNING


_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, target="8.6")
_silent = partial(Silent, target="10.16")
_BIAS = "<float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {-9, 1, 2}, float m = {0}, float n = {6}>"
_LINEAR = f"g (float[N,2] x) => (float[N,3] y) {_BIAS} {{ p = MatMul(x, w)  a = Add(p, b)"
_CONV = "g (float[1,1,4,4] x) => (float[1,1,3,3] y) <float[1,1,2,2] w = {1, 2, 3, 4}, float m = {-1}, float n = {6}>"
_KERNEL = "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,3,3] y)"
_DECONV = "g (float[1,1,4] x) => (float[1,1,9] y) <float[1,1,2] w = {1, 2}>"
_GROUPS = "g (float[N,2,2,3,2] x) => (float[N,2,2,3,2] y) <float[2,1,1,1,1] w = {2, 3}>"
_LOOP = "t = Add(s, s)  n = Constant<value_int = 5>()  k = Less(i, n)"
_BODY = f"<body = b (int64 i, bool h, float[2] s) => (bool k, float[2] t) {{ {_LOOP} }}>"
_CUMSUMS = "g (float[2,3] x) => (float[2,3] y, float[2,3] z) <int64 a = {0}, int64 b = {1}>"
_NORM = "g (float16[N,6,3] x, float16[3] s, float16[3] b) => (float16[N,6,3] y)"
_THREE = "g (int32[2,3,4] a, int32[2,3,4] b) => (int32[2,3,4] y)"
_ROWS = "g (float[N,6] a, float[N,6] b) => (float[M,2] y) <int64[3] s = {-1, 2, 3}, int64[1] t = {-1}>"
_PAD = "<int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}, float16[1,1,2,2] w = {f16(1.0,2.0,3.0,4.0)}>"
_PADDED = f"g (float16[1,1,4,4] x) => (float16[1,1,5,5] y) {_PAD}"
_DEPTHWISE = "<int8[2,1,1,1] q = {1, 2}, float s = {0.5}, int8 z = {0}>"
_SWISH = f"g (float[1,2,2,2] x) => (float[1,2,2,2] y) {_DEPTHWISE} {{ w = DequantizeLinear(q, s, z)"
_GATED = "c = Conv<group = 2, kernel_shape = [1, 1]>(x, w)  h = Sigmoid(c)  m = Mul(c, h)  e = QuantizeLinear(m, s, z)"
_QUERY = "g (float16[1,4,2,16] x, float16[1,2,16,4] k, float16[1,2,4,16] v) => (float16[1,2,4,16] y)"
_ATTENTION = (
    "q = Transpose<perm = [0, 2, 1, 3]>(x)  s = MatMul(q, k)  p = Softmax<axis = -1>(s)  y = MatMul(p, v)"
)
_IF = "g (bool c, float[1,1,H,W] x, int64[4] s) => (float[1,1,A,B] y)"
_BRANCHES = (
    "then_branch = p () => (float[1,1,H,W] u) { u = Neg(x) }, else_branch = q () => (float[1,1,K,L] v)"
)
_CHOICE = f"i = If(c)<{_BRANCHES} {{ v = MaxPool<kernel_shape = [2, 2]>(x) }}>"


def _top_k(elem: str) -> str:
    return f"""g ({elem}[4] x) => ({elem}[1] y, int64[1] z) <int64[1] k = {{1}}> {{
        y, z = TopK(x, k) }}"""


def _flatten(x: str, y: str, attributes: str) -> str:
    return f"g (float[{x}] x) => (float[{y}] y) {{ y = Flatten{attributes}(x) }}"


def _mat_mul(w: str) -> str:
    return f"g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {{{w}}}> {{ y = MatMul(x, w) }}"


def _binary(a: str, call: str, elem: str = "float") -> str:
    return f"g ({elem}[{a}] a, {elem}[{a}] b) => ({elem}[{a}] y) {{ y = {call}(a, b) }}"


known_fault.examples = [
    _fixed(
        "matmul-add-clip: a linear layer and ReLU6",
        before=f"{_LINEAR}  y = Clip(a, m, n) }}",
        after=f"{_LINEAR}  r = Max(a, m)  y = Min(r, n) }}",
        target="10.12",
    ),
    Silent("matmul-add-clip: another release", f"{_LINEAR}  y = Clip(a, m, n) }}", target="10.14"),
    Silent("matmul-add-clip: another lower bound", f"{_LINEAR}  y = Clip(a, n, n) }}", target="10.12"),
    _fixed(
        "conv-clip-100: both bounds",
        before=f"{_CONV} {{ c = Conv(x, w)  y = Clip(c, m, n) }}",
        after=f"{_CONV} {{ c = Conv(x, w)  r = Max(c, m)  y = Min(r, n) }}",
        target="10.0",
    ),
    Silent("conv-clip-100: no upper bound", f"{_CONV} {{ c = Conv(x, w)  y = Clip(c, m) }}", target="10.0"),
    Fixed(
        "conv-tensor-weights-no-kernel-shape: weights that are an input",
        before=f"{_KERNEL} {{ y = Conv(x, w) }}",
        after=f"{_KERNEL} {{ y = Conv<kernel_shape = [2, 2]>(x, w) }}",
        target="10.3",
    ),
    Silent(
        "conv-tensor-weights-no-kernel-shape: since 10.4", f"{_KERNEL} {{ y = Conv(x, w) }}", target="10.4"
    ),
    Silent("conv-tensor-weights-no-kernel-shape: constant", f"{_CONV} {{ y = Conv(x, w) }}", target="10.3"),
    _fixed(
        "convtranspose-1d-output-padding: strides of 2",
        before=f"{_DECONV} {{ y = ConvTranspose<strides = [2], output_padding = [1]>(x, w) }}",
        after="""g (float[1,1,4] x) => (float[1,1,9] y)
            <float[1,1,2,1] v = {1, 2}, int64[1] a = {3}, int64[1] c = {3}> {  u = Unsqueeze(x, a)
            t = ConvTranspose<strides = [2, 1], output_padding = [1, 0], kernel_shape = [2, 1]>(u, v)
            y = Squeeze(t, c) }""",
        target="8.4",
    ),
    Silent(
        "convtranspose-1d-output-padding: none",
        "g (float[1,1,4] x) => (float[1,1,8] y) <float[1,1,2] w = {1, 2}> { y = ConvTranspose<strides = [2]>(x, w) }",
        target="8.4",
    ),
    Fixed(
        "flatten-1d: a vector",
        before="g (float[N] x) => (float[N,1] y) { a = Exp(x)  b = Flatten(a)  y = Neg(b) }",
        after="""g (float[N] x) => (float[N,1] y) <int64[2] s = {-1, 1}> {
            a = Exp(x)  b = Reshape(a, s)  y = Neg(b) }""",
        target="8.4",
    ),
    Silent("flatten-1d: three dimensions", _flatten("2,N,3", "2,M", ""), target="8.4"),
    Fixed(
        "flatten-noop-84: a matrix",
        before="g (float[2,N] x) => (float[2,N] y) { a = Exp(x)  b = Flatten(a)  y = Neg(b) }",
        after="g (float[2,N] x) => (float[2,N] y) { a = Exp(x)  y = Neg(a) }",
        target="8.4",
    ),
    Silent("flatten-noop-84: axis 0", _flatten("2,N", "1,M", "<axis = 0>"), target="8.4"),
    Fixed(
        "loop-int-max-trip: a condition ends it",
        before=f"""g (float[2] x, bool c) => (float[2] y) <int64 m = {{9223372036854775807}}> {{
            y = Loop(m, c, x){_BODY} }}""",
        after=f"g (float[2] x, bool c) => (float[2] y) {{ y = Loop(, c, x){_BODY} }}",
        target="8.4",
    ),
    Silent(
        "loop-int-max-trip: ten",
        f"g (float[2] x, bool c) => (float[2] y) <int64 m = {{10}}> {{ y = Loop(m, c, x){_BODY} }}",
        target="8.4",
    ),
    Flagged(
        "if-shared-initializer-names: a name in both branches",
        """g (bool c, float[2] x) => (float[2] y) { y = If(c)<
            then_branch = p () => (float[2] u) <float w = {1}> { u = Add(x, w) },
            else_branch = q () => (float[2] v) <float w = {2}> { v = Add(x, w) }> }""",
        target="8.4",
        differs={"renamed": "the fault is about names"},
    ),
    Silent(
        "if-shared-initializer-names: two names",
        """g (bool c, float[2] x) => (float[2] y) { y = If(c)<
            then_branch = p () => (float[2] u) <float w = {1}> { u = Add(x, w) },
            else_branch = q () => (float[2] v) <float m = {2}> { v = Add(x, m) }> }""",
        target="8.4",
    ),
    Fixed(
        "reduce-noop-empty-axes-ignored: a sum",
        before="""g (float[2,N] x) => (float[2,N] y) { a = Exp(x)  b = ReduceSum<noop_with_empty_axes = 1>(a)
            y = Neg(b) }""",
        after="g (float[2,N] x) => (float[2,N] y) { a = Exp(x)  y = Neg(a) }",
        target="9.3",
    ),
    _flagged(
        "reduce-noop-empty-axes-ignored: ReduceL1",
        "g (float[2,N] x) => (float[2,N] y) { y = ReduceL1<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "reduce-noop-empty-axes-ignored: axes",
        """g (float[2,N] x) => (float[2] y) <int64[1] a = {1}> {
        y = ReduceSum<noop_with_empty_axes = 1, keepdims = 0>(x, a) }""",
        target="9.3",
    ),
    Fixed(
        "split-uneven-num-outputs: seven in four",
        before="""g (float[7] x) => (float[2] a, float[2] b, float[2] c, float[1] d)
            { a, b, c, d = Split<num_outputs = 4>(x) }""",
        after="""g (float[7] x) => (float[2] a, float[2] b, float[2] c, float[1] d) <int64[4] s = {2, 2, 2, 1}> {
            a, b, c, d = Split(x, s) }""",
        target="9.3",
    ),
    Silent(
        "split-uneven-num-outputs: even",
        "g (float[4] x) => (float[2] a, float[2] b) { a, b = Split<num_outputs = 2>(x) }",
        target="9.3",
    ),
    _fixed(
        "conv3d-groups-kernel1: a batch of volumes",
        before=f"{_GROUPS} {{ y = Conv<group = 2>(x, w) }}",
        after="""g (float[N,2,2,3,2] x) => (float[N,2,2,3,2] y)
            <float[2,1,1] w = {2, 3}, int64[3] s = {0, 0, 12}, int64[5] u = {0, 0, 2, 3, 2}> {
            a = Reshape(x, s)  f = Conv<group = 2, kernel_shape = [1]>(a, w)  y = Reshape(f, u) }""",
        target="8.5",
    ),
    Silent(
        "conv3d-groups-kernel1: one group",
        """g (float[1,2,2,3,2] x) => (float[1,1,2,3,2] y)
        <float[1,2,1,1,1] w = {2, 3}> { y = Conv(x, w) }""",
        target="8.5",
    ),
    Flagged(
        "qdq-dwconv-swish-end: at an output",
        f"{_SWISH}  {_GATED}  y = DequantizeLinear(e, s, z) }}",
        target="8.5",
    ),
    Silent(
        "qdq-dwconv-swish-end: more follows",
        f"{_SWISH}  {_GATED}  d = DequantizeLinear(e, s, z)  y = Neg(d) }}",
        target="8.5",
    ),
    _flagged(
        "qdq-depthwise-conv: at an output", f"{_SWISH}  y = Conv<group = 2, kernel_shape = [1, 1]>(x, w) }}"
    ),
    Silent(
        "qdq-depthwise-conv: more follows",
        f"{_SWISH}  c = Conv<group = 2, kernel_shape = [1, 1]>(x, w)  y = Neg(c) }}",
        target="8.6",
    ),
    Fixed(
        "argmax-int32-via-float: the last of the largest",
        before="""g (int32[2,N] x) => (int64[2] y) {
            y = ArgMax<axis = 1, keepdims = 0, select_last_index = 1>(x) }""",
        after="""g (int32[2,N] x) => (int64[2] y) { m = ReduceMax<axes = [1], keepdims = 1>(x)  e = Equal(x, m)
            f = Cast<to = FLOAT>(e)  y = ArgMax<axis = 1, keepdims = 0, select_last_index = 1>(f) }""",
        opset=13,
        target="9.0",
    ),
    Flagged(
        "argmax-int32-via-float: opset 18",
        "g (int32[2,N] x) => (int64[1,N] y) { y = ArgMin(x) }",
        target="9.0",
    ),
    Silent(
        "argmax-int32-via-float: small numbers",
        "g (int32[2,N] x) => (int64[1,N] y) <int32 a = {100}> { m = Mod(x, a)  y = ArgMax(m) }",
        target="9.0",
    ),
    _flagged("topk-int32-via-float: the largest", _top_k("int32")),
    Silent("topk-int32-via-float: floats", _top_k("float"), target="8.6"),
    _flagged(
        "float-clip-before-shape: a length",
        """g (float x) => (int64[N] y) <float m = {1}, float n = {9}, int64 a = {0}, int64 b = {1}> {
            c = Clip(x, m, n)  i = Cast<to = INT64>(c)  y = Range(a, i, b) }""",
    ),
    Silent(
        "float-clip-before-shape: the Cast comes first",
        """g (float x) => (int64[N] y) <int64 m = {1}, int64 n = {9}, int64 a = {0}, int64 b = {1}> {
            i = Cast<to = INT64>(x)  c = Clip(i, m, n)  y = Range(a, c, b) }""",
        target="8.6",
    ),
    _flagged(
        "layernorm-float-shape-86: the root of a size",
        """g (float[N,4] x, float[2] w) => (float[A,B,2] y)
            <int64 z = {0}, int64[1] o = {0}, int64[1] f = {-1}, int64[1] t = {2}> {
            s = Shape(x)  n = Gather(s, z)  d = Cast<to = FLOAT>(n)  r = Sqrt(d)  i = Cast<to = INT64>(r)
            j = Unsqueeze(i, o)  k = Concat<axis = 0>(j, f, t)  q = Reshape(x, k)  y = LayerNormalization(q, w) }""",
        runs=False,
    ),
    Silent(
        "layernorm-float-shape-86: a constant shape",
        """g (float[N,4] x, float[2] w) => (float[A,2,2] y) <int64[3] k = {-1, 2, 2}> {
            q = Reshape(x, k)  y = LayerNormalization(q, w) }""",
        target="8.6",
    ),
    _flagged(
        "max-extra-transposes: an operand is returned, too",
        "g (float[2,3] a, float[2,3] b) => (float[2,3] y, float[3,2] z) { y = Max(a, b)  z = Transpose(a) }",
    ),
    Silent("max-extra-transposes: none", _binary("2,3", "Max"), target="8.6"),
    Flagged(
        "cast-extra-transpose-output: its input is returned, too",
        "g (float[2,3] a) => (int32[2,3] y, float[3,2] z) { y = Cast<to = INT32>(a)  z = Transpose(a) }",
        target="9.1",
    ),
    Silent(
        "cast-extra-transpose-output: since 10.0",
        """g (float[2,3] a) => (int32[2,3] y, float[3,2] z) {
        y = Cast<to = INT32>(a)  z = Transpose(a) }""",
        target="10.0",
    ),
    Fixed(
        "mul-between-transposes-int: a permutation and its inverse",
        before=f"""{_THREE} {{ s = Transpose<perm = [1, 2, 0]>(a)  t = Transpose<perm = [1, 2, 0]>(b)
            m = Mul(s, t)  y = Transpose<perm = [2, 0, 1]>(m) }}""",
        after=_binary("2,3,4", "Mul", elem="int32"),
        target="8.6",
    ),
    Silent(
        "mul-between-transposes-int: another permutation",
        """g (int32[2,3,4] a, int32[2,3,4] b) => (int32[3,2,4] y) { s = Transpose<perm = [1, 2, 0]>(a)
            t = Transpose<perm = [1, 2, 0]>(b)  m = Mul(s, t)  y = Transpose<perm = [0, 2, 1]>(m) }""",
        target="8.6",
    ),
    Fixed(
        "reshape-mul-reducesum: heads",
        before=f"""{_ROWS} {{ p = Reshape(a, s)  q = Reshape(b, s)  m = Mul(p, q)
            y = ReduceSum<keepdims = 0>(m, t) }}""",
        after=f"{_ROWS} {{ n = Mul(a, b)  m = Reshape(n, s)  y = ReduceSum<keepdims = 0>(m, t) }}",
        target="8.6",
    ),
    Silent(
        "reshape-mul-reducesum: one Reshape",
        f"{_ROWS} {{ n = Mul(a, b)  m = Reshape(n, s)  y = ReduceSum<keepdims = 0>(m, t) }}",
        target="8.6",
    ),
    Flagged(
        "gemv-twice: a row through two layers",
        "g (float[1,3] x) => (float[1,2] y) <float[3,3] v = {1,2,3,4,5,6,7,8,9}, float[3,2] w = {1,2,3,4,5,6}> {"
        " a = MatMul(x, v)  y = MatMul(a, w) }",
        target="10.1",
    ),
    Silent(
        "gemv-twice: two rows",
        "g (float[2,3] x) => (float[2,2] y) <float[3,3] v = {1,2,3,4,5,6,7,8,9}, float[3,2] w = {1,2,3,4,5,6}> {"
        " a = MatMul(x, v)  y = MatMul(a, w) }",
        target="10.1",
    ),
    _fixed(
        "groupnorm-half-groups: three groups",
        before=f"{_NORM} {{ y = GroupNormalization<num_groups = 3>(x, s, b) }}",
        after=f"""{_NORM} {{ p = Cast<to = FLOAT>(x)  q = Cast<to = FLOAT>(s)  r = Cast<to = FLOAT>(b)
            w = GroupNormalization<num_groups = 3>(p, q, r)  y = Cast<to = FLOAT16>(w) }}""",
        target="10.1",
    ),
    Silent(
        "groupnorm-half-groups: floats",
        f"{_NORM} {{ y = GroupNormalization<num_groups = 3>(x, s, b) }}".replace("float16", "float"),
        target="10.1",
    ),
    Fixed(
        "mod-int-large: a power of two",
        before="g (int32[N] x) => (int32[N] y) <int32 a = {32}> { y = Mod(x, a) }",
        after="""g (int32[N] x) => (int32[N] y) <int32 a = {32}, int32 z = {0}> {
            d = Div(x, a)  m = Mul(d, a)  r = Sub(x, m)  l = Less(r, z)  s = Add(r, a)  y = Where(l, s, r) }""",
        target="10.7",
    ),
    Flagged(
        "mod-int-large: a divisor of run time",
        "g (int64[N] x, int64 a) => (int64[N] y) { y = Mod(x, a) }",
        target="10.7",
        runs=False,
    ),
    Silent(
        "mod-int-large: small numbers",
        """g (int32[N] x) => (int32[N] y) <int32 a = {32}, int32 b = {9}> {
            m = Min(x, a)  n = Max(m, b)  y = Mod(n, b) }""",
        target="10.7",
    ),
    Silent(
        "mod-int-large: a size",
        """g (float[N,4] x) => (int64 y) <int64 a = {32}, int64 z = {0}> {
            s = Shape(x)  n = Gather(s, z)  y = Mod(n, a) }""",
        target="10.7",
    ),
    _fixed(
        "cumsum-several-axes: rows and columns",
        before=f"{_CUMSUMS} {{ y = CumSum(x, a)  z = CumSum<reverse = 1>(x, b) }}",
        after="""g (float[2,3] x) => (float[2,3] y, float[2,3] z) <int64 a = {0}, int64 c = {0}> {
            y = CumSum(x, a)  t = Transpose<perm = [1, 0]>(x)  s = CumSum<reverse = 1>(t, c)
            z = Transpose<perm = [1, 0]>(s) }""",
        target="10.8",
    ),
    Silent(
        "cumsum-several-axes: one axis",
        f"{_CUMSUMS} {{ y = CumSum(x, a)  z = CumSum<reverse = 1>(x, a) }}",
        target="10.8",
    ),
    Flagged(
        "fc-horizontal-fusion-sm110: two layers of one tensor",
        """g (float[1,N,2] x) => (float[1,N,2] y, float[1,N,2] z)
            <float[2,2] v = {1, 2, 3, 4}, float[2,2] w = {4, 3, 2, 1}> { y = MatMul(x, v)  z = MatMul(x, w) }""",
        target="10.13",
    ),
    Silent(
        "fc-horizontal-fusion-sm110: one layer",
        "g (float[1,N,2] x) => (float[1,N,2] y) <float[2,2] v = {1, 2, 3, 4}> { y = MatMul(x, v) }",
        target="10.13",
    ),
    Flagged("half-weights-overflow-blackwell: 70000", _mat_mul("70000, 1, 1, 1"), target="10.13"),
    Silent("half-weights-overflow-blackwell: 65504", _mat_mul("65504, 1, 1, 1"), target="10.13"),
    _fixed(
        "slice-fill-conv-blackwell: zeros around an image",
        before=f"{_PADDED} {{ a = Pad(x, p)  y = Conv(a, w) }}",
        after="""g (float16[1,1,4,4] x) => (float16[1,1,5,5] y) <float16[1,1,2,2] w = {f16(1.0,2.0,3.0,4.0)}> {
            y = Conv<pads = [1, 1, 1, 1]>(x, w) }""",
        target="10.13",
    ),
    Silent(
        "slice-fill-conv-blackwell: pads of the Conv",
        f"{_PADDED} {{ y = Conv<pads = [1, 1, 1, 1]>(x, w) }}",
        target="10.13",
    ),
    Flagged(
        "convtranspose-3d-sm120: cast before",
        """g (float16[1,1,2,2,2] x) => (float[1,1,2,2,2] y) <float[1,1,1,1,1] w = {2}> {
            a = Cast<to = FLOAT>(x)  y = ConvTranspose(a, w) }""",
        target="10.15",
    ),
    Silent(
        "convtranspose-3d-sm120: no Cast",
        "g (float[1,1,2,2,2] x) => (float[1,1,2,2,2] y) <float[1,1,1,1,1] w = {2}> { y = ConvTranspose(x, w) }",
        target="10.15",
    ),
    Flagged(
        "attention-in-if: in a branch",
        """g (bool c, float[1,2,3,4] x) => (float[1,2,3,4] y) { y = If(c)<
            then_branch = p () => (float[1,2,3,4] u) { u = Attention(x, x, x) },
            else_branch = q () => (float[1,2,3,4] v) { v = Neg(x) }> }""",
        opset=23,
        ir_version=10,
        target="10.16",
    ),
    _silent(
        "attention-in-if: outside of an If",
        "g (float[1,2,3,4] x) => (float[1,2,3,4] y) { y = Attention(x, x, x) }",
        opset=23,
        ir_version=10,
        differs={"branch": "the context is an If"},
    ),
    Flagged(
        "cast-float-int32-nan: asked for NaN",
        "g (float[N] x) => (int32[N] y, bool[N] z) { y = Cast<to = INT32>(x)  z = IsNaN(x) }",
        target="10.16",
    ),
    _silent(
        "cast-float-int32-nan: not asked for", "g (float[N] x) => (int32[N] y) { y = Cast<to = INT32>(x) }"
    ),
    _fixed(
        "clip-nan: the result is asked for NaN",
        before="g (float[N] x) => (bool[N] y) <float m = {0}> { c = Clip(x, m)  y = IsNaN(c) }",
        after="""g (float[N] x) => (bool[N] y) <float m = {0}> { n = IsNaN(x)  d = Clip(x, m)  c = Where(n, x, d)
            y = IsNaN(c) }""",
        target="10.16",
    ),
    _silent("clip-nan: not asked for", "g (float[N] x) => (float[N] y) <float m = {0}> { y = Clip(x, m) }"),
    Flagged(
        "min-nan: the result is asked for NaN",
        """g (float[N] a, float[N] b) => (bool[N] y) {
        m = Min(a, b)  y = IsNaN(m) }""",
        target="10.16",
    ),
    _silent("min-nan: not asked for", _binary("N", "Min")),
    Flagged(
        "if-transpose-resize: sizes of run time",
        f"""{_IF} {{ {_CHOICE}  t = Transpose<perm = [0, 1, 3, 2]>(i)
            y = Resize<mode = "linear">(t, , , s) }}""",
        target="11.1",
        runs=False,
    ),
    Silent(
        "if-transpose-resize: no Transpose",
        f"""{_IF} {{ {_CHOICE}  y = Resize<mode = "linear">(i, , , s) }}""",
        target="11.1",
    ),
    Flagged("transpose-input-mha: queries", f"{_QUERY} {{ {_ATTENTION} }}", target="11.2"),
    Silent(
        "transpose-input-mha: float32",
        f"{_QUERY} {{ {_ATTENTION} }}".replace("float16", "float"),
        target="11.2",
    ),
]
