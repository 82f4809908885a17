"""GRA014: a BatchNormalization becomes weights that are rounded once, or is left alone for a reason that is said.
GRA011 and GRA012: what tells constants apart, long chains, beside all other rules, and in linear time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix import apply
from onnxfix.rewrite import engine
from onnxfix.rewrite.engine import FixRun
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule, Safety
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed, model_of, overlay
from onnxfix_rules.gra import _folded
from onnxfix_rules.gra.gra014_batch_normalization_after_convolution import (
    batch_normalization_after_convolution as GRA014,
)
from support import ort
from support.models import floats, of_nodes, of_opset
from support.patience import processor_seconds

Array = np.ndarray[Any, Any]


def model_with(op: str, weight: Array, channels: int, size: int, axes: int, **attributes: Any) -> ModelProto:
    """``op`` with a bias and a BatchNormalization, parameters drawn, the weight's type throughout."""
    rng = np.random.default_rng(weight.size)
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    drawn = [rng.normal(0, 1, channels) for _ in range(4)] + [rng.uniform(0.3, 3, channels)]
    arrays = dict(zip("asbmv", (array.astype(weight.dtype) for array in drawn), strict=True)) | {"w": weight}
    nodes = [
        helper.make_node(op, ["x", "w", "a"], ["c"], "before", **attributes),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], epsilon=1e-3),
    ]
    inputs = {"x": (kind, [2, size, *[5] * axes])}
    outputs = {"y": (kind, [2, channels, *[f"d{axis}" for axis in range(axes)]])}
    return of_nodes(nodes, inputs, outputs, arrays)


def folded(model: ModelProto) -> ModelProto:
    result, run = fixed([GRA014], model, safety=Safety.NUMERIC)
    assert [item.key.code for item in run.applied] == ["GRA014"], [f.match.message for f in run.remaining]
    assert_interface_kept(model, result)
    onnx.checker.check_model(result)
    return result


def said(model: ModelProto) -> list[str]:
    found = findings(GRA014, model)
    assert all(f.match.fix is None for f in found)
    return [f.match.message.partition(", but ")[2] for f in found]


def constants(model: ModelProto) -> dict[str, Array]:
    return {t.name: np.asarray(numpy_helper.to_array(t)) for t in model.graph.initializer}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_it_is_rounded_once(dtype: Any) -> None:
    weight = np.random.default_rng(5).uniform(0.5, 2, (8, 3, 1, 1)).astype(dtype)
    model = model_with("Conv", weight, 8, 3, 2)
    old, new = ({n: a.astype(np.float64) for n, a in constants(m).items()} for m in (model, folded(model)))
    epsilon = float(np.float32(1e-3))
    factor = old["s"] / np.sqrt(old["v"] + epsilon)
    made = [new[name] for name in sorted(new)]  # bias, weight
    bias = ((old["a"] * factor + (old["b"] - old["m"] * factor)).astype(dtype)).astype(np.float64)
    np.testing.assert_array_equal(made[0], bias)
    product = (old["w"] * factor[:, None, None, None]).astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(made[1], product)


def changed(name: str, value: float, dtype: Any = np.float32) -> ModelProto:
    """A Conv of ones of which one constant's last number is another."""
    model = model_with("Conv", np.ones((2, 2, 1, 1), dtype), 2, 2, 2)
    for tensor in model.graph.initializer:
        if tensor.name == name:
            array = np.array(numpy_helper.to_array(tensor))
            array.reshape(-1)[-1] = value
            tensor.CopyFrom(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["w", "a", "s", "b", "m", "v"])
def test_what_is_not_finite_is_left_alone(name: str, value: float) -> None:
    (reason,) = said(changed(name, value))
    assert reason.endswith("not finite")


@pytest.mark.parametrize(
    ("name", "value", "dtype", "reason"),
    [
        ("v", -1e-9, np.float32, "a variance is negative"),
        ("w", 3.4e38, np.float32, "a weight would exceed float32's range"),
        ("w", -3.4e38, np.float32, "a weight would exceed float32's range"),
        ("w", -6e4, np.float16, "a weight would exceed float16's range"),
        ("w", 6.2e-5, np.float16, ""),
        ("w", 6e-8, np.float16, ""),
        ("m", 6e4, np.float16, "the bias would exceed float16's range"),
        ("b", 3.4e38, np.float32, ""),
        ("w", 1e-40, np.float32, ""),
        ("w", 0.0, np.float16, ""),
        ("v", 0.0, np.float32, ""),
    ],
)
def test_limits(name: str, value: float, dtype: Any, reason: str) -> None:
    model = changed(name, value, dtype)
    factor = 3.3 if "range" in reason else 0.9
    for tensor in model.graph.initializer:
        if tensor.name == "s":
            root = np.sqrt(constants(model)["v"].clip(0).astype(np.float64) + 1e-3)
            tensor.CopyFrom(numpy_helper.from_array((root * factor).astype(dtype), "s"))
    if reason:
        assert said(model) == [reason]
    else:
        folded(model)


