"""Nodes that the other side does not have are named, not the node that reads what they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxfix
from onnxfix.diagnosis.explain import missing
from onnxfix.diagnosis.graph import Graph
from support.evidence import evidence, normal
from support.models import model

HEADER = "g (float[2,8] x) => (float[2,8] y) "
FIRST = HEADER + "{ a = MatMul(x, w)  h = Cast<to = 10>(a)  b = Cast<to = 1>(h)  y = Mul(b, g) }"
CUT = HEADER + "{ a = MatMul(x, w)  h = Cast<to = 7>(a)  b = Cast<to = 1>(h)  y = Mul(b, g) }"
SECOND = HEADER + "{ a = MatMul(x, w)  y = Mul(a, g) }"
ALIVE = SECOND.replace("y = Mul", "r = Relu(a)  y = Mul")
WEIGHTS: dict[str, Any] = {"w": normal(8, 8), "g": normal(8, seed=1)}


@pytest.mark.parametrize(("text", "cause"), [(FIRST, "precision"), (CUT, "operator")])
def test_lost_casts_are_the_culprit(text, cause):
    found = onnxfix.diagnose(
        model(text, **WEIGHTS), model(SECOND, **WEIGHTS), inputs=[{"x": normal(2, 8, seed=2)}]
    )
    worst = found.culprits[0]
    assert (worst.error.place.output, worst.error.place.op_type, worst.cause) == ("b", "Cast", cause)
    assert "Cast, Cast before 'b' are missing in the second model, where Mul reads 'a'" in worst.reason


def step(first: str, second: str, names: dict[str, str], matched: set[str]) -> Any:
    """``missing`` at the Mul of both models."""
    feed = {"b": normal(2, 8), "g": WEIGHTS["g"]}
    last = model("g (float[2,8] b, float[8] g) => (float[2,8] y) { y = Mul(b, g) }")
    found = evidence(last, feed, own={"y": np.zeros((2, 8), np.float32)})
    others = [node for node in model(second, **WEIGHTS).graph.node if node.op_type == "Mul"]
    made = type(found)(**{**vars(found), "others": others, "names": names})
    return missing(made, Graph(model(first, **WEIGHTS)), matched)


def test_a_node_that_reads_another_tensor_although_it_has_the_right_one_is_its_own_culprit():
    relu = HEADER + "{ a = MatMul(x, w)  b = Relu(a)  y = Mul(b, g) }"
    place, cause, _ = step(relu, SECOND, {"a": "a", "g": "g"}, {"a", "x"})
    assert (place.op_type, cause) == ("Relu", "operator")
    assert step(relu, ALIVE, {"a": "a", "g": "g"}, {"a", "x", "b"}) is None


def test_a_tensor_that_does_not_lead_there_is_no_missing_node():
    two = HEADER + "{ a = MatMul(x, w)  c = Add(x, a)  b = Add(c, x)  y = Mul(b, g) }"
    assert step(two, SECOND, {"a": "a", "g": "g"}, {"a", "x"}) is None
