"""Engines of models and of parts: what is handed to the builder and to the session. The real TensorRT-RTX builds, where
it is installed; what a session would execute on a GPU is computed by ONNX Runtime from the model beside the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.engines import Engines, with_layers
from onnxfix.diagnosis.graph import Graph, open_graph
from onnxfix.diagnosis.records import Culprit, Diagnosis, NodeError
from onnxfix.place import Place
from onnxfix.proof.asking import require_tensorrt
from onnxfix.proof.checks.builder import Builder
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.records import TrtOptions
from support.models import model
from support.paths import ROOT
from support.real_tensorrt import REAL

pytestmark = REAL

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
TEXT = """g (float[N,4] x) => (float[N,4] y) {
    a = Tanh(x)
    s = Shape(a)
    b = Reshape(a, s)
    c = Mul(b, w)
    i = ArgMax<axis = 1, keepdims = 0>(c)
    y = Exp(c)
}"""


class Beside:
    """In the place of ``Sessions``: the engine is not executed, but the model that it was built of."""

    def __init__(self, bench: Bench, refusal: str = "", failure: str = "") -> None:
        self.bench, self.refusal, self.failure = bench, refusal, failure
        self.last = Ran(cause="memory" if refusal else "")
        self.models: list[ModelProto] = []
        self._path = Path()

    def load(self, name: str, path: str) -> str:
        assert Path(path).stat().st_size > 0
        self._path = Path(path).with_suffix(".onnx")
        self.models.append(onnx.load(self._path, load_external_data=False))
        return self.refusal

    def run(self, name: str, feed: Mapping[str, Any]) -> Ran:
        if self.failure:
            return Ran(error=self.failure, cause="crash")
        reply = self.bench.run_file(self._path, feed)
        assert not reply.error, reply.error
        return Ran(reply.values)


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    found = require_tensorrt(TrtOptions())
    yield found
    found.close()


def engines(graph: Graph, builder: Builder, bench: Bench, **more: str) -> tuple[Engines, Beside]:
    sessions = Beside(bench, **more)
    made = Engines(graph, builder, sessions, bench)  # type: ignore[arg-type]
    made.feed = {"x": X}
    made.types.update({"s": "int64", "i": "int64", **dict.fromkeys("abc", "float32")})
    return made, sessions


def net() -> Graph:
    return Graph(model(TEXT, w=np.float32(2)))


def test_the_whole_model_with_marks(builder: Builder, bench: Bench) -> None:
    made, sessions = engines(net(), builder, bench)
    plain = made.whole(())
    assert not plain.error
    assert list(plain.values) == ["y"]
    marked = made.whole(["a", "c", "y"])
    assert not marked.error
    assert set(marked.values) == {"y", "a", "c"}
    np.testing.assert_allclose(marked.values["c"], 2 * np.tanh(X), rtol=1e-6)
    assert [len(one.graph.output) for one in sessions.models] == [1, 3]
    assert made.builds == 2
    assert not [path for path in bench.scratch.iterdir() if path.is_dir()]


def test_a_part_has_fixed_sizes_and_shapes_as_constants(builder: Builder, bench: Bench) -> None:
    graph = net()
    made, sessions = engines(graph, builder, bench)
    known = {"a": np.tanh(X), "s": np.array([3, 4])}
    part, inputs = graph.part([2, 3], ["c"], known)
    assert set(inputs) == {"a", "s"}
    reply = made.part(part, known)
    assert not reply.error
    np.testing.assert_allclose(reply.values["c"], 2 * np.tanh(X), rtol=1e-6)
    (built,) = sessions.models
    assert [one.name for one in built.graph.input] == ["a"]
    assert [dim.dim_value for dim in built.graph.input[0].type.tensor_type.shape.dim] == [3, 4]
    assert sorted(one.name for one in built.graph.initializer) == ["s", "w"]


def test_a_model_that_no_engine_is_built_of(builder: Builder, bench: Bench) -> None:
    graph = Graph(model("g (float[3,4] x) => (float[3,4] y) { y = Nonsense(x) }"))
    made, sessions = engines(graph, builder, bench)
    reply = made.whole(())
    assert (reply.cause, sessions.models, dict(reply.values)) == ("refused", [], {})
    assert reply.error.startswith(builder.product)
    assert not [path for path in bench.scratch.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("more", "cause"), [({"refusal": "no room"}, "memory"), ({"failure": "it died"}, "crash")]
)
def test_an_engine_that_does_not_run(
    builder: Builder, bench: Bench, more: dict[str, str], cause: str
) -> None:
    made, _ = engines(net(), builder, bench, **more)
    reply = made.whole(())
    assert reply.cause == cause
    assert next(iter(more.values())) in reply.error


PATH = ROOT / "fixtures/misread/decoder.onnx"


class Pretend:
    """Engines that are not executed; their last sample has an image of ``size``."""

    def __init__(self, builder: Builder, size: int) -> None:
        self.graph, self.builder = open_graph(PATH), builder
        image = np.zeros((3, 3, size, size), np.float32)
        self.feed = dict.fromkeys(self.graph.inputs, image)


def diagnosis() -> Diagnosis:
    node = next(one for one in open_graph(PATH).nodes if one.op_type == "ConvTranspose")
    error = NodeError(Place((), node.name, node.op_type, node.output[0], 0), 1.0, nodes=(node.name,))
    other = NodeError(Place(output="y"), 1.0, nodes=("unknown node",))
    culprits = tuple(Culprit(one, "unknown", "it differs") for one in (error, other))
    return Diagnosis(str(PATH), "trt-gpu", "", "differ", culprits=culprits)


def named(size: int) -> Diagnosis:
    with closing(require_tensorrt(TrtOptions())) as builder:
        return with_layers(diagnosis(), cast(Engines, Pretend(builder, size)), PATH)


def test_a_culprit_has_the_layers_of_its_node() -> None:
    found = named(16)
    layers = found.culprits[0].error.nodes
    assert any("decode" in layer for layer in layers)
    assert "decode" not in layers  # the node's own name
    assert found.culprits[1].error.nodes == ("unknown node",)
    assert found.notes == ()


def test_where_there_is_no_engine_a_note_says_why() -> None:
    found = named(8)  # which the model does not take
    assert found.culprits == diagnosis().culprits
    assert "the engine's layers are not known" in found.notes[0]
    assert "Dimension mismatch" in found.notes[0]
