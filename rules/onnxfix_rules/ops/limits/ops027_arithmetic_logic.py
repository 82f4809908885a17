"""OPS027: booleans added or multiplied, and made booleans again."""

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
    hazards=[36],
    types=[TensorProto.BOOL],
)
def arithmetic_logic(node: Node, model: Model) -> Iterator[Match]:
    """Booleans cast to numbers, added or multiplied, and cast back to booleans: an Or, or an And.

    ## Why it matters
    Older exporters write logic so. TensorRT imports four layers where one does it: measured with TensorRT-RTX 1.7.1,
    three CAST and one ELEMENTWISE against one ELEMENTWISE. By way of int32 or a float it builds. By way of a type that
    it does not have between nodes it is an **error**: `TensorRT does not support UINT8 types for intermediate tensors`.

    ## Fix
    Or in place of Add and Max, And in place of Mul and Min, on the booleans themselves. Exact: of 0 and 1 a sum is 0
    only where both are, and a product only where one is; in no numeric type does 2 become 0.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Or.html
    """
    number, output = node.input(0), node.require_output()
    made = None if number is None else number.producer
    if made is None or not made.is_onnx or made.op_type not in _LOGIC or len(made.inputs) != 2:
        return
    if node.opset < 7 or number is None or node.attr("to") != TensorProto.BOOL:
        return
    first, second = (_logic.boolean(value, node, model) for value in made.inputs)
    if first is None or second is None or (first.constant and second.constant):
        return
    elem = model.shapes.elem_type(number)
    if elem is None:
        return
    logic = _LOGIC[made.op_type]
    draft = Draft(node)
    draft.remove(node)
    draft.add(logic, [first.name(draft), second.name(draft)], output=output.name)
    yield Match(
        f"{made.op_type} of booleans in {name_of(elem)}, made boolean again: {logic}",
        node=node,
        fix=Fix(f"write {logic}", draft.edits),
        severity=Severity.INFO if target_of(model).between(elem) else Severity.ERROR,
        reads=(made, *first.reads, *second.reads),
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
        "by way of uint8, which TensorRT has not between nodes; the result is the graph's output",
        before="""g (bool[N] p, bool[N] q) => (bool[N] y) {
            a = Cast<to = 2>(p)  b = Cast<to = 2>(q)  c = Mul(a, b)  y = Cast<to = 9>(c) }""",
        after="g (bool[N] p, bool[N] q) => (bool[N] y) { y = And(p, q) }",
        opset=14,
    ),
    Fixed(
        "the sum is read elsewhere too, and stays for that",
        before="""g (bool[N] p, bool[N] q) => (bool[N] y, float[N] s) {
            a = Cast<to = 1>(p)  b = Cast<to = 1>(q)  s = Add(a, b)  y = Cast<to = 9>(s) }""",
        after="""g (bool[N] p, bool[N] q) => (bool[N] y, float[N] s) {
            a = Cast<to = 1>(p)  b = Cast<to = 1>(q)  s = Add(a, b)  y = Or(p, q) }""",
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
        "numbers that were no booleans: -1 and 1 add up to 0",
        "g (int32[N] p, bool[N] q) => (bool[N] y) { b = Cast<to = 6>(q)  c = Add(p, b)  y = Cast<to = 9>(c) }",
    ),
    Silent(
        "a difference",
        """g (bool[N] p, bool[N] q) => (bool[N] y) {
            a = Cast<to = 6>(p)  b = Cast<to = 6>(q)  c = Sub(a, b)  y = Cast<to = 9>(c) }""",
    ),
    Silent(
        "the sum is what is wanted",
        """g (bool[N] p, bool[N] q) => (int32[N] y) {
            a = Cast<to = 6>(p)  b = Cast<to = 6>(q)  y = Add(a, b) }""",
    ),
    Silent(
        "a constant 2",
        """g (bool[2] p) => (bool[2] y) <int32[2] k = {2, 0}> {
            a = Cast<to = 6>(p)  c = Mul(a, k)  y = Cast<to = 9>(c) }""",
    ),
]
