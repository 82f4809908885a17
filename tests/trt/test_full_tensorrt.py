"""The full package's bindings, as those of 10.6 are: what onnxfix has to know of them, without a GPU."""

from __future__ import annotations

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
from support import fake_tensorrt
from support.paths import FIXTURES
from support.real_tensorrt import REAL

pytestmark = REAL


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The fake is the package ``tensorrt``; what its timing caches held."""
    return fake_tensorrt.install(monkeypatch, tmp_path)


@pytest.fixture
def full(caches: Path) -> Iterator[Worker]:
    """A sandbox in which it is."""
    worker = Worker(variables={})
    yield worker
    worker.close()


@pytest.mark.parametrize("name", ["vit.dynamo.op20", "segformer.dynamo.op20"])
def test_weights_are_read_back(name: str, full: Worker, tmp_path: Path) -> None:
    """Products, convolutions and small constants, whose arrays have strides of 0."""
    path, out = FIXTURES / f"{name}.onnx", tmp_path / "seen.onnx"
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


def test_plugins_are_registered_and_a_model_builds(full: Worker) -> None:
    """The fake's parser takes nothing without them."""
    found = attempt(full, FIXTURES / "mixed_precision.legacy.op17.onnx", package="tensorrt")
    assert found.accepted, found.reason


def test_a_second_build_gets_the_timings_of_the_first(full: Worker, caches: Path, tmp_path: Path) -> None:
    path, kept = FIXTURES / "mixed_precision.legacy.op17.onnx", tmp_path / "kept"
    for _ in range(2):
        assert attempt(full, path, package="tensorrt").accepted
    assert caches.read_text(encoding="utf-8").split() == ["0", "7"]
    assert attempt(full, path, package="tensorrt", timing_cache=str(kept)).accepted
    assert (
        kept.read_bytes() == b"timings"
    )  # the user's own file holds what its builds timed, and nothing else
