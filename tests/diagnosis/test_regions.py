"""Regions and levels, for models that agree, that are fused, and that were matched wrongly."""

from __future__ import annotations

import random

import pytest
from onnx import ModelProto

from onnxfix.diagnosis.graph import Graph, levels, regions
from onnxfix.diagnosis.sides import same_names
from support.models import model

TEXT = """g (float[2,4] x) => (float[2,2] y, float[2,2] z) {
    a = Relu(x)
    b, c = Split<axis = 1, num_outputs = 2>(a)
    d = Exp(b)
    e = Add(d, c)
    y = Mul(e, w)
    z = Sub(e, b)
}"""
FUSED = """g (float[2,4] x) => (float[2,2] y, float[2,2] z) {
    a = Relu(x)
    p, c = Split<axis = 1, num_outputs = 2>(a)
    q = Exp(p)
    e = Add(q, c)
    y = Mul(e, w)
    z = Sub(e, p)
}"""


def graph(text: str) -> Graph:
    return Graph(model(text, w=1.0))


def test_nodes_between_matched_tensors_belong_together() -> None:
    truth, other = graph(TEXT), graph(FUSED)
    pairs = {name: name for name in ("x", "a", "c", "e", "y", "z")}
    found = {tuple(region.targets): region for region in regions(truth, other, pairs)}
    assert found["e",].nodes == (1, 2, 3)
    assert set(found["e",].inputs) == {"a", "c"}
    assert found["z",].nodes == (1, 5)  # its unmatched input is computed again
    assert found["c",].nodes == (1,)


def test_a_target_of_several_nodes_is_at_the_last_value_that_it_needs() -> None:
    truth, other = graph(TEXT), graph(TEXT)
    pairs = {"x": "x", "a": "z", "c": "c", "b": "b"}  # a is taken for z, which the truth computes last
    found = {tuple(sorted(region.targets)): region for region in regions(truth, other, pairs)}
    assert found["b", "c"].at == 5
    assert found["a",].at == 5


def shuffled(proto: ModelProto, seed: int) -> dict[str, str]:
    """Any matching, most of it wrong."""
    one = Graph(proto)
    names = [*one.inputs, *one.producer]
    drawn = random.Random(seed)
    theirs = drawn.sample(names, drawn.randint(1, len(names)))
    return {name: drawn.choice(names) for name in theirs}


@pytest.mark.parametrize("seed", range(30))
def test_levels_never_fall_along_an_edge(seed: int) -> None:
    one = graph(TEXT)
    pairs = same_names(one, one) if not seed else shuffled(one.proto, seed)
    found = levels(one, pairs, one)
    for number, names in enumerate(one.reads):
        for name in names:
            if name in one.producer:
                assert found[one.producer[name]] <= found[number]
    for region in regions(one, one, pairs):
        ours = [*region.inputs.values(), *region.targets.values()]
        assert region.at == max(one.producer.get(name, -1) for name in ours)
        assert set(region.targets) == {name for name in one.nodes[max(region.nodes)].output if name in pairs}


def test_no_region_begins_at_a_value_that_is_no_tensor() -> None:
    proto = model("""g (float[2] x) => (float[4] y) {
        a = Relu(x)
        s = SequenceConstruct(a, x)
        t = SequenceInsert(s, a)
        c = ConcatFromSequence<axis = 0>(s)
        y = Neg(c)
    }""")
    one = Graph(proto, untensored=["s", "t"])
    found = {tuple(region.targets): region for region in regions(one, one, same_names(one, one))}
    assert found["t",].nodes == (1, 2)
    assert found["c",].nodes == (1, 3)
    assert set(found["c",].inputs) == {"a", "x"}


def test_what_draws_numbers_is_in_no_region() -> None:
    truth = graph("g (float[2] x) => (float[2] y) { r = RandomNormalLike(x)  m = Mul(r, w)  y = Add(m, x) }")
    found = regions(truth, truth, {"x": "x", "m": "m", "y": "y"})  # r is not matched
    assert [tuple(region.targets) for region in found] == [("y",)]
    assert set(found[0].inputs) == {"m", "x"}
