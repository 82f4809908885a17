"""Decomposed normalizations, in half precision and in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Dim,
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
    rule,
    target_of,
)

from ._common import FLOAT, HALF, NUMPY, rank_of, type_of
from ._examples import NORMS
from ._norm import Mean, Norm, norm_at, same_dims, trailing

MOST_ONES = 1 << 16
"""Most elements of a scale of ones that a fix may add."""


Operand = Value | np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Tail:
    """The scale and bias after a norm, if they have the normalized shape, and the last node."""

    scale: Operand | None
    bias: Operand | None
    last: Node


def as_operator(norm: Norm, model: Model) -> Fix | None:
    """LayerNormalization or RMSNormalization, if the opset and the target support it; else None."""
    op_type, since = ("RMSNormalization", 23) if norm.mean is None else ("LayerNormalization", 17)
    elem = type_of(norm.x, model)
    count, shape = trailing(norm, model), model.shapes.shape(norm.x)
    if norm.last.opset < since or elem is None or target_of(model).accepts(op_type, elem) is not True:
        return None
    epsilon = float(np.float32(norm.epsilon))
    if epsilon <= 0 or count is None or shape is None:
        return None
    if count > len(shape) or type_of(norm.result, model) != elem:
        return None
    dims = shape[len(shape) - count :]
    tail = _tail(norm, dims, elem, model)
    draft = Draft(tail.last)
    if tail.scale is None:
        sizes = [dim.value for dim in dims if dim.value is not None]
        if len(sizes) != count or np.prod(sizes, dtype=object) > MOST_ONES:
            return None
        tail = replace(tail, scale=np.ones(sizes, NUMPY[elem]))
    given = ((tail.scale, "scale"), (tail.bias, "bias"))
    more = [draft.constant(one, hint) if isinstance(one, np.ndarray) else one for one, hint in given]
    inputs = [norm.x, *(one for one in more if one is not None)]
    draft.replace_output(tail.last, draft.add(op_type, inputs, axis=-count, epsilon=epsilon))
    return Fix(f"replace by {op_type}, which computes in float32", draft.edits, Safety.NUMERIC)


def _tail(norm: Norm, dims: tuple[Dim, ...], elem: int, model: Model) -> _Tail:
    scale = _operand(norm.last, "Mul", dims, elem, model)
    last = norm.last if scale is None else scale[0]
    bias = None if norm.mean is None else _operand(last, "Add", dims, elem, model)
    return _Tail(scale and scale[1], bias and bias[1], last if bias is None else bias[0])


def _operand(
    node: Node, op_type: str, dims: tuple[Dim, ...], elem: int, model: Model
) -> tuple[Node, Operand] | None:
    """The ``op_type`` that is the only reader of ``node``'s result, and its other operand of this shape and type.

    A constant may have additional leading dimensions of 1, up to the rank of the norm's result.
    """
    value = node.output()
    if value is None or value.use_count != 1 or not value.replaceable:
        return None
    use = value.uses[0]
    other = use.node.input(1 - use.index) if use.node.op_type == op_type else None
    if other is None or not use.node.is_onnx or use.node.scope is not node.scope:
        return None
    if type_of(other, model) != elem or use.node.output() is None:
        return None
    if same_dims(other, dims, model):
        return use.node, other
    shape = model.shapes.static_shape(other) if other.is_constant else None
    if shape is None or len(shape) > rank_of(value, model) or set(shape[: len(shape) - len(dims)]) != {1}:
        return None
    sizes = shape[len(shape) - len(dims) :]
    array = other.constant(MOST_ONES) if [dim.value for dim in dims] == list(sizes) else None
    return None if array is None else (use.node, array.reshape(sizes))


def upcast(norm: Norm, model: Model) -> Fix:
    """The same nodes in float32 (in double where the model computes some of them so), between two Casts."""
    draft = Draft(norm.last)
    work = norm.work
    data = draft.add("Cast", [norm.x], hint="wide", to=work)
    if norm.mean is not None:
        mean = _again(draft, norm.mean, data)
        data = draft.add("Sub", [data, mean])
    average = _again(draft, norm.average, draft.add("Mul", [data, data], hint="square"))
    # Of the original's rank: a rank of its own would be kept.
    shape = () if (array := norm.epsilon_value.constant()) is None else array.shape
    epsilon = draft.constant(np.full(shape, norm.epsilon, NUMPY[work]), "epsilon")
    root = draft.add("Sqrt", [draft.add("Add", [average, epsilon])])
    final = type_of(norm.result, model)
    quotient = draft.add("Div", [data, root])
    draft.replace_output(norm.last, quotient if final == work else draft.add("Cast", [quotient], to=final))
    return Fix(f"compute in {_NAMES[work]} between Casts", draft.edits, Safety.NUMERIC)


_NAMES = {
    int(TensorProto.FLOAT): "float32",
    int(TensorProto.DOUBLE): "double, which TensorRT takes as float32",
}


def _again(draft: Draft, mean: Mean, data: str) -> str:
    """The same mean of ``data``, as one ReduceMean."""
    node = mean.node
    if node.op_type == "ReduceMean" and node.attr("keepdims", 1):
        attributes: dict[str, Any] = {a.name: node.attr(a.name) for a in node.proto.attribute}
        return draft.add(node.op_type, [data, *node.inputs[1:]], **attributes)
    if mean.axes is None:
        return draft.add("ReduceMean", [data])
    return draft.along("ReduceMean", data, mean.axes)


@rule("PRC001", ops=["Sqrt", "Pow"], safety=Safety.NUMERIC, hazards=[31], types=[HALF])
def decomposed_norm_in_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A decomposed LayerNorm or RMSNorm in half precision, where its squares and sums overflow.

    ## Why it matters
    `(x - mean(x))**2` exceeds 65504, float16's largest value, as soon as an element is 256 away from the mean, and
    the sum in a mean overflows sooner. The quotient is then 0 or NaN. TensorRT detects the pattern and builds it
    unchanged. Measured with TensorRT-RTX 1.7.1 (parsed and built ahead of time, not executed), for LayerNorm and
    RMSNorm, with `Pow` or `Mul`, `Div` or `Reciprocal`, over any axis, and also if only the mean is in half
    precision: `Detected layernorm nodes in FP16.` and `Running layernorm after self-attention with FP16 Reduce or Pow
    may cause overflow. Forcing Reduce or Pow Layers in FP32 precision, or exporting the model to use
    INormalizationLayer (available with ONNX opset >= 17) can help preserving accuracy.` After each of the rewrites
    below it reports neither.

    With `onnx.reference`, which rounds after each node: rows 0, 600, 0, 600, … of 8 elements give -1, 1, -1, 1 in
    float32; decomposed in float16 they give 0 or -0 everywhere, because the variance is infinite, and NaN with 768
    elements, where the mean is infinite, too. After the rewrite in float32 it is -1, 1 again.

    ## Fix
    One LayerNormalization (opset 17) or RMSNormalization (opset 23), if the target supports it for half precision:
    both compute in float32 by definition (`stash_type` 1). The axes must be the last ones. A following scale and bias
    of the normalized shape are included, constants also with leading dimensions of 1; others stay, and a scale of
    ones is added.

    Means may be sums divided by their number of elements, or lack the dimension, which an Unsqueeze restores; the
    root may be a power of 0.5 or -0.5, the quotient a product with a reciprocal.

    Otherwise the same nodes in float32 between two Casts; in double, which TensorRT imports as float32, if the result
    or the epsilon is double.

    NUMERIC: without overflow only rounding changes. With overflow, finite values replace NaN, infinity or 0, as
    intended; verification shows the overflow and judges those values by the original in higher precision. ONNX
    Runtime computes all of these in float32 on the CPU, so there nothing overflows. On rows of two or three nearly
    equal elements, half-precision rounding itself is out of tolerance, and the fix is withdrawn.

    No fix if another node, a subgraph or a graph output reads the mean, the difference or the variance, and if
    epsilon is 0 (see PRC002). bfloat16 has float32's range and is not reported.

    ## References
    - NVIDIA/TensorRT issues 2564, 2781, 3692, 4355, 4493; pytorch/TensorRT issue 4061
    - microsoft/onnxruntime pull request 13639 (overflow at the Pow of a layer norm)
    - onnxsim pull request 1742: ViT-B/16 in FP16 on TensorRT 10.3 falls to 19 % top-1 for this reason
    - https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """
    norm = norm_at(node, model)
    if norm is None or HALF not in norm.types or type_of(norm.x, model) != HALF:
        return
    message = f"decomposed {norm.kind} in half precision: its sums and squares overflow beyond 65504"
    reads: tuple[Node | Value, ...] = (norm.x, norm.epsilon_value, *norm.inside)
    if norm.epsilon <= 0:
        yield Match(f"{message}; its epsilon is {norm.epsilon:g} in this type", node=node, reads=reads)
        return
    if not norm.closed:
        yield Match(f"{message}; other nodes read its intermediate results", node=node, reads=reads)
        return
    yield Match(message, node=node, fix=as_operator(norm, model) or upcast(norm, model), reads=reads)