@pytest.mark.parametrize("value", [6.2e-5, 6e-8])
def test_a_channel_of_small_weights_is_not_lost(value: float) -> None:
    """Beside a normal number of its channel a lost one does not count; a channel of nothing else is left alone."""
    model = changed("w", value, np.float16)
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            array = np.array(numpy_helper.to_array(tensor))
            array[-1] = value
            tensor.CopyFrom(numpy_helper.from_array(array, "w"))
        elif tensor.name == "s":
            root = np.sqrt(constants(model)["v"].astype(np.float64) + 1e-3)
            tensor.CopyFrom(numpy_helper.from_array((root * 0.9).astype(np.float16), "s"))
    assert said(model) == ["all weights of a channel would become subnormal in float16"]


@pytest.mark.parametrize(
    "others",
    [
        {"s": np.ones(3), "b": np.ones(3), "m": np.ones(3), "v": np.ones(3)},
        {"s": np.ones(1)},
        {"s": np.ones((2, 1)), "b": np.ones((2, 1)), "m": np.ones((2, 1)), "v": np.ones((2, 1))},
        {"a": np.ones(1)},
        {"a": np.ones(2, np.float64)},
        {"w": np.ones((0, 2, 1, 1))},
        {"w": np.ones((2, 2))},
    ],
)
def test_what_does_not_fit_is_left_to_the_checker(others: dict[str, Array]) -> None:
    model = model_with("Conv", np.ones((2, 2, 1, 1), np.float32), 2, 2, 2)
    for tensor in model.graph.initializer:
        if tensor.name in others:
            array = others[tensor.name]
            kept = array if tensor.name == "a" and array.size > 1 else array.astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(kept, tensor.name))
    assert not findings(GRA014, model)
    assert not fixed([GRA014], model)[1].problems


def test_an_epsilon_near_zero() -> None:
    model = changed("v", 0.0)
    model.graph.node[1].attribute[0].f = 9e-10
    assert said(model) == ["a variance is 0 or almost 0"]
    model.graph.node[1].attribute[0].f = 1.1e-9
    folded(model)


@pytest.mark.parametrize(("side", "reason"), [(360, ""), (363, "2 nodes share the weight")])
def test_copies_of_a_shared_weight_are_bounded(side: int, reason: str) -> None:
    """Two readers of half a MiB each may have their own weight, and no more."""
    model = model_with("Conv", np.ones((side, side, 1), np.float32), side, side, 1)
    model.graph.node.append(helper.make_node("Conv", ["x", "w"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", 1, [2, side, 5]))
    if reason:
        assert said(model)[0].startswith(reason)
    else:
        assert {"w"} < set(constants(folded(model)))


def test_a_weight_over_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with("Conv", np.ones((2, 2, 64), np.float32), 2, 2, 1)
    monkeypatch.setattr(_folded, "WEIGHT_LIMIT", 1023)
    assert not findings(GRA014, model)
    monkeypatch.setattr(_folded, "WEIGHT_LIMIT", 1024)
    assert findings(GRA014, model)


def test_a_chain_with_shared_parameters() -> None:
    """Four in a row, of one weight and one set of parameters; the last gives a graph output."""
    model = model_with("Conv", np.eye(4, dtype=np.float32).reshape(4, 4, 1), 4, 4, 1)
    del model.graph.node[:]
    for number in range(4):
        source, target = f"n{number}" if number else "x", f"n{number + 1}" if number < 3 else "y"
        model.graph.node.append(helper.make_node("Conv", [source, "w"], [f"c{number}"]))
        rest = [f"c{number}", "s", "b", "m", "v"]
        model.graph.node.append(helper.make_node("BatchNormalization", rest, [target]))
    result, run = fixed([GRA014], model, safety=Safety.NUMERIC)
    assert len(run.applied) == 4
    assert not run.problems
    assert [node.op_type for node in result.graph.node] == ["Conv"] * 4
    assert not {"w", "s", "b", "m", "v"} & set(constants(result))
    assert_same_outputs(model, result, exact=False)


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    weight = np.random.default_rng(6).normal(0, 1, (16, 16, 3, 3)).astype(np.float32)
    path = tmp_path / "model.onnx"
    model = model_with("Conv", weight, 16, 16, 2)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    report = apply(path, tmp_path / "fixed.onnx", select=["GRA014"], numeric_fixes=True, rungs=["reference"])
    assert [fix.code for fix in report.applied] == ["GRA014"]
    assert not report.withdrawn
    result = onnx.load(tmp_path / "fixed.onnx")
    assert [node.op_type for node in result.graph.node] == ["Conv"]


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
