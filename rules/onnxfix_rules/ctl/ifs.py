"""Ifs of a known condition, of different ranks, and for an empty tensor (CTL010, CTL011, CTL022)."""
# Long because: an example of each form that a branch may have.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from onnxfix.rule import (
    Dim,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    Severity,
    Silent,
    Value,
    equal,
    is_read,
    rule,
    target_of,
)
from onnxfix_rules.ctl import _inline, _select
from onnxfix_rules.prc._common import producer


@rule("CTL010", ops=["If"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[39])
def if_of_known_condition(node: Node, model: Model) -> Iterator[Match]:
    """An If whose condition is the same for every input: only one branch ever runs.

    ## Why it matters
    Exporters leave such branches behind, most often torch's guard of `squeeze(d)`, which tests whether the size is 1.
    If the condition is a weight, TensorRT imports only the branch that runs. If nodes compute it, TensorRT-RTX 1.7.1
    imports both, measured: an unsupported operator (`Det`) fails the model although it never runs, and the If and its
    branches stay in the network (`CONDITION`, `CONDITIONAL_INPUT`, `CONDITIONAL_OUTPUT`) until the builder folds them.
    TensorRT 8 also refuses branches of different shape.

    - **warning**: the condition is computed, so the branch that never runs may still fail the model.
    - **information**: the condition is a weight.

    ## Fix
    The nodes of the branch that runs replace the If, under new names; captured values keep theirs. Exact. An output
    that the branch returns unchanged gets an Identity if its name must be kept. Loops and other branches inside it are
    copied, with new names inside. Branches with sparse weights or weights in external files are only reported.

    ## References
    - https://onnx.ai/onnx/operators/onnx__If.html
    - https://github.com/NVIDIA/TensorRT/issues/2846
    - https://github.com/NVIDIA/TensorRT/issues/1650
    """
    condition = node.require(0)
    outcome = _inline.known(condition, model)
    branch = next(
        (s for s in node.subgraphs if s.attr == ("then_branch" if outcome else "else_branch")), None
    )
    if outcome is None or branch is None or len(branch.outputs) < len(node.outputs) or branch.inputs:
        return
    yield Match(
        f"the condition {condition.name!r} is always {str(outcome).lower()}: only the "
        f"{'then' if outcome else 'else'} branch runs",
        node=node,
        severity=Severity.INFO if condition.is_constant else Severity.WARNING,
        fix=_inline.replace(node, branch),
        reads=(condition, *branch.nodes),
    )


_TWO = """<then_branch = p () => (float[2] u) { u = Neg(x) }, else_branch = q () => (float[2] v) { v = Abs(x) }>"""
_GUARD = """s = Shape(x)  d = Gather(s, z)  c = Equal(d, o)  y = If(c)
    <then_branch = p () => (float[K] u) { u = Squeeze(x, a) },
     else_branch = q () => (float[A,B] v) { v = Identity(x) }>"""
_GUARDED = "<int64[1] a = {0}, int64 z = {0}, int64 o = {1}>"

_CONTRIB = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1, "my" : 1]>'
_FUNCTIONS = """<domain: "my", opset_import: ["" : 18, "com.microsoft" : 1]> G (a) => (b) {
        b = com.microsoft.MultiHeadAttention<num_heads = 2>(a, a, a) }
    <domain: "my", opset_import: ["" : 18]> F (a, d) => (b) { b = If(d)<
        then_branch = p () => (float[N,5,4] u) <int64[1] s = {5}> { u = Resize<axes = [1]>(a, , , s) },
        else_branch = q () => (float[N,5,4] v) <int64[1] s = {5}> { w = Neg(a)  v = Resize<axes = [1]>(w, , , s) }> }"""


