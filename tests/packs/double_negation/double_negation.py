"""NEG: a rule pack of its own, which needs nothing but onnxfix.rule."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Silent, rule


@rule("NEG001", ops=["Neg"], safety=Safety.EXACT)
def double_negation(node: Node, model: Model) -> Iterator[Match]:
    """A Neg of a Neg, which changes no value.

    ## Why it matters
    Two layers that do nothing.

    ## Fix
    What reads the second Neg reads what the first one reads. Exact: a sign bit is inverted twice.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Neg.html
    """
    first = node.require(0).producer
    if first is None or not first.is_onnx or first.op_type != "Neg":
        return
    draft = Draft(node)
    draft.replace_output(node, first.require(0))
    yield Match("two Negs in a row", node=node, fix=Fix("remove both", draft.edits), reads=(first,))


double_negation.examples = [
    Fixed(
        "between two nodes",
        before="g (float[N] x) => (float[N] y) { a = Exp(x)  b = Neg(a)  c = Neg(b)  y = Abs(c) }",
        after="g (float[N] x) => (float[N] y) { a = Exp(x)  y = Abs(a) }",
    ),
    Silent("one alone", "g (float[N] x) => (float[N] y) { a = Neg(x)  y = Abs(a) }"),
]
