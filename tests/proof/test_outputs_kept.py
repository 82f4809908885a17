"""What the child of the proof keeps: outputs for the check that compares TensorRT's networks, and for candidates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof import remote
from onnxfix.proof.budget import Budget
from onnxfix.proof.compare.compare import Terms
from onnxfix.proof.outputs import Computed, Outputs
from onnxfix.proof.readback import child
from onnxfix.proof.readback.bench import Bench, Tried
from onnxfix.proof.remote import _State
from onnxfix.proof.rungs.trials import Finder
from onnxfix.runtime import backends
from onnxfix.runtime.backends import ort
from onnxfix.runtime.effort import THOROUGH, Effort
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.engine import Ran
from support.patience import PATIENCE

RELU = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
OTHER = RELU.replace("Relu", "Exp")
FEED = {"x": np.array([-1.0, 2.0], np.float32)}
RUN: dict[str, Any] = {"again": False, "drawn": (), "terms": Terms(exact=True), "skip": ()}


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


@pytest.mark.slow
def test_a_model_is_loaded_where_nothing_was_kept(tmp_path: Path) -> None:
    path, other = write(tmp_path / "a.onnx", RELU), write(tmp_path / "b.onnx", OTHER)
    with Worker() as worker:
        worker.call(
            "onnxfix.proof.remote:load",
            timeout=PATIENCE,
            backend="ort-cpu",
            original=path,
            fixed=other,
        )
        worker.call("onnxfix.proof.remote:run", timeout=PATIENCE, feed=FEED, **RUN, hold=True)
        bench = Bench(worker, PATIENCE)
        assert bench.ask("knows", path=path).value is True
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
        (metric,) = bench.judge("0", [("y", "y")], "").value
        assert metric.agreement == "different"
        assert "0" in bench.ask("known_keys").value
        worker.call("os:abort", timeout=PATIENCE)
        assert bench.ask("knows", path=path).value is False
        assert not Tried(bench, load, path).expect(FEED).error, "a child that died has lost it"
        assert loads == [path, path]


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

    def found(effort: Effort, ran: tuple[Feed, ...] = ()) -> tuple[list[int], list[Feed]]:
        tried.clear()
        budget = Budget(Request.known, effort)
        finder = Finder(Request, expect, None, feeds, budget=budget, ran=ran)  # type: ignore[arg-type]
        finder.find()
        return [*tried], finder.spared

    assert found(THOROUGH) == ([1, 2, 3], [])
    assert found(Effort("", 0.0, 0.0)) == ([1], feeds[1:])
    # What the model has not run yet costs twice as much: 2 and 3 seconds, or 4 and 6.
    assert found(Effort("", 0.0, 5.0), tuple(feeds)) == ([1, 2, 3], [])
    assert found(Effort("", 0.0, 4.9), tuple(feeds)) == ([1, 2], feeds[2:])
    assert found(Effort("", 0.0, 1.9)) == ([1], feeds[1:])


# ---------------------------------------------- what an original computed is not computed again for the next candidate

THREE = {"x": np.arange(3.0, dtype=np.float32)}


class Toy:
    """A model that multiplies by what its file says, and counts its runs."""

    outputs = ("y",)

    def __init__(self, path: str, runs: list[str]) -> None:
        self.factors = [float(word) for word in Path(path).read_text(encoding="utf-8").split()]
        self.name, self.runs = Path(path).name, runs

    def run(self, feed: dict[str, Any]) -> list[Any]:
        self.runs.append(self.name)
        factor = self.factors.pop(0) if len(self.factors) > 1 else self.factors[0]
        return [feed["x"] * np.float32(factor)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is loaded (with a plus) and run, in order."""
    found: list[str] = []

    def load(name: str, path: str, **options: Any) -> Toy:
        found.append(f"+{Path(path).name}")
        return Toy(path, found)

    monkeypatch.setattr(backends, "load", load)
    yield found
    remote.drop()


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str, str]:
    for name, text in (("o", "2"), ("a", "3"), ("b", "2")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / "o"), str(tmp_path / "a"), str(tmp_path / "b")


def judge(original: str, fixed: str, scope: str = "run", **more: Any) -> list[str]:
    assert not remote.load("toy", original, fixed, scope=scope).stage
    how = {"again": False, "drawn": (), "terms": Terms(exact=True), "skip": ()} | more
    ran = remote.run(THREE, **how)
    assert not ran.stage
    remote.drop(scope)
    return [one.agreement for one in ran.metrics]


def test_another_run_another_feed_another_file_are_computed(
    calls: list[str], paths: tuple[str, str, str]
) -> None:
    original, wrong, right = paths
    judge(original, wrong)
    assert judge(original, right, scope="another") == ["identical"]
    assert judge(original, right, scope="") == ["identical"]
    assert calls.count("o") == 3
    judge(original, right)
    calls.clear()
    Path(original).write_text("5.0", encoding="utf-8")
    assert judge(original, right) == ["different"], "the file has changed"
    assert calls == ["+o", "+b", "o", "b"]
    remote.load("toy", original, right, scope="run")
    other = {"x": THREE["x"] + 1}
    assert remote.run(other, again=False, drawn=(), terms=Terms(exact=True), skip=()).metrics
    assert calls[-3:] == ["+o", "o", "b"], "it is loaded where it has to run"
    remote.load("other", original, right, scope="run")
    assert calls[-2:] == ["+o", "+b"], "another backend"


def test_what_draws_is_never_kept(calls: list[str], paths: tuple[str, str, str]) -> None:
    original, _, right = paths
    for _ in range(2):
        judge(original, right, again=True, drawn=("y",))
    assert calls.count("o") == 4


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
