"""Which nodes follow others, and how many Casts a choice takes; the search on figures that are made up."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfix
from onnxfix.lowering.choice import Graph, settled
from onnxfix.lowering.convert import between_casts, converted
from onnxfix.lowering.cost import Costs
from onnxfix.lowering.guards import Facts, guards
from onnxfix.lowering.lowered import ELEMENT, Low, lowerable, with_casts
from onnxfix.lowering.measure import Own, Tensor
from onnxfix.lowering.records import OutputError
from onnxfix.lowering.search import Search, worst
from onnxfix.targets import choose_target
from support import models, ort
from support.paths import FIXTURES

CHAIN = """g (float[2,4] x, float[4,4] w) => (float[2,4] y, int64[2] k) <int64[2] s = {2, 4}> {
  a = MatMul(x, w)  b = Exp(a)  c = Reshape(b, s)  d = Sin(c)  e = MatMul(d, w)  y = Tanh(e)
  k = ArgMax<axis=1, keepdims=0>(e) }"""


def _graph(text: str = CHAIN) -> Graph:
    proto = models.model(text, 17)
    return Graph(proto, lowerable(proto, "fp16", strict=True))


def _index(graph: Graph, output: str) -> int:
    return graph.producers[output]


@pytest.mark.parametrize(
    ("kept", "low", "given_up", "casts"),
    [
        ("", "abcdeyk", "", 3),  # x, w and y at the interface alone
        ("b", "acdeyk", "", 5),  # the Cast comes before Reshape: half the bytes are moved
        ("d", "abceyk", "", 5),
        ("bd", "aeyk", "", 5),  # between nodes in float32 Reshape is float32 too
        ("aed", "", "by", 0),  # a cheap node alone is given up for fewer Casts
        ("bdy", "aek", "", None),  # a product is not
        ("e", "abcd", "y", None),  # ArgMax follows what it reads
    ],
)
def test_which_nodes_follow_others(kept: str, low: str, given_up: str, casts: int | None) -> None:
    graph = _graph()
    found, given = settled(graph, frozenset(_index(graph, name) for name in kept))
    assert (found, given) == tuple({_index(graph, name) for name in names} for names in (low, given_up))
    assert casts in (graph.casts(found), None)


def test_nodes_that_follow_are_not_given_up_for_ever() -> None:
    text = """g (float[4,4] x) => (float[2,4] y, float[2,4] z) {
      a, b = Split<axis = 0>(x)  y = Sin(a)  z = Cos(b) }"""
    proto = models.model(text, 13)
    graph = Graph(proto, lowerable(proto, "fp16", strict=True), io_low=True)
    assert settled(graph, frozenset({1, 2})) == (frozenset({0}), frozenset())


@pytest.mark.parametrize("kept", [(), ("b",), ("b", "d"), ("a", "e"), ("b", "d", "y"), ("e",)])
def test_casts_are_counted_as_they_are_made(kept: tuple[str, ...]) -> None:
    graph = _graph()
    low, _ = settled(graph, frozenset(_index(graph, name) for name in kept))
    made = converted(graph.model, graph.able, low)
    assert sum(node.op_type == "Cast" for node in made.graph.node) == graph.casts(low)
    onnx.checker.check_model(made, full_check=True)


NODES = 64
DEAR = (5, 40)  # nodes with most of the error


def _many() -> Graph:
    calls = [f"MatMul(v{i}, w)" if i % 4 == 0 else f"Sin(v{i})" for i in range(NODES)]
    body = "  ".join(f"v{i + 1} = {call}" for i, call in enumerate(calls))
    text = f"g (float[2,4] v0, float[4,4] w) => (float[2,4] v{NODES}) {{ {body} }}"
    return _graph(text)


def _error(low: frozenset[int], quick: bool) -> tuple[OutputError, ...]:
    """Independent errors: a little of each node, and much of two."""
    assert isinstance(quick, bool)
    squared = sum(1e-2 if index in DEAR else 1e-8 for index in low)
    size = squared**0.5
    return (OutputError("y", size, size, size, 1.0),)


def test_the_search_keeps_the_nodes_that_matter() -> None:
    graph = _many()
    own = {index: Own(power=1.0, error_power=1e-7) for index in graph.able.slots}  # says nothing about which
    facts = Facts(graph.model, graph.able, {}, own, {})
    search = Search(facts, graph, _error, 5e-3, frozenset())
    found = search.plan()
    assert found.met
    assert worst(found.errors) <= 5e-3
    assert not found.low.intersection(DEAR)
    assert len(found.low) >= NODES - 12  # those two, and few of their neighbors
    assert found.runs <= 80


def test_the_search_checks_its_result_on_all_samples() -> None:
    graph = _many()

    def error(low: frozenset[int], quick: bool) -> tuple[OutputError, ...]:
        [one] = _error(low, quick)
        late = sum(index > 20 for index in low) / NODES  # the sample that is looked at shows less of it
        size = one.error if quick else one.error + 1e-3 * late
        return (OutputError("y", size, size, size, 1.0),)

    facts = Facts(graph.model, graph.able, {}, {}, {})
    found = Search(facts, graph, error, 6e-4, frozenset()).plan()
    assert found.met
    assert worst(error(found.low, False)) <= 6e-4
    assert found.low


ATTENTION = """g (float[8,64] x, float[64,64] w) => (float[8,64] y) {
  q = MatMul(x, w)  k = MatMul(x, w)  t = Transpose(k)  s = MatMul(q, t)  a = Sin(s)  p = Softmax(a)  o = MatMul(p, x)
  f = Cos(o)  n = Add(f, x)  g = Tanh(n)  h = Sin(g)  y = MatMul(h, w) }"""


def test_what_a_choice_costs() -> None:
    graph = _graph(ATTENTION)
    sizes = {"x": (8, 64), "w": (64, 64), "t": (64, 8), "s": (8, 8), "a": (8, 8), "p": (8, 8)}
    shapes = {name: sizes.get(name, (8, 64)) for name in graph.able.floats}
    costs = Costs(graph, {name: Tensor(count=math.prod(one), shape=one) for name, one in shapes.items()})
    low = frozenset(graph.able.slots)

    def added(names: str, kept: str = "") -> float:
        return costs.added(
            {_index(graph, name) for name in names}, low - {_index(graph, name) for name in kept}
        )

    assert costs.seconds(low) < costs.seconds(frozenset())
    assert added("fngh") == pytest.approx(
        costs.seconds(low - {_index(graph, one) for one in "fngh"}) - costs.seconds(low)
    )
    assert added("q") > added("fngh")  # products cost most
    assert added("h") > added("h", kept="fng") < added("g")  # beside what is kept it is free: the Cast moves
    assert added("a") > 0  # attention in half precision is one kernel


OPERATORS = """g (float[2,3,8,8] x, bool[2,3,8,8] p, int64[2] i)
=> (float[M,N,O,P] y, float[2,K,6,6] z, int64[2,1,8,8] k, float[2,3] r)
<float[3] s = {1, 2, 3}, float two = {2}, float[4] sizes = {1, 1, 2, 2}, int64[2] ax = {2, 3},
 float[2,3] lines = {1, 2, 3, 4, 5, 6}> {
  a = Conv(x, w)  z = LeakyRelu<alpha=0.1>(a)  b = InstanceNormalization(x, s, s)  c = Where(p, b, x)  d = Pow(c, two)
  e = Clip(d, , two)  y = Resize<mode="nearest">(e, , sizes)  k = ArgMax<axis=1>(e)  m = ReduceMean(e, ax)
  h = Squeeze(m, ax)  t = Shape(h)  g = Expand(two, t)  u = Add(h, g)
  l = Gather(lines, i)  r = Mul(u, l) }"""


@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_the_converted_model_computes_what_the_simulation_does(to: Low) -> None:
    model = models.model(OPERATORS, 21)
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    able = lowerable(model, to)
    low = frozenset(able.slots)
    assert len(low) >= 14
    made = converted(model, able, low)
    feed = {
        "x": rng.normal(size=(2, 3, 8, 8)).astype(np.float32),
        "p": rng.random((2, 3, 8, 8)) > 0.5,
        "i": np.array([1, 0]),
    }
    simulated = ort.run(with_casts(model, able, low, apart=False), feed)
    for one, other in zip(simulated, ort.run(between_casts(made), feed), strict=True):
        assert np.array_equal(one, other)
    half = {tensor.name for tensor in made.graph.initializer if tensor.data_type == ELEMENT[to]}
    assert {"w", "s", "two", "lines"} <= half
    assert "sizes" not in half  # TensorRT and ONNX want float32 there


def test_nodes_called_as_tensors_are() -> None:
    model = models.model(CHAIN, 17)
    for node, name in zip(model.graph.node, ("y", "y/fp16", "x/fp16", "x/fp16/Cast", "y/Cast"), strict=False):
        node.name = name
    able = lowerable(model, "fp16", strict=True)
    made = converted(model, able, frozenset(able.slots))
    rng = np.random.default_rng(0)
    feed = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("x", (2, 4)), ("w", (4, 4)))}
    assert np.array_equal(
        ort.run(between_casts(made), feed)[0],
        ort.run(with_casts(model, able, frozenset(able.slots), apart=False), feed)[0],
    )


def test_an_unknown_operator_between_converted_nodes() -> None:
    parsed = models.model(
        """g (float[2,4] x, float[4,4] w) => (float[2,4] y) { a = MatMul(x, w)  b = custom.Thing(a)  c = Add(b, x)
        d = custom.Thing(c)  e = Relu(d)  y = MatMul(e, w) }""",
        domains={"custom": 1},
    )
    able = lowerable(parsed, "fp16", strict=True)
    low = converted(parsed, able, frozenset(able.slots))
    inferred = onnx.shape_inference.infer_shapes(low).graph.value_info
    types = {info.name: info.type.tensor_type.elem_type for info in inferred}
    things = [node for node in low.graph.node if node.op_type == "Thing"]
    assert [types[node.input[0]] for node in things] == [onnx.TensorProto.FLOAT] * 2
    [cast] = [
        node for node in low.graph.node if node.op_type == "Cast" and node.input[0] == things[0].output[0]
    ]
    assert types[cast.output[0]] == onnx.TensorProto.FLOAT16
    assert {parsed.graph.node[index].output[0]: why for index, why in able.whole.items()} == {
        "b": "domain", "d": "domain", "e": "unknown",
    }  # fmt: skip


@pytest.mark.parametrize(("target", "whole"), [("trt10.6", True), ("trt11", False)])
def test_the_target_decides_which_operators_have_the_type(target: str, whole: bool) -> None:
    """Of an operator set that ONNX Runtime may not have yet."""
    made = models.model("g (float[2,4] x) => (float[2,4] y) { y = Celu(x) }", 28)
    able = lowerable(made, "fp16", strict=True)
    assert able.slots
    chosen = guards(Facts(made, able, {}, {}, {}, choose_target(target)[0]))
    assert {one.why for one in chosen.values()} == ({"target"} if whole else set())


@pytest.mark.slow
def test_a_limit_of_time_takes_the_smallest_error_within_it() -> None:
    path = FIXTURES / "vit.legacy.op17.onnx"
    fastest = onnxfix.precision(path, "fp16", 0.01, rungs=("contract",))
    limit = 1.1 * (fastest.time or 0)
    found = onnxfix.precision(path, "fp16", 0.01, max_time=limit, rungs=("contract",))
    assert found.status == "met"
    assert (found.error or 1) < (fastest.error or 0)
    assert (fastest.time or 0) < (found.time or 0) <= limit
    missed = onnxfix.precision(path, "fp16", 0.01, max_time=limit / 2, rungs=("contract",))
    assert (missed.status, missed.exit_code) == ("missed", 1)
    assert "float32's time" in missed.reason
