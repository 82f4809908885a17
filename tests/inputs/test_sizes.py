"""Sizes that a model takes: what operators demand, the search for sizes that meet it, and both in plans and
optimization profiles. ONNX Runtime is the judge: what the search gives runs, and what a demand excludes fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.sizes.problem import open_graph, problem_of
from onnxfix.inputs.sizes.search import Search, deciding, fitted, range_of, repaired
from onnxfix.tensorrt.profiles import NetInput, candidates, with_names
from support import models
from support.paths import ROOT
from support.size_demands import DEMANDS, RATES, model, runs


def small_sizes(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(dict.fromkeys(names, st.integers(1, 26)))


@pytest.mark.parametrize("body", DEMANDS.values(), ids=DEMANDS)
def test_what_holds_runs_and_what_does_not_fails(body: str) -> None:
    """For every size up to 26: the demands of these models are all that there is."""
    proto = model(body)
    problem = problem_of(open_graph(proto))
    assert problem.demands
    rnd = np.random.default_rng(3)
    tried = [dict.fromkeys(problem.free, size) for size in range(1, 27)]
    tried += [{name: int(rnd.integers(1, 27)) for name in problem.free} for _ in range(12)]
    for sizes in tried:
        broken = problem.broken(sizes)
        # ONNX Runtime makes an empty tensor of a window that hardly fits, and extends data to PRelu's slope: ONNX
        # says nothing of the former, and otherwise of the latter.
        if not broken or not any(one in body for one in ("MaxPool", "PRelu")):
            assert runs(proto, sizes) == (not broken), (sizes, broken)


@pytest.mark.parametrize("body", DEMANDS.values(), ids=DEMANDS)
def test_the_search_finds_sizes_that_run(body: str) -> None:
    proto = model(body)
    problem = problem_of(open_graph(proto))
    for size in (1, 2, 3, 7, 30, 100):
        found = repaired(problem, dict.fromkeys(problem.free, size))
        assert found is not None
        assert not problem.broken(found)
        assert runs(proto, found), found


def test_the_least_size_and_a_wish_that_holds() -> None:
    problem = problem_of(
        open_graph(model("g (float[1,1,S] x) => (float[1,4,T] y) { y = Conv<strides=[3]>(x, w1) }"))
    )
    assert repaired(problem, {"S": 3}) == {"S": 7}
    assert repaired(problem, {"S": 31}) == {"S": 31}
    assert range_of(problem, "S", {}).least == 7
    assert repaired(problem, {"S": 9}, {"S": 2}) is None, "a fixed size is not changed"


def test_a_far_threshold_is_found_exactly() -> None:
    text = """g (float[1,S] x) => (float[1,T] y) <int64[4] p = {0,70000,0,1}> { y = Pad<mode="reflect">(x, p) }"""
    assert repaired(problem_of(open_graph(model(text))), {"S": 1}) == {"S": 70001}


def test_several_demands_on_one_symbol() -> None:
    text = """g (float[1,3,H,W] x) => (float[1,3,A,B] y) <float[4] f = {1, 1, 4, 4}> {
        a = MaxPool<kernel_shape=[4,4], strides=[4,4]>(x)  b = Resize<mode="nearest">(a, , f)  y = Add(x, b) }"""
    proto = model(text)
    found = repaired(problem_of(open_graph(proto)), {"H": 5, "W": 7})
    assert found is not None
    assert found["H"] % 4 == found["W"] % 4 == 0
    assert runs(proto, found)


def test_arithmetic_names_follow_the_names_in_them() -> None:
    text = """g (float[past, 2] x, float[now, 2] z, float[sum, 2] u) => (float[A, 2] y) {
        c = Concat<axis=0>(x, z)  y = Mul(c, u) }"""
    proto = model(text)
    proto.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "past + now"
    problem = problem_of(open_graph(proto))
    assert problem.free == ("past", "now")
    assert not problem.broken({"past": 3, "now": 5})
    assert problem.sizes({"past": 3, "now": 5})["past + now"] == 8


def test_nothing_is_known_of_a_model_that_is_no_graph_and_of_other_domains() -> None:
    twice = model("g (float[N] x) => (float[N] y) { y = Relu(x)  y = Neg(x) }")
    assert problem_of(open_graph(twice)).demands == ()
    other = models.model(
        "g (float[N,M] x, float[K] z) => (float[N] y) { y = my.Add(x, z) }", 17, 8, {"my": 1}
    )
    assert problem_of(open_graph(other)).demands == ()


# ------------------------------------------------------------------------------------------------ ways and branches


def test_values_that_decide_are_those_that_the_model_compares_with() -> None:
    assert deciding(open_graph(model(RATES))) == [{"rate": 16000}, {"rate": 8000}]
    assert deciding(
        open_graph(model("g (int64 n, float[4] x) => (float[4] y) { c = Cast<to=1>(n)  y = Mul(x, c) }"))
    ) == [{}]
    less = """g (int64 n, float[4] x) => (float[4] y) <int64 k = {5}> {
        c = Less(n, k)  d = Cast<to=1>(c)  y = Mul(x, d) }"""
    assert deciding(open_graph(model(less))) == [{"n": 5}, {"n": 4}]
    many = """g (int64[3] n) => (bool[3] y) <int64 k = {5}> { y = Equal(n, k) }"""
    assert deciding(open_graph(model(many))) == [{}], "three numbers do not decide"


def test_each_way_has_sizes_of_its_own() -> None:
    proto = model(RATES)
    search = Search(proto)
    assert search.near({"B": 1, "S": 1}, pins={"rate": 16000}) == {"B": 1, "S": 41}
    assert search.near({"B": 1, "S": 1}, pins={"rate": 8000}) == {"B": 1, "S": 10}
    assert search.near({"B": 1, "S": 1}) == {"B": 1, "S": 41}, "where nobody knows, both branches are met"
    sweep = plan.assignments(signature(proto), {})
    assert {one["rate.value"] for one in sweep} == {16000, 8000}
    assert all(runs(proto, one) for one in sweep)


def test_branches_that_contradict_each_other_do_not_bind() -> None:
    text = """g (float[N,2] x, bool c) => (float[A] y) {
        y = If(c)<then_branch = t () => (float[B] a) { s = Constant<value_ints = [6]>()  a = Reshape(x, s) },
                  else_branch = e () => (float[D] b) { r = Constant<value_ints = [8]>()  b = Reshape(x, r) }> }"""
    problem = problem_of(open_graph(model(text)))
    assert len(problem.likely) == 2
    assert problem.demands == ()
    assert fitted(problem, {"N": 5}) == {"N": 5}


def test_which_branch_runs_may_hang_on_a_size() -> None:
    """Only once S is known is it known that the sum runs, and that N and M must agree."""
    text = """g (float[N,S] x, float[M,S] z) => (float[A,S] y)
            <int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}> {
        h = Shape(x)  s = Slice(h, one, two)  c = Equal(s, four)
        u = If(c)<then_branch = t () => (float[B,S] a) { a = Abs(x) },
                  else_branch = e () => (float[1,S] b) { k = Constant<value_ints = [0]>()  b = ReduceMax<axes=[0]>(x) }>
        y = Add(u, z) }"""
    proto = model(text)
    found = Search(proto).near({"N": 3, "M": 5, "S": 4})
    assert found is not None
    assert runs(proto, found), found


@settings(max_examples=60)
@given(st.sampled_from(sorted(DEMANDS)), st.data())
def test_sizes_near_to_any_wish_run(name: str, data: st.DataObject) -> None:
    proto = model(DEMANDS[name])
    problem = problem_of(open_graph(proto))
    wish = data.draw(small_sizes(problem.free))
    found = repaired(problem, wish)
    assert found is not None
    assert runs(proto, found)
    if not problem.broken(wish):
        assert found == wish


# ------------------------------------------------------------------------------------------------------------ terms


def test_both_ends_of_a_range_are_found_exactly() -> None:
    text = """g (float[1,1,H] x) => (float[1,3] y) <int64[2] s = {1, 3}> {
        p = AveragePool<kernel_shape=[461], strides=[461]>(x)  y = Reshape(p, s) }"""
    problem = problem_of(open_graph(model(text)))
    found = range_of(problem, "H", {})
    assert (found.least, found.most) == (3 * 461, 4 * 461 - 1)
    assert repaired(problem, {"H": 5000}) == {"H": 4 * 461 - 1}


def test_a_dead_end_is_left() -> None:
    """The nearest size of B leads nowhere: 85 rows leave no size for T."""
    text = """g (float[B,S] x, float[B,T] z) => (float[A] y) <int64[2] s = {5, 17}, int64[2] r = {3, 31}> {
        a = Reshape(x, s)  b = Reshape(z, r)  c = Flatten<axis=0>(a)  d = Flatten<axis=0>(b)
        e = Concat<axis=1>(c, d)  k = Constant<value_ints = [0]>()  y = Squeeze(e, k) }"""
    proto = model(text)
    found = repaired(problem_of(open_graph(proto)), {"B": 1, "S": 1, "T": 1})
    assert found == {"B": 1, "S": 85, "T": 93}
    assert runs(proto, found)


FIXTURES = sorted((ROOT / "fixtures").glob("*.onnx"))


def test_a_sweep_of_sizes_that_fit_is_as_it_was() -> None:
    known = signature(model("g (float[N,S] x) => (float[N,S] y) { y = Relu(x) }"))
    assert plan.assignments(known, {}) == [
        {"N": 1, "S": 1},
        {"N": 2, "S": 2},
        {"N": 3, "S": 5},
        {"N": 0, "S": 5},
        {"N": 3, "S": 0},
    ]


def test_a_sweep_has_only_sizes_that_the_model_takes() -> None:
    proto = model(DEMANDS["a kernel"])
    sweep = plan.assignments(signature(proto), {})
    assert len(sweep) > 3
    assert all(runs(proto, one) for one in sweep)
    held = plan.assignments(signature(proto), {"H": 50})
    assert all(one["H"] == 50 for one in held)
    assert all(runs(proto, one) for one in held)


def test_sizes_of_the_users_that_do_not_fit_are_kept() -> None:
    known = signature(model(DEMANDS["a kernel"]))
    assert all(one["H"] == 2 for one in plan.assignments(known, {"H": 2}))


@pytest.mark.corpus
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_fixtures_run_at_all_sizes_of_their_sweep(path: Path) -> None:
    proto = onnx.load(path)
    sweep = plan.assignments(signature(proto), {})
    assert len(sweep) == 1 or len(sweep) >= 3
    ran = [runs(proto, one) for one in sweep if 0 not in one.values()]
    assert all(ran)


def test_long_signals_are_found_by_trial() -> None:
    """What a local function demands is not known: sizes are doubled until the model takes them."""
    text = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[B,S] x) => (float[B,T] y) { y = my.Ends(x) }
        <domain: "my", opset_import: ["" : 17]>
        Ends (v) => (w) { p = Constant<value_ints = [0, 3000, 0, 3000]>()  w = Pad<mode="reflect">(v, p) }"""
    proto = models.model(text)
    known = signature(proto)
    assert not any(runs(proto, one) for one in plan.assignments(known, {}) if 0 not in one.values())
    assert sum(runs(proto, one) for one in plan.grown(known, {})) > 2
    images = signature(model("g (float[B,3,H,W] x) => (float[B,3,H,W] y) { y = Relu(x) }"))
    assert max(max(one.values()) for one in plan.grown(images, {})) < 300


