"""Operators that onnx's own evaluator gets wrong, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfix.runtime import backends


def conv_transpose(spatial: int, groups: int, **attributes: Any) -> onnx.ModelProto:
    """One ConvTranspose of 4 channels to 3 a group; x is [2, 4, 5, 6], or [2, 4, 5] with one spatial axis."""
    shapes = {"x": [2, 4, 5, 6][: 2 + spatial], "w": [4, 3] + [3] * spatial, "b": [3 * groups]}
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    node = helper.make_node("ConvTranspose", list(shapes), ["y"], group=groups, **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 2], "output_shape": [10, 12]},
        {"strides": [2, 2], "output_shape": [10, 12], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "output_shape": [10, 12], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER", "output_padding": [1, 1]},
        {"strides": [2, 2], "auto_pad": "VALID", "output_padding": [1, 0]},
        {"strides": [3, 2], "pads": [1, 0, 2, 1], "output_padding": [1, 1]},
        {"dilations": [2, 2], "pads": [1, 1, 0, 2]},
        {"strides": [2, 3], "dilations": [2, 1], "output_padding": [1, 2]},
    ],
)
def test_conv_transpose(tmp_path: Path, attributes: dict[str, Any], groups: int) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(conv_transpose(2, groups, **attributes), path)
    check(path)


def test_conv_transpose_of_one_axis(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(conv_transpose(1, 1, strides=[2], output_shape=[10]), path)
    check(path)


def check(path: Path) -> None:
    random = np.random.default_rng(3)
    infos = onnx.load(path).graph.input
    shapes = {one.name: [d.dim_value for d in one.type.tensor_type.shape.dim] for one in infos}
    feed = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    [expected] = backends.load("ort-cpu", str(path)).run(feed)
    [found] = backends.load("reference", str(path)).run(feed)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
def test_narrow_conv_transpose_sums_in_float(tmp_path: Path, kind: int) -> None:
    """64 channels, whose partial sums would lose digits; numpy's einsum knows no bfloat16."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    random = np.random.default_rng(3)
    shapes = {"x": [1, 64, 3, 3], "w": [64, 2, 2, 2], "b": [2]}
    feed = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
    node = helper.make_node("ConvTranspose", list(shapes), ["y"], strides=[2, 2])
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)])
    path = tmp_path / "narrow.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), path)
    [found] = backends.load("reference", str(path)).run(feed)
    wide = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    other = tmp_path / "wide.onnx"
    onnx.save(helper.make_model(wide, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), other)
    [exact] = backends.load("ort-cpu", str(other)).run({k: v.astype(np.float32) for k, v in feed.items()})
    assert found.dtype == dtype
    step = 2.0**-10 if kind == onnx.TensorProto.FLOAT16 else 2.0**-7
    np.testing.assert_allclose(found.astype(np.float32), exact, rtol=step, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("ignored", [-1, 2, None])
def test_losses(tmp_path: Path, op_type: str, reduction: str, weighted: bool, ignored: int | None) -> None:
    """A mean is over what is not ignored, -1 included."""
    random = np.random.default_rng(5)
    feed = {"x": random.standard_normal((2, 3, 4)).astype(np.float32), "t": random.integers(0, 3, (2, 4))}
    if ignored is not None:
        feed["t"][0, :2] = ignored
    if weighted:
        feed["w"] = np.array([0.5, 2, 3], np.float32)
    given = {} if ignored is None else {"ignore_index": ignored}
    node = helper.make_node(op_type, list(feed), ["y"], reduction=reduction, **given)
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feed.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)])
    path = tmp_path / "loss.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    [expected] = backends.load("ort-cpu", str(path)).run(feed)
    [found] = backends.load("reference", str(path)).run(feed)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zero", [0, 1, 7])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearMatMul", "QLinearConv"])
