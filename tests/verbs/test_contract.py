"""The contract after an apply: what counts as a change of a node, and that comparing costs what the graph costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfix.files import loading, walk
from onnxfix.verbs import contract
from support.models import of_opset
from support.nested_models import nested

CHAIN = "g (float[N] x) => (float[N] y) { a = Exp(x)  b = Neg(a)  c = Exp(b)  d = Abs(c)  y = Exp(d) }"


text = of_opset(18)


def test_a_change_deep_inside_is_that_of_its_node_alone() -> None:
    before, after = nested(30), nested(30)
    graph = after.graph
    while graph.node[0].op_type == "If":
        graph = graph.node[0].attribute[1].g
    graph.node[0].op_type = "Exp"
    assert contract.untouched_changes(before, before, frozenset()) == []
    said = contract.untouched_changes(before, after, frozenset())
    assert said == ["node of o30 changed although no fix touched it"] * 2  # as it was, and as it is
    assert contract.untouched_changes(before, after, frozenset({"o30"})) == []


def test_branches_that_changed_places_are_a_change_of_their_node() -> None:
    before, after = nested(2), nested(2)
    one, other = (attribute.g for attribute in after.graph.node[0].attribute)
    copy = walk.copied(one)
    one.CopyFrom(other)
    other.CopyFrom(copy)
    said = contract.untouched_changes(before, after, frozenset())
    assert said == ["node of o0 changed although no fix touched it"] * 2
    assert contract.untouched_changes(before, after, frozenset({"o0"})) == []


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
        lambda node: setattr(node.attribute[0].g.output[0], "name", "x"),
        lambda node: node.metadata_props.add(key="k", value="v"),
    ],
)
def test_every_change_of_a_node_that_holds_graphs_is_seen(change: object) -> None:
    before, after = nested(2), nested(2)
    assert callable(change)
    change(after.graph.node[0])
    assert contract.untouched_changes(before, after, frozenset())
    assert contract.untouched_changes(before, after, frozenset({"o0"})) == []


def test_where_a_default_says_to_be_is_no_change() -> None:
    """onnx.load says of data in the model that they are there, which is what says nothing, too."""
    first = text("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    first.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    second = walk.copied(first)
    second.graph.initializer[0].data_location = onnx.TensorProto.DEFAULT
    assert contract.interface_changes(first, second) == contract.interface_changes(second, first) == []
    second.graph.initializer[0].raw_data = np.zeros(2, np.float32).tobytes()
    assert contract.interface_changes(first, second) == ["the default of input 'w' was changed or removed"]


def test_a_negative_size_may_become_an_unknown_one() -> None:
    first = text("g (float[2,3] x) => (float[-1,3] y) { y = Neg(x) }")
    same, other = (text(f"g (float[2,3] x) => (float[{size},3] y) {{ y = Neg(x) }}") for size in ("?", "2"))
    assert contract.interface_changes(first, same) == []
    assert contract.interface_changes(first, other) == ["output 'y' is declared differently"]


@pytest.mark.parametrize("size", [0, 1 << 18], ids=["both stay in their files", "one is read"])
def test_weights_of_two_files_are_compared_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Those that lie outside of the graph too: in the defaults of a function's attributes and training graphs."""
    weight = numpy_helper.from_array(np.arange(900, dtype=np.float32), "w")
    model = text(CHAIN)
    model.training_info.add().algorithm.initializer.append(weight)
    model.functions.add(name="f", domain="d").attribute_proto.add(name="a", type=4).t.CopyFrom(weight)
    model.metadata_props.add(key="k", value="v")
    paths, found = [tmp_path / name for name in ("a", "b", "c")], []
    monkeypatch.setattr(loading, "SMALL", 0)
    for path in paths:
        if path.name == "c":
            weight.raw_data = weight.raw_data[:-1] + b"!"
            model.training_info[0].algorithm.initializer[0].CopyFrom(weight)
            model.functions[0].attribute_proto[0].t.CopyFrom(weight)
        path.write_bytes(model.SerializeToString())
        found.append(loading.load(path))
        monkeypatch.setattr(loading, "SMALL", size)
    first, same, other = (one.proto for one in found)
    assert contract.interface_changes(first, same) == []
    said = ["model field 'training_info' changed", "function 'f': 'attribute_proto' changed"]
    assert contract.interface_changes(first, other) == said
    same.training_info.add()
    same.metadata_props[0].value = "w"
    said = ["model field 'training_info' changed", "model field 'metadata_props' changed"]
    assert contract.interface_changes(first, same) == said


def test_unknown_groups_are_compared_by_what_is_in_them() -> None:
    """Field 1000 as a group (its tags are c3 3e and c4 3e) that holds field 1: each time it is read another object."""
    models = [text(CHAIN) for _ in range(3)]
    for model, number in zip(models, (1, 1, 2), strict=True):
        for message in (model, model.graph):
            message.MergeFromString(b"\xc3\x3e\x08" + bytes([number]) + b"\xc4\x3e")
    assert contract.interface_changes(models[0], models[1]) == []
    said = ["model field 'unknown fields' changed", "graph field 'unknown fields' changed"]
    assert contract.interface_changes(models[0], models[2]) == said


def test_a_node_that_stands_there_twice_counts_twice() -> None:
    before = text(CHAIN)
    after = walk.copied(before)
    after.graph.node.append(after.graph.node[1])
    assert contract.untouched_changes(before, after, frozenset()) == [
        "node of b changed although no fix touched it"
    ]
    assert len(contract.untouched_changes(after, before, frozenset())) == 1


def test_an_output_may_get_the_type_that_it_lacks_and_no_other() -> None:
    untyped = text("g (float[2] x) => (y, float[2] z) { y = Neg(x)  z = Abs(x) }")
    typed = text("g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x)  z = Abs(x) }")
    half = text("g (float[2] x) => (float[2] y, float16[2] z) { y = Neg(x)  z = Abs(x) }")
    assert contract.interface_changes(untyped, typed) == []
    assert contract.interface_changes(typed, untyped) == ["output 'y' is declared differently"]
    assert contract.interface_changes(untyped, half) == ["output 'z' is declared differently"]


@pytest.mark.parametrize(("old", "new"), [(6, 8), (7, 6), (5, 6), (8, 7)])
def test_only_an_operator_set_before_7_may_become_7(old: int, new: int) -> None:
    one, other, seven = (
        of_opset(version)("g (float[2] x) => (float[2] y) { y = Neg(x) }") for version in (old, new, 7)
    )
    assert contract.interface_changes(one, other) == ["model field 'opset_import' changed"]
    assert (contract.interface_changes(one, seven) == []) == (old < 8)
