"""What a check runs within its budget, what it leaves out, and that it still sees what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof import request
from onnxfix.proof import verify as proving
from onnxfix.proof.request import Budget
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.report.render.proof import describe_left_out
from onnxfix.report.summary import RungFact
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import DEFAULT, QUICK, THOROUGH, Effort, effort_of
from support import models
from support.ended import ended

pytestmark = pytest.mark.slow

proto_of = models.of_opset(18)
ABS = "g (float[batch, seq, 4] x) => (float[batch, seq, 4] y) { y = Abs(x) }"


def verdict_of(folder: Path, before: str, after: str = "", **more: Any) -> Verdict:
    texts = {"a.onnx": before, "b.onnx": after or before}
    # From opset 18 on ONNX says what Relu is made of, which a runtime may take instead.
    first, second = (models.write(folder / name, proto_of(text, 17)) for name, text in texts.items())
    more = {"exact": True, "effort": DEFAULT, "rungs": ["ort-cpu"]} | more
    return proving.verify(first, second, **more)


def only(verdict: Verdict, name: str = "ort-cpu") -> RungResult:
    found = verdict.rung(name)
    assert found is not None
    return found


def sizes(rung: RungResult) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (one.feed.kind, tuple(one.feed.assignment.values())) for one in rung.feeds if one.feed is not None
    ]


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element costs a second."""
    real = Budget.ran

    def ran(self: Budget, found: Mapping[str, int], seconds: float) -> None:
        real(self, found, request._weight(self.known, found))

    monkeypatch.setattr(Budget, "ran", ran)


# ---- the budget


def budget_of(text: str, effort: Effort = DEFAULT) -> Budget:
    return Budget(signature(proto_of(text)), effort)


def test_what_runs_cost_is_predicted_from_what_ran() -> None:
    found = budget_of("g (float[batch, 8] x) => (float[batch, 8] y) { y = Abs(x) }")
    assert found.allows({"batch": 10**6}), "nothing is known yet"
    found.loaded(1.0)
    found.ran({"batch": 1}, 2.0)
    assert found.predicted({"batch": 4}) == pytest.approx(8.0)
    assert found.predicted({"batch": 0}) == 0.0
    assert found.allows({"batch": 2})
    assert not found.allows({"batch": 2}, {"batch": 1}), "1.5 times 3 s are less than 4 + 2"
    found.ran({"batch": 2}, 2.5)
    assert found.predicted({"batch": 4}) == pytest.approx(3.5), "two runs show what is fixed and what grows"
    assert found.predicted({"batch": 1}) == 2.0
    found.ran({"batch": 4}, 1.0)
    assert found.predicted({"batch": 3}) == 1.0, "no more than larger ones cost"


# ---- which feeds run


