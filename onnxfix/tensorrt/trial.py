"""A small engine that shows what this machine can do: whether TensorRT builds and loads engines for its GPU, and
whether float32 products are computed in TF32.

No table decides that. NVIDIA lists the GPUs that it supports (``LISTED``), but TensorRT-RTX 1.4 to 1.6 also execute
engines on compute capability 9.0, which is not on the list, and 1.7 does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Compute capabilities that NVIDIA's support matrix lists, by package (TensorRT 10 and 11; TensorRT-RTX 1.4 to 1.7).
LISTED = {
    "tensorrt": ("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"),
    "tensorrt-rtx": ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1"),
}
#: float32 holds this next to 1, TF32 with its 10 bits of fraction does not.
_FINE = 2.0**-12
#: Rows and columns: enough for the kernels that use tensor cores.
_SIZE = 64


def listed(package: str, capability: str) -> bool:
    """Whether NVIDIA lists a compute capability ("8.9") for a package."""
    return capability in LISTED[package]


def model() -> bytes:
    """An ONNX model of one MatMul: float32 ``a`` and ``b`` of shape (64, 64) to ``y`` of the same shape."""
    import onnx  # lazy: start-up

    make = onnx.helper
    a, b, y = (make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [_SIZE] * 2) for name in "aby")
    graph = make.make_graph([make.make_node("MatMul", ["a", "b"], ["y"])], "trial", [a, b], [y])
    opset = make.make_opsetid("", 13)
    return bytes(make.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())


def feed() -> dict[str, Any]:
    """Inputs whose product shows how many bits of the operands were used."""
    import numpy as np  # lazy: may be broken where `onnxfix doctor` imports this module

    return {"a": np.full((_SIZE, _SIZE), 1 + _FINE, np.float32), "b": np.eye(_SIZE, dtype=np.float32)}


def precision(outputs: Mapping[str, Any]) -> str:
    """What the product was computed in: "float32", "tf32", or "" where it is neither's result."""
    import numpy as np  # lazy: as above

    value = np.asarray(outputs["y"]) - np.float32(1)
    if np.all(value == _FINE):
        return "float32"
    return "tf32" if np.all(value == 0) else ""


def loads(trt: Any, log: Any) -> bool:
    """Whether the package's module ``trt`` builds an engine for the GPU that is here, and loads it.

    Errors go to ``log``, a TensorRT logger. Needs a driver; call it in the sandbox.
    """
    builder = trt.Builder(log)
    network = builder.create_network(0) if builder else None
    if network is None or not trt.OnnxParser(network, log).parse(model()):
        return False
    engine = builder.build_serialized_network(network, builder.create_builder_config())
    return engine is not None and trt.Runtime(log).deserialize_cuda_engine(engine) is not None
