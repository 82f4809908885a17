"""The full package's bindings, as those of 10.6 are: what onnxfix has to know of them, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfix.proof.readback.weights import compare
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.build import attempt
from support.paths import FIXTURES
from support.real_tensorrt import REAL

pytestmark = REAL


SOURCE = """
import os

import numpy as np
import tensorrt_rtx as rtx
from tensorrt_rtx import *

__version__ = "10.6.0"
TIMINGS = b"timings"
REGISTERED = []


def without_strides(kind, name):
    real = getattr(kind, name).fget

    def read(layer):
        array = real(layer)
        if not isinstance(array, np.ndarray) or array.size < 2:
            return array
        return np.lib.stride_tricks.as_strided(array.reshape(-1), (array.size,), (0,))

    setattr(kind, name, property(read))


for kind, name in (
    (rtx.IConstantLayer, "weights"),
    (rtx.IConvolutionLayer, "kernel"),
    (rtx.IConvolutionLayer, "bias"),
):
    without_strides(kind, name)
rtx.ErrorCode.name = lambda code: str(code)


def init_libnvinfer_plugins(logger, namespace):
    REGISTERED.append(namespace)
    return rtx.init_libnvinfer_plugins(logger, namespace)


class OnnxParser(rtx.OnnxParser):
    def parse_from_file(self, path):
        assert REGISTERED, "no plugin was found in the plugin registry"
        return super().parse_from_file(path)


class Cache:
    def __init__(self, data):
        self.data = bytes(data)

    def serialize(self):
        return self.data + TIMINGS


class Config:
    def __init__(self, config):
        self.real = config
        config.num_compute_capabilities = 1
        config.set_compute_capability(rtx.ComputeCapability.SM89, 0)

    def __getattr__(self, name):
        return getattr(self.real, name)

    def create_timing_cache(self, data):
        with open(os.path.join(os.path.dirname(__file__), "caches"), "a") as file:
            print(len(data), file=file)
        return Cache(data)

    def set_timing_cache(self, cache, ignore_mismatch):
        return True


class Builder(rtx.Builder):
    def create_builder_config(self):
        return Config(super().create_builder_config())

    def build_serialized_network(self, network, config):
        return super().build_serialized_network(network, config.real)
"""
"""What the fake imitates was seen with tensorrt 10.6.0 and numpy 2: weights come as arrays with strides of 0,
``ErrorCode`` has a method in the place of ``name``, plugins have to be registered, and a builder keeps a timing cache.
Engines are built for compute capability 8.9, and none is executed."""


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The fake is the package ``tensorrt`` in every sandbox that is started from now on. This is the file that gets a
    line for each timing cache that a builder is given: how many bytes it has."""
    package = tmp_path / "site" / "tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    paths = [str(package.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    return package / "caches"


@pytest.fixture
def full(caches: Path) -> Iterator[Worker]:
    """A sandbox in which it is."""
    worker = Worker(variables={})
    yield worker
    worker.close()


def test_weights_are_read_back(full: Worker, tmp_path: Path) -> None:
    """Products, convolutions and small constants, whose arrays have strides of 0."""
    path, out = FIXTURES / "segformer.dynamo.op20.onnx", tmp_path / "seen.onnx"
    found = lift.attempt(full, path, out, package="tensorrt")
    assert (found.status, found.version) == ("lifted", "10.6.0"), found.reason
    assert len({*_largest(out).reshape(-1)[:100].tolist()}) > 1
    weights = compare(str(path), str(out))
    assert not weights.changed
    assert weights.same > len(weights.unmatched)


def _largest(path: Path) -> np.ndarray:
    tensors = onnx.load(path).graph.initializer
    return numpy_helper.to_array(max(tensors, key=lambda one: np.prod(one.dims)), str(path.parent))


def test_a_refusal_comes_in_tensorrts_words(full: Worker) -> None:
    found = attempt(full, FIXTURES / "trt" / "uint16_cast.onnx", package="tensorrt")
    assert (found.status, found.stage) == ("refused", "parse")
    assert found.errors[0].code.startswith(("UNSUPPORTED", "INVALID"))
    assert found.errors[0].place.op_type


def test_a_second_build_gets_the_timings_of_the_first(full: Worker, caches: Path, tmp_path: Path) -> None:
    """And plugins are registered: the fake's parser takes nothing without them."""
    path, kept = FIXTURES / "mixed_precision.legacy.op17.onnx", tmp_path / "kept"
    for _ in range(2):
        assert attempt(full, path, package="tensorrt").accepted
    assert caches.read_text(encoding="utf-8").split() == ["0", "7"]
    assert attempt(full, path, package="tensorrt", timing_cache=str(kept)).accepted
    assert (
        kept.read_bytes() == b"timings"
    )  # the user's own file holds what its builds timed, and nothing else