@pytest.mark.parametrize("text", [ABS, "g (float[2, 3] x) => (float[2, 3] y) { y = Abs(x) }"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_fast_model_gets_every_input(tmp_path: Path, text: str, exact: bool) -> None:
    whole = only(verdict_of(tmp_path, text, effort=THOROUGH, exact=exact))
    default = only(verdict_of(tmp_path, text, exact=exact))
    assert sizes(default) == sizes(whole)
    assert len(default.feeds) >= 4
    assert default.left_out == whole.left_out == ()


def test_a_dear_model_gets_what_tells_most(tmp_path: Path, dear: None) -> None:
    rung = ended("passed", only(verdict_of(tmp_path, ABS)))
    assert sizes(rung) == [
        ("normal", (1, 1)),
        ("normal", (2, 2)),
        ("normal", (0, 5)),
        ("normal", (3, 0)),
        ("extreme", (1, 1)),
    ]
    assert [(one.feed.kind, tuple(one.feed.assignment.values())) for one in rung.left_out] == [
        ("edge", (3, 5)),
        ("extreme", (16, 5)),
    ]
    assert [one.seconds for one in rung.left_out] == pytest.approx([4 * 75, 4 * 400])
    assert "2 shapes" in rung.reason, "no other shapes are looked for in their place"
    assert only(verdict_of(tmp_path, ABS, effort=THOROUGH)).left_out == ()


def test_the_hardest_values_come_at_different_sizes_where_the_batch_is_what_costs(
    tmp_path: Path, dear: None
) -> None:
    text = """g (float[batch, 100] x, int64[batch, seq] i) => (float[batch, 100] y, int64[batch, seq] j)
        { y = Abs(x) j = Neg(i) }"""
    assert sizes(only(verdict_of(tmp_path, text)))[-1] == ("extreme", (1, 5))
    fixed = only(verdict_of(tmp_path, text, input_shapes=["x:2x100"]))
    batches = {one.feed.assignment["batch"] for one in fixed.feeds if one.feed is not None}
    assert batches == {2}, "what the user fixed stays"


BATCH = "g (float[batch, 4] x, bool[batch] m) => (float[batch, 4] y, bool[batch] n) { y = Abs(x) n = Not(m) }"


def test_a_dear_batch_has_the_hardest_values_in_its_last_item(tmp_path: Path, dear: None) -> None:
    rung = only(verdict_of(tmp_path, BATCH))
    ran = [one.feed for one in rung.feeds if one.feed is not None and one.feed.assignment["batch"]]
    assert [(one.kind, one.last, one.assignment["batch"]) for one in ran] == [
        ("normal", None, 1),
        ("normal", "extreme", 2),
    ]
    assert "normal values, extreme ones in the batch's last item" in ran[1].label
    mixed = ran[1].values(signature(proto_of(BATCH)))
    assert abs(mixed["x"][0]).max() < 1e3 < abs(mixed["x"][1]).max()
    assert mixed["m"].shape == (2,)
    assert all(one.feed.last is None for one in rung.left_out)
    # Within a tolerance, large values hide what is wrong with small ones.
    kinds = [kind for kind, found in sizes(only(verdict_of(tmp_path, BATCH, exact=False))) if 0 not in found]
    assert kinds == ["normal", "normal", "edge"]
    whole = only(verdict_of(tmp_path, BATCH, effort=THOROUGH))
    assert all(one.feed is not None and one.feed.last is None for one in whole.feeds)


def test_inputs_that_share_no_batch_have_runs_of_their_own(tmp_path: Path, dear: None) -> None:
    for text in (ABS, BATCH.replace("bool[batch]", "bool[other]"), BATCH.replace("bool[batch]", "bool[3]")):
        assert [kind for kind, _ in sizes(only(verdict_of(tmp_path, text)))][-1] == "extreme"


def test_what_is_wrong_with_the_hardest_values_is_seen_in_the_last_item(tmp_path: Path, dear: None) -> None:
    before = "g (float[batch, 4] x) => (float[batch, 4] y) { t = Add(x, x) y = Sub(t, x) }"
    after = "g (float[batch, 4] x) => (float[batch, 4] y) { y = Identity(x) }"
    wrong = ended("failed", only(verdict_of(tmp_path, before, after)))
    assert "last item" in wrong.reason


def test_quick_and_seconds_are_strict(tmp_path: Path, dear: None) -> None:
    quick = only(verdict_of(tmp_path, ABS, effort=QUICK))
    assert sizes(quick) == [("normal", (1, 1)), ("normal", (0, 5)), ("normal", (3, 0)), ("extreme", (1, 1))]
    assert len(quick.left_out) == 3
    none = only(verdict_of(tmp_path, ABS, effort=effort_of(0)))
    assert [kind for kind, found in sizes(none) if 0 not in found] == ["normal"]
    much = only(verdict_of(tmp_path, ABS, effort=effort_of(10**5)))
    assert much.left_out == ()


def test_a_dear_static_model_gets_the_hardest_values_second(tmp_path: Path, dear: None) -> None:
    text = "g (float[2, 3] x) => (float[2, 3] y) { y = Abs(x) }"
    assert [kind for kind, _ in sizes(only(verdict_of(tmp_path, text)))] == ["normal", "extreme"]
    assert [kind for kind, _ in sizes(only(verdict_of(tmp_path, text, exact=False)))] == ["normal", "edge"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Only where batch is more than 1:
        ("y = Add(x, x)", "s = Slice(x, zero, one, zero) y = Add(x, s)"),
        # Only where values are extreme: float32 holds 3e38, and not twice that.
        ("t = Add(x, x) y = Sub(t, x)", "y = Identity(x)"),
        # Only where something is empty: a minimum of 1 row.
        (
            "y = Abs(x)",
            "p = Pad(x, pads, one_f) a = Abs(p) n = Shape(x) m = Max(n, one4) y = Slice(a, z3, m)",
        ),
    ],
    ids=["batch", "extreme", "empty"],
)
def test_what_is_wrong_is_seen_on_fewer_inputs(tmp_path: Path, dear: None, before: str, after: str) -> None:
    head = """g (float[batch, seq, 4] x) => (float[B, S, 4] y)
        <int64[1] zero = {0}, int64[1] one = {1}, float one_f = {1}, int64[6] pads = {0,0,0,1,0,0},
         int64[3] one4 = {1,0,0}, int64[3] z3 = {0,0,0}> """
    ended("failed", only(verdict_of(tmp_path, f"{head} {{ {before} }}", f"{head} {{ {after} }}")))
    assert only(verdict_of(tmp_path, f"{head} {{ {before} }}")).status == "passed"


def test_inputs_of_the_users_own_all_run(tmp_path: Path, dear: None) -> None:
    import numpy as np

    given = [{"x": np.ones((size, 9, 4), np.float32)} for size in (1, 7, 30)]
    rung = only(verdict_of(tmp_path, ABS, inputs=given, effort=QUICK))
    assert (len(rung.feeds), rung.left_out) == (3, ())


def test_quantizers_get_their_values_at_an_affordable_shape(tmp_path: Path, dear: None) -> None:
    text = """g (float[batch, seq, 4] x) => (float[batch, seq, 4] y) <float s = {0.5}, int8 z = {0}>
        { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    assert ("quantized", (1, 1)) in sizes(only(verdict_of(tmp_path, text)))
    strict = only(verdict_of(tmp_path, text, effort=effort_of(0)))
    assert "quantized" in [one.feed.kind for one in strict.left_out]


# ---- the reference evaluator


@pytest.fixture
def slow_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "CHEAP", -1)


def reference_of(folder: Path, before: str = ABS, after: str = "", **more: Any) -> RungResult:
    return only(verdict_of(folder, before, after, rungs=None, **more), "reference")


@pytest.fixture(autouse=True)
def no_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rungs that run models alone."""
    monkeypatch.setattr(proving, "DEFAULT_RUNGS", ("contract", "reference", "ort-cpu"))


def test_the_evaluator_runs_where_it_adds_something(
    tmp_path: Path, slow_evaluator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = reference_of(tmp_path)
    assert (spared.status, spared.cause, spared.reason) == ("skipped", "redundant", "adds nothing to ort-cpu")
    assert reference_of(tmp_path, effort=THOROUGH).status == "passed"
    assert reference_of(tmp_path, require=["reference"]).status == "passed"
    assert only(verdict_of(tmp_path, ABS, rungs=["reference", "ort-cpu"]), "reference").status == "passed"
    half = ABS.replace("float[", "float16[")
    assert reference_of(tmp_path, half).status == "passed"
    monkeypatch.setattr(request, "CHEAP", 10**9)
    assert reference_of(tmp_path).status == "passed", "it costs next to nothing"


def test_the_evaluator_takes_the_place_of_onnx_runtime(
    tmp_path: Path, slow_evaluator: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No kernel for this type:
    text = "g (int64[batch, 4] x) => (int64[batch, 4] y) { y = Relu(x) }"
    verdict = verdict_of(tmp_path, text, rungs=None)
    assert only(verdict).status == "skipped"
    assert only(verdict, "reference").status == "passed"
    assert verdict.passed
    real = backends.missing
    monkeypatch.setattr(backends, "missing", lambda name: "gone" if name == "ort-cpu" else real(name))
    verdict = verdict_of(tmp_path, ABS, rungs=None)
    assert [one.status for one in verdict.rungs] == ["passed", "passed", "skipped"]


def test_a_failure_has_the_results_of_thorough(tmp_path: Path, slow_evaluator: None) -> None:
    """A fix for which ONNX Runtime has no kernel stands if the evaluator shows it."""
    before = "g (int64[batch, 4] x) => (int64[batch, 4] y) <int64 z = {0}> { y = Max(x, z) }"
    after = "g (int64[batch, 4] x) => (int64[batch, 4] y) { y = Relu(x) }"
    found = []
    for effort in (DEFAULT, THOROUGH):
        rungs = verdict_of(tmp_path, before, after, rungs=None, effort=effort).rungs
        found.append([(one.name, one.status, one.reason) for one in rungs])
    assert found[0] == found[1]
    assert [status for _, status, _ in found[0]] == ["passed", "passed", "skipped"]
    wrong = verdict_of(tmp_path, ABS, ABS.replace("Abs", "Neg"), rungs=None)
    assert [one.status for one in wrong.rungs] == ["passed", "failed", "failed"]


# ---- words


def test_what_was_left_out_is_one_line() -> None:
    rung = RungFact("ort-cpu", "passed", left_out=2, spared=14.4)
    assert describe_left_out(rung) == "2 planned inputs of ort-cpu, about 14 s → --effort thorough"
    assert describe_left_out(RungFact("ort-cpu", "passed")) == ""
