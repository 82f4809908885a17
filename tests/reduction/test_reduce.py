"""Reductions of models with one failure, and of models with two, for each check that runs on a CPU, and for
``ort-cuda`` and ``trt-gpu`` with stand-ins for the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

import onnxfix
from onnxfix.proof.compare.compare import Metrics
from onnxfix.proof.verdict import FeedResult, RungResult
from onnxfix.reduction import checks
from onnxfix.runtime.sandbox import Worker, close_shared
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.records import Issue
from support import fake_cuda, models
from support.ort import run
from support.paths import FIXTURES
from support.real_tensorrt import REAL
from support.reductions import COMMAND, fresh, operators, reduced

REFUSED = sorted((FIXTURES / "trt").glob("*.onnx"))


def refusal(path: Path) -> Issue:
    """The first of TensorRT's errors."""
    with Worker() as worker:
        return attempt(worker, path, package="tensorrt-rtx").errors[0]


def with_uint16(model: ModelProto, at: int) -> ModelProto:
    """The model with a pair of Casts behind a float tensor, of which TensorRT takes none to uint16."""
    node = model.graph.node[at]
    name = node.output[0]
    node.output[0] = f"{name}.before"
    casts = [
        helper.make_node(
            "Cast", [f"{name}.before"], [f"{name}.wide"], name="planted", to=onnx.TensorProto.UINT16
        ),
        helper.make_node("Cast", [f"{name}.wide"], [name], to=onnx.TensorProto.FLOAT),
    ]
    for place, one in enumerate(casts):
        model.graph.node.insert(at + 1 + place, one)
    return model


# ------------------------------------------------------------------------------------------------------- TensorRT


@REAL
@pytest.mark.slow
@pytest.mark.parametrize("path", REFUSED, ids=lambda path: path.stem)
def test_what_tensorrt_refuses(tmp_path: Path, path: Path) -> None:
    found, model = reduced(tmp_path, path, check="trt-build")
    assert 1 <= found.nodes_after <= 3
    assert found.nodes_after <= found.nodes_before
    first = refusal(path)
    assert (found.failure.op_type, found.failure.code) == (first.place.op_type, first.code)
    assert len(model.graph.output) >= 1


@pytest.mark.slow
@REAL
def test_a_refusal_in_a_real_export(tmp_path: Path) -> None:
    whole = onnx.load(FIXTURES / "bert.legacy.op17.onnx")
    at = next(
        n for n, node in enumerate(whole.graph.node) if node.op_type == "LayerNormalization" and n > 100
    )
    found, model = reduced(tmp_path, with_uint16(whole, at), check="trt-build")
    assert operators(model) == ["Cast"]
    assert found.failure.op_type == "Cast"
    assert model.graph.node[0].name == "planted"
    assert found.bytes_after < 1000
    inputs = np.load(tmp_path / "out" / "inputs.npz")
    assert [inputs[name].dtype for name in inputs.files] == [np.float32]
    assert fresh(tmp_path / "out") == 1


@pytest.mark.slow
@REAL
def test_what_is_repaired_reproduces_no_more(tmp_path: Path) -> None:
    reduced(tmp_path, FIXTURES / "trt" / "int32_relu.onnx", check="trt-build")
    model = onnx.load(tmp_path / "out" / "model.onnx")
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(model, tmp_path / "out" / "model.onnx")
    inputs = dict(np.load(tmp_path / "out" / "inputs.npz"))
    np.savez(
        tmp_path / "out" / "inputs.npz", **{name: one.astype(np.float32) for name, one in inputs.items()}
    )
    assert onnxfix.reproduce(tmp_path / "out") is None
    assert fresh(tmp_path / "out") == 0


@REAL
def test_another_refusal_on_the_way_is_not_taken(tmp_path: Path) -> None:
    """TensorRT names the Relu first; the Cast to uint16 before it is refused as well, and so is the second Relu."""
    text = """g (int32[4] x, float[4] f) => (int32[4] y, int32[4] z) {
        n = Neg(x)  y = Relu(n)  m = Abs(y)  u = Cast<to = 4>(m)  c = Cast<to = 6>(u)  z = Relu(c) }"""
    found, model = reduced(tmp_path, models.model(text), check="trt-build")
    wanted = refusal(tmp_path / "whole.onnx").place
    assert operators(model) == [wanted.op_type]
    assert wanted.output in model.graph.node[0].output
    assert found.failure.place.output == wanted.output


