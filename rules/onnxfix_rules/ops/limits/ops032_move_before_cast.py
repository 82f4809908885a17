"""OPS032: integers that TensorRT has no type for, moved before they are cast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import lazy
from onnxfix.rule import (
    AddNode,
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    dtypes,
    rule,
    target_of,
)
from onnxfix_rules.ops import _rewrite as rw
from onnxfix_rules.ops.limits._quantized import is_quantized

_DATA = {
    **dict.fromkeys(
        ("DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape"),
        (0,),
    ),
    **dict.fromkeys(
        ("ReverseSequence", "Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
        (0,),
    ),
    "Concat": None,
    "ConstantOfShape": (),
    "Pad": (0, 2),
    "Where": (1, 2),
}
"""Operators that only move elements: which inputs they are in, None for all."""

_STRANGE = (TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
_WANTED = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
_LIMIT = 1 << 26
"""Bytes: the largest constant that is converted."""


@rule(
    "OPS032",
    ops=sorted(_DATA),
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[19, 20],
    types=(TensorProto.INT8, *_STRANGE),
)
def move_before_cast(node: Node, model: Model) -> Iterator[Match]:
    """Integers of a type that TensorRT does not have between nodes, moved about and only then cast.

    ## Why it matters
    uint8 may come in as an image and be cast, and that is all: Transpose, Reshape, Slice, Concat, Squeeze, Gather, Pad,
    Where and the rest are refused (`first input has type UInt8 but must have type Float, Half, …`, `Found unsupported
    input type of UINT8`, `TensorRT does not support UINT8 types for intermediate tensors`), measured with TensorRT-RTX
    1.7.1. int16, uint16, uint32 and uint64 it has not at all: `Failed to import initializer: w`. A table of int8 it
    takes for a quantized one: `Quantized constant (w) is only allowed before DQ`. Only for a table of uint8 in Gather
    the parser helps itself: `UINT8 data w is being converted to INT32`. What a QuantizeLinear in the graph makes counts
    as int8 there, and is moved; that it does is the matter of QDQ004 and QDQ001.

    ## Fix
    Cast first, then move, where everything that reads the result casts it to one and the same type. A constant is
    written in that type. Exact: moving changes no element. A Cast of the whole table or image costs more than one of
    the part that is taken from it.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    output = node.require_output()
    if node.opset < 7 or not output.replaceable or len(node.outputs) != 1:
        return
    elem = model.shapes.elem_type(output)
    if elem != TensorProto.INT8 and elem not in _STRANGE:
        return
    wanted = _wanted(output)
    target = target_of(model)
    if wanted is None or not target.between(wanted) or (wanted == TensorProto.BOOL and node.opset < 13):
        return
    if elem == TensorProto.INT8:
        if node.op_type != "Gather" or node.inputs[0] is None or not node.inputs[0].is_constant:
            return
    elif target.between(elem) or _converted(node, elem) or is_quantized(output, model):
        return
    draft = Draft(node)
    proto = rw.copy_of(node)
    if node.op_type == "ConstantOfShape":
        filled = _fill(node, wanted)
        if filled is None:
            return
        rw.set_attribute(proto, "value", filled)
    places = _DATA[node.op_type]
    for index in range(len(node.inputs)) if places is None else places:
        value = node.input(index)
        if value is not None:
            proto.input[index] = _as(draft, value, elem, wanted)
    casts = [use.node for use in output.uses if use.node.op_type == "Cast"]
    _join(draft, node, proto, casts, output)
    kind, to = dtypes.name_of(elem), dtypes.name_of(wanted)
    yield Match(
        f"{node.op_type} of {kind}, which is cast to {to} afterwards; TensorRT moves no {kind}",
        node=node,
        fix=Fix(f"cast to {to} first", draft.edits),
        reads=tuple(casts),
    )


def _wanted(output: Value) -> int | None:
    """The one type to which all readers cast, but such as want the shape only."""
    found = set()
    for use in output.uses:
        if not use.node.is_onnx or use.node.op_type not in ("Cast", "Shape", "Size"):
            return None
        if use.node.op_type == "Cast":
            found.add(int(use.node.attr("to")))
    return next(iter(found)) if len(found) == 1 and found <= set(_WANTED) else None


