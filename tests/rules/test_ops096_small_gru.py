"""OPS096: the GRU computed twice gives what ONNX Runtime gives for the one, in every form and opset."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety
from onnxfix.testing import findings, fixed

RULES = {rule.code: rule for rule in registry().rules}
OPS096 = RULES["OPS096"]
LENGTH, WIDTH, HIDDEN = 4, 2, 3
IR_VERSION = {7: 4, 9: 4, 10: 5, 14: 7, 22: 10}


def gru(
    opset: int, direction: str, outputs: list[str], optional: bool, *, layout: int = 0
) -> tuple[ModelProto, dict[str, Any]]:
    """A GRU of one sequence, with values for its inputs; ``optional``: with a length and an initial state."""
    ways = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(5)
    shapes = {"x": (LENGTH, 1, WIDTH), "w": (ways, 3 * HIDDEN, WIDTH), "r": (ways, 3 * HIDDEN, HIDDEN)}
    if layout:
        shapes["x"] = (1, LENGTH, WIDTH)
    if optional:
        shapes |= {"b": (ways, 6 * HIDDEN), "l": (1,), "i": (ways, 1, HIDDEN)}
    feed: dict[str, Any] = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    if optional:
        feed["l"] = np.array([LENGTH - 1], np.int32)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feed.items()
    ]
    made = {"y": (LENGTH, ways, 1, HIDDEN), "h": (ways, 1, HIDDEN)}
    if layout:
        made = {"y": (1, LENGTH, ways, HIDDEN), "h": (1, ways, HIDDEN)}
    attributes: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction}
    if layout:
        attributes["layout"] = layout
    node = helper.make_node("GRU", [*feed], outputs, **attributes)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, made[name]) for name in outputs if name]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, infos),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=IR_VERSION[opset],
    )
    return model, feed


def run(model: ModelProto, feed: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


@pytest.mark.parametrize("opset", [7, 9, 10, 14, 22])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_the_same_from_a_batch_of_two(opset: int, direction: str) -> None:
    for outputs, optional in itertools.product((["y", "h"], ["", "h"], ["y"]), (False, True)):
        model, feed = gru(opset, direction, outputs, optional)
        result, applied = fixed([OPS096], model, safety=Safety.NUMERIC, target="rtx")
        assert len(applied.applied) == 1
        assert not applied.problems
        onnx.checker.check_model(result, full_check=True)
        assert not findings(OPS096, result, "rtx")
        assert [node.op_type for node in result.graph.node].count("Concat") == (3 if optional else 1)
        for expected, found in zip(run(model, feed), run(result, feed), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_with_the_batch_first_two_rules_follow_each_other() -> None:
    model, feed = gru(14, "forward", ["y", "h"], False, layout=1)
    result, applied = fixed([RULES["OPS011"], OPS096], model, safety=Safety.NUMERIC, target="rtx")
    assert [item.key.code for item in applied.applied] == ["OPS011", "OPS096"]
    assert not applied.problems
    time_first, _ = fixed([RULES["OPS011"]], model, target="rtx")
    for expected, found in zip(run(time_first, feed), run(result, feed), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
