"""Operands of different ranks and sizes (BRC001, BRC002, BRC003, BRC006)."""
# Long because: an example of each way in which an operator aligns its operands.

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onnx import TensorProto

from onnxfix.rule import (
    Draft,
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
    equal,
    rule,
    shared,
)

from ._common import (
    BROADCASTING,
    MULTIDIRECTIONAL,
    Broadcast,
    Operand,
    broadcast_of,
    form_of,
    is_static_one,
    label,
    short_of_rank,
    text,
)
from ._exact import (
    cannot_fit,
    safety_of_alignment,
    safety_of_movement,
    safety_of_repetition,
    stored,
    with_rank,
)
from ._meet import Symbols, broadcasts, meetings


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


@rule("BRC002", ops=BROADCASTING, safety=Safety.EXACT, severity=Severity.INFO, hazards=[51], default=False)
def rank_mismatched_runtime_operand(node: Node, model: Model) -> Iterator[Match]:
    """A non-constant operand has a lower rank than the result of the operator.

    ## Why it matters
    TensorRT's parser aligns the ranks by a SHUFFLE layer. Unlike a constant (BRC001), such an operand cannot be stored
    in the right shape, and an Unsqueeze needs as many layers: measured with TensorRT-RTX 1.7.1, `Add(x[N,4], z[4])` is
    imported as SHUFFLE, ELEMENTWISE, and with an Unsqueeze as CONSTANT, UNSQUEEZE, ELEMENTWISE. So the rule is off by
    default; select it for importers that do not align ranks themselves (TensorRT 7 and plugins: "dimensions not
    compatible for elementwise").

    ## Fix
    Insert an `Unsqueeze` before the operator that adds leading dimensions up to the result's rank. Exact: ONNX's
    broadcasting rules add the same ones. NUMERIC in half precision: ONNX Runtime's CPU provider computes in float and
    rounds only if another kind of node separates two operators, so bit-equality cannot be shown; and in the cases that
    BRC001 lists. Not reported: results of `DequantizeLinear` (the pair must stay next to the operator to be fused),
    and, as in BRC001, the right matrix of a `MatMul` and vectors in a `MatMul`.

    ## References
    - ONNX, docs/Broadcasting.md
    - onnx-tensorrt, importerUtils.cpp (`broadcastTensors`); NVIDIA/TensorRT issues 426 and 854
    """
    broadcast = broadcast_of(node, model)
    if (
        broadcast is None
        or not broadcast.form.is_short
        or node.op_type == "Expand"
        or cannot_fit(node, model)
    ):
        return  # BRC007 reports a slope that does not broadcast
    short = [
        item for item in short_of_rank(broadcast) if not item[1].is_constant and not _dequantized(item[1])
    ]
    if not short:
        return
    names = ", ".join(dict.fromkeys(repr(value.name) for _, value, _ in short))
    title = f"Unsqueeze {names} to the rank of the result"
    message = f"{names}: lower rank than the result of {node.op_type}; TensorRT inserts a SHUFFLE layer"
    safety = safety_of_movement(broadcast, model)
    yield Match(message, node=node, fix=Fix(title, _unsqueezed(node, short).edits, safety))


def _dequantized(value: Value) -> bool:
    return value.producer is not None and value.producer.op_type in ("DequantizeLinear", "QuantizeLinear")


def _unsqueezed(node: Node, short: list[tuple[Operand, Value, int]]) -> Draft:
    draft = Draft(node)
    made: dict[str, str] = {}
    for operand, value, missing in short:
        if value.name not in made:
            made[value.name] = draft.unsqueeze(value, range(missing))
        draft.set_input(node, operand.place, made[value.name])
    return draft


def _add_reshaped(z: str, x: str = "N,1") -> str:
    return f"g (float[{x}] x, float[{z}] z, int64[K] s) => (float[] y) {{ r = Reshape(x, s)  y = Add(r, z) }}"


def _add(x: str, z: str, y: str, elem: str = "float") -> str:
    return f"g ({elem}[{x}] x, {elem}[{z}] z) => ({elem}[{y}] y) {{ y = Add(x, z) }}"


