"""Sizes that a model takes: what operators demand, and the search for sizes that meet it. ONNX Runtime is the judge:
what the search gives runs, and what a demand excludes fails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.sizes.problem import open_graph, problem_of
from onnxfix.inputs.sizes.search import Search, deciding, fitted, range_of, repaired
from support import models
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
