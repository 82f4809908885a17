"""What a measurement depends on: the machine, the versions, the TensorRT that is asked."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import onnxruntime

import onnxfix
from onnxfix.errors import OnnxfixError
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Worker, one_line
from onnxfix.tensorrt.package import Choice


def choice(package: str) -> Choice:
    """The TensorRT to ask.

    Raises:
        OnnxfixError: there is none.
    """
    with Worker() as worker:
        found = worker.call("onnxfix.tensorrt.package:choose", timeout=120.0, package=package)
    if not found.ok or isinstance(found.value, Missing):
        raise OnnxfixError(found.value.reason if found.ok else found.message)
    chosen: Choice = found.value
    return chosen


def without_gpu(chosen: Choice) -> dict[str, str]:
    """Versions and cores, where no engine is executed."""
    names = ("onnx", "onnxruntime", "numpy")
    return {
        "Python": platform.python_version(),
        "onnxfix": onnxfix.__version__,
        **{name: version(name) for name in names},
        "TensorRT": f"{chosen.package} {chosen.version}, built ahead of time for compute capability "
        f"{chosen.capability}; no engine was executed",
        "cores": f"{os.cpu_count()} ({_processor()})",
    }


def with_gpu() -> dict[str, str]:
    """GPUs, driver and versions, as far as they can be found out."""
    with Worker() as worker:
        found = worker.call("onnxfix.runtime.nvidia:gpus", timeout=120.0)
    cards = [f"{card.name}, compute capability {card.capability}" for card in found.value or ()]
    built = getattr(onnxruntime, "cuda_version", "") or "none"
    return {
        "GPU": "; ".join(cards) or f"none ({found.message or 'no NVIDIA GPU found'})",
        "driver": _driver(),
        "driver's CUDA": _driver_cuda(),
        "onnxruntime": f"{onnxruntime.__version__}, built for CUDA {built}",
        "onnx": version("onnx"),
        "onnxfix": onnxfix.__version__,
        "Python": platform.python_version(),
    }


def lines(facts: dict[str, str]) -> list[str]:
    """A list in Markdown."""
    return [f"- {name}: {value}" for name, value in facts.items()]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    models = [line for line in text.splitlines() if line.startswith("model name")]
    return models[0].partition(":")[2].strip() if models else platform.machine()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({one_line(error, 80)})"
    return one_line(run.stdout or run.stderr, 160)


def _driver_cuda() -> str:
    number = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return f"unknown ({one_line(error, 80)})"
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
