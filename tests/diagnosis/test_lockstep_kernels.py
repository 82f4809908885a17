"""Nodes for which ONNX Runtime has no kernel."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

import onnxfix

# ONNX Runtime has no recurrences of layout 1 on a CPU.
RECURRENT = """<ir_version: 10, opset_import: ["" : 22]>
g (float[2,3,4] x, float[1,5,4] w, float[1,5,5] r) => (float[2,1,5] y) {
  scale = Constant<value = float {SCALE}>()
  scaled = Mul(x, scale)
  all, last = RNN<hidden_size = 5, layout = 1>(scaled, w, r)
  y = Tanh(last)
}"""


def written(path: Path, scale: str) -> Path:
    onnx.save(onnx.parser.parse_model(RECURRENT.replace("SCALE", scale)), path)
    return path


def test_the_reference_evaluator_stands_in_for_a_kernel(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.onnx", "0.5"), written(tmp_path / "b.onnx", "0.75")
    found = onnxfix.diagnose(first, second)
    assert (found.status, [one.error.place.output for one in found.culprits]) == ("differ", ["scaled"])
    assert any("reference evaluator" in note for note in found.notes)
    assert found.outputs[0].differing


def test_where_all_kernels_are_there_it_is_not_used(tmp_path: Path) -> None:
    text = RECURRENT.replace("layout = 1", "layout = 0").replace("float[2,1,5] y", "float[1,3,5] y")
    onnx.save(onnx.parser.parse_model(text.replace("SCALE", "0.5")), tmp_path / "a.onnx")
    found = onnxfix.diagnose(tmp_path / "a.onnx", tmp_path / "a.onnx")
    assert (found.status, [note for note in found.notes if "evaluator" in note]) == ("agree", [])
