"""benchmarks/misimports: the changes, the three-way judgment, and what explains a difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from misimports import causes, child
from misimports.changes import UNDOCUMENTED, Change, Variant
from misimports.judge import Difference, Judgment, Ran, difference, judge
from misimports.measure import Row
from misimports.variants import fitted, variants

from onnxfix.runtime.sandbox import Worker
from support.models import of_opset
from support.patience import PATIENCE
from support.real_tensorrt import REAL

ONE, TWO, THREE = (np.array([value], np.float32) for value in (1.0, 2.0, 3.0))


model = of_opset(17, 8)


def ran(value: Any) -> Ran:
    return Ran(words="does not run") if value is None else Ran({"y": value})


# ---------------------------------------------------------------------------------------------------- judgment


@pytest.mark.parametrize(
    ("ort", "evaluator", "reading", "verdict", "by"),
    [
        (ONE, ONE, ONE, "equal", "both"),
        (ONE, ONE, TWO, "different", "both"),
        (ONE, TWO, ONE, "evaluator", "both"),
        (TWO, ONE, ONE, "onnxruntime", "both"),
        (ONE, TWO, THREE, "disputed", "both"),
        (ONE, None, ONE, "equal", "onnxruntime"),
        (ONE, None, TWO, "different", "onnxruntime"),
        (None, ONE, TWO, "different", "evaluator"),
        (None, None, ONE, "invalid", ""),
        (ONE, ONE, None, "different", "both"),
    ],
)
def test_whoever_is_alone_is_wrong(ort: Any, evaluator: Any, reading: Any, verdict: str, by: str) -> None:
    found = judge(ran(ort), ran(evaluator), [ran(reading)])
    assert (found.verdict, found.by) == (verdict, by)


def test_a_reading_that_does_not_run_fails() -> None:
    found = judge(ran(ONE), ran(None), [ran(None)]).difference
    assert found is not None
    assert found.what == "fails"


@pytest.mark.parametrize(
    ("expected", "found", "what"),
    [
        (ONE, ONE * (1 + 1e-5), None),
        (ONE, np.array([[1.0]], np.float32), "shape"),
        (ONE, np.array([np.nan], np.float32), "values"),
        (np.array([np.nan], np.float32), np.array([np.nan], np.float32), None),
        (np.array([np.inf], np.float32), np.array([3.4e38], np.float32), "values"),
        (np.array([7]), np.array([8]), "values"),
        (np.array([7]), np.array([7], np.int32), "type"),
        (np.array([1.0]), np.array([1.0], np.float32), "type"),
        (np.array([1.0]), np.array([2.0], np.float32), "values"),
        (np.array([True]), np.array([False]), "values"),
    ],
)
def test_what_differs_first(expected: Any, found: Any, what: str | None) -> None:
    one = difference({"y": expected}, {"y": found})
    assert (one.what if one is not None else None) == what


# ----------------------------------------------------------------------------------------------------- variants

TRILU = "g (float[3,4] x, int64 k) => (float[3,4] y) { y = Trilu<upper = 1>(x, k) }"
FEED = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "k": np.array(1)}


def made(graph: str, feed: dict[str, Any], base: str = "") -> dict[str, Variant]:
    return {str(one.change): one for one in variants("case", model(graph), feed) if one.base == base}


def test_every_attribute_and_input_is_changed() -> None:
    found = made(TRILU, FEED)
    assert {"as it is", "constants", "dynamic", "batch dynamic", "dynamic, constants"} <= set(found)
    assert {"upper dropped", "upper=0", "input k left out", "x=constant", "k=constant", "x=dynamic"} <= set(
        found
    )
    assert not found["upper dropped"].model.graph.node[0].attribute
    assert found["upper=0"].model.graph.node[0].attribute[0].i == 0
    assert found["upper=2"].change.kind == UNDOCUMENTED
    left = found["input k left out"]
    assert list(left.model.graph.node[0].input) == ["x"]
    assert list(left.feed) == [one.name for one in left.model.graph.input] == ["x"]
    assert found["value of k=2"].feed["k"] == 2


def test_inputs_are_fitted_to_the_change() -> None:
    inputs = "float[5,1,2] X, float[1,9,2] W, float[1,9,3] R"
    text = f"g ({inputs}) => (float[5,1,1,3] Y) {{ Y = GRU<hidden_size = 3>(X, W, R) }}"
    feed = {"X": np.ones((5, 1, 2)), "W": np.ones((1, 9, 2)), "R": np.ones((1, 9, 3))}
    found = made(text, {key: value.astype(np.float32) for key, value in feed.items()})
    before = model(text).graph.node[0]
    both = fitted(found["direction=bidirectional"], before)
    assert [both.feed[name].shape for name in "XWR"] == [(5, 1, 2), (2, 9, 2), (2, 9, 3)]
    assert [dim.dim_value for dim in both.model.graph.input[1].type.tensor_type.shape.dim] == [2, 9, 2]
    first = fitted(found["layout=1"], before)
    assert [first.feed[name].shape for name in "XWR"] == [(1, 5, 2), (1, 9, 2), (1, 9, 3)]


# ------------------------------------------------------------------------------------------------------- groups


def row(origin: str = "upper dropped", *, codes: tuple[str, ...] = ("OPS010",), **more: Any) -> Row:
    severity, verdict = more.pop("severity", "error"), more.pop("verdict", "different")
    found = child.Found(
        "lifted",
        judgment=Judgment(verdict, "both", Difference("values", "y", "1", "2")),
        said=tuple(child.Said(code, severity, "Trilu") for code in codes),
        text=more.pop("text", "y = Trilu (x)"),
        layers="SELECT(a, b) -> y",
        version="1.7",
    )
    change = more.pop("change", Change("dropped", "Trilu", "upper"))
    return Row("test_triu", "", change, more.pop("operator", "Trilu"), origin, 1, found)


def test_a_difference_is_explained_by_the_rule_that_reported_it() -> None:
    assert (causes.cause_of(row()) or causes.OPEN[0]).hazard == 1
    assert causes.cause_of(row(codes=())) is None
    assert causes.cause_of(row(severity="info")) is None
    assert causes.cause_of(row(verdict="onnxruntime")) is None  # whoever is alone is wrong
    assert causes.cause_of(row(codes=("OPS011",))) is None
    assert causes.cause_of(row(operator="Tril")) is None


# --------------------------------------------------------------------------------------------------------- live


def looked(worker: Worker, graph: str, opset: int, feed: dict[str, Any]) -> child.Found:
    data = model(graph, opset).SerializeToString()
    how: dict[str, Any] = {"skip": (), "half": "", "random": False}
    outcome = worker.call("misimports.child:look", timeout=PATIENCE, data=data, feeds=[feed], **how)
    assert outcome.ok, outcome.message
    found: child.Found = outcome.value
    return found


@REAL
def test_what_is_read_alike_is_equal(worker: Worker) -> None:
    graph = "g (float[3,4] x) => (float[3,4] y) { y = Trilu<upper = 1>(x) }"
    found = looked(worker, graph, 17, {"x": np.ones((3, 4), np.float32)})
    assert (found.judgment.verdict, found.status, found.layers) == ("equal", "lifted", "")
