"""GRA014: a BatchNormalization becomes weights that are rounded once, or is left alone for a reason that is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxfix import apply
from onnxfix.rule import Safety
from onnxfix.testing import assert_interface_kept, assert_same_outputs, findings, fixed
from onnxfix_rules.gra import _folded
from onnxfix_rules.gra.gra014_batch_normalization_after_convolution import (
    batch_normalization_after_convolution as GRA014,
)
from support.models import of_nodes

Array = np.ndarray[Any, Any]


def model_of(op: str, weight: Array, channels: int, size: int, axes: int, **attributes: Any) -> ModelProto:
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
    model = model_of("Conv", weight, 8, 3, 2)
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
    model = model_of("Conv", np.ones((2, 2, 1, 1), dtype), 2, 2, 2)
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
    model = model_of("Conv", np.ones((2, 2, 1, 1), np.float32), 2, 2, 2)
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
    model = model_of("Conv", np.ones((side, side, 1), np.float32), side, side, 1)
    model.graph.node.append(helper.make_node("Conv", ["x", "w"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", 1, [2, side, 5]))
    if reason:
        assert said(model)[0].startswith(reason)
    else:
        assert {"w"} < set(constants(folded(model)))


def test_a_weight_over_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("Conv", np.ones((2, 2, 64), np.float32), 2, 2, 1)
    monkeypatch.setattr(_folded, "WEIGHT_LIMIT", 1023)
    assert not findings(GRA014, model)
    monkeypatch.setattr(_folded, "WEIGHT_LIMIT", 1024)
    assert findings(GRA014, model)


def test_a_chain_with_shared_parameters() -> None:
    """Four in a row, of one weight and one set of parameters; the last gives a graph output."""
    model = model_of("Conv", np.eye(4, dtype=np.float32).reshape(4, 4, 1), 4, 4, 1)
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
    model = model_of("Conv", weight, 16, 16, 2)
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    report = apply(path, tmp_path / "fixed.onnx", select=["GRA014"], numeric_fixes=True, rungs=["reference"])
    assert [fix.code for fix in report.applied] == ["GRA014"]
    assert not report.withdrawn
    result = onnx.load(tmp_path / "fixed.onnx")
    assert [node.op_type for node in result.graph.node] == ["Conv"]
