"""CTL011: Ifs whose branches differ in rank or dynamic size."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, equal, is_read, rule, target_of
from onnxfix_rules.ctl import _inline


@rule("CTL011", ops=["If"], severity=Severity.ERROR, hazards=[39])
def if_of_different_ranks(node: Node, model: Model) -> Iterator[Match]:
    """An If whose branches differ in rank, or share only some dynamic sizes, and whose condition is not constant.

    ## Why it matters
    A TensorRT tensor has one rank. The parser accepts the model and the builder refuses it, measured with TensorRT-RTX
    1.7.1: `IConditionalOutputLayer …: Must have inputs with equal ranks when condition is not a build-time constant.
    Dimensions are [3] and [N,3]`. Torch exports `squeeze(d)` so if size d is dynamic: the graph tests whether the size
    is 1 and continues with one rank or the other. Most different sizes of the same rank build. TensorRT 8 also
    refuses different shapes, which this rule reports for that target (a warning).

    Of the same rank, TensorRT-RTX 1.7.1 refuses branches that have one dynamic size in common and another that differs,
    as in a decoder of dynamic batch size that appends to a cache or not, whatever else they compute: `Myelin ([…]
    utils.cpp:3613: CHECK(static_cast<size_t>(i) < op->input_size()) failed`, which names no node. Measured: [B,P] and
    [B,S], [B,3] and [B,4], of floats and integers; without a dynamic size in common, as [P,3] and [S,4], or [A,P] and
    [B,S], they build. Reported for TensorRT 11 too, whose compiler is the same.

    ## Fix
    None: the correct shape depends on the input. A cache may be an input of size 0 instead. If the size is always the
    same, set it in the input's shape: CTL010 then removes the If. Or export without the guard: `x[0]`, `reshape` or
    `flatten` instead of `squeeze(d)`.

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
        if len(first) != len(second):
            yield Match(f"{output.name!r} is {texts[0]} in one branch and {texts[1]} in the other", node=node)
        elif not target_of(model).int64 and any(equal(d, e).no for d, e in zip(first, second, strict=True)):
            yield Match(
                f"{output.name!r} is {texts[0]} in one branch and {texts[1]} in the other: TensorRT 8 refuses "
                "different shapes",
                node=node,
                severity=Severity.WARNING,
            )
        elif _inline.of_compiler(model) and _inline.share_a_size(first, second):
            yield Match(
                f"{output.name!r} is {texts[0]} in one branch and {texts[1]} in the other: TensorRT refuses a "
                "dynamic size in common beside one that differs",
                node=node,
            )


_GUARD = """s = Shape(x)  d = Gather(s, z)  c = Equal(d, o)  t = If(c)
    <then_branch = p () => (float[K] u) { u = Squeeze(x, a) }, else_branch = q () => (float[A,B] v) { v = Identity(x) }>
    y = ReduceMax<keepdims = 0>(t)"""
_GUARDED = "<int64[1] a = {0}, int64 z = {0}, int64 o = {1}>"
_SHAPES = """g (float[4,3] x, bool c) => (float y) { t = If(c)<then_branch = p () => (float[4,3] u) { u = Neg(x) },
    else_branch = q () => (float[3,4] v) { v = Transpose(x) }>  y = ReduceMax<keepdims = 0>(t) }"""


if_of_different_ranks.examples = [
    Flagged(
        "torch's squeeze(0) of a dynamic size",
        f"g (float[M,N] x) => (float y) {_GUARDED} {{ {_GUARD} }}",
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
        f"g (float[1,N] x) => (float y) {_GUARDED} {{ {_GUARD} }}",
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
    Flagged(
        "a cache that one branch appends to",
        """g (float[B,P] x, float[B,S] z, bool c) => (float y) { t = If(c)
            <then_branch = p () => (float[B,K] u) { u = Concat<axis = 1>(x, z) },
             else_branch = q () => (float[B,S] v) { v = Identity(z) }>  y = ReduceMax<keepdims = 0>(t) }""",
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
        "a size in common, for TensorRT 10, where nothing was measured",
        """g (float[B,P] x, float[B,S] z, bool c) => (float y) { t = If(c)
            <then_branch = p () => (float[B,P] u) { u = Abs(x) },
             else_branch = q () => (float[B,S] v) { v = Neg(z) }>  y = ReduceMax<keepdims = 0>(t) }""",
        target="trt10",
    ),
]
