"""The ladder: what passes, what fails, what is skipped and why."""
# Long because: the cases are pairs of small models

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfix.errors import ModelError, UsageError
from onnxfix.inputs.feeds.signature import signature
from onnxfix.proof.verdict import CPU_RUNGS
from onnxfix.proof.verify import Limits, RungResult, Verdict, verify
from onnxfix.runtime.sandbox import Outcome, Worker
from onnxfix.tensorrt.records import TrtOptions
from support.ended import ended
from support.models import model
from support.patience import PATIENCE

VALUES = ("reference", "ort-cpu")
Verify = Callable[..., Verdict]


@pytest.fixture
def run(tmp_path: Path, worker: Worker) -> Verify:
    """``verify`` of two models in ONNX text or as protos; the first is also the second when that is left out."""

    def call(original: Any, fixed: Any = None, *, exact: bool = True, **more: Any) -> Verdict:
        paths = []
        for name, given in (("original", original), ("fixed", fixed)):
            if given is not None:
                (tmp_path / name).mkdir(exist_ok=True)
                paths.append(tmp_path / name / "m.onnx")
                paths[-1].write_bytes(as_proto(given).SerializeToString())
        more.setdefault("worker", worker)
        more.setdefault("rungs", CPU_RUNGS)
        return verify(paths[0], paths[-1], exact=exact, **more)

    return call


def as_proto(text: Any, opset: int = 17) -> onnx.ModelProto:
    return text if isinstance(text, onnx.ModelProto) else model(text, opset, 8)


def statuses(verdict: Verdict) -> dict[str, str]:
    return {one.name: one.status for one in verdict.rungs}


ADD = "g (float[N, 2] x) => (float[N, 2] y) { y = Add(x, x) }"
RELU = "g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }"


def test_equal_models_pass_everywhere(run: Verify) -> None:
    verdict = run(ADD, ADD)
    assert set(statuses(verdict)) == {"contract", "symbolic", "reference", "ort-cpu"}
    assert set(statuses(verdict).values()) == {"passed"}
    assert (verdict.passed, verdict.failed) == (True, False)
    for name in VALUES:
        assert "over 4 shapes" in verdict.rung(name).reason
        sizes = {one.feed.assignment["N"] for one in verdict.rung(name).feeds if one.feed is not None}
        assert sizes == {0, 1, 2, 3, 16}


def test_a_difference_is_found_and_can_be_repeated(run: Verify, tmp_path: Path) -> None:
    verdict = run(ADD, RELU, seed=11)
    assert (verdict.passed, verdict.failed) == (False, True)
    for name in VALUES:
        found = verdict.rung(name)
        assert (found.status, found.seed, found.exact) == ("failed", 11, True)
        last = found.feeds[-1]
        assert last.status == "different"
        assert last.feed is not None
        (metrics,) = last.metrics
        from onnxfix.inputs.feeds.inputs import make_inputs
        from onnxfix.runtime.backends import reference

        made = make_inputs(
            tmp_path / "original" / "m.onnx", last.feed.assignment, last.feed.seed, kind=last.feed.kind
        )
        paths = [str(tmp_path / which / "m.onnx") for which in ("original", "fixed")]
        outputs = [reference.load(path).run(made)[0] for path in paths]
        assert metrics.at is not None
        assert metrics.values == (str(outputs[0][metrics.at]), str(outputs[1][metrics.at]))
        assert f"at {list(metrics.at)}" in found.reason


