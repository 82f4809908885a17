"""A run that writes to its inputs leaves the feed to the next one: ONNX Runtime's BatchNormalization in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from onnxfix.backends import ort
from onnxfix.verification import remote
from onnxfix.verification.compare.compare import Terms
from onnxfix.verification.remote import _State

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
