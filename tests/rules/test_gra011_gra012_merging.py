"""GRA011 and GRA012: bit for bit, in any order, beside all other rules, and in linear time."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.rewrite import engine
from onnxfix.rewrite.engine import FixRun
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed, model_of, overlay
from support import ort
from support.lanes import seeds
from support.models import of_opset
from support.patience import processor_seconds

RULES = {rule.code: rule for rule in registry().rules if rule.code in ("GRA011", "GRA012")}
MERGE, IDENTITY = RULES["GRA011"], RULES["GRA012"]
Feed = dict[str, Any]


model = of_opset(18)


def repaired(proto: ModelProto, *rules: Rule) -> tuple[ModelProto, FixRun]:
    """The model after the fixes, in which there is nothing left to fix."""
    result, run = fixed(rules, proto)
    assert not run.problems
    assert not [found for found in run.remaining if found.match.fix is not None]
    assert_interface_kept(proto, result)
    return result, run


def nodes(proto: ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


# -------------------------------------------------------------------------------------------- repeated nodes


def test_two_flattens_of_one_tensor() -> None:
    """A simplifier of today leaves a name that nothing defines."""
    proto = model(
        """g (float[2,3,4] x) => (float[A,B] y, float[A,B] z) {
        a = Flatten<axis = 2>(x)  b = Flatten<axis = 2>(x)  y = Neg(a)  z = Exp(b) }"""
    )
    result, _ = repaired(proto, MERGE)
    assert nodes(result) == ["Flatten", "Neg", "Exp"]
    assert_same_outputs(proto, result)


def test_a_zero_and_a_minus_zero_divide_differently() -> None:
    x = np.array([1, -2], np.float32)
    for second, count in ((0.0, 2), (-0.0, 3)):
        proto = model("g (float[2] x) => (float[2] y) { a = Div(x, z)  b = Div(x, w)  y = Max(a, b) }")
        for name, number in (("z", 0.0), ("w", second)):
            proto.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
        result, run = fixed([MERGE], proto)
        assert (len(result.graph.node), len(run.applied)) == (count, 3 - count)
        assert ort.run(proto, {"x": x})[0].tobytes() == ort.run(result, {"x": x})[0].tobytes()


def test_bits_of_nan_and_types_tell_constants_apart() -> None:
    arrays = [
        np.array([0x7FC00000], np.uint32).view(np.float32),
        np.array([0x7FC00001], np.uint32).view(np.float32),
        np.array([0x7FC00000], np.uint32).view(np.int32),
        np.array([0x7FC00000], np.uint32).view(np.float32).reshape(1, 1),
    ]
    for one, other in itertools.product(arrays, repeat=2):
        constants = [
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
            for name, array in (("a", one), ("b", other))
        ]
        kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in (one, other)]
        graph = helper.make_graph(
            [*constants, helper.make_node("Shape", ["a"], ["y"]), helper.make_node("Shape", ["b"], ["z"])],
            "g",
            [],
            [helper.make_tensor_value_info(name, TensorProto.INT64, [None]) for name in "yz"],
        )
        assert kinds
        found = findings(MERGE, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
        assert bool(found) == (one is other)


def test_how_a_constant_is_stored_does_not_matter_and_its_size_does() -> None:
    """Large ones are told apart by their names: nobody reads a gigabyte to find two that are alike."""
    for size, merged in ((4, True), (1024, True), (1025, False)):
        array = np.arange(size, dtype=np.float32)
        proto = model(
            f"g (float[{size}] x) => (float[{size}] y) {{ a = Add(x, p)  b = Add(x, q)  y = Max(a, b) }}"
        )
        proto.graph.initializer.append(numpy_helper.from_array(array, "p"))
        proto.graph.initializer.append(helper.make_tensor("q", TensorProto.FLOAT, [size], array.tolist()))
        assert proto.graph.initializer[1].float_data
        result, _ = fixed([MERGE], proto)
        assert ("p" in [t.name for t in result.graph.initializer]) is True
        assert (len(result.graph.initializer) == 1) is merged


def test_the_first_keeps_the_name_of_one_graph_output_only() -> None:
    proto = model(
        """g (float[2] x) => (float[2] p, float[2] q, float[2] r) {
        a = Exp(x)  p = Exp(x)  q = Exp(x)  b = Exp(x)  c = Sub(a, b)  r = Mul(c, p) }"""
    )
    result, _ = repaired(proto, MERGE)
    assert nodes(result) == ["Exp", "Exp", "Sub", "Mul"]
    assert_same_outputs(proto, result)


def test_a_long_chain_takes_one_round() -> None:
    lines = "".join(f"  a{k + 1} = Neg(a{k})  b{k + 1} = Neg(b{k})" for k in range(300))
    proto = model(
        f"g (float[2] x) => (float[2] y) {{ a0 = Exp(x)  b0 = Exp(x){lines}  y = Sub(a300, b300) }}"
    )
    result, run = repaired(proto, MERGE)
    assert (len(run.applied), run.rounds) == (1, 2)
    assert len(result.graph.node) == 302


@pytest.mark.slow
@pytest.mark.parametrize("width", ["many of one", "many outputs", "many attributes"])
def test_the_time_grows_with_the_nodes(width: str) -> None:
    def spent(count: int) -> float:
        made = []
        for k in range(count):
            if width == "many attributes":
                made.append(helper.make_node("LeakyRelu", ["x"], [f"a{k}"], alpha=float(k)))
            else:
                made.append(helper.make_node("Exp", ["x"], [f"a{k}"]))
        outputs = [f"a{k}" for k in range(count)] if width == "many outputs" else ["a0"]
        graph = helper.make_graph(
            made,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in outputs],
        )
        indexed = overlay(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
        return processor_seconds(lambda: engine.check(indexed, [MERGE]), 1)

    few, many = (min(spent(count) for _ in range(3)) for count in (2000, 16000))
    assert many < 8 * few * 4 + 0.05


# ------------------------------------------------------------------------------------------------ identities


def test_identities_of_everything_that_a_loop_has_stay_what_they_are() -> None:
    proto = model(
        """g (float[2] x, int64 n) => (float[2] y, float[K,2] z) { i = Identity(n)  s = Identity(x)
        y, z = Loop(i, , s)<body = b (int64 k, bool on, float[2] v) => (bool more, float[2] w, float[2] r) {
            more = Identity(on)  u = Identity(v)  t = Identity(s)  w0 = Add(u, t)  w = Identity(w0)
            r = Identity(w0) }> }"""
    )
    result, _ = repaired(proto, IDENTITY)
    assert nodes(result) == ["Loop"]
    body = result.graph.node[0].attribute[0].g
    assert [node.op_type for node in body.node] == ["Identity", "Add", "Identity"]
    feed = {"x": np.array([1, 2], np.float32), "n": np.array(3)}
    for one, other in zip(ort.run(proto, feed), ort.run(result, feed), strict=True):
        assert one.tobytes() == other.tobytes()


def test_pinned_names_stay() -> None:
    proto = model("g (float[2] x) => (float[2] y) { a = Exp(x)  i = Identity(a)  y = Neg(i) }")
    proto.graph.quantization_annotation.add(tensor_name="i")
    result, _ = fixed([IDENTITY], proto)
    assert [list(node.output) for node in result.graph.node] == [["i"], ["y"]] or nodes(result) == nodes(
        proto
    )
    assert "i" in [name for node in result.graph.node for name in node.output]
    proto = model("g (float[2] x) => (float[2] y) { a = Exp(x)  b = Exp(x)  y = Sub(a, b) }")
    proto.graph.quantization_annotation.add(tensor_name="b")
    assert not findings(MERGE, proto)


def test_opset_1_to_now() -> None:
    for opset in (7, 13, 16, 21, 24):
        proto = model("g (float[2] x) => (float[2] y) { a = Exp(x)  i = Identity(a)  y = Neg(i) }", opset)
        assert nodes(repaired(proto, IDENTITY)[0]) == ["Exp", "Neg"]


# --------------------------------------------------------------------------------- with every other rule


@pytest.mark.corpus
@pytest.mark.parametrize("rule", registry().rules, ids=lambda rule: rule.code)
def test_no_rule_undoes_what_another_does(rule: Rule) -> None:
    """All rules together come to an end on the examples of each, and a second run changes nothing."""
    for example in rule.examples:
        proto = model_of(example)
        result, run = fixed(registry().choose(), proto, safety=example.safety, target=example.target)
        assert not [one for one in run.problems if "undo" in one.text or "fixpoint" in one.text], example.why
        again, more = fixed(registry().choose(), result, safety=example.safety, target=example.target)
        assert not more.applied, example.why
        same = again.SerializeToString(deterministic=True) == result.SerializeToString(deterministic=True)
        assert same, example.why


# ----------------------------------------------------------------------------------------------- random graphs


class Maker:
    """Random graphs full of repetitions and Identities, in branches too."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def graph(self, visible: list[str], depth: int, outputs: int) -> GraphProto:
        known = list(visible)
        made: list[NodeProto] = []
        weights = []
        for value in self.rng.sample([0.0, -0.0, 1.0, 1.0], self.rng.randint(0, 3)):
            weights.append(numpy_helper.from_array(np.array([value], np.float32), self.name()))
            known.append(weights[-1].name)
        for _ in range(self.rng.randint(2, 7)):
            made.append(self.node(known, depth))
            known += made[-1].output
        handed = [self.name() for _ in range(outputs)]
        made += [
            helper.make_node(self.rng.choice(["Neg", "Identity", "Exp"]), [self.rng.choice(known)], [n])
            for n in handed
        ]
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in handed]
        return helper.make_graph(made, self.name(), [], infos, weights)

    def node(self, known: list[str], depth: int) -> NodeProto:
        kind = self.rng.random()
        recent = known[-4:] if self.rng.random() < 0.5 else known
        if kind < 0.15 and depth < 2:
            branches: dict[str, Any] = {
                key: self.graph(known, depth + 1, 1) for key in ("then_branch", "else_branch")
            }
            return helper.make_node("If", ["c"], [self.name()], **branches)
        if kind < 0.35:
            return helper.make_node("Identity", [self.rng.choice(recent)], [self.name()])
        if kind < 0.45:
            value = numpy_helper.from_array(np.array([self.rng.choice([0.0, -0.0, 2.0])], np.float32))
            return helper.make_node("Constant", [], [self.name()], value=value)
        if kind < 0.7:
            return helper.make_node(self.rng.choice(["Neg", "Exp"]), [self.rng.choice(recent)], [self.name()])
        inputs = [self.rng.choice(recent), self.rng.choice(known)]
        return helper.make_node(self.rng.choice(["Sub", "Div", "Max"]), inputs, [self.name()])

    def model(self) -> ModelProto:
        graph = self.graph(["x"], 0, 2)
        graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"]))
        graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        imports = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("seed", seeds(120))
def test_random_graphs_keep_every_bit(seed: int) -> None:
    proto = Maker(seed).model()
    onnx.checker.check_model(proto)
    result, _ = repaired(proto, MERGE, IDENTITY)
    onnx.checker.check_model(result)
    for flag in (False, True):
        for size in (0, 3):
            feed = {"x": np.linspace(-1, 2, size, dtype=np.float32), "c": np.array(flag)}
            for one, other in zip(ort.run(proto, feed), ort.run(result, feed), strict=True):
                assert one.shape == other.shape
                assert one.tobytes() == other.tobytes()
