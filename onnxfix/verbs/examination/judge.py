"""Draws conclusions from facts about a machine: packages and their faults, checks and why they cannot run,
and problems with how to fix them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from onnxfix._version import __version__
from onnxfix.names import RUNGS
from onnxfix.rewrite.packs import VARIABLE
from onnxfix.runtime.nvidia import Missing
from onnxfix.tensorrt.package import INSTALL, Choice, listed
from onnxfix.verbs.examination.facts import CUDA_PROVIDER, MODULES, UNREADABLE, Facts
from onnxfix.verbs.examination.records import Examination, Library, Package, Problem, Rung

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
_REINSTALL = "pip install --force-reinstall"


def judged(facts: Facts) -> Examination:
    """The diagnosis of these facts."""
    # If no child starts, no other problem can be found. Causes come before consequences.
    finders = (_no_child_process, _broken_packages, *(() if facts.unstarted else _FROM_ANSWERS))
    problems = tuple(problem for find in finders for problem in find(facts))
    return Examination(facts.machine, tuple(_packages(facts)), tuple(_rungs(facts)), problems, facts.packs)


def _packages(facts: Facts) -> Iterator[Package]:
    """onnxfix itself and the relevant distributions that are installed."""
    yield Package("onnxfix", __version__)
    for name, version in facts.versions.items():
        notes = []
        if MODULES[name] == "onnxruntime" and name == _runtime(facts):
            short = [provider.removesuffix("ExecutionProvider") for provider in facts.providers]
            notes += [f"built for CUDA {facts.ort_cuda}"] if facts.ort_cuda else []
            notes += [f"providers {', '.join(short)}"] if short else []
        yield Package(name, version, "; ".join(notes), "; ".join(_faults(facts, name)))


def _faults(facts: Facts, name: str) -> Iterator[str]:
    if facts.versions[name] == UNREADABLE:
        yield "its metadata cannot be read"
    if name in facts.missing:
        yield "its files are missing"
    if "ort-cpu" in facts.faults and name == _runtime(facts):
        yield "does not load"
    if name in (facts.unloaded.get("contract"), facts.unloaded.get("reference")):
        yield "does not load"
    others = [other for other in _runtimes(facts) if other != name]
    if MODULES[name] == "onnxruntime" and others:
        yield f"installs the same files as {', '.join(others)}"


def _runtimes(facts: Facts) -> list[str]:
    return [name for name in facts.versions if MODULES[name] == "onnxruntime"]


def _runtime(facts: Facts) -> str:
    """The distribution of ONNX Runtime whose files are present."""
    return facts.ort_package or next(iter(_runtimes(facts)), "onnxruntime")


def _runtime_and_version(facts: Facts) -> str:
    return f"{_runtime(facts)} {facts.versions.get(_runtime(facts), UNREADABLE)}"


def _no_child_process(facts: Facts) -> Iterator[Problem]:
    """No child could be started, so that nothing can be verified."""
    if facts.unstarted:
        yield Problem(facts.unstarted, "check the limits on processes and memory (ulimit -a)")


def _broken_packages(facts: Facts) -> Iterator[Problem]:
    for name, version in facts.versions.items():
        if version == UNREADABLE:
            yield Problem(f"the metadata of {name} cannot be read", f"{_REINSTALL} --no-deps {name}")
    if facts.unknown_pack:
        yield Problem(facts.unknown_pack, f"unset {VARIABLE}, or name installed packs")
    for name in facts.missing:
        yield _missing(facts, name)
    names = _runtimes(facts)
    if len(names) > 1:
        what = " and ".join(f"{name} {facts.versions[name]}" for name in names)
        present = f" (the present ones are of {facts.ort_package})" if facts.ort_package else ""
        text = f"{what} are both installed, and they install the same files{present}"
        install = _gpu_package(facts) if facts.machine.gpus else 'pip install "onnxfix[gpu]"'
        yield Problem(text, _replace_command(names, install))


def _missing(facts: Facts, name: str) -> Problem:
    """A distribution is registered, but its files are missing."""
    text = f"{name} {facts.versions[name]} is installed, but its files are missing"
    return Problem(text, f"{_REINSTALL} --no-deps {name}")


def _broken_onnx(facts: Facts) -> Iterator[Problem]:
    fault = facts.faults.get("contract") or facts.faults.get("reference")
    if fault:
        yield Problem(fault, f"{_REINSTALL} onnx numpy ml_dtypes protobuf")


def _onnxruntime(facts: Facts) -> Iterator[Problem]:
    if "ort-cpu" in facts.faults:
        text = f"{_runtime_and_version(facts)} does not load: {facts.faults['ort-cpu']}"
        yield Problem(text, f"{_REINSTALL} {_runtime(facts)}")


def _replace_command(names: Sequence[str], install: str) -> str:
    """How to replace distributions that install the same files by another one."""
    return (
        f"pip uninstall -y {' '.join(names)} && {install}" if names and install.startswith("pip") else install
    )


def _driver(facts: Facts) -> Iterator[Problem]:
    driver = facts.machine.driver
    unanswered = [facts.faults[name] for name in ("driver", "gpus", "nvml") if name in facts.faults]
    if facts.nvml_status == _OTHER_KERNEL_DRIVER:
        text = "the kernel runs another version of NVIDIA's driver than the installed one"
        yield Problem(f"{text} ({facts.nvml_fault})", "reboot")
    elif driver.status not in (0, _NO_DEVICE):
        yield Problem(f"NVIDIA's driver does not start: {driver.fault}", _DRIVER_MEND)
    elif unanswered:
        yield Problem(f"NVIDIA's driver does not answer: {unanswered[0]}", _DRIVER_MEND)


def _broken_library(facts: Facts) -> Iterator[Problem]:
    for question, name in (("cuda-runtime", "CUDA runtime"), ("cudnn", "cuDNN")):
        if question in facts.faults:
            text = f"an installed {name} does not load: {facts.faults[question]}"
            yield Problem(text, _gpu_package(facts))


def _cuda_mismatch(facts: Facts) -> Iterator[Problem]:
    """ONNX Runtime is built for a CUDA that the driver does not support, or that is not installed, cuDNN included.

    Without a GPU nothing is missing, but packages that pip installed for another CUDA are still wrong. If
    ONNX Runtime has just computed on CUDA, driver and runtime fit; cuDNN may still not fit, because that test
    does not need it.
    """
    if not facts.ort_cuda:
        return
    runtime, needed, gpus = _runtime_and_version(facts), _major(facts.ort_cuda), bool(facts.machine.gpus)
    supported = facts.machine.driver.cuda
    runtimes, cudnns = _libraries(facts, "CUDA runtime"), _libraries(facts, "cuDNN")
    text = ""
    if not facts.cuda_works and gpus and supported and _major(supported) < needed:
        text = f"{runtime} is built for CUDA {facts.ort_cuda}, and the driver supports up to CUDA {supported}"
    elif (
        not facts.cuda_works
        and (runtimes or gpus)
        and all(_major(library.cuda) != needed for library in runtimes)
    ):
        installed = (
            f"the installed CUDA runtime is {_list(runtimes)}" if runtimes else "no CUDA runtime was found"
        )
        text = f"{runtime} is built for CUDA {needed}, and {installed}"
    elif (cudnns or gpus) and all(
        (_major(library.version), _major(library.cuda)) != (_CUDNN, needed) for library in cudnns
    ):
        installed = f"the installed cuDNN is {_list(cudnns)}" if cudnns else "no cuDNN was found"
        text = f"{runtime} needs cuDNN {_CUDNN} for CUDA {needed}, and {installed}"
    if text:
        yield Problem(text, _gpu_package(facts))


def _libraries(facts: Facts, name: str) -> list[Library]:
    """The relevant libraries. Without a GPU, libraries of the system do not count: they have other uses."""
    counts_system = bool(facts.machine.gpus)
    return [item for item in facts.machine.libraries if item.name == name and (item.wheel or counts_system)]


def _list(libraries: Sequence[Library]) -> str:
    """``12.9`` for a CUDA runtime, ``9.10.2 for CUDA 12`` for cuDNN."""
    words = [
        item.version if item.version == item.cuda else f"{item.version} for CUDA {_major(item.cuda)}"
        for item in libraries
    ]
    return ", ".join(dict.fromkeys(words))


def _cuda_refused(facts: Facts) -> Iterator[Problem]:
    """ONNX Runtime's CUDA provider cannot be used, and no other problem explains it."""
    if any(_cuda_mismatch(facts)) or any(_onnxruntime(facts)):
        return
    if "ort-cuda" in facts.faults:
        text = f"ONNX Runtime's CUDA provider does not answer: {facts.faults['ort-cuda']}"
        yield Problem(text, _gpu_package(facts))
    elif facts.cuda_refusal is not None:
        yield Problem(facts.cuda_refusal.what, facts.cuda_refusal.mend or _gpu_package(facts))


