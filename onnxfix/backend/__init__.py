"""ONNX's standard backend interface on TensorRT, with and without repair::

    import onnxfix.backend as backend

    prepared = backend.prepare(model, "CUDA")      # repaired (exact fixes, proven), then an engine
    (y,) = prepared.run([x])
    AsIs.prepare(model, "CUDA")                    # the same without a repair

The functions of this module are those of ``Repaired``. ONNX's conformance tests run against any of the classes:
``onnx.backend.test.BackendTest(AsIs)``. docs/conformance.md has the results.

Two devices: on ``CUDA`` an engine is built and executed on the first GPU. ``CPU`` needs no GPU and executes no engine:
TensorRT's parser imports the model, the network that it made is read back as ONNX, and ONNX Runtime executes that. So
``CPU`` shows what TensorRT understood, and nothing about its kernels.
"""

from __future__ import annotations

from onnxfix.backend.devices import BackendError
from onnxfix.backend.interface import AsIs, NumericallyRepaired, Prepared, Repaired, TensorrtBackend

__all__ = [
    "AsIs", "BackendError", "NumericallyRepaired", "Prepared", "Repaired", "TensorrtBackend", "is_compatible",
    "prepare", "run_model", "run_node", "supports_device",
]  # fmt: skip

supports_device = Repaired.supports_device
is_compatible = Repaired.is_compatible
prepare = Repaired.prepare
run_model = Repaired.run_model
run_node = Repaired.run_node
