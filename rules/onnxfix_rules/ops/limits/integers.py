"""Arithmetic, comparisons and casts of small types that TensorRT refuses (OPS027, OPS054, OPS055, OPS062)."""
# Long because: four rules, with an example of each operator and type.

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import NodeProto, TensorProto, helper

from onnxfix.rule import (
    INTEGERS,
    AddNode,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    RemoveNode,
    Safety,
    Severity,
    Silent,
    Value,
    dtypes,
    is_read,
    name_of,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.ops import _bounds, _logic
from onnxfix_rules.ops._integers import SMALL, Computer, is_only_quantized, range_after, range_of, unnarrowed
from onnxfix_rules.ops.limits._quantized import is_quantized

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@rule("OPS055", ops=["Mod"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43])
def mod_of_floats(node: Node, model: Model) -> Iterator[Match]:
    """A Mod of floats whose result has the divisor's sign, like Python's `%`.

    ## Why it matters
    The parser stops: `The fmod attribute is set to 0. Inputs cannot be of floating point types.`, measured with
    TensorRT-RTX 1.7.1. Opset 28 allows it.

    ## Fix The remainder with the dividend's sign, by `fmod=1`, plus the divisor where the signs differ. Equal up to
    rounding, so it requires `--numeric-fixes`: for `fmod=1` too TensorRT computes `x - d * trunc(x / d)` (read from the
    network that TensorRT-RTX 1.7.1 makes), which is less precise than ONNX Runtime if the quotient is large. It is NaN
    if the divisor is infinite, also in the engines of TensorRT 10.6.0. So the largest number is the divisor there,
    unless the divisor is a finite constant or a double, whose infinity TensorRT reads as a finite number: 0 for plus
    and minus that number itself, the dividend for all others, as in ONNX.

    TensorRT layers: 27, and 6 more for a divisor that may be infinite.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Mod.html
    """
    data, divisor = node.input(0), node.require(1)
    node.require_output()
    elem = None if data is None else model.shapes.elem_type(data)
    target = target_of(model)
    if data is None or elem not in _FLOATS or node.attr("fmod", 0) != 0:
        return
    if target.accepts("Mod", elem) is not True or not takes("Equal", node.opset, elem):
        return
    draft = Draft(node)
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    zero, minus = (draft.constant(np.array(number, dtype), "zero") for number in (0.0, -0.0))
    array, finite = divisor.constant(), divisor.name
    # TensorRT reads an infinite constant of type double as a finite one.
    if elem != TensorProto.DOUBLE and (array is None or np.isinf(array).any()):
        largest = np.array(np.finfo(dtype).max, dtype)
        same = draft.add(
            "Equal", [draft.add("Abs", [divisor]), draft.constant(np.array(np.inf, dtype), "inf")]
        )
        finite = draft.add("Where", [same, draft.constant(largest, "end"), divisor])
    rest = draft.add("Mod", [data, finite], fmod=1)
    positive = draft.add("Greater", [divisor, zero])
    differ = draft.add("Xor", [draft.add("Greater", [rest, zero]), positive])
    moved = draft.add("Where", [differ, draft.add("Add", [rest, divisor]), rest])
    # Zeros are the last operand of each Where: ONNX Runtime loses the sign of the other operand.
    signed = draft.add("Where", [positive, zero, minus])
    left = draft.add("Not", [draft.add("Equal", [rest, zero])])
    draft.replace_output(node, draft.add("Where", [left, moved, signed]))
    message = "TensorRT supports Mod of floats only with fmod=1"
    yield Match(message, node=node, fix=Fix("compute it from Mod with fmod=1", draft.edits, Safety.NUMERIC))


_SIGNED = """rp = Greater(r, zero)  dp = Greater(d, zero)  o = Xor(rp, dp)  m = Add(r, d)  s = Where(o, m, r)
            z = Where(dp, zero, minus)  e = Equal(r, zero)  n = Not(e)  y = Where(n, s, z) }"""
_numeric = partial(Fixed, ir_version=14, opset=28, safety=Safety.NUMERIC)

mod_of_floats.examples = [
    _numeric(
        "the divisor's sign, the default, allowed for floats since opset 28",
        before="g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod(x, d) }",
        after="""g (float[N,3] x, float[3] d) => (float[N,3] y)
            <float zero = {0}, float minus = {-0.0}, float inf = {inf}, float last = {3.4028235e38}> {
            a = Abs(d)  i = Equal(a, inf)  f = Where(i, last, d)  r = Mod<fmod = 1>(x, f) """
        + _SIGNED,
    ),
    _numeric(
        "a finite constant",
        before="g (float[N] x) => (float[N] y) <float d = {-2.5}> { y = Mod(x, d) }",
        after="""g (float[N] x) => (float[N] y) <float d = {-2.5}, float zero = {0}, float minus = {-0.0}> {
            r = Mod<fmod = 1>(x, d) """
        + _SIGNED,
    ),
    Silent(
        "the dividend's sign, which TensorRT supports",
        "g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod<fmod = 1>(x, d) }",
    ),
    Silent("integers", "g (int32[N,3] x, int32[3] d) => (int32[N,3] y) { y = Mod(x, d) }"),
    Silent(
        "opset 10, whose Equal does not support floats",
        "g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod(x, d) }",
        opset=10,
        runs=False,
    ),
]


@rule(
    "OPS062", ops=["Cast"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[50, 32], types=tuple(SMALL)
)
def cast_through_small_integer(node: Node, model: Model) -> Iterator[Match]:
    """A Cast of int32 or int64 to uint8 that loses nothing, followed by a Cast to another type.

    ## Why it matters
    uint8 between two nodes is refused: `TensorRT does not support UINT8 types for intermediate tensors`, measured with
    TensorRT-RTX 1.7.1. That includes the middle of such a chain, which rewritten uint8 arithmetic leaves behind. The
    severity is info if the uint8 is a graph output, which another node may also read.

    ## Fix
    Cast from the wide integer. Exact: the range of the integers is proven from the operators that produce them.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    value = node.input(0)
    elem = None if value is None else model.shapes.elem_type(value)
    if value is None or elem is None or target_of(model).between(elem):
        return
    before = unnarrowed(value, node, model)
    if before is None:
        return
    draft = Draft(node)
    draft.set_input(node, 0, before)
    yield Match(
        f"{dtypes.name_of(elem)} between two Casts, where TensorRT does not support it",
        node=node,
        fix=Fix("cast from the wide integer", draft.edits),
        severity=Severity.INFO if value.is_output else None,  # other nodes may also read a graph output
        reads=(value, before),
    )


cast_through_small_integer.examples = [
    Fixed(
        "wrapped around by Mod before the Cast",
        before="""g (int32[N] x) => (float[N] y) <int32 m = {256}> {
            r = Mod(x, m)  s = Cast<to = UINT8>(r)  y = Cast<to = FLOAT>(s) }""",
        after="g (int32[N] x) => (float[N] y) <int32 m = {256}> { r = Mod(x, m)  y = Cast<to = FLOAT>(r) }",
    ),
    Fixed(
        "a small sum; the uint8 is a graph output too",
        before="""g (bool[N] x, bool[N] z) => (float[N] y, uint8[N] s) {
            a = Cast<to = 6>(x)  b = Cast<to = 6>(z)  r = Add(a, b)  s = Cast<to = 2>(r)  y = Cast<to = 1>(s) }""",
        after="""g (bool[N] x, bool[N] z) => (float[N] y, uint8[N] s) {
            a = Cast<to = 6>(x)  b = Cast<to = 6>(z)  r = Add(a, b)  s = Cast<to = 2>(r)  y = Cast<to = 1>(r) }""",
    ),
    Silent(
        "values that may be too large",
        "g (int32[N] x) => (float[N] y) { s = Cast<to = UINT8>(x)  y = Cast<to = FLOAT>(s) }",
    ),
    Silent(
        "values that may be negative",
        """g (int32[N] x) => (float[N] y) <int32 m = {256}> {
            r = Mod<fmod = 1>(x, m)  s = Cast<to = UINT8>(r)  y = Cast<to = FLOAT>(s) }""",
    ),
]


_LOGIC = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}


@rule(
    "OPS027",
    ops=["Cast"],
    safety=Safety.EXACT,
    severity=Severity.INFO,
    hazards=[66],
    types=[TensorProto.BOOL],
)
def arithmetic_logic(node: Node, model: Model) -> Iterator[Match]:
    """Booleans cast to numbers, added or multiplied, and cast back to booleans: an Or, or an And.

    ## Why it matters
    Older exporters write logic this way. TensorRT imports four layers where one suffices: measured with TensorRT-RTX
    1.7.1, three CAST and one ELEMENTWISE instead of one ELEMENTWISE. With int32 or a float as the intermediate type it
    builds. With a type that TensorRT does not have between nodes it is an **error**: `TensorRT does not support UINT8
    types for intermediate tensors`.

    ## Fix
    Replace Add and Max by Or, Mul and Min by And, on the booleans themselves. Exact: for 0 and 1, a sum is 0 only if
    both are 0, and a product only if one is; in no numeric type does 2 become 0.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Or.html
    """
    value = node.input(0)
    node.require_output()
    arithmetic = None if value is None else value.producer
    if arithmetic is None or not arithmetic.is_onnx:
        return
    if arithmetic.op_type not in _LOGIC or len(arithmetic.inputs) != 2:
        return
    if node.opset < 7 or value is None or node.attr("to") != TensorProto.BOOL:
        return
    first, second = (_logic.boolean(operand, node, model) for operand in arithmetic.inputs)
    if first is None or second is None or (first.constant and second.constant):
        return
    elem = model.shapes.elem_type(value)
    if elem is None:
        return
    logic = _LOGIC[arithmetic.op_type]
    draft = Draft(node)
    draft.replace_output(node, draft.add(logic, [first.name(draft), second.name(draft)]))
    yield Match(
        f"{arithmetic.op_type} of booleans as {name_of(elem)}, cast back to bool: {logic}",
        node=node,
        fix=Fix(f"use {logic}", draft.edits),
        severity=Severity.INFO if target_of(model).between(elem) else Severity.ERROR,
        reads=(arithmetic, *first.reads, *second.reads),
    )


arithmetic_logic.examples = [
    *(
        Fixed(
            f"{arithmetic} between Casts is {logic}",
            before=f"""g (bool[N,3] p, bool[3] q) => (bool[N,3] z) {{
                a = Cast<to = 6>(p)  b = Cast<to = 6>(q)  c = {arithmetic}(a, b)  y = Cast<to = 9>(c)  z = Not(y) }}""",
            after=f"g (bool[N,3] p, bool[3] q) => (bool[N,3] z) {{ y = {logic}(p, q)  z = Not(y) }}",
        )
        for arithmetic, logic in _LOGIC.items()
    ),
    Fixed(
        "as uint8, which TensorRT lacks between nodes; the result is a graph output",
        before="""g (bool[N] p, bool[N] q) => (bool[N] y) {
            a = Cast<to = UINT8>(p)  b = Cast<to = UINT8>(q)  c = Mul(a, b)  y = Cast<to = BOOL>(c) }""",
        after="g (bool[N] p, bool[N] q) => (bool[N] y) { y = And(p, q) }",
        opset=14,
    ),
    Fixed(
        "the sum has another use, and stays",
        before="""g (bool[N] p, bool[N] q) => (bool[N] y, float[N] s) {
            a = Cast<to = FLOAT>(p)  b = Cast<to = FLOAT>(q)  s = Add(a, b)  y = Cast<to = BOOL>(s) }""",
        after="""g (bool[N] p, bool[N] q) => (bool[N] y, float[N] s) {
            a = Cast<to = FLOAT>(p)  b = Cast<to = FLOAT>(q)  s = Add(a, b)  y = Or(p, q) }""",
    ),
    Fixed(
        "with a constant of 0 and 1, inside a branch",
        before="""g (bool[2] p, bool c) => (bool[2] y) <float[2] k = {1, 0}> {
            y = If(c)<then_branch = t () => (bool[2] u) { a = Cast<to = 1>(p)  m = Mul(a, k)  u = Cast<to = 9>(m) },
                      else_branch = e () => (bool[2] v) { v = Not(p) }> }""",
        after="""g (bool[2] p, bool c) => (bool[2] y) {
            y = If(c)<then_branch = t () => (bool[2] u) <bool[2] k = {1, 0}> { u = And(p, k) },
                      else_branch = e () => (bool[2] v) { v = Not(p) }> }""",
    ),
    Silent(
        "integers that were not booleans: -1 and 1 sum to 0",
        "g (int32[N] p, bool[N] q) => (bool[N] y) { b = Cast<to = INT32>(q)  c = Add(p, b)  y = Cast<to = BOOL>(c) }",
    ),
    Silent(
        "a difference",
        """g (bool[N] p, bool[N] q) => (bool[N] y) {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  c = Sub(a, b)  y = Cast<to = BOOL>(c) }""",
    ),
    Silent(
        "the sum itself is the output",
        """g (bool[N] p, bool[N] q) => (int32[N] y) {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  y = Add(a, b) }""",
    ),
    Silent(
        "a constant 2",
        """g (bool[2] p) => (bool[2] y) <int32[2] k = {2, 0}> {
            a = Cast<to = INT32>(p)  c = Mul(a, k)  y = Cast<to = BOOL>(c) }""",
    ),
]

_ARITHMETIC = ("Add", "Mul", "Sub")
_IN_FLOAT = (*_ARITHMETIC, "Clip", "Div", "Max", "Min", "Mod", "Where")
_ONE_OPERAND = ("Abs", "ArgMax", "ArgMin", "MaxPool", "Sign")
_OTHER_RESULT = ("ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_OPS = (*_ARITHMETIC, *_ONE_OPERAND, *_OTHER_RESULT[2:], "Clip", "Div", "Max", "Min", "Mod", "Where")


@rule("OPS054", ops=_OPS, safety=Safety.EXACT, severity=Severity.ERROR, hazards=[49, 50], types=SMALL)
def small_integer_arithmetic(node: Node, model: Model) -> Iterator[Match]:
    """Arithmetic or a comparison of uint8, or a Clip or Mod of int8.

    ## Why it matters
    uint8 is supported only as a network input that is cast, and as a network output after a Cast. Everything else is
    refused: `ElementWiseOperation SUM requires inputs with type kFLOAT, kHALF, kBF16, kFP8, or kINT8, kINT32, or
    kINT64. But type is UInt8.`, `Found unsupported input type of UINT8`, measured with TensorRT-RTX 1.7.1. int8 counts
    as quantized, and Clip and Mod do not support it: `This version of TensorRT only supports floating-point, INT32, or
    INT64 inputs for Clip!`.

    uint8 from a QuantizeLinear in the graph counts as int8, which most of these operators support (QDQ004 and QDQ001
    cover what is wrong with it). A Cast back to uint8 would then be the only thing that is refused.

    ## Fix
    The same in int32 between Casts; a MaxPool in float. Where int8 is a quantized type only (TensorRT 10.0 to 10.13),
    in float or int32 between a DQ and a Q of scale 1. What may leave the type is wrapped around, as ONNX's integers
    are; a Div or Mod there is a division and a rounding. If one such operator reads another's result, it reads the
    int32. Exact. No fix for quantized values that another node reads as uint8 afterwards.

    TensorRT layers: 3 to 5 for a comparison, 3 to 7 for others, 8 or 9 for what wraps around.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Add.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    output, first = node.require_output(), node.input(node.op_type == "Where")
    elem = None if first is None else model.shapes.elem_type(first)
    if elem is None or elem not in SMALL or not _refused(node, model, elem):
        return
    quantized = any(value is not None and is_quantized(value, model) for value in node.inputs)
    computed_in_int8 = quantized and not _refused(node, model, TensorProto.INT8)
    # Nothing follows a Cast back to the type of a result that is only a graph output.
    is_last = output.use_count == 0 and output.scope is model.main
    unfixable = quantized and node.op_type not in _OTHER_RESULT and not is_last
    if computed_in_int8 and unfixable:
        return
    if node.op_type == "MaxPool" and not _is_equal_in_float(node):
        return
    computer = Computer(Draft(node), model, elem, _wide_type(node, model, elem))
    if computer.wide == TensorProto.FLOAT and node.op_type in ("Div", "Mod"):
        computer.finish(_divided(node, model, computer), output)
    else:
        _widen(node, model, computer, output)
    title = f"compute it in {'float' if computer.wide == TensorProto.FLOAT else 'int32'}"
    yield Match(
        f"TensorRT computes this {node.op_type} of quantized uint8 in int8"
        if computed_in_int8
        else f"TensorRT does not support {dtypes.name_of(elem)} in {node.op_type}",
        node=node,
        fix=None if unfixable else Fix(title, computer.draft.edits),
        severity=Severity.WARNING if computed_in_int8 else None,
        reads=tuple(value for value in node.inputs if value is not None),
    )


def _widen(node: Node, model: Model, computer: Computer, output: Value) -> None:
    """The same operator in the wider type."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    del proto.output[1:]
    for index, value in enumerate(node.inputs[: 1 if node.op_type in _ONE_OPERAND else None]):
        if value is not None and (index or node.op_type != "Where"):
            proto.input[index] = computer.widened(value)
    proto.output[0] = computer.draft.name("wide")
    computer.draft.edits.append(AddNode(node.scope, proto, node))
    if node.op_type in _OTHER_RESULT:
        proto.output[0] = output.name
        computer.draft.edits.insert(0, RemoveNode(node))
    else:
        wraps = node.op_type in _ARITHMETIC and _wraps(node, model, computer.elem)
        computer.finish(computer.wrapped(proto.output[0]) if wraps else proto.output[0], output)


def _divided(node: Node, model: Model, computer: Computer) -> str:
    """Div or Mod of int8 in float. Quotients of bytes that are no integers are at least 1/128 away from one: half of
    that makes up for a division that TensorRT does not round correctly."""
    add = computer.add
    data, divisor = (computer.widened(node.require(index)) for index in range(2))
    quotient, half = add("Div", data, divisor), computer.array(2**-8, "half")
    if node.op_type == "Mod" and not node.attr("fmod", 0):
        whole = add("Floor", add("Add", quotient, half))
    else:
        whole = add("Mul", add("Sign", quotient), add("Floor", add("Add", add("Abs", quotient), half)))
    if node.op_type == "Mod":
        return add("Sub", data, add("Mul", divisor, whole))
    return computer.wrapped(whole) if _wraps(node, model, computer.elem) else whole


def _wide_type(node: Node, model: Model, elem: int) -> int:
    """The type to compute in."""
    quantized = elem == TensorProto.INT8 and is_only_quantized(node, model)
    in_float = node.op_type == "MaxPool" or (quantized and node.op_type in _IN_FLOAT)
    return int(TensorProto.FLOAT if in_float else TensorProto.INT32)


def _is_equal_in_float(node: Node) -> bool:
    """Whether a MaxPool in float is equal: every window must have an element outside the padding."""
    kernel, pads = node.attr("kernel_shape", []), node.attr("pads", [0])
    return not (
        is_read(node.output(1))
        or node.attr("ceil_mode", 0)
        or set(node.attr("dilations", [1])) != {1}
        or max(pads, default=0) >= min(kernel, default=0)
    )


def _refused(node: Node, model: Model, elem: int) -> bool:
    """Whether the target refuses the node for its type, although it supports network inputs of that type."""
    target = target_of(model)
    if node.op_type == "Where" and elem != TensorProto.INT8:  # OPS002
        return False
    if not target.has_type(elem) or target.imports(node.op_type) is not True:
        return False
    imported = node.op_type == "Clip" and (_bounds.are_none(node) or _bounds.are_replaced_by_zero(node))
    if imported and elem == TensorProto.INT8:
        return False  # right or wrong: OPS074
    if target.accepts(node.op_type, elem) is False:
        return True
    # A type that is unsupported between nodes is refused by all of them.
    return not target.between(elem) and any(
        value is not None and unnarrowed(value, node, model) is not None for value in node.inputs
    )


def _wraps(node: Node, model: Model, elem: int) -> bool:
    """Whether the result may leave the type."""
    found = range_after(node, lambda index: range_of(node.input(index), model))
    return found is None or found[0] < INTEGERS[elem].low or INTEGERS[elem].high < found[1]


_fixed = partial(Fixed, target="trt10.6")
small_integer_arithmetic.examples = [
    Fixed(
        "a comparison",
        before="g (uint8[N,3] x, uint8[3] z) => (bool[N,3] y) { y = Greater(x, z) }",
        after="""g (uint8[N,3] x, uint8[3] z) => (bool[N,3] y) {
            v = Cast<to = INT32>(x)  w = Cast<to = INT32>(z)  y = Greater(v, w) }""",
    ),
    Fixed(
        "a sum, wrapped around",
        before="g (uint8[N] x, uint8[N] z) => (uint8[N] y) { y = Add(x, z) }",
        after="""g (uint8[N] x, uint8[N] z) => (uint8[N] y) <int32 m = {256}> {
            v = Cast<to = 6>(x)  w = Cast<to = 6>(z)  s = Add(v, w)  r = Mod(s, m)  y = Cast<to = 2>(r) }""",
    ),
    Fixed(
        "a difference that fits the type",
        before="g (uint8[N] x) => (uint8[N] y) <uint8 k = {255}> { y = Sub(k, x) }",
        after="""g (uint8[N] x) => (uint8[N] y) <int32 k = {255}> {
            v = Cast<to = INT32>(x)  s = Sub(k, v)  y = Cast<to = UINT8>(s) }""",
    ),
    Fixed(
        "two in sequence: the second reads the int32 of the first",
        before="g (uint8[N] x, uint8[N] z) => (uint8[N] y) { a = Max(x, z)  y = Min(a, z) }",
        after="""g (uint8[N] x, uint8[N] z) => (uint8[N] y) {
            u = Cast<to = INT32>(x)  v = Cast<to = INT32>(z)  a = Max(u, v)
            w = Cast<to = INT32>(z)  b = Min(a, w)  y = Cast<to = UINT8>(b) }""",
    ),
    Fixed(
        "Clip of int8 with a non-constant bound",
        before="g (int8[N] x, int8 m) => (int8[N] y) { y = Clip(x, m) }",
        after="""g (int8[N] x, int8 m) => (int8[N] y) {
            v = Cast<to = INT32>(x)  n = Cast<to = INT32>(m)  c = Clip(v, n)  y = Cast<to = INT8>(c) }""",
    ),
    Fixed(
        "Clip of uint8 with constant bounds",
        before="g (uint8[N] x) => (uint8[N] y) <uint8 a = {1}, uint8 b = {200}> { y = Clip(x, a, b) }",
        after="""g (uint8[N] x) => (uint8[N] y) <int32 a = {1}, int32 b = {200}> {
            v = Cast<to = INT32>(x)  c = Clip(v, a, b)  y = Cast<to = UINT8>(c) }""",
    ),
    Fixed(
        "Clip of int8 with only an upper bound",
        before="g (int8[N] x) => (int8[N] y) <int8 b = {20}> { y = Clip(x, , b) }",
        after="""g (int8[N] x) => (int8[N] y) <int32 b = {20}> {
            v = Cast<to = INT32>(x)  c = Clip(v, , b)  y = Cast<to = INT8>(c) }""",
    ),
    Fixed(
        "MaxPool, in float, which represents all values exactly",
        before="g (uint8[1,1,4,4] x) => (uint8[1,1,2,2] y) { y = MaxPool<kernel_shape = [3, 3]>(x) }",
        after="""g (uint8[1,1,4,4] x) => (uint8[1,1,2,2] y) {
            v = Cast<to = FLOAT>(x)  p = MaxPool<kernel_shape = [3, 3]>(v)  y = Cast<to = UINT8>(p) }""",
    ),
    Silent(
        "MaxPool with a window inside the padding",
        "g (uint8[1,1,4,4] x) => (uint8[1,1,4,5] y) { y = MaxPool<kernel_shape = [3, 2], pads = [1,2,1,0]>(x) }",
        runs=False,
    ),
    Fixed(
        "ArgMax",
        before="g (uint8[2,5] x) => (int64[2,1] y) { y = ArgMax<axis = 1>(x) }",
        after="g (uint8[2,5] x) => (int64[2,1] y) { v = Cast<to = INT32>(x)  y = ArgMax<axis = 1>(v) }",
    ),
    Silent(
        "Equal of two graph inputs, which TensorRT supports",
        "g (uint8[N] x, uint8[N] z) => (bool[N] y) { y = Equal(x, z) }",
    ),
    Silent(
        "Add of int8, which TensorRT supports", "g (int8[N] x, int8[N] z) => (int8[N] y) { y = Add(x, z) }"
    ),
    Silent(
        "Clip of int8 with constant bounds, which TensorRT imports incorrectly (OPS074)",
        "g (int8[N] x) => (int8[N] y) <int8 a = {-10}, int8 b = {20}> { y = Clip(x, a, b) }",
    ),
    Fixed(
        "Clip of int8 with bounds omitted by empty names",
        before="g (int8[N] x) => (int8[N] y) { y = Clip(x, , ) }",
        after="""g (int8[N] x) => (int8[N] y) { v = Cast<to = INT32>(x)  c = Clip(v, , )  y = Cast<to = INT8>(c) }""",
    ),
    Silent("Clip of int8 without bounds", "g (int8[N] x) => (int8[N] y) { y = Clip(x) }"),
    Silent(
        "from a QuantizeLinear: TensorRT pools it as int8, but would refuse a Cast back to uint8",
        """g (float[1,2,8,8] x, float[1,2,8,8] w) => (float[1,4,4,4] y) <float s = {0.1}, uint8 z = {0}> {
            a = QuantizeLinear(x, s, z)  b = QuantizeLinear(w, s, z)  c = Concat<axis = 1>(a, b)
            p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)  t = Transpose<perm = [0, 2, 3, 1]>(p)
            y = DequantizeLinear(t, s, z) }""",
    ),
    Flagged(
        "from a QuantizeLinear, where TensorRT refuses int8 too, and would refuse a Cast back to uint8",
        """g (float[4] x) => (float[4] y) <float s = {0.1}, uint8 z = {0}, uint8 m = {7}> {
            q = QuantizeLinear(x, s, z)  r = Mod(q, m)  y = DequantizeLinear(r, s, z) }""",
    ),
    Fixed(
        "from a QuantizeLinear and returned as uint8",
        before="""g (float[4] x) => (uint8[4] y) <float s = {0.1}, uint8 z = {0}, uint8 m = {7}> {
            q = QuantizeLinear(x, s, z)  y = Mod(q, m) }""",
        after="""g (float[4] x) => (uint8[4] y) <float s = {0.1}, uint8 z = {0}, int32 m = {7}> {
            q = QuantizeLinear(x, s, z)  w = Cast<to = INT32>(q)  n = Mod(w, m)  y = Cast<to = UINT8>(n) }""",
        differs={
            "branch": "only an output of the main graph is known to have no reader",
            "function": "only an output of the main graph is known to have no reader",
        },
    ),
    Fixed(
        "quantized outside the loop that compares it",
        before="""g (float[2] x, int64 n) => (bool[2] y) <float s = {0.1}, bool k = {1}, bool[2] f = {0, 0}> {
            q = QuantizeLinear(x, s)
            e, y = Loop(n, k, q, f)<body = b (int64 i, bool c, uint8[2] v, bool[2] u)
                => (bool o, uint8[2] w, bool[2] r) { o = Identity(c)  w = Max(v, v)  r = Greater(v, w) }> }""",
        after="""g (float[2] x, int64 n) => (bool[2] y) <float s = {0.1}, bool k = {1}, bool[2] f = {0, 0}> {
            q = QuantizeLinear(x, s)
            e, y = Loop(n, k, q, f)<body = b (int64 i, bool c, uint8[2] v, bool[2] u)
                => (bool o, uint8[2] w, bool[2] r) { o = Identity(c)  w = Max(v, v)
                j = Cast<to = INT32>(v)  l = Cast<to = INT32>(w)  r = Greater(j, l) }> }""",
    ),
    _fixed(
        "TensorRT 10.6 takes int8 for a quantized type: in float, and wrapped around",
        before="g (int8[N] x, int8[N] z) => (int8[N] y) { y = Add(x, z) }",
        after="""g (int8[N] x, int8[N] z) => (int8[N] y)
            <float s = {1}, float h = {128}, float m = {256}, float u = {0.00390625}, int8 o = {0}> {
            v = DequantizeLinear(x, s)  w = DequantizeLinear(z, s)  a = Add(v, w)
            b = Add(a, h)  t = Mul(b, u)  f = Floor(t)  k = Mul(f, m)  r = Sub(a, k)  y = QuantizeLinear(r, s, o) }""",
    ),
    _fixed(
        "a product that leaves the type only for -128, for TensorRT 10.6",
        before="g (int8[N] x) => (int8[N] y) <int8 k = {-1}> { y = Mul(x, k) }",
        after="""g (int8[N] x) => (int8[N] y)
            <float s = {1}, float k = {-1}, float h = {128}, float m = {256}, float u = {0.00390625}, int8 o = {0}> {
            v = DequantizeLinear(x, s)  a = Mul(v, k)
            b = Add(a, h)  t = Mul(b, u)  f = Floor(t)  n = Mul(f, m)  r = Sub(a, n)  y = QuantizeLinear(r, s, o) }""",
    ),
    _fixed(
        "a comparison of int8 for TensorRT 10.6",
        before="g (int8[N] x, int8[N] z) => (bool[N] y) { y = Less(x, z) }",
        after="""g (int8[N] x, int8[N] z) => (bool[N] y) <float s = {1}> {
            a = DequantizeLinear(x, s)  v = Cast<to = INT32>(a)  b = DequantizeLinear(z, s)  w = Cast<to = INT32>(b)
            y = Less(v, w) }""",
    ),
    _fixed(
        "a quotient of int8, rounded to 0 and wrapped around, for TensorRT 10.6",
        before="g (int8[N,3] x) => (int8[N,3] y) <int8[3] d = {-1, 3, -7}> { y = Div(x, d) }",
        after="""g (int8[N,3] x) => (int8[N,3] y) <float s = {1}, float[3] d = {-1, 3, -7},
            float e = {0.00390625}, float h = {128}, float m = {256}, float u = {0.00390625}, int8 o = {0}> {
            v = DequantizeLinear(x, s)  q = Div(v, d)  g = Sign(q)  i = Abs(q)
            j = Add(i, e)  l = Floor(j)  a = Mul(g, l)
            b = Add(a, h)  t = Mul(b, u)  f = Floor(t)  k = Mul(f, m)  r = Sub(a, k)  y = QuantizeLinear(r, s, o) }""",
    ),
    _fixed(
        "a remainder of int8 for TensorRT 10.6",
        before="g (int8[N] x) => (int8[N] y) <int8 d = {-7}> { y = Mod(x, d) }",
        after="""g (int8[N] x) => (int8[N] y) <float s = {1}, float d = {-7}, float e = {0.00390625}, int8 o = {0}> {
            v = DequantizeLinear(x, s)  q = Div(v, d)  j = Add(q, e)  f = Floor(j)  k = Mul(d, f)  r = Sub(v, k)
            y = QuantizeLinear(r, s, o) }""",
    ),
    _fixed(
        "a selection of int8, as in the function body of Clip, for TensorRT 10.6",
        before="g (bool[N] c, int8[N] x, int8 m) => (int8[N] y) { y = Where(c, m, x) }",
        after="""g (bool[N] c, int8[N] x, int8 m) => (int8[N] y) <float s = {1}, int8 o = {0}> {
            v = DequantizeLinear(m, s)  w = DequantizeLinear(x, s)  r = Where(c, v, w)
            y = QuantizeLinear(r, s, o) }""",
    ),
    Silent("Where of int8 for TensorRT 11", "g (bool[N] c, int8[N] x) => (int8[N] y) { y = Where(c, x, x) }"),
    Silent("int32", "g (int32[N] x, int32[N] z) => (bool[N] y) { y = Greater(x, z) }"),
    Silent(
        "uint16, which TensorRT does not support at all",
        "g (uint16[N] x) => (bool[N] y) { y = Greater(x, x) }",
    ),
    Silent(
        "TensorRT 8.4 does not support uint8 at all",
        "g (uint8[N] x, uint8[N] z) => (bool[N] y) { y = Greater(x, z) }",
        target="trt8.4",
    ),
]