def test_sums_in_the_middle_between_two_steps_are_rounded_before_they_are_moved(
    tmp_path: Path, op: str, kind: Any, zero: int
) -> None:
    """Of every sum the half: ONNX rounds that to even, whatever the zero point is."""
    x = np.arange(-8 if kind is np.int8 else 0, 8, dtype=kind)
    shape, ones = ([1, 1, 4, -1], [1, 1, 1, 1]) if op == "QLinearConv" else ([-1, 1], [1, 1])
    arrays = {
        "x": x.reshape(shape), "xs": np.array(0.5, np.float32), "xz": np.array(0, kind),
        "w": np.ones(ones, kind), "ws": np.array(1.0, np.float32), "wz": np.array(0, kind),
        "ys": np.array(1.0, np.float32), "yz": np.array(zero, kind),
    }  # fmt: skip
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    out = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)
    graph = helper.make_graph([helper.make_node(op, list(arrays), ["y"])], "g", infos, [out])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    [found] = backends.load("reference", str(path)).run(arrays)
    [expected] = backends.load("ort-cpu", str(path)).run(arrays)
    assert found.dtype == expected.dtype == kind
    ends = np.iinfo(kind)
    wanted = np.clip(np.rint(arrays["x"] * 0.5) + zero, ends.min, ends.max)
    assert np.array_equal(found, wanted.astype(kind))
    assert np.array_equal(found, expected)


def test_a_scale_and_a_zero_point_for_each_filter(tmp_path: Path) -> None:
    """Weights of 7 bits: ONNX Runtime's kernels for larger ones add in int16 on some processors, and saturate."""
    rng = np.random.default_rng(2)
    arrays = {
        "x": rng.integers(0, 256, (2, 4, 5, 6)).astype(np.uint8), "xs": np.array(0.03, np.float32),
        "xz": np.array(121, np.uint8), "w": rng.integers(-64, 64, (6, 2, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.01, 0.05, 6).astype(np.float32), "wz": np.zeros(6, np.int8),
        "ys": np.array(0.4, np.float32), "yz": np.array(3, np.uint8),
        "b": rng.integers(-99, 99, 6).astype(np.int32),
    }  # fmt: skip
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    node = helper.make_node("QLinearConv", list(arrays), ["y"], group=2, pads=[1, 0, 1, 2], strides=[2, 1])
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", 2, None)])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    [found] = backends.load("reference", str(path)).run(arrays)
    [expected] = backends.load("ort-cpu", str(path)).run(arrays)
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert np.mean(found != expected) < 0.02
    assert len(np.unique(found)) > 40


def test_zero_points_for_each_row_of_the_data(tmp_path: Path) -> None:
    """Onnx's own kernel takes them for those of columns; the matrix is square, so that nothing else shows it."""
    x, w = np.array([[9, 10], [20, 30]], np.uint8), np.array([[1, 2], [3, 4]], np.int8)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (uint8[2,2] x, int8[2,2] w) => (int32[2,2] y, uint8[2,2] z)
          <uint8[2] a = {7, 8}, float[2] s = {1, 0.5}, float one = {1}, int8 o = {0}, uint8 u = {0}>
          { y = MatMulInteger(x, w, a)  z = QLinearMatMul(x, s, a, w, one, o, one, u) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    y, z = backends.load("reference", str(tmp_path / "m.onnx")).run({"x": x, "w": w})
    rows = (x.astype(int) - [[7], [8]]) @ w.astype(int)
    assert y.dtype == np.int32
    assert np.array_equal(y, rows)
    assert np.array_equal(z, np.rint(rows * [[1], [0.5]]))


def test_an_output_that_is_left_out_is_no_input_of_later_nodes(tmp_path: Path) -> None:
    """Of a pool's index, which is 0, onnx's own evaluator makes the Loop's condition."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2] x, float[1,1,1] p) => (float[2] y, float[1,1,1] m) <int64 n = {3}> {
          m, "" = MaxPool<kernel_shape = [1]>(p)
          y = Loop(n, "", x)<body = l (int64 i, bool on, float[2] s) => (bool go, float[2] t)
            <float one = {1}> { go = Identity(on)  t = Add(s, one) }> }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    feed = {"x": np.zeros(2, np.float32), "p": np.zeros((1, 1, 1), np.float32)}
    found, _ = backends.load("reference", str(tmp_path / "m.onnx")).run(feed)
    expected, _ = backends.load("ort-cpu", str(tmp_path / "m.onnx")).run(feed)
    assert np.array_equal(found, expected)
    assert found.tolist() == [3, 3]


def test_a_target_that_does_not_fit_its_scores_is_an_error(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[1,3,5] x, int64[1,D] t) => (float[1,E] y) {
          y = NegativeLogLikelihoodLoss<reduction = "none">(x, t) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    session = backends.load("reference", str(tmp_path / "m.onnx"))
    x = np.ones((1, 3, 5), np.float32)
    assert session.run({"x": x, "t": np.zeros((1, 5), np.int64)})[0].shape == (1, 5)
    with pytest.raises(ValueError, match="does not fit"):
        session.run({"x": x, "t": np.zeros((1, 1), np.int64)})