def _converted(node: Node, elem: int) -> bool:
    """Whether the parser converts this table itself."""
    data = node.input(0)
    return node.op_type == "Gather" and elem == TensorProto.UINT8 and data is not None and data.is_constant


def _fill(node: Node, wanted: int) -> TensorProto | None:
    value = node.attr("value")
    if not isinstance(value, TensorProto):
        return None
    array = numpy_helper.to_array(lazy.with_payload(value)).astype(helper.tensor_dtype_to_np_dtype(wanted))
    return helper.make_tensor("", wanted, array.shape, array.reshape(-1).tolist())


def _as(draft: Draft, value: Value, elem: int, wanted: int) -> str:
    """``value`` in the wanted type: a constant written so where that says the same on every backend."""
    array = value.constant(_LIMIT) if dtypes.holds_exactly(wanted, elem) else None
    if array is not None and isinstance(array, np.ndarray):
        return draft.constant(array.astype(helper.tensor_dtype_to_np_dtype(wanted)), "cast")
    return draft.add("Cast", [value], hint="cast", to=wanted)


def _join(draft: Draft, node: Node, proto: NodeProto, casts: list[Node], output: Value) -> None:
    """Put the changed node in the place of itself and the Casts behind it."""
    results = [cast.output() for cast in casts]
    first = next((r for r in results if r is not None and r.scope is node.scope), None)
    proto.output[0] = draft.name("cast") if first is None else first.name
    for cast in casts:
        if cast.output() is first:
            draft.remove(cast)
    draft.edits.append(AddNode(node.scope, proto, node))
    for use in output.uses:
        if use.node not in casts:
            draft.set_input(use.node, use.index, proto.output[0])
    for cast, result in zip(casts, results, strict=True):
        if result is None or result is first:
            continue
        if result.replaceable:
            draft.replace_uses(result, proto.output[0])
            draft.remove(cast)
        else:
            draft.remove(cast)
            copy = helper.make_node("Identity", [proto.output[0]], [result.name])
            draft.edits.append(AddNode(cast.scope, copy, cast))


