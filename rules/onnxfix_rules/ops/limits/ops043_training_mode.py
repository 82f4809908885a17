"""OPS043."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

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
    is_read,
    rule,
)
from onnxfix_rules.ops import _bounds


@rule(
    "OPS043",
    ops=["BatchNormalization", "Dropout"],
    safety=Safety.UNSAFE,
    severity=Severity.ERROR,
    hazards=[53],
)
def training_mode(node: Node, model: Model) -> Iterator[Match]:
    """A BatchNormalization or Dropout in training mode.

    ## Why it matters
    The model was exported without `model.eval()`, or normalizes its weights (timm's standardized convolutions, 55 nodes
    in nf_resnet50). The parser stops: `This version of TensorRT does not support training_mode == 1 in
    BatchNormalization.`, `doesn't support mode than 1 outputs for BatchNormalization nodes!`, `does not support the
    Dropout operator in training mode`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    BatchNormalization uses the mean and variance of the batch, by ONNX's definition (ReduceMean, Sub, Mul, ReduceMean,
    Add, Sqrt, Div, Mul, Add; running mean and variance where they are used), in float32 for half and bfloat16. Over
    constants the result is a constant. NUMERIC: equal up to rounding. There is no fix if the rank or the type is
    unknown, or if the model before opset 14 uses the other outputs, which ONNX did not define. The given mean and
    variance are not used instead: an untrained model and weight standardization have 0 and 1 there. Export the model in
    inference mode if that was intended.

    Dropout becomes a copy, as intended but not what the model computes: `--unsafe-fixes`. Only a Dropout with the
    constant ratio 0 is a copy in training mode too, and its fix is exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
    - https://pytorch.org/docs/stable/onnx.html, `TrainingMode`
    """
    if node.op_type == "BatchNormalization":
        yield from _batch_normalization(node, model)
    elif node.opset >= 12 and node.input(2) is not None:
        yield from _dropout(node)


def _batch_normalization(node: Node, model: Model) -> Iterator[Match]:
    if node.opset >= 14:
        trains = node.attr("training_mode", 0) != 0
    else:
        trains = any(value is not None for value in node.outputs[1:])
    if not trains or node.opset < 7:
        return
    fix = None
    running = any(is_read(value) for value in node.outputs[1:])
    if node.outputs[0] is not None and (node.opset >= 14 or not running):
        fix = (None if running else _standardized(node, model)) or _decomposed(node, model)
    yield Match("BatchNormalization in training mode, which TensorRT does not have", node=node, fix=fix)


def _standardized(node: Node, model: Model) -> Fix | None:
    """The normalized constant, computed in float64; None if an operand is not constant or has another shape."""
    operands = [node.require(index) for index in range(3)]
    data, scale, bias = (value.constant(_LIMIT) for value in operands)
    elem = model.shapes.elem_type(operands[0])
    if data is None or scale is None or bias is None or elem not in _FLOATS:
        return None
    if data.ndim < 2 or not data.size or scale.shape != data.shape[1:2] or bias.shape != scale.shape:
        return None
    axes = (0, *range(2, data.ndim))
    columns = (1, -1, *[1] * (data.ndim - 2))
    with np.errstate(all="ignore"):
        centered = data.astype(np.float64)
        centered -= centered.mean(axes, keepdims=True)
        centered /= np.sqrt(np.square(centered).mean(axes, keepdims=True) + node.attr("epsilon", 1e-5))
        result = centered * scale.astype(np.float64).reshape(columns) + bias.astype(np.float64).reshape(
            columns
        )
        result = result.astype(data.dtype)
    draft, output = Draft(node), node.require_output()
    constant = draft.constant(result, "standardized")
    if output.replaceable:
        draft.replace_uses(output, constant)
        draft.remove(node)
    else:
        draft.replace_output(node, constant)
    return Fix("replace by the normalized constant", draft.edits, Safety.NUMERIC)


def _decomposed(node: Node, model: Model) -> Fix | None:
    """ONNX's definition by other operators, with the running statistics that are used."""
    operands = [node.require(index) for index in range(5)]
    shape, kinds = model.shapes.shape(operands[0]), [model.shapes.elem_type(value) for value in operands]
    if shape is None or len(shape) < 2 or not _FLOATS.issuperset(kinds):
        return None
    wide = TensorProto.DOUBLE if TensorProto.DOUBLE in kinds else TensorProto.FLOAT
    dtype = np.float64 if wide == TensorProto.DOUBLE else np.float32
    axes, inner = [0, *range(2, len(shape))], range(1, len(shape) - 1)
    draft = Draft(node)
    draft.remove(node)

    def widen(index: int) -> Value | str:
        return operands[index] if kinds[index] == wide else draft.cast(operands[index], wide)

    def add_to(output: Value | None, kind: int | None, terms: list[Value | str]) -> None:
        assert output is not None
        if kind == wide:
            draft.add("Add", terms, output=output.name)
        else:
            draft.add("Cast", [draft.add("Add", terms)], output=output.name, to=kind)

    data = widen(0)
    mean = draft.along("ReduceMean", data, axes)
    centered = draft.add("Sub", [data, mean], hint="centered")
    variance = draft.along("ReduceMean", draft.add("Mul", [centered, centered], hint="squares"), axes)
    epsilon = draft.constant(np.array(node.attr("epsilon", 1e-5), dtype), "epsilon")
    deviation = draft.add("Sqrt", [draft.add("Add", [variance, epsilon])])
    normal = draft.add("Div", [centered, deviation])
    scale, bias = (draft.unsqueeze(widen(index), inner) if inner else widen(index) for index in (1, 2))
    add_to(node.outputs[0], kinds[0], [draft.add("Mul", [normal, scale]), bias])
    momentum = node.attr("momentum", 0.9)
    for index, new in ((1, mean), (2, variance)):
        output = node.output(index)
        if is_read(output):
            shares = [draft.constant(np.array(share, dtype)) for share in (momentum, 1 - momentum)]
            old = draft.add("Mul", [widen(index + 2), shares[0]])
            new = draft.add("Mul", [draft.squeeze(new, axes), shares[1]])
            add_to(output, kinds[index + 2], [old, new])
    return Fix("compute the mean and variance of the batch", draft.edits, Safety.NUMERIC)


