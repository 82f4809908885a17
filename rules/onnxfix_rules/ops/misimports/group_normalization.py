"""OPS072 and OPS100: GroupNormalization of other groups or scales than TensorRT takes."""

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


@rule("OPS072", ops=["GroupNormalization"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[11])
def group_normalization_of_one_group(node: Node, model: Model) -> Iterator[Match]:
    """A GroupNormalization with `num_groups = 1`: TensorRT normalizes each channel separately.

    ## Why it matters
    In ONNX all channels form one group: mean and variance are computed over channels and space together. TensorRT
    imports its normalization layer over the spatial axes with one group, and for that layer one group means no groups:
    it is the layer of an InstanceNormalization. It parses and builds without a warning. Measured with TensorRT-RTX
    1.7.1 by reading the imported network, in opsets 18, 21 and 23, for three to five dimensions, static and dynamic.
    Since opset 21 the engine is byte for byte that of InstanceNormalization; before, its kernel sums 9 elements for
    each of the 8 channels of a [2, 4, 3, 3], not 36 for each of the 2 samples. Where each channel has one element, the
    builder rejects it since opset 21 (`Total number of elements within given the first two dimensions must be > 1`).
    Two groups and more are imported correctly. No engine was executed.

    ## Fix
    LayerNormalization with `axis = 1`, which ONNX defines as equivalent; scale and bias get trailing axes of length 1,
    so that they align with the channels. TensorRT imports it correctly: its layer has the channels among its axes, and
    the kernel sums 36 elements. Rounding differs: `--numeric-fixes`. No fix where the rank is unknown and scale and
    bias are per channel. ONNX Runtime accepts a scale of that shape since 1.24, and rejects images without pixels.

    TensorRT layers: 1, and 2 for scale and bias.

    ## References
    - https://onnx.ai/onnx/operators/onnx__GroupNormalization.html: "When there is only one group, this operator is
      equivalent to LayerNormalization."
    - tensorrt.INormalizationLayer, in the package's own documentation: "Mean(X, axes) is a reduction over a set of
      axes"
    """
    data = node.require(0)
    if node.output() is None or node.opset < 18 or node.attr("num_groups") != 1:
        return
    if target_of(model).imports(node.op_type) is False:
        return
    shape = model.shapes.shape(data)
    if shape is not None and (len(shape) < 3 or shape[1].value == 1 or any(dim.value == 0 for dim in shape)):
        return
    if node.opset < 21 and any(_is_per_channel(node.input(index), model) for index in (1, 2)):
        return
    yield Match(
        "GroupNormalization with one group covers all channels; TensorRT normalizes each channel separately",
        node=node,
        fix=_fix(node, data, None if shape is None else len(shape)),
        reads=(data,),
    )


def _is_per_channel(value: Value | None, model: Model) -> bool:
    """Whether the scale or bias is known not to be per group, which opsets up to 20 require."""
    shape = None if value is None else model.shapes.static_shape(value)
    return shape not in (None, (1,))


def _fix(node: Node, data: Value, rank: int | None) -> Fix | None:
    scale, bias = node.input(1), node.input(2)
    if scale is None or bias is None:
        return None
    draft, operands = Draft(node), [scale.name, bias.name]
    if node.opset >= 21:  # [C]
        if rank is None:
            return None
        operands = [draft.unsqueeze(name, range(1, rank - 1)) for name in operands]
    draft.replace_node(node, "LayerNormalization", [data, *operands], num_groups=None, axis=1)
    return Fix("replace by LayerNormalization over channels and space", draft.edits, Safety.NUMERIC)


_PER_CHANNEL = "<float[4] s = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 2}>"
_fixed = partial(Fixed, safety=Safety.NUMERIC)


def _group_normalization(
    x: str, elem: str = "float", s: str = "1", attributes: str = "num_groups = 1"
) -> str:
    return f"""g ({elem}[{x}] x, {elem}[{s}] s, {elem}[{s}] b) => ({elem}[{x}] y) {{
        y = GroupNormalization<{attributes}>(x, s, b) }}"""


group_normalization_of_one_group.examples = [
    _fixed(
        "scale and bias per group, before opset 21; a dynamic batch of images",
        before="""g (float[N,4,H,W] x) => (float[N,4,H,W] y) <float[1] s = {2}, float[1] b = {1}> {
            y = GroupNormalization<num_groups = 1>(x, s, b) }""",
        after="""g (float[N,4,H,W] x) => (float[N,4,H,W] y) <float[1] s = {2}, float[1] b = {1}> {
            y = LayerNormalization<axis = 1>(x, s, b) }""",
    ),
    _fixed(
        "a signal in half precision, with all attributes and a dynamic number of channels",
        before=_group_normalization(
            "N,C,L", elem="float16", s="C", attributes="num_groups = 1, epsilon = 0.01, stash_type = 1"
        ),
        after="""g (float16[N,C,L] x, float16[C] s, float16[C] b) => (float16[N,C,L] y)
            <int64[1] a = {1}, int64[1] c = {1}> { u = Unsqueeze(s, a)  v = Unsqueeze(b, c)
            y = LayerNormalization<axis = 1, epsilon = 0.01, stash_type = 1>(x, u, v) }""",
        opset=22,
    ),
    _fixed(
        "in a local function that gets epsilon from the call",
        before="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,4,3] x, float[1] s, float[1] b) => (float[2,4,3] y) { y = my.F<e = 0.1>(x, s, b) }
            <domain: "my", opset_import: ["" : 18]> F <e> (x, s, b) => (y) {
                y = GroupNormalization<num_groups = 1, epsilon : float = @e>(x, s, b) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,4,3] x, float[1] s, float[1] b) => (float[2,4,3] y) { y = my.F<e = 0.1>(x, s, b) }
            <domain: "my", opset_import: ["" : 18]> F <e> (x, s, b) => (y) {
                y = LayerNormalization<epsilon : float = @e, axis = 1>(x, s, b) }""",
    ),
    _fixed(
        "one element per channel, which the builder rejects since opset 21",
        before=f"""g (float[2,4,1,1] x) => (float[2,4,1,1] y) {_PER_CHANNEL} {{
            y = GroupNormalization<num_groups = 1>(x, s, b) }}""",
        after=f"""g (float[2,4,1,1] x) => (float[2,4,1,1] y) {_PER_CHANNEL} {{
            a = Constant<value_ints = [1, 2]>()  u = Unsqueeze(s, a)
            c = Constant<value_ints = [1, 2]>()  v = Unsqueeze(b, c)  y = LayerNormalization<axis = 1>(x, u, v) }}""",
        opset=21,
    ),
    Flagged(
        "an unknown rank: a scale per channel cannot be aligned with the channels",
        """g (float[M] x, int64[K] h, float[C] s, float[C] b) => (float[A,B,D] y) {
            r = Reshape(x, h)  y = GroupNormalization<num_groups = 1>(r, s, b) }""",
        opset=21,
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a scale per channel where opset 20 requires one per group: ONNX Runtime rejects it",
        _group_normalization("2,4,3,3", s="4"),
        opset=20,
    ),
    Flagged("without --numeric-fixes: reported only", _group_normalization("2,4,3")),
    Silent(
        "two groups",
        f"""g (float[N,4,H,W] x) => (float[N,4,H,W] y) {_PER_CHANNEL} {{
            y = GroupNormalization<num_groups = 2>(x, s, b) }}""",
        opset=21,
    ),
    Silent(
        "two groups, with a scale per group",
        """g (float[2,4,3] x) => (float[2,4,3] y) <float[2] s = {1, 2}, float[2] b = {0, 1}> {
            y = GroupNormalization<num_groups = 2>(x, s, b) }""",
    ),
    Silent(
        "a group per channel: the same as InstanceNormalization",
        f"""g (float[N,4,H,W] x) => (float[N,4,H,W] y) {_PER_CHANNEL} {{
            y = GroupNormalization<num_groups = 4>(x, s, b) }}""",
        opset=21,
    ),
    Silent("one channel: both are the same", _group_normalization("N,1,H,W")),
    Silent("empty tensor", _group_normalization("2,4,0")),
    Silent(
        'vectors, which the parser rejects: "Input to normalization should be at least 3D"',
        f"""g (float[2,4] x) => (float[2,4] y) {_PER_CHANNEL} {{
            y = GroupNormalization<num_groups = 1>(x, s, b) }}""",
        opset=21,
    ),
    Silent(
        "every call of the function sets num_groups",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,4,3] x, float[2] s, float[2] b) => (float[2,4,3] y) { y = my.F<n = 2>(x, s, b) }
            <domain: "my", opset_import: ["" : 18]> F <n> (x, s, b) => (y) {
                y = GroupNormalization<num_groups : int = @n>(x, s, b) }""",
    ),
    Silent("TensorRT 8.4 has no importer for it", _group_normalization("2,4,3"), target="trt8.4"),
]