if_of_known_condition.examples = [
    Fixed(
        "an initializer: true",
        before=f"g (float[2] x) => (float[2] y) <bool c = {{1}}> {{ y = If(c){_TWO} }}",
        after="g (float[2] x) => (float[2] y) { y = Neg(x) }",
    ),
    Fixed(
        "a Constant: false",
        before=f"g (float[2] x) => (float[2] y) {{ c = Constant<value = bool {{0}}>()  y = If(c){_TWO} }}",
        after="g (float[2] x) => (float[2] y) { y = Abs(x) }",
        opset=11,
    ),
    Fixed(
        "a condition of shape [1]",
        before=f"g (float[2] x) => (float[2] y) <bool[1] c = {{0}}> {{ y = If(c){_TWO} }}",
        after="g (float[2] x) => (float[2] y) { y = Abs(x) }",
    ),
    Fixed(
        "torch's squeeze(0): branches of different rank, and a static size of 1",
        before=f"g (float[1,N] x) => (float[N] y) {_GUARDED} {{ {_GUARD} }}",
        after="g (float[1,N] x) => (float[N] y) <int64[1] a = {0}> { y = Squeeze(x, a) }",
    ),
    Fixed(
        "torch's squeeze(0): a static size other than 1",
        before=f"g (float[3,N] x) => (float[3,N] y) {_GUARDED} {{ {_GUARD} }}",
        after="g (float[3,N] x) => (float[3,N] y) { y = Identity(x) }",
    ),
    Fixed(
        "weights, outer names that are in use, and captured values",
        before="""g (float[2] x) => (float[2] y, float[2] z) <bool c = {1}, float[2] w = {5, 6}> {
            a = Neg(x)  t = If(c)<then_branch = p () => (float[2] u) <float[2] k = {1, 2}> {
                b = Add(a, k)  e = Mul(b, w)  u = Sub(e, x) }, else_branch = q () => (float[2] v) { v = Exp(x) }>
            y = Abs(t)  z = Exp(a) }""",
        after="""g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {5, 6}, float[2] k = {1, 2}> {
            a = Neg(x)  b = Add(a, k)  e = Mul(b, w)  u = Sub(e, x)  y = Abs(u)  z = Exp(a) }""",
    ),
    Fixed(
        "several outputs: the same twice, a weight, and a captured value",
        before="""g (float[2] x) => (float[2] p, float[2] q, float[2] r, float[2] s) <bool c = {1}> {
            p, q, r, s = If(c)<
            then_branch = t () => (float[2] u, float[2] u, float[2] k, float[2] x) <float[2] k = {1, 2}> { u = Neg(x) },
            else_branch = e () => (float[2] v, float[2] v, float[2] v, float[2] v) { v = Abs(x) }> }""",
        after="""g (float[2] x) => (float[2] p, float[2] q, float[2] r, float[2] s) <float[2] k = {1, 2}> {
            p = Neg(x)  q = Identity(p)  r = Identity(k)  s = Identity(x) }""",
    ),
    Fixed(
        "an unused output, and the nodes that compute it",
        before="""g (float[2] x) => (float[2] y) <bool c = {1}> { y, n = If(c)<
            then_branch = t () => (float[2] u, float[2] w) { u = Neg(x)  w = Exp(x) },
            else_branch = e () => (float[2] v, float[2] o) { v = Abs(x)  o = Log(x) }> }""",
        after="g (float[2] x) => (float[2] y) { y = Neg(x) }",
    ),
    Fixed(
        "nested Ifs",
        before=f"""g (float[2] x, bool k) => (float[2] y) <bool c = {{1}}> {{ y = If(c)<
            then_branch = t () => (float[2] r) {{ w = If(c){_TWO}  r = Exp(w) }},
            else_branch = e () => (float[2] s) {{ s = If(k){_TWO} }}> }}""",
        after="g (float[2] x, bool k) => (float[2] y) { w = Neg(x)  y = Exp(w) }",
    ),
    Fixed(
        "a branch with a Loop without a condition",
        before="""g (float[2] x, int64 n) => (float[N,2] y) <bool c = {1}> { y = If(c)<
            then_branch = t () => (float[A,2] u) { u = Loop(n, "")<body = b (int64 i, bool on)
                => (bool more, float[2] w) { more = Identity(on)  w = Neg(x) }> },
            else_branch = e () => (float[1,2] v) <int64[1] k = {0}> { v = Unsqueeze(x, k) }> }""",
        after="""g (float[2] x, int64 n) => (float[N,2] y) {
            y = Loop(n, "")<body = b (int64 i, bool on) => (bool more, float[2] w) {
                more = Identity(on)  w = Neg(x) }> }""",
    ),
    Fixed(
        "a branch with a Loop that captures its values and a weight",
        before="""g (float[2] x, int64 n) => (float[2] y) <bool c = {1}> { y = If(c)<
            then_branch = t () => (float[2] u) <float[2] k = {1, 2}> { a = Exp(x)  m = Mul(a, k)
                u = Loop(n, c, m)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                    more = Identity(on)  q = Add(v, a)  w = Sub(q, k) }> },
            else_branch = e () => (float[2] s) { s = Abs(x) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y) <bool c = {1}, float[2] k = {1, 2}> {
            a = Exp(x)  m = Mul(a, k)
            y = Loop(n, c, m)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                more = Identity(on)  q = Add(v, a)  w = Sub(q, k) }> }""",
    ),
    Fixed(
        "a branch with Ifs nested two levels deep",
        before="""g (float[2] x, bool d) => (float[2] y, float[2] z) <bool c = {1}> { z = Neg(x)  t = If(c)<
            then_branch = p () => (float[2] r) { a = Exp(x)
                r = If(d)<then_branch = p1 () => (float[2] u) { e = Add(a, x)  u = If(d)<
                            then_branch = p2 () => (float[2] f) { f = Sub(e, a) },
                            else_branch = q2 () => (float[2] h) <float[2] w = {3, 4}> { h = Mul(w, a) }> },
                          else_branch = q1 () => (float[2] v) { v = Abs(a) }> },
            else_branch = q () => (float[2] s) { s = Abs(x) }>  y = Neg(t) }""",
        after="""g (float[2] x, bool d) => (float[2] y, float[2] z) { z = Neg(x)  a = Exp(x)
            t = If(d)<then_branch = p1 () => (float[2] u) { e = Add(a, x)  u = If(d)<
                        then_branch = p2 () => (float[2] f) { f = Sub(e, a) },
                        else_branch = q2 () => (float[2] h) <float[2] w = {3, 4}> { h = Mul(w, a) }> },
                      else_branch = q1 () => (float[2] v) { v = Abs(a) }>  y = Neg(t) }""",
    ),
    Silent("the condition is an input", f"g (float[2] x, bool c) => (float[2] y) {{ y = If(c){_TWO} }}"),
    Silent(
        "the condition is an input with a default",
        f"g (float[2] x, bool c) => (float[2] y) <bool c = {{1}}> {{ y = If(c){_TWO} }}",
    ),
    Silent(
        "the size is dynamic",
        f"""g (float[M,N] x) => (float y) {_GUARDED} {{
            {_GUARD.replace("y =", "t =")}  y = ReduceMax<keepdims = 0>(t) }}""",
    ),
    Fixed(
        "both branches use the same inner names",
        before="""g (float[2] x) => (float[2] y) <bool c = {1}> { y = If(c)<then_branch = p () => (float[2] u) { a =
            Neg(x) u = Exp(a) }, else_branch = q () => (float[2] u) { a = Abs(x) u = Exp(a) }> }""",
        after="g (float[2] x) => (float[2] y) { a = Neg(x)  y = Exp(a) }",
    ),
    Fixed(
        "the type of what a function of ONNX Runtime's operators returns, which onnx.checker needs for the Resize",
        before=f"""{_CONTRIB} g (float[N,2,4] x, bool d) => (float[N,5,4] y) <bool c = {{1}}> {{
            h = If(c)<then_branch = p () => (float[N,2,4] u) {{ u = my.G(x) }},
                      else_branch = q () => (float[N,2,4] v) {{ v = Neg(x) }}>
            y = my.F(h, d) }} {_FUNCTIONS}""",
        after=f"""{_CONTRIB} g (float[N,2,4] x, bool d) => (float[N,5,4] y) <float[] u> {{
            u = my.G(x)  y = my.F(u, d) }} {_FUNCTIONS}""",
    ),
]


