"""benchmarks/misimports: the changes, and the judgment between three readings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from misimports import child
from misimports.changes import UNDOCUMENTED
from misimports.judge import Ran, difference, judge
from misimports.variants import fitted, variants

from onnxfix.runtime.sandbox import Worker
from support.models import of_opset
from support.patience import PATIENCE
from support.real_tensorrt import REAL

ONE, TWO, THREE = (np.array([value], np.float32) for value in (1.0, 2.0, 3.0))
TRILU = "g (float[3,4] x, int64 k) => (float[3,4] y) { y = Trilu<upper = 1>(x, k) }"
model = of_opset(17, 8)


def ran(value: Any) -> Ran:
    return Ran(words="does not run") if value is None else Ran({"y": value})


@pytest.mark.parametrize(
    ("ort", "evaluator", "reading", "verdict", "by"),
    [
        (ONE, ONE, ONE, "equal", "both"),
        (ONE, ONE, TWO, "different", "both"),
        (ONE, TWO, ONE, "evaluator", "both"),
        (TWO, ONE, ONE, "onnxruntime", "both"),
        (ONE, TWO, THREE, "disputed", "both"),
        (ONE, None, TWO, "different", "onnxruntime"),
        (None, ONE, TWO, "different", "evaluator"),
        (None, None, ONE, "invalid", ""),
        (ONE, ONE, None, "different", "both"),
    ],
)
def test_the_reading_that_is_alone_is_wrong(
    ort: Any, evaluator: Any, reading: Any, verdict: str, by: str
) -> None:
    found = judge(ran(ort), ran(evaluator), [ran(reading)])
    assert (found.verdict, found.by) == (verdict, by)


@pytest.mark.parametrize(
    ("expected", "found", "what"),
    [
        (ONE, ONE * (1 + 1e-5), None),
        (ONE, np.array([[1.0]], np.float32), "shape"),
        (ONE, np.array([np.nan], np.float32), "values"),
        (np.array([np.nan], np.float32), np.array([np.nan], np.float32), None),
        (np.array([7]), np.array([8]), "values"),
        (np.array([7]), np.array([7], np.int32), "type"),
    ],
)
def test_what_differs_first(expected: Any, found: Any, what: str | None) -> None:
    first = difference({"y": expected}, {"y": found})
    assert (first.what if first is not None else None) == what


def test_every_attribute_and_input_is_changed() -> None:
    feed = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "k": np.array(1)}
    found = {str(one.change): one for one in variants("case", model(TRILU), feed) if not one.base}
    assert {"as it is", "constants", "dynamic", "upper dropped", "x=constant", "k=constant"} <= set(found)
    assert found["upper=0"].model.graph.node[0].attribute[0].i == 0
    assert found["upper=2"].change.kind == UNDOCUMENTED
    left = found["input k left out"]
    assert list(left.model.graph.node[0].input) == list(left.feed) == ["x"]
    assert found["value of k=2"].feed["k"] == 2


def test_inputs_are_fitted_to_the_change() -> None:
    inputs = "float[5,1,2] X, float[1,9,2] W, float[1,9,3] R"
    text = f"g ({inputs}) => (float[5,1,1,3] Y) {{ Y = GRU<hidden_size = 3>(X, W, R) }}"
    feed = {"X": np.ones((5, 1, 2)), "W": np.ones((1, 9, 2)), "R": np.ones((1, 9, 3))}
    found = {str(one.change): one for one in variants("case", model(text), feed) if not one.base}
    both = fitted(found["direction=bidirectional"], model(text).graph.node[0])
    assert [both.feed[name].shape for name in "XWR"] == [(5, 1, 2), (2, 9, 2), (2, 9, 3)]


@REAL
def test_what_is_read_alike_is_equal(worker: Worker) -> None:
    data = model(TRILU.replace(", int64 k", "").replace("x, k", "x"), 17).SerializeToString()
    feeds = [{"x": np.ones((3, 4), np.float32)}]
    options: dict[str, Any] = {"skip": (), "half": "", "random": False}
    outcome = worker.call("misimports.child:look", timeout=PATIENCE, data=data, feeds=feeds, **options)
    assert outcome.ok, outcome.message
    found: child.Found = outcome.value
    assert (found.judgment.verdict, found.status, found.layers) == ("equal", "lifted", "")
