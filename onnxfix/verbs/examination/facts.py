"""What is on this machine: read from files and package metadata, or probed in a child that may die."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from onnxfix.errors import UsageError
from onnxfix.rewrite.packs import Pack
from onnxfix.rewrite.packs import installed as installed_packs
from onnxfix.runtime import system
from onnxfix.runtime.confinement import InForce
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Outcome, Worker, default_memory_mb, one_line
from onnxfix.tensorrt.package import Choice
from onnxfix.verbs.examination.probes import WINDOWS
from onnxfix.verbs.examination.records import Driver, Library, Machine

TIMEOUT = 60.0
"""Seconds for one question. Loading the largest of these packages from a cold disk takes a few."""

#: The relevant distributions, and the module that each installs. Those of ONNX Runtime all install the same.
MODULES = {
    "onnx": "onnx",
    "numpy": "numpy",
    "ml_dtypes": "ml_dtypes",
    "protobuf": "",  # finding google.protobuf would import google
    "onnxruntime": "onnxruntime",
    **{
        f"onnxruntime-{kind}": "onnxruntime"
        for kind in ("gpu", "directml", "openvino", "qnn", "rocm", "migraphx", "training")
    },
    **dict.fromkeys(("ort-nightly", "ort-nightly-gpu"), "onnxruntime"),
    "polygraphy": "polygraphy",
    **{f"tensorrt{kind}": "tensorrt" for kind in ("", "-cu12", "-cu13")},
    **{f"tensorrt-rtx{kind}": "tensorrt_rtx" for kind in ("", "-cu12", "-cu13")},
    "onnxruntime-ep-nv-tensorrt-rtx-cu13": "onnxruntime_ep_nv_tensorrt_rtx",
    **dict.fromkeys(("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"), ""),
    **dict.fromkeys(("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"), ""),
}
CUDA_PROVIDER = "CUDAExecutionProvider"
UNREADABLE = "unknown"
"""The version of a distribution whose metadata cannot be read."""
#: Errors of a damaged, empty or missing metadata file, depending on Python's version.
_METADATA_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError)

#: Question -> the function that answers it in the child.
PROBES = {
    "confinement": "onnxfix.runtime.confinement:in_force",
    "contract": "onnxfix.verbs.examination.probes:imports",
    "reference": "onnxfix.verbs.examination.probes:imports",
    "driver": "onnxfix.verbs.examination.probes:driver",
    "nvml": "onnxfix.verbs.examination.probes:nvml",
    "gpus": "onnxfix.runtime.nvidia:gpus",
    "cuda-runtime": "onnxfix.verbs.examination.probes:cuda_runtime",
    "cudnn": "onnxfix.verbs.examination.probes:cudnn",
    "ort-cpu": "onnxfix.verbs.examination.probes:providers",
    "ort-cuda": "onnxfix.runtime.backends.ort_cuda:unavailable",
    "ort-trt": "onnxfix.runtime.backends.ort_trt:unavailable",
    "trt-build": "onnxfix.tensorrt.package:choose",
    "tensorrt": "onnxfix.tensorrt.package:choose",
}
#: Question -> (a library's files in NVIDIA's packages, its names for the loader).
_LIBRARIES = {
    "cuda-runtime": ("*/bin/**/cudart64_*.dll", ("cudart64_13.dll", "cudart64_12.dll", "cudart64_110.dll"))
    if WINDOWS
    else ("*/lib/libcudart.so.*", ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")),
    "cudnn": ("cudnn/bin/**/cudnn64_*.dll", ("cudnn64_9.dll", "cudnn64_8.dll"))
    if WINDOWS
    else ("cudnn/lib/libcudnn.so.*", ("libcudnn.so.9", "libcudnn.so.8")),
}


@dataclass(frozen=True)
class Facts:
    """All facts about this machine.

    ``versions``: installed distribution -> version. ``missing``: those without their module. ``ort_package`` and
    ``ort_cuda`` come from the files of ``onnxruntime``: their distribution, and the CUDA version they were built for.
    ``cuda_works``: ONNX Runtime computed something on the GPU; ``cuda_refusal`` is why it could not. They are False and
    None where there was nothing to try; ``provider_refusal`` is why its TensorRT provider could not. ``trt`` is the
    TensorRT that onnxfix would use, ``passed_over`` why it would not use ``tensorrt`` although that is installed.
    ``hidden`` is the value of CUDA_VISIBLE_DEVICES, None if it is not
    set. ``packs`` are the installed rule packs, ``unknown_pack`` says that one is requested that is not installed.
    ``faults``: question without an answer -> why, in one line. ``unloaded``: the same question -> the module that
    did not load. ``unstarted``: why no child could be started at all, or "".
    """

    machine: Machine
    versions: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    ort_package: str = ""
    ort_cuda: str = ""
    providers: tuple[str, ...] = ()
    cuda_works: bool = False
    cuda_refusal: Missing | None = None
    provider_refusal: Missing | None = None
    trt: Choice | Missing = field(default_factory=lambda: Missing("not probed"))
    passed_over: Missing | None = None
    nvml_status: int = 0
    nvml_fault: str = ""
    unstarted: str = ""
    hidden: str | None = None
    packs: tuple[Pack, ...] = ()
    unknown_pack: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)
    unloaded: Mapping[str, str] = field(default_factory=dict)


class _Prober:
    """Runs questions in the child and records those without an answer."""

    def __init__(self, worker: Worker, timeout: float) -> None:
        self._worker, self._timeout = worker, timeout
        self.faults: dict[str, str] = {}
        self.unloaded: dict[str, str] = {}
        self.unstarted = ""

    def __call__(self, question: str, default: Any, /, **arguments: Any) -> Any:
        try:
            outcome = self._worker.call(PROBES[question], timeout=self._timeout, **arguments)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            self.unstarted = f"no child process can be started: {one_line(error, 200)}"
            outcome = Outcome("error", message=self.unstarted)
        finally:
            self._worker.close()
        if outcome.ok:
            return outcome.value
        where = f"{outcome.note} does not load: " if outcome.note else ""
        self.faults.setdefault(question, where + outcome.message)
        self.unloaded.setdefault(question, outcome.note)
        return default


def gather(worker: Worker, timeout: float) -> Facts:
    """All facts about this machine."""
    probe = _Prober(worker, timeout)
    children = probe("confinement", InForce(reason="not probed"))
    probe("contract", None, modules=("onnx", "onnxfix.proof.verify"))
    probe("reference", None, modules=("onnx.reference",))
    driver = probe("driver", Driver())
    gpus = tuple(probe("gpus", [])) if driver.installed else ()
    kernel_driver, nvml_status, nvml_fault = probe("nvml", ("", 0, ""))
    versions = installed()
    ort_package, ort_cuda = ort_build()
    providers = tuple(probe("ort-cpu", [])) if _importable("onnxruntime") else ()
    tried = bool(gpus) and (bool(ort_cuda) or CUDA_PROVIDER in providers)
    refusal = probe("ort-cuda", None) if tried else None
    provider_refusal = probe("ort-trt", None) if gpus else None
    trt, passed_over = _tensorrt(probe)
    packs: tuple[Pack, ...] = ()
    unknown_pack = ""
    try:
        packs = installed_packs(origins=True)
    except UsageError as error:
        unknown_pack = str(error)
    return Facts(
        machine=Machine(
            system=_system(),
            python=f"{platform.python_version()} ({platform.python_implementation()})",
            executable=sys.executable or "",
            cpus=system.cores(),
            memory_mb=_memory_mb(),
            sandbox_mb=default_memory_mb(),
            gpus=gpus,
            driver=driver,
            kernel_driver=_kernel_driver() or kernel_driver,
            libraries=tuple(_libraries(probe)),
            lacks=tuple(lack.value for lack in system.lacks()),
            children=children,
        ),
        versions=versions,
        missing=tuple(name for name in versions if not _importable(MODULES[name])),
        ort_package=ort_package,
        ort_cuda=ort_cuda,
        providers=providers,
        cuda_works=tried and refusal is None and "ort-cuda" not in probe.faults,
        cuda_refusal=refusal,
        provider_refusal=provider_refusal,
        trt=trt,
        passed_over=passed_over,
        nvml_status=nvml_status,
        nvml_fault=nvml_fault,
        unstarted=probe.unstarted,
        hidden=os.environ.get("CUDA_VISIBLE_DEVICES"),
        packs=packs,
        unknown_pack=unknown_pack,
        faults=probe.faults,
        unloaded=probe.unloaded,
    )


def _tensorrt(probe: _Prober) -> tuple[Choice | Missing, Missing | None]:
    """The TensorRT that onnxfix uses, and why it does not use ``tensorrt`` if that is installed as well."""
    trt: Choice | Missing | None = probe("trt-build", None)
    if trt is None:
        return Missing(f"TensorRT does not answer: {probe.faults['trt-build']}"), None
    if isinstance(trt, Missing) or trt.package == "tensorrt" or not _importable("tensorrt"):
        return trt, None
    other = probe("tensorrt", None, package="tensorrt")
    if isinstance(other, Missing):
        return trt, other
    return trt, Missing(probe.faults["tensorrt"]) if "tensorrt" in probe.faults else None


def _system() -> str:
    name = f"{platform.system()} {platform.release()} {platform.machine()}"
    with contextlib.suppress(OSError, ValueError):
        release = platform.freedesktop_os_release()
        return f"{release.get('PRETTY_NAME', release['NAME'])}, {name}"
    return name


def _memory_mb() -> int | None:
    """The machine's memory, or the container's if that is less, in MiB."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        if sys.platform != "win32":
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for folder in system.list_memory_groups():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" means no limit
                found.append(int((folder / name).read_text(encoding="utf-8")))
    return min(found) >> 20 if found else None


