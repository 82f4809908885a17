"""benchmarks/gpu/mutants.py: which mutants count as caught, as missed, and as saying nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx
import pytest
from gpu import changed, mutants
from gpu.changed import Change, Recipe

from support.models import model

NET = """g (float[2,4] x) => (float[4,2] y) {
n = Mul(x, tenth)  a = LayerNormalization<axis = 1, epsilon = 0.00001>(n, w)  b = Sub(a, x)
c = Softmax<axis = 1>(b)  d = Add(c, zero)  y = Transpose<perm = [1, 0]>(d) }"""


def net() -> onnx.ModelProto:
    found = model(NET)
    for name, value in (("w", np.arange(1, 5)), ("tenth", 0.1), ("zero", np.zeros(8).reshape(2, 4))):
        found.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name))
    return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[changed.Subject]:
    path = tmp_path_factory.mktemp("mutants") / "net.onnx"
    onnx.save(net(), path)
    with ExitStack() as stack:
        yield changed.Subject(path, stack)


def test_a_change_that_changes_nothing_is_equivalent(exported: changed.Subject) -> None:
    other = net()
    other.graph.node[4].op_type = "Sub"  # of zeros
    found = exported.change(other)
    assert found is not None
    assert found.equivalent
    assert not found.beyond
    broken = net()
    broken.graph.node[4].op_type = "NoSuchOperator"
    assert exported.change(broken) is None


def mutant(
    key: str, *, gpu: str = "passed", cpu: str = "passed", network: str = "passed", **change: Any
) -> mutants.Row:
    kind = "none" if key == "control" else "scale"
    what = Change(
        **{"runs": 5, "differing": 4, "relative": 0.1, "precision": "float64", "beyond": True, **change}
    )
    said = {
        name: {"status": one, "reason": f"{name} says"}
        for name, one in (("trt-gpu", gpu), ("ort-cpu", cpu), ("trt-network", network))
        if one
    }
    return mutants.Row(Recipe("m", kind, 0, key, "d"), what, said)


MUTANTS = [
    mutant("both", gpu="failed", cpu="failed"),
    mutant("alone", gpu="failed"),
    mutant("theirs", cpu="failed"),
    mutant("network", network="failed"),
    mutant("tiny", relative=1e-7, beyond=False),
    mutant("same", equivalent="in float64 nothing", relative=0.0, beyond=False),
    mutant("skipped", gpu="skipped", cpu="failed"),
    mutant("late", gpu="timeout", cpu="failed"),
    mutant("open", gpu="", cpu="failed"),
    mutant("control", equivalent="in float64 nothing", relative=0.0, beyond=False),
]


def test_who_catches_what() -> None:
    text = "\n".join(mutants.page(MUTANTS, {"GPU": "A"}))
    assert "**5 mutants change an output: trt-gpu refutes 2, 2 of the 4 that change one" in text
    assert "Of 9 mutants 1 are excluded, since they change nothing, and of 3 no engine was executed." in text
    assert "0 of 1 copies are refuted" in text
    for line in (
        "| trt-gpu alone | 1 | 1 |",
        "| ort-cpu or trt-network alone | 2 | 2 |",
        "| both | 1 | 1 |",
        "| neither | 1 | 0 |",
        "| `m` | scale | both | 1.0e-01 (float64) | refuted | passed | refuted | trt-gpu says |",
        "| `m` | scale | same | none | passed | passed | passed | in float64 nothing |",
        "| `m` | scale | open | 1.0e-01 (float64) | refuted | passed | – | – |",
    ):
        assert line in text
    assert "control" not in text


def test_what_is_missed_is_a_fault_and_so_is_a_refuted_copy() -> None:
    assert len(mutants.faults(MUTANTS)) == 2  # theirs, network
    assert mutants.faults([mutant("control", gpu="failed", equivalent="nothing")])
    assert not mutants.faults([mutant("tiny", beyond=False), mutant("late", gpu="timeout")])


def test_a_model_whose_engine_is_wrong_by_itself_says_nothing_of_mutants() -> None:
    said = {"trt-gpu": {"status": "failed", "reason": "r", "outcome": "alike"}}
    made: dict[str, Any] = {"results": {}}
    measured: dict[str, Any] = {"results": {}}
    for model_name, kind in (("half", "none"), ("half", "scale"), ("good", "none"), ("good", "scale")):
        recipe = Recipe(model_name, kind, 0, "w", "d")
        change = Change(5, 4, 0.1, "float64", True)
        prepared = {"recipe": asdict(recipe), "change": asdict(change), "said": {"rungs": {}}}
        made["results"][f"{model_name}/{kind}"] = prepared
        good = {"trt-gpu": {"status": "passed", "reason": "r", "outcome": "agree"}}
        rungs = said if model_name == "half" else good
        measured["results"][recipe.key] = {"digest": "d", "rungs": rungs}
    rows = mutants.rows_of(made, measured)
    assert [one.spoilt for one in rows] == [False, False, True, True]
    assert [one.counts for one in rows] == [False, True, False, False]
    assert [one.partition(":")[0] for one in mutants.faults(rows)] == ["good/scale/0"]
    assert "so its mutants do not count: half." in "\n".join(mutants.page(rows, {}))
