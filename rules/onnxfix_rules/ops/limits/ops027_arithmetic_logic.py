"""OPS027: boolean logic computed by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    name_of,
    rule,
    target_of,
)
from onnxfix_rules.ops import _logic

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
    value, output = node.input(0), node.require_output()
    arithmetic = None if value is None else value.producer
    if (
        arithmetic is None
        or not arithmetic.is_onnx
        or arithmetic.op_type not in _LOGIC
        or len(arithmetic.inputs) != 2
    ):
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
    draft.remove(node)
    draft.add(logic, [first.name(draft), second.name(draft)], output=output.name)
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
