"""GRA011 and GRA012: what tells constants apart, long chains, beside all other rules, and in linear time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.rewrite import engine
from onnxfix.rewrite.engine import FixRun
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed, model_of, overlay
from support import ort
from support.models import floats, of_nodes, of_opset
from support.patience import processor_seconds

RULES = {rule.code: rule for rule in registry().rules if rule.code in ("GRA011", "GRA012")}
MERGE, IDENTITY = RULES["GRA011"], RULES["GRA012"]


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
        shapes = [helper.make_node("Shape", [source], [name]) for source, name in ("ay", "bz")]
        outputs = {name: (TensorProto.INT64, [None]) for name in "yz"}
        assert kinds
        found = findings(MERGE, of_nodes([*constants, *shapes], {}, outputs, ir_version=10))
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
        indexed = overlay(of_nodes(made, floats(x=[2]), floats(**{name: [2] for name in outputs})))
        return processor_seconds(lambda: engine.check(indexed, [MERGE]), 1)

    few, many = (min(spent(count) for _ in range(3)) for count in (1000, 8000))
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
