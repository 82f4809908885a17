"""``onnxfix inspect``: what a model consists of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from support.cli import output, refused
from support.models import model, write

MODEL = """g (float[batch,3] x, bool c) => (float[batch,4] y)
{ a = MatMul(x, w)
  b = If(c)<then_branch = t () => (float[batch,4] p) { p = Relu(a) },
            else_branch = e () => (float[batch,4] q) { q = own.F(a) }>
  d = Det(square)
  y = Add(b, d) }
<domain: "own", opset_import: ["" : 20]> F (x) => (z) { z = Neg(x) }"""


def test_one_screen_tells_what_a_model_is(tmp_path: Path) -> None:
    weights = {"w": np.ones((3, 4), np.float32), "square": np.ones((2, 2), np.float32)}
    exported = model(MODEL, domains={"own": 1}, **weights)
    exported.producer_name, exported.producer_version = "pytorch", "2.13.0"
    path = write(tmp_path / "m.onnx", exported)
    screen = output(0, "inspect", path).splitlines()
    assert screen[0].startswith(str(path))
    assert screen[0].endswith("(pytorch 2.13.0, IR 10, opset 20, own 1)")
    assert screen[1].split() == ["inputs", "x", "float[batch,3]"]
    assert screen[2].split() == ["c", "bool[]"]
    assert screen[3].split() == ["outputs", "y", "float[batch,4]"]
    assert "16 numbers in 2 tensors: float 64 bytes" in screen[4]
    assert screen[5].split()[1:6] == ["7,", "2", "subgraphs,", "1", "function:"]
    assert "own.F 1" in screen[5]
    assert "1 error" in screen[6]
    assert "trt11" in screen[6]
    found = json.loads(output(0, "inspect", path, "--format", "json", "--target", "8.6"))
    assert found["target"] == "trt8.6"
    assert (found["weights"], found["subgraphs"]) == ({"float": 64}, 2)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refused("inspect", tmp_path / "gone.onnx").lower()