@rule("CTL011", ops=["If"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[39])
def if_of_different_ranks(node: Node, model: Model) -> Iterator[Match]:
    """An If whose branches differ in rank or in size, or share only some sizes, and whose condition is not constant.

    ## Why it matters
    A TensorRT tensor has one rank. The parser accepts the model and the builder refuses it, measured with TensorRT-RTX
    1.7.1: `IConditionalOutputLayer …: Must have inputs with equal ranks when condition is not a build-time constant.
    Dimensions are [3] and [N,3]`. Torch exports `squeeze(d)` so if size d is dynamic: the graph tests whether the size
    is 1 and continues with one rank or the other. Most different sizes of the same rank build, from 10.11 on.

    Before 10.11, different sizes are errors, too, and so are branches that share a dynamic size while another may
    differ, as with a cache that one branch appends to. TensorRT 10.6.0 and 8.6.1, executed: `If_5_OutputLayer:
    dimensions not compatible for if-conditional outputs`. 8.6.1 refuses [1,4] and [1,1]: `IIfConditionalOutputLayer
    inputs must have the same shape`.

    Of the same rank, TensorRT-RTX 1.7.1 refuses branches that have one dynamic size in common and another that differs,
    as in a decoder of dynamic batch size that appends to a cache or not, whatever else they compute: `Myelin ([…]
    utils.cpp:3613: CHECK(static_cast<size_t>(i) < op->input_size()) failed`, which names no node. Measured: [B,P] and
    [B,S], [B,3] and [B,4], of floats and integers; without a dynamic size in common, as [P,3] and [S,4], or [A,P] and
    [B,S], they build. Reported for TensorRT 11 too, whose compiler is the same.

    ## Fix
    Where one branch returns a Concat and the other some of its parts, one Concat remains, and Slices make the other
    parts empty where their branch is not taken. Exact. An ArgMax says which branch is taken, since TensorRT computes no
    size from a boolean input. Executed on an engine: TensorRT-RTX 1.6.1, NVIDIA H200. Only in the main graph.

    None otherwise: the correct shape depends on the input. If the size is always the same, set it in the input's shape:
    CTL010 then removes the If. Or export without the guard: `x[0]`, `reshape` or `flatten` instead of `squeeze(d)`.

    ## References
    - https://github.com/NVIDIA/TensorRT/issues/2846
    - https://github.com/NVIDIA/TensorRT/issues/1650
    - https://github.com/pytorch/pytorch/issues/53922
    """
    condition = node.require(0)
    branches = {scope.attr: scope for scope in node.subgraphs}
    if set(branches) != {"then_branch", "else_branch"} or _inline.known(condition, model) is not None:
        return
    if condition.is_constant or (condition.initializer is not None and condition.is_input):
        return  # TensorRT treats it as a weight and imports one branch only
    then, other = branches["then_branch"], branches["else_branch"]
    for output, a, b in zip(node.outputs, then.outputs, other.outputs, strict=False):
        first, second = model.shapes.shape(a), model.shapes.shape(b)
        if output is None or not is_read(output) or first is None or second is None:
            continue
        texts = [f"[{','.join(map(str, shape))}]" for shape in (first, second)]
        text = f"{output.name!r} is {texts[0]} in one branch and {texts[1]} in the other"
        if len(first) != len(second):
            yield Match(text, node=node)
        elif _inline.needs_one_shape(model) and (
            _inline.share_a_size(first, second)
            or any(equal(d, e).no for d, e in zip(first, second, strict=True))
        ):
            yield Match(f"{text}: TensorRT before 10.11 does not build different shapes", node=node)
        elif _inline.of_compiler(model) and _inline.share_a_size(first, second):
            text += ": TensorRT refuses a dynamic size in common beside one that differs"
            fix = _select.by_where(node, then, other, model)
            yield Match(text, node=node, fix=fix, reads=(*then.nodes, *other.nodes))


_LARGEST = """s = Shape(x)  d = Gather(s, z)  c = Equal(d, o)  t = If(c)
    <then_branch = p () => (float[K] u) { u = Squeeze(x, a) }, else_branch = q () => (float[A,B] v) { v = Identity(x) }>
    y = ReduceMax<keepdims = 0>(t)"""
_SHAPES = """g (float[4,3] x, bool c) => (float y) { t = If(c)<then_branch = p () => (float[4,3] u) { u = Neg(x) },
    else_branch = q () => (float[3,4] v) { v = Transpose(x) }>  y = ReduceMax<keepdims = 0>(t) }"""


if_of_different_ranks.examples = [
    Flagged(
        "torch's squeeze(0) of a dynamic size",
        f"g (float[M,N] x) => (float y) {_GUARDED} {{ {_LARGEST} }}",
        runs=False,
    ),
    Flagged(
        "the condition is an input",
        """g (float[1,3] x, bool c) => (float[3] y) <int64[1] a = {0}, int64[1] s = {3}> { t = If(c)
            <then_branch = p () => (float[K] u) { u = Squeeze(x, a) },
             else_branch = q () => (float[1,3] v) { v = Neg(x) }>
            y = Reshape(t, s) }""",
        runs=False,
    ),
    Flagged(
        "the second of two outputs, a weight in one branch",
        """g (float[3] x, bool c) => (float[3] y, float z) <int64[1] a = {0}> { y, t = If(c)
            <then_branch = p () => (float[3] u, float[3] w) { u = Neg(x)  w = Exp(x) },
             else_branch = q () => (float[3] v, float k) <float k = {1}> { v = Abs(x) }>
            z = ReduceMax<keepdims = 0>(t) }""",
        runs=False,
    ),
    Flagged("different sizes of the same rank, for TensorRT 8", _SHAPES, target="trt8.6"),
    Silent("different sizes of the same rank", _SHAPES),
    Silent(
        "a constant condition, which CTL010 reports",
        f"g (float[1,N] x) => (float y) {_GUARDED} {{ {_LARGEST} }}",
    ),
    Silent(
        "the output with different ranks is unused",
        """g (float[3] x, bool c) => (float[3] y) { y, t = If(c)
            <then_branch = p () => (float[3] u, float[3] w) { u = Neg(x)  w = Exp(x) },
             else_branch = q () => (float[3] v, float k) <float k = {1}> { v = Abs(x) }> }""",
    ),
    Silent(
        "unknown rank",
        """g (float[3] x, bool c, int64[R] s) => (float y) { t = If(c)
            <then_branch = p () => (float[3] u) { u = Neg(x) },
             else_branch = q () => (float[3] v) { v = Reshape(x, s) }>  y = ReduceMax<keepdims = 0>(t) }""",
        runs=False,
    ),
    Fixed(
        "a cache that one branch appends to",
        before="""g (float[B,P] x, float[B,S] z, bool c) => (float y) { t = If(c)
            <then_branch = p () => (float[B,K] u) { u = Concat<axis = 1>(x, z) },
             else_branch = q () => (float[B,S] v) { v = Identity(z) }>  y = ReduceMax<keepdims = 0>(t) }""",
        after="""g (float[B,P] x, float[B,S] z, bool c) => (float y) <float[1,1] h = {0.5}, int64[2] r = {1,1},
            int64[1] n = {0}, int64[1] a = {1}, int64[1] e = {2}> {
            f = Cast<to = FLOAT>(c)  g = Reshape(f, r)  d = Concat<axis = 1>(h, g)
            i = ArgMax<axis = 1, keepdims = 0>(d)  s = Shape(x)  w = Slice(s, a, e)  m = Mul(w, i)
            k = Slice(x, n, m, a)  t = Concat<axis = 1>(k, z)  y = ReduceMax<keepdims = 0>(t) }""",
        differs={"branch": "sizes from data only in the main graph"},
    ),
    Flagged(
        "parts whose other sizes may differ while one is empty",
        """g (float[A,B,P] x, float[C,B,S] z, bool c) => (float y) { t = If(c)
            <then_branch = p () => (float[C,B,K] u) { u = Concat<axis = 2>(x, z) },
             else_branch = q () => (float[C,B,S] v) { v = Identity(z) }>  y = ReduceMax<keepdims = 0>(t) }""",
    ),
    Flagged(
        "integers of one dynamic size and two static ones, for TensorRT-RTX",
        """g (int32[B,3] x, int32[B,4] z, bool c) => (int32 y) { t = If(c)
            <then_branch = p () => (int32[B,3] u) { u = Abs(x) },
             else_branch = q () => (int32[B,4] v) { v = Neg(z) }>  y = ReduceMax<keepdims = 0>(t) }""",
        target="rtx",
    ),
    Silent(
        "a dynamic size that is the same in both branches",
        """g (float[N] x, bool c) => (float y) { t = If(c)
            <then_branch = p () => (float[A] u) { u = Concat<axis = 0>(x, x) },
             else_branch = q () => (float[B] v) { w = Neg(x)  v = Concat<axis = 0>(w, x) }>
            y = ReduceMax<keepdims = 0>(t) }""",
    ),
    Silent(
        "no dynamic size in common",
        """g (int32[P,3] x, int32[S,3] z, bool c) => (int32 y) { t = If(c)
            <then_branch = p () => (int32[P,3] u) { u = Abs(x) },
             else_branch = q () => (int32[S,3] v) { v = Neg(z) }>  y = ReduceMax<keepdims = 0>(t) }""",
    ),
    Silent(
        "a size in common, for TensorRT 10.15, where nothing was measured",
        """g (float[B,P] x, float[B,S] z, bool c) => (float y) { t = If(c)
            <then_branch = p () => (float[B,P] u) { u = Abs(x) },
             else_branch = q () => (float[B,S] v) { v = Neg(z) }>  y = ReduceMax<keepdims = 0>(t) }""",
        target="trt10",
    ),
    Flagged(
        "a cache that one branch appends to, for TensorRT 10.6",
        """g (float[B,P] x, float[B,S] z, bool c) => (float y) { t = If(c)
            <then_branch = p () => (float[B,K] u) { u = Concat<axis = 1>(x, z) },
             else_branch = q () => (float[B,S] v) { v = Identity(z) }>  y = ReduceMax<keepdims = 0>(t) }""",
        target="trt10.6",
    ),
]

_ELEMENTWISE = frozenset(("Add", "Cast", "Div", "Identity", "Max", "Min", "Mul", "Sub"))
_REST = frozenset(
    ("Constant", "NonMaxSuppression", "ReduceMax", "ReduceMin", "Slice", "Squeeze", "Unsqueeze")
)


@rule("CTL022", ops=["If"], safety=Safety.EXACT, severity=Severity.WARNING, hazards=[30])
def if_for_an_empty_tensor(node: Node, model: Model) -> Iterator[Match]:
    """An If that returns a constant where a tensor is empty, and else runs NonMaxSuppression over it.

    ## Why it matters
    The number of boxes that NonMaxSuppression keeps depends on data, and the builder wants such sizes at the top level.
    TensorRT 10.6.0 parses the model and refuses to build it, on an NVIDIA H200: `DeviceToShapeHostNode should not have
    been inserted into a scope`, or `Assertion !mValueMapUndo failed`, which name no node. torchvision's detectors
    (RetinaNet, FCOS, SSDlite) are exported so: `batched_nms` tests whether there are boxes at all. FCOS and RetinaNet
    without the If build, and the engines are correct.

    - **error**: for TensorRT 10.0 to 10.13.
    - **warning**: for TensorRT 10.14 to 10.16, with which this was not tried.

    Silent for other targets, about which nothing is known. Where TensorRT-RTX judges a part of the model, because it
    has no NonMaxSuppression, it cannot compare the parts of original and new model: they are cut at other values.

    ## Fix
    The other branch replaces the If. Exact: the branch computes an empty tensor of the same shape from an empty one.
    That is shown before, by sizes: each dynamic size in the branch is that of the tested tensor or the number of boxes
    that are kept, no operator can fail because a size is 0, and ONNX defines NonMaxSuppression of no boxes (none are
    kept) and ReduceMax over no elements (minus infinity). Else the rule is silent.

    ## References
    - https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
    - https://onnx.ai/onnx/operators/onnx__ReduceMax.html
    """
    target = target_of(model)
    if target.package != "tensorrt" or not (10,) <= target.oldest < (11,):
        return
    tested = _tested(node.require(0), model)
    branches = {scope.attr: scope for scope in node.subgraphs}
    if tested is None or set(branches) != {"then_branch", "else_branch"}:
        return
    empty, branch = branches["then_branch"], branches["else_branch"]
    if not _agree_if_empty(tested, empty, branch, model):
        return
    yield Match(
        "NonMaxSuppression in a branch, whose result has a size that depends on data",
        node=node,
        severity=Severity.ERROR if target.oldest < (10, 14) else None,
        fix=_inline.replace(node, branch),
        reads=(*empty.nodes, *branch.nodes),
    )


def _tested(condition: Value, model: Model) -> Dim | None:
    """The only dynamic size of the tensor that the condition finds empty; None for other conditions."""
    test = _made_by(condition, "Equal")
    if test is None:
        return None
    number, zero = test.require(0), test.require(1).constant()
    size = _made_by(number, "Size", "ReduceProd")
    if zero is None or zero.size != 1 or zero.item() != 0 or size is None:
        return None
    if size.op_type == "ReduceProd":
        size = _made_by(size.require(0), "Shape")
        if size is None or size.proto.attribute:
            return None
    dims = model.shapes.shape(size.require(0)) or ()
    dynamic = [dim for dim in dims if dim.value is None]
    return dynamic[0] if len(dynamic) == 1 and all(dim.value != 0 for dim in dims) else None


def _made_by(value: Value, *operators: str) -> Node | None:
    """The node of one of these operators that computes a value, at most with another type."""
    while (moved := producer(value, "Cast", "Identity")) is not None:
        value = moved.require(0)
    return producer(value, *operators)


def _agree_if_empty(tested: Dim, empty: Scope, branch: Scope, model: Model) -> bool:
    """Whether both branches return empty tensors of the same shapes if the tested size is 0."""
    zeros = [tested]
    for node in branch.nodes:
        if not node.is_onnx or not _runs(node, zeros, model):
            return False
        if node.op_type == "NonMaxSuppression":
            kept = model.shapes.shape(node.require_output())
            if kept is None:
                return False
            zeros.append(kept[0])
    if len(zeros) == 1 or len(empty.outputs) != len(branch.outputs):
        return False
    return all(_is_same(a, b, zeros, model) for a, b in zip(empty.outputs, branch.outputs, strict=True))


def _is_same(constant: Value, result: Value, zeros: Sequence[Dim], model: Model) -> bool:
    """Whether a result is as empty as a constant."""
    array, shape = constant.constant(), model.shapes.shape(result)
    if array is None or array.size or shape is None:
        return False
    sizes = tuple(0 if _is_zero(dim, zeros) else dim.value for dim in shape)
    return bool(sizes == array.shape)


def _runs(node: Node, zeros: Sequence[Dim], model: Model) -> bool:
    """Whether a node cannot fail because these sizes are 0."""
    shapes = [model.shapes.shape(value) for value in node.inputs if value is not None]
    if any(shape is None for shape in shapes):
        return False
    known = [shape for shape in shapes if shape is not None]
    if any(dim.value is None and not _is_zero(dim, zeros) for shape in known for dim in shape):
        return False
    if node.op_type == "Gather":
        return not _is_zero(known[0][node.attr("axis", 0)], zeros)
    return node.op_type in _REST or (node.op_type in _ELEMENTWISE and _broadcast(known, zeros))


def _broadcast(shapes: Sequence[Sequence[Dim]], zeros: Sequence[Dim]) -> bool:
    """Whether shapes still broadcast to each other if these sizes are 0: only with 0 and 1."""
    for sizes in zip_longest(*(reversed(shape) for shape in shapes)):
        found = [_is_zero(dim, zeros) for dim in sizes if dim is not None and dim.value != 1]
        if any(found) and not all(found):
            return False
    return True


def _is_zero(dim: Dim, zeros: Sequence[Dim]) -> bool:
    return any(equal(dim, zero).yes for zero in zeros)


_NMS = """e = Equal(n, z)  k = If(e)<then_branch = p () => (int64[0] u) <int64[0] u = {}> { },
    else_branch = q () => (int64[K] v) <int64[1] i = {2}, int64[1] a = {0}, int64[2] b = {0, 1}, int64[1] l = {1},
        int64[1] r = {100}, float[1] t = {0.5}, float o = {1}> {
        m = ReduceMax<keepdims = 0>(x)  c = Add(m, o)  f = Mul(d, c)  h = Unsqueeze(f, l)  w = Add(x, h)
        j = Unsqueeze(w, a)  g = Unsqueeze(s, b)  y = NonMaxSuppression(j, g, r, t)  h2 = Gather<axis = 1>(y, i)
        v = Squeeze(h2, l) }>"""
_COUNTED = "q = Shape(x)  n = ReduceProd<keepdims = 0>(q)"
_HEAD = "g (float[N,4] x, float[N] s, float[N] d) => (int64[K] k) <int64 z = {0}>"
_PLAIN = """g (float[N,4] x, float[N] s, float[N] d) => (int64[K] k) <int64[1] i = {2}, int64[1] a = {0},
    int64[2] b = {0, 1}, int64[1] l = {1}, int64[1] r = {100}, float[1] t = {0.5}, float o = {1}> {
    m = ReduceMax<keepdims = 0>(x)  c = Add(m, o)  f = Mul(d, c)  h = Unsqueeze(f, l)  w = Add(x, h)
    j = Unsqueeze(w, a)  g = Unsqueeze(s, b)  y = NonMaxSuppression(j, g, r, t)  h2 = Gather<axis = 1>(y, i)
    k = Squeeze(h2, l) }"""

if_for_an_empty_tensor.examples = [
    Fixed(
        "torchvision's batched_nms",
        before=f"{_HEAD} {{ {_COUNTED} {_NMS} }}",
        after=_PLAIN,
        target="trt10.6",
    ),
    Fixed(
        "the same for TensorRT 10.15, the number of elements by Size",
        before=f"{_HEAD} {{ n = Size(x) {_NMS} }}",
        after=_PLAIN,
        target="trt10",
    ),
    Silent(
        "scores of another number, with which the other branch may fail",
        f"{_HEAD.replace('float[N] s', 'float[M] s')} {{ {_COUNTED} {_NMS} }}",
        runs=False,
        target="trt10.6",
    ),
    Silent(
        "a result that is not empty",
        f"{_HEAD} {{ {_COUNTED} {_NMS.replace('int64[0] u) <int64[0] u = {}>', 'int64[1] u) <int64[1] u = {7}>')} }}",
        target="trt10.6",
    ),
    Silent("TensorRT 11, of which nothing is known", f"{_HEAD} {{ {_COUNTED} {_NMS} }}"),
    Silent("TensorRT-RTX, which has no NonMaxSuppression", f"{_HEAD} {{ {_COUNTED} {_NMS} }}", target="rtx"),
    Silent(
        "a condition that another tensor decides",
        f"{_HEAD} {{ q = Shape(s)  n = Gather(q, z) {_NMS} }}",
        target="trt10.6",
    ),
]
