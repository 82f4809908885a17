"""The contract after an apply: what counts as a change of a node, and that comparing costs what the graph costs."""

from __future__ import annotations

import pytest
from onnx import ModelProto, parser

from nested_models import nested
from onnxfix import contract

HEADER = '<ir_version: 10, opset_import: ["" : 18]>\n'
CHAIN = "g (float[N] x) => (float[N] y) { a = Exp(x)  b = Neg(a)  c = Exp(b)  d = Abs(c)  y = Exp(d) }"


def text(source: str) -> ModelProto:
    return parser.parse_model(HEADER + source)


def test_nodes_with_subgraphs_are_compared_without_what_is_in_them() -> None:
    """A node counts by its own bytes: with those of its subgraphs the sum would be quadratic in depth."""
    sizes = [_bytes_compared(nested(depth)) for depth in (20, 40)]
    assert sizes[1] < 2.2 * sizes[0]


def _bytes_compared(model: ModelProto) -> int:
    items = contract._Bodies(model).nodes
    return sum(len(item) if isinstance(item, bytes) else sum(map(len, item[1])) for item in items)


def test_a_change_deep_inside_is_that_of_its_node_alone() -> None:
    before, after = nested(30), nested(30)
    graph = after.graph
    while graph.node[0].op_type == "If":
        graph = graph.node[0].attribute[1].g
    graph.node[0].op_type = "Exp"
    assert contract.untouched_changes(before, before, frozenset()) == []
    said = contract.untouched_changes(before, after, frozenset())
    assert said == ["node of o30 changed though no fix touched it"] * 2  # as it was, and as it is
    assert contract.untouched_changes(before, after, frozenset({"o30"})) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda node: setattr(node, "name", "other"),
        lambda node: setattr(node, "doc_string", ""),
        lambda node: setattr(node.attribute[0], "doc_string", "said"),
        lambda node: setattr(node.attribute[0], "name", "other"),
        lambda node: node.attribute.add(name="more", type=2, i=1),
        lambda node: node.attribute.add(name="more").t.SetInParent(),
        lambda node: node.MergeFromString(b"\xfa\x7f\x01?"),
        lambda node: node.attribute[0].MergeFromString(b"\xfa\x7f\x01?"),
        lambda node: node.input.append("x"),
        lambda node: node.metadata_props.add(key="k", value="v"),
    ],
)
def test_every_change_of_a_node_that_holds_graphs_is_seen(change: object) -> None:
    before, after = nested(2), nested(2)
    assert callable(change)
    change(after.graph.node[0])
    assert contract.untouched_changes(before, after, frozenset())
    assert contract.untouched_changes(before, after, frozenset({"o0"})) == []


def test_a_node_that_stands_there_twice_counts_twice() -> None:
    before = text(CHAIN)
    after = ModelProto()
    after.CopyFrom(before)
    after.graph.node.append(after.graph.node[1])
    assert contract.untouched_changes(before, after, frozenset()) == [
        "node of b changed though no fix touched it"
    ]
    assert len(contract.untouched_changes(after, before, frozenset())) == 1
