"""Parts of a model compute what the whole does, also apart: held against ONNX Runtime on the whole model."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph, open_graph
from onnxfix.errors import ModelError
from onnxfix.files import walk
from support.models import model

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def values(bench: Bench, proto: ModelProto, feed: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Values of inner tensors by the whole model with these as its outputs."""
    whole = walk.copied(proto)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    reply = bench.run(whole, feed, of=Graph(whole))
    assert not reply.error, reply.error
    return reply.values


def every_cut(bench: Bench, proto: ModelProto, feed: Mapping[str, Any]) -> None:
    """Cut the model at each node, and each node apart: all give what the whole model gives."""
    graph = Graph(proto)
    names = [
        name
        for node in graph.nodes
        if node.op_type != "Constant"
        for name in node.output
        if name and name not in graph.untensored
    ]
    known = {**values(bench, proto, feed, names), **feed}
    for cut in range(len(graph.nodes) + 1):
        for numbers in (range(cut), range(cut, len(graph.nodes))):
            made = [name for number in numbers for name in graph.nodes[number].output if name in names]
            if made:
                part, inputs = graph.part(numbers, made, known)
                same(
                    bench,
                    graph,
                    part,
                    {name: known[name] for name in inputs},
                    dict(zip(made, made, strict=True)),
                    known,
                )
    apart = [
        ((number,), [name for name in node.output if name in names])
        for number, node in enumerate(graph.nodes)
        if node.op_type != "Constant"
    ]
    apart = [one for one in apart if one[1]]
    part, inputs, found = graph.apart(apart, known)
    assert set(inputs) <= set(known)
    where = {new: name for one in found for name, new in one.items()}
    same(bench, graph, part, {name: known[name] for name in inputs}, where, known)


def same(
    bench: Bench,
    graph: Graph,
    part: ModelProto,
    feed: Mapping[str, Any],
    where: Mapping[str, str],
    known: Mapping[str, Any],
) -> None:
    reply = bench.run(part, feed, of=graph)
    assert not reply.error, reply.error
    assert set(reply.values) == set(where)
    for new, name in where.items():
        np.testing.assert_array_equal(reply.values[new], known[name], err_msg=name)


IF = """g (float[2,3] x, bool c) => (float[2,3] y) {
    a = Relu(x)
    b = Neg(a)
    s = If (c) <
        then_branch = t () => (float[2,3] tb) { q = Add(a, b)  tb = Add(q, x) },
        else_branch = e () => (float[2,3] eb) { q = Sub(a, b)  eb = Identity(q) }>
    y = Mul(s, a)
}"""
RETURNS = """g (float[2,3] x, bool c) => (float[2,3] y) {
    a = Relu(x)
    b = Exp(x)
    s = If (c) <then_branch = t () => (float[2,3] a) { }, else_branch = e () => (float[2,3] b) { }>
    y = Mul(s, b)
}"""
LOOP = """g (float[2,3] x) => (float[2,3] y, float[k,2,3] z) {
    a = Relu(x)
    n = Constant<value = int64 {3}>()
    t = Constant<value = bool {1}>()
    r, z = Loop (n, t, a) <body = body (int64 i, bool on, float[2,3] v) => (bool go, float[2,3] w, float[2,3] u) {
        go = Identity(on)
        w = Add(v, a)
        u = Sub(w, x)
    }>
    y = Neg(r)
}"""
NESTED = """g (float[2,3] x, bool c) => (float[2,3] y) {
    a = Relu(x)
    n = Constant<value = int64 {2}>()
    t = Constant<value = bool {1}>()
    r = Loop (n, t, x) <body = body (int64 i, bool on, float[2,3] v) => (bool go, float[2,3] w) {
        go = Identity(on)
        k = Exp(a)
        w = If (c) <then_branch = tt () => (float[2,3] o) { o = Add(v, a) },
                    else_branch = ee () => (float[2,3] p) { p = Add(k, v) }>
    }>
    y = Add(r, a)
}"""
MANY = """g (float[2,3] x) => (float[2,1] y) {
    a, b = Split<axis = 1>(x, sizes)
    v, i = TopK(a, one)
    d, = Dropout(b)
    m = Max(v, d)
    y = Clip(m, , top)
}"""


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("text", [IF, NESTED], ids=["if", "nested"])
def test_what_branches_read_of_the_graph_around_them(bench: Bench, text: str, chosen: bool) -> None:
    every_cut(bench, model(text), {"x": X, "c": np.array(chosen)})


