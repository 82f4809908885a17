"""Casts that round what nodes read and write: names stay, and values are those of half precision. Quantized models:
half precision around Q/DQ, scales with it, and no Cast between a product and its Q/DQ."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnxfix
from onnxfix.lowering.choice import Graph, settled
from onnxfix.lowering.convert import between_casts, converted
from onnxfix.lowering.lowered import Low, lowerable
from support import ort
from support.models import model
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


KINDS = FIXTURES / "kinds"

#: A product, a residual, and moves between Q/DQ; ``wide`` reads the last DQ too.
QUANTIZED = """g (float[2,4] x) => (float[2,4] y, float[2,4] wide)
<int8 z = {{0}}, int8[4,4] v = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}, float s = {{0.5}},
 float t = {{{scale}}}, int32[4] b = {{3, -5, 7, 9}}, float bs = {{0.00001}}> {{
  q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  w = DequantizeLinear(v, t, z)  wt = Transpose(w)
  c = DequantizeLinear(b, bs)  p = MatMul(d, wt)  a = Add(p, c)  r = Relu(a)  rq = QuantizeLinear(r, s, z)
  rd = DequantizeLinear(rq, s, z)  y = MatMul(rd, wt)  wide = Sin(rd) }}"""


def _quantized(scale: float = 0.25, opset: int = 17) -> onnx.ModelProto:
    return model(QUANTIZED.format(scale=scale), opset=opset)


def _low(made: onnx.ModelProto, *kept: str) -> onnx.ModelProto:
    able = lowerable(made, "fp16", strict=True)
    graph = Graph(made, able)
    low, _ = settled(graph, frozenset(graph.producers[name] for name in kept))
    found = converted(made, able, low)
    assert sum(node.op_type == "Cast" for node in found.graph.node) == graph.casts(low)
    onnx.checker.check_model(found, full_check=True)
    return found


def _cast_beside_quantizers(proto: onnx.ModelProto) -> list[str]:
    """Casts of what a DQ of other data than int32 writes, moved or not, or of what a product hands to a Q."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    found = []
    for node in proto.graph.node:
        if node.op_type != "Cast":
            continue
        maker = makers.get(node.input[0])
        while maker is not None and maker.op_type in ("Transpose", "Reshape", "Flatten"):
            maker = makers.get(maker.input[0])
        outputs = {info.name for info in proto.graph.output}
        if maker is not None and maker.op_type == "DequantizeLinear" and node.output[0] not in outputs:
            [data] = [one for one in proto.graph.initializer if one.name == maker.input[0]] or [TensorProto()]
            found += [node.name] * (data.data_type != TensorProto.INT32)
    return found


def _kinds(proto: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    return {info.name: info.type.tensor_type.elem_type for info in (*inferred.value_info, *inferred.output)}


def test_scales_are_half_precision_with_what_they_quantize() -> None:
    made = _quantized()
    low = _low(made)
    types = _kinds(low)
    assert {types[name] for name in ("d", "w", "wt", "p", "a", "r", "rd")} == {TensorProto.FLOAT16}
    assert types["c"] == TensorProto.FLOAT  # its scale is no number of half precision; the bias gets a Cast
    assert low.opset_import[0].version == 19
    assert not _cast_beside_quantizers(low)
    assert types["q"] == types["rq"] == TensorProto.INT8
    feed = {"x": np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)}
    for one, other in zip(ort.run(made, feed), ort.run(between_casts(low), feed), strict=True):
        assert np.abs(one - other).max() <= 0.01 * np.abs(one).max()


@pytest.mark.parametrize("kept", [("p",), ("wide",), ("y",), ("r",), ("p", "y")])
def test_a_product_has_the_type_of_what_it_reads(kept: tuple[str, ...]) -> None:
    low = _low(_quantized(), *kept)
    assert not _cast_beside_quantizers(low)


@pytest.mark.parametrize("scale", [1e-7, 1e5])
def test_scales_that_half_precision_lacks_stay(scale: float) -> None:
    able = lowerable(_quantized(scale), "fp16", strict=True)
    nodes = {node.output[0]: able.whole.get(index) for index, node in enumerate(_quantized().graph.node)}
    assert {name for name, why in nodes.items() if why == "quantized"} == {"w", "c", "p", "y"}


def test_an_operator_set_that_cannot_be_raised(tmp_path: Path) -> None:
    made = model(
        """g (float[1,1,8,8] x, float[2,4] rois, int64[2] batch) => (float[2,1,8,8] y) <float s = {0.5}, int8 z = {0},
        int8[1,1,1,1] v = {7}> { q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
        w = DequantizeLinear(v, s, z)  r = RoiAlign<output_height = 8, output_width = 8>(x, rois, batch)
        c = Conv(d, w)  y = Add(c, r) }""",
        opset=13,
    )
    found = onnxfix.precision(made, "fp16", 0.1, tmp_path / "o.onnx", rungs=("contract",))
    assert any("RoiAlign has another form in operator set 13" in note for note in found.notes)
    assert {one.place.output: one.why for one in found.kept}["c"] == "quantized"


def test_older_forms_are_raised() -> None:
    made = model(
        """g (float[2,4] x, float[2,2] m) => (float[2,1] y, float[2,2] u, float[2,2] v)
        <float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  n = MatMul(m, d)  e = Exp(n)
        y = ReduceMean<axes = [1]>(e)  u, v = Split<axis = 1>(e) }""",
        opset=13,
    )
    low = _low(made)
    assert (low.opset_import[0].version, low.ir_version) == (19, 10)
    [mean] = [node for node in low.graph.node if node.op_type == "ReduceMean"]
    axes = {tensor.name: numpy_helper.to_array(tensor) for tensor in low.graph.initializer}[mean.input[1]]
    assert axes.tolist() == [1]
    feed = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4), "m": np.ones((2, 2), np.float32)}
    for one, other in zip(ort.run(made, feed), ort.run(between_casts(low), feed), strict=True):
        assert np.allclose(one, other, atol=0.01)


STATIC = ["static_symmetric.ort.op13", "static_symmetric.ort.op17", "static_uint8_weights.ort.op17"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*STATIC, "few_bits_as_qdq.ort.op21", "mxfp8.dynamo.op24", "nvfp4_perceptron.dynamo.op23"]
)
def test_quantized_fixtures(name: str, tmp_path: Path) -> None:
    path, output = KINDS / f"{name}.onnx", tmp_path / "low.onnx"
    found = onnxfix.precision(path, "fp16", 0.02, output, rungs=("contract",))
    assert found.status == "written", found
    assert found.heavy_low == found.heavy > 0
    assert any("raised" in note for note in found.notes) == name.startswith("static")
    low, before = onnx.load(output), onnx.load(path)
    assert not _cast_beside_quantizers(low)
    counts = [
        [
            sum(node.op_type == kind for node in one.graph.node)
            for kind in ("QuantizeLinear", "DequantizeLinear")
        ]
        for one in (before, low)
    ]
    assert counts[0] == counts[1]
    assert onnxfix.verify(path, output, rungs=("contract", "ort-cpu"), effort="quick").exit_code in (0, 3)
