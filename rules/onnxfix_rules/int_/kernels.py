"""Integers at the interface, and in operators without an integer kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    is_small,
    name_of,
    rule,
    target_of,
)
from onnxfix.targets import TARGETS


@rule(
    "INT005",
    per="model",
    severity=Severity.INFO,
    hazards=[33],
    differs={
        "branch": "about the outputs of the main graph",
        "function": "about the inputs of the main graph, whose types are known",
    },
)
def int64_input_or_output(model: Model) -> Iterator[Match]:
    """An int64 graph input or output.

    ## Why it matters
    TensorRT's bindings have the model's types: if a caller passes int32 to an int64 binding, TensorRT reads half as
    many values, each made of two. TensorRT-RTX 1.7.1 warns when it parses the model: `Make sure input x has Int64
    binding.` Engines of TensorRT 8 have INT32 bindings for the same model, which changed with 9.0 (breaking change in
    the changelog of 9.0 EA): code must change its buffers when it moves from one to the other.

    Information for a TensorRT that computes int64, a warning for TensorRT 8.

    ## Fix
    None: another type would be another interface. If int32 is wanted, export the model with int32 inputs.

    ## References
    - https://github.com/NVIDIA/TensorRT/blob/main/CHANGELOG.md
    """
    old = model.target is not None and not model.target.int64
    for value in model.main.inputs:
        if value.initializer is None and not value.sparse and _is_int64(value, model):
            yield _match("input", value, old)
    for value in dict.fromkeys(model.main.outputs):
        if _is_int64(value, model):
            yield _match("output", value, old)


def _is_int64(value: Value, model: Model) -> bool:
    return model.shapes.elem_type(value) == TensorProto.INT64


def _match(kind: str, value: Value, old: bool) -> Match:
    text, severity = "is an int64 binding: 8 bytes per element, not 4", None
    if old:
        text = "becomes an int32 binding in TensorRT 8 and an int64 one from 9.0 "
        text += "on: use the type that the engine reports"
        severity = Severity.WARNING
    return Match(f"int64 {kind} {value.name} {text}", value=value, severity=severity)


int64_input_or_output.examples = [
    Flagged("an int64 input", "g (int64[N] x) => (float[N] y) { y = Cast<to = FLOAT>(x) }"),
    Flagged("an int64 output", "g (float[N] x) => (int64[M] y) { s = Shape(x)  y = Neg(s) }"),
    Flagged(
        "TensorRT 8 makes int32 bindings", "g (int64[N] x) => (int64[N] y) { y = Neg(x) }", target="trt8.6"
    ),
    Silent("other types", "g (int32[N] x) => (float[N] y) { y = Cast<to = FLOAT>(x) }"),
    Silent(
        "internal int64",
        "g (int32[N] x) => (int32[N] y) { a = Cast<to = INT64>(x)  b = Neg(a)  y = Cast<to = INT32>(b) }",
    ),
    Silent(
        "an initializer among the inputs is a weight, not a binding",
        """g (int32[N] x, int64[1] k = {2}) => (int32[N] y) { c = Cast<to = INT32>(k)  y = Add(x, c) }""",
    ),
]


_NOT_DATA = ("BlackmanWindow", "DequantizeLinear", "HammingWindow", "HannWindow", "QuantizeLinear")
"""Operators whose types have another purpose: an attribute, quantization."""

OPERATORS = sorted(
    {
        name
        for name, support in TARGETS["rtx"].operators.items()
        if support.refused & {"INT32", "INT64"} and name not in _NOT_DATA
    }
)
"""Operators that some target refuses on integers."""


@rule(
    "INT006",
    ops=OPERATORS,
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[33, 63],
    types=[TensorProto.INT32, TensorProto.INT64],
)
def integer_operator_without_kernel(node: Node, model: Model) -> Iterator[Match]:
    """An int32 or int64 operator without a TensorRT kernel.

    ## Why it matters
    The parser fails: `Found unsupported input type of INT64` for MatMul, Gemm, Einsum, PRelu and ReduceLogSumExp,
    `operator SQRT with the given input data type INT64` for ReduceL2 (LOG for ReduceLogSum), `first input has type
    Int64` for Resize and Upsample, measured with TensorRT-RTX 1.7.1 for int32 and int64 alike. Relu of int32 is
    refused and of int64 accepted there; TensorRT 8 imports int64 as int32. Add, Sub, Mul, Div, Mod, Pow, Clip, Abs,
    Neg, Sign, CumSum, Where, TopK, Max, Range, Gather, Pad and the sum, mean, product, maximum and minimum reductions
    of integers do have kernels.

    ## Fix
    Relu becomes `Max(x, 0)`, with a zero of the data's type and rank: exact, since integers have neither NaN nor
    -0.0. Relu supports integers from opset 14.

    A nearest Resize by whole factors becomes a Gather along each enlarged axis whose size is known. Exact: element i of
    the result is element i // factor, in asymmetric mode with floor, and from half-pixel centers however ties are
    rounded, since there are none: the coordinate lies at least half a step of the result from every tie. Measured with
    ONNX Runtime, factors up to 64 and sizes up to 4096 (240 models, all the same); beyond that there is no fix.

    A small MatMul becomes products, which CumSum adds; the last sum is the result. TensorRT computes both in integers.
    Exact: sums of integers do not depend on their order, and wrap around alike. (ONNX Runtime's ReduceSum does not.)

    No fix for the others: computed in float32 they are exact only if every partial sum stays below 2**24, which the
    model does not show. Cast their inputs if you know that.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md, which names types for Relu, ReduceL2,
      ReduceLogSum and ReduceLogSumExp that the parser refuses
    - https://onnx.ai/onnx/operators/onnx__Relu.html
    """
    data = node.input(0)
    elem = None if data is None else model.shapes.elem_type(data)
    target = target_of(model)
    if data is None or elem not in (TensorProto.INT32, TensorProto.INT64):
        return
    if target.accepts(node.op_type, elem) is not False:
        return
    rewrite = {"MatMul": _as_sums, "Relu": _as_max, "Resize": _as_gathers}.get(node.op_type)
    fix = None if rewrite is None else rewrite(node, data, elem, model)
    yield Match(
        f"{target.title} has no {name_of(elem)} kernel for {node.op_type}", node=node, fix=fix, reads=(data,)
    )


def _as_max(node: Node, data: Value, elem: int, model: Model) -> Fix | None:
    """Replace the Relu by ``Max(data, 0)``; the zero has the data's rank, so that it does not change the result's."""
    ones = [1] * (model.shapes.rank(data) or 0)
    if node.opset < 14 or node.output() is None or not is_small(*ones):
        return None
    dtype = np.dtype(np.int64 if elem == TensorProto.INT64 else np.int32)
    zero = np.zeros(ones, dtype=dtype)
    draft = Draft(node)
    draft.replace_output(node, draft.add("Max", [data, draft.constant(zero)]))
    return Fix("replace by Max(x, 0)", draft.edits)


def _as_sums(node: Node, data: Value, elem: int, model: Model) -> Fix | None:
    """Products [..., M, K, N] summed over K: at most 2**16 elements for each row and 2**24 in all, as far as known."""
    other = node.require(1)
    rows, columns = model.shapes.shape(data), model.shapes.shape(other)
    if node.opset < 11 or rows is None or columns is None or min(len(rows), len(columns)) < 2:
        return None
    inner, width = (dim.value for dim in columns[-2:])
    if inner is None or width is None or not 0 < inner * width <= 1 << 16:
        return None
    batches = [dim.value or 1 for dim in max(rows[:-2], columns[:-2], key=len)]
    if math.prod((*batches, rows[-2].value or 1, inner, width)) > 1 << 24:
        return None
    draft = Draft(node)
    first = draft.unsqueeze(data, [len(rows)])
    second = draft.unsqueeze(other, [len(columns) - 2])
    axis = max(len(rows), len(columns)) - 1
    sums = draft.add("CumSum", [draft.add("Mul", [first, second]), draft.constant(np.array(axis), "axis")])
    draft.replace_output(
        node, draft.add("Gather", [sums, draft.constant(np.array(inner - 1), "last")], axis=axis)
    )
    return Fix("sum products of integers", draft.edits)


def _as_gathers(node: Node, data: Value, elem: int, model: Model) -> Fix | None:
    """Repeat the elements along each axis that a nearest Resize enlarges by a whole factor of up to 64."""
    shape, scales, sizes = model.shapes.shape(data), node.input(2), node.input(3)
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    nearest = node.attr("nearest_mode", "round_prefer_floor")
    whole = (mode == "asymmetric" and nearest == "floor") or (
        mode in ("half_pixel", "pytorch_half_pixel") and nearest.startswith("round_prefer")
    )
    if node.opset < 11 or shape is None or not whole or node.attr("mode", "nearest") != "nearest":
        return None
    lengths = [dim.value for dim in shape]
    given = None if scales is None else scales.constant()
    if node.attr("axes") is not None or given is None or sizes is not None or given.shape != (len(lengths),):
        return None
    draft = Draft(node)
    names: list[Value | str] = [data]
    for axis, (length, factor) in enumerate(zip(lengths, given.tolist(), strict=True)):
        if factor == 1:
            continue
        if not length or factor not in range(2, 65) or not is_small(length * int(factor)) or length > 1 << 12:
            return None
        indices = draft.constant(np.arange(length).repeat(int(factor)), f"indices_{axis}")
        names.append(draft.add("Gather", [names[-1], indices], axis=axis))
    draft.replace_output(node, names[-1])
    return Fix("gather the nearest elements along each axis", draft.edits) if len(names) > 1 else None


integer_operator_without_kernel.examples = [
    Fixed(
        "a nearest Resize by 2 and 3",
        before="""g (int32[N,1,4,2] x) => (int32[N,1,8,6] y) <float[4] s = {1, 1, 2, 3}> { y = Resize(x, , s) }""",
        after="""g (int32[N,1,4,2] x) => (int32[N,1,8,6] y)
            <int64[8] i = {0, 0, 1, 1, 2, 2, 3, 3}, int64[6] j = {0, 0, 0, 1, 1, 1}> {
            a = Gather<axis = 2>(x, i)  y = Gather<axis = 3>(a, j) }""",
    ),
    Fixed(
        "asymmetric with floor, between other nodes",
        before="""g (int32[1,3] x) => (int32[1,6] y) <float[2] s = {1, 2}> { n = Neg(x)
            r = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(n, , s)  y = Abs(r) }""",
        after="""g (int32[1,3] x) => (int32[1,6] y) <int64[6] i = {0, 0, 1, 1, 2, 2}> {
            n = Neg(x)  r = Gather<axis = 1>(n, i)  y = Abs(r) }""",
        opset=13,
    ),
    Fixed(
        "Relu of int32, its zero of the data's type and rank",
        before="g (int32[N,3] x) => (int32[N,3] y) { y = Relu(x) }",
        after="g (int32[N,3] x) => (int32[N,3] y) <int32[1,1] z = {0}> { y = Max(x, z) }",
    ),
    Fixed(
        "Relu of int64, which TensorRT 8 imports as int32",
        before="g (int64[N] x) => (int64[N] y) { y = Relu(x) }",
        after="g (int64[N] x) => (int64[N] y) <int64[1] z = {0}> { y = Max(x, z) }",
        target="trt8.6",
    ),
    Silent(
        "Relu of int64, for which later versions have a kernel",
        "g (int64[N] x) => (int64[N] y) { y = Relu(x) }",
    ),
    Fixed(
        "a scalar, and data of unknown rank, with a scalar zero",
        before="g (int32 x, int32[] w) => (int32 y, int32[] v) { y = Relu(x)  v = Relu(w) }",
        after="""g (int32 x, int32[] w) => (int32 y, int32[] v) <int32 z = {0}, int32 u = {0}> {
            y = Max(x, z)  v = Max(w, u) }""",
    ),
    Fixed(
        "a small MatMul",
        before="g (int32[N,3] x, int32[3,2] w) => (int32[N,2] y) { y = MatMul(x, w) }",
        after="""g (int32[N,3] x, int32[3,2] w) => (int32[N,2] y)
            <int64[1] a = {2}, int64[1] b = {0}, int64 c = {1}, int64 k = {2}> {
            u = Unsqueeze(x, a)  v = Unsqueeze(w, b)  p = Mul(u, v)  s = CumSum(p, c)  y = Gather<axis = 1>(s, k) }""",
    ),
    Fixed(
        "a batch of int64 matrices, between other nodes",
        before="""g (int64[2,4,3] x, int64[3,2] w) => (int64[2,4,2] y) {
            n = Neg(x)  m = MatMul(n, w)  y = Abs(m) }""",
        after="""g (int64[2,4,3] x, int64[3,2] w) => (int64[2,4,2] y)
            <int64[1] a = {3}, int64[1] b = {0}, int64 c = {2}, int64 k = {2}> {
            n = Neg(x)  u = Unsqueeze(n, a)  v = Unsqueeze(w, b)  p = Mul(u, v)  s = CumSum(p, c)
            m = Gather<axis = 2>(s, k)  y = Abs(m) }""",
        opset=13,
    ),
    Flagged(
        "a large MatMul", "g (int32[N,1024] x, int32[1024,512] w) => (int32[N,512] y) { y = MatMul(x, w) }"
    ),
    Flagged("a MatMul of vectors", "g (int32[3] x, int32[3] w) => (int32 y) { y = MatMul(x, w) }"),
    Flagged("Gemm", "g (int64[N,3] x, int64[3,2] w) => (int64[N,2] y) { y = Gemm(x, w) }"),
    Flagged(
        "Einsum",
        """g (int32[N,3] x, int32[3,2] w) => (int32[N,2] y) { y = Einsum<equation = "ij,jk->ik">(x, w) }""",
    ),
    Flagged("ReduceL2", "g (int64[N,3] x) => (int64[1,1] y) { y = ReduceL2(x) }"),
    Flagged("PRelu", "g (int32[N,3] x, int32[3] s) => (int32[N,3] y) { y = PRelu(x, s) }"),
    Flagged(
        "a Resize by a fraction",
        "g (int32[1,1,4,4] x) => (int32[1,1,6,4] y) <float[4] s = {1,1,1.5,1}> { y = Resize(x, , s) }",
    ),
    Flagged(
        "a Resize along an axis of unknown size",
        "g (int32[1,1,N,4] x) => (int32[1,1,M,4] y) <float[4] s = {1,1,2,1}> { y = Resize(x, , s) }",
    ),
    Flagged(
        "TensorScatter",
        "g (int32[1,1,4,2] x, int32[1,1,1,2] u) => (int32[1,1,4,2] y) { y = TensorScatter(x, u) }",
        opset=24,
        target="rtx",
        runs=False,
    ),
    Silent("floats", "g (float[N,3] x, float[3,2] w) => (float[N,2] y) { m = MatMul(x, w)  y = Relu(m) }"),
    Silent(
        "integer operators that have kernels",
        """g (int64[N] x) => (int64[N] y, int64[1] s) <int64 k = {3}> {
            a = Mul(x, k)  b = Mod(a, k)  y = Abs(b)  s = ReduceSum(b) }""",
    ),
    Silent("int8 is not int32 or int64", "g (int8[N] x) => (int8[N] y) { y = Relu(x) }"),
    Flagged(
        "ReduceLogSum and ReduceLogSumExp",
        """g (int32[2,3] x) => (int32[1,1] y, int32[1,1] z) {
            y = ReduceLogSum(x)  z = ReduceLogSumExp(x) }""",
    ),
    Silent(
        "integer operators that have kernels: Clip, Pow, Sign, CumSum, Where, Max, TopK and Pad",
        """g (int64[2,3] x, int64[1] k) => (int64[2,3] y, int64[2,A] z, int64[B,C] w)
            <int64 lo = {1}, int64 hi = {9}, int64 two = {2}, int64 ax = {0}, int64[4] p = {0,1,0,1},
             bool[3] c = {1,0,1}> {
            a = Clip(x, lo, hi)  b = Pow(a, two)  d = Sign(b)  e = CumSum(d, ax)  f = Where(c, e, x)
            y = Max(f, a)  z, i = TopK(x, k)  w = Pad(x, p) }""",
    ),
    Silent(
        "integer operators that have kernels: Sub, Div, Neg, Gather, Range and reductions",
        """g (int64[2,3] x, int64 n) => (int64[N] r, int64[1,1] s, int64[1,1] t, int64[1,1] u)
            <int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
            a = Sub(x, two)  b = Div(a, two)  c = Neg(b)  d = Gather(c, zero)  e = Mul(d, c)
            r = Range(zero, n, one)  s = ReduceMax(e)  t = ReduceMean(e)  u = ReduceProd(e) }""",
    ),
]
