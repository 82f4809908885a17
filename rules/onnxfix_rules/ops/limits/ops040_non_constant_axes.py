"""OPS040: axes and depths that are not constant."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, Value, rule
from onnxfix_rules.ops.limits import _axes

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


@rule(
    "OPS040",
    ops=[*_REDUCTIONS, "OneHot", "Squeeze", "Unsqueeze"],
    severity=Severity.ERROR,
    hazards=[56],
    general=True,
    differs={"function": "an input of a function may be a constant where it is called"},
)
def non_constant_axes(node: Node, model: Model) -> Iterator[Match]:
    """The axes of a reduction, Squeeze or Unsqueeze, or the depth of OneHot, are not constant.

    ## Why it matters
    The rank or shape of the result depends on them, and TensorRT must know it at build time. Measured with TensorRT-RTX
    1.7.1: `Axis input must resolve to a build-time constant (an initializer or a constant-foldable subgraph)!`,
    `unsqueeze axis is not a constant`, `squeeze axis is not a constant`, and from the builder `Depth input of
    IOneHotLayer must be a build time constant`. The parser follows a Cast or an Identity to a constant, but no
    arithmetic, Concat or Shape. The axis of CumSum, the diagonal of Trilu, and the inputs of Slice, Tile and Pad need
    not be constant.

    ## Fix
    None. If the number of axes is known, OPS041 and OPS042 have a fix, and this rule does not report the node. INT001
    folds what can be computed from constants. An input that is always the same should become a constant in the
    exporter.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    value = _axes.non_constant(node, model)
    if value is None:
        return
    what = "depth" if node.op_type == "OneHot" else "axes"
    source = "from a graph input" if _from_caller(value) else "computed by the model"
    yield Match(
        f"{what} of this {node.op_type} {source}: TensorRT requires a constant",
        node=node,
        reads=(value,),
    )


def _from_caller(value: Value) -> bool:
    return value.is_input and value.scope.parent is None


_G = "g (float[2,3,4] x, int64[1] a)"


non_constant_axes.examples = [
    Flagged(
        "the axes of a reduction are a graph input",
        f"{_G} => (float[A,B,C] y) {{ y = ReduceSum(x, a) }}",
        runs=False,
    ),
    Flagged(
        "the axes of an Unsqueeze are a graph input",
        f"{_G} => (float[A,B,C,D] y) {{ y = Unsqueeze(x, a) }}",
        runs=False,
    ),
    Flagged(
        "the axes of a Squeeze are a graph input",
        "g (float[1,3,1] x, int64[1] a) => (float[A,B] y) { y = Squeeze(x, a) }",
        runs=False,
    ),
    Flagged(
        "the axes are computed from data, inside a branch",
        """g (float[2,3] x, bool c) => (float[A,B] y) {
            m = ReduceMax<keepdims = 0>(x)  i = Cast<to = 7>(m)  a = Unsqueeze(i, z)  z = Constant<value_ints = [0]>()
            y = If(c)<then_branch = p () => (float[A,B] u) { u = ReduceMean(x, a) },
                      else_branch = q () => (float[A,B] v) { v = Neg(x) }> }""",
        runs=False,
    ),
    Flagged(
        "the depth is a dynamic dimension",
        """g (int64[3] i, float[N,5] x) => (float[A,B] y) <float[2] v = {0, 1}> {
            d = Shape<start = 0, end = 1>(x)  y = OneHot(i, d, v) }""",
        runs=False,
    ),
    Silent(
        "the depth is a static dimension",
        """g (int64[3] i, float[N,5] x) => (float[3,5] y) <float[2] v = {0, 1}> {
            d = Shape<start = 1>(x)  y = OneHot(i, d, v) }""",
    ),
    Silent("constant", "g (float[2,3,4] x) => (float[2,1,4] y) <int64[1] a = {1}> { y = ReduceSum(x, a) }"),
    Silent(
        "axes computed from constants, which INT001 folds",
        """g (float[2,3,4] x) => (float[2] y) <int64 a = {1}, int64 b = {3}, int64 d = {1}> {
            r = Range(a, b, d)  y = ReduceSum<keepdims = 0>(x, r) }""",
    ),
    Silent(
        "axes with a default",
        f"{_G} => (float[A,B,C] y) <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}",
        runs=False,
    ),
    Silent(
        "CumSum, whose axis need not be constant",
        "g (float[2,3] x, int64 a) => (float[2,3] y) { y = CumSum(x, a) }",
        runs=False,
    ),
    Silent(
        "in a function, whose caller may pass a constant",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A] y) <int64[1] a = {1}> { y = my.F(x, a) }
            <domain: "my", opset_import: ["" : 18]> F (x, a) => (y) { y = ReduceSum<keepdims = 0>(x, a) }""",
    ),
    Silent(
        "before opset 13 axes are attributes",
        "g (float[2,3] x) => (float[2,1] y) { y = ReduceSum<axes = [1]>(x) }",
        opset=11,
    ),
    Silent(
        "Trilu's k, Tile's repeats and Pad's pads that are not constant",
        """g (float[3,3] x, int64 k, int64[2] r, int64[4] p) => (float[3,3] y, float[A,B] z, float[C,D] w) { y
            = Trilu<upper=1>(x, k) z = Tile(x, r) w = Pad(x, p) }""",
    ),
    Silent(
        "starts, ends and axes of a Slice that are not constant",
        """g (float[2,3] x, int64[1] s, int64[1] e, int64[1] a) => (float[A,B] y) { y = Slice(x, s, e, a) }""",
    ),
    Flagged(
        "depth as a graph input",
        "g (int64[3] i, int64 d) => (float[A,B] y) <float[2] v={0,1}> { y = OneHot(i, d, v) }",
    ),
]