def _gpu_package(facts: Facts) -> str:
    """How to install an ONNX Runtime that this driver supports, with the libraries that it needs."""
    supported = _major(facts.machine.driver.cuda) or max(_GPU_PACKAGE)
    if supported < min(_GPU_PACKAGE):
        return _newer_driver(max(OLDEST_DRIVER))
    wanted = min(supported, _major(facts.ort_cuda) or supported)
    return _GPU_PACKAGE[max(min(wanted, max(_GPU_PACKAGE)), min(_GPU_PACKAGE))]


def _newer_driver(cuda: int) -> str:
    """How to fix a driver that is too old for a major version of CUDA."""
    return f"install NVIDIA's driver {OLDEST_DRIVER[cuda]} or newer"


def _major(version: str) -> int:
    match = re.match(r"\d+", version)
    return int(match[0]) if match else 0


def _tensorrt(facts: Facts) -> Iterator[Problem]:
    """An installed TensorRT cannot be used. A missing TensorRT is not a problem."""
    if "trt-build" in facts.faults and isinstance(facts.trt, Missing):
        names = [name for name in facts.versions if MODULES[name].startswith("tensorrt")]
        yield Problem(facts.trt.reason, f"{_REINSTALL} {names[0]}" if names else INSTALL["tensorrt-rtx"])
        return
    refusals = [facts.trt] if isinstance(facts.trt, Missing) else []
    if facts.passed_over is not None and "tensorrt" not in facts.faults:
        refusals.append(facts.passed_over)
    for refusal in refusals:
        if refusal.cause in ("not-loadable", "version", "gpu-not-supported"):
            yield Problem(refusal.what, refusal.mend)
    if facts.passed_over is not None and "tensorrt" in facts.faults:
        yield Problem(f"tensorrt does not answer: {facts.passed_over.what}", f"{_REINSTALL} tensorrt")


