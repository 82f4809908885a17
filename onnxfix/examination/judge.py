"""Conclusions from the facts: packages with their faults, and rungs with their reasons."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix._version import __version__
from onnxfix.examination import problems
from onnxfix.examination.facts import CUDA_PROVIDER, MODULES, UNREADABLE, Facts
from onnxfix.examination.records import Examination, Package, Problem, Rung
from onnxfix.names import RUNGS
from onnxfix.nvidia import Missing
from onnxfix.trt.package import INSTALL
from onnxfix.trt.trial import listed


def judged(facts: Facts) -> Examination:
    """The diagnosis of these facts."""
    return Examination(
        facts.machine,
        tuple(packages(facts)),
        tuple(rungs(facts)),
        tuple(problems.problems(facts)),
        facts.packs,
    )


def packages(facts: Facts) -> Iterator[Package]:
    """onnxfix itself and the relevant distributions that are installed."""
    yield Package("onnxfix", __version__)
    for name, version in facts.versions.items():
        yield Package(name, version, _note(facts, name), "; ".join(_faults(facts, name)))


def _note(facts: Facts, name: str) -> str:
    if MODULES[name] != "onnxruntime" or name != problems.runtime(facts):
        return ""
    built = [f"built for CUDA {facts.ort_cuda}"] if facts.ort_cuda else []
    short = [provider.removesuffix("ExecutionProvider") for provider in facts.providers]
    return "; ".join([*built, *([f"providers {', '.join(short)}"] if short else [])])


def _faults(facts: Facts, name: str) -> Iterator[str]:
    if facts.versions[name] == UNREADABLE:
        yield "its metadata cannot be read"
    if name in facts.missing:
        yield "its files are missing"
    if "ort-cpu" in facts.faults and name == problems.runtime(facts):
        yield "does not load"
    if name in (facts.unloaded.get("contract"), facts.unloaded.get("reference")):
        yield "does not load"
    for old in facts.too_old:
        if old.name == name:
            yield f"{old.owner} needs {old.lowest}"
    others = [other for other in problems.runtimes(facts) if other != name]
    if MODULES[name] == "onnxruntime" and others:
        yield f"installs the same files as {', '.join(others)}"


def rungs(facts: Facts) -> Iterator[Rung]:
    """All rungs of the ladder, in its order."""
    if facts.unstarted:
        yield from (_rung(name, "", list(problems.unstarted(facts))) for name in RUNGS)
        return
    for name in ("contract", "reference"):
        # The reference evaluator cannot run if the ladder itself does not load.
        fault = facts.faults.get("contract") or facts.faults.get(name)
        found = list(problems.base(facts)) if fault else []
        yield _rung(name, f"onnx {facts.versions.get('onnx', UNREADABLE)}", found)
    yield _ort_cpu(facts)
    yield _ort_cuda(facts)
    yield _trt_build(facts)
    yield _trt_network(facts)
    yield _trt_gpu(facts)


def _rung(name: str, runs_on: str, blocking: list[Problem]) -> Rung:
    if blocking:
        return Rung(name, False, blocking[0].text, blocking[0].mend)
    return Rung(name, True, runs_on)


def _ort_problems(facts: Facts) -> list[Problem]:
    own = problems.runtime(facts)
    return [*problems.missing(facts, own), *problems.onnxruntime(facts)]


def _ort_cpu(facts: Facts) -> Rung:
    blocking = _ort_problems(facts)
    if not blocking and not facts.providers:
        return Rung("ort-cpu", False, "onnxruntime is not installed", 'pip install "onnxfix[cpu]"')
    own = problems.runtime(facts)
    return _rung("ort-cpu", f"{own} {facts.versions.get(own, UNREADABLE)}", blocking)


def _ort_cuda(facts: Facts) -> Rung:
    name = "ort-cuda"
    if not facts.machine.gpus:
        return Rung(name, False, *_no_gpu(facts))
    blocking = _ort_problems(facts)
    if not blocking and not facts.ort_cuda and CUDA_PROVIDER not in facts.providers:
        here = problems.runtimes(facts)
        reason = (
            f"{problems.runtime(facts)} is built without CUDA" if here else "onnxruntime-gpu is not installed"
        )
        return Rung(name, False, reason, problems.instead(here, problems.gpu_package(facts)))
    blocking += [*problems.cuda_mismatch(facts), *problems.cuda_refused(facts)]
    own = problems.runtime(facts)
    runs_on = f"{own} {facts.versions.get(own, UNREADABLE)} on {facts.machine.gpus[0].name}"
    return _rung(name, runs_on, blocking)


def _no_gpu(facts: Facts) -> tuple[str, str]:
    """Why there is no GPU to run on, and how to fix that."""
    machine = facts.machine
    for problem in problems.driver(facts):
        return problem.text, problem.mend
    if machine.driver.installed and facts.hidden is not None:
        return f"CUDA_VISIBLE_DEVICES={facts.hidden!r} hides all GPUs", "unset CUDA_VISIBLE_DEVICES"
    if machine.driver.installed:
        return "NVIDIA's driver reports no GPU", ""
    if machine.kernel_driver:
        return (
            f"the kernel runs NVIDIA's driver {machine.kernel_driver}, but its library libcuda.so.1 was not found",
            "in a container: start it with its GPUs, such as docker run --gpus all",
        )
    return "no NVIDIA driver found", ""


def _trt_build(facts: Facts) -> Rung:
    if isinstance(facts.trt, Missing):
        for problem in problems.tensorrt(facts):
            return Rung("trt-build", False, problem.text, problem.mend)
        return Rung("trt-build", False, facts.trt.what, facts.trt.mend)
    ahead = "" if facts.trt.gpu is not None else "ahead of time for "
    where = f"{ahead}compute capability {facts.trt.capability}"
    return Rung("trt-build", True, f"{facts.trt.package} {facts.trt.version}, {where}")


def _trt_network(facts: Facts) -> Rung:
    """It parses as trt-build does; the network that was read back runs on the best other rung."""
    build = _trt_build(facts)
    if not build.available or isinstance(facts.trt, Missing):
        return Rung("trt-network", False, build.reason, build.mend)
    runs = next((rung.name for rung in (_ort_cuda(facts), _ort_cpu(facts)) if rung.available), "reference")
    return Rung(
        "trt-network", True, f"{facts.trt.package} {facts.trt.version}, read back and run as on {runs}"
    )


def _trt_gpu(facts: Facts) -> Rung:
    name, choice = "trt-gpu", facts.trt
    if not facts.machine.gpus:
        return Rung(name, False, *_no_gpu(facts))
    if isinstance(choice, Missing):
        build = _trt_build(facts)
        rtx_runs = any(listed("tensorrt-rtx", gpu.capability) for gpu in facts.machine.gpus)
        return Rung(name, False, build.reason, build.mend if rtx_runs else INSTALL["tensorrt"])
    if "polygraphy" not in facts.versions or "polygraphy" in facts.missing:
        return Rung(name, False, "polygraphy, which runs engines, is not installed", INSTALL[choice.package])
    blocking = [*problems.tensorrt_serves(facts), *problems.tensorrt_cuda(facts)]
    if choice.gpu is None:
        return _rung(name, "", blocking or [Problem(f"{choice.package} has no GPU to run on", "")])
    return _rung(name, f"{choice.package} {choice.version} on {choice.gpu.name}", blocking)