@REAL
@pytest.mark.slow
def test_a_misread_node(tmp_path: Path) -> None:
    found, model = reduced(tmp_path, FIXTURES / "misread" / "decoder.onnx", check="trt-network")
    assert operators(model) == ["ConvTranspose"]
    assert (found.failure.kind, found.failure.place.node) == ("misread", "decode")
    expected, seen = (np.load(tmp_path / "out" / f"{name}.npz") for name in ("expected", "seen"))
    assert expected.files == seen.files == ["upsampled"]
    assert not np.allclose(expected["upsampled"], seen["upsampled"])
    assert fresh(tmp_path / "out") == 1


IN_A_BRANCH = """g (float[4] x, bool c) => (float[4] y) {
    a = Exp(x)
    y = If (c) <
        then_branch = t () => (float[4] p) { b = Neg(a)  u = Cast<to = 4>(b)  d = Cast<to = 1>(u)  p = Abs(d) },
        else_branch = e () => (float[4] q) { q = Identity(a) }>
}"""
IN_A_LOOP = """g (float[4] x) => (float[4] y) <int64 n = {3}, bool c = {1}> {
    a = Exp(x)
    y = Loop (n, c, a) <body = b (int64 i, bool d, float[4] s) => (bool e, float[4] t) {
        e = Identity(d)  h = Neg(s)  u = Cast<to = 4>(h)  f = Cast<to = 1>(u)  t = Abs(f) }>
}"""
IN_A_FUNCTION = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
g (float[4] x) => (float[4] y) { a = Exp(x)  b = my.F(a)  y = Abs(b) }
<domain: "my", opset_import: ["" : 20]>
F (p) => (q) { h = Neg(p)  u = Cast<to = 4>(h)  f = Cast<to = 1>(u)  q = Abs(f) }"""
IN_A_SCAN = """g (float[3,4] x) => (float[3,4] y) {
    a = Exp(x)
    y = Scan (a) <num_scan_inputs = 1, body = b (float[4] s) => (float[4] t) {
        h = Neg(s)  u = Cast<to = 4>(h)  f = Cast<to = 1>(u)  t = Abs(f) }>
}"""


@REAL
@pytest.mark.parametrize("text", [IN_A_BRANCH, IN_A_LOOP, IN_A_FUNCTION], ids=["If", "Loop", "F"])
def test_a_refusal_inside(tmp_path: Path, text: str) -> None:
    found, model = reduced(tmp_path, models.model(text), check="trt-build")
    assert found.nodes_after == 1
    assert operators(model) == ["Cast"]
    assert model.graph.node[0].attribute[0].i == onnx.TensorProto.UINT16
    assert not model.functions


@REAL
def test_a_refusal_in_the_branch_that_is_not_taken(tmp_path: Path) -> None:
    inputs = {"x": np.ones(4, np.float32), "c": np.array(False)}
    _, model = reduced(tmp_path, models.model(IN_A_BRANCH), check="trt-build", inputs=inputs)
    assert operators(model) == ["Cast"]
    value = np.load(tmp_path / "out" / "inputs.npz")
    np.testing.assert_allclose(next(iter(value.values())), -np.exp(1.0), rtol=1e-6)


@REAL
def test_a_refusal_of_what_is_around(tmp_path: Path) -> None:
    """TensorRT refuses every such Scan, and not what is in it."""
    _, model = reduced(tmp_path, models.model(IN_A_SCAN), check="trt-build")
    assert operators(model) == ["Scan"]
    assert len(model.graph.node[0].attribute[1].g.node or model.graph.node[0].attribute[0].g.node) == 1


# ---------------------------------------------------------------------------------------------------- ONNX Runtime


BROKEN = """g (float[2,6] x, int64[2] i) => (float[N,M] y, float[2,6] z) {
    a = Exp(x)  b = Neg(a)  s = Shape(b)  r = Abs(i)  w = Reshape(b, r)  y = Sqrt(w)  z = Relu(b) }"""


def test_an_error_of_onnx_runtime(tmp_path: Path) -> None:
    inputs = {"x": np.ones((2, 6), np.float32), "i": np.array([5, 5])}
    found, model = reduced(tmp_path, models.model(BROKEN), check="ort-cpu", inputs=inputs)
    assert operators(model) == ["Reshape"]
    assert (found.failure.kind, found.failure.op_type) == ("error", "Reshape")
    # The shape became a constant, with the value that it has in the whole model.
    [shape] = [numpy_helper.to_array(one) for one in model.graph.initializer]
    assert set(shape.tolist()) == {5}


def scaled(model: ModelProto, name: str, by: float) -> ModelProto:
    """A copy of the model with one weight scaled."""
    found = ModelProto()
    found.CopyFrom(model)
    tensor = next(one for one in found.graph.initializer if one.name == name)
    tensor.CopyFrom(numpy_helper.from_array((numpy_helper.to_array(tensor) * by).astype(np.float32), name))
    return found


@pytest.mark.slow
def test_two_models(tmp_path: Path) -> None:
    whole = onnx.load(FIXTURES / "gpt2.dynamo.op18.onnx")
    weight = [one.name for one in whole.graph.initializer if len(one.dims) == 2 and one.data_type == 1][5]
    onnx.save(scaled(whole, weight, 1.01), tmp_path / "other.onnx")
    found, model = reduced(tmp_path, whole, check="ort-cpu", against=tmp_path / "other.onnx")
    assert found.nodes_after == 1
    assert weight in model.graph.node[0].input
    other = onnx.load(tmp_path / "out" / "other.onnx")
    assert operators(other) == operators(model)
    expected, seen = (np.load(tmp_path / "out" / f"{name}.npz") for name in ("expected", "seen"))
    [name] = expected.files
    np.testing.assert_allclose(expected[name] * 1.01, seen[name], rtol=0.5)
    assert fresh(tmp_path / "out") == 1


@pytest.mark.slow
def test_two_models_with_other_names(tmp_path: Path) -> None:
    whole = onnx.load(FIXTURES / "vit.legacy.op17.onnx")
    weight = [one.name for one in whole.graph.initializer if len(one.dims) == 2 and one.data_type == 1][3]
    other = scaled(whole, weight, 1.05)
    kept = {info.name for info in (*other.graph.input, *other.graph.output)}
    for number, node in enumerate(other.graph.node):
        node.name = f"n{number}"
        for names in (node.input, node.output):
            names[:] = [one if one in kept or not one else f"{one[::-1]}" for one in names]
    for tensor in other.graph.initializer:
        tensor.name = tensor.name[::-1]
    del other.graph.value_info[:]
    onnx.save(other, tmp_path / "other.onnx")
    found, model = reduced(tmp_path, whole, check="ort-cpu", against=tmp_path / "other.onnx")
    assert found.nodes_after == 1
    assert weight in model.graph.node[0].input
    part = onnx.load(tmp_path / "out" / "other.onnx")
    assert operators(part) == operators(model)
    assert part.graph.output[0].name == model.graph.output[0].name[::-1]


def test_the_values_are_those_of_the_whole_model(tmp_path: Path) -> None:
    whole = models.model(
        "g (float[2,3] x) => (float[2,3] y) { a = Exp(x)  b = Mul(a, w)  y = Neg(b) }",
        w=np.full((2, 3), 2.0, np.float32),
    )
    onnx.save(scaled(whole, "w", 2.0), tmp_path / "other.onnx")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    _, model = reduced(tmp_path, whole, check="ort-cpu", against=tmp_path / "other.onnx", inputs={"x": x})
    assert operators(model) == ["Mul"]
    np.testing.assert_allclose(np.load(tmp_path / "out" / "inputs.npz")["a"], np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "expected.npz")["b"], 2 * np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "seen.npz")["b"], 4 * np.exp(x), rtol=1e-6)


def test_two_models_whose_truth_values_differ(tmp_path: Path) -> None:
    """Where only a condition differs, the node that computes it is what is left."""
    text = """g (float[4] x, float[4] z) => (float[4] y) {
        a = Exp(x)  c = Less(a, z)  n = Not(c)  w = Where(n, a, x)  y = Neg(w) }"""
    onnx.save(models.model(text.replace("Less", "LessOrEqual")), tmp_path / "other.onnx")
    inputs = {"x": np.zeros(4, np.float32), "z": np.ones(4, np.float32)}
    _, model = reduced(
        tmp_path, models.model(text), check="ort-cpu", against=tmp_path / "other.onnx", inputs=inputs
    )
    assert operators(model) == ["Less"]


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    """The second model adds in another order."""
    text = "g (float[4096] x) => (float y) <int64[2] s = {64, 64}, int64[1] a = {0}> { SUM }"
    one = models.model(text.replace("SUM", "y = ReduceSum<keepdims = 0>(x)"))
    other = models.model(
        text.replace("SUM", "r = Reshape(x, s)  t = ReduceSum(r, a)  y = ReduceSum<keepdims = 0>(t)")
    )
    inputs = {"x": np.random.default_rng(0).normal(1.0, 1.0, 4096).astype(np.float32)}
    assert run(one, inputs) != run(other, inputs)
    onnx.save(one, tmp_path / "whole.onnx")
    onnx.save(other, tmp_path / "other.onnx")
    paths = tmp_path / "whole.onnx", tmp_path / "out"
    found = onnxfix.reduce(*paths, check="ort-cpu", against=tmp_path / "other.onnx", inputs=inputs)
    assert found.status == "passes"


def test_two_models_that_agree(tmp_path: Path) -> None:
    path = FIXTURES / "mixed_precision.legacy.op17.onnx"
    found = onnxfix.reduce(path, tmp_path / "out", check="ort-cpu", against=path)
    assert (found.status, found.exit_code) == ("passes", 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("op", ["If", "Loop", "F", "Scan"])
def test_values_inside(tmp_path: Path, op: str) -> None:
    """A command that only fails inside, on a value that only the real run has."""
    text = {"If": IN_A_BRANCH, "Loop": IN_A_LOOP, "F": IN_A_FUNCTION, "Scan": IN_A_SCAN}[op]
    text = text.replace("Cast<to = 4>", "Tanh").replace("Cast<to = 1>", "Neg")
    inputs = {"x": np.full((3, 4) if op == "Scan" else 4, 0.5, np.float32), "c": np.array(True)}
    inputs = inputs if op == "If" else {"x": inputs["x"]}
    _, model = reduced(tmp_path, models.model(text), check=COMMAND, inputs=inputs)
    assert operators(model) == ["Tanh"]
    [value] = np.load(tmp_path / "out" / "inputs.npz").values()
    np.testing.assert_allclose(value, np.full(value.shape, -np.exp(0.5), np.float32), rtol=1e-6)


CHAIN = (
    "g (float[4] x) => (float[4] wild, float[4] y) { a = Exp(x)  b = Neg(a)  wild = Tanh(b)  y = Abs(wild) }"
)


@pytest.fixture
def fresh_sandboxes() -> Any:
    close_shared()
    yield
    close_shared()


@pytest.mark.usefixtures("fresh_sandboxes")
def test_values_that_differ_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the fake, an output called wild is twice as large as on the CPU."""
    fake_cuda.install(monkeypatch, tmp_path, "wobbles")
    path = models.write(tmp_path / "whole.onnx", CHAIN)
    found = onnxfix.reduce(path, tmp_path / "out", check="ort-cuda")
    assert (found.status, found.complete, found.operators) == ("reduced", True, ("Tanh",))
    assert (found.failure.kind, found.failure.place.output) == ("differs", "wild")
    expected, seen = (np.load(tmp_path / "out" / f"{name}.npz")["wild"] for name in ("expected", "seen"))
    assert (abs(seen) > 1.5 * abs(expected)).all()
    assert onnxfix.reproduce(tmp_path / "out") is not None


