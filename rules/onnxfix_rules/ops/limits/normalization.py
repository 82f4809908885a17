"""Normalizations in training mode, and with a scale for each channel."""

from __future__ import annotations

from collections.abc import Iterator

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
    is_read,
    rule,
    target_of,
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
    The model was exported without `model.eval()`. The parser stops: `This version of TensorRT does not support
    training_mode == 1 in BatchNormalization.`, `doesn't support mode than 1 outputs for BatchNormalization nodes!`,
    `does not support the Dropout operator in training mode`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    Switch to inference mode: BatchNormalization uses the given mean and variance instead of those of the batch, Dropout
    becomes a copy. This is what was intended, but it computes something else: `--unsafe-fixes`. Only a Dropout with the
    constant ratio 0 is a copy in training mode too, and its fix is exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
    - https://pytorch.org/docs/stable/onnx.html, `TrainingMode`
    """
    if node.op_type == "BatchNormalization":
        yield from _batch_normalization(node)
    elif node.opset >= 12 and node.input(2) is not None:
        yield from _dropout(node)


def _batch_normalization(node: Node) -> Iterator[Match]:
    if node.opset >= 14:
        trains = node.attr("training_mode", 0) != 0
    else:
        trains = any(value is not None for value in node.outputs[1:])
    if not trains or node.opset < 7:
        return
    fix = None
    if not any(is_read(value) for value in node.outputs[1:]) and node.outputs[0] is not None:
        draft = Draft(node)
        draft.replace_node(node, outputs=node.proto.output[:1], training_mode=None)
        fix = Fix("use the given mean and variance, as in inference", draft.edits, Safety.UNSAFE)
    yield Match("BatchNormalization in training mode, which TensorRT does not have", node=node, fix=fix)


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
        fix=Fix(
            "copy the data, as in inference",
            draft.edits,
            Safety.EXACT if ratio == 0 else Safety.UNSAFE,
        ),
    )


_BN = "g (float[N,2,4] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2,4] y)"
_DO = "g (float[N,4] x) => (float[N,4] y)"


training_mode.examples = [
    Fixed(
        "BatchNormalization with unused running mean and variance",
        before=f"{_BN} {{ y, p, q = BatchNormalization<training_mode = 1, epsilon = 0.01>(x, s, b, m, v) }}",
        after=f"{_BN} {{ y = BatchNormalization<epsilon = 0.01>(x, s, b, m, v) }}",
        safety=Safety.UNSAFE,
        runs=False,
    ),
    Flagged(
        "not fixed by default",
        f"{_BN} {{ y, p, q = BatchNormalization<training_mode = 1>(x, s, b, m, v) }}",
    ),
    Flagged(
        "the running mean is a graph output",
        """g (float[3,2] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[3,2] y, float[2] p) {
            y, p, q = BatchNormalization<training_mode = 1>(x, s, b, m, v) }""",
        safety=Safety.UNSAFE,
    ),
    Fixed(
        "before opset 14 more outputs mean training mode",
        before=f"{_BN} {{ y, p, q, r, t = BatchNormalization(x, s, b, m, v) }}",
        after=f"{_BN} {{ y = BatchNormalization(x, s, b, m, v) }}",
        opset=9,
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
        "Dropout with the default ratio",
        f"{_DO} <bool t = {{1}}> {{ y = Dropout(x, , t) }}",
        runs=False,
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


_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rule("OPS100", ops=["GroupNormalization"], safety=Safety.NUMERIC, severity=Severity.ERROR)
def group_normalization_per_channel(node: Node, model: Model) -> Iterator[Match]:
    """A GroupNormalization of opset 21 with several channels a group: TensorRT before 11 does not build it.

    ## Why it matters
    Since opset 21 scale and bias have one element per channel, before one per group. TensorRT's layer has one per
    group, and the parser passes scale and bias on as they are (onnx-tensorrt 10.1). The builder refuses them: `For
    instance/group normalization, the scale`, measured with TensorRT 10.6.0 on an H200 for both of ONNX's node models;
    8.6.1: `scale dimensions not compatible for normalization`. TensorRT 11.2.1 imports them, and TensorRT-RTX 1.7.1
    builds them. For one group see OPS072.

    ## Fix
    InstanceNormalization of the groups as channels, between two Reshapes, then scale and bias, as PyTorch exports it
    before opset 18. half and bfloat16 are normalized in float32, as ONNX says. NUMERIC: equal up to rounding. Nothing
    is reported where the number of channels is unknown, and there is no fix where the type is unknown.

    ## References
    - https://onnx.ai/onnx/operators/text_diff_GroupNormalization_18_21.html
    """
    data, target = node.require(0), target_of(model)
    if target.package != "tensorrt" or target.oldest >= (11,) or target.imports(node.op_type) is False:
        return
    shape, groups = model.shapes.shape(data), node.attr("num_groups")
    if node.opset < 21 or shape is None or len(shape) < 3 or node.attr("stash_type", 1) != 1:
        return
    channels = shape[1].value
    if channels is None or groups in (1, channels) or groups < 1 or channels % groups:
        return
    if any(dim.value == 0 for dim in shape):
        return
    elem = model.shapes.elem_type(data)
    yield Match(
        f"GroupNormalization of {channels} channels in {groups} groups: {target.title} expects a scale per group",
        node=node,
        fix=_fix(node, data, shape, groups, elem) if elem in (TensorProto.FLOAT, *_NARROW) else None,
        reads=(data,),
    )


def _fix(node: Node, data: Value, shape: tuple[Dim, ...], groups: int, elem: int | None) -> Fix:
    draft = Draft(node)
    sizes = [dim.value for dim in shape[1:]]
    known = [size for size in sizes if size is not None]
    is_static = len(known) == len(sizes)
    source: Value | str = data if elem == TensorProto.FLOAT else draft.cast(data, TensorProto.FLOAT)
    rows = draft.reshape(
        source, [0, groups, int(np.prod(known)) // groups if is_static else -1], hint="groups"
    )
    ones = draft.constant(np.ones(groups, np.float32), "ones")
    zeros = draft.constant(np.zeros(groups, np.float32), "zeros")
    epsilon = node.attr("epsilon", 1e-5)
    result = draft.add("InstanceNormalization", [rows, ones, zeros], epsilon=epsilon)
    if elem is not None and elem != TensorProto.FLOAT:
        result = draft.cast(result, elem)
    if is_static:
        result = draft.reshape(result, [0, *known])
    else:
        result = draft.add("Reshape", [result, draft.add("Shape", [data])])
    axes = range(1, len(shape) - 1)
    scaled = draft.add("Mul", [result, draft.unsqueeze(node.require(1), axes)], hint="scaled")
    draft.replace_output(node, draft.add("Add", [scaled, draft.unsqueeze(node.require(2), axes)]))
    return Fix("replace by InstanceNormalization of the groups", draft.edits, Safety.NUMERIC)


_IO = "g (float[N,4,2,3] x, float[4] s, float[4] b) => (float[N,4,2,3] y)"
_HALF = _IO.replace("float", "float16")
_DYNAMIC = "g (float[N,4,L] x, float[4] s, float[4] b) => (float[N,4,L] y)"
_CALL = "y = GroupNormalization<num_groups = 2, epsilon = 0.01>(x, s, b)"
_UNITS = "float[2] one = {1, 1}, float[2] zero = {0, 0}"
_NORM = "m = InstanceNormalization<epsilon = 0.01>(r, one, zero)"


group_normalization_per_channel.examples = [
    Fixed(
        "two channels a group",
        before=f"{_IO} {{ {_CALL} }}",
        after=f"""{_IO} <{_UNITS}, int64[3] h = {{0, 2, 12}}, int64[4] k = {{0, 4, 2, 3}},
            int64[2] a = {{1, 2}}, int64[2] c = {{1, 2}}> {{
            r = Reshape(x, h)  {_NORM}  o = Reshape(m, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        opset=21,
        safety=Safety.NUMERIC,
        target="trt10",
    ),
    Fixed(
        "a dynamic length, for TensorRT 8.6",
        before=f"{_DYNAMIC} {{ {_CALL} }}",
        after=f"""{_DYNAMIC} <{_UNITS}, int64[3] h = {{0, 2, -1}}, int64[1] a = {{1}}, int64[1] c = {{1}}> {{
            r = Reshape(x, h)  {_NORM}  k = Shape(x)  o = Reshape(m, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        opset=21,
        safety=Safety.NUMERIC,
        target="trt8.6",
    ),
    Fixed(
        "half precision, normalized in float32",
        before=f"{_HALF} {{ {_CALL} }}",
        after=f"""{_HALF} <{_UNITS}, int64[3] h = {{0, 2, 12}}, int64[4] k = {{0, 4, 2, 3}},
            int64[2] a = {{1, 2}}, int64[2] c = {{1, 2}}> {{
            w = Cast<to = FLOAT>(x)  r = Reshape(w, h)  {_NORM}  n = Cast<to = FLOAT16>(m)  o = Reshape(n, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        opset=21,
        safety=Safety.NUMERIC,
        target="trt10",
    ),
    Flagged("not fixed by default", f"{_IO} {{ {_CALL} }}", opset=21, target="trt10"),
    Silent("TensorRT 11 builds it", f"{_IO} {{ {_CALL} }}", opset=21),
    Silent(
        "each channel is a group",
        f"{_IO} {{ y = GroupNormalization<num_groups = 4>(x, s, b) }}",
        opset=21,
        target="trt10",
    ),
    Silent(
        "one group: OPS072",
        f"{_IO} {{ y = GroupNormalization<num_groups = 1>(x, s, b) }}",
        opset=21,
        target="trt10",
    ),
    Silent(
        "before opset 21 scale and bias are per group",
        "g (float[N,4,2,3] x, float[2] s, float[2] b) => (float[N,4,2,3] y) "
        "{ y = GroupNormalization<num_groups = 2>(x, s, b) }",
        opset=18,
        target="trt10",
    ),
]