_silent = partial(Silent, ir_version=8, opset=17)
decomposed_norm_in_half_precision.examples = NORMS


@rule(
    "PRC011", ops=["Sqrt", "Pow"], safety=Safety.NUMERIC, severity=Severity.INFO, default=False, hazards=[31]
)
def decomposed_norm_in_float32(node: Node, model: Model) -> Iterator[Match]:
    """A decomposed LayerNorm or RMSNorm in float32, which would overflow after conversion to half precision.

    ## Why it matters
    The model itself is correct. A converter (AutoCast, `convert_float_to_float16`, `--fp16` of a weakly typed
    TensorRT) converts the squares and means to half precision node by node, where they overflow; PRC001 has the
    measured texts and values. As one operator the norm survives: LayerNormalization and RMSNormalization compute in
    float32 for any input type. TensorRT's own warning recommends "exporting the model to use INormalizationLayer
    (available with ONNX opset >= 17)".

    Runs only when selected (`--select PRC011`), for models that will be converted.

    ## Fix
    LayerNormalization (opset 17) or RMSNormalization (opset 23), if the axes are the last ones and no other node
    reads the norm's intermediate results. NUMERIC: the order of rounding changes. No fix otherwise: keep these nodes
    in float32 when you convert, or raise the opset first.

    ## References
    - NVIDIA/TensorRT issues 2781, 3692; onnxsim pull request 1742
    - https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """
    norm = norm_at(node, model)
    if norm is None or type_of(norm.x, model) != FLOAT or norm.types != {FLOAT}:
        return
    message = f"decomposed {norm.kind} in float32: it would overflow after conversion to half precision"
    reads: tuple[Node | Value, ...] = (norm.x, norm.epsilon_value, *norm.inside)
    fix = as_operator(norm, model) if norm.closed and norm.epsilon > 0 else None
    yield Match(message, node=node, fix=fix, reads=reads)


