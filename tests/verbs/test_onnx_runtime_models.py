"""Models that ONNX Runtime's own tools optimized or quantized: repaired, built by TensorRT-RTX, and the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import onnxfix
from onnxfix.report.report import Report
from support.models import model
from support.paths import FIXTURES
from support.real_tensorrt import FACT, REAL
from support.runtime_operators import foreign

pytestmark = pytest.mark.slow

RUNGS = ("ort-cpu", "trt-build", "trt-network")


def optimized(source: Path, target: Path, level: str = "ORT_ENABLE_EXTENDED") -> Path:
    """What ONNX Runtime's optimizer saves; by default, without the layouts of this processor."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return target


def small() -> ModelProto:
    """A network with one of each operator that quantize_static has a form of its own for."""
    rng, shapes = np.random.default_rng(0), {"w": (4, 3, 3, 3), "b": (4,), "v": (8, 5)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    text = """g (float[1,3,8,8] x) => (float[1,5] y) {
            c = Conv<pads = [1, 1, 1, 1]>(x, w, b)  s = Sigmoid(c)  m = Mul(c, s)  l = LeakyRelu<alpha = 0.1>(m)
            j = Concat<axis = 1>(l, c)  p = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(j)  a = Add(p, p)
            g = GlobalAveragePool(a)  f = Flatten(g)  y = Gemm(f, v) }"""
    return model(text, 17, 8, **weights)


class Images(CalibrationDataReader):
    """A few images to calibrate with."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.images = iter([rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self.images, None)
        return None if image is None else {"x": image}


def repaired(path: Path, tmp_path: Path) -> Report:
    """The report of a run that has to hold on each of RUNGS and to leave no error behind."""
    report = onnxfix.apply(path, tmp_path / "fixed.onnx", numeric_fixes=True, target="rtx", rungs=RUNGS)
    for name in RUNGS:
        rung = report.verdict.rung(name)
        assert rung.status == "passed", f"{name}: {rung.reason}"
    build = report.verdict.rung("trt-build")
    assert "it refused the original" in build.reason
    assert not [one for one in report.findings if one.severity == "error"]
    return report


@FACT
@REAL
@pytest.mark.parametrize(
    ("name", "operators", "left"),
    [
        ("bert.legacy.op17", {"FusedMatMul": 2, "BiasGelu": 2}, {}),
        pytest.param("vit.legacy.op17", {"FusedMatMul": 2, "BiasGelu": 2}, {}, marks=pytest.mark.long),
        ("gpt2.legacy.op13", {"FusedMatMul": 2, "FastGelu": 2}, {}),
        ("segformer.dynamo.op20", {"FusedMatMul": 8, "SkipLayerNormalization": 4, "FusedConv": 1}, {}),
        (
            "llama.legacy.op14",
            {"SimplifiedLayerNormalization": 5, "FusedMatMul": 2, "QuickGelu": 2},
            {"SimplifiedLayerNormalization": 5},
        ),
    ],
)
def test_an_optimized_model(
    tmp_path: Path, name: str, operators: dict[str, int], left: dict[str, int]
) -> None:
    path = optimized(FIXTURES / f"{name}.onnx", tmp_path / "optimized.onnx")
    assert Counter(foreign(onnx.load(path))) == operators
    repaired(path, tmp_path)
    assert Counter(foreign(onnx.load(tmp_path / "fixed.onnx"))) == left


@FACT
@REAL
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_statically_quantized_model(tmp_path: Path, kind: QuantType, symmetric: bool) -> None:
    onnx.save(small(), tmp_path / "small.onnx")
    path = tmp_path / "quantized.onnx"
    quantize_static(
        tmp_path / "small.onnx",
        path,
        Images(),
        quant_format=QuantFormat.QOperator,
        activation_type=kind,
        extra_options={"ActivationSymmetric": symmetric},
    )
    assert set(foreign(onnx.load(path))) == {
        "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool",
        "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid",
    }  # fmt: skip
    repaired(path, tmp_path)
    fixed = onnx.load(tmp_path / "fixed.onnx")
    assert not foreign(fixed)
    operators = {node.op_type for node in fixed.graph.node}
    assert "QuantizeLinear" in operators, "INT8 execution stays"


@FACT
@REAL
def test_a_dynamically_quantized_and_then_optimized_model(tmp_path: Path) -> None:
    quantize_dynamic(FIXTURES / "bert.legacy.op17.onnx", tmp_path / "quantized.onnx")
    path = optimized(tmp_path / "quantized.onnx", tmp_path / "optimized.onnx")
    assert Counter(foreign(onnx.load(path))) == {
        "DynamicQuantizeMatMul": 6,
        "MatMulIntegerToFloat": 6,
        "FusedMatMul": 2,
        "Gelu": 2,
        "SkipLayerNormalization": 2,
    }
    repaired(path, tmp_path)
    assert set(foreign(onnx.load(tmp_path / "fixed.onnx"))) == {"Gelu"}, "which TensorRT-RTX reads as ONNX's"


def test_every_operator_of_the_layout_optimizer_is_reported(tmp_path: Path) -> None:
    path = optimized(FIXTURES / "segformer.dynamo.op20.onnx", tmp_path / "m.onnx", "ORT_ENABLE_ALL")
    layouts = [node for node in onnx.load(path).graph.node if node.domain == "com.microsoft.nchwc"]
    report = onnxfix.check(path, target="rtx")
    found = [one for one in report.findings if "layout optimizer" in one.message]
    assert len(found) == len(layouts)
    assert {one.code for one in found} <= {"OPS060", "OPS088"}
