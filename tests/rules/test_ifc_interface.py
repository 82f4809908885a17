"""The rules about the interface, and about names that TensorRT reads as another operator's, against its own reading."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from onnxfix.rewrite.registry import registry
from onnxfix.rule import Example, Flagged, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import findings, model_of
from support import trt_reading
from support.models import of_opset
from support.patience import PATIENCE
from support.real_tensorrt import REAL, built
from support.trt_reading import Network

CODES = ("IFC001", "IFC002", "IFC003", "IFC004", "OPS060")
RULES = {rule.code: rule for rule in registry().rules if rule.code in CODES}
FUNCTION = '<domain: "my", opset_import: ["" : 18, "my" : 1]>'
X = np.array([-2, 3], np.float32)


model = of_opset(18, 9, {"my": 1, "com.microsoft": 1})


def reading(worker: Worker, proto: ModelProto, tmp_path: Path) -> Network:
    assert built(worker, proto, tmp_path).status == "accepted"
    return trt_reading.reading(worker, proto, tmp_path)


def codes(proto: ModelProto) -> list[str]:
    return [one.rule.code for rule in RULES.values() for one in findings(rule, proto)]


# ------------------------------------------------------------------------------- inputs without a shape


@REAL
@pytest.mark.parametrize("text", ["y = Neg(x)", "a = Relu(x)  y = Add(a, a)"])
def test_an_input_without_shape_becomes_a_scalar(text: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(f"g (float[2,3] x) => (float[2,3] y) {{ {text} }}")
    assert not codes(proto)
    assert reading(worker, proto, tmp_path).inputs == {"x": (2, 3)}
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.ClearField("shape")
    network = reading(worker, proto, tmp_path)
    assert network.inputs == {"x": ()}
    assert network.outputs == {"y": ()}
    assert not network.log
    assert codes(proto) == ["IFC001"]


@REAL
def test_open_sizes_stay_open(worker: Worker, tmp_path: Path) -> None:
    proto = model("g (float[N,M] x) => (float[N,M] y) { y = Neg(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    assert not codes(proto)
    assert reading(worker, proto, tmp_path).inputs == {"x": (-1, -1)}


# ----------------------------------------------------------------------------------------------- float64

DOUBLE = [
    ("g (double[2] x) => (double[2] y) { y = Neg(x) }", ["IFC002", "IFC002"]),
    ("g (double[2] x) => (float[2] y) { y = Cast<to = 1>(x) }", ["IFC002"]),
    ("g (float[2] x) => (float[2] y) { a = Cast<to = 11>(x)  b = Sqrt(a)  y = Cast<to = 1>(b) }", ["IFC003"]),
    (
        """g (float[2] x) => (float[2] y) <double[1] k = {1e300}> {
        a = Cast<to = 11>(x)  b = Min(a, k)  y = Cast<to = 1>(b) }""",
        ["IFC003"],
    ),
]


@REAL
@pytest.mark.parametrize(("text", "expected"), DOUBLE)
def test_float64_is_read_as_float32(text: str, expected: list[str], worker: Worker, tmp_path: Path) -> None:
    proto = model(text)
    assert codes(proto) == expected
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    types = worker.call(f"{__name__}:types_of", timeout=PATIENCE, path=str(path))
    assert types.ok, types.message
    assert set(types.value) == {"FLOAT"}
    clamped = [text for text in reading(worker, proto, tmp_path).log if "out of range" in text]
    assert bool(clamped) == ("1e300" in text)
    said = [one.match.message for one in findings(RULES["IFC003"], proto)]
    assert bool(clamped) == any("clamps" in message for message in said)


def types_of(path: str) -> list[str]:
    """The types of the tensors of the imported network; runs in the sandbox."""
    from onnxfix.tensorrt.log import logger_of
    from onnxfix.tensorrt.package import load

    trt = load("tensorrt-rtx")
    log, _ = logger_of(trt)
    network = trt.Builder(log).create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, log).parse_from_file(path)
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    tensors = [layer.get_output(i) for layer in layers for i in range(layer.num_outputs)]
    tensors += [network.get_input(i) for i in range(network.num_inputs)]
    return [tensor.dtype.name for tensor in tensors]


# ----------------------------------------------------------------------------------------------- namesakes

FUNCTIONS = [
    f"g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }} {FUNCTION} Relu (a) => (b) {{ b = Neg(a) }}",
    f"""g (float[2] x) => (float[2] y) {{ y = my.F(x) }} {FUNCTION} Abs (a) => (b) {{ c = Add(a, a)  b = Neg(c) }}
    {FUNCTION} F (a) => (b) {{ b = my.Abs(a) }}""",
]


@REAL
@pytest.mark.parametrize("text", FUNCTIONS)
def test_a_function_with_an_operators_name_is_not_read(text: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(text)
    found = findings(RULES["OPS060"], proto)
    assert [one.severity for one in found] == [Severity.ERROR]
    network = reading(worker, proto, tmp_path)
    assert not network.log
    wanted = ReferenceEvaluator(proto).run(None, {"x": X})
    assert not np.array_equal(network.run(x=X)["y"], np.asarray(wanted[0]))


@REAL
@pytest.mark.parametrize("text", FUNCTIONS)
def test_under_another_name_it_is(text: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(text.replace("Relu", "MyRelu").replace("Abs", "MyAbs"))
    assert not codes(proto)
    wanted = ReferenceEvaluator(proto).run(None, {"x": X})
    assert np.array_equal(reading(worker, proto, tmp_path).run(x=X)["y"], np.asarray(wanted[0]))


@REAL
@pytest.mark.parametrize(
    ("call", "kind"),
    [("my.Relu(x)", "ACTIVATION"), ("com.microsoft.Relu(x)", "ACTIVATION"), ("my.Neg(x, x)", "UNARY")],
)
def test_an_operator_that_does_not_exist_is_imported(
    call: str, kind: str, worker: Worker, tmp_path: Path
) -> None:
    proto = model(f"g (float[2] x) => (float[2] y) {{ y = {call} }}")
    assert codes(proto) == ["OPS060"]
    assert reading(worker, proto, tmp_path).layers == (kind,)


@REAL
def test_contrib_gelu_is_gelu(worker: Worker, tmp_path: Path) -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }")
    assert not codes(proto)
    found = reading(worker, proto, tmp_path).run(x=X)["y"]
    np.testing.assert_allclose(found, X * 0.5 * (1 + np.vectorize(math.erf)(X / np.sqrt(2))), rtol=1e-6)


@REAL
@pytest.mark.parametrize("name", ["Det", "Nothing"])
def test_other_names_are_refused_openly(name: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(f"g (float[2,2] x) => (float[2,2] y) {{ y = my.{name}(x) }}")
    assert not codes(proto)
    assert built(worker, proto, tmp_path).stage == "parse"


# ------------------------------------------------------------------------------------------ bodies that lie

LIES = [example for example in RULES["IFC004"].examples if isinstance(example, Flagged)]


@REAL
@pytest.mark.parametrize("example", LIES, ids=lambda example: example.why)
def test_a_lie_is_imported_without_a_word(example: Example, worker: Worker, tmp_path: Path) -> None:
    proto = model_of(example)
    assert codes(proto) == ["IFC004"]
    network = reading(worker, proto, tmp_path)
    assert network.outputs == {"y": (2,)}
    assert not [text for text in network.log if "Int64 binding" not in text]
