"""What does not fit together on a machine, and what mends it. One function for each kind of problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from onnxfix.doctor.facts import MODULES, UNREADABLE, Facts
from onnxfix.doctor.records import Library, Problem
from onnxfix.nvidia import Missing
from onnxfix.trt.package import INSTALL, Choice

#: The oldest Linux driver for each major version of CUDA (CUDA's release notes, minor version compatibility).
OLDEST_DRIVER = {12: 525, 13: 580}
#: PyPI's onnxruntime-gpu is for CUDA 12 up to 1.26 and for CUDA 13 from 1.27 on (its wheels' metadata). The extras
#: bring the CUDA runtime and the cuDNN that it was built for.
_GPU_PACKAGE = {
    12: 'pip install "onnxruntime-gpu[cuda,cudnn]<1.27"',
    13: 'pip install -U "onnxruntime-gpu[cuda,cudnn]"',
}
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, cuda.h
_OTHER_KERNEL_DRIVER = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH, nvml.h
_CUDNN = 9  # the major version that every onnxruntime-gpu since 1.18.1 is built for
_DRIVER_MEND = "see what nvidia-smi says; reboot, or install NVIDIA's driver anew"
REINSTALL = "pip install --force-reinstall"


def problems(facts: Facts) -> Iterator[Problem]:
    """All problems, those that others may follow from first."""
    yield from unstarted(facts)
    # Who has answered nothing is not known to be broken.
    for find in _FROM_FILES if facts.unstarted else (*_FROM_FILES, *_FROM_ANSWERS):
        yield from find(facts)


def unstarted(facts: Facts) -> Iterator[Problem]:
    """Nothing that loads native code could be asked, and nothing can be verified."""
    if facts.unstarted:
        yield Problem(facts.unstarted, "look at the limits of processes and memory (ulimit -a)")


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


def gone(facts: Facts, of: str = "") -> Iterator[Problem]:
    """A distribution (all, or the one named) is registered and its files are not there."""
    for name in facts.gone if not of else {of}.intersection(facts.gone):
        text = f"{name} {facts.versions[name]} is installed, but its files are gone"
        yield Problem(text, f"{REINSTALL} --no-deps {name}")


def _too_old(facts: Facts) -> Iterator[Problem]:
    for old in facts.too_old:
        text = f"{old.name} {old.version} is too old: {old.owner} needs {old.lowest}"
        yield Problem(text, f'pip install -U "{old.name}>={old.lowest}"')


def _both(facts: Facts) -> Iterator[Problem]:
    names = runtimes(facts)
    if len(names) > 1:
        what = " and ".join(f"{name} {facts.versions[name]}" for name in names)
        now = f" (those there now are of {facts.ort_package})" if facts.ort_package else ""
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
    """The one whose files are there."""
    names = runtimes(facts)
    return facts.ort_package or next(iter(names), "onnxruntime")


# ------------------------------------------------------------------------------------------- CUDA, driver


def driver(facts: Facts) -> Iterator[Problem]:
    """NVIDIA's driver is there and does not work."""
    seen = facts.machine.driver
    silent = [facts.faults[question] for question in ("driver", "gpus", "nvml") if question in facts.faults]
    if facts.nvml_status == _OTHER_KERNEL_DRIVER:
        text = "the kernel runs another version of NVIDIA's driver than the one that is installed"
        yield Problem(f"{text} ({facts.nvml_fault})", "reboot")
    elif seen.status not in (0, _NO_DEVICE):
        yield Problem(f"NVIDIA's driver does not start: {seen.fault}", _DRIVER_MEND)
    elif silent:
        yield Problem(f"NVIDIA's driver does not answer: {silent[0]}", _DRIVER_MEND)


def cuda_mismatch(facts: Facts) -> Iterator[Problem]:
    """ONNX Runtime is built for a CUDA that the driver does not serve, or that is not installed, cuDNN included.

    Without a GPU nothing is missed; but what pip installed for another CUDA is still wrong.
    """
    if facts.ort_cuda:
        own = runtime(facts)
        own = f"{own} {facts.versions.get(own, UNREADABLE)}"
        # What has just computed has its driver and its runtime; it computed without cuDNN.
        text = "" if facts.cuda_works else _driver_mismatch(facts, own) or _runtime_mismatch(facts, own)
        text = text or _cudnn_mismatch(facts, own)
        if text:
            yield Problem(text, gpu_package(facts))


def _driver_mismatch(facts: Facts, own: str) -> str:
    served = facts.machine.driver.cuda
    if facts.machine.gpus and served and major(served) < major(facts.ort_cuda):
        return f"{own} is built for CUDA {facts.ort_cuda}, and the driver serves up to CUDA {served}"
    return ""


def _runtime_mismatch(facts: Facts, own: str) -> str:
    need, found = major(facts.ort_cuda), _libraries(facts, "CUDA runtime")
    if any(major(item.cuda) == need for item in found) or not (found or facts.machine.gpus):
        return ""
    here = f"the CUDA runtime here is {_listed(found)}" if found else "no CUDA runtime is here"
    return f"{own} is built for CUDA {need}, and {here}"