DIFFERENT_LATER = [
    # agrees at batch 1: the sum over the batch
    ("g (float[N, 2] x) => (float[N, 2] y) { s = ReduceMean<axes = [0]>(x) d = Sub(x, s) y = Add(d, s) }", ADD),
    # a mean over the batch is the thing itself at batch 1
    (
        "g (float[N, 2] x) => (float[A, 2] y) { y = Identity(x) }",
        "g (float[N, 2] x) => (float[A, 2] y) { y = ReduceMean<axes = [0]>(x) }",
    ),
    # a hard-coded batch of 2
    (
        "g (float[N, 2] x) => (float[A, B] y) <int64[2] s = {-1, 4}> { r = Concat<axis = 1>(x, x) y = Identity(r) }",
        "g (float[N, 2] x) => (float[A, B] y) <int64[2] s = {2, 4}> { r = Concat<axis = 1>(x, x) y = Reshape(r, s) }",
    ),
    # 0 means "copy" or "nothing" only where a dimension is 0
    (
        "g (float[N, 2] x) => (float[A, B] y) <int64[2] s = {0, 2}> { y = Reshape(x, s) }",
        "g (float[N, 2] x) => (float[A, B] y) <int64[2] s = {-1, 2}> { z = Relu(x) n = Neg(x) m = Relu(n) "
        "d = Sub(z, m) k = Reshape(d, s) u = ReduceMax<keepdims = 0>(k) y = Identity(k) }",
    ),
    # differs in the sign of zero alone
    (
        "g (float[N] x) => (float[N] y) { y = Identity(x) }",
        "g (float[N] x) => (float[N] y) <float z = {0}> { y = Add(x, z) }",
    ),
    # differs only beyond 2^24
    (
        "g (int64[N] x) => (int64[N] y) { y = Identity(x) }",
        "g (int64[N] x) => (int64[N] y) { f = Cast<to = 1>(x) y = Cast<to = 7>(f) }",
    ),
    (
        "g (int64[4] x) => (int64[4] y) { y = Identity(x) }",
        "g (int64[4] x) => (int64[4] y) { f = Cast<to = 11>(x) y = Cast<to = 7>(f) }",
    ),
    (
        "g (int64[4] x) => (int64[4] y) { y = Identity(x) }",
        "g (int64[4] x) => (int64[4] y) { f = Cast<to = 6>(x) y = Cast<to = 7>(f) }",
    ),
    (
        "g (uint8[9] x) => (uint8[9] y) { y = Identity(x) }",
        "g (uint8[9] x) => (uint8[9] y) { f = Cast<to = 3>(x) g = Relu(f) y = Cast<to = 2>(g) }",
    ),
    # differs only in the values that a caller gives for a default
    (
        "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Add(x, w) }",
        "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) <float[2] v = {1, 2}> { y = Add(x, v) }",
    ),
    # differs in one branch only
    (
        "g (bool c, float[2] x) => (float[2] y) { y = If(c)<then_branch = t () => (float[2] a) { a = Identity(x) }, "
        "else_branch = e () => (float[2] b) { b = Neg(x) }> }",
        "g (bool c, float[2] x) => (float[2] y) { y = Identity(x) }",
    ),
    (
        "g (bool c, float[2] x) => (float[2] y) { y = If(c)<then_branch = t () => (float[2] a) { a = Identity(x) }, "
        "else_branch = e () => (float[2] b) { b = Neg(x) }> }",
        "g (bool c, float[2] x) => (float[2] y) { y = Neg(x) }",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("original", "fixed"), DIFFERENT_LATER)
def test_differences_that_one_random_input_misses(run: Verify, original: str, fixed: str) -> None:
    verdict = run(original, fixed)
    assert verdict.failed, [one.reason for one in verdict.rungs]


def test_tolerance_is_for_numeric_fixes_alone(run: Verify) -> None:
    reordered = (
        "g (float[N, 2] x) => (float[N, 2] y) <float a = {3}, float b = {7}> { c = Div(x, a) y = Div(c, b) }"
    )
    merged = "g (float[N, 2] x) => (float[N, 2] y) <float a = {21}> { y = Div(x, a) }"
    assert run(reordered, merged).failed
    verdict = run(reordered, merged, exact=False)
    assert verdict.passed
    assert "within tolerance" in verdict.rung("ort-cpu").reason
    off = "g (float[N, 2] x) => (float[N, 2] y) <float a = {20.9}> { y = Div(x, a) }"
    assert run(reordered, off, exact=False).failed


# ---- contract


def test_the_contract_of_the_caller(run: Verify) -> None:
    seen: list[tuple[str, str]] = []

    def contract(original: onnx.ModelProto, fixed: onnx.ModelProto) -> list[str]:
        seen.append((original.graph.node[0].op_type, fixed.graph.node[0].op_type))
        return ["output y changed\nits type", "another"]

    verdict = run(ADD, RELU, contract=contract, rungs=["contract"])
    assert seen == [("Add", "Relu")]
    assert verdict.rung("contract").reason == "output y changed its type (and 1 more)"
    assert verdict.rung("contract").notes == ("output y changed its type", "another")
    assert verdict.failed
    verdict = run(ADD, RELU, contract=lambda a, b: [], rungs=["contract"])
    assert (verdict.passed, list(statuses(verdict))) == (True, ["contract"])


INVALID = "g (float[2] x) => (float[2] y) { y = Relu(x, x) }"


def test_the_checker_counts_only_if_the_original_passes_it(run: Verify) -> None:
    verdict = run(ADD, INVALID, rungs=["contract"])
    assert verdict.failed
    assert "the new model does not pass onnx.checker" in verdict.rung("contract").reason
    verdict = run(INVALID, INVALID, rungs=["contract"])
    assert (statuses(verdict)["contract"], verdict.passed, verdict.failed) == ("skipped", False, False)
    verdict = run(INVALID, INVALID, rungs=["contract"], contract=lambda a, b: [])
    assert verdict.passed
    words = "the interface is unchanged; the original is not valid ONNX: "
    assert verdict.rung("contract").reason.startswith(words)
    assert "; the new model is not, either: " in verdict.rung("contract").reason


# ---- who fails


UNKNOWN_OP = "g (float[2] x) => (float[2] y) { y = nowhere.Thing(x) }"
BAD_RESHAPE = "g (float[N, 2] x) => (float[A, B] y) <int64[2] s = {5, 7}> { y = Reshape(x, s) }"
SAME = "g (float[N, 2] x) => (float[A, B] y) { y = Identity(x) }"


@pytest.mark.parametrize(
    ("original", "fixed", "status", "words"),
    [
        (UNKNOWN_OP, "g (float[2] x) => (float[2] y) { y = Relu(x) }", "skipped", "the original cannot be loaded: "),
        ("g (float[2] x) => (float[2] y) { y = Relu(x) }", UNKNOWN_OP, "failed",
         "the original loads, the new model does not: "),
        (BAD_RESHAPE, SAME, "skipped", "the original fails: "),
        (SAME, BAD_RESHAPE, "failed", "the original runs, the new model does not: "),
    ],
)  # fmt: skip
def test_who_does_not_load_or_run(run: Verify, original: str, fixed: str, status: str, words: str) -> None:
    verdict = run(original, fixed)
    for name in VALUES:
        assert verdict.rung(name).status == status
        assert words in verdict.rung(name).reason
        assert "\n" not in verdict.rung(name).reason
        if words == "the original fails: ":
            assert {one.status for one in verdict.rung(name).feeds} == {"not counted"}
    assert (verdict.passed, verdict.failed) == (False, status == "failed"), "not checked is not passed"


AT_LEAST_0 = "g (int64[N, 2] x) => (int64[N, 2] y) <int64 z = {0}> { y = Max(x, z) }"
# Valid and the same; ONNX Runtime's CPU provider has no Relu of int64.
NO_KERNEL = "g (int64[N, 2] x) => (int64[N, 2] y) { y = Relu(x) }"


def test_a_missing_kernel_is_no_fault_of_a_fixed_model_that_was_shown_to_be_the_same(run: Verify) -> None:
    verdict = run(AT_LEAST_0, NO_KERNEL)
    expected = {"contract": "passed", "reference": "passed", "ort-cpu": "skipped"}
    assert expected.items() <= statuses(verdict).items()
    assert (verdict.passed, verdict.compared) == (True, True)
    assert "the new model, which reference has compared, has no kernel here" in verdict.rung("ort-cpu").reason


def test_a_missing_kernel_counts_where_nothing_was_shown(run: Verify) -> None:
    """Nothing else ran, or something else is asked for: the fix is to be withdrawn, so that the others are proven."""
    for more in ({"rungs": ["contract", "ort-cpu"]}, {"require": ["ort-cpu"]}):
        verdict = run(AT_LEAST_0, NO_KERNEL, **more)
        assert verdict.rung("ort-cpu").refutes, more
        assert "the original loads, the new model does not" in verdict.rung("ort-cpu").reason
    verdict = run(AT_LEAST_0, NO_KERNEL.replace("y = Relu(x)", "m = Relu(x)  y = Neg(m)"))
    assert {statuses(verdict)[name] for name in VALUES} == {"failed"}, "the reference evaluator refutes it"


BACKEND = """
import os, onnx
from onnxfix.runtime.backends import NoKernel
def load(path): return Session(path)
class Session:
    outputs = ["y"]
    def __init__(self, path): self.op = onnx.load(path).graph.node[0].op_type
    def run(self, feed):
        {body}
        return [feed["x"]]
"""
REMOTE = """
from onnxfix.runtime import backends
from onnxfix.proof.remote import *
backends.BACKENDS["ort-cpu"] = "odd_backend"
"""


@pytest.fixture
def odd(run: Verify, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Verify]:
    """``verify`` with a backend of our own for ort-cpu: ``body`` comes before it returns its input."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("onnxfix.proof.pair.REMOTE", "odd_remote")
    (tmp_path / "odd_remote.py").write_text(REMOTE)
    with Worker() as worker:

        def call(body: str, original: str, fixed: str, rungs: Any = ("ort-cpu",)) -> Verdict:
            (tmp_path / "odd_backend.py").write_text(BACKEND.format(body=body))
            return run(original, fixed, rungs=rungs, worker=worker)

        yield call


def test_a_kernel_that_is_found_missing_when_it_runs(odd: Verify) -> None:
    same = "g (float[N, 2] x) => (float[A, B] y) { m = Neg(x)  y = Neg(m) }"
    lacks = 'if self.op == "Identity" and len(feed["x"]) == 2: raise NoKernel("not for batches of 2")'
    found = ended("passed", odd(lacks, same, SAME, CPU_RUNGS).rung("ort-cpu"))
    (lacking,) = [one for one in found.feeds if one.status == "not counted"]
    assert lacking.feed.assignment["N"] == 2
    assert "not for batches of 2" in lacking.reason
    assert any("not for batches of 2" in note for note in found.notes)
    alone = odd(lacks, same, SAME).rung("ort-cpu")
    assert alone.refutes
    assert "the original runs, the new model does not: NoKernel: not for batches of 2" in alone.reason


def test_feeds_that_the_original_refuses_do_not_count(run: Verify) -> None:
    # How many elements are not 0 is data: nobody knows it before.
    only_even = """g (float[N, 2] x) => (int64[A, B] y) <int64[2] s = {-1, 8}> {
        z = Exp(x)  n = NonZero(z)  y = Reshape(n, s) }"""
    verdict = run(only_even)
    for name in VALUES:
        found = ended("passed", verdict.rung(name))
        assert any("feeds do not count: the original fails" in note for note in found.notes)
        assert "shapes" in found.reason, "it went on to shapes that the model takes"


def test_the_hardest_values_find_a_shape(run: Verify) -> None:
    """The model takes up to 8 rows, and the hardest values were planned for 16."""
    table = """g (float[N, 2] x) => (float[N, 2] y) <float[8, 2] w = {%s}, int64[1] z = {0}>
    { s = Shape<end = 1>(x) k = Slice(w, z, s) y = Add(x, k) }"""
    verdict = run(table % ", ".join(["0.5"] * 16))
    for name in VALUES:
        kinds = {one.feed.kind for one in verdict.rung(name).feeds if one.feed and one.status == "identical"}
        assert kinds == {"normal", "edge", "extreme"}


# ---- models that draw lots


#: A Dropout in training, which is not given the same numbers in both models, as RandomNormalLike is.
RANDOM = """g (float[64] x) => (float[64] y, float[64] r) <bool t = {1}, float h = {0.5}>
{ y = Add(x, x) z = Dropout(y, h, t) e = Exp(x) d = Dropout(e, h, t) r = Add(z, d) }"""


def test_outputs_that_differ_from_themselves_are_excluded_and_named(run: Verify) -> None:
    verdict = run(RANDOM)
    for name in VALUES:
        found = verdict.rung(name)
        assert (found.status, found.excluded) == ("passed", ("r",))
        assert "the original is not deterministic there: r" in found.notes[-1]
    changed = RANDOM.replace("y = Add", "y = Mul")
    assert run(RANDOM, changed).failed, "the other output is still compared"


def test_when_all_outputs_are_random_no_run_proves_anything(run: Verify) -> None:
    only = (
        "g (float[64] x) => (float[64] r) <bool t = {1}, float h = {0.5}> { e = Exp(x) r = Dropout(e, h, t) }"
    )
    verdict = run(only)
    assert {statuses(verdict)[name] for name in VALUES} == {"skipped"}
    assert {one.name for one in verdict.rungs if one.status == "passed"} == {"contract", "symbolic"}
    assert "no output is the same in two runs" in verdict.rung("ort-cpu").reason


NOISY = """g (float[N,4] x, bool c) => (float[N,4] y, float[N,4] z, float[3] q) <float[4] b = {1,2,3,4}> {
    s = Sigmoid(x)  k = Bernoulli(s)  v = RandomNormal<shape = [4], mean = 2.0>()  m = Mul(x, k)  y = Add(m, v)
    u = RandomUniform<shape = [3], low = -2.0, high = 3.0>()  q = Add(u, u)
    z = If(c)<then_branch = t () => (float[N,4] a) { r = RandomNormalLike(x)  a = Add(r, b) },
              else_branch = e () => (float[N,4] d) { d = Add(x, b) }> }"""


@pytest.mark.parametrize("opset", [15, 21])
def test_random_nodes_give_both_models_the_same_numbers(run: Verify, opset: int) -> None:
    other = NOISY.replace("m = Mul(x, k)", "m = Mul(k, x)")
    found = run(as_proto(NOISY, opset=opset), as_proto(other, opset=opset)).rung("ort-cpu")
    assert (found.status, found.random, found.excluded) == ("passed", ("k", "r", "u", "v"), ())
    alone = "g (float[N,4] x) => (float[N,4] y) { r = RandomNormalLike(x)  y = Add(r, x) }"
    verdict = run(as_proto(alone, opset=opset))
    assert {(verdict.rung(name).status, verdict.rung(name).random) for name in VALUES} == {("passed", ("r",))}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("m = Mul(x, k)", "m = Add(x, k)"), ("Add(r, b)", "Sub(r, b)"), ("Sub(u, u2)", "Sub(u2, u)")],
)
def test_what_is_wrong_behind_random_nodes_is_seen(run: Verify, right: str, wrong: str) -> None:
    more = NOISY.replace("q = Add(u, u)", "u2 = RandomUniform<shape = [3]>()  q = Sub(u, u2)")
    other = more.replace(right, wrong)
    assert run(as_proto(more, opset=21), as_proto(other, opset=21), rungs=["ort-cpu"]).failed


def test_a_random_node_that_nothing_reads_may_go(run: Verify) -> None:
    more = NOISY.replace("s = Sigmoid(x)", "s = Sigmoid(x)  dead = RandomNormalLike(x)")
    assert run(as_proto(more, opset=21), as_proto(NOISY, opset=21), rungs=["ort-cpu"]).passed


def test_a_clip_of_the_tails_of_a_normal_draw_is_seen(run: Verify) -> None:
    text = "g (float[64] x) => (float[64] y) { r = RandomNormalLike(x)  y = Clip(r, a, b) }"
    text = text.replace("(float[64] y) {", "(float[64] y) <float a = {-2}, float b = {2}> {")
    assert run(as_proto(text), as_proto(text.replace("Clip(r, a, b)", "Identity(r)"))).failed


def test_random_nodes_that_onnx_runtime_does_not_take_are_not_proven_by_it(run: Verify) -> None:
    text = "g (int32[4] x) => (int32[4] y) { r = RandomNormalLike(x)  y = Add(r, x) }"
    found = run(as_proto(text), rungs=["ort-cpu"]).rung("ort-cpu")
    assert (found.status, found.stopped, found.random) == ("skipped", "original", ())


@pytest.mark.parametrize("other", ["v = RandomNormal<shape = [4], mean = 3.0>()", "v = Identity(b)"])
def test_other_random_nodes_are_not_given_the_same_numbers(run: Verify, other: str) -> None:
    verdict = run(
        as_proto(NOISY, opset=21),
        as_proto(NOISY.replace("v = RandomNormal<shape = [4], mean = 2.0>()", other), opset=21),
        rungs=["ort-cpu"],
    )
    assert (verdict.passed, verdict.rung("ort-cpu").random) == (False, ())


TWICE = """<ir_version: 8, opset_import: ["": 17, "my": 1]>
    g (float[3] x) => (float[3] y) { a = my.lot(x)  b = my.lot(x)  y = Sub(a, b) }
    <domain: "my", opset_import: ["": 17]> lot (v) => (w) { r = RandomNormalLike(v)  w = Add(v, r) }"""
LOOPED = """<ir_version: 8, opset_import: ["": 17]>
    g (float[3] x) => (float[3] y) <int64 n = {2}, bool k = {1}> {
    y = Loop(n, k, x)<body = b (int64 i, bool c, float[3] s) => (bool d, float[3] t) {
        d = Identity(c)  r = RandomNormalLike(x)  t = Sub(r, s) }> }"""


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (TWICE, "Sub(a, b)", "Sub(a, a)"),  # two draws of one node
        (LOOPED, "y = Loop", "r = RandomNormalLike(x)  y = Loop"),  # and two of one that leaves the loop
    ],
)
def test_what_draws_more_than_once_is_not_given_the_same_numbers(
    run: Verify, text: str, right: str, wrong: str
) -> None:
    other = text.replace(right, wrong)
    if text is LOOPED:
        other = other.replace("d = Identity(c)  r = RandomNormalLike(x) ", "d = Identity(c) ")
    for two in (text, other):
        verdict = run(parser.parse_model(text), parser.parse_model(two), rungs=["ort-cpu"])
        assert (verdict.passed, verdict.rung("ort-cpu").random) == (False, ())


def test_where_copies_do_not_run_the_other_outputs_are_compared(run: Verify) -> None:
    text = "g (float[N,3] x) => (float[N,3] y, float[N,3] z) { r = RandomNormalLike(x)  z = Add(r, x)  y = Neg(x)"
    proto = as_proto(text + " q = Abs(x) }")
    proto.graph.node[3].output[0] = "r:number:0"
    verdict = run(proto, rungs=["ort-cpu"])
    assert (verdict.passed, verdict.rung("ort-cpu").excluded) == (True, ("z",))


def test_a_rare_draw_is_no_failure(run: Verify) -> None:
    rare = """g (float[1] x) => (float[1] y, float[1] z) <float[1] p = {0.3}>
    { b = Bernoulli(p) y = Add(b, x) z = Relu(x) }"""
    for seed in range(8):
        assert run(rare, rare, seed=seed, rungs=["ort-cpu"]).passed


def test_what_hangs_on_a_draw_is_known(run: Verify) -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "my": 1]>
        g (float[2] x, bool t) => (float[2] a, float[2] b, int64[1] c, float[2] d, float[2] e, float[2] f) {
          n = RandomNormalLike(x)
          a = Relu(n)
          b = Relu(x)
          c = Shape(n)
          q = ReduceMax<keepdims = 0>(n)
          k = Cast<to = 9>(q)
          d = If(k)<then_branch = u () => (float[2] v) { v = Neg(x) },
            else_branch = w () => (float[2] y) { y = Abs(x) }>
          e = my.lot(x)
          f = Dropout(x, , t)
        }
        <domain: "my", opset_import: ["": 17]> lot (x) => (y) { r = RandomUniformLike(x) y = Add(r, x) }"""
    )
    assert signature(proto).drawn == ("a", "d", "e", "f")
    assert signature(as_proto(ADD)).drawn is None
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    changed.graph.node[2].op_type = "Size"
    assert run(proto).passed
    assert run(proto, changed).failed, "the shape of a draw is no draw"


