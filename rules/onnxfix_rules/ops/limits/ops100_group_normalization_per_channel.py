"""OPS100."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

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
_fixed = partial(Fixed, opset=21, safety=Safety.NUMERIC)
_silent = partial(Silent, opset=21, target="trt10")


group_normalization_per_channel.examples = [
    _fixed(
        "two channels a group",
        before=f"{_IO} {{ {_CALL} }}",
        after=f"""{_IO} <{_UNITS}, int64[3] h = {{0, 2, 12}}, int64[4] k = {{0, 4, 2, 3}},
            int64[2] a = {{1, 2}}, int64[2] c = {{1, 2}}> {{
            r = Reshape(x, h)  {_NORM}  o = Reshape(m, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        target="trt10",
    ),
    _fixed(
        "a dynamic length, for TensorRT 8.6",
        before=f"{_DYNAMIC} {{ {_CALL} }}",
        after=f"""{_DYNAMIC} <{_UNITS}, int64[3] h = {{0, 2, -1}}, int64[1] a = {{1}}, int64[1] c = {{1}}> {{
            r = Reshape(x, h)  {_NORM}  k = Shape(x)  o = Reshape(m, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        target="trt8.6",
    ),
    _fixed(
        "half precision, normalized in float32",
        before=f"{_HALF} {{ {_CALL} }}",
        after=f"""{_HALF} <{_UNITS}, int64[3] h = {{0, 2, 12}}, int64[4] k = {{0, 4, 2, 3}},
            int64[2] a = {{1, 2}}, int64[2] c = {{1, 2}}> {{
            w = Cast<to = FLOAT>(x)  r = Reshape(w, h)  {_NORM}  n = Cast<to = FLOAT16>(m)  o = Reshape(n, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        target="trt10",
    ),
    Flagged("not fixed by default", f"{_IO} {{ {_CALL} }}", opset=21, target="trt10"),
    Silent("TensorRT 11 builds it", f"{_IO} {{ {_CALL} }}", opset=21),
    _silent("each channel is a group", f"{_IO} {{ y = GroupNormalization<num_groups = 4>(x, s, b) }}"),
    _silent("one group: OPS072", f"{_IO} {{ y = GroupNormalization<num_groups = 1>(x, s, b) }}"),
    Silent(
        "before opset 21 scale and bias are per group",
        "g (float[N,4,2,3] x, float[2] s, float[2] b) => (float[N,4,2,3] y) "
        "{ y = GroupNormalization<num_groups = 2>(x, s, b) }",
        opset=18,
        target="trt10",
    ),
]
