"""benchmarks/network: what a mutant changes, and that each recorded one that shows was caught."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import onnx
from network import mutants, mutating
from onnx import ModelProto, numpy_helper

from support.models import model
from support.paths import ROOT

FOLDER = ROOT / "benchmarks" / "network"
README = FOLDER / "README.md"


def test_relative_difference() -> None:
    a = np.array([1.0, -4.0], np.float32)
    assert mutating.relative(a, a + np.float32(0.5)) == 0.125
    assert mutating.relative(a, np.array([1.0, np.nan], np.float32)) == float("inf")
    zero = np.zeros(2, np.float32)
    assert mutating.relative(zero, zero) == 0.0
    assert mutating.relative(zero, zero + 1) == float("inf")


# ---------------------------------------------------------------------------------------------------- mutants

SMALL = """g (float[2,4] x) => (float[4,2] y) {
a = Add(x, w)  b = Cast<to = 6>(a)  c = Cast<to = 1>(b)  d = Softmax<axis = 1>(c)  y = Transpose<perm = [1, 0]>(d) }"""


def changed(kind: mutating.Kind) -> list[tuple[mutating.Mutant, ModelProto]]:
    small = model(SMALL)
    weight = np.arange(8, dtype=np.float32).reshape(2, 4) + 1
    small.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return [
        (one, small) for _, one in zip(range(8), mutating.MAKERS[kind](small, random.Random(1)), strict=False)
    ]


def test_one_element_of_one_weight() -> None:
    found = changed("weight")
    assert len(found) == 8
    for mutant, small in found:
        [before], [after] = small.graph.initializer, mutant.model.graph.initializer
        assert int((numpy_helper.to_array(before) != numpy_helper.to_array(after)).sum()) == 1
        assert list(mutant.model.graph.node) == list(small.graph.node)


def test_one_axis() -> None:
    found = changed("axis")
    assert {mutant.what.split()[0] for mutant, _ in found} == {"Softmax", "Transpose"}
    for mutant, small in found:
        pairs = zip(mutant.model.graph.node, small.graph.node, strict=True)
        assert sum(a != b for a, b in pairs) == 1


def test_one_type_of_a_cast() -> None:
    found = changed("cast")
    assert len(found) == 6
    for mutant, small in found:
        onnx.checker.check_model(mutant.model, full_check=True)
        types = [
            Counter(n.attribute[0].i for n in m.graph.node if n.op_type == "Cast")
            for m in (mutant.model, small)
        ]
        assert sum((types[0] - types[1]).values()) == 1


# ---------------------------------------------------------------------------------------------------- the README


def between(name: str) -> list[str]:
    """The lines of the README between the markers of that name."""
    text = README.read_text(encoding="utf-8")
    return text.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0].splitlines()


def cells(lines: list[str], starts: str = "| ") -> list[list[str]]:
    return [[one.strip() for one in line[2:-2].split(" | ")] for line in lines if line.startswith(starts)]


def test_every_committed_mutant_that_shows_is_caught() -> None:
    lines = between("mutants")
    rows = cells(lines, "| `")
    assert Counter(row[0].strip("`") for row in rows) == dict.fromkeys(mutants.MODELS, 10)
    assert Counter(row[1] for row in rows) == {kind: 3 * count for kind, count in mutants.WANTED.items()}
    showing = [row for row in rows if not row[3].startswith("0/")]
    assert all(row[6].startswith("failed: ") for row in showing)
    said = f"**{len(rows)} mutants, {len(showing)} of which change an output: {len(showing)} are caught.**"
    assert said in lines
