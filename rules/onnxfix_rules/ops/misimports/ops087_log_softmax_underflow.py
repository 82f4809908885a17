"""OPS087: LogSoftmax, which TensorRT decomposes in a way that underflows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnx import TensorProto

from onnxfix.rule import Dim, Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Silent, Value, rule

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_FAR: dict[int, str] = {
    TensorProto.FLOAT: "104 below the largest score in float32",
    TensorProto.DOUBLE: "104 below the largest score in float32, as which float64 is imported",
    TensorProto.FLOAT16: "17 below the largest score in half precision",
    TensorProto.BFLOAT16: "93 below the largest score in bfloat16",
}
"""Where exp(-distance) rounds to 0: half of the type's smallest value is e to this power."""


@rule("OPS087", ops=["LogSoftmax"], safety=Safety.NUMERIC, hazards=[29])
def log_softmax_underflow(node: Node, model: Model) -> Iterator[Match]:
    """A LogSoftmax: TensorRT computes the softmax first, so probabilities that underflow to 0 become -inf.

    ## Why it matters
    ONNX gives 0 and -200 for the scores 0 and -200. TensorRT has no such layer: it computes the probabilities, of which
    the second is 0, and then their logarithms, 0 and -inf. A probability rounds to 0 where its score is 104 below the
    row's largest in float32, 93 in bfloat16 and 17.3 in half precision (less by the logarithm of the row's sum; sooner
    where a device flushes subnormal numbers: 87 and 9.7). In half precision that is common with the scores of a
    vocabulary, in float32 with scores that are masked by -1e4 or -1e9. From 9.7 on half precision has few bits left:
    finite results may be wrong by 0.7. Infinity times 0, as in a loss, a beam's sum or a distance of distributions, is
    NaN.

    Measured with TensorRT-RTX 1.7.1 by reading the imported network: `SOFTMAX`, `UNARY` with `LOG`, both in the input's
    type, in opsets 7 to 18, for float, half and bfloat16, and for double, which is imported as float32. The builder
    does not correct it: its log names the kernel `MoveMaxrSubExpSumDivLog` for rows of 64 scores, and `SubExpSum` and
    `DivLog` for 50000. After the rewrite below the last one is `LogSubCast`. It builds without a warning. No engine was
    executed, and other versions were not measured; full TensorRT fuses layers in its own way.

    ## Fix
    Subtract the largest score, and then the logarithm of the sum of exponentials, which is between 0 and the logarithm
    of the number of scores, by ReduceMax, Sub, Exp, ReduceSum, Log and Sub: ONNX's function body for the operator since
    opset 13. Before that LogSoftmax normalizes over all axes from `axis` on together, and so do the reductions. half
    and bfloat16 are computed in float32 between two Casts: a sum of more than 65504 exponentials may be infinite in
    half, and a sum in bfloat16 may stop at 256. Where the type is unknown, as in a local function, it stays.

    NUMERIC: ONNX Runtime computes it in this way, up to rounding. -inf, inf and NaN among the scores give the same as
    before; next to an inf, which turns its row into NaN, ONNX Runtime gives -inf in float64. No fix where the rank is
    unknown before opset 13, and before opset 7.

    Nothing is reported where the axis has one score, and where only an ArgMax along the axis reads the result: the
    largest probability of n is at least 1/n.

    ## References
    - https://onnx.ai/onnx/operators/onnx__LogSoftmax.html: the text says Log(Softmax(input)), and `onnx.reference`
      (1.23) computes that; the function and ONNX Runtime do not
    - NVIDIA/TensorRT issue 4772, onnx/onnx-tensorrt pull request 1055: ReduceLogSumExp, without the maximum subtracted
    """
    data, output = node.require(0), node.require_output()
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    axes = _axes(node, shape)
    if shape is not None and axes is not None and _is_harmless(node.opset, shape, axes):
        return
    if output.replaceable and all(_is_argmax(use.node, axes, shape) for use in output.uses):
        return
    far = "far below the largest score" if elem is None else _FAR.get(elem, "far below the largest score")
    message = f"LogSoftmax: TensorRT computes the logarithm of probabilities, which is -inf from {far} on"
    yield Match(message, node=node, fix=_fix(node, data, axes, elem), reads=(data,))


