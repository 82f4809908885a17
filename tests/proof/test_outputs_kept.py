"""Which inputs a budget allows, and that each run of a pair of models gets the same inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof import remote
from onnxfix.proof.budget import Budget
from onnxfix.proof.checks.trials import Finder
from onnxfix.proof.compare.compare import Terms
from onnxfix.proof.remote import _State
from onnxfix.runtime.backends import ort
from onnxfix.runtime.effort import THOROUGH, Effort
from onnxfix.tensorrt.engine import Ran
from support.patience import PATIENCE

# ------------------------------------------------------------------------------------------------ what a budget allows

IMAGE = "g (float[N,3,8,8] x) => (float[N,3,8,8] y) { y = Relu(x) }"
SIZES = [{"N": 1}, {"N": 2}, {"N": 3}]


class Request:
    """What a finder reads of a request."""

    networks = None
    known = signature(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {IMAGE}'))
    given, total, shapes, seed = None, PATIENCE, dict[str, int](), 0


def test_inputs_that_cost_too_much_are_spared_and_said() -> None:
    feeds = [Feed(sizes, "normal", number) for number, sizes in enumerate(SIZES)]
    tried: list[int] = []

    def expect(values: dict[str, Any]) -> Ran:
        batch = values["x"].shape[0]
        tried.append(batch)
        return Ran(seconds=float(batch))

    def found(effort: Effort) -> tuple[list[int], list[Feed]]:
        tried.clear()
        budget = Budget(Request.known, effort)
        finder = Finder(Request, expect, None, feeds, budget=budget)  # type: ignore[arg-type]
        finder.find()
        return [*tried], finder.spared

    assert found(THOROUGH) == ([1, 2, 3], [])
    assert found(Effort("", 0.0, 0.0)) == ([1], feeds[1:])
    assert found(Effort("", 0.0, 5.0)) == ([1, 2, 3], [])
    assert found(Effort("", 0.0, 4.9)) == ([1, 2], feeds[2:])
    assert found(Effort("", 0.0, 1.9)) == ([1], feeds[1:])


# ------------------------------------------------------------------------------------- inputs that a model writes to

TRAINING = parser.parse_model("""<ir_version: 7, opset_import: ["" : 9]>
    g (float[4,2] x, float[2] s, float[2] b, float[2] m, float[2] v)
        => (float[4,2] y, float[2] z) {
        y, p, q, r, t = BatchNormalization<momentum = 0.5>(x, s, b, m, v)  z = Neg(m) }""")


def session() -> Any:
    """The model in ONNX Runtime."""
    return ort.OrtSession(TRAINING.SerializeToString(), ort.session_options(), ["CPUExecutionProvider"])


def test_each_run_gets_the_same_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_STATE", _State(original=session(), fixed=session(), backend="ort-cpu"))
    feed = {"x": np.arange(8, dtype=np.float32).reshape(4, 2)}
    feed |= {name: np.full(2, 3, np.float32) for name in "sbmv"}
    before = {name: value.copy() for name, value in feed.items()}
    ran = remote.run(feed, again=True, drawn=(), terms=Terms(exact=True), skip=())
    assert not ran.unstable
    assert {one.agreement for one in ran.metrics} == {"identical"}
    assert len(ran.metrics) == 2
    assert all(np.array_equal(before[name], value) for name, value in feed.items())
