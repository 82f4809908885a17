"""Outputs that are kept for the check of TensorRT's networks, and feeds that stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix.proof import outputs, remote
from onnxfix.proof.checks.sessions import Bench
from onnxfix.proof.compare.compare import Terms
from onnxfix.proof.remote import _State
from onnxfix.runtime.backends import ort
from onnxfix.runtime.sandbox import Worker
from support.models import model, write
from support.patience import PATIENCE

RELU = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
OTHER = RELU.replace("Relu", "Exp")
FEED = {"x": np.array([-1.0, 2.0], np.float32)}
RUN: dict[str, Any] = {"again": False, "drawn": (), "terms": Terms(exact=True), "skip": ()}


def test_outputs_are_those_of_a_file_on_these_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"y": np.ones(2, np.float32)}
    outputs.keep("a", FEED, found, 0.5)
    assert outputs.find("a", {"x": FEED["x"].copy()}) == (found, 0.5)
    assert (outputs.knows("a"), outputs.knows("b")) == (True, False)
    for path, feed in (("b", FEED), ("a", {"x": FEED["x"] + 1}), ("a", {"z": FEED["x"]}), ("a", {})):
        assert outputs.find(path, feed) is None, (path, feed)
    monkeypatch.setattr(outputs, "MOST_BYTES", 12)
    outputs.keep("b", FEED, found, 0.5)
    assert not outputs.knows("b"), "there is no room"
    outputs.drop()
    assert not outputs.knows("a")


@pytest.mark.slow
def test_a_model_is_loaded_where_nothing_was_kept(tmp_path: Path) -> None:
    path, other = str(write(tmp_path / "a.onnx", RELU)), str(write(tmp_path / "b.onnx", OTHER))
    with Worker() as worker:
        worker.call(
            "onnxfix.proof.remote:load", timeout=PATIENCE, backend="ort-cpu", original=path, fixed=other
        )
        worker.call("onnxfix.proof.remote:run", timeout=PATIENCE, feed=FEED, **RUN, hold=True)
        bench = Bench(worker, str(tmp_path))
        bench.limit(PATIENCE)
        assert bench.put("ort-cpu", path, recall=True).kept
        left = bench.compute(FEED)
        assert (left.kept, left.outputs["y"].tolist()) == (True, [0.0, 2.0])
        ran = bench.compute({"x": np.ones(3, np.float32)})
        assert (ran.kept, ran.outputs["y"].tolist()) == (False, [1.0] * 3)
        assert bench.compute(FEED).kept
        assert not bench.put("ort-cpu", path).kept
        assert not bench.compute(FEED).kept
        bench.put("ort-cpu", path, recall=True)
        worker.call("os:abort", timeout=PATIENCE)
        ran = bench.compute(FEED)
        assert (ran.error, ran.kept) == ("", False), "a child that died has lost it"


# ------------------------------------------------------------------------------------- inputs that a model writes to

TRAINING = model("""<ir_version: 7, opset_import: ["" : 9]>
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
