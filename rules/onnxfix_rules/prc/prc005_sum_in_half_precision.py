"""PRC005: sums, squares and exponentials that overflow in half precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnxfix.edits import Draft
from onnxfix.graph.overlay import Model, Node
from onnxfix.rule import Example, Fix, Match, Safety, Severity, rule

from ._common import FLOAT, HALF, type_of


def _example(why: str, before: str, after: str, opset: int) -> Example:
    return Example(why, before, after, safety=Safety.NUMERIC, opset=opset, ir_version=8)


def _detected(why: str, before: str, opset: int = 17) -> Example:
    return Example(why, before, detect=True, safety=Safety.NUMERIC, opset=opset, ir_version=8)


_IO = "g (float16[N,8] x) => (float16[N,1] y)"
EXAMPLES = [
    _example(
        "a length, axes as an attribute",
        f"{_IO} {{ y = ReduceL2<axes=[1]>(x) }}",
        f"{_IO} {{ w = Cast<to=1>(x)  r = ReduceL2<axes=[1]>(w)  y = Cast<to=10>(r) }}",
        13,
    ),
    _example(
        "a length, axes as an input",
        f"{_IO} <int64[1] a = {{1}}> {{ r = ReduceL2(x, a)  y = Neg(r) }}",
        f"{_IO} <int64[1] a = {{1}}> {{ w = Cast<to=1>(x)  t = ReduceL2(w, a)  r = Cast<to=10>(t)  y = Neg(r) }}",
        18,
    ),
    _example(
        "exponentials under a logarithm",
        f"{_IO} {{ y = ReduceLogSumExp<axes=[1]>(x) }}",
        f"{_IO} {{ w = Cast<to=1>(x)  r = ReduceLogSumExp<axes=[1]>(w)  y = Cast<to=10>(r) }}",
        11,
    ),
    _detected("a sum is as large in the end", f"{_IO} <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}"),
    _detected("a sum of squares", f"{_IO} {{ y = ReduceSumSquare<axes=[1]>(x) }}"),
    _detected(
        "an exponential that is summed: a Softmax written out",
        "g (float16[N,8] x) => (float16[N,8] y) <int64[1] a = {1}>"
        " { e = Exp(x)  s = ReduceSum(e, a)  y = Div(e, s) }",
    ),
    Example(
        "in float32",
        "g (float[N,8] x) => (float[N,1] y) { y = ReduceL2<axes=[1]>(x) }",
        opset=17,
        ir_version=8,
    ),
    Example(
        "in bfloat16",
        "g (bfloat16[N,8] x) => (bfloat16[N,1] y) { y = ReduceL2<axes=[1]>(x) }",
        opset=17,
        ir_version=8,
        runs=False,
    ),
    Example(
        "axes that the surrounding function gets from its caller",
        '<ir_version: 10, opset_import: ["" : 13, "my" : 1]>'
        f" {_IO} {{ y = my.Length<over=[1]>(x) }}"
        ' <domain: "my", opset_import: ["" : 13]> Length <over>(p) => (r)'
        " { h = Cast<to=10>(p)  r = ReduceL2<axes: ints = @over>(h) }",
    ),
    Example("an exponential alone", "g (float16[N] x) => (float16[N] y) { y = Exp(x) }"),
    Example("a maximum", f"{_IO} {{ y = ReduceMax<axes=[1]>(x) }}", opset=17, ir_version=8),
    Example(
        "another domain's ReduceL2",
        f'<ir_version: 8, opset_import: ["" : 17, "o" : 1]> {_IO} {{ y = o.ReduceL2(x) }}',
        runs=False,
    ),
]

_SMALL_RESULT = ("ReduceL2", "ReduceLogSumExp")
_SUMS = ("ReduceL1", "ReduceLogSum", "ReduceSum", "ReduceSumSquare")


@rule(
    "PRC005", ops=(*_SMALL_RESULT, *_SUMS), safety=Safety.NUMERIC, severity=Severity.INFO, examples=EXAMPLES
)
def sum_in_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A sum, or a root or logarithm of one, is computed in half precision, where it may pass 65504 on its way.

    ## Why it matters
    `ReduceL2` squares first: 100 elements of 300 have the length 3000, and `onnx.reference` gives infinity in float16
    for the sum of their squares. TensorRT-RTX 1.7.1 builds such models without a warning. ONNX Runtime computes half
    precision in float32 on the CPU and shows nothing.

    ## Fix
    For `ReduceL2` and `ReduceLogSumExp`, whose results are smaller than what they sum: in float32 between two Casts.
    NUMERIC: roundings, and finite values where there was infinity, which verification may call a difference.

    Sums themselves are only reported: cast back they are as large as before. Scale their input, use ReduceMean, or keep
    what follows in float32. So is a Softmax that is written out, whose `Exp` passes 65504 from 11.1 on.

    ## References
    - NVIDIA/TensorRT issues 2922, 3136, 4328
    """
    data, output = node.input(0), node.output()
    if data is None or output is None or type_of(data, model) != HALF:
        return
    if node.op_type in _SUMS:
        yield Match(f"{node.op_type} in half precision: beyond 65504 it is infinite", node=node)
        return
    attributes: dict[str, Any] = {a.name: node.attr(a.name) for a in node.proto.attribute}
    draft = Draft(node)
    wide = draft.add("Cast", [data], hint="wide", to=FLOAT)
    result = draft.add(node.op_type, [wide, *node.inputs[1:]], **attributes)
    draft.remove(node)
    draft.add("Cast", [result], output=output.name, to=HALF)
    yield Match(
        f"{node.op_type} in half precision: what it sums may pass 65504 though its result would not",
        node=node,
        severity=Severity.WARNING,
        fix=Fix("compute it in float32, between Casts", draft.edits, Safety.NUMERIC),
    )
