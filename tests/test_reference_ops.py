"""Operators that onnx's own evaluator gets wrong, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxfix import backends


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