def _axes(node: Node, shape: tuple[Dim, ...] | None) -> tuple[int, ...] | None:
    """The axes that are normalized together; None where unknown, empty where the axis does not exist."""
    new = node.opset >= 13
    axis = node.attr("axis", -1 if new else 1)
    if shape is None:
        return (axis,) if new or (axis == -1 and node.opset >= 11) else None
    rank = len(shape)
    if not (0 if node.opset < 11 else -rank) <= axis < rank:
        return ()
    return (axis,) if new else tuple(range(axis % rank, rank))


def _is_harmless(opset: int, shape: tuple[Dim, ...], axes: tuple[int, ...]) -> bool:
    """Whether every probability is 1, or TensorRT rejects the node anyway, as without such an axis."""
    single = all(shape[axis].value == 1 for axis in axes)
    return single or any(dim.value == 0 for dim in shape) or (len(shape) == 1 and opset >= 13)


def _is_argmax(node: Node, axes: tuple[int, ...] | None, shape: tuple[Dim, ...] | None) -> bool:
    """Whether the node is an ArgMax along the axis, which uses only the largest: its probability is at least 1/n."""
    if axes is None or len(axes) != 1 or not node.is_onnx or node.op_type != "ArgMax":
        return False
    axis = node.attr("axis", 0)
    return bool(axis == axes[0] if shape is None else (axis - axes[0]) % len(shape) == 0)


def _fix(node: Node, data: Value, axes: tuple[int, ...] | None, elem: int | None) -> Fix | None:
    if axes is None or node.opset < 7:
        return None
    draft, is_narrow = Draft(node), elem in _NARROW
    scores: Value | str = draft.cast(data, TensorProto.FLOAT, hint="wide") if is_narrow else data
    largest = draft.along("ReduceMax", scores, axes)
    shifted = draft.add("Sub", [scores, largest], hint="below")
    total = draft.along("ReduceSum", draft.add("Exp", [shifted]), axes)
    result = draft.add("Sub", [shifted, draft.add("Log", [total])])
    draft.replace_output(node, draft.add("Cast", [result], to=elem) if is_narrow else result)
    return Fix("subtract the logarithm of the sum of exponentials", draft.edits, Safety.NUMERIC)


def _after(io: str, axes: str, source: str = "x", target: str = "y", more: str = "", rest: str = "") -> str:
    """The example's result since opset 18: both reductions have their axes as an input."""
    return f"""{io} <int64[1] a = {{{axes}}}, int64[1] b = {{{axes}}}> {{ {more}
        m = ReduceMax({source}, a)  d = Sub({source}, m)  e = Exp(d)  s = ReduceSum(e, b)
        l = Log(s)  {target} = Sub(d, l)  {rest} }}"""


_N8 = "g (float[N,8] x) => (float[N,8] y)"
_HALF = "g (float16[N,60000] x) => (float16[N,60000] y)"
_fixed = partial(Fixed, safety=Safety.NUMERIC)


def _log_softmax(x: str, attributes: str, elem: str = "float") -> str:
    return f"g ({elem}[{x}] x) => ({elem}[{x}] y) {{ y = LogSoftmax{attributes}(x) }}"