_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rule("OPS100", ops=["GroupNormalization"], safety=Safety.NUMERIC, severity=Severity.ERROR)
def group_normalization_per_channel(node: Node, model: Model) -> Iterator[Match]:
    """A GroupNormalization of opset 21 with several channels a group: TensorRT before 10.9 does not build it.

    ## Why it matters
    Since opset 21 scale and bias have one element per channel, before one per group. TensorRT's layer has one per
    group, and the parser passes scale and bias on as they are (onnx-tensorrt 10.1). The builder refuses them: `For
    instance/group normalization, the scale`, measured with TensorRT 10.6.0 on an H200 for both of ONNX's node models;
    8.6.1: `scale dimensions not compatible for normalization`. TensorRT imports opset 21 since 10.9, according to its
    changelog; 11.2.1 imports them, and TensorRT-RTX 1.7.1 builds them. For one group see OPS072.

    ## Fix
    InstanceNormalization of the groups as channels, between two Reshapes, then scale and bias, as PyTorch exports it
    before opset 18. half and bfloat16 are normalized in float32, as ONNX says. NUMERIC: equal up to rounding. Nothing
    is reported where the number of channels is unknown, and there is no fix where the type is unknown.

    ## References
    - https://onnx.ai/onnx/operators/text_diff_GroupNormalization_18_21.html
    """
    data, target = node.require(0), target_of(model)
    if target.package != "tensorrt" or target.oldest >= (10, 9) or target.imports(node.op_type) is False:
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
        fix=_by_instances(node, data, shape, groups, elem) if elem in (TensorProto.FLOAT, *_NARROW) else None,
        reads=(data,),
    )


