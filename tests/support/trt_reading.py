"""What the real TensorRT-RTX reads of a model: the interface of its network, and what that network computes.

The network is read back as an ONNX model (``onnxfix.tensorrt.lift``), which ONNX Runtime executes. No engine is built.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxfix.runtime import backends
from onnxfix.runtime.replies import accept
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.log import logger_of
from onnxfix.tensorrt.package import load
from support.patience import PATIENCE

Array = np.ndarray[Any, Any]


@accept
@dataclass(frozen=True)
class Network:
    """An imported network. ``inputs`` and ``outputs``: name -> shape; ``layers`` are kinds; ``log``: the parser's
    warnings; ``path`` is the model that was read back."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    error: str = ""
    log: tuple[str, ...] = ()
    path: str = ""

    def run(self, **feed: Array) -> dict[str, Array]:
        """What the network computes, by name."""
        assert self.path, self.error
        session = backends.load("ort-cpu", self.path)
        return dict(zip(self.outputs, session.run({name: feed[name] for name in self.inputs}), strict=True))


def read(path: str) -> Network:
    """Import a model file. Call it in a sandbox."""
    trt = load("tensorrt-rtx")
    log, ear = logger_of(trt)
    ear.clear()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(path):
        errors = (str(parser.get_error(number).desc()) for number in range(parser.num_errors))
        return Network(error="; ".join(errors) or "refused")
    return Network(
        {one.name: tuple(one.shape) for one in map(network.get_input, range(network.num_inputs))},
        {one.name: tuple(one.shape) for one in map(network.get_output, range(network.num_outputs))},
        tuple(network.get_layer(number).type.name for number in range(network.num_layers)),
        log=tuple(message.text for message in ear.messages),
    )


def reading(worker: Worker, model: ModelProto, folder: Path) -> Network:
    """What TensorRT-RTX imports of a model, which is written into ``folder``."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    outcome = worker.call("support.trt_reading:read", timeout=PATIENCE, path=str(path))
    assert outcome.ok, outcome.message
    found: Network = outcome.value
    if found.error:
        return found
    lifted = lift.attempt(worker, path, folder / "read.onnx", package="tensorrt-rtx", timeout=PATIENCE)
    return replace(found, path=str(lifted.path), error="" if lifted.lifted else lifted.reason)
