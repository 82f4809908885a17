"""What ONNX Runtime computed in one rung serves the rung that compares TensorRT's networks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfix.sandbox import Worker
from onnxfix.verification import outputs, remote
from onnxfix.verification.outputs import Computed, Outputs
from onnxfix.verification.readback import child
from onnxfix.verification.readback.bench import Bench, Tried
from support.patience import PATIENCE

RELU = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
SAME = RELU.replace("y = Relu(x)", "z = Relu(x) y = Identity(z)")
OTHER = RELU.replace("Relu", "Exp")
FEED = {"x": np.array([-1.0, 2.0], np.float32)}
RUN: dict[str, Any] = {"again": False, "drawn": (), "exact": True, "noise": {}, "skip": ()}


def write(path: Path, text: str) -> str:
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


def computed(*values: Any) -> Computed:
    return Computed(dict(enumerate(values)), 0.5)  # type: ignore[arg-type]


def test_outputs_are_those_of_a_file_as_it_is_on_these_inputs(tmp_path: Path) -> None:
    path, kept, found = write(tmp_path / "m.onnx", RELU), Outputs(), computed(np.ones(3))
    assert kept.put(path, FEED, found)
    assert kept.find(path, FEED) is found
    assert kept.knows(path)
    for other in (
        {"x": FEED["x"].astype(np.float64)},
        {"x": FEED["x"].reshape(1, 2)},
        {"x": FEED["x"] + 1},
        {"z": FEED["x"]},
        {"x": [FEED["x"]]},
        {},
    ):
        assert kept.find(path, other) is None, other
    os.utime(path, (1, 1))
    assert kept.find(path, FEED) is None
    assert not kept.knows(path)
    os.unlink(path)
    kept.put(path, FEED, found)
    assert kept.find(path, FEED) is None, "a file that is gone is like no other"


def test_no_more_is_kept_than_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MOST_BYTES", 100)
    path, kept = write(tmp_path / "m.onnx", RELU), Outputs()
    assert kept.put(path, FEED, computed(np.zeros(80, np.uint8)))
    assert not kept.put(path, {}, computed([np.zeros(21, np.uint8)]))
    assert kept.find(path, {}) is None
    assert kept.put(path, {}, computed(np.zeros(80, np.uint8)), shared=True)
    kept.clear()
    assert not kept.knows(path)
    assert kept.put(path, {}, computed(np.zeros(100, np.uint8)))


def test_identical_outputs_are_kept_once(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{name}.onnx", text) for name, text in (("a", RELU), ("b", SAME), ("c", OTHER))
    ]
    try:
        for second, same in ((paths[1], True), (paths[2], False)):
            remote.load("ort-cpu", paths[0], second)
            assert not remote.run(FEED, **RUN).stage
            assert not remote.OUTPUTS.knows(paths[0]), "nobody wants it"
            assert not remote.run(FEED, **RUN, hold=True).stage
            first, other = (remote.OUTPUTS.find(path, FEED) for path in (paths[0], second))
            assert first is not None
            assert other is not None
            assert (first.values["y"] is other.values["y"]) == same
            assert first.values["y"].tolist() == [0.0, 2.0]
            remote.unload()
            assert remote.OUTPUTS.knows(second), "releasing the models keeps what they computed"
            remote.drop()
            assert not remote.OUTPUTS.knows(second)
    finally:
        remote.drop()
        child.drop()


@pytest.mark.slow
def test_a_model_is_loaded_where_nothing_was_kept(tmp_path: Path) -> None:
    path, other = write(tmp_path / "a.onnx", RELU), write(tmp_path / "b.onnx", OTHER)
    with Worker() as worker:
        worker.call(
            "onnxfix.verification.remote:load",
            timeout=PATIENCE,
            backend="ort-cpu",
            original=path,
            fixed=other,
        )
        worker.call("onnxfix.verification.remote:run", timeout=PATIENCE, feed=FEED, **RUN, hold=True)
        bench = Bench(worker, PATIENCE)
        assert bench.knows(path)
        loads = []

        def load() -> child.Reply:
            loads.append(path)
            return bench.load("ort-cpu", path)

        tried = Tried(bench, load, path)
        assert not tried.expect(FEED).error
        assert (loads, tried.taken) == ([], ["0"])
        assert not tried.expect({"x": np.ones(3, np.float32)}).error
        assert loads == [path]
        assert tried.expect(FEED).seconds < PATIENCE
        assert loads == [path]
        # What was left stands for a run: the network's outputs are held against it.
        bench.load("ort-cpu", other)
        bench.run("lifted", "0", FEED)
        (metric,) = bench.judge("0", [("y", "y")], "")
        assert metric.agreement == "different"
        assert bench.holds("onnx", "0")
        worker.call("os:abort", timeout=PATIENCE)
        assert not bench.knows(path)
        assert not Tried(bench, load, path).expect(FEED).error, "a child that died has lost it"
        assert loads == [path, path]