def _by_instances(node: Node, data: Value, shape: tuple[Dim, ...], groups: int, elem: int | None) -> Fix:
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
_fixed_21 = partial(Fixed, opset=21, safety=Safety.NUMERIC)
_silent = partial(Silent, opset=21, target="10.8")


group_normalization_per_channel.examples = [
    _fixed_21(
        "two channels a group",
        before=f"{_IO} {{ {_CALL} }}",
        after=f"""{_IO} <{_UNITS}, int64[3] h = {{0, 2, 12}}, int64[4] k = {{0, 4, 2, 3}},
            int64[2] a = {{1, 2}}, int64[2] c = {{1, 2}}> {{
            r = Reshape(x, h)  {_NORM}  o = Reshape(m, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        target="10.8",
    ),
    _fixed_21(
        "a dynamic length, for TensorRT 8.6",
        before=f"{_DYNAMIC} {{ {_CALL} }}",
        after=f"""{_DYNAMIC} <{_UNITS}, int64[3] h = {{0, 2, -1}}, int64[1] a = {{1}}, int64[1] c = {{1}}> {{
            r = Reshape(x, h)  {_NORM}  k = Shape(x)  o = Reshape(m, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        target="trt8.6",
    ),
    _fixed_21(
        "half precision, normalized in float32",
        before=f"{_HALF} {{ {_CALL} }}",
        after=f"""{_HALF} <{_UNITS}, int64[3] h = {{0, 2, 12}}, int64[4] k = {{0, 4, 2, 3}},
            int64[2] a = {{1, 2}}, int64[2] c = {{1, 2}}> {{
            w = Cast<to = FLOAT>(x)  r = Reshape(w, h)  {_NORM}  n = Cast<to = FLOAT16>(m)  o = Reshape(n, k)
            u = Unsqueeze(s, a)  p = Mul(o, u)  v = Unsqueeze(b, c)  y = Add(p, v) }}""",
        target="10.8",
    ),
    Flagged("not fixed by default", f"{_IO} {{ {_CALL} }}", opset=21, target="10.8"),
    Silent("TensorRT 11 builds it", f"{_IO} {{ {_CALL} }}", opset=21),
    _silent("each channel is a group", f"{_IO} {{ y = GroupNormalization<num_groups = 4>(x, s, b) }}"),
    _silent("one group: OPS072", f"{_IO} {{ y = GroupNormalization<num_groups = 1>(x, s, b) }}"),
    Silent(
        "before opset 21 scale and bias are per group",
        "g (float[N,4,2,3] x, float[2] s, float[2] b) => (float[N,4,2,3] y) "
        "{ y = GroupNormalization<num_groups = 2>(x, s, b) }",
        opset=18,
        target="10.8",
    ),
]