def test_what_a_loop_reads_of_the_graph_around_it(bench: Bench) -> None:
    every_cut(bench, model(LOOP), {"x": X})


def test_several_outputs_and_inputs_left_out(bench: Bench) -> None:
    weights = {"sizes": np.array([2, 1]), "one": np.array([1]), "top": np.float32(1.0)}
    every_cut(bench, model(MANY, **weights), {"x": X})


def test_sparse_weights(bench: Bench) -> None:
    proto = model("g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Add(a, w) }")
    held = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([5.0], np.float32), "w"), numpy_helper.from_array(np.array([2])), [3]
    )
    proto.graph.sparse_initializer.append(held)
    every_cut(bench, proto, {"x": X})


def test_old_models_whose_weights_are_inputs(bench: Bench) -> None:
    text = "g (float[2,3] x, float[3] w) => (float[2,3] y) { a = Add(x, w)  y = Mul(a, w) }"
    proto = model(text, opset=7, ir_version=3, w=np.arange(3, dtype=np.float32))
    graph = Graph(proto)
    assert list(graph.inputs) == ["x"]
    assert graph.part([1], ["y"], {})[1] == ("a",)
    every_cut(bench, proto, {"x": X})


def test_nodes_in_any_order(bench: Bench) -> None:
    proto = model(NESTED)
    nodes = list(proto.graph.node)
    ordered = [node.output[0] for node in Graph(proto).nodes]
    assert ordered == [node.output[0] for node in nodes]
    for seed in range(5):
        shuffled = walk.copied(proto)
        del shuffled.graph.node[:]
        shuffled.graph.node.extend(random.Random(seed).sample(nodes, len(nodes)))
        graph = Graph(shuffled)
        done = {*graph.inputs, *graph.weights}
        for number, node in enumerate(graph.nodes):
            assert done.issuperset(graph.reads[number])
            done.update(node.output)


def test_a_branch_that_returns_a_value_of_the_graph_around_it() -> None:
    node = next(node for node in model(RETURNS).graph.node if node.op_type == "If")
    found = walk.renamed(node, {"a": "A", "b": "B"})
    assert {one.name: one.g.output[0].name for one in found.attribute} == {
        "then_branch": "A",
        "else_branch": "B",
    }


def test_random_operators_are_known_at_any_depth() -> None:
    text = """g (float[2,3] x, bool c, bool t) => (float[2,3] y) {
        a = Relu(x)
        r = RandomNormalLike(a)
        s = If (c) <then_branch = t () => (float[2,3] o) { o = RandomUniformLike(a) },
                    else_branch = e () => (float[2,3] p) { p = Identity(a) }>
        d1 = Dropout(r)
        d2 = Dropout(d1, ratio, t)
        d3 = Dropout(d2, ratio, never)
        y = Dropout(d3, ratio, always)
    }"""
    weights = {"ratio": np.float32(0.5), "never": np.array(False), "always": np.array(True)}
    assert Graph(model(text, **weights)).random == {1, 2, 4, 6}


def test_a_large_model_keeps_its_weights_in_the_file(bench: Bench, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((2100, 2100)).astype(np.float32)
    text = "g (float[1,2100] x) => (float[1,2100] y) { a = MatMul(x, w)  y = Relu(a) }"
    path = tmp_path / "large.onnx"
    path.write_bytes(model(text, w=weight).SerializeToString())
    graph = open_graph(path)
    assert len(graph.proto.SerializeToString()) < 1000
    assert graph.mapped >= weight.nbytes
    part, inputs = graph.part([0], ["a"], {})
    feed = np.ones((1, 2100), np.float32)
    reply = bench.run(part, {"x": feed}, of=graph)
    np.testing.assert_allclose(reply.values["a"], feed @ weight, rtol=1e-3, atol=1e-3)
    assert inputs == ("x",)


@pytest.mark.parametrize("data", [b"", b"not a model at all"])
def test_a_file_that_is_no_model(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    if data:
        with pytest.raises(ModelError):
            open_graph(path)
    with pytest.raises(ModelError):
        open_graph(tmp_path / "absent.onnx")
