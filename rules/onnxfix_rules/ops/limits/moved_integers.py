"""Integers of a type that TensorRT lacks, moved before or after a Cast."""
# Long because: two rules, with an example of each operator that moves integers.

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
    "Resize": (0,),
    "Where": (1, 2),
}
"""Operators that only move elements, with the indices of their data inputs, None for all; Resize by _moves."""

_UNSUPPORTED = (
    TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip
_WANTED = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
_LIMIT = 1 << 26  # bytes of the largest constant that is converted


@rule(
    "OPS032",
    ops=sorted(_DATA),
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[49, 50],
    types=(TensorProto.INT8, *_UNSUPPORTED),
)
def move_before_cast(node: Node, model: Model) -> Iterator[Match]:
    """Integers of a type that TensorRT lacks between nodes, moved before they are cast.

    ## Why it matters
    uint8 is supported as a network input, an image for example, that is cast: Transpose, Reshape, Slice, Concat,
    Squeeze, Gather, Pad, Where and other data movement are refused (`first input has type UInt8 but must have type
    Float, Half, …`, `Found unsupported input type of UINT8`, `TensorRT does not support UINT8 types for intermediate
    tensors`), measured with TensorRT-RTX 1.7.1. int16, uint16, uint32 and uint64 are not supported at all: `Failed to
    import initializer: w`. An int8 table counts as quantized: `Quantized constant (w) is only allowed before DQ`. The
    parser itself converts only a uint8 table in Gather: `UINT8 data w is being converted to INT32`. The output of a
    QuantizeLinear in the graph counts as int8 and can be moved; QDQ004 and QDQ001 cover that.

    ## Fix
    Cast first, then move, if all uses of the result cast it to the same type. A constant is converted to that type.
    Exact: data movement changes no element. A Cast of the whole table or image costs more than a Cast of the part
    selected from it.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    output = node.require_output()
    if node.opset < 7 or not output.replaceable or len(node.outputs) != 1 or not _moves(node):
        return
    elem = model.shapes.elem_type(output)
    if elem != TensorProto.INT8 and elem not in _UNSUPPORTED:
        return
    wanted = _wanted(output)
    target = target_of(model)
    if wanted is None or not target.between(wanted) or target.accepts(node.op_type, wanted) is False:
        return
    if wanted == TensorProto.BOOL and node.opset < 13:
        return
    if elem == TensorProto.INT8:
        if node.op_type != "Gather" or node.inputs[0] is None or not node.inputs[0].is_constant:
            return
    elif target.between(elem) or _converted(node, elem) or is_quantized(output, model):
        return
    draft = Draft(node)
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    if node.op_type == "ConstantOfShape":
        filled = _fill(node, wanted)
        if filled is None:
            return
        del proto.attribute[:]
        proto.attribute.append(helper.make_attribute("value", filled))
    data_inputs = _DATA[node.op_type]
    for index in range(len(node.inputs)) if data_inputs is None else data_inputs:
        value = node.input(index)
        if value is not None:
            proto.input[index] = _as(draft, value, elem, wanted)
    casts = [use.node for use in output.uses if use.node.op_type == "Cast"]
    _join(draft, node, proto, casts, output)
    kind, to = dtypes.name_of(elem), dtypes.name_of(wanted)
    yield Match(
        f"{node.op_type} of {kind} before a Cast to {to}: TensorRT does not support {kind} in data movement",
        node=node,
        fix=Fix(f"cast to {to} first", draft.edits),
        reads=tuple(casts),
    )


def _moves(node: Node) -> bool:
    """Whether the node computes no new values; Resize computes some unless it takes the nearest element."""
    crop = node.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return node.op_type != "Resize" or (node.attr("mode", "nearest") == "nearest" and not crop)


def _wanted(output: Value) -> int | None:
    """The one type that all uses cast to, except Shape and Size; None if there is no such type."""
    found = set()
    for use in output.uses:
        if not use.node.is_onnx or use.node.op_type not in ("Cast", "Shape", "Size"):
            return None
        if use.node.op_type == "Cast":
            found.add(int(use.node.attr("to")))
    return next(iter(found)) if len(found) == 1 and found <= set(_WANTED) else None


def _converted(node: Node, elem: int) -> bool:
    """Whether the parser itself converts this table."""
    data = node.input(0)
    return node.op_type == "Gather" and elem == TensorProto.UINT8 and data is not None and data.is_constant


def _fill(node: Node, wanted: int) -> TensorProto | None:
    value = node.attr("value")
    if not isinstance(value, TensorProto):
        return None
    array = numpy_helper.to_array(lazy.with_payload(value)).astype(helper.tensor_dtype_to_np_dtype(wanted))
    return helper.make_tensor("", wanted, array.shape, array.reshape(-1).tolist())


def _as(draft: Draft, value: Value, elem: int, wanted: int) -> str:
    """``value`` in the wanted type: a constant is converted if every backend casts it to the same values."""
    array = value.constant(_LIMIT) if dtypes.holds_exactly(wanted, elem) else None
    if array is not None and isinstance(array, np.ndarray):
        return draft.constant(array.astype(helper.tensor_dtype_to_np_dtype(wanted)), "cast")
    return draft.add("Cast", [value], hint="cast", to=wanted)


def _join(draft: Draft, node: Node, proto: NodeProto, casts: list[Node], output: Value) -> None:
    """Replace the node and the Casts of its output by the changed node."""
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
        "an image, transposed to channels first",
        before="""g (uint8[N,4,5,3] x) => (float[N,3,4,5] y) {
            t = Transpose<perm = [0,3,1,2]>(x)  y = Cast<to = FLOAT>(t) }""",
        after="""g (uint8[N,4,5,3] x) => (float[N,3,4,5] y) {
            c = Cast<to = FLOAT>(x)  y = Transpose<perm = [0,3,1,2]>(c) }""",
    ),
    Fixed(
        "three moves",
        before="""g (uint8[4,6] x) => (float[4,12] y) <int64[2] h = {4, 12}> {
            t = Transpose(x)  u = Concat<axis = 1>(t, t)  r = Reshape(u, h)  y = Cast<to = FLOAT>(r) }""",
        after="""g (uint8[4,6] x) => (float[4,12] y) <int64[2] h = {4, 12}> {
            c = Cast<to = FLOAT>(x)  t = Transpose(c)  u = Concat<axis = 1>(t, t)  y = Reshape(u, h) }""",
    ),
    Fixed(
        "two Casts to the same type, one inside a branch; the shape is used too",
        before="""g (uint8[2,3] x, bool b) => (int32[3,2] y, int32[3,2] z, int64[2] s) {
            t = Transpose(x)  y = Cast<to = INT32>(t)  s = Shape(t)
            z = If(b)<then_branch = p () => (int32[3,2] u) { c = Cast<to = INT32>(t)  u = Neg(c) },
                      else_branch = q () => (int32[3,2] v) { v = Abs(y) }> }""",
        after="""g (uint8[2,3] x, bool b) => (int32[3,2] y, int32[3,2] z, int64[2] s) {
            c = Cast<to = INT32>(x)  y = Transpose(c)  s = Shape(y)
            z = If(b)<then_branch = p () => (int32[3,2] u) { u = Neg(y) },
                      else_branch = q () => (int32[3,2] v) { v = Abs(y) }> }""",
    ),
    Fixed(
        "Where with a constant",
        before="""g (bool[3] c, uint8[3] x) => (float[3] y) <uint8[3] k = {1, 2, 255}> {
            w = Where(c, x, k)  y = Cast<to = FLOAT>(w) }""",
        after="""g (bool[3] c, uint8[3] x) => (float[3] y) <float[3] k = {1, 2, 255}> {
            h = Cast<to = FLOAT>(x)  y = Where(c, h, k) }""",
    ),
    Fixed(
        "Gather from a uint16 table",
        before="""g (int64[N] i) => (float[N,2] y) <uint16[3,2] w = {1, 2, 3, 4, 5, 65535}> {
            e = Gather(w, i)  y = Cast<to = FLOAT>(e) }""",
        after="""g (int64[N] i) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 65535}> {
            y = Gather(w, i) }""",
    ),
    Fixed(
        "Gather from an int8 table, which TensorRT treats as quantized",
        before="""g (int64[N] i) => (int32[N] z) <int8[3] w = {1, -2, 3}> {
            e = Gather(w, i)  y = Cast<to = INT32>(e)  z = Neg(y) }""",
        after="g (int64[N] i) => (int32[N] z) <int32[3] w = {1, -2, 3}> { y = Gather(w, i)  z = Neg(y) }",
    ),
    Fixed(
        "ConstantOfShape of uint8",
        before="g (int64[2] s) => (float[A,B] y) { k = ConstantOfShape<value = uint8[1] {3}>(s)  y = Cast<to = 1>(k) }",
        after="g (int64[2] s) => (float[A,B] y) { y = ConstantOfShape<value = float[1] {3}>(s) }",
    ),
    Fixed(
        "Pad with a value",
        before="""g (uint8[2,3] x, uint8 v) => (float[2,5] y) <int64[4] p = {0, 1, 0, 1}> {
            t = Pad(x, p, v)  y = Cast<to = FLOAT>(t) }""",
        after="""g (uint8[2,3] x, uint8 v) => (float[2,5] y) <int64[4] p = {0, 1, 0, 1}> {
            c = Cast<to = FLOAT>(x)  d = Cast<to = FLOAT>(v)  y = Pad(c, p, d) }""",
    ),
    Fixed(
        "an image, enlarged by its nearest pixels",
        before="""g (uint8[1,3,4,4] x) => (float[1,3,8,8] y) <float[4] f = {1, 1, 2, 2}> {
            r = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , f)
            y = Cast<to = FLOAT>(r) }""",
        after="""g (uint8[1,3,4,4] x) => (float[1,3,8,8] y) <float[4] f = {1, 1, 2, 2}> { c = Cast<to = FLOAT>(x)
            y = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(c, , f) }""",
    ),
    Silent(
        "a Resize that computes new values",
        """g (uint8[1,3,4,4] x) => (float[1,3,8,8] y) <float[4] f = {1, 1, 2, 2}> {
            r = Resize<mode = "linear">(x, , f)  y = Cast<to = FLOAT>(r) }""",
    ),
    Silent(
        "Gather from a uint8 table, which the parser itself converts",
        """g (int64[N] i) => (float[N] y) <uint8[3] w = {1, 2, 3}> {
            e = Gather(w, i)  y = Cast<to = FLOAT>(e) }""",
    ),
    Silent(
        "Casts to two types",
        """g (uint8[2,3] x) => (float[3,2] y, int32[3,2] z) {
            t = Transpose(x)  y = Cast<to = FLOAT>(t)  z = Cast<to = INT32>(t) }""",
    ),
    Silent(
        "also a graph output",
        "g (uint8[2,3] x) => (float[3,2] y, uint8[3,2] t) { t = Transpose(x)  y = Cast<to = FLOAT>(t) }",
    ),
    Silent(
        "arithmetic, which wraps around",
        "g (uint8[2,3] x) => (float[2,3] y) { a = Add(x, x)  y = Cast<to = FLOAT>(a) }",
        opset=14,
    ),
    Silent(
        "a Cast to an unsupported type",
        "g (uint8[2,3] x) => (uint16[3,2] y) { t = Transpose(x)  y = Cast<to = UINT16>(t) }",
    ),
    Silent(
        "from a QuantizeLinear, which TensorRT treats as int8 and moves",
        """g (float[2,3] x) => (float[6,2] y) <float s = {0.1}, uint8 z = {0}> {
            q = QuantizeLinear(x, s, z)  c = Concat<axis = 1>(q, q)  t = Transpose(c)  y = Cast<to = FLOAT>(t) }""",
    ),
]


@rule(
    "OPS107",
    ops=sorted(_DATA.keys() - {"ConstantOfShape"}),
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[49],
    types=[TensorProto.UINT8],
)
def move_after_cast(node: Node, model: Model) -> Iterator[Match]:
    """Values cast to uint8 and moved before they become an output.

    ## Why it matters
    An image is often cast to uint8, then transposed, reshaped, cropped or concatenated. TensorRT takes a Cast to uint8
    only for a network output: `TensorRT does not support UINT8 types for intermediate tensors`, measured with
    TensorRT-RTX 1.7.1. ONNX Runtime's TensorRT provider then runs the whole model on the CPU.

    ## Fix
    Move first, then cast, if data inputs are cast to uint8 from one type; constants and network inputs among the
    others are converted to it, to float32 if nothing is cast. Exact: every element is cast as before. What a Cast makes
    of numbers below 0 and above 255 is undefined: ONNX Runtime and engines differ there, and trt-gpu withdraws the fix,
    unless a Clip keeps them inside. Outputs of branches, too.

    ## References
    https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md, Cast
    """
    output, target = node.require_output(), target_of(model)
    elem = model.shapes.elem_type(output)
    if node.opset < 7 or elem != TensorProto.UINT8 or target.between(elem) or not target.has_type(elem):
        return
    if len(node.outputs) != 1 or not _leads_out(output) or not _moves(node):
        return
    places = _DATA[node.op_type] or range(len(node.inputs))
    operands = {i: node.input(i) for i in places}
    sources = {i: source for i, value in operands.items() if (source := _source(value, node)) is not None}
    if not sources and not any(value is not None and value.is_input for value in operands.values()):
        return
    kinds = {model.shapes.elem_type(source) for source in sources.values()} or {TensorProto.FLOAT}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in _WANTED or not target.between(kind) or target.accepts(node.op_type, kind) is False:
        return
    if kind == TensorProto.BOOL and node.opset < 13:
        return
    draft, names = Draft(node), list[Value | str | None](node.inputs)
    for i, value in operands.items():
        if i in sources:
            names[i] = sources[i]
        elif value is not None:
            if not (value.is_input or value.is_constant) or not dtypes.holds_exactly(kind, elem):
                return
            names[i] = _as(draft, value, elem, kind)
    moved = draft.copy_node(node, inputs=names, outputs=[draft.name("moved")])
    draft.replace_output(node, draft.cast(moved, elem))
    yield Match(
        f"{node.op_type} of uint8 before an output: {target.title} supports uint8 only at the output itself",
        node=node,
        fix=Fix("cast to uint8 last", draft.edits),
        reads=tuple(sources.values()),
    )


def _source(value: Value | None, reader: Node) -> Value | None:
    """What a Cast casts to the value, if the reader can read it."""
    node = value.producer if value is not None else None
    source = node.require(0) if node is not None and node.is_onnx and node.op_type == "Cast" else None
    return source if source is not None and reader.scope.lookup(source.name) is source else None


def _leads_out(value: Value) -> bool:
    """Whether the value is an output of its graph, or moved until it is."""
    seen, pending = {value}, [value]
    for current in pending:
        if current.is_output:
            return True
        for use in current.uses:
            moved = use.node.is_onnx and use.node.op_type in _DATA and _moves(use.node)
            result = use.node.output() if moved else None
            if result is not None and result not in seen:
                seen.add(result)
                pending.append(result)
    return False


move_after_cast.examples = [
    Fixed(
        "an image, transposed to channels last",
        before="""g (float[N,3,4,5] x) => (uint8[N,4,5,3] y) {
            a = Abs(x)  c = Cast<to = UINT8>(a)  y = Transpose<perm = [0,2,3,1]>(c) }""",
        after="""g (float[N,3,4,5] x) => (uint8[N,4,5,3] y) {
            a = Abs(x)  t = Transpose<perm = [0,2,3,1]>(a)  y = Cast<to = UINT8>(t) }""",
    ),
    Fixed(
        "Slice, Squeeze and Reshape",
        before="""g (int32[1,4,6] x) => (uint8[12] y) <int64[1] b = {0}, int64[1] e = {2}, int64[1] a = {1},
            int64[1] q = {0}, int64[1] h = {-1}> { c = Cast<to = UINT8>(x)  s = Slice(c, b, e, a)  t = Squeeze(s, q)
            y = Reshape(t, h) }""",
        after="""g (int32[1,4,6] x) => (uint8[12] y) <int64[1] b = {0}, int64[1] e = {2}, int64[1] a = {1},
            int64[1] q = {0}, int64[1] h = {-1}> { s = Slice(x, b, e, a)  t = Squeeze(s, q)
            r = Reshape(t, h)  y = Cast<to = UINT8>(r) }""",
    ),
    Fixed(
        "Concat and Gather, in opset 11; the cast value is an output, too",
        before="""g (float[N,3] x) => (uint8[N,4] y, uint8[N,3] c) <int64[2] n = {2, 1}> {
            c = Cast<to = UINT8>(x)  s = Concat<axis = 1>(c, c)
            i = Gather<axis = 1>(s, n)  y = Concat<axis = 1>(i, i) }""",
        after="""g (float[N,3] x) => (uint8[N,4] y, uint8[N,3] c) <int64[2] n = {2, 1}> {
            c = Cast<to = UINT8>(x)  s = Concat<axis = 1>(x, x)
            i = Gather<axis = 1>(s, n)  w = Concat<axis = 1>(i, i)  y = Cast<to = UINT8>(w) }""",
        opset=11,
    ),
    Fixed(
        "a constant alpha channel",
        before="""g (float[2,3] x) => (uint8[2,1,4] y) <uint8[2,1] k = {255, 1}, int64[1] a = {1}> {
            c = Cast<to = UINT8>(x)  s = Concat<axis = 1>(c, k)  y = Unsqueeze(s, a) }""",
        after="""g (float[2,3] x) => (uint8[2,1,4] y) <float[2,1] k = {255, 1}, int64[1] a = {1}> {
            s = Concat<axis = 1>(x, k)  u = Unsqueeze(s, a)  y = Cast<to = UINT8>(u) }""",
    ),
    Fixed(
        "an image beside its mask, which is an input",
        before="""g (float[N,3] x, uint8[N,3] z) => (uint8[N,6] y) {
            a = Abs(x)  c = Cast<to = UINT8>(a)  y = Concat<axis = 1>(c, z) }""",
        after="""g (float[N,3] x, uint8[N,3] z) => (uint8[N,6] y) {
            a = Abs(x)  d = Cast<to = FLOAT>(z)  s = Concat<axis = 1>(a, d)  y = Cast<to = UINT8>(s) }""",
    ),
    Fixed(
        "an input that is cropped and enlarged",
        before="""g (uint8[1,3,4,4] x) => (uint8[1,3,4,2] y) <float[4] f = {1, 1, 2, 1}, int64[2] w = {2, 3},
            int64[2] z = {0, 1}, int64[2] q = {2, 3}> {
            s = Slice(x, z, q, w)  y = Resize<nearest_mode = "floor">(s, , f) }""",
        after="""g (uint8[1,3,4,4] x) => (uint8[1,3,4,2] y) <float[4] f = {1, 1, 2, 1}, int64[2] w = {2, 3},
            int64[2] z = {0, 1}, int64[2] q = {2, 3}> { c = Cast<to = FLOAT>(x)
            s = Slice(c, z, q, w)  r = Resize<nearest_mode = "floor">(s, , f)  y = Cast<to = UINT8>(r) }""",
    ),
    Silent(
        "the sum of two images, which wraps around, beside another one",
        """g (float[N,3] x, uint8[N,3] z) => (uint8[N,6] y) {
            c = Cast<to = UINT8>(x)  s = Add(z, z)  y = Concat<axis = 1>(c, s) }""",
    ),
    Silent(
        "constants beside booleans, which cannot hold them",
        """g (bool[N,1] x) => (uint8[M,1] y) <uint8[1,1] k = {255}> {
            c = Cast<to = UINT8>(x)  y = Concat<axis = 0>(c, k) }""",
    ),
    Silent(
        "cast from two types",
        """g (float[N,3] x, int32[N,3] z) => (uint8[N,6] y) {
            c = Cast<to = UINT8>(x)  d = Cast<to = UINT8>(z)  y = Concat<axis = 1>(c, d) }""",
    ),
    Silent(
        "arithmetic, which wraps around",
        "g (int32[2,3] x) => (uint8[3,2] y) { c = Cast<to = UINT8>(x)  t = Transpose(c)  y = Add(t, t) }",
    ),
    Silent(
        "the Cast is last", "g (float[2,3] x) => (uint8[3,2] y) { t = Transpose(x)  y = Cast<to = UINT8>(t) }"
    ),
]
