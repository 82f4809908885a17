"""What is broken or does not fit together on a machine, and how to fix it. One function for each kind of problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from onnxfix.examination.facts import MODULES, UNREADABLE, Facts
from onnxfix.examination.records import Library, Problem
from onnxfix.nvidia import Missing
from onnxfix.packs import VARIABLE
from onnxfix.trt.package import INSTALL, Choice

#: The oldest Linux driver for each major version of CUDA (CUDA's release notes, minor version compatibility).
OLDEST_DRIVER = {12: 525, 13: 580}
#: PyPI's onnxruntime-gpu is for CUDA 12 up to 1.26 and for CUDA 13 from 1.27 on (its wheels' metadata). The extras
#: install the CUDA runtime and the cuDNN that it was built for.
_GPU_PACKAGE = {
    12: 'pip install "onnxruntime-gpu[cuda,cudnn]<1.27"',
    13: 'pip install -U "onnxruntime-gpu[cuda,cudnn]"',
}
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, cuda.h
_OTHER_KERNEL_DRIVER = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvml.h
_CUDNN = 9  # the major version that every onnxruntime-gpu since 1.18.1 is built for
_DRIVER_MEND = "check nvidia-smi; reboot, or reinstall NVIDIA's driver"
REINSTALL = "pip install --force-reinstall"


def problems(facts: Facts) -> Iterator[Problem]:
    """All problems, causes before consequences."""
    yield from unstarted(facts)
    # Without answers nothing is known to be broken.
    for find in _FROM_FILES if facts.unstarted else (*_FROM_FILES, *_FROM_ANSWERS):
        yield from find(facts)


def unstarted(facts: Facts) -> Iterator[Problem]:
    """No child could be started, so that nothing can be verified."""
    if facts.unstarted:
        yield Problem(facts.unstarted, "check the limits on processes and memory (ulimit -a)")


# ----------------------------------------------------------------------------------------------- packages


def base(facts: Facts) -> Iterator[Problem]:
    """onnx or onnxfix itself does not load."""
    fault = facts.faults.get("contract") or facts.faults.get("reference")
    if fault:
        yield Problem(fault, f"{REINSTALL} onnx numpy ml_dtypes protobuf")


def _unreadable(facts: Facts) -> Iterator[Problem]:
    for name, version in facts.versions.items():
        if version == UNREADABLE:
            yield Problem(f"the metadata of {name} cannot be read", f"{REINSTALL} --no-deps {name}")


def _unknown_pack(facts: Facts) -> Iterator[Problem]:
    if facts.unknown_pack:
        yield Problem(facts.unknown_pack, f"unset {VARIABLE}, or name installed packs")


def missing(facts: Facts, of: str = "") -> Iterator[Problem]:
    """A distribution (all, or the one named) is registered, but its files are missing."""
    for name in facts.missing if not of else {of}.intersection(facts.missing):
        text = f"{name} {facts.versions[name]} is installed, but its files are missing"
        yield Problem(text, f"{REINSTALL} --no-deps {name}")


def _too_old(facts: Facts) -> Iterator[Problem]:
    for old in facts.too_old:
        text = f"{old.name} {old.version} is too old: {old.owner} needs {old.lowest}"
        yield Problem(text, f'pip install -U "{old.name}>={old.lowest}"')


def _both(facts: Facts) -> Iterator[Problem]:
    names = runtimes(facts)
    if len(names) > 1:
        what = " and ".join(f"{name} {facts.versions[name]}" for name in names)
        now = f" (the present ones are of {facts.ort_package})" if facts.ort_package else ""
        install = gpu_package(facts) if facts.machine.gpus else 'pip install "onnxfix[gpu]"'
        yield Problem(
            f"{what} are both installed, and they install the same files{now}", instead(names, install)
        )


def onnxruntime(facts: Facts) -> Iterator[Problem]:
    """ONNX Runtime is installed and does not load."""
    if "ort-cpu" in facts.faults:
        own = runtime(facts)
        version = facts.versions.get(own, UNREADABLE)
        yield Problem(f"{own} {version} does not load: {facts.faults['ort-cpu']}", f"{REINSTALL} {own}")


def runtimes(facts: Facts) -> list[str]:
    """The installed distributions of ONNX Runtime."""
    return [name for name in facts.versions if MODULES[name] == "onnxruntime"]


def runtime(facts: Facts) -> str:
    """The one whose files are present."""
    names = runtimes(facts)
    return facts.ort_package or next(iter(names), "onnxruntime")


# ------------------------------------------------------------------------------------------- CUDA, driver


def driver(facts: Facts) -> Iterator[Problem]:
    """NVIDIA's driver is installed and does not work."""
    found = facts.machine.driver
    unanswered = [
        facts.faults[question] for question in ("driver", "gpus", "nvml") if question in facts.faults
    ]
    if facts.nvml_status == _OTHER_KERNEL_DRIVER:
        text = "the kernel runs another version of NVIDIA's driver than the installed one"
        yield Problem(f"{text} ({facts.nvml_fault})", "reboot")
    elif found.status not in (0, _NO_DEVICE):
        yield Problem(f"NVIDIA's driver does not start: {found.fault}", _DRIVER_MEND)
    elif unanswered:
        yield Problem(f"NVIDIA's driver does not answer: {unanswered[0]}", _DRIVER_MEND)


