"""benchmarks/gpu: mutants of real networks, which rungs catch them, and what the table says of it.

No engine of TensorRT is executed: ``fake_engines`` runs ONNX models in their place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ledger
import numpy as np
import onnx
import pytest
from gpu import changed, engines, mutants
from gpu.changed import Change, Recipe
from network import parameters

from onnxfix.errors import OnnxfixError
from onnxfix.nvidia import Gpu
from onnxfix.trt.package import Choice
from support.models import model

CHOICE = Choice("tensorrt", "10.0", "8.9", Gpu("NVIDIA Test", "8.9"))

NET = """g (float[2,4] x) => (float[4,2] y) {
n = Mul(x, tenth)  a = LayerNormalization<axis = 1, epsilon = 0.00001>(n, w)  b = Sub(a, x)
c = Softmax<axis = 1>(b)  d = Add(c, zero)  y = Transpose<perm = [1, 0]>(d) }"""


def net() -> onnx.ModelProto:
    found = model(NET)
    for name, value in (("w", np.arange(1, 5)), ("tenth", 0.1), ("zero", np.zeros(8).reshape(2, 4))):
        found.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name))
    return found


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("constant", "tenth[] × 1.01"),
        ("epsilon", "epsilon 1e-05 → 0.001"),
        ("perm", "perm [1, 0] → [0, 1]"),
        ("operands", "operands swapped"),
    ],
)
def test_one_parameter_changes(kind: Any, words: str) -> None:
    import random

    found = list(parameters.MAKERS[kind](net(), random.Random(0)))
    assert len(found) == 1
    assert words in found[0].what
    assert found[0].model.SerializeToString() != net().SerializeToString()


def test_a_whole_weight_and_every_operator() -> None:
    import random

    found = list(parameters.scales(net(), random.Random(0)))
    assert found == [], "zeros cannot be scaled, and four elements are no weight"
    names = {one.what.partition(": ")[2] for one in parameters.operators(net(), random.Random(0))}
    assert names == {"Sub → Add", "Softmax → LogSoftmax", "Add → Sub"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[changed.Subject]:
    path = tmp_path_factory.mktemp("mutants") / "net.onnx"
    onnx.save(net(), path)
    with ExitStack() as stack:
        yield changed.Subject(path, stack)


def test_what_a_mutant_changes(exported: changed.Subject) -> None:
    found = {kind: exported.pick(kind, 0, 0) for kind in ("none", "epsilon", "operands", "operator", "pads")}
    assert found["pads"] is None
    same = found["none"]
    assert same is not None
    assert (same[1].differing, same[1].relative, same[1].beyond) == (0, 0.0, False)
    assert same[1].equivalent.startswith("in float64")
    for kind in ("epsilon", "operands"):
        picked = found[kind]
        assert picked is not None
        assert picked[1].relative > changed.SAME
        assert picked[1].beyond
        assert picked[1].precision.startswith("float64")
        assert not picked[1].equivalent


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


def test_empty_inputs_are_left_out_where_values_are_compared(exported: changed.Subject) -> None:
    kept = exported.feeds
    try:
        exported.feeds = [*kept, {"x": np.zeros((0, 4), np.float32)}]
        assert len(exported._double(net())[1]) == len(kept)
    finally:
        exported.feeds = kept


def test_a_recipe_makes_the_same_mutant_or_none(exported: changed.Subject) -> None:
    picked = exported.pick("epsilon", 0, 0)
    assert picked is not None
    data = changed.again(net(), picked[0], 0)
    assert changed.digest_of(data) == picked[0].digest
    for other in (replace(picked[0], digest="0"), replace(picked[0], number=99)):
        with pytest.raises(OnnxfixError, match="another model here"):
            changed.again(net(), other, 0)


def test_the_weights_amounts_take_turns(exported: changed.Subject) -> None:
    found = [exported.pick("weight", 0, turn) for turn in range(3)]
    assert [one[0].number for one in found if one is not None] != [0, 0, 0]


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


def test_the_mutants_from_recipes_to_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"ort-cpu": "failed", "trt-network": "passed", "trt-gpu": "failed"}
    copies: list[bytes] = []

    def climb(original: Path, path: Path, rungs: Any, timeout: float) -> dict[str, Any]:
        copies.append(path.read_bytes())
        same = path.read_bytes() == onnx.load(original).SerializeToString()
        rung = {one: {"status": "passed" if same else said[one], "reason": "r"} for one in rungs}
        return {"exit": 0, "seconds": 0.1, "rungs": rung}

    onnx.save(net(), tmp_path / "net.onnx")
    monkeypatch.setattr(mutants, "FIXTURES", tmp_path)
    monkeypatch.setattr(mutants, "climb", climb)
    monkeypatch.setattr(engines, "ready", lambda package: (CHOICE, {"TensorRT": "10.0"}))
    recipes, found = tmp_path / "recipes.json", tmp_path / "found.json"
    given = SimpleNamespace(json=recipes, seed=0, kinds=["epsilon", "pads"], models=["net"], timeout=9.0)
    assert mutants.prepare(given) == 0  # type: ignore[arg-type]
    assert {key: one is None for key, one in ledger.load(recipes)["results"].items()} == {
        "net/none": False, "net/epsilon": False, "net/pads": True,
    }  # fmt: skip
    assert mutants.main(["execute", str(recipes), "--json", str(found), "--jobs", "1"]) == 0
    assert copies[2:] == copies[:2], "the same models on the other machine"
    assert mutants.main(["table", str(recipes), str(found)]) == 0
    assert "**1 mutants change an output: trt-gpu refutes 1" in capsys.readouterr().out
    stored = json.loads(found.read_text())
    for one in stored["results"].values():
        one["digest"] = "other"
    found.write_text(json.dumps(stored))
    assert mutants.main(["table", str(recipes), str(found)]) == 2
