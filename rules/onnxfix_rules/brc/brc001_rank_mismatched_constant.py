"""BRC001: constant operands of a lower rank than the result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onnx import TensorProto

from onnxfix.rule import (
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    SetInput,
    Severity,
    Silent,
    Value,
    rule,
)

from ._common import BROADCASTING, broadcast_of, form_of, short_of_rank
from ._exact import cannot_fit, safety_of_alignment, stored, with_rank


@rule("BRC001", ops=BROADCASTING, safety=Safety.EXACT, severity=Severity.INFO, hazards=[51])
def rank_mismatched_constant(node: Node, model: Model) -> Iterator[Match]:
    """A constant operand has a lower rank than the result of the operator.

    ## Why it matters
    TensorRT's layers require operands of equal rank, so its parser inserts a SHUFFLE layer between the constant and the
    operator. Measured with TensorRT-RTX 1.7.1: `Add(x[N,4,2], b[2])` is imported as CONSTANT, SHUFFLE, ELEMENTWISE, and
    as CONSTANT, ELEMENTWISE if the constant is `[1,1,2]`. The same holds for scalars, `Where`, `PRelu`, `Max`, the `C`
    of `Gemm` and batch dimensions in `MatMul`. Today it is not an error, only one more layer per operand; TensorRT 7
    and 8 had failures in this step ("dimensions not compatible for elementwise").

    ## Fix
    Store the constant with leading dimensions of 1 up to the result's rank, never beyond. Exact: ONNX's broadcasting
    rules prepend the same dimensions, and no value changes. A constant with other readers is cloned; one clone serves
    all nodes that need the same rank.

    NUMERIC instead for `Pow`, and for `Min`, `Max` and `Where` on floats, if the last dimensions may all be 1: ONNX
    Runtime, which verifies fixes, then uses another kernel, whose cubes differ in the last bit (`Pow(x[N,1], 3)`: 230
    of 1,000 values) or whose zeros have another sign.

    Not reported, or reported without a fix:

    - the right matrix of a `MatMul`: it is a linear layer, and one product of many rows need not be bit-equal to many
      products of few;
    - vectors in a `MatMul`, where another dimension would stay in the result;
    - initializers that a caller may override, results of `DequantizeLinear`, and constants that quantization
      annotations name;
    - constants over 1 MiB with other readers, and over 64 MiB, unless their data are in an external file: they are
      reported, but too large to copy.

    ## References
    - ONNX, docs/Broadcasting.md
    - onnx-tensorrt, importerUtils.cpp (`broadcastTensors`); NVIDIA/TensorRT issues 426 and 854
    """
    form = form_of(node, model)
    broadcast = broadcast_of(node, model) if form is not None and form.is_short else None
    if broadcast is None:
        return
    if all(o.value is not None and o.value.is_constant for o in broadcast.operands):
        return
    if cannot_fit(node, model):
        return  # BRC007
    short = [
        _Short(operand.place, value, tensor, rank := len(tensor.dims), rank + missing)
        for operand, value, missing in short_of_rank(broadcast)
        if not value.pinned and (tensor := stored(value)) is not None
    ]
    if not short:
        return
    names = ", ".join(dict.fromkeys([f"{one.value.name!r} of rank {one.rank}" for one in short]))
    rank = short[0].wanted
    message = f"constant {names} in an operation of rank {rank}: TensorRT inserts a SHUFFLE layer to align it"
    edits, reads, padded = _edits(node, short)
    if not edits:
        yield Match(f"{message}; it is too large to copy", node=node)
        return
    title = f"store {' and '.join(dict.fromkeys(padded))} with leading dimensions of 1"
    remedy = Fix(title, edits, safety_of_alignment(broadcast, model))
    yield Match(message, node=node, fix=remedy, reads=tuple(reads))


class _Short(NamedTuple):
    """The node's input at ``place``: a constant whose ``rank`` is not the ``wanted`` one.

    Both are ranks of ``tensor``; for MatMul, the operand of the broadcast excludes the matrices' two dimensions.
    """

    place: int
    value: Value
    tensor: TensorProto
    rank: int
    wanted: int


def _edits(node: Node, short: list[_Short]) -> tuple[list[Edit], list[Value], list[str]]:
    """Edits, the existing clones that they use, and the names of the padded constants."""
    edits: list[Edit] = []
    reads: list[Value] = []
    padded: list[str] = []
    made: dict[str, str] = {}
    for place, value, tensor, _, wanted in short:
        clone = with_rank(value, tensor, wanted)
        if clone is None:
            continue
        if value.name not in made:
            name, definition = clone
            made[value.name] = name
            edits.extend(definition)
            present = value.scope.values.get(name)
            if present is not None:
                reads.append(present)
        edits.append(SetInput(node, place, made[value.name]))
        padded.append(repr(value.name))
    return edits, reads, padded


def _with_constant(y: str, x: str = "2,3", b: str = "3", b_values: str = "1,2,3", call: str = "Add") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) <float[{b}] b = {{{b_values}}}> {{ y = {call}(x, b) }}"


rank_mismatched_constant.examples = [
    Fixed(
        "a bias per channel",
        before=_with_constant("N,2,3", x="N,2,3"),
        after="g (float[N,2,3] x) => (float[N,2,3] y) <float[1,1,3] c = {1,2,3}> { y = Add(x, c) }",
    ),
    Fixed(
        "a scalar, whose new dimensions are all 1",
        before="g (float[N,3] x) => (float[N,3] y) <float b = {2}> { y = Mul(b, x) }",
        after="g (float[N,3] x) => (float[N,3] y) <float[1,1] c = {2}> { y = Mul(c, x) }",
    ),
    Fixed(
        "a scalar from a Constant node without a tensor",
        before="g (float[N,3] x) => (float[N,3] y) { b = Constant<value_float=2.0>()  y = Pow(x, b) }",
        after="g (float[N,3] x) => (float[N,3] y) <float[1,1] c = {2}> { y = Pow(x, c) }",
    ),
    Silent("the constant has the result's rank", _with_constant("4,2,3", b="4,1,1", b_values="1,2,3,4")),
    Silent("equal ranks", _with_constant("N,3", x="N,3", b="1,3")),
    Silent(
        "the operand of lower rank is not constant",
        "g (float[N,3] x, float[3] z) => (float[N,3] y) { y = Add(x, z) }",
    ),
    Silent(
        "the other operand's rank is unknown",
        "g (float[N,3] x, int64[K] s) => (float[] y) <float[3] b = {1,2,3}>"
        " { r = Reshape(x, s)  y = Add(r, b) }",
        runs=False,
    ),
    Fixed(
        "a constant of two nodes of different rank, cloned for each",
        before="g (float[N,3] x, float[N,2,3] z) => (float[N,3] y, float[N,2,3] w)"
        " <float[3] b = {1,2,3}> { y = Add(x, b)  w = Sub(z, b) }",
        after="g (float[N,3] x, float[N,2,3] z) => (float[N,3] y, float[N,2,3] w)"
        " <float[1,3] b2 = {1,2,3}, float[1,1,3] b3 = {1,2,3}> { y = Add(x, b2)  w = Sub(z, b3) }",
    ),
    Fixed(
        "a constant of two nodes of the same rank, which share one clone",
        before="g (float[N,3] x) => (float[N,3] y) <float[3] b = {1,2,3}> { a = Add(x, b)  y = Mul(a, b) }",
        after="g (float[N,3] x) => (float[N,3] y) <float[1,3] c = {1,2,3}> { a = Add(x, c)  y = Mul(a, c) }",
    ),
    Fixed(
        "another reader needs the original constant",
        before="g (float[N,3] x) => (float[N,3] y, float[M] z) <float[3] b = {1,2,3}, int64[1] m = {-1}>"
        " { y = Add(x, b)  z = Reshape(b, m) }",
        after="g (float[N,3] x) => (float[N,3] y, float[M] z)"
        " <float[3] b = {1,2,3}, float[1,3] c = {1,2,3}, int64[1] m = {-1}> { y = Add(x, c)  z = Reshape(b, m) }",
    ),
    Silent(
        "an initializer that is also a graph input, which callers may override",
        "g (float[N,3] x, float[3] b) => (float[N,3] y) <float[3] b = {1,2,3}> { y = Add(x, b) }",
    ),
    Fixed(
        "a constant that is a graph output, which keeps its name and shape",
        before="g (float[N,3] x) => (float[N,3] y, float[3] b) { b = Constant<value_floats=[1.0,2.0,3.0]>()"
        "  y = Add(x, b) }",
        after="g (float[N,3] x) => (float[N,3] y, float[3] b) { b = Constant<value_floats=[1.0,2.0,3.0]>()"
        "  c = Constant<value=float[1,3]{1,2,3}>()  y = Add(x, c) }",
    ),
    Fixed(
        "captured by both branches of an If, which share the clone",
        before="g (float[N,3] x, bool p) => (float[N,3] y) <float[3] b = {1,2,3}> {"
        " y = If(p) <then_branch = t () => (float[N,3] u) { u = Add(x, b) },"
        " else_branch = e () => (float[N,3] v) { v = Sub(x, b) }> }",
        after="g (float[N,3] x, bool p) => (float[N,3] y) <float[1,3] b = {1,2,3}> {"
        " y = If(p) <then_branch = t () => (float[N,3] u) { u = Add(x, b) },"
        " else_branch = e () => (float[N,3] v) { v = Sub(x, b) }> }",
    ),
    Fixed(
        "IR version 3, where the clone is a Constant node",
        before="g (float[N,3] x) => (float[N,3] y) { b = Constant<value=float[3]{1,2,3}>()  y = Add(x, b) }",
        after="g (float[N,3] x) => (float[N,3] y) { b = Constant<value=float[1,3]{1,2,3}>()  y = Add(x, b) }",
        opset=8,
        ir_version=3,
    ),
    Silent(
        "opset 6, where operators broadcast by attributes",
        _with_constant("2,3", call="Add<broadcast=1>"),
        opset=6,
        runs=False,
    ),
    Silent(
        "Max before opset 8, which does not broadcast", _with_constant("2,3", call="Max"), opset=7, runs=False
    ),
    Fixed(
        "all constants of a variadic operator",
        before="g (float[N,2] x) => (float[N,2] y) <float[2] b = {1,2}, float c = {3}> { y = Max(b, x, c, b) }",
        after="g (float[N,2] x) => (float[N,2] y) <float[1,2] b = {1,2}, float[1,1] c = {3}> { y = Max(b, x, c, b) }",
    ),
    Fixed(
        "both data operands of a Where",
        before="g (bool[N,2] p) => (float[N,2] y) <float[2] b = {1,2}, float c = {3}> { y = Where(p, b, c) }",
        after="g (bool[N,2] p) => (float[N,2] y) <float[1,2] b = {1,2}, float[1,1] c = {3}> { y = Where(p, b, c) }",
    ),
    Fixed(
        "Pow and Where with a last dimension that is not 1, with the same kernels before and after",
        before="g (float[N,S,2] x, bool[N,S,2] p) => (float[N,S,2] y) <float e = {3}, float c = {0}>"
        " { t = Pow(x, e)  y = Where(p, t, c) }",
        after="g (float[N,S,2] x, bool[N,S,2] p) => (float[N,S,2] y) <float[1,1,1] e = {3}, float[1,1,1] c = {0}>"
        " { t = Pow(x, e)  y = Where(p, t, c) }",
    ),
    Fixed(
        "Pow with a last dimension that may be 1: ONNX Runtime's cubes differ in the last bit",
        before="g (float[N,S] x) => (float[N,S] y) <float e = {3}> { y = Pow(x, e) }",
        after="g (float[N,S] x) => (float[N,S] y) <float[1,1] e = {3}> { y = Pow(x, e) }",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "Max and Where with a last dimension of 1: ONNX Runtime's zeros may change their sign",
        "g (float[N,1] x, bool[N,1] p) => (float[N,1] y) <float c = {0}> { t = Max(x, c)  y = Where(p, t, c) }",
    ),
    Fixed(
        "Max of integers, without signed zeros",
        before="g (int64[N,S] x) => (int64[N,S] y) <int64 c = {0}> { y = Max(x, c) }",
        after="g (int64[N,S] x) => (int64[N,S] y) <int64[1,1] c = {0}> { y = Max(x, c) }",
    ),
    Fixed(
        "PRelu's slope",
        before="g (float[N,2,3] x) => (float[N,2,3] y) <float[2,1] s = {1,2}> { y = PRelu(x, s) }",
        after="g (float[N,2,3] x) => (float[N,2,3] y) <float[1,2,1] s = {1,2}> { y = PRelu(x, s) }",
    ),
    Fixed(
        "the left matrix of a MatMul, and batch dimensions of the right one",
        before="g (float[N,2,2,1] x) => (float[N,2,2,2] y)"
        " <float[2,2] a = {1,2,3,4}, float[2,1,2] b = {1,2,3,4}> { t = MatMul(a, x)  y = MatMul(t, b) }",
        after="g (float[N,2,2,1] x) => (float[N,2,2,2] y)"
        " <float[1,1,2,2] a = {1,2,3,4}, float[1,2,1,2] b = {1,2,3,4}> { t = MatMul(a, x)  y = MatMul(t, b) }",
    ),
    Silent(
        "the weight of a linear layer: the right matrix of a MatMul",
        "g (float[N,4,2] x) => (float[N,4,3] y) <float[2,3] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }",
    ),
    Silent(
        "the right vector of a MatMul: a dimension of 1 would stay in the result",
        "g (float[N,4,2] x) => (float[N,4] y) <float[2] w = {1,2}> { y = MatMul(x, w) }",
    ),
    Silent(
        "the left vector of a MatMul",
        "g (float[N,4,2] x) => (float[N,2] y) <float[4] w = {1,2,3,4}> { y = MatMul(w, x) }",
    ),
    Fixed(
        "integers, booleans, and empty tensors",
        before="g (int64[N,2] x, bool[N,0] p) => (int64[N,2] y, bool[N,0] q) <int64[2] b = {1,2}, bool[0] c = {}>"
        " { y = Mod(x, b)  q = Or(p, c) }",
        after="g (int64[N,2] x, bool[N,0] p) => (int64[N,2] y, bool[N,0] q)"
        " <int64[1,2] b = {1,2}, bool[1,0] c = {}> { y = Mod(x, b)  q = Or(p, c) }",
    ),
    Silent(
        "constant operands only, which are folded",
        "g (float[2,3] x) => (float[2,3] y) <float[2,3] a = {1,2,3,4,5,6}, float[3] b = {1,2,3}>"
        " { c = Add(a, b)  y = Mul(x, c) }",
    ),
    Silent(
        "a dequantized constant",
        "g (float[N,3] x) => (float[N,3] y) <int8[3] q = {1,2,3}, float s = {0.5}, int8 z = {0}>"
        " { b = DequantizeLinear(q, s, z)  y = Add(x, b) }",
    ),
    Silent(
        "the bounds of Clip, which do not broadcast",
        "g (float[N,3] x) => (float[N,3] y) <float a = {0}, float b = {6}> { y = Clip(x, a, b) }",
    ),
    Fixed(
        "the clone's first candidate for a name is in use",
        before="g (float[N,3] b_rank2) => (float[N,3] y) <float[3] b = {1,2,3}> { y = Add(b_rank2, b) }",
        after="g (float[N,3] b_rank2) => (float[N,3] y) <float[1,3] c = {1,2,3}> { y = Add(b_rank2, c) }",
    ),
    Fixed(
        "a scalar as Gemm's C, and one element per row, which has the result's rank",
        before="""g (float[2,2] x) => (float[2,3] y, float[2,3] z)
            <float[2,3] w = {1,2,3,4,5,6}, float c = {1}, float[2,1] d = {1,2}> {
            y = Gemm(x, w, c)  z = Gemm(x, w, d) }""",
        after="""g (float[2,2] x) => (float[2,3] y, float[2,3] z)
            <float[2,3] w = {1,2,3,4,5,6}, float[1,1] c = {1}, float[2,1] d = {1,2}> {
            y = Gemm(x, w, c)  z = Gemm(x, w, d) }""",
    ),
]