# ---- crashes, hangs, memory


def endless(op: str = "Sin") -> onnx.ModelProto:
    """A Loop of 2^40 rounds."""
    return as_proto(
        f"""g (float[N, 2] x) => (float[N, 2] y) <int64 n = {{1099511627776}}, bool go = {{1}}>
        {{ y = Loop(n, go, x)<body = b (int64 i, bool c, float[N, 2] s) => (bool d, float[N, 2] t)
        {{ d = Identity(c)  t = {op}(s) }}> }}"""
    )


def bomb() -> onnx.ModelProto:
    """Asks for 2^38 elements."""
    return as_proto(
        """g (float[N, 2] x) => (float[N, 2] y) <int64[1] n = {274877906944}>
        { big = ConstantOfShape(n)  s = ReduceSum(big)  y = Add(x, s) }"""
    )


class Hasty(Worker):
    """Waits three seconds for a run, which takes milliseconds or does not end, and as long as it takes for the rest."""

    def call(self, target: str, *, timeout: float, **kwargs: Any) -> Outcome:
        return super().call(target, timeout=3.0 if target.endswith(":run") else PATIENCE, **kwargs)


@pytest.mark.long
def test_a_hang_of_the_original_is_skipped_and_of_the_fixed_model_fails(run: Verify) -> None:
    limits = Limits(total=6.0, reference_total=6.0)
    with Hasty() as hasty:
        verdict = run(endless(), ADD, limits=limits, worker=hasty)
        assert {statuses(verdict)[name] for name in VALUES} == {"skipped"}
        assert "took more than 3 s" in verdict.rung("ort-cpu").reason
        verdict = run(ADD, endless(), limits=limits, worker=hasty)
        assert statuses(verdict)["ort-cpu"] == "failed"
        assert "took more than 3 s" in verdict.rung("ort-cpu").reason
        assert statuses(verdict)["reference"] == "skipped", "the evaluator's slowness proves nothing"
        assert hasty.generation <= 12, "at most three children die of a model on a rung"


