"""Networks made by TensorRT's own API, for forms of layers that its ONNX parser does not emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift import Lifted
from onnxfix.tensorrt.log import logger_of
from onnxfix.tensorrt.package import load
from support import lifted
from support.patience import PATIENCE

Shape = tuple[int, ...]


def write(
    inputs: Mapping[str, tuple[str, Shape]],
    method: str,
    given: Sequence[Any],
    settings: Mapping[str, Any],
    out: str,
) -> Lifted:
    """Make a network of one layer, or attention, by ``network.<method>(*given)``, and lift it to ``out``.

    ``inputs`` are name -> (TensorRT's name of a type, shape with -1), in the order of the network's inputs. In
    ``given`` and ``settings`` the name of an input stands for its tensor and "trt.X.Y" for a constant of the package.
    ``settings`` are properties to set; "input 3" sets an input instead. An array stands for a constant layer.
    """
    trt = load("tensorrt-rtx")
    log, ear = logger_of(trt)
    ear.clear()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    tensors = {
        name: network.add_input(name, getattr(trt.DataType, dtype), shape)
        for name, (dtype, shape) in inputs.items()
    }

    kept: list[Any] = []  # TensorRT reads weights where they lie

    def constant(array: np.ndarray[Any, Any]) -> Any:
        # TensorRT knows numpy's types by identity, and an array that came through a pipe has a type of its own.
        own = np.empty(array.shape, np.dtype(array.dtype.type))
        own[...] = array
        kept.append(own)
        weights = trt.Weights(own) if own.size else trt.Weights(trt.DataType.INT64)
        return network.add_constant(own.shape, weights).get_output(0)

    def value(one: Any) -> Any:
        if isinstance(one, np.ndarray):
            return constant(one)
        if isinstance(one, list):
            return [value(each) for each in one]
        if isinstance(one, str) and one.startswith("trt."):
            return reduce(getattr, one.split(".")[1:], trt)
        return tensors[one] if isinstance(one, str) else one

    layer = getattr(network, method)(*map(value, given))
    for key, one in settings.items():
        if key.startswith("input "):
            layer.set_input(int(key.split()[1]), value(one))
        else:
            setattr(layer, key, value(one))
    output = layer.get_output(0)
    output.name = "made"
    network.mark_output(output)
    return lift.write(trt, network, Path(out), Lifted("refused", package="tensorrt-rtx"))


def made(
    worker: Worker,
    folder: Path,
    inputs: Mapping[str, tuple[str, Shape]],
    method: str,
    given: Sequence[Any],
    settings: Mapping[str, Any],
) -> Lifted:
    """``write`` in the sandbox, to ``made.onnx`` in ``folder``."""
    outcome = worker.call(
        "support.handmade:write",
        timeout=PATIENCE,
        **{"inputs": inputs, "method": method, "given": given, "settings": settings},
        out=str(folder / "made.onnx"),
    )
    assert outcome.ok, outcome.message
    found: Lifted = outcome.value
    return found


def computed(found: Lifted, feed: lifted.Feed) -> Any:
    """The output of a network that was read back, by ONNX Runtime on the CPU. The model must be a valid one."""
    assert found.lifted, found.reason
    onnx.checker.check_model(found.path, full_check=True)
    return lifted.run(Path(found.path), feed)[0]


def operators(found: Lifted) -> list[str]:
    """The operators of a network that was read back, in order."""
    return [node.op_type for node in onnx.load(found.path).graph.node]
