"""Networks of one layer, written with TensorRT's own interface: forms that its ONNX parser never makes."""

from __future__ import annotations

from dataclasses import dataclass
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

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(7)


@dataclass(frozen=True)
class Short:
    """Weights of bfloat16: the upper halves of float32."""

    bits: Array


def short(array: Array) -> Short:
    return Short((array.view(np.uint32) >> 16).astype(np.uint16))


def made(
    *, out: str, inputs: dict[str, tuple[str, tuple[int, ...]]], layer: list[Any], **properties: Any
) -> Lifted:
    """Lift a network of one layer, in the sandbox. ``layer`` is the method of INetworkDefinition with its arguments,
    "@x" being input x, "A.B" a value of TensorRT's enumeration A, an array weights, None no weights; a property "3" is
    an input."""
    trt = load("tensorrt-rtx")
    log, ear = logger_of(trt)
    ear.clear()
    network = trt.Builder(log).create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    kept: list[Array] = []  # TensorRT reads weights where they lie
    tensors = {
        name: network.add_input(name, trt.DataType.__members__[d], s) for name, (d, s) in inputs.items()
    }

    def value(given: Any) -> Any:
        if given is None or isinstance(given, np.ndarray):
            if given is None:
                return trt.Weights()
            # An array that came through a pipe has a type that TensorRT's package takes for another.
            kept.append(given.astype(given.dtype.type))
            return trt.Weights(kept[-1])
        if isinstance(given, Short):
            kept.append(np.ascontiguousarray(given.bits))
            return trt.Weights(trt.bfloat16, kept[-1].ctypes.data, kept[-1].size)
        if isinstance(given, str) and given.startswith("@"):
            return tensors[given[1:]]
        if isinstance(given, str):
            return getattr(trt, given.split(".")[0]).__members__[given.split(".")[1]]
        return given

    method, *arguments = layer
    one = getattr(network, method)(*map(value, arguments))
    for name, given in properties.items():
        if name.isdigit():
            one.set_input(int(name), value(given))
        else:
            setattr(one, name, value(given))
    for place in range(one.num_outputs):
        one.get_output(place).name = f"y{place}"
        network.mark_output(one.get_output(place))
    found = lift.write(trt, network, Path(out), Lifted("refused"))
    assert found.lifted or found.gaps, ear.messages
    return found


def hand(worker: Worker, folder: Path, **given: Any) -> Lifted:
    outcome = worker.call(f"{__name__}:made", timeout=PATIENCE, out=str(folder / "lifted.onnx"), **given)
    assert outcome.ok, outcome.message
    found: Lifted = outcome.value
    return found


def outputs(worker: Worker, folder: Path, feed: dict[str, Array], **given: Any) -> list[Array]:
    """What the lifted network computes."""
    found = hand(worker, folder, **given)
    assert found.lifted, found.reason
    onnx.checker.check_model(found.path, full_check=True)
    return lifted.run(Path(found.path), feed)


def image(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def close(found: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
