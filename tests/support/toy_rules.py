"""Rules in place of the installed ones: one that is right, and those that write one operator for another."""

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


def writes(code: str, op_type: str, other: str, safety: Safety = Safety.EXACT) -> Rule:
    """A rule that makes another operator of one, and claims this safety of it."""

    @rule(code, ops=[op_type], safety=safety)
    def swap(node: Node, model: Model) -> Iterator[Match]:
        """One operator for another."""
        draft = Draft(node)
        draft.remove(node)
        draft.add(other, [node.input(0)], output=node.first_output)
        yield Match("swap", node=node, fix=Fix(f"make it {other}", draft.edits, safety))

    return swap


def drops(code: str, op_type: str) -> Rule:
    """A rule that lets who reads an operator's output read its input; of Identity, that is right."""

    @rule(code, ops=[op_type], safety=Safety.EXACT)
    def drop(node: Node, model: Model) -> Iterator[Match]:
        """One operator that goes."""
        draft = Draft(node)
        draft.bypass(node, node.require(0))
        yield Match(op_type, node=node, fix=Fix("drop it", draft.edits))

    return drop


identity = drops("AAA001", "Identity")
wrong_abs = writes("BBB001", "Abs", "Identity")  # for negative values
unsafe_sqrt = writes("BBB003", "Sqrt", "Exp", Safety.UNSAFE)
unsafe_invalid = writes("BBB005", "Sqrt", "Concat", Safety.UNSAFE)  # the checker refuses it without its axis
