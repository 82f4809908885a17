"""benchmarks/random_models: the same number gives the same model, and what does not hold is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper
from random_models import judge as judging
from random_models import tables
from random_models.execution import Original, contradicts_itself, from_unset_memory
from random_models.generator import Drawn, draw
from random_models.judge import Settings, judge
from random_models.pieces import examples, nodes_of, refused

from onnxfix.rewrite import engine
from onnxfix.rule import Safety
from support.paths import ROOT
from support.patience import PATIENCE

pytestmark = pytest.mark.slow

SETTINGS = Settings(seed=19, nodes=False)
F = onnx.TensorProto.FLOAT


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    return [draw(19, number, nodes=False) for number in range(0, len(examples()), 6)]


def test_a_number_gives_the_same_model(drawn: list[Drawn]) -> None:
    again = draw(19, 12, nodes=False)
    assert again.proto.SerializeToString() == drawn[2].proto.SerializeToString()
    assert again.proto.SerializeToString() != draw(20, 12, nodes=False).proto.SerializeToString()


def test_models_are_valid_and_of_many_kinds(drawn: list[Drawn]) -> None:
    valid = [one for one in drawn if not refused(one.proto)]
    assert len(valid) > len(drawn) * 0.8
    assert {one.code for one in drawn} == set(sorted(examples())[::6])
    places = Counter(place for one in valid for place in one.places)
    assert {"If", "Loop", "Scan", "Function"} <= places.keys()
    assert len({one.opset for one in valid}) > 5
    assert {one.safety for one in drawn} >= {Safety.EXACT, Safety.NUMERIC}
    operators = {node.op_type for one in valid for node in nodes_of(one.proto.graph.node)}
    assert len(operators) > 60


def small() -> ModelProto:
    """A model in which one Identity is removed."""
    infos = [helper.make_tensor_value_info(name, F, ["N", 3]) for name in ("x", "y", "z")]
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Abs", ["b"], ["y"]),
        helper.make_node("Sin", ["x"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "small", infos[:1], infos[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """``judge`` gets ``small`` for each number."""
    model = Drawn(small(), "GRA012", ["small"], [], Safety.EXACT, None, opset=18)
    monkeypatch.setattr(judging, "draw", lambda *_, **__: model)
    return monkeypatch


def test_a_sound_fix_has_no_faults(given: pytest.MonkeyPatch) -> None:
    row = judge(SETTINGS, 0)
    assert row["faults"] == []
    assert (row["status"], row["changed"], row["feeds"]) == ("run", True, 2)
    assert row["backends"] == ["ort-cpu", "reference"]
    assert "GRA012" in row["fixed"]


def broken(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the engine spoil its result."""
    fix = engine.fix

    def spoiled(model: engine.Model, *arguments: object, **keywords: object) -> engine.FixRun:
        run = fix(model, *arguments, **keywords)  # type: ignore[arg-type]
        graph = model.proto.graph
        if how == "outputs":
            graph.node[-1].op_type = "Neg"
            run = run._replace(touched=run.touched | {"z"})
        elif how == "touched":
            graph.node[-1].doc_string = "new"
        elif how == "contract":
            graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
        elif how == "checker":
            graph.node[-1].attribute.append(helper.make_attribute("unknown", 1))
            run = run._replace(touched=run.touched | {"z"})
        elif how == "idempotence":
            graph.node.append(helper.make_node("Neg", ["x"], [f"more_{len(graph.node)}"]))
        return run

    monkeypatch.setattr(judging.engine, "fix", spoiled)


@pytest.mark.parametrize("how", ["outputs", "touched", "contract", "checker", "idempotence"])
def test_a_broken_promise_is_seen(how: str, given: pytest.MonkeyPatch) -> None:
    broken(how, given)
    assert how in {kind for kind, _ in judge(SETTINGS, 1)["faults"]}