@pytest.mark.slow
def test_memory_bombs_are_results(run: Verify) -> None:
    limits = Limits(memory_mb=2000)
    verdict = run(bomb(), ADD, limits=limits, worker=None)
    assert {statuses(verdict)[name] for name in VALUES} == {"skipped"}
    verdict = run(ADD, bomb(), limits=limits, worker=None)
    assert {statuses(verdict)[name] for name in VALUES} == {"failed"}


def test_a_crash_is_laid_at_the_right_door(odd: Verify) -> None:
    """A backend that dies at batch 2 when the model is a Relu."""
    dies = 'if self.op == "Relu" and len(feed["x"]) == 2: os.abort()'
    found = ended("passed", odd(dies, RELU, ADD).rung("ort-cpu"))
    crashed = [one for one in found.feeds if one.status == "not counted"]
    assert [one.feed.assignment["N"] for one in crashed if one.feed] == [2]
    assert "killed by SIGABRT" in crashed[0].reason
    assert any("killed by SIGABRT" in note for note in found.notes)
    refuted = odd(dies, ADD, RELU).rung("ort-cpu")
    assert refuted.refutes
    assert "the original runs, the new model does not: killed by SIGABRT" in refuted.reason


def test_an_original_that_always_crashes_is_not_asked_for_ever(odd: Verify) -> None:
    found = ended("skipped", odd('if self.op == "Relu": os.abort()', RELU, ADD).rung("ort-cpu"))
    assert "the original fails: killed by SIGABRT" in found.reason
    assert len(found.feeds) == 3


