"""NVIDIA's plugins and the user's: which targets have them, and what check says of operators without an importer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import trt_types

from onnxfix.rewrite.engine import check
from onnxfix.rewrite.registry import registry
from onnxfix.runtime.sandbox import Worker
from onnxfix.targets import TARGETS, measured
from onnxfix.tensorrt.build import attempt
from onnxfix.testing import findings, overlay
from support import models
from support.real_tensorrt import REAL

RULES = {rule.code: rule for rule in registry().rules}


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
        [found.severity.name for found in findings(RULES["OPS101"], models.model(text, 18), name)]
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
    [found] = findings(RULES["OPS101"], model, target)
    assert why in found.match.message


def test_a_plugin_of_the_users_is_no_finding() -> None:
    """It serves an operator that ONNX does not have, and one without an importer, but none that the parser refuses."""
    text = """<ir_version: 9, opset_import: ["" : 18, "my" : 1, "com.microsoft" : 1]> g (float[2,2] x) =>
        (float[2,2] a, float[2,2] b, float[2,2] c, float[2,2] d, float e) { a = FooBar(x)  b = my.Foo(x)
        c = DeformConv(x, x, x)  d = com.microsoft.Inverse(x)  e = Det(x) }"""
    model = overlay(models.model(text, 18), "rtx")
    rules = [RULES["OPS001"], RULES["OPS101"], RULES["OPS088"]]
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