def test_random_models_keep_every_promise(tmp_path: Path, stride: int) -> None:
    """Each model that fails is drawn again by its number: ``run.py --seed 19 --without-node-models --only NUMBER``."""
    count = 300 if stride == 1 else 120
    script = ROOT / "benchmarks" / "random_models" / "run.py"
    command = [sys.executable, script, "--seed", "19", "--to", str(count)]
    options = ["--without-node-models", "--json", tmp_path / "rows"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=PATIENCE)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [(row["number"], row["faults"]) for row in rows if row["faults"]] == [], done.stderr
    assert sorted(row["number"] for row in rows) == list(range(count))
    assert sum(row["status"] == "run" for row in rows) >= 0.93 * count
    assert sum(row["changed"] for row in rows) >= 0.83 * count
    assert sum(bool(row["feeds"]) for row in rows) >= 0.8 * count
    if count == 300:
        assert len(tables.unreached(rows)) <= 25  # of 172 rules, most have their turn only once or twice


def judged(text: str, monkeypatch: pytest.MonkeyPatch, fixed: str = "") -> dict[str, object]:
    """What becomes of a model, or of one that is fixed as the second one."""
    model = Drawn(onnx.parser.parse_model(text), "GRA012", [], [], Safety.EXACT, None)
    monkeypatch.setattr(judging, "draw", lambda *_, **__: model)
    if fixed:
        fix = engine.fix

        def other(given: engine.Model, *arguments: object, **keywords: object) -> engine.FixRun:
            run = fix(given, *arguments, **keywords)  # type: ignore[arg-type]
            given.proto.CopyFrom(onnx.parser.parse_model(fixed))
            return run

        monkeypatch.setattr(judging.engine, "fix", other)
    return judge(SETTINGS, 1)


HEAD = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
ATTENTION = """{head} g (float[1,3,4] x, float[1,2,5,2] p) => (float[1,3,4] y, float[1,3,4] z{more}) {{
    i = Identity(x)  z = {op}(i)
    y{outputs} = com.microsoft.MultiHeadAttention<num_heads = 2>(i, i, i, , , , p, p) }}"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc fills memory")
def test_only_what_comes_from_unset_memory_is_excused(given: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's attention reads what nobody set where it has past states and no output for the present ones."""
    unset = ATTENTION.format(head=HEAD, op="Abs", more="", outputs="")
    row = judged(unset, given)
    assert row["faults"] == []
    original = Original(onnx.parser.parse_model(unset), {}, 19)
    assert from_unset_memory(original) == {"y"}
    row = judged(unset, given, ATTENTION.format(head=HEAD, op="Neg", more="", outputs=""))
    assert "outputs" in {kind for kind, _ in row["faults"]}  # type: ignore[attr-defined]
    present = ", float[1,2,8,2] k, float[1,2,8,2] v"
    whole = ATTENTION.format(head=HEAD, op="Abs", more=present, outputs=", k, v")
    assert from_unset_memory(Original(onnx.parser.parse_model(whole), {}, 19)) == set()


def test_only_what_the_model_itself_contradicts_is_excused(given: pytest.MonkeyPatch) -> None:
    """A branch declares 7 of what is 2, which nobody sees behind an operator that ONNX's inference does not know."""
    text = """{head} g (float[2] x, bool c) => (float[N] y) {{ h = {op}(x)
        y = If(c)<then_branch = p () => (float[{size}] u) {{ u = Neg(h) }},
                  else_branch = q () => (float[2] v) {{ v = Abs(h) }}> }}"""
    wrong = text.format(head=HEAD, op="com.microsoft.QuickGelu", size=7)
    original = Original(onnx.parser.parse_model(wrong), {}, 19)
    assert "(2) vs (7)" in contradicts_itself(original)
    right = text.format(head=HEAD, op="com.microsoft.QuickGelu", size=2)
    assert contradicts_itself(Original(onnx.parser.parse_model(right), {}, 19)) == ""
    seen = text.format(head=HEAD, op="Relu", size=7)
    assert judged(wrong, given, seen)["contradicted"]
    assert "checker" in {kind for kind, _ in judged(right, given, seen)["faults"]}  # type: ignore[attr-defined]
