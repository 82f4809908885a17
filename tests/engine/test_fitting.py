"""What a fix may make: nodes that ONNX has in the opset of the model or function, for operands of their types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, parser

from onnxfix.errors import ShadowedError
from onnxfix.graph.overlay import Node
from onnxfix.graph.signatures import takes
from onnxfix.model import Model
from onnxfix.rewrite.edits import AddNode, Draft, Edit, RemoveNode, SetAttribute, SetImport
from onnxfix.rewrite.engine import fix
from onnxfix.rewrite.fitting import misfit, refuse_misfit
from onnxfix.rule import Fix, Match, rule
from support import models


def model_of(text: str, opset: int = 19) -> Model:
    return Model(models.model(text, opset))


def made(model: Model, op_type: str, *inputs: str, output: str = "", **attributes: object) -> str:
    """What is wrong with a new node before the main graph's first."""
    draft = Draft(model.main.nodes[0])
    draft.add(op_type, inputs, output=output, **attributes)
    return misfit(model, draft.edits)


@pytest.mark.parametrize(
    "op_type", ["Squeeze", "Unsqueeze", "Transpose", "Concat", "Slice", "Gather", "Where"]
)
@pytest.mark.parametrize("opset", [13, 18, 19, 20, 21, 23, 25])
def test_signatures_are_those_that_the_checker_goes_by(op_type: str, opset: int) -> None:
    """For every type that has a name: onnx refuses what ``takes`` says no to, for its type, and nothing else for it."""
    inputs = {"Slice": "x, a, a", "Gather": "x, a", "Where": "c, x, x", "Unsqueeze": "x, a"}.get(op_type, "x")
    attributes = "<axis = 0>" if op_type == "Concat" else ""
    for name, elem in TensorProto.DataType.items():
        if elem == TensorProto.UNDEFINED:
            continue
        text = f"""<ir_version: 13, opset_import: ["" : {opset}]> g (float[1] x, bool[1] c) => (float[N] y)
            <int64[1] a = {{0}}> {{ y = {op_type}{attributes}({inputs}) }}"""
        proto = models.model(text)
        proto.graph.input[0].type.tensor_type.elem_type = elem
        proto.graph.output[0].type.tensor_type.elem_type = elem
        try:
            onnx.checker.check_model(proto, full_check=True)
            fault = ""
        except onnx.shape_inference.InferenceError as error:
            fault = str(error)
        place = 1 if op_type == "Where" else 0
        assert takes(op_type, opset, elem, place) is ("has unsupported type" not in fault), (name, fault)


PAIR = """g (float[1] x) => (float[1] y) <float s = {0.5}, float8e4m3fn z = {0}> {
    q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"""


def test_a_type_that_the_operator_does_not_take_in_that_opset() -> None:
    assert made(model_of(PAIR), "Squeeze", "q") == "Squeeze does not accept float8e4m3fn in opset 19"
    assert made(model_of(PAIR, 21), "Squeeze", "q") == ""
    assert made(model_of(PAIR), "Reshape", "q", "x") == "Reshape does not accept float in opset 19"
    assert made(model_of(PAIR), "Gelu", "x") == "opset 19 has no Gelu"
    assert made(model_of(PAIR), "Add", "x", "s") == ""
    assert made(model_of(PAIR), "Add", "x", "q") == "Add does not accept float8e4m3fn in opset 19"
    assert made(model_of(PAIR), "Where", "x", "x", "x") == "Where does not accept float in opset 19"


def test_operands_that_must_be_of_one_type() -> None:
    model = model_of("g (float[1] x, double[1] d) => (float[1] y) { y = Neg(x) }")
    assert made(model, "Add", "x", "d") == "Add does not accept float and double together"
    assert made(model, "Pow", "x", "d") == ""


