"""benchmarks/network: what a mutant changes, and that each recorded one that shows was caught."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import onnx
import pytest
from diagnose import observing
from network import mutants, mutating
from onnx import numpy_helper

from support.models import model
from support.paths import ROOT

SMALL = """g (float[2,4] x) => (float[4,2] y) {
a = Add(x, w)  b = Cast<to = 6>(a)  c = Cast<to = 1>(b)  d = Softmax<axis = 1>(c)  y = Transpose<perm = [1, 0]>(d) }"""


def test_relative_difference() -> None:
    a = np.array([1.0, -4.0], np.float32)
    assert observing.off(a, a + np.float32(0.5)) == 0.125
    assert observing.off(a, np.array([1.0, np.nan], np.float32)) == float("inf")


@pytest.mark.parametrize("kind", ["weight", "axis", "cast"])
def test_a_mutant_differs_in_one_weight_or_one_node(kind: mutating.Kind) -> None:
    small = model(SMALL, w=np.arange(8, dtype=np.float32).reshape(2, 4) + 1)
    before = numpy_helper.to_array(small.graph.initializer[0])
    made = zip(range(6), mutating.MAKERS[kind](small, random.Random(1)), strict=False)
    for _, mutant in made:
        onnx.checker.check_model(mutant.model)
        after = numpy_helper.to_array(mutant.model.graph.initializer[0])
        nodes = [node.SerializeToString() for node in mutant.model.graph.node]
        other_nodes = sum(node.SerializeToString() not in nodes for node in small.graph.node)
        assert int((before != after).sum()) == (kind == "weight")
        assert other_nodes == (kind != "weight")


def test_every_committed_mutant_that_shows_is_caught() -> None:
    text = (ROOT / "benchmarks" / "network" / "README.md").read_text(encoding="utf-8")
    lines = text.partition("<!-- mutants: begin -->")[2].partition("<!-- mutants: end -->")[0].splitlines()
    rows = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in lines if line.startswith("| `")]
    assert Counter(row[0].strip("`") for row in rows) == dict.fromkeys(mutants.MODELS, 10)
    showing = [row for row in rows if not row[3].startswith("0/")]
    assert all(row[6].startswith("failed: ") for row in showing)
    said = f"**{len(rows)} mutants, {len(showing)} of which change an output: {len(showing)} are caught.**"
    assert said in lines