log_softmax_underflow.examples = [
    _fixed("the last axis, by default", before=_log_softmax("N,8", ""), after=_after(_N8, "-1")),
    _fixed(
        "another axis, of dynamic size, between other nodes",
        before="g (float[N,C,H,W] x) => (float[N,C,H,W] y) { n = Neg(x)  z = LogSoftmax<axis = 1>(n)  y = Neg(z) }",
        after=_after("g (float[N,C,H,W] x) => (float[N,C,H,W] y)", "1", "n", "z", "n = Neg(x)", "y = Neg(z)"),
    ),
    _fixed(
        "half precision and a vocabulary: computed in float32",
        before=_log_softmax("N,60000", "<axis = -1>", elem="float16"),
        after=_after(_HALF, "-1", "w", "z", "w = Cast<to = FLOAT>(x)", "y = Cast<to = FLOAT16>(z)"),
    ),
    _fixed(
        "bfloat16",
        before=_log_softmax("2,8", "", elem="bfloat16"),
        after=_after(
            "g (bfloat16[2,8] x) => (bfloat16[2,8] y)",
            "-1",
            "w",
            "z",
            "w = Cast<to = FLOAT>(x)",
            "y = Cast<to = BFLOAT16>(z)",
        ),
        runs=False,
    ),
    _fixed(
        "float64, which TensorRT imports as float32",
        before=_log_softmax("2,8", "", elem="double"),
        after=_after("g (double[2,8] x) => (double[2,8] y)", "-1"),
    ),
    _fixed(
        "before opset 18 the axes of ReduceMax are an attribute",
        before=_log_softmax("N,8", "<axis = -2>"),
        after=f"""{_N8} <int64[1] b = {{-2}}> {{ m = ReduceMax<axes = [-2]>(x)  d = Sub(x, m)  e = Exp(d)
            s = ReduceSum(e, b)  l = Log(s)  y = Sub(d, l) }}""",
        opset=13,
    ),
    _fixed(
        "before opset 13 all axes from the given one on count together; both reductions have attributes",
        before=_log_softmax("2,3,4", ""),
        after="""g (float[2,3,4] x) => (float[2,3,4] y) { m = ReduceMax<axes = [1, 2]>(x)  d = Sub(x, m)
            e = Exp(d)  s = ReduceSum<axes = [1, 2]>(e)  l = Log(s)  y = Sub(d, l) }""",
        opset=12,
    ),
    _fixed(
        "a vector before opset 13, which TensorRT treats as a matrix",
        before=_log_softmax("8", "<axis = 0>"),
        after="""g (float[8] x) => (float[8] y) { m = ReduceMax<axes = [0]>(x)  d = Sub(x, m)
            e = Exp(d)  s = ReduceSum<axes = [0]>(e)  l = Log(s)  y = Sub(d, l) }""",
        opset=9,
    ),
    _fixed(
        "in a local function, where the type is unknown: computed in its own type",
        before="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[2,3] x) => (float[2,3] y) { y = my.F(x) }
            <domain: "my", opset_import: ["" : 18]> F (i) => (o) { o = LogSoftmax<axis = 1>(i) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[2,3] x) => (float[2,3] y) { y = my.F(x) }
            <domain: "my", opset_import: ["" : 18]> F (i) => (o) {
                a = Constant<value = int64[1] {1}>()  b = Constant<value = int64[1] {1}>()
                m = ReduceMax(i, a)  d = Sub(i, m)  e = Exp(d)  s = ReduceSum(e, b)  l = Log(s)  o = Sub(d, l) }""",
    ),
    _fixed(
        "an ArgMax along another axis, which compares rows",
        before="g (float[4,8] x) => (int64[1,8] y) { z = LogSoftmax(x)  y = ArgMax(z) }",
        after=_after("g (float[4,8] x) => (int64[1,8] y)", "-1", "x", "z", rest="y = ArgMax(z)"),
    ),
    _fixed(
        "an ArgMax, and another node that reads the logarithms",
        before="g (float[N,8] x) => (float[N,8] y, int64[N,1] i) { y = LogSoftmax(x)  i = ArgMax<axis = -1>(y) }",
        after=_after(
            "g (float[N,8] x) => (float[N,8] y, int64[N,1] i)", "-1", rest="i = ArgMax<axis = -1>(y)"
        ),
    ),
    _fixed(
        "a TopK: all but the first may be far below it",
        before="""g (float[N,8] x) => (float[N,3] y, int64[N,3] i) <int64[1] k = {3}> {
            z = LogSoftmax<axis = 1>(x)  y, i = TopK<axis = 1>(z, k) }""",
        after="""g (float[N,8] x) => (float[N,3] y, int64[N,3] i)
            <int64[1] k = {3}, int64[1] a = {1}, int64[1] b = {1}> {
            m = ReduceMax(x, a)  d = Sub(x, m)  e = Exp(d)  s = ReduceSum(e, b)  l = Log(s)  z = Sub(d, l)
            y, i = TopK<axis = 1>(z, k) }""",
    ),
    Flagged(
        "an unknown rank before opset 13: unknown axes",
        """g (float[A,B] x, int64[K] h) => (float[C,D] y) {
            r = Reshape(x, h)  s = LogSoftmax<axis = 1>(r)  y = Reshape(s, h) }""",
        opset=12,
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Flagged("before opset 7 Sub does not broadcast", _log_softmax("N,8", ""), opset=6, safety=Safety.NUMERIC),
    _fixed(
        "an ArgMax along the first of two axes that are normalized together",
        before="""g (float[2,3,4] x) => (int64[2,1,4] y) { z = LogSoftmax<axis = 1>(x)  y = ArgMax<axis = 1>(z) }""",
        after="""g (float[2,3,4] x) => (int64[2,1,4] y) { m = ReduceMax<axes = [1, 2]>(x)  d = Sub(x, m)
            e = Exp(d)  s = ReduceSum<axes = [1, 2]>(e)  l = Log(s)  z = Sub(d, l)  y = ArgMax<axis = 1>(z) }""",
        opset=12,
    ),
    _fixed(
        "two axes that are normalized together, one of them of length 1",
        before=_log_softmax("2,1,4", ""),
        after="""g (float[2,1,4] x) => (float[2,1,4] y) { m = ReduceMax<axes = [1, 2]>(x)  d = Sub(x, m)
            e = Exp(d)  s = ReduceSum<axes = [1, 2]>(e)  l = Log(s)  y = Sub(d, l) }""",
        opset=9,
    ),
    Silent("one score: the result is 0", _log_softmax("N,1,4", "<axis = 1>")),
    Silent(
        "one score in two axes of length 1, before opset 13", _log_softmax("N,1,1", "<axis = 1>"), opset=11
    ),
    Silent("empty tensor", _log_softmax("2,0", "")),
    Silent(
        "only an ArgMax reads it",
        "g (float[N,8] x) => (int64[N,1] y) { z = LogSoftmax<axis = 1>(x)  y = ArgMax<axis = -1>(z) }",
    ),
    Silent("unused result", "g (float[N,8] x) => (float[N,8] y) { z = LogSoftmax(x)  y = Neg(x) }"),
    Silent(
        "a vector since opset 13, which TensorRT rejects: OPS023 makes it a matrix first",
        _log_softmax("8", ""),
    ),
    Silent("a scalar, which has no axis", "g (float x) => (float y) { y = LogSoftmax(x) }", runs=False),
    Silent("a nonexistent axis", _log_softmax("2,3", "<axis = 2>"), runs=False),
    Silent("a negative axis before opset 11", _log_softmax("2,3", "<axis = -1>"), opset=9, runs=False),
    Silent("a Softmax and a Log, which underflow in ONNX too", f"{_N8} {{ s = Softmax(x)  y = Log(s) }}"),
    Silent(
        "every call of the function sets the axis",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[3,3] x) => (float[3,3] y) { y = my.F<k = 1>(x) }
            <domain: "my", opset_import: ["" : 18]> F <k> (a) => (b) { b = LogSoftmax<axis : int = @k>(a) }""",
    ),
]