rank_mismatched_runtime_operand.examples = [
    Fixed(
        "a graph input of lower rank",
        before=_add("N,2,3", "3", "N,2,3"),
        after="g (float[N,2,3] x, float[3] z) => (float[N,2,3] y) <int64[2] a = {0,1}>"
        " { u = Unsqueeze(z, a)  y = Add(x, u) }",
    ),
    Fixed(
        "opset 11, where the axes are an attribute",
        before=_add("N,2,3", "3", "N,2,3"),
        after="g (float[N,2,3] x, float[3] z) => (float[N,2,3] y) { u = Unsqueeze<axes=[0,1]>(z)  y = Add(x, u) }",
        opset=11,
    ),
    Fixed(
        "a scalar",
        before="g (float[N,2] x, float z) => (float[N,2] y) { y = Mul(x, z) }",
        after="g (float[N,2] x, float z) => (float[N,2] y) <int64[2] a = {0,1}> { u = Unsqueeze(z, a)  y = Mul(x, u) }",
    ),
    Fixed(
        "an initializer that a caller may override",
        before="g (float[N,3] x, float[3] b) => (float[N,3] y) <float[3] b = {1,2,3}> { y = Add(x, b) }",
        after="g (float[N,3] x, float[3] b) => (float[N,3] y) <float[3] b = {1,2,3}, int64[1] a = {0}>"
        " { u = Unsqueeze(b, a)  y = Add(x, u) }",
    ),
    Fixed(
        "a tensor that is read twice",
        before="g (bool[N,3] p, float[3] z) => (float[N,3] y) { y = Where(p, z, z) }",
        after="g (bool[N,3] p, float[3] z) => (float[N,3] y) <int64[1] a = {0}>"
        " { u = Unsqueeze(z, a)  y = Where(p, u, u) }",
    ),
    Fixed(
        "batch dimensions of a MatMul",
        before="g (float[N,2,3,4] x, float[2,4,5] z) => (float[N,2,3,5] y) { y = MatMul(x, z) }",
        after="g (float[N,2,3,4] x, float[2,4,5] z) => (float[N,2,3,5] y) <int64[1] a = {0}>"
        " { u = Unsqueeze(z, a)  y = MatMul(x, u) }",
    ),
    Fixed(
        "half precision, which ONNX Runtime rounds at other points",
        before="g (float16[N,2] x, float s) => (float16[N,2] y) { h = Cast<to=FLOAT16>(s)  y = Mul(x, h) }",
        after="g (float16[N,2] x, float s) => (float16[N,2] y) <int64[2] a = {0,1}>"
        " { h = Cast<to=FLOAT16>(s)  u = Unsqueeze(h, a)  y = Mul(x, u) }",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "half precision, which has no exact fix",
        "g (float16[N,2] x, float16 s) => (float16[N,2] y) { y = Mul(x, s) }",
    ),
    Silent(
        "a constant, which BRC001 reports",
        "g (float[N,3] x) => (float[N,3] y) <float[3] b = {1,2,3}> { y = Add(x, b) }",
    ),
    Silent(
        "the right matrix of a MatMul",
        "g (float[N,3,4] x, float[4,5] z) => (float[N,3,5] y) { y = MatMul(x, z) }",
    ),
    Silent(
        "a dequantized tensor, whose pair must stay next to the operator",
        "g (float[N,3] x, int8[3] q) => (float[N,3] y) <float s = {0.5}, int8 z = {0}>"
        " { b = DequantizeLinear(q, s, z)  y = Add(x, b) }",
    ),
    Silent("unknown rank", _add_reshaped("3", x="N,3"), runs=False),
    Silent(
        "an Expand, whose data may have any rank",
        "g (float[3] x) => (float[2,3] y) <int64[2] s = {2,3}> { y = Expand(x, s) }",
    ),
]


@rule("BRC003", ops=(*MULTIDIRECTIONAL, "MatMul"), severity=Severity.INFO, hazards=[51])
def two_sided_broadcast(node: Node, model: Model) -> Iterator[Match]:
    """No operand has the shape of the result: all of them are repeated, along different axes.

    ## Why it matters
    `[N,1]` with `[1,M]` makes N × M elements of N + M. If that is intended (masks, relative positions, distances), it
    is fine: TensorRT-RTX 1.7.1 parses and builds every valid form, and computes it in one ELEMENTWISE layer. If it is
    an accident, such as a missing `keepdims` or transpose, nothing fails and the result has an unexpected shape. Older
    converters had bugs here (Torch-TensorRT PR 2819).

    ## Fix
    None by default: an explicit `Expand` is exact but adds layers (measured: 1 becomes 3) and memory traffic. BRC006
    inserts it when selected. BRC005 reports the cases that depend on the batch size.

    ## References
    - ONNX, docs/Broadcasting.md (multidirectional broadcasting)
    """
    form = form_of(node, model)
    broadcast = broadcast_of(node, model) if form is not None and form.is_two_sided else None
    if broadcast is None:
        return
    sides = " and ".join(label(operand) + text(operand.shape) for operand in broadcast.operands)
    kind = "the batch dimensions of " if node.op_type == "MatMul" else ""
    yield Match(f"{kind}{sides} are all repeated: none has the shape of the result", node=node)