move_before_cast.examples = [
    Fixed(
        "an image, its channels put first",
        before="""g (uint8[N,4,5,3] x) => (float[N,3,4,5] y) {
            t = Transpose<perm = [0,3,1,2]>(x)  y = Cast<to = 1>(t) }""",
        after="""g (uint8[N,4,5,3] x) => (float[N,3,4,5] y) {
            c = Cast<to = 1>(x)  y = Transpose<perm = [0,3,1,2]>(c) }""",
    ),
    Fixed(
        "moved three times",
        before="""g (uint8[4,6] x) => (float[4,12] y) <int64[2] h = {4, 12}> {
            t = Transpose(x)  u = Concat<axis = 1>(t, t)  r = Reshape(u, h)  y = Cast<to = 1>(r) }""",
        after="""g (uint8[4,6] x) => (float[4,12] y) <int64[2] h = {4, 12}> {
            c = Cast<to = 1>(x)  t = Transpose(c)  u = Concat<axis = 1>(t, t)  y = Reshape(u, h) }""",
    ),
    Fixed(
        "cast twice to the same type, once inside a branch; its shape is read too",
        before="""g (uint8[2,3] x, bool b) => (int32[3,2] y, int32[3,2] z, int64[2] s) {
            t = Transpose(x)  y = Cast<to = 6>(t)  s = Shape(t)
            z = If(b)<then_branch = p () => (int32[3,2] u) { c = Cast<to = 6>(t)  u = Neg(c) },
                      else_branch = q () => (int32[3,2] v) { v = Abs(y) }> }""",
        after="""g (uint8[2,3] x, bool b) => (int32[3,2] y, int32[3,2] z, int64[2] s) {
            c = Cast<to = 6>(x)  y = Transpose(c)  s = Shape(y)
            z = If(b)<then_branch = p () => (int32[3,2] u) { u = Neg(y) },
                      else_branch = q () => (int32[3,2] v) { v = Abs(y) }> }""",
    ),
    Fixed(
        "selected, one of both a constant",
        before="""g (bool[3] c, uint8[3] x) => (float[3] y) <uint8[3] k = {1, 2, 255}> {
            w = Where(c, x, k)  y = Cast<to = 1>(w) }""",
        after="""g (bool[3] c, uint8[3] x) => (float[3] y) <float[3] k = {1, 2, 255}> {
            h = Cast<to = 1>(x)  y = Where(c, h, k) }""",
    ),
    Fixed(
        "a table of 16-bit integers",
        before="""g (int64[N] i) => (float[N,2] y) <uint16[3,2] w = {1, 2, 3, 4, 5, 65535}> {
            e = Gather(w, i)  y = Cast<to = 1>(e) }""",
        after="""g (int64[N] i) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 65535}> {
            y = Gather(w, i) }""",
    ),
    Fixed(
        "a table of int8, which TensorRT takes for a quantized one",
        before="""g (int64[N] i) => (int32[N] z) <int8[3] w = {1, -2, 3}> {
            e = Gather(w, i)  y = Cast<to = 6>(e)  z = Neg(y) }""",
        after="g (int64[N] i) => (int32[N] z) <int32[3] w = {1, -2, 3}> { y = Gather(w, i)  z = Neg(y) }",
    ),
    Fixed(
        "filled by ConstantOfShape",
        before="g (int64[2] s) => (float[A,B] y) { k = ConstantOfShape<value = uint8[1] {3}>(s)  y = Cast<to = 1>(k) }",
        after="g (int64[2] s) => (float[A,B] y) { y = ConstantOfShape<value = float[1] {3}>(s) }",
    ),
    Fixed(
        "padded with a value",
        before="""g (uint8[2,3] x, uint8 v) => (float[2,5] y) <int64[4] p = {0, 1, 0, 1}> {
            t = Pad(x, p, v)  y = Cast<to = 1>(t) }""",
        after="""g (uint8[2,3] x, uint8 v) => (float[2,5] y) <int64[4] p = {0, 1, 0, 1}> {
            c = Cast<to = 1>(x)  d = Cast<to = 1>(v)  y = Pad(c, p, d) }""",
    ),
    Silent(
        "a table of uint8, which the parser itself converts",
        """g (int64[N] i) => (float[N] y) <uint8[3] w = {1, 2, 3}> {
            e = Gather(w, i)  y = Cast<to = 1>(e) }""",
    ),
    Silent(
        "cast to two types",
        """g (uint8[2,3] x) => (float[3,2] y, int32[3,2] z) {
            t = Transpose(x)  y = Cast<to = 1>(t)  z = Cast<to = 6>(t) }""",
    ),
    Silent(
        "also a graph output",
        "g (uint8[2,3] x) => (float[3,2] y, uint8[3,2] t) { t = Transpose(x)  y = Cast<to = 1>(t) }",
    ),
    Silent(
        "arithmetic, which wraps",
        "g (uint8[2,3] x) => (float[2,3] y) { a = Add(x, x)  y = Cast<to = 1>(a) }",
        opset=14,
    ),
    Silent(
        "a type that TensorRT has",
        "g (int32[2,3] x) => (float[3,2] y) { t = Transpose(x)  y = Cast<to = 1>(t) }",
    ),
    Silent(
        "to a type that TensorRT has not",
        "g (uint8[2,3] x) => (uint16[3,2] y) { t = Transpose(x)  y = Cast<to = 4>(t) }",
    ),
    Silent("nothing is cast", "g (uint8[2,3] x) => (uint8[3,2] y) { y = Transpose(x) }"),
    Silent(
        "quantized by the graph, which TensorRT reads as int8 and moves",
        """g (float[2,3] x) => (float[6,2] y) <float s = {0.1}, uint8 z = {0}> {
            q = QuantizeLinear(x, s, z)  c = Concat<axis = 1>(q, q)  t = Transpose(c)  y = Cast<to = 1>(t) }""",
    ),
    Fixed(
        "Slice and Squeeze of an image",
        before="""g (uint8[1,4,5,3] x) => (float[2,5,3] y) <int64[1] a={0}, int64[1] b={2}, int64[1] c={1}, int64[1]
            ax={0}> { s = Slice(x, a, b, c) q = Squeeze(s, ax) y = Cast<to=1>(q) }""",
        after="""g (uint8[1,4,5,3] x) => (float[2,5,3] y) <int64[1] a={0}, int64[1] b={2}, int64[1] c={1}, int64[1]
            ax={0}> { q = Cast<to=1>(x)  s = Slice(q, a, b, c)  y = Squeeze(s, ax) }""",
    ),
]