def test_types_are_followed_through_what_the_fix_makes() -> None:
    model = model_of(PAIR)
    for wanted, kinds in (
        ("", [TensorProto.FLOAT]),
        ("Neg does not accept bool in opset 19", [TensorProto.BOOL]),
    ):
        draft = Draft(model.main.nodes[0])
        cast = draft.add("Cast", ["x"], to=kinds[0])
        draft.add("Neg", [draft.add("Identity", [cast])])
        assert misfit(model, draft.edits) == wanted
    draft = Draft(model.main.nodes[0])
    shape = draft.add("Shape", ["x"])
    draft.add("And", [shape, shape])
    assert misfit(model, draft.edits) == "And does not accept int64 in opset 19"
    draft = Draft(model.main.nodes[0])
    draft.add("Or", [draft.constant(np.zeros(1, np.float32)), draft.add("Constant", [], value_int=1)])
    assert misfit(model, draft.edits) == "Or does not accept float in opset 19"


def test_the_opset_is_that_of_the_function() -> None:
    model = model_of("""<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
        g (float8e4m3fn[1] x) => (float8e4m3fn[1] y) { y = f.h(x) }
        <domain: "f", opset_import: ["" : 19]> h (x) => (y) { z = Cast<to = 17>(x)  y = Identity(z) }""")
    draft = Draft(model.functions[0].nodes[1])
    draft.add("Squeeze", ["z"])
    assert misfit(model, draft.edits) == "Squeeze does not accept float8e4m3fn in opset 19"
    assert made(model, "Squeeze", "x") == ""


def test_the_opset_is_that_which_the_fix_brings() -> None:
    model = model_of("g (int32[2] x) => (int32[2] y) { y = Identity(x) }", 12)
    draft = Draft(model.main.nodes[0])
    draft.add("Relu", ["x"])
    assert misfit(model, draft.edits) == "Relu does not accept int32 in opset 12"
    assert misfit(model, [SetImport(model.main, 14), *draft.edits]) == ""


def test_graphs_in_a_new_node() -> None:
    model = model_of("g (float[1] x, bool c) => (float[1] y) { y = Neg(x) }")
    branches = [
        parser.parse_graph(f"{name} () => (float[1] {name}o) {{ {name}o = {op}(x) }}")
        for name, op in (("p", "Abs"), ("q", "Not"))
    ]
    node = helper.make_node("If", ["c"], ["new"], then_branch=branches[0], else_branch=branches[1])
    assert misfit(model, [AddNode(model.main, node)]) == "Not does not accept float in opset 19"
    branches[1].node[0].op_type = "Neg"
    node = helper.make_node("If", ["c"], ["new"], then_branch=branches[0], else_branch=branches[1])
    assert misfit(model, [AddNode(model.main, node)]) == ""


def test_readers_that_get_a_value_of_another_type() -> None:
    model = model_of("g (float[1] x, bool[1] b) => (float[1] y) { a = Abs(x)  n = Neg(a)  y = Exp(n) }")
    [_, neg, exp] = model.main.nodes
    draft = Draft(neg)
    draft.set_input(neg, 0, "b")
    assert misfit(model, draft.edits) == "Neg does not accept bool in opset 19"
    draft = Draft(exp)
    draft.replace_uses(model.main.values["a"], "b")
    assert misfit(model, draft.edits) == "Neg does not accept bool in opset 19"
    draft.edits.clear()
    draft.replace_uses(model.main.values["a"], "x")
    assert misfit(model, draft.edits) == ""


def test_what_stays_may_get_another_type() -> None:
    """A Transpose of bytes that becomes one of floats, and what is made of it: nothing is held against the old type."""
    model = model_of("""g (uint8[1,2] x) => (float[2,1] y) {
        t = Transpose(x)  i = Identity(t)  c = Cast<to = 1>(i)  y = Neg(c) }""")
    first, last = model.main.nodes[0], model.main.nodes[3]
    draft = Draft(first)
    draft.set_input(first, 0, draft.add("Cast", ["x"], to=TensorProto.FLOAT))
    later = Draft(last, draft.edits, draft._names)
    half = later.constant(np.array(0.5, np.float32))
    later.add("Add", ["i", half])
    assert misfit(model, draft.edits) == ""
    assert misfit(model, draft.edits[2:]) == "Add does not accept uint8 and float together"
    to = helper.make_attribute("to", int(TensorProto.DOUBLE))
    alone = [SetAttribute(model.main.nodes[2], "to", to), *_added(model, "Add", "c", half)]
    assert misfit(model, [*draft.edits[2:3], *alone]) == ""


