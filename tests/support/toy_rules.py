"""Rules whose fixes are wrong, in place of the installed ones."""

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


@rule("BBB005", ops=["Sqrt"], safety=Safety.UNSAFE)
def unsafe_invalid(node: Node, model: Model) -> Iterator[Match]:
    """Makes a model that the checker refuses: a Concat without its axis."""
    yield swap(node, "Concat", Safety.UNSAFE)
