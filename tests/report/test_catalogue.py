"""What the docs say of a rule beside its own text: facts from its examples and docstring, its row, its page."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from onnxfix.errors import OnnxfixError
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.report.render.rules import rule_markdown
from onnxfix.rule import Fix, Fixed, Flagged, Match, Safety, Severity, Silent, rule
from test_docs import faults, maker


@rule("TOY001", ops=["Neg", "Exp"], severity=Severity.WARNING, default=False)
def toy_pattern(node: Node, model: Model) -> Iterator[Match]:
    """A toy | with a pipe.

    ## Why it matters
    Measured with TensorRT-RTX 1.7.1 and TensorRT 8.6 to 10.x: ``Wants `a | b` at this place``, `Add(x[N,4] and more of
    it here)`, `2 ** 24`. See `x + y`.

    ## Fix
    None before 9.0.

    ## References
    - NVIDIA/TensorRT issues 12, 34 and 56; onnxruntime #78, PR 9; https://github.com/microsoft/onnxruntime/issues/78
    - https://onnx.ai/onnx/operators/onnx__Neg.html, https://onnx.ai/onnx/operators/onnx__Neg.html.
    """
    if node.op_type == "Exp" and model.target.name == "trt8.6":
        yield Match("in 8.6 only", node=node, severity=Severity.ERROR, fix=Fix("mend", [], Safety.UNSAFE))
    elif node.op_type == "Neg" and model.target.name != "rtx":
        yield Match("everywhere else", node=node)


toy_pattern.examples = [
    Flagged("two", "g (float[2] x) => (float[2] y) { a = Neg(x)  b = Exp(x)  y = Add(a, b) }"),
    Silent("near miss", "g (float[2] x) => (float[2] y) { y = Abs(x) }"),
]


def test_facts_come_from_the_examples_under_each_target() -> None:
    facts = maker().facts_of(toy_pattern)
    both, one = (Severity.ERROR, Severity.WARNING), (Severity.WARNING,)
    assert facts.severities == {
        "trt8.4": one,
        "trt8.6": both,
        "trt10.6": one,
        "trt10": one,
        "trt11": one,
        "rtx": (),
    }
    assert (facts.safeties, facts.unfixed, maker().fixes(facts)) == ((Safety.UNSAFE,), True, "unsafe or none")
    assert (facts.found, facts.silent) == (1, 1)
    assert maker().facts_of(toy_pattern) == facts


def test_facts_come_from_the_docstring() -> None:
    facts = maker().facts_of(toy_pattern)
    assert facts.versions == ("RTX 1.7.1", "8.6 to 10.x")
    assert facts.measured
    assert facts.quote == "Wants `a | b` at this place"
    nvidia = "https://github.com/NVIDIA/TensorRT/issues/"
    assert [(link.label, link.url) for link in facts.links] == [
        ("NVIDIA/TensorRT #12", f"{nvidia}12"),
        ("NVIDIA/TensorRT #34", f"{nvidia}34"),
        ("NVIDIA/TensorRT #56", f"{nvidia}56"),
        ("microsoft/onnxruntime #78", "https://github.com/microsoft/onnxruntime/issues/78"),
        ("ONNX Neg", "https://onnx.ai/onnx/operators/onnx__Neg.html"),
    ]


@pytest.mark.parametrize("before", ["no model", "g (float[2] x) => (float[2] y) { y = Neg(x) }"])
def test_an_example_that_cannot_be_run_is_named(before: str) -> None:
    @rule("TOY005", ops=["Neg"])
    def failing(node: Node, model: Model) -> Iterator[Match]:
        """Fails."""
        raise ZeroDivisionError("of its own\nmaking")
        yield

    failing.examples = [Flagged("the one", before)]
    with pytest.raises(OnnxfixError, match=r"^rule TOY005, example 'the one': \w+Error: .*$"):
        maker().facts_of(failing)


def test_a_row_stays_one_row() -> None:
    text = maker().rules_markdown([toy_pattern], [maker().facts_of(toy_pattern)])
    assert faults(text) == []
    row = text.splitlines()[-1]
    assert (
        "| toy-pattern (off by default) | warning | error, warning | warning | warning | warning | – | unsafe or none |"
        in row
    )
    assert "``Wants `a \\| b` at this place``, measured, [NVIDIA/TensorRT #12](https://" in row


def test_a_page_shows_some_of_both_kinds_of_examples() -> None:
    found = [Flagged(f"found {n}", "g () => () {}") for n in range(9)]
    silent = [Silent(f"silent {n}", "g () => () {}") for n in range(2)]

    @rule("TOY002")
    def many(node: Node, model: Model) -> Iterator[Match]:
        """Many."""
        yield from ()

    many.examples = [*silent, *found]

    def shown(most: int | None) -> list[str]:
        return re.findall(r"### (\w+ \d)", rule_markdown(many, most))

    assert shown(None) == [e.why for e in many.examples] == shown(11)
    assert shown(6) == ["silent 0", "silent 1", "found 0", "found 1", "found 2", "found 3"]
    assert shown(2) == ["silent 0", "found 0"]


def test_an_example_says_what_it_needs() -> None:
    example = Fixed("why", "g (float x) => (float y) {\n        y = Neg(x) }", after="g ...", opset=13,
                      target="trt8.6", safety=Safety.NUMERIC)  # fmt: skip

    @rule("TOY003")
    def needy(node: Node, model: Model) -> Iterator[Match]:
        """Needy."""
        yield from ()

    needy.examples = [example]

    text = rule_markdown(needy)
    assert "### why (opset 13, for trt8.6, `--numeric-fixes`)" in text
    assert "```text\ng (float x) => (float y) {\ny = Neg(x) }\n```" in text
