"""OPS040: axes and depths that are only known at run time."""

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
    hazards=[26],
    general=True,
    differs={"function": "an input of a function may be a constant where it is called"},
)
def non_constant_axes(node: Node, model: Model) -> Iterator[Match]:
    """The axes of a reduction, Squeeze or Unsqueeze, or the depth of OneHot, come at run time.

    ## Why it matters
    The rank or shape of the result depends on them, and TensorRT has to know it. Measured with TensorRT-RTX 1.7.1:
    `Axis input must resolve to a build-time constant (an initializer or a constant-foldable subgraph)!`, `unsqueeze
    axis is not a constant`, `squeeze axis is not a constant`, and from the builder `Depth input of IOneHotLayer must
    be a build time constant`. The parser follows a Cast or an Identity to a constant, but no arithmetic, Concat or
    Shape. The axis of CumSum, the diagonal of Trilu, and what Slice, Tile and Pad read may come at run time.

    ## Fix
    None here. Where it is known how many axes come, OPS041 and OPS042 have one and this rule is silent about them.
    What can be computed beforehand is written as a constant by INT001. An input that is always the same is best made a
    constant in the exporter.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    value = _axes.at_run_time(node, model)
    if value is None:
        return
    what = "depth" if node.op_type == "OneHot" else "axes"
    source = "the caller gives" if _from_caller(value) else "the model computes"
    yield Match(
        f"the {what} of this {node.op_type}, which {source} at run time: TensorRT wants a constant",
        node=node,
        reads=(value,),
    )


def _from_caller(value: Value) -> bool:
    return value.is_input and value.scope.parent is None


_G = "g (float[2,3,4] x, int64[1] a)"


non_constant_axes.examples = [
    Flagged(
        "the caller gives the axes of a reduction",
        f"{_G} => (float[A,B,C] y) {{ y = ReduceSum(x, a) }}",
        runs=False,
    ),
    Flagged(
        "the caller gives where an axis is added",
        f"{_G} => (float[A,B,C,D] y) {{ y = Unsqueeze(x, a) }}",
        runs=False,
    ),
    Flagged(
        "the caller gives which axis goes",
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
        "as many classes as the batch has samples",
        """g (int64[3] i, float[N,5] x) => (float[A,B] y) <float[2] v = {0, 1}> {
            d = Shape<start = 0, end = 1>(x)  y = OneHot(i, d, v) }""",
        runs=False,
    ),
    Silent(
        "as many classes as a static axis has elements",
        """g (int64[3] i, float[N,5] x) => (float[3,5] y) <float[2] v = {0, 1}> {
            d = Shape<start = 1>(x)  y = OneHot(i, d, v) }""",
    ),
    Silent("constant", "g (float[2,3,4] x) => (float[2,1,4] y) <int64[1] a = {1}> { y = ReduceSum(x, a) }"),
    Silent(
        "axes that can be computed beforehand, which INT001 does",
        """g (float[2,3,4] x) => (float[2] y) <int64 a = {1}, int64 b = {3}, int64 d = {1}> {
            r = Range(a, b, d)  y = ReduceSum<keepdims = 0>(x, r) }""",
    ),
    Silent(
        "axes for which there is a default",
        f"{_G} => (float[A,B,C] y) <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}",
        runs=False,
    ),
    Silent(
        "a running sum, whose axis may come at run time",
        "g (float[2,3] x, int64 a) => (float[2,3] y) { y = CumSum(x, a) }",
        runs=False,
    ),
    Silent(
        "in a function, whose caller may give a constant",
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
        "Trilu's k, Tile's repeats and Pad's pads at run time",
        """g (float[3,3] x, int64 k, int64[2] r, int64[4] p) => (float[3,3] y, float[A,B] z, float[C,D] w) { y
            = Trilu<upper=1>(x, k) z = Tile(x, r) w = Pad(x, p) }""",
    ),
    Silent(
        "starts, ends and axes of a Slice at run time",
        """g (float[2,3] x, int64[1] s, int64[1] e, int64[1] a) => (float[A,B] y) { y = Slice(x, s, e, a) }""",
    ),
    Flagged(
        "depth as a graph input",
        "g (int64[3] i, int64 d) => (float[A,B] y) <float[2] v={0,1}> { y = OneHot(i, d, v) }",
    ),
]