def _kernel_driver() -> str:
    """The version of the kernel's NVIDIA driver; "" where the kernel does not show it."""
    with contextlib.suppress(OSError):
        return driver_version(
            Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        )
    return ""


def driver_version(text: str) -> str:
    """``580.95.05`` from the text of /proc/driver/nvidia/version, which also names a compiler's version."""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.M)
    return found[1] if found else ""


def _libraries(probe: _Prober) -> Iterator[Library]:
    """CUDA libraries in NVIDIA's Python packages, which ONNX Runtime tries first, then those of the system's loader."""
    for question, (pattern, names) in _LIBRARIES.items():
        wheels = [(str(path), True) for root in _places("nvidia") for path in sorted(root.glob(pattern))]
        for path, wheel in [*wheels, *((name, False) for name in names)]:
            found = probe(question, None, path=path, wheel=wheel)
            if found is not None:
                yield found


def _spec(module: str) -> Any:
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        return importlib.util.find_spec(module)
    return None


def _importable(module: str) -> bool:
    """Whether the module can be found. A folder without an ``__init__``, left by an uninstallation, is none."""
    found = _spec(module) if module else None
    return not module or (found is not None and found.origin is not None)


def _places(package: str) -> list[Path]:
    found = _spec(package)
    return [Path(place) for place in found.submodule_search_locations or ()] if found is not None else []


def installed() -> dict[str, str]:
    """Version of each distribution of ``MODULES`` that is installed."""
    found = {name: _version(name) for name in MODULES}
    return {name: version for name, version in found.items() if version is not None}


def _version(name: str) -> str | None:
    try:
        found: Any = metadata.metadata(name)
        return found.get("Version", "") or UNREADABLE
    except metadata.PackageNotFoundError:
        return None
    except _METADATA_ERRORS:
        return UNREADABLE


def ort_build() -> tuple[str, str]:
    """The distribution to which the files in ``onnxruntime`` belong, and its CUDA version; read without an import."""
    for place in _places("onnxruntime"):
        with contextlib.suppress(OSError):
            text = (place / "capi" / "build_and_package_info.py").read_text(errors="replace")
            values = dict(re.findall(r"^(\w+)\s*=\s*['\"]([^'\"]*)['\"]", text, re.M))
            return values.get("package_name", ""), values.get("cuda_version", "")
    return "", ""