def test_a_profile_has_a_range_also_where_the_least_size_is_large() -> None:
    text = (
        """g (float[B,S] x) => (float[B,T] y) <int64[4] p = {0,64,0,64}> { y = Pad<mode="reflect">(x, p) }"""
    )
    (first, *_) = candidates([NetInput("x", ("B", "S"), False)], None, None, Search(model(text)))
    assert first.shapes == {"x": ((1, 65), (3, 130), (8, 260))}


def test_a_size_that_is_the_only_one_is_for_tensorrt_to_refuse() -> None:
    text = "g (float[B,4] x) => (float[2,8] y) <int64[2] s = {2, 8}> { y = Reshape(x, s) }"
    (first, *_) = candidates([NetInput("x", ("B", 4), False)], None, None, Search(model(text)))
    assert first.shapes == {"x": ((1, 4), (3, 4), (8, 4))}


def test_dimensions_that_tensorrt_takes_for_one_have_one_size() -> None:
    """ "?" is no name of ONNX's, and one to TensorRT: both sizes have to fit at once."""
    proto = model("g (float[1,3,H,W] x) => (float[1,4,A,B] y) { y = Conv(x, w) }")
    for dim in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "?"
    assert Search(proto).problem({}).free == ("x.2", "x.3")
    known = with_names(proto)
    assert with_names(known) is known
    assert len(Search(known).problem({}).free) == 1


def test_too_little_memory_to_look_for_sizes_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def near(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Search, "near", near)
    search = Search(model("g (float[1,1,S] x) => (float[1,4,T] y) { y = Conv(x, w1) }"))
    (first, *_) = candidates([NetInput("x", (1, 1, "S"), False)], None, None, search)
    assert first.shapes["x"][0] == (1, 1, 1)
