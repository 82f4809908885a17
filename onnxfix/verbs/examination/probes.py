"""Questions that load native code. Each must run in a sandbox child of its own: a second library of the same name
would not be loaded.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from onnxfix.runtime.sandbox import note
from onnxfix.verbs.examination.records import Driver, Library

WINDOWS = sys.platform == "win32"
_NVML_BUFFER = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE, nvml.h


def imports(modules: Sequence[str]) -> None:
    """Import modules; raises what they raise."""
    for name in modules:
        note(name)  # so that a crash is attributed to this module
        importlib.import_module(name)


def providers() -> list[str]:
    """The execution providers that ONNX Runtime was built with."""
    import onnxruntime  # lazy: optional package, and only in a child

    return [str(name) for name in onnxruntime.get_available_providers()]


def driver() -> Driver:
    """NVIDIA's driver: the CUDA that it supports, and whether it starts. Needs no package."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if WINDOWS else "libcuda.so.1")
    except OSError:
        return Driver()
    version = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    status = int(library.cuInit(0))
    parts = []
    for call in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        getattr(library, call)(status, ctypes.byref(text))
        parts.append((text.value or b"").decode("utf-8", "replace"))
    fault = ", ".join(filter(None, parts)) or f"error {status}"
    return Driver(True, cuda_version(version.value), status, fault if status else "")


def nvml() -> tuple[str, int, str]:
    """Version of the kernel's driver, NVML's status and its text, as in nvidia-smi; all empty without NVML."""
    try:
        library = ctypes.CDLL("nvml.dll" if WINDOWS else "libnvidia-ml.so.1")
    except OSError:
        return "", 0, ""
    status = int(library.nvmlInit_v2())
    if status != 0:
        library.nvmlErrorString.restype = ctypes.c_char_p
        return "", status, (library.nvmlErrorString(status) or b"").decode("utf-8", "replace")
    text = ctypes.create_string_buffer(_NVML_BUFFER)
    library.nvmlSystemGetDriverVersion(text, len(text))
    library.nvmlShutdown()
    return text.value.decode("utf-8", "replace"), 0, ""


def cuda_runtime(path: str, wheel: bool = False) -> Library | None:
    """The CUDA runtime at a path or, by name, in the loader's folders; None if the loader finds none.

    Raises:
        OSError: the file exists and does not load.
    """
    library = _load(path, wheel)
    if library is None:
        return None
    version = ctypes.c_int(0)
    library.cudaRuntimeGetVersion(ctypes.byref(version))
    text = cuda_version(version.value)
    return Library("CUDA runtime", text, text, path, wheel)


def cudnn(path: str, wheel: bool = False) -> Library | None:
    """The same for cuDNN, which is for one major version of CUDA."""
    library = _load(path, wheel)
    if library is None:
        return None
    for call in (library.cudnnGetVersion, library.cudnnGetCudartVersion):
        call.restype = ctypes.c_size_t
    cuda = cuda_version(int(library.cudnnGetCudartVersion()))
    return Library("cuDNN", cudnn_version(int(library.cudnnGetVersion())), cuda, path, wheel)


def _load(path: str, wheel: bool) -> Any:
    try:
        return ctypes.CDLL(path)
    except OSError:
        if wheel:
            raise
        return None  # the loader finds no library of that name


def cuda_version(number: int) -> str:
    """ "13.5" for CUDA's 13050; empty for 0."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def cudnn_version(number: int) -> str:
    """ "9.28.0" for cuDNN's 92800, "8.9.7" for 8907, the format before version 9."""
    unit = 10000 if number >= 90000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"