def cuda_mismatch(facts: Facts) -> Iterator[Problem]:
    """ONNX Runtime is built for a CUDA that the driver does not support, or that is not installed, cuDNN included.

    Without a GPU nothing is missing, but packages that pip installed for another CUDA are still wrong.
    """
    if facts.ort_cuda:
        own = runtime(facts)
        own = f"{own} {facts.versions.get(own, UNREADABLE)}"
        # ONNX Runtime has just computed: driver and runtime fit. That did not need cuDNN.
        text = "" if facts.cuda_works else _driver_mismatch(facts, own) or _runtime_mismatch(facts, own)
        text = text or _cudnn_mismatch(facts, own)
        if text:
            yield Problem(text, gpu_package(facts))


def _driver_mismatch(facts: Facts, own: str) -> str:
    supported = facts.machine.driver.cuda
    if facts.machine.gpus and supported and major(supported) < major(facts.ort_cuda):
        return f"{own} is built for CUDA {facts.ort_cuda}, and the driver supports up to CUDA {supported}"
    return ""


def _runtime_mismatch(facts: Facts, own: str) -> str:
    need, found = major(facts.ort_cuda), _libraries(facts, "CUDA runtime")
    if any(major(item.cuda) == need for item in found) or not (found or facts.machine.gpus):
        return ""
    here = f"the installed CUDA runtime is {_listed(found)}" if found else "no CUDA runtime was found"
    return f"{own} is built for CUDA {need}, and {here}"


def _cudnn_mismatch(facts: Facts, own: str) -> str:
    need, found = major(facts.ort_cuda), _libraries(facts, "cuDNN")
    fits = any(major(item.version) == _CUDNN and major(item.cuda) == need for item in found)
    if fits or not (found or facts.machine.gpus):
        return ""
    here = f"the installed cuDNN is {_listed(found)}" if found else "no cuDNN was found"
    return f"{own} needs cuDNN {_CUDNN} for CUDA {need}, and {here}"


def _libraries(facts: Facts, name: str) -> list[Library]:
    """The relevant ones: without a GPU, libraries of the system were not installed for this."""
    counted = bool(facts.machine.gpus)
    return [item for item in facts.machine.libraries if item.name == name and (item.wheel or counted)]


def _listed(found: Sequence[Library]) -> str:
    """``12.9`` for a CUDA runtime, ``9.10.2 for CUDA 12`` for cuDNN."""
    words = [
        item.version if item.version == item.cuda else f"{item.version} for CUDA {major(item.cuda)}"
        for item in found
    ]
    return ", ".join(dict.fromkeys(words))


def _broken_library(facts: Facts) -> Iterator[Problem]:
    for question, name in (("cuda-runtime", "CUDA runtime"), ("cudnn", "cuDNN")):
        if question in facts.faults:
            text = f"an installed {name} does not load: {facts.faults[question]}"
            yield Problem(text, gpu_package(facts))