two_sided_broadcast.examples = [
    Flagged("a column and a row", _add("2,1", "1,3", "2,3")),
    Flagged("symbolic sizes", "g (float[N,1] x, float[1,M] z) => (bool[N,M] y) { y = Less(x, z) }"),
    Flagged("operands of different rank", "g (float[N,1] x, float[3] z) => (float[N,3] y) { y = Sub(x, z) }"),
    Flagged(
        "three operands, none of which has the result's shape",
        "g (bool[N,1,1] p, float[1,2,1] x, float[3] z) => (float[N,2,3] y) { y = Where(p, x, z) }",
    ),
    Flagged(
        "batch dimensions of a MatMul",
        "g (float[N,1,2,3] x, float[1,4,3,2] z) => (float[N,4,2,2] y) { y = MatMul(x, z) }",
    ),
    Silent("one operand has the result's shape", _add("N,1,3", "N,2,3", "N,2,3")),
    Silent(
        "one of three operands has the result's shape",
        "g (bool[N,1] p, float[1,3] x, float[N,3] z) => (float[N,3] y) { y = Where(p, x, z) }",
    ),
    Silent("all dimensions are 1", _add("1,1", "1", "1,1")),
    Silent(
        "an attention mask", "g (float[N,4,S,S] x, float[N,1,1,S] m) => (float[N,4,S,S] y) { y = Add(x, m) }"
    ),
    Silent(
        "an Expand, which is explicit",
        "g (float[1,3] x) => (float[2,3] y) <int64[2] s = {2,1}> { y = Expand(x, s) }",
    ),
    Silent("unknown rank", _add_reshaped("1,3"), runs=False),
]


@rule("BRC006", per="model", safety=Safety.EXACT, severity=Severity.INFO, hazards=[51], default=False)
def implicit_repetition(model: Model) -> Iterator[Match]:
    """Several operands of an operator are, or may be, repeated without an explicit Expand.

    ## Why it matters
    This rule helps readers, and importers with bugs in two-sided broadcasting (BRC003, BRC004, BRC005). TensorRT does
    not need it: TensorRT-RTX 1.7.1 builds every valid form. There, explicit repetition has a cost: measured, a static
    two-sided Add grows from 1 layer to 3, a dynamic one from 1 layer to 31 (shape arithmetic and SLICE), and the
    expanded operands take memory. So the rule is off by default and runs only when selected.

    ## Fix
    Insert an `Expand` before each operand that is or may be repeated: to the result's shape if that is static,
    otherwise to the runtime `Shape` of each other operand. A size that is never 1 (3, or 2 * N) is not repeated. Exact:
    Expand repeats as the operator does, and fails if the operator fails. NUMERIC in half precision, for `Pow`, and for
    `Min`, `Max` and `Where` on floats, for which ONNX Runtime (it verifies fixes) then uses other kernels. It makes a
    batch-1 trap visible; it does not remove it.

    ## References
    - ONNX, docs/Operators.md (Expand), docs/Broadcasting.md
    """
    symbols = shared(model, Symbols)
    for broadcast in broadcasts(
        model, lambda node, form: node.op_type in MULTIDIRECTIONAL and node.opset >= 8
    ):
        node = broadcast.node
        open_sizes = any(symbols.conflicts(meeting) for meeting in meetings(broadcast))
        if not open_sizes and not broadcast.form.is_two_sided:
            continue
        draft = Draft(node)
        for operand in broadcast.operands:
            _expand(draft, broadcast, operand)
        if not draft.edits:
            continue  # sizes that are never 1, which BRC004 covers
        sides = " and ".join(label(operand) + text(operand.shape) for operand in broadcast.operands)
        safety = safety_of_repetition(broadcast, model)
        title = "Expand the operands to the result's shape"
        yield Match(f"{sides} are repeated implicitly", node=node, fix=Fix(title, draft.edits, safety))


def _expand(draft: Draft, broadcast: Broadcast, operand: Operand) -> None:
    others = [
        other for other in broadcast.operands if other is not operand and _repeats(broadcast, other, operand)
    ]
    if not others:
        return
    current: Value | str | None = operand.value
    target = _static_result(broadcast)
    if target is not None:
        current = draft.add("Expand", [current, draft.integers(target, "shape")])
    else:
        for other in others:
            current = draft.add("Expand", [current, draft.add("Shape", [other.value])])
    draft.set_input(broadcast.node, operand.place, current)


def _repeats(broadcast: Broadcast, other: Operand, operand: Operand) -> bool:
    """Whether ``other`` has a dimension along which ``operand`` is or may be repeated."""
    for axis in range(broadcast.rank):
        wanted, present = broadcast.dim(other, axis), broadcast.dim(operand, axis)
        if wanted is None or (is_static_one(wanted) and present is not None):
            continue
        if present is None or not (equal(wanted, present).yes or equal(present, 1).no):
            return True
    return False