@pytest.mark.usefixtures("fresh_sandboxes")
def test_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda.install(monkeypatch, tmp_path, "fails to load")
    path = models.write(tmp_path / "whole.onnx", CHAIN)
    found = onnxfix.reduce(path, tmp_path / "out", check="ort-cuda")
    assert (found.status, found.exit_code, found.cause) == ("unknown", 3, "not-loadable")
    assert not (tmp_path / "out").exists()


def engine(operator: str, kinds: list[str]) -> Any:
    """A rung whose engine computes something else of every output that depends on such a node. ``kinds`` collects
    whether it was given inputs."""

    def climb(request: Any) -> RungResult:
        graph = onnx.load(request.original).graph
        kinds.append("made" if request.given is None else "given")
        wrong: set[str] = set()
        for node in graph.node:
            if node.op_type == operator or wrong.intersection(node.input):
                wrong.update(node.output)
        metrics = tuple(
            Metrics(info.name, "different", "off", "values", output=info.name)
            for info in graph.output
            if info.name in wrong
        )
        feeds = (FeedResult("a feed", None, "different" if metrics else "identical", metrics=metrics),)
        return RungResult("trt-gpu", "failed" if metrics else "passed", "said", feeds)

    return climb


@REAL
def test_an_engine_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []
    monkeypatch.setattr(checks.gpu, "run", engine("Tanh", kinds))
    path = models.write(tmp_path / "whole.onnx", CHAIN.replace("wild", "w"))
    inputs = {"x": np.ones(4, np.float32)}
    found = onnxfix.reduce(path, tmp_path / "out", check="trt-gpu", inputs=inputs)
    assert found.operators == ("Tanh",)
    assert set(kinds) == {"given"}
    np.testing.assert_allclose(np.load(tmp_path / "out" / "inputs.npz")["b"], -np.exp(np.ones(1)), rtol=1e-6)


@REAL
def test_no_engine_runs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = RungResult("trt-gpu", "skipped", "no NVIDIA driver found", cause="no-gpu")
    monkeypatch.setattr(checks.gpu, "run", lambda request: skipped)
    path = models.write(tmp_path / "whole.onnx", CHAIN)
    found = onnxfix.reduce(path, tmp_path / "out", check="trt-gpu")
    assert (found.status, found.cause, found.reason) == ("unknown", "no-gpu", "no NVIDIA driver found")