_IO = "g (float[2,8] x) => (float[2,8] y)"
_E = "float two = {2}, float e = {0.00001}"
_SCALE = "float[8] g = {1, 2, 3, 4, 5, 6, 7, 8}"
_LAYER = (
    "m = ReduceMean<axes=[-1]>(x)  d = Sub(x, m)  q = Pow(d, two)  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)"
    "  s = Sqrt(a)  n = Div(d, s)"
)


_fused = partial(Fixed, safety=Safety.NUMERIC, opset=17, ir_version=8)


_flagged = partial(Flagged, safety=Safety.NUMERIC, opset=17, ir_version=8)
decomposed_norm_in_float32.examples = [
    _fused(
        "with a scale and a bias",
        f"{_IO} <{_E}, {_SCALE}> {{ {_LAYER}  p = Mul(n, g)  y = Add(p, g) }}",
        f"{_IO} <{_SCALE}> {{ y = LayerNormalization<axis=-1, epsilon=0.00001>(x, g, g) }}",
    ),
    _fused(
        "an RMSNorm by a reciprocal, opset 23",
        f"{_IO} <float e = {{0.00001}}, {_SCALE}, int64[1] k = {{-1}}> {{ q = Mul(x, x)  v = ReduceMean(q, k)"
        "  a = Add(v, e)  s = Sqrt(a)  r = Reciprocal(s)  n = Mul(x, r)  y = Mul(g, n) }",
        f"{_IO} <{_SCALE}> {{ y = RMSNormalization<axis=-1, epsilon=0.00001>(x, g) }}",
        opset=23,
        ir_version=11,
    ),
    _flagged(
        "an opset without LayerNormalization", f"{_IO} <{_E}> {{ {_LAYER.replace('n =', 'y =')} }}", opset=13
    ),
    _flagged(
        "over channels that are not last",
        f"g (float[2,8,3] x) => (float[2,8,3] y) <{_E}> {{ {_LAYER.replace('-1', '1').replace('n =', 'y =')} }}",
    ),
    _flagged(
        "another node reads the variance",
        f"g (float[2,8] x) => (float[2,8] y, float[2,1] z) <{_E}> {{ {_LAYER.replace('n =', 'y =')}  z = Neg(v) }}",
    ),
    _silent(
        "half precision is covered by PRC001",
        "g (float16[2,8] x) => (float16[2,8] y) <float16 two = {f16(2.0)}, float16 e = {f16(1e-05)}>"
        f" {{ {_LAYER.replace('n =', 'y =')} }}",
    ),
    _silent(
        "half precision that is already computed in float32",
        f"g (float16[2,8] h) => (float16[2,8] y) <{_E}> {{ x = Cast<to=FLOAT>(h)  {_LAYER}  y = Cast<to=FLOAT16>(n) }}",
    ),
    _silent(
        "in double",
        "g (double[2,8] x) => (double[2,8] y) <double two = {2}, double e = {0.1}>"
        f" {{ {_LAYER.replace('n =', 'y =')} }}",
    ),
    _silent(
        "the variance in double",
        "g (float[2,8] x) => (float[2,8] y) <double e = {0.1}> { m = ReduceMean<axes=[-1]>(x)  h = Sub(x, m)"
        "  d = Cast<to=DOUBLE>(h)  q = Mul(d, d)  v = ReduceMean<axes=[-1]>(q)  a = Add(v, e)  s = Sqrt(a)"
        "  n = Div(d, s)  y = Cast<to=FLOAT>(n) }",
    ),
    Silent("not a norm", f"{_IO} <{_E}> {{ q = Mul(x, x)  a = Add(q, e)  s = Sqrt(a)  y = Div(x, s) }}"),
]
