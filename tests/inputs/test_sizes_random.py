"""Sizes of random graphs: ONNX Runtime runs what the search gives, and fails at what a demand excludes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.sizes import operators
from onnxfix.inputs.sizes.demands import Demand
from onnxfix.inputs.sizes.problem import open_graph, problem_of
from onnxfix.inputs.sizes.search import Search
from onnxfix.shapes.symbols import evaluate
from support.models import model
from support.ort import session
from support.random_sizes import SYMBOLS, graphs

#: ONNX Runtime makes an empty tensor where a window hardly fits or a resized dimension vanishes, and extends data to
#: PRelu's slope: ONNX does not.
LENIENT = frozenset({"AveragePool", "LpPool", "MaxPool", "PRelu", "Resize"})
#: Elements of an input up to which it is run.
MOST = 1 << 22
EMPTIED = """<ir_version: 8, opset_import: ["" : 17]> g (float[A] x) => (float[L] y)
    <int64[2] p = {0, -1}, int64[1] i = {0}> { d = Pad(x, p)  y = GatherElements(d, i) }"""
SKIPPED = """<ir_version: 8, opset_import: ["" : 17]> g (float[A,A] x) => (float[B,A] y)
    <int64[1] i = {0}, int64[1] k = {1}> { e = Slice(x, i, i, k)  y = Concat<axis=0>(x, e) }"""


def is_lenient(one: Demand, sizes: dict[str, int]) -> bool:
    """Whether ONNX Runtime may run without; its Concat skips what is empty."""
    empty = 0 in (evaluate(one.term.left, sizes), evaluate(one.term.right, sizes))
    return one.op_type in LENIENT or (one.op_type == "Concat" and empty)


def fails(proto: ModelProto, sizes: dict[str, int]) -> str:
    """Why ONNX Runtime does not load the model or not run it at these sizes; "" where it does."""
    try:
        session(proto).run(None, plan.Feed(sizes, "small", 1).values(signature(proto)))
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def is_small(proto: ModelProto, sizes: dict[str, int]) -> bool:
    shapes = [
        [d.dim_value or sizes[d.dim_param] for d in i.type.tensor_type.shape.dim] for i in proto.graph.input
    ]
    return max(int(np.prod(shape, dtype=object)) for shape in shapes) <= MOST


@pytest.mark.slow
@settings(max_examples=300)
@example(model(EMPTIED), {"A": 1})
@example(model(SKIPPED), {"A": 1})
@given(graphs(), st.fixed_dictionaries(dict.fromkeys(SYMBOLS, st.integers(1, 12))))
def test_what_is_given_runs_and_what_is_excluded_fails(proto: ModelProto, numbers: dict[str, int]) -> None:
    search = Search(proto)
    problem = search.problem({})
    wish = {name: numbers[name] for name in problem.free}
    broken = problem.broken(wish)
    if broken and not any(is_lenient(one, wish) for one in broken):
        assert fails(proto, wish), (wish, str(broken[0]))
    found = search.near(wish)
    if found is not None and is_small(proto, found):
        assert not fails(proto, found), found
    if found is not None and not broken and not problem.likely:
        assert found == wish


def test_random_graphs_have_all_kinds_of_demands() -> None:
    seen: set[str] = set()

    @settings(max_examples=250, database=None, derandomize=True)
    @given(graphs())
    def collect(proto: ModelProto) -> None:
        seen.update(node.op_type for node in proto.graph.node)

    collect()
    table = operators.TABLE
    # What GatherND demands needs coordinates that are computed from shapes, and Attention is of a later opset than the
    # graphs; DEMANDS has models of both.
    others = {table["GatherND"], table["Attention"]}
    assert {table[op] for op in seen.intersection(table)} == {*table.values()} - others


@pytest.mark.parametrize(
    ("node", "refused"),
    [
        ("AveragePool<kernel_shape=[7]>(x)", True),
        ("AveragePool<kernel_shape=[5], pads=[1,1]>(x)", False),
        ("AveragePool<kernel_shape=[9], pads=[1,1]>(x)", True),
        ("MaxPool<kernel_shape=[4], dilations=[2]>(x)", True),
        ("MaxPool<kernel_shape=[5], auto_pad=\"SAME_UPPER\">(x)", False),
        ("MaxPool<kernel_shape=[7], auto_pad=\"VALID\">(x)", True),
        ("Conv(x, w)", True),
        ("Conv<pads=[0,1]>(x, w)", False),
    ],
)  # fmt: skip
def test_a_window_that_fits_at_no_size_is_said_to(node: str, refused: bool) -> None:
    """Of its result no shape is known, whatever the free sizes are."""
    text = f"""g (float[N,1,4] x) => (float[N,M,L] y) <float[1,1,5] w = {{1,1,1,1,1}}> {{ y = {node} }}"""
    proto = model(text, 17)
    assert bool(fails(proto, {"N": 2})) == refused
    assert (Search(proto).near({"N": 2}) is None) == refused


def test_a_resized_dimension_does_not_vanish_and_others_may_be_0() -> None:
    text = """g (float[N,3,H] x) => (float[N,3,L] y) <float[3] f = {1, 1, 0.25}> {
        y = Resize<mode="nearest">(x, , f) }"""
    problem = problem_of(open_graph(model(text, 17)))
    assert not problem.broken({"N": 0, "H": 4})
    assert problem.broken({"N": 2, "H": 3})


def test_what_is_normalized_is_not_empty() -> None:
    text = """g (float[N,S,H] x) => (float[N,S,H] y) <float[1] w = {1}> { y = LayerNormalization<axis=-2>(x, w) }"""
    proto = model(text, 17)
    problem = problem_of(open_graph(proto))
    for sizes in ({"N": 0, "S": 2, "H": 2}, {"N": 2, "S": 0, "H": 2}, {"N": 2, "S": 2, "H": 0}):
        assert bool(problem.broken(sizes)) == bool(fails(proto, sizes)) == (sizes["N"] > 0)


def test_a_0_beside_a_size_that_is_to_be_computed_is_excluded() -> None:
    """ONNX calls it invalid where a 0 stands for itself, and numpy refuses it; ONNX Runtime makes a size up."""
    text = """g (float[N,4] x) => (float[A,2,C] y) <int64[1] two = {2}, int64[1] rest = {-1}> {
            n = Shape<start=0, end=1>(x)  s = Concat<axis=0>(n, two, rest)  y = Reshape<allowzero=1>(x, s) }"""
    proto = model(text, 17)
    problem = problem_of(open_graph(proto))
    assert [size for size in (0, 1, 3) if problem.broken({"N": size})] == [0]
    with pytest.raises(ValueError, match="cannot reshape"):
        ReferenceEvaluator(proto).run(None, {"x": np.zeros((0, 4), np.float32)})