def _static_result(broadcast: Broadcast) -> list[int] | None:
    result = []
    for axis in range(broadcast.rank):
        dims = {broadcast.dim(operand, axis) for operand in broadcast.operands}
        sizes = {1 if dim is None else dim.value for dim in dims} - {1}
        if len(sizes) > 1 or None in sizes:
            return None
        result.append(next(iter(sizes)) or 0 if sizes else 1)
    return result


implicit_repetition.examples = [
    Fixed(
        "static sizes, with a constant target",
        before=_add("2,1", "1,3", "2,3"),
        after="g (float[2,1] x, float[1,3] z) => (float[2,3] y) <int64[2] s = {2,3}, int64[2] t = {2,3}>"
        " { a = Expand(x, s)  b = Expand(z, t)  y = Add(a, b) }",
    ),
    Fixed(
        "symbolic sizes, with the other operand's shape as target",
        before=_add("N,1", "1,M", "N,M"),
        after="g (float[N,1] x, float[1,M] z) => (float[N,M] y)"
        " { s = Shape(z)  a = Expand(x, s)  t = Shape(x)  b = Expand(z, t)  y = Add(a, b) }",
    ),
    Fixed(
        "sizes that may differ",
        before=_add("N,3", "M,3", "K,3"),
        after="g (float[N,3] x, float[M,3] z) => (float[K,3] y)"
        " { s = Shape(z)  a = Expand(x, s)  t = Shape(x)  b = Expand(z, t)  y = Add(a, b) }",
    ),
    Fixed(
        "(N, 1) with (N,), a batch-1 trap",
        before="g (float[N,1] x, float[N] w) => (float[N,K] y) { y = Mul(x, w) }",
        after="g (float[N,1] x, float[N] w) => (float[N,K] y)"
        " { s = Shape(w)  a = Expand(x, s)  t = Shape(x)  b = Expand(w, t)  y = Mul(a, b) }",
    ),
    Fixed(
        "three operands",
        before="g (bool[N,1] p, int64[1,M] x, int64 z) => (int64[N,M] y) { y = Where(p, x, z) }",
        after="g (bool[N,1] p, int64[1,M] x, int64 z) => (int64[N,M] y) {"
        " s = Shape(x)  a = Expand(p, s)  t = Shape(p)  b = Expand(x, t)"
        " u = Shape(p)  c = Expand(z, u)  v = Shape(x)  d = Expand(c, v)  y = Where(a, b, d) }",
    ),
    Flagged("half precision, which has no exact fix", _add("2,1", "1,3", "2,3", elem="float16")),
    Flagged(
        "Pow, which has a kernel of its own for an exponent of one element",
        "g (float[N,1] x, float[1,M] z) => (float[N,M] y) { y = Pow(x, z) }",
    ),
    Fixed(
        "a size that is never 1: only the other operand may be repeated",
        before="g (float[N,3] x, float[M,3] z) => (float[K,3] y) { c = Concat<axis=0>(x, x)  y = Add(c, z) }",
        after="g (float[N,3] x, float[M,3] z) => (float[K,3] y)"
        " { c = Concat<axis=0>(x, x)  s = Shape(c)  a = Expand(z, s)  y = Add(c, a) }",
    ),
    Silent(
        "3 * N with 3: an Expand from 3 to 9 rows would be invalid",
        "g (float[N,3] x) => (float[K,3] y) <float[3,3] b = {1,2,3,4,5,6,7,8,9}>"
        " { c = Concat<axis=0>(x, x, x)  y = Add(c, b) }",
        runs=False,
    ),
    Silent(
        "only one operand is repeated (a bias)",
        "g (float[N,3] x) => (float[N,3] y) <float[3] b = {1,2,3}> { y = Add(x, b) }",
    ),
    Silent(
        "a mask with dimensions of 1",
        "g (float[N,4,S,S] x, float[N,1,1,S] m) => (float[N,4,S,S] y) { y = Add(x, m) }",
    ),
    Silent(
        "a MatMul, whose matrices must not be expanded, and an Expand",
        "g (float[N,1,2,3] x, float[1,4,3,2] z, float[1,3] w) => (float[N,4,2,2] y, float[2,3] v)"
        " <int64[2] s = {2,1}> { y = MatMul(x, z)  v = Expand(w, s) }",
    ),
    Silent("opset 7, which has no Expand", _add("2,1", "1,3", "2,3"), opset=7),
    Silent("unknown rank", _add_reshaped("1,3"), runs=False),
]