def _tensorrt_on_gpu(facts: Facts) -> Iterator[Problem]:
    """TensorRT-RTX does not support the GPU, or TensorRT's libraries are for a CUDA that the driver does not support:
    engines can be built, but not run."""
    choice, supported = facts.trt, _major(facts.machine.driver.cuda)
    if not isinstance(choice, Choice):
        return
    if choice.note:
        yield Problem(choice.note, INSTALL["tensorrt"])
    name = choice.package
    built = min((cuda for cuda in OLDEST_DRIVER if f"{name}-cu{cuda}" in facts.versions), default=0)
    if choice.gpu is None or not supported or built <= supported:
        return
    old = f"{name}-cu{built}"
    mend = _replace_command((old, f"{old}-bindings", f"{old}-libs"), f"pip install {name}-cu{supported}")
    yield Problem(
        f"{name} {choice.version} is built for CUDA {built}, and the driver supports up to CUDA "
        f"{facts.machine.driver.cuda}",
        mend if supported in OLDEST_DRIVER else _newer_driver(built),
    )


_FROM_ANSWERS: tuple[Callable[[Facts], Iterator[Problem]], ...] = (
    *(_broken_onnx, _onnxruntime, _driver, _broken_library, _cuda_mismatch, _cuda_refused),
    *(_tensorrt, _tensorrt_on_gpu),
)


def _rungs(facts: Facts) -> Iterator[Rung]:
    if facts.unstarted:
        yield from (_rung(name, "", [*_no_child_process(facts)]) for name in RUNGS)
        return
    for name in ("contract", "symbolic", "reference"):
        # None of them can run if the checks themselves do not load.
        fault = facts.faults.get("contract") or facts.faults.get(name)
        yield _rung(
            name, f"onnx {facts.versions.get('onnx', UNREADABLE)}", [*_broken_onnx(facts)] if fault else []
        )
    cpu, cuda, build = _ort_cpu(facts), _ort_cuda(facts), _trt_build(facts)
    yield from (cpu, cuda, build)
    # It parses like trt-build. The network that is read back runs like the best other check.
    network = Rung("trt-network", False, build.reason, build.mend)
    if build.available and isinstance(facts.trt, Choice):
        runs = next((rung.name for rung in (cuda, cpu) if rung.available), "reference")
        what = f"{facts.trt.package} {facts.trt.version}, read back and run as on {runs}"
        network = Rung("trt-network", True, what)
    yield network
    yield _trt_gpu(facts, build)
    yield _ort_trt(facts)


