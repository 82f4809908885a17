"""benchmarks/random_models: the same number gives the same model, and what does not hold is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper
from random_models import judge as judging
from random_models.generator import Drawn, draw
from random_models.judge import Settings, judge

from onnxfix.place import Place
from onnxfix.rewrite import engine
from onnxfix.rule import Safety
from onnxfix.tensorrt.records import Issue, Stage, Status, TrtBuild
from support.paths import ROOT
from support.patience import PATIENCE

SETTINGS = Settings(seed=19, nodes=False)
HEAD = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
SMALL = """g (float[N,3] x) => (float[N,3] y, float[N,3] z) {
    a = Exp(x)  b = Identity(a)  y = Abs(b)  z = Sin(x) }"""


def judged(text: str, monkeypatch: pytest.MonkeyPatch, fixed: str = "") -> dict[str, object]:
    """What becomes of a model, or of one that is fixed as the second one."""
    model = Drawn(onnx.parser.parse_model(HEAD + text), "GRA012", [], [], Safety.EXACT, None)
    monkeypatch.setattr(judging, "draw", lambda *_, **__: model)
    if fixed:
        fix = engine.fix

        def other(given: engine.Model, *arguments: object, **keywords: object) -> engine.FixRun:
            run = fix(given, *arguments, **keywords)  # type: ignore[arg-type]
            given.proto.CopyFrom(onnx.parser.parse_model(HEAD + fixed))
            return run

        monkeypatch.setattr(judging.engine, "fix", other)
    return judge(SETTINGS, 1)


@pytest.mark.slow
def test_a_number_gives_the_same_model() -> None:
    first, again, other = (draw(seed, 12, nodes=False).proto for seed in (19, 19, 20))
    assert first.SerializeToString() == again.SerializeToString() != other.SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "outputs", "touched", "contract", "checker", "idempotence"])
def test_a_broken_promise_is_seen(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    row = judged(SMALL, monkeypatch)
    assert how in {kind for kind, _ in row["faults"]} if how else row["faults"] == []  # type: ignore[attr-defined]
    assert row["status"] == "run"


@pytest.mark.slow
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


ATTENTION = """ g (float[1,3,4] x, float[1,2,5,2] p) => (float[1,3,4] y, float[1,3,4] z) {{
    i = Identity(x)  z = {}(i)
    y = com.microsoft.MultiHeadAttention<num_heads = 2>(i, i, i, , , , p, p) }}"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc fills memory")
def test_only_what_comes_from_unset_memory_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's attention reads what nobody set where it has past states and no output for the present ones."""
    assert judged(ATTENTION.format("Abs"), monkeypatch)["faults"] == []
    row = judged(ATTENTION.format("Abs"), monkeypatch, ATTENTION.format("Neg"))
    assert "outputs" in {kind for kind, _ in row["faults"]}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_only_what_the_model_itself_contradicts_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch declares 7 of what is 2, which nobody sees behind an operator that ONNX's inference does not know."""
    text = """ g (float[2] x, bool c) => (float[N] y) {{ h = {op}(x)
        y = If(c)<then_branch = p () => (float[{size}] u) {{ u = Neg(h) }},
                  else_branch = q () => (float[2] v) {{ v = Abs(h) }}> }}"""
    seen = text.format(op="Relu", size=7)
    assert judged(text.format(op="com.microsoft.QuickGelu", size=7), monkeypatch, seen)["contradicted"]
    row = judged(text.format(op="com.microsoft.QuickGelu", size=2), monkeypatch, seen)
    assert "checker" in {kind for kind, _ in row["faults"]}  # type: ignore[attr-defined]


UINT8 = "Loop tensor y_12 has type UINT8, which loops lack"
ACCEPTED = TrtBuild("accepted")


def ended(status: Status, stage: Stage, *texts: str, operator: str = "Loop") -> TrtBuild:
    errors = tuple(Issue(stage, "error", text, Place(op_type=operator)) for text in texts)
    return TrtBuild(status, stage, errors)


@pytest.mark.parametrize(
    ("built", "lost"),
    [
        (ACCEPTED, True),
        (ended("refused", "build", UINT8), False),
        (ended("refused", "build", "another cause", UINT8.replace("12", "9")), False),
        (ended("refused", "build", UINT8.replace("UINT8", "INT64")), True),
        (ended("refused", "build", UINT8, operator="Scan"), True),
        (ended("timeout", "build", UINT8), True),
    ],
)
def test_only_the_same_refusal_excuses_a_fix_that_the_parser_refuses(
    built: TrtBuild, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, fixed = onnx.ModelProto(ir_version=8), onnx.ModelProto(ir_version=9)

    def tried(proto: onnx.ModelProto, *, build: bool) -> TrtBuild:
        return ended("refused", "parse", UINT8) if proto is fixed else built if build else ACCEPTED

    monkeypatch.setattr(judging, "_tried", tried)
    monkeypatch.setattr(judging, "_codes", lambda one: [])
    assert ("lost" in judging.compared(original, fixed, build=False)) == lost