def _added(model: Model, op_type: str, *inputs: str) -> list[Edit]:
    draft = Draft(model.main.nodes[3])
    draft.add(op_type, inputs)
    return draft.edits


def test_what_was_wrong_before_may_stay_so() -> None:
    """A model that onnx's checker refuses is not one that a fix has to mend."""
    model = model_of("g (float8e4m3fn[1] x) => (float8e4m3fn[1] y) { y = Squeeze(x) }")
    node = model.main.nodes[0]
    again = helper.make_node("Squeeze", ["x"], ["y"], name="again")
    assert misfit(model, [RemoveNode(node), AddNode(model.main, again)]) == ""
    assert misfit(model, [AddNode(model.main, helper.make_node("Squeeze", ["x"], ["z"]))]) != ""


def test_what_is_not_known_is_taken_for_right() -> None:
    model = model_of("""<ir_version: 10, opset_import: ["" : 19, "f" : 1]>
        g (float[1] x) => (float[1] y) { u = f.Squeeze(x)  y = Neg(u) }
        <domain: "f", opset_import: ["" : 19]> Squeeze (x) => (y) { y = Neg(x) }""")
    assert made(model, "Not", "u") == "Not does not accept float in opset 19"
    draft = Draft(model.main.nodes[1])
    draft.add("Not", [draft.add("Squeeze", ["x"], domain="f")])
    assert misfit(model, draft.edits) == ""
    refers = helper.make_node("Cast", ["x"], ["new"])
    refers.attribute.append(AttributeProto(name="to", ref_attr_name="kind", type=AttributeProto.INT))
    after = helper.make_node("Not", ["new"], ["more"])
    assert misfit(model, [AddNode(model.main, refers), AddNode(model.main, after)]) == ""


@rule("TOY001", ops=["DequantizeLinear"])
def careless(node: Node, model: Model) -> Iterator[Match]:
    """Squeezes what is dequantized, in whatever opset."""
    maker = node.inputs[0].producer if node.inputs[0] is not None else None
    if maker is None or maker.op_type == "Squeeze":
        return
    draft = Draft(node)
    draft.set_input(node, 0, draft.add("Squeeze", [node.inputs[0]]))
    yield Match("not squeezed", node=node, fix=Fix("squeeze it", draft.edits))


@pytest.mark.parametrize(("opset", "done"), [(19, False), (21, True)])
def test_the_engine_refuses_such_a_fix_and_says_so(opset: int, done: bool) -> None:
    model = model_of(PAIR, opset)
    before = model.proto.SerializeToString()
    run = fix(model, [careless])
    assert bool(run.applied) is done
    assert (model.proto.SerializeToString() == before) is not done
    told = [] if done else ["TOY001 at y: Squeeze does not accept float8e4m3fn in opset 19"]
    assert [str(one) for one in run.problems] == told
    assert len(run.remaining) == (not done)


@pytest.mark.parametrize(
    ("ir_version", "opset", "kind", "wrong"),
    [(3, 8, np.int64, True), (3, 8, np.float32, False), (3, 9, np.int64, False), (4, 8, np.int64, False)],
)
def test_integers_that_only_a_node_can_hold_need_opset_9(
    ir_version: int, opset: int, kind: type, wrong: bool
) -> None:
    model = model_of("g (float[N] x) => (float[N] y) { y = Neg(x) }", opset)
    model.proto.ir_version = ir_version
    draft = Draft(model.main.nodes[0])
    draft.constant(np.zeros(1, kind))
    with pytest.raises(ShadowedError, match="no constant of the type") if wrong else nullcontext():
        refuse_misfit(model, draft.edits)
