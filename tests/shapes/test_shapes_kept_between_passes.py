"""What a pass keeps for the next one, or for the next node that asks the same, changes nothing of what it finds."""

from __future__ import annotations

import random
from contextlib import nullcontext

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from onnxfix.errors import EditError
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.rewrite import edits as ed
from onnxfix.rewrite.transaction import Transaction
from onnxfix.shapes.symbols import constant
from support.lanes import seeds
from support.shape_oracle import parse

OPERATORS: list[tuple[str, int, int, dict[str, list[int]]]] = [
    # operator, inputs, outputs, attributes with the values to choose from
    ("Neg", 1, 1, {}), ("Add", 2, 1, {}), ("Mul", 2, 1, {}), ("MatMul", 2, 1, {}),
    ("Transpose", 1, 1, {}), ("Concat", 2, 1, {"axis": [0, 1, -1]}), ("Flatten", 1, 1, {"axis": [0, 1]}),
    ("Shape", 1, 1, {"start": [0, 1]}), ("Size", 1, 1, {}), ("Gather", 2, 1, {"axis": [0, 1]}),
    ("Reshape", 2, 1, {"allowzero": [0, 1]}), ("Expand", 2, 1, {}), ("NonZero", 1, 1, {}), ("Unique", 1, 3, {}),
    ("Split", 1, 2, {"axis": [0, 1]}), ("Dropout", 1, 2, {}), ("TopK", 2, 2, {}), ("ConstantOfShape", 1, 1, {}),
    ("Cast", 1, 1, {"to": [1, 6, 7, 9]}), ("Unsqueeze", 2, 1, {}), ("ReduceSum", 1, 1, {"keepdims": [0, 1]}),
]  # fmt: skip


class Maker:
    """Random graphs, many of their calls invalid: a pass says something of every graph that can be indexed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def node(self, known: list[str], depth: int = 0) -> NodeProto:
        if depth < 2 and self.rng.random() < 0.1:
            branches = {}
            for key in ("then_branch", "else_branch"):
                nodes = self.nodes([*known], 2, depth + 1)
                output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
                branches[key] = helper.make_graph(nodes, key, [], [output])
            return helper.make_node("If", ["c"], [self.name()], **branches)
        op, inputs, outputs, attributes = self.rng.choice(OPERATORS)
        names = [self.name()] + [self.name() if self.rng.random() < 0.6 else "" for _ in range(outputs - 1)]
        chosen = {
            key: self.rng.choice(values) for key, values in attributes.items() if self.rng.random() < 0.7
        }
        return helper.make_node(op, self.rng.choices(known, k=inputs), names, **chosen)

    def nodes(self, known: list[str], count: int, depth: int = 0) -> list[NodeProto]:
        made = []
        for _ in range(count):
            made.append(self.node(known, depth))
            known.extend(name for name in made[-1].output if name)
        return made

    def model(self) -> ModelProto:
        weights = [
            helper.make_tensor("two", TensorProto.INT64, [2], [0, -1]),
            helper.make_tensor("one", TensorProto.INT64, [], [1]),
            helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0, 0.0, -0.0, 2.0]),
            helper.make_tensor("again", TensorProto.FLOAT, [4], [1.0, 0.0, 0.0, 2.0]),
        ]
        inputs = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ]
        nodes = self.nodes(["x", "x", "i", *(weight.name for weight in weights)], 25)
        output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "g", inputs, [output], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


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


def random_edit(model: Model, rng: random.Random, maker: Maker) -> list[ed.Edit]:
    """A change that leaves an acyclic graph: of an input, an attribute, a producer, or of which nodes there are."""
    node = rng.choice(model.main.nodes)
    before = model.main.nodes[: model.main.nodes.index(node)]
    known = ["x", "i", "w", *(v.name for other in before for v in other.outputs if v is not None)]
    kind = rng.choice(["input", "attribute", "add", "replace", "remove"])
    if kind == "input" and node.inputs:
        return [ed.SetInput(node, rng.randrange(len(node.inputs)), rng.choice(known))]
    if kind == "attribute":
        name, value = rng.choice([("axis", 1), ("axis", 0), ("to", 7), ("keepdims", 0)])
        return [ed.SetAttribute(node, name, helper.make_attribute(name, value))]
    if kind == "add":
        new = maker.node(known)
        return [ed.AddNode(model.main, new, node), ed.SetInput(node, 0, new.output[0])]
    output = node.outputs[0]
    assert output is not None
    return [ed.ReplaceUses(output, rng.choice(known))] if kind == "replace" else [ed.RemoveNode(node)]


@pytest.mark.parametrize("seed", seeds(40))
def test_a_pass_after_random_edits_finds_what_a_first_one_does(seed: int) -> None:
    rng = random.Random(seed)
    maker = Maker(rng)
    model = Model(maker.model())
    assert said(model) == afresh(model)
    done = 0
    for _ in range(6):
        transaction = Transaction(model)
        for _ in range(rng.randint(1, 3)):
            try:
                transaction.apply(random_edit(model, rng, maker))
                done += 1
            except EditError:
                continue
            break  # the next one sees the order that closing makes
        transaction.close()
        assert said(model) == afresh(model)
    assert done > 2


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


def test_outputs_that_are_left_out_make_another_question() -> None:
    model = Model(
        parse(
            "g (float[N,4] x) => (float[] y) { a = Dropout(x) b, m = Dropout(x) d, k = Dropout(x) y = Add(a, b) }"
        )
    )
    assert model.shapes.elem_type(model.main.values["m"]) == TensorProto.BOOL
    assert model.shapes.elem_type(model.main.values["k"]) == TensorProto.BOOL


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


def test_weights_of_one_size_differ_by_type() -> None:
    weights = [
        helper.make_tensor(name, kind, dims, bytes(8 * 100), raw=True)
        for name, kind, dims in (("a", TensorProto.DOUBLE, [100]), ("b", TensorProto.INT64, [100]))
    ]
    nodes = [helper.make_node("Neg", [name], [f"n{name}"]) for name in "ab"]
    outputs = [helper.make_tensor_value_info(f"n{name}", TensorProto.FLOAT, None) for name in "ab"]
    graph = helper.make_graph(nodes, "g", [], outputs, weights)
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    known = [model.shapes.elem_type(model.main.values[name]) for name in ("a", "b", "na", "nb")]
    assert known == [TensorProto.DOUBLE, TensorProto.INT64] * 2


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


def test_a_number_of_the_wrong_type_is_no_dimension() -> None:
    assert constant(2) is constant(1 + 1)
    assert type(constant(np.int64(70001)).value) is int
    for wrong in (2.0, 2000.0, "2"):
        with pytest.raises(TypeError):
            constant(wrong)  # type: ignore[arg-type]