# ---- what the caller asks for


def test_given_inputs(run: Verify, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((4, 2), np.float32))
    relu_sees_nothing = run(ADD.replace("Add(x, x)", "Identity(x)"), RELU, inputs=tmp_path / "in.npz")
    assert relu_sees_nothing.passed
    assert relu_sees_nothing.rung("ort-cpu").feeds[0].label == "inputs 1 of 1"
    feeds = [{"x": np.ones((4, 2), np.float32)}, {"x": -np.ones((1, 2), np.float32)}]
    verdict = run(ADD.replace("Add(x, x)", "Identity(x)"), RELU, inputs=feeds)
    assert verdict.failed
    assert "inputs 2 of 2" in verdict.rung("ort-cpu").reason
    with pytest.raises(UsageError, match="expected float32, got float64"):
        run(ADD, inputs=[{"x": np.ones((1, 2))}])
    with pytest.raises(UsageError, match="no feed"):
        run(ADD, inputs=[])


def test_given_shapes(run: Verify) -> None:
    verdict = run(ADD, input_shapes=["x:[6,2]"])
    sizes = {tuple(one.feed.assignment.items()) for one in verdict.rung("ort-cpu").feeds if one.feed}
    assert sizes == {(("N", 6),)}
    assert run(ADD, input_shapes={"x": (6, 2)}).passed
    with pytest.raises(UsageError, match="size 2 in dimension 1"):
        run(ADD, input_shapes=["x:6x3"])


