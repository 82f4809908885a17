"""Values of inputs that the graph proves something of: ONNX Runtime runs the model on every feed that is planned.
Sizes of random graphs: ONNX Runtime runs what the search gives, and fails at what a demand excludes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from onnxfix.inputs.feeds import plan
from onnxfix.inputs.feeds.inputs import KINDS, make_inputs
from onnxfix.inputs.feeds.signature import signature
from onnxfix.inputs.sizes import operators
from onnxfix.inputs.sizes.demands import Demand, bounds
from onnxfix.inputs.sizes.problem import open_graph, problem_of
from onnxfix.inputs.sizes.search import Search, deciding
from onnxfix.model import Model
from onnxfix.shapes.symbols import evaluate
from support.models import model as model_from_text
from support.models import of_opset
from support.ort import session
from support.random_sizes import SYMBOLS, graphs

OPSET = 21


model = of_opset(OPSET, domains={"my": 1})


VALUES = {
    "an index of a computed table": """g (int64[N] i, float[S,3] x) => (float[N,3] y) { a = Exp(x)  b = Relu(a)
        y = Gather(b, i) }""",
    "an index behind arithmetic": """g (int64[N] i) => (float[N] y) <float[9] t = {1,2,3,4,5,6,7,8,9}, int64 k = {2},
        int64 o = {3}> { a = Sub(i, o)  b = Mul(a, k)  y = Gather(t, b) }""",
    "an index from the other end": """g (int64[N] i) => (float[N] y) <float[4] t = {1,2,3,4}, int64 o = {100}> {
        a = Sub(o, i)  y = Gather(t, a) }""",
    "an index that is a float": """g (float[N] i) => (float[N] y) <float[6] t = {1,2,3,4,5,6}> {
        a = Cast<to = 7>(i)  y = Gather(t, a) }""",
    "a bin of a float": """g (float[N] v) => (float[N] y) <float[6] t = {1,2,3,4,5,6}, float o = {0.5},
        float k = {20.0}> { a = Sub(v, o)  b = Mul(a, k)  c = Floor(b)  d = Cast<to = 7>(c)  y = Gather(t, d) }""",
    "a bin that is rounded up": """g (float[N] v) => (float[N] y) <float[6] t = {1,2,3,4,5,6}, float k = {20.0}> {
        b = Mul(v, k)  c = Ceil(b)  d = Cast<to = 7>(c)  y = Gather(t, d) }""",
    "elements": """g (int64[N,4] i, float[N,4] x) => (float[N,4] y) { a = Neg(x)
        y = GatherElements<axis = 0>(a, i) }""",
    "places to scatter to": """g (int64[2,3] i, float[N,3] x, float[2,3] u) => (float[N,3] y) { a = Neg(x)
        y = ScatterElements<axis = 1>(a, i, u) }""",
    "coordinates": """g (int64[K,2] i, float[N,M] x) => (float[K] y) { a = Neg(x)  y = GatherND(a, i) }""",
    "lengths of a recurrence": """g (float[S,B,3] x, int32[B] l) => (float[S,1,B,2] y)
        <float[1,8,3] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8},
         float[1,8,2] r = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> { y = LSTM<hidden_size = 2>(x, w, r, , l) }""",
    "lengths of a GRU": """g (float[S,B,2] x, int32[B] l) => (float[S,1,B,1] y)
        <float[1,3,2] w = {1,2,3,4,5,6}, float[1,3,1] r = {1,2,3}> { y = GRU<hidden_size = 1>(x, w, r, , l) }""",
    "sequences to be reversed": """g (float[S,B] x, int64[B] l) => (float[S,B] y) {
        y = ReverseSequence<time_axis = 0, batch_axis = 1>(x, l) }""",
    "one-hot": """g (int64[N] i) => (float[N,7] y) <int64 d = {7}, float[2] v = {0, 1}> { y = OneHot(i, d, v) }""",
    "a depth that is fed": """g (int64[N] i, int64 d) => (float[N,A] y) <float[2] v = {0, 1}> {
        y = OneHot(i, d, v) }""",
    "a shape that is fed": "g (float[2,3] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }",
    "a size that is fed": """g (int64[2] s) => (float[A,B] y) { y = ConstantOfShape(s) }""",
    "the best k that is fed": "g (float[N] x, int64[1] k) => (float[A] y, int64[A] z) { y, z = TopK(x, k) }",
    "repeats": "g (float[2,3] x, int64[2] r) => (float[A,B] y) { y = Tile(x, r) }",
    "a probability": "g (float[N] p) => (float[N] y) { y = Bernoulli(p) }",
    "an index in a branch": """g (int64[N] i, bool c, float[S] x) => (float[N] y) { t = Exp(x)
        y = If(c)<then_branch = a () => (float[N] u) { u = Gather(t, i) },
                  else_branch = b () => (float[N] v) { v = Cast<to = 1>(i) }> }""",
    "an index of two tables": """g (int64[N] i, float[S] x) => (float[N] y) <float[3] t = {1,2,3}> { a = Abs(x)
        b = Gather(a, i)  c = Gather(t, i)  y = Add(b, c) }""",
}


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_feed_that_is_planned_runs(name: str) -> None:
    proto = model(VALUES[name])
    known = signature(proto)
    runner = session(proto)
    sweep = plan.assignments(known, {})
    assert sweep
    for sizes in sweep:
        if 0 in sizes.values():
            continue
        for kind in KINDS:
            for seed in (0, 1):
                runner.run(None, make_inputs(known, sizes, seed, kind=kind))


def test_the_keys_bound_how_long_they_are() -> None:
    """Not the queries, of which there are more here than keys."""
    proto = model(
        """g (float[B,2,9,4] q, float[B,2,T,4] k, float[B,2,T,4] v, int64[B] n) => (float[B,2,9,4] y) {
        y = Attention(q, k, v, , , , n) }""",
        24,
    )
    known = signature(proto)
    for seed in range(6):
        made = make_inputs(known, {"B": 3, "T": 2}, seed)
        assert ((made["n"] >= 1) & (made["n"] <= 2)).all()
    assert max(int(make_inputs(known, {"B": 3, "T": 30}, seed)["n"].max()) for seed in range(6)) > 9


def test_a_whole_table_is_used_through_arithmetic() -> None:
    known = signature(model(VALUES["an index behind arithmetic"]))
    seen = {int(one) for seed in range(5) for one in make_inputs(known, {"N": 20}, seed)["i"]}
    assert seen == {3, 4, 5, 6, 7}


def test_limits_follow_the_sizes() -> None:
    known = signature(model(VALUES["an index of a computed table"]))
    assert make_inputs(known, {"N": 50, "S": 1}, 0)["i"].max() == 0
    assert 2 < make_inputs(known, {"N": 50, "S": 9}, 0)["i"].max() < 9


COMPARED = {
    "a padding token": (
        "g (int64[9,40] ids) => (bool[9,40] y) <int64 p = {50256}> { y = Equal(ids, p) }",
        "ids",
        50256,
    ),
    "a threshold": (
        "g (float[9,40] x) => (bool[9,40] y) <float p = {0.625}> { y = Greater(x, p) }",
        "x",
        0.625,
    ),
    "a constant node": (
        """g (int64[9,40] ids) => (bool[9,40] y) { p = Constant<value_int = 777>()  y = Less(p, ids) }""",
        "ids",
        777,
    ),
    "a token of a table": (
        """g (int64[9,40] ids) => (bool[9,40] y, float[9,40] z) <int64 p = {2}, float[5] t = {1,2,3,4,5}> {
        y = Equal(ids, p)  z = Gather(t, ids) }""",
        "ids",
        2,
    ),
}


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_numbers_that_are_compared_with_are_among_the_values(name: str) -> None:
    body, which, number = COMPARED[name]
    made = make_inputs(signature(model(body)), {}, 0)[which]
    assert (made == number).any()
    assert (made != number).any()


PROVEN = {
    "a logarithm": ("g (float[99] x) => (float[99] y) { y = Log(x) }", 0.0, np.inf),
    "a root": ("g (float[99] x) => (float[99] y) { a = Identity(x)  y = Sqrt(a) }", 0.0, np.inf),
    "a logit": (
        """g (float[99] x) => (float[99] y) <float one = {1.0}> { a = Log(x)  b = Sub(one, x)  c = Log(b)
        y = Sub(a, c) }""",
        0.0,
        1.0,
    ),
    "an arc": ("g (float[99] x) => (float[99] y) { y = Acos(x) }", -1.0, 1.0),
    "a hyperbolic arc": ("g (float[99] x) => (float[99] y) { y = Acosh(x) }", 1.0, np.inf),
}


@pytest.mark.parametrize("name", sorted(PROVEN))
def test_plausible_floats_are_those_that_give_numbers(name: str) -> None:
    body, least, most = PROVEN[name]
    proto = model(body)
    made = make_inputs(signature(proto), {}, 0)
    assert ((made["x"] >= least) & (made["x"] <= most)).all()
    assert np.isfinite(session(proto).run(None, made)[0]).all()


@pytest.mark.parametrize("op", ["y = Div(x, k)", "y = Mul(x, r)", "a = Transpose(x)  y = Div(a, k)"])
def test_pixels(op: str) -> None:
    body = f"g (float[9,9] x) => (float[9,9] y) <float k = {{255.0}}, float r = {{0.003921569}}> {{ {op} }}"
    made = make_inputs(signature(model(body)), {}, 0)["x"]
    assert made.min() >= 0
    assert 200 < made.max() <= 255
    other = make_inputs(
        signature(model(body.replace("255.0", "254.0").replace("0.003921569", "0.5"))), {}, 0
    )["x"]
    assert other.min() < 0


def test_flags_that_choose_a_branch_have_turns() -> None:
    body = """g (bool c, float[N] x) => (float[N] y) { d = Not(c)
        y = If(d)<then_branch = a () => (float[N] u) { u = Neg(x) },
                  else_branch = b () => (float[N] v) { v = Abs(x) }> }"""
    assert deciding(open_graph(model(body))) == [{"c": 1}, {"c": 0}]
    sweep = plan.assignments(signature(model(body)), {})
    assert {one["c.value"] for one in sweep} == {0, 1}
    assert deciding(open_graph(model("g (bool c) => (bool y) { y = Not(c) }"))) == [{}]


def test_of_many_inputs_each_value_has_a_turn() -> None:
    names = [f"c{number}" for number in range(5)]
    heads = ", ".join(f"bool {name}" for name in names)
    body = f"g ({heads}, float[2] x0) => (float[2] x5) {{"
    for number, name in enumerate(names):
        body += f"""x{number + 1} = If({name})<
            then_branch = a{number} () => (float[2] u{number}) {{ u{number} = Neg(x{number}) }},
            else_branch = b{number} () => (float[2] v{number}) {{ v{number} = Abs(x{number}) }}> """
    found = deciding(open_graph(model(body + "}")))
    assert len(found) <= 4
    assert all({one[name] for one in found} == {0, 1} for name in names)


def test_bounds_in_words() -> None:
    proto = model(VALUES["coordinates"])
    (node,) = [one for one in Model(proto).nodes() if one.op_type == "GatherND"]
    assert [str(one) for one in bounds(node)] == [
        "indices must be from -N to N - 1",
        "indices must be from -M to M - 1",
    ]


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
@example(model_from_text(EMPTIED), {"A": 1})
@example(model_from_text(SKIPPED), {"A": 1})
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
    proto = model_from_text(text, 17)
    assert bool(fails(proto, {"N": 2})) == refused
    assert (Search(proto).near({"N": 2}) is None) == refused


def test_a_resized_dimension_does_not_vanish_and_others_may_be_0() -> None:
    text = """g (float[N,3,H] x) => (float[N,3,L] y) <float[3] f = {1, 1, 0.25}> {
        y = Resize<mode="nearest">(x, , f) }"""
    problem = problem_of(open_graph(model_from_text(text, 17)))
    assert not problem.broken({"N": 0, "H": 4})
    assert problem.broken({"N": 2, "H": 3})


def test_what_is_normalized_is_not_empty() -> None:
    text = """g (float[N,S,H] x) => (float[N,S,H] y) <float[1] w = {1}> { y = LayerNormalization<axis=-2>(x, w) }"""
    proto = model_from_text(text, 17)
    problem = problem_of(open_graph(proto))
    for sizes in ({"N": 0, "S": 2, "H": 2}, {"N": 2, "S": 0, "H": 2}, {"N": 2, "S": 2, "H": 0}):
        assert bool(problem.broken(sizes)) == bool(fails(proto, sizes)) == (sizes["N"] > 0)


def test_a_0_beside_a_size_that_is_to_be_computed_is_excluded() -> None:
    """ONNX calls it invalid where a 0 stands for itself, and numpy refuses it; ONNX Runtime makes a size up."""
    text = """g (float[N,4] x) => (float[A,2,C] y) <int64[1] two = {2}, int64[1] rest = {-1}> {
            n = Shape<start=0, end=1>(x)  s = Concat<axis=0>(n, two, rest)  y = Reshape<allowzero=1>(x, s) }"""
    proto = model_from_text(text, 17)
    problem = problem_of(open_graph(proto))
    assert [size for size in (0, 1, 3) if problem.broken({"N": size})] == [0]
    with pytest.raises(ValueError, match="cannot reshape"):
        ReferenceEvaluator(proto).run(None, {"x": np.zeros((0, 4), np.float32)})
