"""The engine's layers of a culprit, from a real build."""

from __future__ import annotations

from contextlib import closing
from typing import cast

import numpy as np
import pytest

from onnxfix.diagnosis.child import Held
from onnxfix.diagnosis.engines import Engines, with_layers
from onnxfix.diagnosis.graph import open_graph
from onnxfix.diagnosis.records import Culprit, Diagnosis, NodeError
from onnxfix.place import Place
from onnxfix.proof.asking import require_tensorrt
from onnxfix.proof.checks.builder import Builder
from onnxfix.tensorrt.records import TrtOptions
from support.paths import ROOT

pytestmark = pytest.mark.trt


PATH = ROOT / "fixtures/misread/decoder.onnx"


class Pretend:
    """Engines that are not executed; their last sample has an image of ``size``."""

    def __init__(self, builder: Builder, size: int) -> None:
        self.graph, self.builder = open_graph(PATH), builder
        image = np.zeros((3, 3, size, size), np.float32)
        self.feed = {name: Held("float32", image.shape, value=image) for name in self.graph.inputs}


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