def _cudnn_mismatch(facts: Facts, own: str) -> str:
    need, found = major(facts.ort_cuda), _libraries(facts, "cuDNN")
    fits = any(major(item.version) == _CUDNN and major(item.cuda) == need for item in found)
    if fits or not (found or facts.machine.gpus):
        return ""
    here = f"cuDNN here is {_listed(found)}" if found else "no cuDNN is here"
    return f"{own} needs cuDNN {_CUDNN} for CUDA {need}, and {here}"


def _libraries(facts: Facts, name: str) -> list[Library]:
    """Those that count: without a GPU, the system's are nobody's choice."""
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
            text = f"a {name} that is installed does not load: {facts.faults[question]}"
            yield Problem(text, gpu_package(facts))


def cuda_refused(facts: Facts) -> Iterator[Problem]:
    """ONNX Runtime's CUDA provider cannot be used, and nothing else says why."""
    if any(cuda_mismatch(facts)) or any(onnxruntime(facts)):
        return
    if "ort-cuda" in facts.faults:
        text = f"ONNX Runtime's CUDA provider does not answer: {facts.faults['ort-cuda']}"
        yield Problem(text, gpu_package(facts))
    elif facts.cuda_refusal is not None:
        yield Problem(facts.cuda_refusal.what, facts.cuda_refusal.mend or gpu_package(facts))


def gpu_package(facts: Facts) -> str:
    """What to do for an ONNX Runtime that this driver serves, with the libraries that it needs."""
    served = major(facts.machine.driver.cuda) or max(_GPU_PACKAGE)
    if served < min(_GPU_PACKAGE):
        return newer_driver(max(OLDEST_DRIVER))
    wanted = min(served, major(facts.ort_cuda) or served)
    return _GPU_PACKAGE[max(min(wanted, max(_GPU_PACKAGE)), min(_GPU_PACKAGE))]


def newer_driver(cuda: int) -> str:
    """What to do where the driver is too old for a major version of CUDA."""
    return f"install NVIDIA's driver {OLDEST_DRIVER[cuda]} or newer"


def instead(names: Sequence[str], install: str) -> str:
    """Put one distribution in the place of others that install the same files."""
    return (
        f"pip uninstall -y {' '.join(names)} && {install}" if names and install.startswith("pip") else install
    )


def major(version: str) -> int:
    """The first number of a version; 0 without one."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


# ----------------------------------------------------------------------------------------------- TensorRT


def tensorrt(facts: Facts) -> Iterator[Problem]:
    """A TensorRT is installed and of no use."""
    if "trt-build" in facts.faults and isinstance(facts.trt, Missing):
        names = [name for name in facts.versions if MODULES[name].startswith("tensorrt")]
        mend = f"{REINSTALL} {names[0]}" if names else INSTALL["tensorrt-rtx"]
        yield Problem(facts.trt.reason, mend)
        return
    if isinstance(facts.trt, Missing):
        yield from _of_no_use(facts.trt)
    if facts.passed_over is not None and "tensorrt" in facts.faults:
        yield Problem(f"tensorrt does not answer: {facts.passed_over.what}", f"{REINSTALL} tensorrt")
    elif facts.passed_over is not None:
        yield from _of_no_use(facts.passed_over)


def _of_no_use(lack: Missing) -> Iterator[Problem]:
    """What is installed and cannot be used; what is not installed is no problem."""
    if lack.cause in ("not-loadable", "version", "gpu-not-served"):
        yield Problem(lack.what, lack.mend)


def tensorrt_serves(facts: Facts) -> Iterator[Problem]:
    """TensorRT-RTX is here, and a GPU that it does not serve."""
    if isinstance(facts.trt, Choice) and facts.trt.note:
        yield Problem(facts.trt.note, INSTALL["tensorrt"])


def tensorrt_cuda(facts: Facts) -> Iterator[Problem]:
    """TensorRT's libraries are for a CUDA that the driver does not serve: engines can be built and not run."""
    served = major(facts.machine.driver.cuda)
    if not isinstance(facts.trt, Choice) or facts.trt.gpu is None or not served:
        return
    name = facts.trt.package
    built = min((cuda for cuda in OLDEST_DRIVER if f"{name}-cu{cuda}" in facts.versions), default=0)
    if built > served:
        old = f"{name}-cu{built}"
        mend = instead((old, f"{old}-bindings", f"{old}-libs"), f"pip install {name}-cu{served}")
        yield Problem(
            f"{name} {facts.trt.version} is built for CUDA {built}, and the driver serves up to CUDA "
            f"{facts.machine.driver.cuda}",
            mend if served in OLDEST_DRIVER else newer_driver(built),
        )


_Kinds: TypeAlias = tuple[Callable[[Facts], Iterator[Problem]], ...]
_FROM_FILES: _Kinds = (_unreadable, gone, _too_old, _both)
_FROM_ANSWERS: _Kinds = (
    *(base, onnxruntime, driver, _broken_library, cuda_mismatch, cuda_refused),
    *(tensorrt, tensorrt_serves, tensorrt_cuda),
)
