"""What check_contexts notices: a rule that holds on its own and not where a graph may stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from onnx import ModelProto

from onnxfix.files import walk
from onnxfix.rewrite import contexts
from onnxfix.rule import Draft, Example, Fix, Fixed, Match, Model, Node, Rule, Silent, rule
from onnxfix.testing import check_contexts, check_example, graph_difference, model_of, readable

G = "g (float[N] x) => (float[N] y)"
DOUBLE_NEG: list[Example] = [
    Fixed("twice", before=f"{G} {{ a = Exp(x)  b = Neg(a)  c = Neg(b)  y = Abs(c) }}",
          after=f"{G} {{ a = Exp(x)  y = Abs(a) }}"),
    Silent("once", f"{G} {{ a = Neg(x)  y = Abs(a) }}"),
]  # fmt: skip


def found(node: Node, source: Node) -> Match:
    draft = Draft(node)
    first = source.input(0)
    assert first is not None
    draft.bypass(node, first)
    return Match("two", node=node, fix=Fix("remove both", draft.edits), reads=(source,))


@rule("TOY001", ops=["Neg"])
def double_neg(node: Node, model: Model) -> Iterator[Match]:
    """Two Negs."""
    made = node.inputs[0] and node.inputs[0].producer
    if made and made.is_onnx and made.op_type == "Neg":
        yield found(node, made)


double_neg.examples = DOUBLE_NEG


@rule("TOY002", ops=["Neg"])
def any_neg(node: Node, model: Model) -> Iterator[Match]:
    """Two Negs, of whatever domain the first is."""
    made = node.inputs[0] and node.inputs[0].producer
    if made and made.op_type == "Neg":
        yield found(node, made)


@rule("TOY003", ops=["Neg"])
def main_neg(node: Node, model: Model) -> Iterator[Match]:
    """Two Negs, in the main graph alone."""
    made = node.inputs[0] and node.inputs[0].producer
    if node.scope is model.main and made and made.is_onnx and made.op_type == "Neg":
        yield found(node, made)


@rule("TOY004", ops=["Neg"])
def named_neg(node: Node, model: Model) -> Iterator[Match]:
    """Two Negs, told by a name."""
    made = node.inputs[0] and node.inputs[0].producer
    if made and made.is_onnx and made.op_type == "Neg" and made.first_output == "b":
        yield found(node, made)


@rule("TOY005", per="model")
def model_neg(model: Model) -> Iterator[Match]:
    """Two Negs, and no look into functions."""
    for node in (node for scope in model.main.walk() for node in scope.nodes):
        made = node.inputs[0].producer if node.inputs and node.inputs[0] else None
        if node.is_onnx and made and made.is_onnx and made.op_type == node.op_type == "Neg":
            yield found(node, made)


@pytest.mark.parametrize(
    ("broken", "context"),
    [(any_neg, "foreign"), (main_neg, "branch"), (main_neg, "function"), (named_neg, "renamed"),
     (model_neg, "function")],
)  # fmt: skip
def test_what_a_rule_forgets_is_noticed(broken: Rule, context: str) -> None:
    broken.examples = DOUBLE_NEG
    for example in broken.examples:
        check_example(broken, example)
    with pytest.raises(AssertionError, match=rf"\(twice\), {context}: "):
        check_contexts(broken)


def test_a_rule_that_forgets_nothing() -> None:
    check_contexts(double_neg)


def test_a_difference_is_declared_or_refused() -> None:
    main_neg.examples = [replace(DOUBLE_NEG[0], differs={"branch": "not found", "function": "not found"})]
    check_contexts(main_neg)
    double_neg_too = rule("TOY006", ops=["Neg"], differs={"branch": "it does not"})(double_neg.generate)
    double_neg_too.examples = DOUBLE_NEG
    with pytest.raises(AssertionError, match="TOY006, branch: is declared to differ and does not"):
        check_contexts(double_neg_too)
    double_neg_too = rule("TOY007", ops=["Neg"])(double_neg.generate)
    double_neg_too.examples = [Silent("one", G + " { y = Neg(x) }", differs={"renamed": "it does not"})]
    with pytest.raises(AssertionError, match=r"TOY007 \(one\), renamed: is declared to differ"):
        check_contexts(double_neg_too)


NESTED = """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
    g (float[2] x, bool c, float[2] d) => (float[2] y, float[2] x) <float[2] w = {1, 2}, float[2] d = {0, 0}> {
        [n] a = Add(x, w)
        [n] y = If(c)<then_branch = p () => (float[2] u) <float[2] k = {3, 4}> { a = Mul(x, k)  u = my.F(a) },
                      else_branch = q () => (float[2] v) { v = Sub(a, d) }> }
    <domain: "my", opset_import: ["" : 18]> F (a) => (b) { c = Exp(a)  b = Neg(c) }"""


def nested() -> ModelProto:
    return model_of(Silent("", NESTED))


def test_other_names_are_the_same_graph() -> None:
    """A name that hides another one, what is used in a branch, in a function, and equal names of nodes."""
    other = contexts.renamed(nested())
    assert graph_difference(nested(), other) == ""
    assert [info.name for info in (*other.graph.input, *other.graph.output)] == ["x", "c", "d", "y", "x"]
    assert len({node.name for node in other.graph.node}) == 1
    kept = {"x", "y", "c", "d"}
    old, new = ({name for node in walk.model_nodes(one) for name in node.output} for one in (nested(), other))
    assert old & new <= kept


def test_there_and_back() -> None:
    plain = nested()
    captured = contexts.not_captured(contexts.in_branch(plain, captured=True))
    assert graph_difference(captured, contexts.in_branch(plain)) == ""
    assert graph_difference(contexts.of_known_inputs(contexts.of_unknown_inputs(plain)), plain) == ""


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Cast<to = FLOAT16>(x)", "Cast<to = 10>(x)"),
        ("Cast<to=FLOAT>(x)", "Cast<to=1>(x)"),
        ("<float16 s = {f16(8.0)}>", "<float16 s = {18432}>"),
        ("<float16[3] s = {f16(-0.0, inf), f16(1)}>", "<float16[3] s = {32768, 31744, 15360}>"),
        ("<bfloat16 s = {bf16(1.0)}>", "<bfloat16 s = {16256}>"),
        ('Foo<mode = "FLOAT">(x)', 'Foo<mode = "FLOAT">(x)'),
    ],
)
def test_values_and_types_by_name(text: str, plain: str) -> None:
    assert readable(text) == plain
