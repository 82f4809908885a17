"""ONNX Runtime with a TensorRT execution provider, and with its optimizations, as users run it: NVIDIA's plugin for
TensorRT-RTX, else the provider of onnxruntime-gpu. What TensorRT does not take runs on the CPU; a session knows it."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.runtime.backends import Unsupported, ort, ort_cuda
from onnxfix.runtime.backends.ort import OrtSession, session_options
from onnxfix.runtime.backends.ort_cuda import has_driver as has_driver
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import one_line

PLUGIN = "onnxruntime_ep_nv_tensorrt_rtx"
BUILT_IN = "TensorrtExecutionProvider"
CPU = "CPUExecutionProvider"


def missing() -> str | None:
    """Why no TensorRT provider can be used here, as far as that shows without loading one; see ``unavailable``."""
    return ort.missing() if has_driver() else "no NVIDIA driver found"


@functools.cache
def _devices() -> tuple[Any, ...]:
    """The plugin's first GPU, once it is registered; none where the plugin is not installed."""
    import onnxruntime  # lazy: optional package

    ort_cuda.forbid_tf32()
    if importlib.util.find_spec(PLUGIN) is None:
        ort_cuda.preload()
        return ()
    plugin = importlib.import_module(PLUGIN)
    folder = Path(str(plugin.__file__)).parent
    for library in folder.glob("libcudart.so.*"):  # which the provider needs by another name
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    if any(folder.glob("libtensorrt_rtx.so.*")) and not (folder / "libtensorrt_rtx.so").exists():
        raise Unsupported(f'it makes links in its folder first: python -c "import {PLUGIN}"')
    onnxruntime.register_execution_provider_library(plugin.get_ep_name(), plugin.get_library_path())
    return tuple(one for one in onnxruntime.get_ep_devices() if "tensorrt" in one.ep_name.lower())[:1]


@functools.cache
def unavailable() -> Missing | None:
    """Why the provider cannot be used by this process; None when it has just computed something. Loads CUDA and forbids
    TF32: call it in the sandbox."""
    from onnx import parser  # lazy: start-up

    if reason := missing():
        return Missing(reason, "not-installed" if has_driver() else "no-gpu")
    text = '<ir_version: 8, opset_import: ["": 13]> probe (float[1] x) => (float[1] y) { y = Relu(x) }'
    try:
        session = TrtSession(parser.parse_model(text).SerializeToString())
        session.run({"x": np.ones(1, np.float32)})
    except Exception as error:  # whatever CUDA and NVIDIA's libraries come up with
        cause: Cause = getattr(error, "cause", "") or "not-loadable"
        mend = 'pip install "onnxfix[ort-trt]"' if cause == "not-installed" else ""
        return Missing(f"the TensorRT provider does not work: {one_line(str(error), 300)}", cause, mend)
    return None if session.parts else Missing("the TensorRT provider takes not even a Relu", "not-loadable")


class TrtSession(OrtSession):
    """An ``onnxruntime.InferenceSession`` with a TensorRT provider on the first GPU, without TF32. It runs ``parts`` of
    the model; ``outside`` are the other nodes, by operator and name. ``places``: provider -> nodes."""

    def __init__(self, model: str | bytes) -> None:
        import onnxruntime  # lazy: optional package

        options, devices = session_options(), _devices()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if devices:
            options.add_provider_for_devices(list(devices), {})
        elif BUILT_IN not in onnxruntime.get_available_providers():
            raise Unsupported("none is installed, or it finds no GPU", "not-installed")
        super().__init__(model, options, [] if devices else [BUILT_IN, CPU])
        groups = self._session.get_provider_graph_assignment_info()
        inside = [len(one.get_nodes()) for one in groups if "tensorrt" in one.ep_name.lower()]
        others = [one for one in groups if "tensorrt" not in one.ep_name.lower()]
        self.parts = len(inside)
        self.outside = [(node.op_type, node.name) for one in others for node in one.get_nodes()]
        self.places = {"TensorRT": sum(inside), CPU: len(self.outside)}


load = TrtSession
"""Load a model file. Raises ORT's exceptions, NoKernel and Unsupported."""
