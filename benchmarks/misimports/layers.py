"""The layers of an imported network with their parameters, in one line each."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfix.trt.lift.network import Layer, Network
from onnxfix.trt.log import logger_of
from onnxfix.trt.package import load

#: Of more layers than this only the kinds are told.
_MOST = 160


def described(path: str, package: str) -> str:
    """Every layer of what TensorRT's parser makes of the model file; call it where it may crash."""
    trt = load(package)
    log, _ = logger_of(trt)
    builder = trt.Builder(log)
    raw = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(raw, log)
    if not parser.parse_from_file(path):
        return ""
    network = Network(trt, raw)
    if len(network.layers) > _MOST:
        return ", ".join(f"{count} {kind}" for kind, count in network.kinds)
    return "\n".join(_line(trt, layer) for layer in network.layers)


def _line(trt: Any, layer: Layer) -> str:
    inputs = ", ".join("–" if one is None else one.name for one in layer.inputs)
    outputs = ", ".join(f"{one.name} {one.dtype}{list(one.shape or ())}" for one in layer.outputs)
    said = " ".join(f"{key}={value}" for key, value in _parameters(trt, layer))
    return f"{layer.kind}({inputs}) -> {outputs}" + (f"  {said}" if said else "")


def _parameters(trt: Any, layer: Layer) -> list[tuple[str, str]]:
    common = set(dir(trt.ILayer)) - ({"type"} if layer.kind in ("ACTIVATION", "POOLING") else set())
    found = []
    for name in sorted(set(dir(type(layer.native))) - common):
        if name.startswith("_"):
            continue
        try:
            text = _text(getattr(layer.native, name))
        except (
            AttributeError,
            RuntimeError,
            TypeError,
            ValueError,
        ):  # this form of the layer has no such property
            text = ""
        if text:
            found.append((name, text))
    return found


def _text(value: Any) -> str:
    if value is None or callable(value):
        return ""
    if isinstance(value, (bool, int, float, str)):
        return str(value)
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1)
        return (
            ""
            if not flat.size
            else "[" + ",".join(f"{one:.4g}" for one in flat[:8].tolist()) + (",…]" if flat.size > 8 else "]")
        )
    if hasattr(value, "name") and hasattr(type(value), "__members__"):
        return str(value.name)
    try:
        return "[" + ",".join(str(int(one)) for one in value) + "]"
    except (TypeError, ValueError):
        return ""