def cuda_refused(facts: Facts) -> Iterator[Problem]:
    """ONNX Runtime's CUDA provider cannot be used, and no other problem explains it."""
    if any(cuda_mismatch(facts)) or any(onnxruntime(facts)):
        return
    if "ort-cuda" in facts.faults:
        text = f"ONNX Runtime's CUDA provider does not answer: {facts.faults['ort-cuda']}"
        yield Problem(text, gpu_package(facts))
    elif facts.cuda_refusal is not None:
        yield Problem(facts.cuda_refusal.what, facts.cuda_refusal.mend or gpu_package(facts))


def gpu_package(facts: Facts) -> str:
    """How to install an ONNX Runtime that this driver supports, with the libraries that it needs."""
    supported = major(facts.machine.driver.cuda) or max(_GPU_PACKAGE)
    if supported < min(_GPU_PACKAGE):
        return newer_driver(max(OLDEST_DRIVER))
    wanted = min(supported, major(facts.ort_cuda) or supported)
    return _GPU_PACKAGE[max(min(wanted, max(_GPU_PACKAGE)), min(_GPU_PACKAGE))]


def newer_driver(cuda: int) -> str:
    """How to fix a driver that is too old for a major version of CUDA."""
    return f"install NVIDIA's driver {OLDEST_DRIVER[cuda]} or newer"


def instead(names: Sequence[str], install: str) -> str:
    """How to replace distributions that install the same files by another one."""
    return (
        f"pip uninstall -y {' '.join(names)} && {install}" if names and install.startswith("pip") else install
    )


def major(version: str) -> int:
    """The first number of a version; 0 without one."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


# ----------------------------------------------------------------------------------------------- TensorRT


def tensorrt(facts: Facts) -> Iterator[Problem]:
    """An installed TensorRT cannot be used."""
    if "trt-build" in facts.faults and isinstance(facts.trt, Missing):
        names = [name for name in facts.versions if MODULES[name].startswith("tensorrt")]
        mend = f"{REINSTALL} {names[0]}" if names else INSTALL["tensorrt-rtx"]
        yield Problem(facts.trt.reason, mend)
        return
    if isinstance(facts.trt, Missing):
        yield from _unusable(facts.trt)
    if facts.passed_over is not None and "tensorrt" in facts.faults:
        yield Problem(f"tensorrt does not answer: {facts.passed_over.what}", f"{REINSTALL} tensorrt")
    elif facts.passed_over is not None:
        yield from _unusable(facts.passed_over)


def _unusable(refusal: Missing) -> Iterator[Problem]:
    """A package that is installed and cannot be used; one that is not installed is no problem."""
    if refusal.cause in ("not-loadable", "version", "gpu-not-supported"):
        yield Problem(refusal.what, refusal.mend)


def tensorrt_serves(facts: Facts) -> Iterator[Problem]:
    """TensorRT-RTX is installed, but does not support the GPU."""
    if isinstance(facts.trt, Choice) and facts.trt.note:
        yield Problem(facts.trt.note, INSTALL["tensorrt"])


def tensorrt_cuda(facts: Facts) -> Iterator[Problem]:
    """TensorRT's libraries are for a CUDA that the driver does not support: engines can be built, but not run."""
    supported = major(facts.machine.driver.cuda)
    if not isinstance(facts.trt, Choice) or facts.trt.gpu is None or not supported:
        return
    name = facts.trt.package
    built = min((cuda for cuda in OLDEST_DRIVER if f"{name}-cu{cuda}" in facts.versions), default=0)
    if built > supported:
        old = f"{name}-cu{built}"
        mend = instead((old, f"{old}-bindings", f"{old}-libs"), f"pip install {name}-cu{supported}")
        yield Problem(
            f"{name} {facts.trt.version} is built for CUDA {built}, and the driver supports up to CUDA "
            f"{facts.machine.driver.cuda}",
            mend if supported in OLDEST_DRIVER else newer_driver(built),
        )


_Kinds: TypeAlias = tuple[Callable[[Facts], Iterator[Problem]], ...]
_FROM_FILES: _Kinds = (_unreadable, _unknown_pack, missing, _too_old, _both)
_FROM_ANSWERS: _Kinds = (
    *(base, onnxruntime, driver, _broken_library, cuda_mismatch, cuda_refused),
    *(tensorrt, tensorrt_serves, tensorrt_cuda),
)
