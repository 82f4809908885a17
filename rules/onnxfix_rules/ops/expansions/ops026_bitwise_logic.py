"""OPS026: bitwise operators on booleans that were cast to integers."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops import _logic

_LOGIC = {"BitwiseAnd": "And", "BitwiseOr": "Or", "BitwiseXor": "Xor"}


@rule("OPS026", ops=sorted(_LOGIC), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[66, 43])
def bitwise_logic(node: Node, model: Model) -> Iterator[Match]:
    """A bitwise And, Or or Xor of booleans that were cast to integers.

    ## Why it matters
    TensorRT imports no bitwise operator: `UNSUPPORTED_NODE at onnxOpCheckers.cpp:1090 checkBitwiseAnd`, measured with
    TensorRT-RTX 1.7.1. It has And, Or and Xor of booleans. PyTorch writes `a & b` of masks in both ways, depending on
    the exporter.

    ## Fix
    The logical operator on the booleans themselves, and a Cast of the result; where the result was cast back, CST003
    removes both Casts. A constant of 0 and 1 counts as boolean. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BitwiseAnd.html
    """
    output = node.output()
    elem = None if output is None else model.shapes.elem_type(output)
    operands = [_logic.boolean(value, node, model) for value in node.inputs]
    if (
        output is None
        or elem is None
        or len(operands) != 2
        or all(o is not None and o.constant for o in operands)
    ):
        return
    first, second = operands
    if first is None or second is None:
        return
    draft = Draft(node)
    draft.remove(node)
    logic = draft.add(_LOGIC[node.op_type], [first.name(draft), second.name(draft)])
    draft.add("Cast", [logic], output=output.name, to=elem)
    yield Match(
        f"TensorRT has no {node.op_type}; all operands here are 0 or 1",
        node=node,
        fix=Fix(f"replace by {_LOGIC[node.op_type]} of the booleans", draft.edits),
        reads=(*first.reads, *second.reads),
    )


bitwise_logic.examples = [
    *(
        Fixed(
            f"{bitwise} of booleans, between Casts",
            before=f"""g (bool[N,3] p, bool[3] q) => (bool[N,3] y) {{
                a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  c = {bitwise}(a, b)  y = Cast<to = BOOL>(c) }}""",
            after=f"""g (bool[N,3] p, bool[3] q) => (bool[N,3] y) {{
                l = {logic}(p, q)  c = Cast<to = INT32>(l)  y = Cast<to = BOOL>(c) }}""",
        )
        for bitwise, logic in _LOGIC.items()
    ),
    Fixed(
        "the result stays an integer",
        before="""g (bool[N] p, bool[N] q) => (int64[N] y) {
            a = Cast<to = INT64>(p)  b = Cast<to = INT64>(q)  y = BitwiseOr(a, b) }""",
        after="g (bool[N] p, bool[N] q) => (int64[N] y) { l = Or(p, q)  y = Cast<to = INT64>(l) }",
    ),
    Fixed(
        "a chain of three, the last a constant of 0 and 1",
        before="""g (bool[2] p, bool[2] q) => (int32[2] y) <int32[2] k = {1, 0}> {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  c = BitwiseOr(a, b)  y = BitwiseAnd(k, c) }""",
        after="""g (bool[2] p, bool[2] q) => (int32[2] y) <bool[2] k = {1, 0}> {
            l = Or(p, q)  m = And(k, l)  y = Cast<to = INT32>(m) }""",
    ),
    Fixed(
        "in a branch, with captured Casts that other nodes read",
        before="""g (bool[2] p, bool[2] q, bool c) => (int32[2] y, int32[2] a) {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)
            y = If(c)<then_branch = t () => (int32[2] u) { u = BitwiseXor(a, b) },
                      else_branch = e () => (int32[2] v) { v = Neg(b) }> }""",
        after="""g (bool[2] p, bool[2] q, bool c) => (int32[2] y, int32[2] a) {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)
            y = If(c)<then_branch = t () => (int32[2] u) { l = Xor(p, q)  u = Cast<to = INT32>(l) },
                      else_branch = e () => (int32[2] v) { v = Neg(b) }> }""",
    ),
    Silent(
        "a constant with another bit set",
        """g (bool[2] p) => (int32[2] y) <int32[2] k = {1, 2}> {
            a = Cast<to = INT32>(p)  y = BitwiseAnd(a, k) }""",
    ),
    Silent(
        "arbitrary integers",
        "g (int32[2] p, bool[2] q) => (int32[2] y) { b = Cast<to = INT32>(q)  y = BitwiseAnd(p, b) }",
    ),
    Silent(
        "integers that were cast to other integers",
        """g (int32[2] p, bool[2] q) => (int64[2] y) {
            a = Cast<to = INT64>(p)  b = Cast<to = INT64>(q)  y = BitwiseAnd(a, b) }""",
    ),
    Silent(
        "a default of a graph input",
        """g (bool[2] p, int32[2] k) => (int32[2] y) <int32[2] k = {1, 0}> {
            a = Cast<to = INT32>(p)  y = BitwiseAnd(a, k) }""",
    ),
    Silent(
        "BitwiseNot, which turns 0 into -1",
        "g (bool[2] p) => (int32[2] y) { a = Cast<to = INT32>(p)  y = BitwiseNot(a) }",
    ),
]