def _dropout(node: Node) -> Iterator[Match]:
    data, output = node.input(0), node.output()
    mode = _bounds.number(node.input(2))
    if mode == 0 or data is None or output is None:
        return
    if mode is None:
        yield Match("this Dropout may be in training mode, which TensorRT does not have", node=node)
        return
    ratio = 0.5 if node.input(1) is None else _bounds.number(node.input(1))
    draft = Draft(node)
    if any(is_read(value) for value in node.outputs[1:]):
        draft.set_input(node, 2, None)
    elif output.replaceable:
        draft.replace_uses(output, data)
        draft.remove(node)
    else:
        draft.remove(node)
        draft.add("Identity", [data], output=output.name)
    yield Match(
        "Dropout in training mode, which TensorRT does not have"
        + (", with the ratio 0" if ratio == 0 else ""),
        node=node,
        fix=Fix("copy the data, as in inference", draft.edits, Safety.EXACT if ratio == 0 else Safety.UNSAFE),
    )


_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE))
_LIMIT = 1 << 26
"""Size of the largest constant that is normalized, in bytes."""

_BN = "g (float[N,2,4] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2,4] y)"
_DO = "g (float[N,4] x) => (float[N,4] y)"


_RUNNING = _BN.replace("y)", "y, float[2] p)").replace("N", "3")
_BATCH = """d = Sub(x, m1)  q1 = Mul(d, d)  VAR  e = Add(v1, eps)  r = Sqrt(e)  n = Div(d, r)"""
_AXES = "int64[2] a = {0, 2}, int64[2] a2 = {0, 2}, float eps = {0.01}"
_18 = f"m1 = ReduceMean(x, a)  {_BATCH.replace('VAR', 'v1 = ReduceMean(q1, a2)')}"
_9 = "m1 = ReduceMean<axes = [0, 2]>(x)  " + _BATCH.replace("VAR", "v1 = ReduceMean<axes = [0, 2]>(q1)")
_fixed = partial(Fixed, safety=Safety.NUMERIC)


