"""The walk: own errors and propagated ones, what is dropped, and what happens where a side fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxfix.diagnosis import lockstep as module
from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Lockstep, beginnings
from onnxfix.diagnosis.opening import opened
from onnxfix.diagnosis.rows import Side, Walk
from onnxfix.diagnosis.sides import same_names
from onnxfix.runtime.sandbox import Outcome, Worker
from support.models import model, write

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
TEXT = """g (float[3,4] x) => (float[3,4] y) {
    a = Sin(x)
    b = Mul(a, w)
    c = Add(b, a)
    d = Tanh(c)
    y = Sub(d, b)
}"""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST", 2)
    monkeypatch.setattr(module, "_MOST", 2)


def walked(
    bench: Bench,
    truth: ModelProto | Graph,
    other: ModelProto | Graph,
    feed: Mapping[str, Any] | None = None,
    **more: Any,
) -> Walk:
    one = truth if isinstance(truth, Graph) else Graph(truth)
    two = other if isinstance(other, Graph) else Graph(other)
    side = Side(two, more.pop("pairs", same_names(one, two)), **more)
    held = {"x": X} if feed is None else feed
    return Lockstep(bench, one, side).run(held, held)


def relatives(walk: Walk) -> dict[str, tuple[float, float]]:
    """Own and propagated error."""
    return {
        name: (row.own.relative if row.own else -1.0, row.whole.relative if row.whole else -1.0)
        for name, row in walk.rows.items()
    }


def test_own_error_is_told_from_propagated_error(bench: Bench) -> None:
    walk = walked(bench, model(TEXT, w=np.float32(2)), model(TEXT, w=np.float32(2.2)))
    found = relatives(walk)
    assert found["a"] == (0.0, 0.0)
    assert found["b"] == pytest.approx((0.1, 0.1), rel=1e-5)
    for name in "cdy":
        assert found[name][0] == 0.0
        assert found[name][1] > 0.01
    assert walk.rows["b"].before == 0.0
    assert walk.rows["c"].before == pytest.approx(0.1, rel=1e-5)
    assert 0 < walk.rows["b"].noise < 1e-5
    assert walk.rows["c"].noise == 0.0  # where nothing differs, it is not measured
    assert beginnings(Graph(model(TEXT, w=1.0)), {"b", "c", "d", "y"}) == ["b"]


class _Recorder(Worker):
    asked = ""

    def call(self, target: str, **how: Any) -> Outcome:
        self.asked += f"{target.rpartition(':')[2]} "
        return super().call(target, **how)


def test_a_walk_leaves_the_values_in_the_sandbox(bench: Bench) -> None:
    with _Recorder() as recorder:
        walked(replace(bench, worker=recorder), model(TEXT, w=np.float32(2)), model(TEXT, w=np.float32(2)))
    assert recorder.asked == "begin step step step end "


def test_two_faults_that_cancel_out_are_both_seen(bench: Bench) -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { a = Mul(x, v)  b = Mul(a, w)  y = Neg(b) }"
    walk = walked(
        bench, model(text, v=np.float32(1), w=np.float32(1)), model(text, v=np.float32(2), w=np.float32(0.5))
    )
    found = relatives(walk)
    assert [found[name][0] for name in "aby"] == [1.0, 0.5, 0.0]
    assert found["b"][1] == found["y"][1] == 0.0


def test_a_matched_tensor_is_kept_until_the_other_side_has_it_too(bench: Bench) -> None:
    """The other side computes the first tensor last."""
    other = """g (float[3,4] x) => (float[3,4] y) {
        a2 = Sin(x)
        b = Mul(a2, w)
        c = Add(b, a2)
        d = Tanh(c)
        zero = Sub(d, d)
        y = Sub(d, b)
        a = Add(a2, zero)
    }"""
    walk = walked(bench, model(TEXT, w=np.float32(2)), model(other, w=np.float32(2)))
    assert relatives(walk)["a"] == (0.0, 0.0)


@pytest.mark.parametrize(
    "pairs",
    [
        {"x": "x", "a": "y", "b": "d", "c": "b", "d": "a", "y": "c"},
        {"x": "x", "a": "a", "b": "a", "c": "a", "d": "a", "y": "y"},
        {"x": "x", "nothing": "a", "a": "nothing", "w": "b", "y": "y"},
        {},
    ],
    ids=["crossed", "many-to-one", "absent", "none"],
)
def test_wrong_pairs_do_no_harm(bench: Bench, pairs: dict[str, str]) -> None:
    one = model(TEXT, w=np.float32(2))
    walk = walked(bench, one, one, pairs=pairs)
    assert not walk.failed
    assert walk.complete
    assert list(walk.truth) == ["y"]


def test_of_several_tensors_for_one_the_worst_counts(bench: Bench) -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { a = Sin(x)  y = Neg(a) }"
    other = "g (float[3,4] x) => (float[3,4] y) { s = Sin(x)  LINES  y = Neg(s) }"
    pairs = {"x": "x", "a1": "a", "a2": "a", "y": "y"}
    for lines in ("a1 = Identity(s)  a2 = Mul(s, w)", "a2 = Mul(s, w)  a1 = Identity(s)"):
        two = model(other.replace("LINES", lines), w=np.float32(3))
        walk = walked(bench, model(text), two, pairs=pairs)
        assert relatives(walk)["a"][0] == pytest.approx(2.0, rel=1e-5)


def test_a_region_that_the_other_side_refuses(bench: Bench) -> None:
    """All others are measured, and the place where its own run stops is known."""
    proto = model(TEXT, w=np.float32(2))
    graph = Graph(proto)

    def runner(part: ModelProto, feed: Mapping[str, Any]) -> Reply:
        if any(node.op_type == "Tanh" for node in part.graph.node):
            return Reply(error="no Tanh here", cause="refused")
        return bench.run(part, feed, of=graph)

    walk = walked(bench, graph, graph, runner=runner)
    assert walk.refused == {"d": "no Tanh here"}
    assert (walk.stopped, walk.at) == ("no Tanh here", 3)
    found = relatives(walk)
    assert found["c"] == (0.0, 0.0)
    assert found["d"] == (-1.0, -1.0)
    assert found["y"] == (0.0, -1.0)
    assert walk.other == {}
    assert list(walk.truth) == ["y"]


def test_a_chunk_that_does_not_run_as_a_whole_is_halved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST", 10)
    graph = Graph(model(TEXT, w=np.float32(2)))
    sizes = []

    def runner(part: ModelProto, feed: Mapping[str, Any]) -> Reply:
        sizes.append(len(part.graph.node))
        if len(part.graph.node) > 1:
            return Reply(error="too large", cause="memory")
        return bench.run(part, feed, of=graph)

    walk = walked(bench, graph, graph, runner=runner)
    assert relatives(walk) == dict.fromkeys("abcdy", (0.0, 0.0))
    assert not walk.refused
    assert not walk.stopped
    assert max(sizes) == 5


def test_types_that_one_side_calls_otherwise(bench: Bench) -> None:
    """int32 for int64, as TensorRT has it."""
    truth = """g (float[3,4] x) => (int64[3] y) {
        a = ArgMax<axis = 1, keepdims = 0>(x)
        b = Add(a, one)
        y = Mul(b, b)
    }"""
    other = """g (float[3,4] x) => (int32[3] y) {
        l = ArgMax<axis = 1, keepdims = 0>(x)
        a = Cast<to = 6>(l)
        b = Add(a, one)
        y = Mul(b, b)
    }"""
    walk = walked(bench, model(truth, one=np.int64(1)), model(other, one=np.int32(1)))
    assert relatives(walk) == dict.fromkeys("aby", (0.0, 0.0))


def test_random_draws_are_the_truths(bench: Bench) -> None:
    text = """g (float[3,4] x) => (float[3,4] y) {
        a = Sin(x)
        r = RandomNormalLike(a)
        b = Mul(r, w)
        y = Add(b, a)
    }"""
    other = text.replace(
        "a = Sin(x)", "z = Identity(x)  a = Sin(z)"
    )  # ONNX Runtime draws by a node's position
    walk = walked(bench, model(text, w=np.float32(2)), model(other, w=np.float32(3)))
    assert "r" not in walk.rows
    assert relatives(walk)["b"] == pytest.approx((0.5, 0.5), rel=1e-5)
    assert relatives(walk)["y"][0] == 0.0
    assert list(walk.drawn) == ["r"]


SEQUENCE = """g (float[3,4] x) => (float[6,4] y) {
    a = Sin(x)
    s = SequenceConstruct(x)
    b = Neg(a)
    c = Mul(b, w)
    t = SequenceInsert(s, c)
    e = Exp(c)
    u = ConcatFromSequence<axis = 0>(t)
    y = Relu(u)
}"""


def test_what_is_no_tensor_crosses_no_cut(bench: Bench, tmp_path: Path) -> None:
    one = opened(write(tmp_path / "a.onnx", model(SEQUENCE, w=np.float32(2))), bench)
    two = opened(write(tmp_path / "b.onnx", model(SEQUENCE, w=np.float32(3))), bench)
    assert one.untensored == {"s", "t"}
    walk = walked(bench, one, two)
    found = relatives(walk)
    assert found["c"] == pytest.approx((0.5, 0.5), rel=1e-5)
    assert [found[name][0] for name in ("a", "b", "u", "y")] == [0.0] * 4
    assert found["u"][1] > 0


def test_an_input_that_is_a_sequence(bench: Bench, tmp_path: Path) -> None:
    text = """g (seq(float[3,4]) s, int64 i) => (float[3,4] y) {
        a = SequenceAt(s, i)
        b = Sin(a)
        c = Neg(b)
        t = SequenceInsert(s, c)
        d = SequenceAt(t, i)
        y = Add(d, c)
    }"""
    one = opened(write(tmp_path / "a.onnx", model(text)), bench)
    walk = walked(bench, one, one, {"s": [X, X + 1], "i": np.int64(1)})
    assert not walk.failed
    assert {"a", "b", "c", "d", "y"} <= set(walk.rows)
    assert all(one == (0.0, 0.0) for one in relatives(walk).values())


def test_an_optional_between_nodes(bench: Bench, tmp_path: Path) -> None:
    text = """g (float[3,4] x) => (float[3,4] y) {
        a = Sin(x)
        o = Optional(a)
        b = Neg(a)
        c = Exp(b)
        p = OptionalGetElement(o)
        y = Add(p, c)
    }"""
    one = opened(write(tmp_path / "a.onnx", model(text)), bench)
    walk = walked(bench, one, one)
    assert not walk.failed
    assert {"a", "b", "c", "p", "y"} <= set(walk.rows)


def test_the_noise_of_a_region_is_that_of_all_nodes_that_it_stands_for(bench: Bench) -> None:
    """A sum of numbers that cancel out moves far more than its last node alone."""
    text = """g (float[3,4] x) => (float[3,4] y) {
        a = Add(x, big)
        b = Sub(a, big)
        y = Neg(b)
    }"""
    other = "g (float[3,4] x) => (float[3,4] y) { b = Identity(x)  y = Neg(b) }"
    walk = walked(bench, model(text, big=np.float32(1e4)), model(other))
    row = walk.rows["b"]
    assert row.own.largest > 1e-4
    alone = walked(bench, model(text, big=np.float32(1e4)), model(text, big=np.float32(2e4)))
    assert alone.rows["b"].noise > 1e-4
    assert row.noise < 1e-6  # the truth's big numbers are weights, which do not move