def test_required_rungs(run: Verify) -> None:
    assert run(ADD, require=["ort-cpu"]).passed
    verdict = run(ADD, require=["trt-network"], trt=TrtOptions(package="tensorrt"))
    assert (verdict.failed, verdict.passed) == (True, False)
    assert verdict.rung("trt-network").status == "skipped"
    assert verdict.rung("trt-network").reason.startswith("tensorrt is not installed")
    assert run(UNKNOWN_OP, require=["ort-cpu"]).failed
    with pytest.raises(UsageError, match="unknown check 'ort'; choose from contract, symbolic, reference"):
        run(ADD, require=["ort"])


def test_chosen_rungs_keep_their_order(run: Verify) -> None:
    assert list(statuses(run(ADD, rungs=["ort-cpu", "contract"]))) == ["contract", "ort-cpu"]
    assert list(statuses(run(ADD, rungs=["contract"], require=["reference"]))) == ["contract", "reference"]


def test_without_onnxruntime_the_reference_proves(run: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    verdict = run(ADD)
    expected = {"contract": "passed", "reference": "passed", "ort-cpu": "skipped"}
    assert expected.items() <= statuses(verdict).items()
    assert 'pip install "onnxfix[cpu]"' in verdict.rung("ort-cpu").reason
    assert verdict.passed
    assert run(ADD, require=["ort-cpu"]).failed


def test_a_model_too_large_for_the_reference(run: Verify) -> None:
    large = "g (float[40000, 40000] x) => (float[40000, 40000] y) { y = Relu(x) }"
    verdict = run(large, rungs=["reference"])
    assert statuses(verdict) == {"reference": "skipped"}
    assert "too large for onnx.reference" in verdict.rung("reference").reason


def test_no_input_can_be_made(run: Verify) -> None:
    large = "g (float[40000, 40000] x) => (float[40000, 40000] y) { y = Relu(x) }"
    found = run(large, rungs=["ort-cpu"]).rung("ort-cpu")
    assert (found.status, "too large to make test data" in found.reason) == ("skipped", True)


def test_external_data_in_two_folders(tmp_path: Path, worker: Worker) -> None:
    paths = []
    for folder, bias in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        proto = as_proto("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.full(2, bias, np.float32), "w"))
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "m.onnx")
        onnx.save(proto, paths[-1], save_as_external_data=True, location=f"{folder}.bin", size_threshold=0)
    for path, status in ((paths[1], "passed"), (paths[2], "failed")):
        verdict = verify(paths[0], path, exact=True, worker=worker, rungs=CPU_RUNGS)
        assert {statuses(verdict)[name] for name in VALUES} == {status}


def test_relative_paths(tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(as_proto(ADD).SerializeToString())
    monkeypatch.chdir(tmp_path)
    verdict = verify("m.onnx", Path("m.onnx"), exact=True, worker=worker, rungs=CPU_RUNGS)
    assert set(statuses(verdict).values()) == {"passed"}


def test_bad_paths(tmp_path: Path, worker: Worker) -> None:
    good = tmp_path / "m.onnx"
    good.write_bytes(as_proto(ADD).SerializeToString())
    for paths in ((tmp_path / "none.onnx", good), (good, tmp_path / "none.onnx"), (tmp_path, good)):
        with pytest.raises(ModelError, match="not a file"):
            verify(*paths, exact=True, worker=worker)


def results(*pairs: tuple[str, Any]) -> tuple[RungResult, ...]:
    return tuple(RungResult(name, status) for name, status in pairs)


@pytest.mark.parametrize(
    ("rungs", "required", "passed", "failed"),
    [
        ([("contract", "passed")], (), True, False),
        ([("contract", "skipped")], (), False, False),
        ([("contract", "passed"), ("ort-cpu", "skipped")], (), False, False),
        ([("contract", "passed"), ("reference", "skipped"), ("ort-cpu", "passed")], (), True, False),
        ([("contract", "failed"), ("ort-cpu", "passed")], (), False, True),
        ([("contract", "passed"), ("ort-cpu", "passed")], ("trt-gpu",), False, True),
        ([("contract", "passed"), ("ort-cpu", "passed")], ("ort-cpu",), True, False),
    ],
)
def test_not_checked_is_not_passed(rungs: Any, required: tuple[str, ...], passed: bool, failed: bool) -> None:
    verdict = Verdict(results(*rungs), required)
    assert (verdict.passed, verdict.failed) == (passed, failed)


def test_a_sequence_of_unequal_tensors_as_the_users_input(run: Verify) -> None:
    model = """g (seq(float[N, 2]) x) => (float[M, 2] y) { y = ConcatFromSequence<axis = 0>(x) }"""
    feeds = [{"x": [np.ones((1, 2), np.float32), np.ones((3, 2), np.float32)]}]
    assert {statuses(run(model, inputs=feeds))[name] for name in VALUES} == {"passed"}


def test_what_the_evaluator_lacks_is_no_fault_of_a_fix(run: Verify) -> None:
    """onnx.reference has DequantizeLinear from opset 19 on only; ONNX Runtime judges."""
    before = """g (float[N, 2] x) => (float[N, 2] y) <float[2] c = {2, 4}> { y = Mul(x, c) }"""
    after = """g (float[N, 2] x) => (float[N, 2] y) <int8[2] q = {1, 2}, float s = {2}, int8 z = {0}>
        { c = DequantizeLinear(q, s, z) y = Mul(x, c) }"""
    verdict = run(before, after)
    assert {"reference": "skipped", "ort-cpu": "passed"}.items() <= statuses(verdict).items()
    assert "No implementation for operator 'DequantizeLinear'" in verdict.rung("reference").reason
    assert statuses(run(before, before.replace("Mul", "NoSuch")))["reference"] == "failed"
