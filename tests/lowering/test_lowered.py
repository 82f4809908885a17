"""Casts that round what nodes read and write: names stay, and values are those of half precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxfix.lowering.convert import between_casts
from onnxfix.lowering.lowered import Low, lowerable
from support import ort
from support.models import model
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
    session = ort.session(model)
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


def test_types_that_only_later_opsets_have() -> None:
    proto = model("g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y) { y = Conv(x, w) }", 17)
    assert set(lowerable(proto, "bf16").slots) == {0}
    assert dict(lowerable(proto, "bf16", strict=True).whole) == {0: "schema"}
    assert set(lowerable(proto, "fp16", strict=True).slots) == {0}


def test_inputs_that_are_always_float32_stay() -> None:
    text = "g (float[1,1,4,4] x, float[4] s) => (float[1,1,M,N] y) { y = Resize(x, , s) }"
    able = lowerable(model(text, 17), "fp16")
    assert able.slots[0].inputs == (0,)
    assert able.floats == {"x", "s", "y"}


SQUARE = "g (float16[2] x) => (float16[2] y) { a = Mul(x, x)  y = Div(a, x) }"


@pytest.mark.parametrize("opset", [11, 13, 20])
def test_a_square_overflows_before_it_is_divided(opset):
    made = model(SQUARE, opset=opset)
    x = np.array([300, 2], np.float16)
    assert ort.run(made, {"x": x})[0].tolist() == [
        300,
        2,
    ]  # if this fails, ``between_casts`` is needed no longer
    before = made.SerializeToString()
    assert ort.run(between_casts(made), {"x": x})[0].tolist() == [np.inf, 2]
    assert made.SerializeToString() == before


def test_casts_of_the_model_itself_round():
    made = model(
        "g (float[1] x) => (float[1] y) { h = Cast<to = 10>(x)  q = Mul(h, h)  y = Cast<to = 1>(q) }"
    )
    x = np.array([1.0009765], np.float32)
    rounded = np.float32(np.float16(x) * np.float16(x))
    assert ort.run(between_casts(made), {"x": x})[0] == rounded


def test_every_value_is_that_of_numpy():
    nodes = "a = Mul(x, x)  b = Sub(a, x)  c = Tanh(b)  d = Mul(c, x)  y = Add(d, b)"
    text = f"g (float16[4,8] x) => (float16[4,8] y) {{ {nodes} }}"
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float16)
    b = x * x - x
    c = np.tanh(b.astype(np.float32)).astype(np.float16)
    assert np.array_equal(ort.run(between_casts(model(text)), {"x": x})[0], c * x + b)


def test_a_model_without_half_precision_is_left_alone():
    made = model("g (float[2] x) => (float[2] y) { a = Mul(x, x)  y = Div(a, x) }")
    assert between_casts(made) is made
