"""One file for several releases of TensorRT: what all of them take, what any of them refuses, and fixes for all.
NVIDIA's plugins and the user's: which targets have them, and what check says of operators without an importer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import trt_types
from onnx import TensorProto

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.rewrite.engine import check
from onnxfix.rewrite.registry import registry
from onnxfix.rule import NO_MODEL, Rule, Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.targets import TARGETS, documented, measured, mismatch, serves, target_named
from onnxfix.tensorrt.build import attempt
from onnxfix.testing import findings, fixed, model_of, overlay
from support import models
from support.cli import run
from support.paths import FIXTURES
from support.real_tensorrt import REAL

RULES = [rule for rule in registry().rules if rule.per not in NO_MODEL]
PAIRS = ("8.6,10.6", "10.6,11.2", "10.3,rtx")
ATTENTION = models.model("g (float16[1,2,4,16] x) => (float16[1,2,4,16] y) { y = Attention(x, x, x) }", 23)
NMS = FIXTURES / "cases" / "batched_nms_plugin.onnx"


@pytest.mark.parametrize("text", [*PAIRS, "8.4,8.5", "8.6,10.3,11.2"])
def test_it_takes_what_all_take(text: str) -> None:
    both, each = target_named(text), [target_named(one) for one in text.split(",")]
    rank = {False: 0, None: 1, True: 2}
    for name in {*trt_types.standard_operators(), *documented.SHIPPED, *both.refused}:
        assert both.imports(name) is min((one.imports(name) for one in each), key=rank.get)
        assert both.has_plugin(name) == all(one.has_plugin(name) for one in each)
        assert serves(both, name) is min((serves(one, name) for one in each), key=rank.get)
        assert (name in both.ignores_axes) == any(name in one.ignores_axes for one in each)
        for one in each if both.operator(name) else ():
            support, own = both.operators[name], one.operators[name]
            assert support.types <= own.types
            assert support.refused >= own.refused
            assert support.notes == own.notes or f"{one.name}: {own.notes or 'none'}" in support.notes
        for kind in TensorProto.DataType.values():
            assert both.accepts(name, kind) is min((one.accepts(name, kind) for one in each), key=rank.get)
    for kind in TensorProto.DataType.values():
        assert both.has_type(kind) == all(one.has_type(kind) for one in each)
        assert both.between(kind) == all(one.between(kind) for one in each)
    assert both.refused == frozenset().union(*(one.refused for one in each))
    assert both.max_rank == min(one.max_rank for one in each)
    for every in ("calls_functions", "dynamic_squeeze", "types_measured", "int64"):
        assert getattr(both, every) == all(getattr(one, every) for one in each)
    for either in ("requires_allowzero", "strongly_typed_only"):
        assert getattr(both, either) == any(getattr(one, either) for one in each)


@pytest.mark.parametrize(
    ("text", "name", "title"),
    [
        ("11.2, jetpack6.2,10.3.0", "trt10.3,trt11.2", "TensorRT 10.3 or 11.2"),
        ("rtx,10.3,8.6", "trt8.6,trt10.3,rtx", "TensorRT 8.6, 10.3 or TensorRT-RTX 1.x"),
        ("10.3,jetpack6.1", "trt10.3", "TensorRT 10.3"),
    ],
)
def test_names(text: str, name: str, title: str) -> None:
    target = target_named(text)
    assert (target.name, target.title) == (name, title)
    assert TARGETS.get(name) is target is target_named(name)
    assert [one.name for one in target.releases] == name.split(",")
    with pytest.raises(UsageError, match="unknown target '9'; choose from"):
        target_named(f"{text},9")
    assert TARGETS.get("trt10.3,trt9") is None


def test_the_judge_of_one_of_them() -> None:
    target = target_named("10.3,11.2")
    assert target.includes("tensorrt", "10.3.0.30")
    assert not target.includes("tensorrt", "10.6.0.26")
    for version, other in (("10.3.0.30", "TensorRT 11.2"), ("10.6.0", "TensorRT 10.3 or 11.2")):
        said = mismatch(target, "tensorrt", version)
        assert said.endswith(f" judged the model, not the target {other}: what it accepts may differ")


@pytest.mark.parametrize(
    ("model", "codes", "words"),
    [(ATTENTION, ["OPS050"], "TensorRT 10.3 rejects"), (NMS, ["OPS101"], "TensorRT 11.2 does not ship")],
)
def test_what_one_of_them_refuses(model: object, codes: list[str], words: str) -> None:
    for target, found in (("10.3,11.2", True), ("11.2,10.3", True), ("10.3", "10.3" in words)):
        report = onnxfix.check(model, target=target)
        errors = [item for item in report.findings if item.severity == "error"]
        assert [item.code for item in errors] == (codes if found else [])
        assert all(item.message.startswith(words) for item in errors)


def test_severities_and_names() -> None:
    """The worst of any; all are named where a message says the target, the others where only some have the finding."""
    det = models.model("g (float[2,3,3] x) => (float[2] y) { y = Det(x) }", 20)
    [item] = onnxfix.check(det, target="8.6,10.3,11.2", select="OPS001").findings
    assert item.message.startswith("TensorRT 8.6, 10.3 or 11.2 does not import Det (source: onnx-")
    clip = models.model("g (bfloat16[N] x, bfloat16 a) => (bfloat16[N] y) { y = Clip(x, , a) }", 18)
    [item] = onnxfix.check(clip, target="8.6,10.6", select="OPS106").findings
    assert (item.severity, item.message[-15:]) == ("error", "(TensorRT 10.6)")


def test_one_file_that_both_take(tmp_path: Path) -> None:
    out = tmp_path / "both.onnx"
    report = onnxfix.apply(ATTENTION, out, target="10.3,11.2", numeric_fixes=True)
    assert "OPS050" in {item.code for item in report.applied}
    for target in ("10.3", "11.2", "10.3,11.2"):
        assert not [f for f in onnxfix.check(out, target=target).findings if f.severity == "error"]
    assert not onnxfix.apply(ATTENTION, tmp_path / "as_is.onnx", target="10.14,11.2", rungs=[]).applied


def test_commands_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("check", NMS, "--target", "11.2,jetpack6.2", "--format", "json")[1]
    assert '"target": "trt10.3,trt11.2"' in out
    assert "unknown target 'trt9'" in run("check", NMS, "--target", "10.3,trt9")[2]
    assert run("targets", "8.6,10.3", "11.2")[1].startswith("TensorRT 8.6 or 10.3, TensorRT 11.2\n")
    (tmp_path / "onnxfix.toml").write_text('target = "10.3,11.2"\n')
    monkeypatch.chdir(tmp_path)
    assert "(target trt10.3,trt11.2, " in " ".join(run("check", NMS)[1].split())


@pytest.mark.corpus(every=10)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.examples], ids=lambda rule: rule.code)
def test_examples_for_several_targets(rule: Rule) -> None:
    """Errors contain those of each member, before and after; fixes are made, and errors left, only as for a member."""
    for example in rule.examples:
        proto = model_of(example)
        for pair in PAIRS:
            label, found = f"{pair}: {example.why}", errors(check(overlay(proto, pair), RULES, []))
            result, both = fixed(RULES, proto, safety=Safety.NUMERIC, target=pair)
            alone = []
            for one in pair.split(","):
                assert errors(check(overlay(proto, one), RULES, [])) <= found, label
                assert errors(check(overlay(result, one), RULES, [])) <= errors(both.remaining), label
                alone.append(fixed(RULES, proto, safety=Safety.NUMERIC, target=one)[1])
            assert not both.applied or any(one.applied for one in alone), label
            assert not errors(both.remaining) or any(errors(one.remaining) for one in alone), label


def errors(found: object) -> set[tuple[str, str]]:
    return {(one.rule.code, str(one.match.place)) for one in found if one.severity is Severity.ERROR}


BY_CODE = {rule.code: rule for rule in registry().rules}


@pytest.mark.parametrize(
    ("plugin", "ships"),
    [
        ("EfficientNMS_TRT", [True] * 5 + [False]),
        ("BatchedNMS_TRT", [True] * 4 + [False] * 2),
        ("SingleStepLSTMPlugin", [True] * 3 + [False] * 3),
        ("TopkLastDim", [False] * 4 + [True, False]),
        ("ROIAlign_TRT", [True] * 6),
    ],
)
def test_plugins(plugin: str, ships: list[bool]) -> None:
    text = f"g (float[2] x) => (float[2] y) {{ y = {plugin}(x) }}"
    assert [plugin in target.plugins for target in TARGETS.values()] == ships
    assert [
        [found.severity.name for found in findings(BY_CODE["OPS101"], models.model(text, 18), name)]
        for name in TARGETS
    ] == [[] if one else ["ERROR"] for one in ships]


@pytest.mark.parametrize(
    ("plugin", "target", "why"),
    [
        ("NMS_TRT", "trt11", "gone since TensorRT 11.0; use EfficientNMS_TRT or ONNX's NonMaxSuppression"),
        ("Proposal", "trt11", "gone since TensorRT 11.0"),
        ("FFTPlugin", "trt10", "it came with TensorRT 11.2"),
        ("NMS_TRT", "rtx", "only the full TensorRT does"),
    ],
)
def test_the_message_tells_what_became_of_a_plugin(plugin: str, target: str, why: str) -> None:
    model = models.model(f"g (float[2] x) => (float[2] y) {{ y = {plugin}(x) }}", 18)
    [found] = findings(BY_CODE["OPS101"], model, target)
    assert why in found.match.message


def test_a_plugin_of_the_users_is_no_finding() -> None:
    """It serves an operator that ONNX does not have, and one without an importer, but none that the parser refuses."""
    text = """<ir_version: 9, opset_import: ["" : 18, "my" : 1, "com.microsoft" : 1]> g (float[2,2] x) =>
        (float[2,2] a, float[2,2] b, float[2,2] c, float[2,2] d, float e) { a = FooBar(x)  b = my.Foo(x)
        c = DeformConv(x, x, x)  d = com.microsoft.Inverse(x)  e = Det(x) }"""
    model = overlay(models.model(text, 18), "rtx")
    rules = [BY_CODE["OPS001"], BY_CODE["OPS101"], BY_CODE["OPS088"]]
    names = {"FooBar", "Foo", "DeformConv", "Det", "Inverse"}
    assert {found.match.node.op_type for found in check(model, rules) if found.match.node} == names
    model.target = replace(TARGETS["rtx"], plugins=TARGETS["rtx"].plugins | names)
    assert [found.match.node.op_type for found in check(model, rules) if found.match.node] == ["Det"]


@REAL
def test_tensorrt_has_the_plugins_and_operators_that_the_data_say(worker: Worker, tmp_path: Path) -> None:
    script = "import tensorrt_rtx as t; print(*{c.name for c in t.get_plugin_registry().all_creators})"
    ships = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert set(ships.split()) == TARGETS["rtx"].plugins | {"MyelinWeightsTransformPlugin"}
    assert set(trt_types.supported("tensorrt-rtx", sorted(measured.OWN))) == measured.OWN
    path = tmp_path / "model.onnx"
    for name in sorted(measured.UNKNOWN):
        text = f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2] x) => (float[2] y) {{ y = my.{name}(x) }}
            <domain: "my", opset_import: ["" : 18]> {name} (a) => (b) {{ b = Neg(a) }}"""
        onnx.save(onnx.parser.parse_model(text), path)
        refused = not attempt(worker, path, package="tensorrt-rtx").accepted
        assert refused == (name in TARGETS["rtx"].refused), name