def _rung(name: str, runs_on: str, blocking: Sequence[Problem]) -> Rung:
    if blocking:
        return Rung(name, False, blocking[0].text, blocking[0].mend)
    return Rung(name, True, runs_on)


def _ort_problems(facts: Facts) -> list[Problem]:
    runtime = _runtime(facts)
    return [*([_missing(facts, runtime)] if runtime in facts.missing else []), *_onnxruntime(facts)]


def _ort_cpu(facts: Facts) -> Rung:
    blocking = _ort_problems(facts)
    if not blocking and not facts.providers:
        blocking = [Problem("onnxruntime is not installed", 'pip install "onnxfix[cpu]"')]
    return _rung("ort-cpu", _runtime_and_version(facts), blocking)


def _ort_cuda(facts: Facts) -> Rung:
    if not facts.machine.gpus:
        return _rung("ort-cuda", "", [_no_gpu(facts)])
    blocking = _ort_problems(facts)
    if not blocking and not facts.ort_cuda and CUDA_PROVIDER not in facts.providers:
        installed = _runtimes(facts)
        built = f"{_runtime(facts)} is built without CUDA"
        reason = built if installed else "onnxruntime-gpu is not installed"
        blocking = [Problem(reason, _replace_command(installed, _gpu_package(facts)))]
    blocking += [*_cuda_mismatch(facts), *_cuda_refused(facts)]
    return _rung("ort-cuda", f"{_runtime_and_version(facts)} on {facts.machine.gpus[0].name}", blocking)


def _ort_trt(facts: Facts) -> Rung:
    if not facts.machine.gpus:
        return _rung("ort-trt", "", [_no_gpu(facts)])
    fault, refusal = facts.faults.get("ort-trt"), facts.provider_refusal
    blocking = [Problem(f"ONNX Runtime's TensorRT provider does not answer: {fault}", "")] if fault else []
    blocking += [Problem(refusal.what, refusal.mend)] if refusal is not None else []
    return _rung("ort-trt", f"{_runtime_and_version(facts)} on {facts.machine.gpus[0].name}", blocking)


def _no_gpu(facts: Facts) -> Problem:
    """Why there is no GPU to run on, and how to fix that."""
    machine = facts.machine
    for problem in _driver(facts):
        return problem
    if machine.driver.installed and facts.hidden is not None:
        return Problem(f"CUDA_VISIBLE_DEVICES={facts.hidden!r} hides all GPUs", "unset CUDA_VISIBLE_DEVICES")
    if machine.driver.installed:
        return Problem("NVIDIA's driver reports no GPU", "")
    if machine.kernel_driver:
        return Problem(
            f"the kernel runs NVIDIA's driver {machine.kernel_driver}, but its library libcuda.so.1 was not found",
            "in a container: start it with its GPUs, such as docker run --gpus all",
        )
    return Problem("no NVIDIA driver found", "")


def _trt_build(facts: Facts) -> Rung:
    if isinstance(facts.trt, Missing):
        refused = Problem(facts.trt.what, facts.trt.mend)
        return _rung("trt-build", "", [*_tensorrt(facts), refused])
    ahead = "" if facts.trt.gpu is not None else "ahead of time for "
    where = f"{ahead}compute capability {facts.trt.capability}"
    return Rung("trt-build", True, f"{facts.trt.package} {facts.trt.version}, {where}")


def _trt_gpu(facts: Facts, build: Rung) -> Rung:
    choice = facts.trt
    if not facts.machine.gpus:
        blocking = [_no_gpu(facts)]
    elif isinstance(choice, Missing):
        rtx_runs = any(listed("tensorrt-rtx", gpu.capability) for gpu in facts.machine.gpus)
        blocking = [Problem(build.reason, build.mend if rtx_runs else INSTALL["tensorrt"])]
    elif "polygraphy" not in facts.versions or "polygraphy" in facts.missing:
        blocking = [Problem("polygraphy, which runs engines, is not installed", INSTALL[choice.package])]
    else:
        blocking = [*_tensorrt_on_gpu(facts)]
        if choice.gpu is not None:
            return _rung("trt-gpu", f"{choice.package} {choice.version} on {choice.gpu.name}", blocking)
        blocking = blocking or [Problem(f"{choice.package} has no GPU to run on", "")]
    return _rung("trt-gpu", "", blocking)
