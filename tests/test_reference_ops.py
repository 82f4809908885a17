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