training_mode.examples = [
    _fixed(
        "unused running mean and variance",
        before=f"{_BN} {{ y, p, q = BatchNormalization<training_mode = 1, epsilon = 0.01>(x, s, b, m, v) }}",
        after=f"""{_BN} <{_AXES}, int64[1] c = {{1}}, int64[1] c2 = {{1}}> {{
            {_18}  u = Unsqueeze(s, c)  w = Unsqueeze(b, c2)  z = Mul(n, u)  y = Add(z, w) }}""",
    ),
    _fixed(
        "the running mean is a graph output",
        before=f"""{_RUNNING} {{
            y, p, q = BatchNormalization<training_mode = 1, epsilon = 0.01, momentum = 0.75>(x, s, b, m, v) }}""",
        after=f"""{_RUNNING} <{_AXES}, int64[1] c = {{1}}, int64[1] c2 = {{1}}, float o = {{0.75}}, float i = {{0.25}},
            int64[2] a3 = {{0, 2}}> {{ {_18}  u = Unsqueeze(s, c)  w = Unsqueeze(b, c2)  z = Mul(n, u)  y = Add(z, w)
            old = Mul(m, o)  l = Squeeze(m1, a3)  new = Mul(l, i)  p = Add(old, new) }}""",
    ),
    _fixed(
        "a matrix in half precision, with statistics in float32, in opset 15",
        before="""g (float16[N,2] x, float16[2] s, float16[2] b, float[2] m, float[2] v) => (float16[N,2] y) {
            y, , = BatchNormalization<training_mode = 1, epsilon = 0.01>(x, s, b, m, v) }""",
        after="""g (float16[N,2] x, float16[2] s, float16[2] b, float[2] m, float[2] v) => (float16[N,2] y)
            <float eps = {0.01}> {
            f = Cast<to = FLOAT>(x)  m1 = ReduceMean<axes = [0]>(f)  d = Sub(f, m1)  q = Mul(d, d)
            v1 = ReduceMean<axes = [0]>(q)  e = Add(v1, eps)  r = Sqrt(e)  n = Div(d, r)
            h = Cast<to = FLOAT>(s)  i = Cast<to = FLOAT>(b)
            z = Mul(n, h)  w = Add(z, i)  y = Cast<to = FLOAT16>(w) }""",
        opset=15,
    ),
    _fixed(
        "before opset 14 more outputs mean training mode",
        before=f"{_BN} {{ y, p, q, r, t = BatchNormalization<epsilon = 0.01>(x, s, b, m, v) }}",
        after=f"""{_BN} <float eps = {{0.01}}> {{
            {_9}  u = Unsqueeze<axes = [1]>(s)  w = Unsqueeze<axes = [1]>(b)  z = Mul(n, u)  y = Add(z, w) }}""",
        opset=9,
    ),
    _fixed(
        "standardized weights",
        before="""g (float[N,1,4] x) => (float[N,2,3] y) <float[1,2,2] k = {1, 3, 2, 2}, float[2] s = {2, 1},
            float[2] b = {0.5, 0.25}, float[2] m = {0, 0}, float[2] v = {1, 1}, int64[3] h = {2, 1, 2}> {
            w, p, q = BatchNormalization<training_mode = 1, epsilon = 3.0>(k, s, b, m, v)
            r = Reshape(w, h)  y = Conv(x, r) }""",
        after="""g (float[N,1,4] x) => (float[N,2,3] y) <float[1,2,2] w = {-0.5, 1.5, 0.25, 0.25},
            int64[3] h = {2, 1, 2}> { r = Reshape(w, h)  y = Conv(x, r) }""",
    ),
    Flagged(
        "not fixed by default, nor by the given mean and variance",
        f"{_BN} {{ y, p, q = BatchNormalization<training_mode = 1>(x, s, b, m, v) }}",
    ),
    Flagged(
        "the running mean before opset 14, which ONNX does not define",
        f"{_RUNNING} {{ y, p, q, r, t = BatchNormalization(x, s, b, m, v) }}",
        opset=9,
        safety=Safety.UNSAFE,
    ),
    Flagged(
        "unknown rank",
        """g (float[A,B] d, int64[R] h, float[2] s, float[2] b) => (float[] y) { x = Reshape(d, h)
            y, p, q = BatchNormalization<training_mode = 1>(x, s, b, b, s) }""",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Fixed(
        "Dropout with ratio 0.5",
        before=f"{_DO} <float r = {{0.5}}, bool t = {{1}}> {{ d, k = Dropout<seed = 3>(x, r, t)  y = Neg(d) }}",
        after=f"{_DO} {{ y = Neg(x) }}",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "Dropout with the default ratio", f"{_DO} <bool t = {{1}}> {{ y = Dropout(x, , t) }}", runs=False
    ),
    Fixed(
        "Dropout with ratio 0: exact",
        before=f"{_DO} <float r = {{0}}, bool t = {{1}}> {{ d = Dropout(x, r, t)  y = Neg(d) }}",
        after=f"{_DO} {{ y = Neg(x) }}",
    ),
    Fixed(
        "the mask is used: only training mode is removed",
        before="""g (float[N,4] x) => (float[N,4] y, bool[N,4] k) <float r = {0}, bool t = {1}> {
            y, k = Dropout(x, r, t) }""",
        after="g (float[N,4] x) => (float[N,4] y, bool[N,4] k) <float r = {0}> { y, k = Dropout(x, r) }",
    ),
    Flagged(
        "training mode is a graph input",
        "g (float[N,4] x, bool t) => (float[N,4] y) <float r = {0.5}> { y = Dropout(x, r, t) }",
        runs=False,
    ),
    Silent("a Dropout in inference mode", f"{_DO} <float r = {{0.5}}> {{ y = Dropout(x, r) }}"),
    Silent("training mode off", f"{_DO} <float r = {{0.5}}, bool t = {{0}}> {{ y = Dropout(x, r, t) }}"),
    Silent("a BatchNormalization in inference mode", f"{_BN} {{ y = BatchNormalization(x, s, b, m, v) }}"),
    Silent(
        "opset 9, whose BatchNormalization has no training_mode",
        f"{_BN} {{ y = BatchNormalization(x, s, b, m, v) }}",
        opset=9,
    ),
]
