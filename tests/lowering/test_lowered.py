"""Casts that round what nodes read and write: names stay, and values are those of half precision."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfix.files import loading
from onnxfix.lowering.lowered import Low, lowerable
from support.paths import FIXTURES
from support.rounded import rounded

HALF = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,4] x, bool p) => (float[2,3] y, float[2,4] z, int64[2] k) <float[4,3] w = {
0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3}> {
  [first] h = Mul(x, x)
  [second] y = MatMul(h, w)
  z = If(p) <then_branch = t () => (float[2,4] a) { a = Neg(h) }, else_branch = f () => (float[2,4] b) { b = Abs(h) }>
  k = ArgMax<axis=1, keepdims=0>(h)
}"""


def _run(model: onnx.ModelProto, feed: dict[str, np.ndarray], *more: str) -> dict[str, np.ndarray]:
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("apart", [True, False])
def test_values_are_those_of_half_precision(to: Low, apart: bool) -> None:
    model = onnx.parser.parse_model(TEXT)
    made = rounded(model, to, apart=apart)
    onnx.checker.check_model(made, full_check=True)
    able = lowerable(model, to)
    assert ([*able.slots], dict(able.whole)) == ([0, 1, 3], {2: "control-flow"})
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4) + np.float32(0.0007)
    found = _run(made, {"x": x, "p": np.array(True)}, "h")
    half = HALF[to]
    low = x.astype(half).astype(np.float32)
    h = (low * low).astype(half).astype(np.float32)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(half).astype(np.float32)
    assert np.array_equal(found["h"], h)
    assert np.array_equal(found["z"], -h)
    assert np.allclose(
        found["y"], (h @ w).astype(half).astype(np.float32), rtol=2 * ml_dtypes.finfo(half).eps, atol=0
    )
    assert np.array_equal(found["y"], found["y"].astype(half).astype(np.float32))


def test_a_kept_node_computes_in_float32_on_what_was_rounded() -> None:
    model = onnx.parser.parse_model(TEXT)
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4) + np.float32(0.0007)
    feed = {"x": x, "p": np.array(True)}
    for name in ("first", "h"):  # by its name, and by its output's
        made = rounded(model, "fp16", {name})
        assert np.array_equal(_run(made, feed, "h")["h"], x * x)
    made = rounded(model, "fp16", {"second"})
    low = x.astype(np.float16).astype(np.float32)
    h = (low * low).astype(np.float16).astype(np.float32)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    assert np.allclose(_run(made, feed)["y"], h @ w, rtol=1e-6)


def test_overflow_is_infinite() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { h = Mul(x, x)  y = Sqrt(h) }'
    model = onnx.parser.parse_model(text)
    found = _run(rounded(model, "fp16"), {"x": np.array([300], np.float32)})["y"]
    assert np.isinf(found).all()
    assert _run(rounded(model, "bf16"), {"x": np.array([300], np.float32)})["y"] == 300


def test_apart_rounds_what_another_node_wrote() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { h = Neg(x)  y = Neg(h) }'
    )
    model = onnx.parser.parse_model(text)
    counts = [
        sum(node.op_type == "Cast" for node in rounded(model, "fp16", apart=apart).graph.node)
        for apart in (False, True)
    ]
    assert counts == [6, 8]


def test_types_that_only_later_opsets_have() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) { y = Conv(x, w) }"""
    model = onnx.parser.parse_model(text)
    assert set(lowerable(model, "bf16").slots) == {0}
    assert dict(lowerable(model, "bf16", strict=True).whole) == {0: "schema"}
    assert set(lowerable(model, "fp16", strict=True).slots) == {0}


def test_inputs_that_are_always_float32_stay() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,4,4] x, float[4] s) => (float[1,1,M,N] y) { y = Resize(x, , s) }"""
    able = lowerable(onnx.parser.parse_model(text), "fp16")
    assert able.slots[0].inputs == (0,)
    assert able.floats == {"x", "s", "y"}


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.onnx")), ids=lambda path: path.stem)
def test_fixtures_are_valid_without_their_weights(path: Path) -> None:
    loaded = loading.load(path)
    made = rounded(loaded.proto, "fp16")
    names = {name for node in loaded.proto.graph.node for name in node.output}
    assert names <= {name for node in made.graph.node for name in node.output}
    if "fp16" not in path.name:
        assert any(node.op_type == "Cast" for node in made.graph.node)
    seen = {info.name for info in made.graph.input} | {one.name for one in made.graph.initializer}
    for node in made.graph.node:
        assert all(name in seen for name in node.input if name)  # producers come first
        seen.update(node.output)
