"""What a pass keeps for the next node that asks the same changes nothing of what it finds, before and after edits."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress

import pytest
from onnx import ModelProto, TensorProto, helper

from onnxfix.errors import EditError
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.rewrite import edits as ed
from onnxfix.rewrite.transaction import Transaction
from support.lanes import seeds
from support.shape_models import random_model
from support.shape_oracle import parse


def said(model: Model) -> dict[str, str]:
    """All that is known of every value, in words."""
    shapes = model.shapes
    found = {
        f"{scope.path} / {name}": repr(shapes.info(value))
        for scope in model.scopes
        for name, value in scope.values.items()
    }
    return found | {"symbols": repr(shapes.symbols)}


def afresh(model: Model) -> dict[str, str]:
    """The same of a copy of the model, of which nothing was known before."""
    copy = ModelProto()
    copy.CopyFrom(model.proto)
    return said(Model(copy))


def random_edit(model: Model, rng: random.Random) -> list[ed.Edit]:
    """A change that leaves an acyclic graph: of an input, an attribute, a producer, or of which nodes there are."""
    nodes = model.main.topological()
    node = rng.choice(nodes)
    before = nodes[: nodes.index(node)]
    known = ["x", "k", "w", *(v.name for other in before for v in other.outputs if v is not None)]
    kind = rng.choice(["input", "attribute", "add", "replace", "remove"])
    if kind == "input" and node.inputs:
        return [ed.SetInput(node, rng.randrange(len(node.inputs)), rng.choice(known))]
    if kind == "attribute":
        name, value = rng.choice([("axis", 1), ("axis", 0), ("to", 7), ("keepdims", 0)])
        return [ed.SetAttribute(node, name, helper.make_attribute(name, value))]
    if kind == "add":
        op, count = rng.choice(
            [("Neg", 1), ("Shape", 1), ("NonZero", 1), ("Add", 2), ("Gather", 2), ("Reshape", 2)]
        )
        new = helper.make_node(op, rng.choices(known, k=count), [f"new{len(model.names)}"])
        return [ed.AddNode(model.main, new, node), ed.SetInput(node, 0, new.output[0])]
    output = node.outputs[0]
    assert output is not None
    return [ed.ReplaceUses(output, rng.choice(known))] if kind == "replace" else [ed.RemoveNode(node)]


@pytest.mark.parametrize("seed", seeds(40))
def test_a_pass_after_random_edits_finds_what_a_first_one_does(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(random_model(seed))
    assert said(model) == afresh(model)
    for _ in range(6):
        transaction = Transaction(model)
        for _ in range(3):
            with suppress(EditError):
                transaction.apply(random_edit(model, rng))
                break  # the next one sees the order that closing makes
        transaction.close()
        assert said(model) == afresh(model)


def node_of(model: Model, output: str) -> Node:
    node = model.main.values[output].producer
    assert node is not None
    return node


def test_what_makes_a_symbol_makes_its_own_each_time() -> None:
    model = Model(parse("g (float[N,4] x) => (float[] y) { a = NonZero(x) b = NonZero(x) y = Identity(a) }"))
    for _ in range(2):
        texts = [str(dim) for name in "ab" for dim in model.shapes.shape(model.main.values[name]) or ()]
        assert texts == ["2", "a.1", "2", "b.1"]
        model.invalidate()


def test_attributes_of_a_function_are_those_of_each_call() -> None:
    model = Model(
        parse(
            """g (float[N,4] x) => (float[] y) { a = f.cat<axis=0>(x) b = f.cat<axis=1>(x) y = f.cat<axis=0>(x) }
            <domain: "f", opset_import: ["" : 17]> cat <axis> (v) => (w) { w = Concat<axis: int = @axis>(v, v) }""",
            extra=', "f" : 1',
        )
    )
    texts = [[str(d) for d in model.shapes.shape(model.main.values[name]) or ()] for name in "aby"]
    assert texts == [["2*N", "4"], ["N", "8"], ["2*N", "4"]]


def test_another_attribute_is_another_question_whether_or_not_the_fix_is_refused() -> None:
    model = Model(parse("g (float[N] x) => (int32[N] y) { y = Cast<to = 6>(x) }"))
    node, output = node_of(model, "y"), model.main.values["y"]
    for kind, refused in ((TensorProto.INT64, False), (TensorProto.BOOL, True)):
        said(model)
        transaction = Transaction(model)
        edits: list[ed.Edit] = [ed.SetAttribute(node, "to", helper.make_attribute("to", kind))]
        with pytest.raises(EditError) if refused else nullcontext():
            transaction.apply([*edits, ed.SetInput(node, 0, "nowhere" if refused else "x")])
        transaction.close()
        assert model.shapes.elem_type(output) == TensorProto.INT64


def test_another_opset_is_another_question() -> None:
    text = "g (float[N,4,2] x) => (float[] y) { y = Softmax<axis=1>(x) a = Mul(x, x) b = ReduceMax(x) }"
    model = Model(parse(text, opset=12))
    assert said(model) == afresh(model)
    transaction = Transaction(model)
    transaction.apply([ed.SetImport(model.main, 13)])
    transaction.close()
    assert {node.opset for node in model.nodes()} == {13}
    assert said(model) == afresh(model)


def test_operators_of_two_versions_ask_different_questions() -> None:
    body = "g (float[N,1] x, float[1,3] z) => (float[] a, float[] b) { a = Add(x, z) b = f.old(x, z) }"
    model = Model(
        parse(
            f'{body} <domain: "f", opset_import: ["" : 6]> old (v, w) => (u) {{ u = Add(v, w) }}',
            extra=', "f" : 1',
        )
    )
    # Up to opset 6 the second operand is repeated, never the first.
    assert [dims(model, name) for name in "ab"] == ["N, 3", "N, 1"]
    transaction = Transaction(model)
    transaction.apply([ed.SetImport(model.main, 6)])
    transaction.close()
    assert [dims(model, name) for name in "ab"] == ["N, 1", "N, 1"]


def dims(model: Model, name: str) -> str:
    return ", ".join(str(dim) for dim in model.shapes.shape(model.main.values[name]) or ())
