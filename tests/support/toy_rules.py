"""Rules in place of the installed ones: one that is right, and some whose fixes are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.rewrite.edits import Draft
from onnxfix.rewrite.registry import Registry
from onnxfix.rule import Fix, Match, Rule, Safety, rule


def use(monkeypatch: pytest.MonkeyPatch, rules: Sequence[Rule]) -> None:
    monkeypatch.setattr("onnxfix.verbs.job.registry", lambda: Registry(tuple(rules), ()))


def swap(node: Node, op_type: str, safety: Safety = Safety.EXACT) -> Match:
    draft = Draft(node)
    draft.remove(node)
    draft.add(op_type, [node.input(0)], output=node.first_output)
    return Match("swap", node=node, fix=Fix(f"make it {op_type}", draft.edits, safety))


@rule("AAA001", ops=["Identity"], safety=Safety.EXACT)
def identity(node: Node, model: Model) -> Iterator[Match]:
    """A correct rule."""
    draft = Draft(node)
    draft.bypass(node, node.require(0))
    yield Match("Identity", node=node, fix=Fix("drop it", draft.edits))


@rule("BBB001", ops=["Abs"], safety=Safety.EXACT)
def wrong_abs(node: Node, model: Model) -> Iterator[Match]:
    """Wrong for negative values, and says it is exact."""
    yield swap(node, "Identity")


@rule("BBB003", ops=["Sqrt"], safety=Safety.UNSAFE)
def unsafe_sqrt(node: Node, model: Model) -> Iterator[Match]:
    """Wrong everywhere, and says so."""
    yield swap(node, "Exp", Safety.UNSAFE)


@rule("BBB005", ops=["Sqrt"], safety=Safety.UNSAFE)
def unsafe_invalid(node: Node, model: Model) -> Iterator[Match]:
    """Makes a model that the checker refuses: a Concat without its axis."""
    yield swap(node, "Concat", Safety.UNSAFE)
