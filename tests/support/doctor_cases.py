"""Machines for the tests of the doctor: a sound one, and what can be wrong with one."""
# Long because: each thing that can be wrong with a machine is a case of its own.

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnxfix.runtime.nvidia import Gpu, Missing
from onnxfix.tensorrt import package
from onnxfix.tensorrt.package import Choice
from onnxfix.verbs.examination import facts
from onnxfix.verbs.examination.facts import Facts
from onnxfix.verbs.examination.records import Driver, Library, Machine

H100 = Gpu("NVIDIA H100 80GB HBM3", "9.0")
ADA = Gpu("NVIDIA L4", "8.9")
RUNTIME = Library("CUDA runtime", "13.0", "13.0", "/site/nvidia/cu13/lib/libcudart.so.13", True)
CUDNN = Library("cuDNN", "9.28.0", "13.5", "/site/nvidia/cudnn/lib/libcudnn.so.9", True)
MACHINE = Machine(
    system="Linux",
    python="3.12.3 (CPython)",
    executable="/venv/bin/python",
    cpus=16,
    memory_mb=131072,
    sandbox_mb=90000,
    gpus=(H100,),
    driver=Driver(True, "13.0"),
    kernel_driver="580.159.04",
    libraries=(RUNTIME, CUDNN),
)
#: A machine on which everything fits together.
SOUND = Facts(
    machine=MACHINE,
    versions={
        "onnx": "1.23.2",
        "numpy": "2.4.6",
        "onnxruntime-gpu": "1.31.1",
        "polygraphy": "0.53.6",
        "tensorrt": "11.1.0.106",
        "tensorrt-cu13": "11.1.0.106",
    },
    ort_package="onnxruntime-gpu",
    ort_cuda="13.0",
    providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
    cuda_works=True,
    trt=Choice("tensorrt", "11.1.0.106", "9.0", H100),
)
GPU_12 = 'pip install "onnxruntime-gpu[cuda,cudnn]<1.27"'
GPU_13 = 'pip install -U "onnxruntime-gpu[cuda,cudnn]"'


def machine(**changes: Any) -> Machine:
    return replace(MACHINE, **changes)


def without_gpu(driver: Driver = Driver(), kernel_driver: str = "", **changes: Any) -> Facts:  # noqa: B008
    bare = machine(gpus=(), driver=driver, kernel_driver=kernel_driver, libraries=())
    return replace(SOUND, machine=bare, cuda_works=False, trt=Missing("no GPU"), **changes)


def versions(*gone: str, **more: str) -> dict[str, str]:
    kept = {name: version for name, version in SOUND.versions.items() if name not in gone}
    return {**kept, **{name.replace("_", "-"): version for name, version in more.items()}}


def cpu_only(found: Facts = SOUND, **changes: Any) -> Facts:
    return replace(
        found,
        versions=versions("onnxruntime-gpu", onnxruntime="1.31.1"),
        ort_package="onnxruntime",
        ort_cuda="",
        providers=("CPUExecutionProvider",),
        cuda_works=False,
        **changes,
    )


RTX_NOTE = "TensorRT-RTX does not run on NVIDIA H100 80GB HBM3"
OLD_DRIVER = machine(driver=Driver(True, "12.4"))
#: What is wrong -> facts, words of the problem, its mend, and the rungs that are lost to it.
CASES = {
    "both onnxruntimes": (
        replace(SOUND, versions=versions(onnxruntime="1.30.0")),
        "onnxruntime-gpu 1.31.1 and onnxruntime 1.30.0 are both installed, and they install the same files "
        "(the present ones are of onnxruntime-gpu)",
        f"pip uninstall -y onnxruntime-gpu onnxruntime && {GPU_13}",
        (),
    ),
    "both onnxruntimes, no GPU": (
        replace(without_gpu(), versions=versions(onnxruntime="1.30.0")),
        "install the same files",
        'pip uninstall -y onnxruntime-gpu onnxruntime && pip install "onnxfix[gpu]"',
        ("ort-cuda", "trt-build", "trt-gpu"),
    ),
    "driver older than ONNX Runtime's CUDA": (
        replace(SOUND, machine=OLD_DRIVER, cuda_works=False, cuda_refusal=Missing("it fell back")),
        "onnxruntime-gpu 1.31.1 is built for CUDA 13.0, and the driver supports up to CUDA 12.4",
        GPU_12,
        ("ort-cuda", "trt-gpu"),
    ),
    "driver older than any": (
        replace(SOUND, machine=machine(driver=Driver(True, "11.4")), cuda_works=False),
        "onnxruntime-gpu 1.31.1 is built for CUDA 13.0, and the driver supports up to CUDA 11.4",
        "install NVIDIA's driver 580 or newer",
        ("ort-cuda", "trt-gpu"),
    ),
    "another CUDA runtime": (
        replace(
            SOUND,
            machine=machine(libraries=(replace(RUNTIME, version="12.9", cuda="12.9"), CUDNN)),
            cuda_works=False,
        ),
        "is built for CUDA 13, and the installed CUDA runtime is 12.9",
        GPU_13,
        ("ort-cuda",),
    ),
    "another CUDA runtime for an ONNX Runtime for CUDA 12": (
        replace(SOUND, ort_cuda="12.2", cuda_works=False),
        "is built for CUDA 12, and the installed CUDA runtime is 13.0",
        GPU_12,
        ("ort-cuda",),
    ),
    "another CUDA runtime, no GPU": (
        replace(
            without_gpu(), machine=machine(gpus=(), driver=Driver(), libraries=(RUNTIME,)), ort_cuda="12.2"
        ),
        "is built for CUDA 12, and the installed CUDA runtime is 13.0",
        GPU_12,
        ("ort-cuda", "trt-build", "trt-gpu"),
    ),
    "no CUDA runtime": (
        replace(SOUND, machine=machine(libraries=()), cuda_works=False, cuda_refusal=Missing("it fell back")),
        "is built for CUDA 13, and no CUDA runtime was found",
        GPU_13,
        ("ort-cuda",),
    ),
    "no cuDNN": (
        replace(SOUND, machine=machine(libraries=(RUNTIME,))),
        "onnxruntime-gpu 1.31.1 needs cuDNN 9 for CUDA 13, and no cuDNN was found",
        GPU_13,
        ("ort-cuda",),
    ),
    "cuDNN 8": (
        replace(SOUND, machine=machine(libraries=(RUNTIME, replace(CUDNN, version="8.9.7")))),
        "needs cuDNN 9 for CUDA 13, and the installed cuDNN is 8.9.7 for CUDA 13",
        GPU_13,
        ("ort-cuda",),
    ),
    "cuDNN for another CUDA": (
        replace(SOUND, machine=machine(libraries=(RUNTIME, replace(CUDNN, cuda="12.9")))),
        "needs cuDNN 9 for CUDA 13, and the installed cuDNN is 9.28.0 for CUDA 12",
        GPU_13,
        ("ort-cuda",),
    ),
    "a cuDNN that does not load": (
        replace(SOUND, faults={"cudnn": "killed by SIGSEGV"}),
        "an installed cuDNN does not load: killed by SIGSEGV",
        GPU_13,
        (),
    ),
    "the CUDA provider refuses": (
        replace(
            SOUND,
            cuda_works=False,
            cuda_refusal=Missing("it fell back: libx.so", mend='pip install "some[thing]"'),
        ),
        "it fell back: libx.so",
        'pip install "some[thing]"',
        ("ort-cuda",),
    ),
    "the CUDA provider crashes": (
        replace(SOUND, cuda_works=False, faults={"ort-cuda": "killed by SIGSEGV"}),
        "ONNX Runtime's CUDA provider does not answer: killed by SIGSEGV",
        GPU_13,
        ("ort-cuda",),
    ),
    "onnxruntime crashes": (
        replace(SOUND, cuda_works=False, providers=(), faults={"ort-cpu": "killed by SIGSEGV"}),
        "onnxruntime-gpu 1.31.1 does not load: killed by SIGSEGV",
        "pip install --force-reinstall onnxruntime-gpu",
        ("ort-cpu", "ort-cuda"),
    ),
    "onnxruntime's files are gone": (
        replace(
            SOUND, ort_package="", ort_cuda="", providers=(), cuda_works=False, missing=("onnxruntime-gpu",)
        ),
        "onnxruntime-gpu 1.31.1 is installed, but its files are missing",
        "pip install --force-reinstall --no-deps onnxruntime-gpu",
        ("ort-cpu", "ort-cuda"),
    ),
    "polygraphy's files are gone": (
        replace(SOUND, missing=("polygraphy",)),
        "polygraphy 0.53.6 is installed, but its files are missing",
        "pip install --force-reinstall --no-deps polygraphy",
        ("trt-gpu",),
    ),
    "onnx does not load": (
        replace(SOUND, faults={"contract": "onnx does not load: ImportError: x"}),
        "onnx does not load: ImportError: x",
        "pip install --force-reinstall onnx numpy ml_dtypes protobuf",
        ("contract", "symbolic", "reference"),
    ),
    "the evaluator does not load": (
        replace(SOUND, faults={"reference": "onnx.reference does not load: killed by SIGILL"}),
        "onnx.reference does not load: killed by SIGILL",
        "pip install --force-reinstall onnx numpy ml_dtypes protobuf",
        ("reference",),
    ),
    "metadata that cannot be read": (
        replace(SOUND, versions=versions(onnx=facts.UNREADABLE)),
        "the metadata of onnx cannot be read",
        "pip install --force-reinstall --no-deps onnx",
        (),
    ),
    "a driver that was replaced under a running kernel": (
        replace(
            without_gpu(Driver(True, "13.0", 803, "CUDA_ERROR_X")), nvml_status=18, nvml_fault="mismatch"
        ),
        "the kernel runs another version of NVIDIA's driver than the installed one (mismatch)",
        "reboot",
        ("ort-cuda", "trt-build", "trt-gpu"),
    ),
    "a driver that does not start": (
        without_gpu(Driver(True, "13.0", 999, "CUDA_ERROR_UNKNOWN, unknown error")),
        "NVIDIA's driver does not start: CUDA_ERROR_UNKNOWN, unknown error",
        "check nvidia-smi; reboot, or reinstall NVIDIA's driver",
        ("ort-cuda", "trt-build", "trt-gpu"),
    ),
    "a driver that hangs": (
        without_gpu(faults={"driver": "took more than 60 s and was stopped"}),
        "NVIDIA's driver does not answer: took more than 60 s and was stopped",
        "check nvidia-smi; reboot, or reinstall NVIDIA's driver",
        ("ort-cuda", "trt-build", "trt-gpu"),
    ),
    "TensorRT crashes": (
        replace(
            SOUND,
            trt=Missing("TensorRT does not answer: killed by SIGSEGV"),
            faults={"trt-build": "killed by SIGSEGV"},
        ),
        "TensorRT does not answer: killed by SIGSEGV",
        "pip install --force-reinstall tensorrt",
        ("trt-build", "trt-gpu"),
    ),
    "TensorRT does not load": (
        replace(
            SOUND,
            trt=Missing(
                "tensorrt is installed but does not load (OSError: a: b)",
                "not-loadable",
                package.INSTALL["tensorrt"],
            ),
        ),
        "tensorrt is installed but does not load (OSError: a: b)",
        'pip install "onnxfix[tensorrt]"',
        ("trt-build", "trt-gpu"),
    ),
    "TensorRT does not load and RTX does": (
        replace(
            SOUND,
            machine=machine(gpus=(ADA,)),
            trt=Choice("tensorrt-rtx", "1.7.1", "8.9", ADA),
            passed_over=Missing(
                "tensorrt is installed but does not load (x)",
                "not-loadable",
                'pip install "onnxfix[tensorrt]"',
            ),
        ),
        "tensorrt is installed but does not load (x)",
        'pip install "onnxfix[tensorrt]"',
        (),
    ),
    "TensorRT crashes and RTX does not": (
        replace(
            SOUND,
            machine=machine(gpus=(ADA,)),
            trt=Choice("tensorrt-rtx", "1.7.1", "8.9", ADA),
            passed_over=Missing("killed by SIGSEGV"),
            faults={"tensorrt": "killed by SIGSEGV"},
        ),
        "tensorrt does not answer: killed by SIGSEGV",
        "pip install --force-reinstall tensorrt",
        (),
    ),
    "TensorRT is too old": (
        replace(
            SOUND,
            trt=Missing("tensorrt 8.6.1 is too old, x", "version", 'pip install -U "onnxfix[tensorrt]"'),
        ),
        "tensorrt 8.6.1 is too old, x",
        'pip install -U "onnxfix[tensorrt]"',
        ("trt-build", "trt-gpu"),
    ),
    "a GPU that RTX does not serve": (
        replace(SOUND, trt=Choice("tensorrt-rtx", "1.7.1", "8.9", None, RTX_NOTE)),
        RTX_NOTE,
        'pip install "onnxfix[tensorrt]"',
        ("trt-gpu",),
    ),
    "TensorRT for a newer CUDA than the driver's": (
        replace(SOUND, machine=OLD_DRIVER),
        "tensorrt 11.1.0.106 is built for CUDA 13, and the driver supports up to CUDA 12.4",
        "pip uninstall -y tensorrt-cu13 tensorrt-cu13-bindings tensorrt-cu13-libs && pip install tensorrt-cu12",
        ("trt-gpu",),
    ),
    "TensorRT for a newer CUDA than a very old driver's": (
        replace(SOUND, machine=machine(driver=Driver(True, "11.8"))),
        "is built for CUDA 13, and the driver supports up to CUDA 11.8",
        "install NVIDIA's driver 580 or newer",
        ("trt-gpu",),
    ),
}

#: What is missing -> facts, a rung, its reason, its mend.
RUNG_CASES = {
    "no TensorRT provider": (
        replace(
            SOUND,
            provider_refusal=Missing("none is installed", "not-installed", 'pip install "onnxfix[ort-trt]"'),
        ),
        "ort-trt",
        "none is installed",
        'pip install "onnxfix[ort-trt]"',
    ),
    "a TensorRT provider that dies": (
        replace(SOUND, faults={"ort-trt": "killed by SIGSEGV"}),
        "ort-trt",
        "ONNX Runtime's TensorRT provider does not answer: killed by SIGSEGV",
        "",
    ),
    "another CUDA in the system, no GPU": (
        replace(
            without_gpu(),
            machine=machine(
                gpus=(), driver=Driver(), kernel_driver="", libraries=(replace(RUNTIME, wheel=False),)
            ),
            ort_cuda="12.2",
        ),
        "ort-cuda",
        "no NVIDIA driver found",
        "",
    ),
    "no driver": (without_gpu(), "ort-cuda", "no NVIDIA driver found", ""),
    "no GPU": (without_gpu(Driver(True, "13.0", 100, "x")), "trt-gpu", "NVIDIA's driver reports no GPU", ""),
    "hidden": (
        without_gpu(Driver(True, "13.0", 100, "x"), hidden="-1"),
        "ort-cuda",
        "CUDA_VISIBLE_DEVICES='-1' hides all GPUs",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "a container without its GPUs": (
        without_gpu(kernel_driver="580.159.04"),
        "trt-gpu",
        "the kernel runs NVIDIA's driver 580.159.04, but its library libcuda.so.1 was not found",
        "in a container: start it with its GPUs, such as docker run --gpus all",
    ),
    "the CPU's onnxruntime": (
        cpu_only(),
        "ort-cuda",
        "onnxruntime is built without CUDA",
        f"pip uninstall -y onnxruntime && {GPU_13}",
    ),
    "the CPU's onnxruntime under an old driver": (
        cpu_only(replace(SOUND, machine=OLD_DRIVER, trt=Missing("x"))),
        "ort-cuda",
        "onnxruntime is built without CUDA",
        f"pip uninstall -y onnxruntime && {GPU_12}",
    ),
    "the CPU's onnxruntime under a very old driver": (
        cpu_only(replace(SOUND, machine=machine(driver=Driver(True, "11.4")), trt=Missing("x"))),
        "ort-cuda",
        "onnxruntime is built without CUDA",
        "install NVIDIA's driver 580 or newer",
    ),
    "no onnxruntime": (
        replace(cpu_only(), versions=versions("onnxruntime-gpu"), ort_package="", providers=()),
        "ort-cuda",
        "onnxruntime-gpu is not installed",
        GPU_13,
    ),
    "no onnxruntime on the CPU": (
        replace(cpu_only(), versions=versions("onnxruntime-gpu"), ort_package="", providers=()),
        "ort-cpu",
        "onnxruntime is not installed",
        'pip install "onnxfix[cpu]"',
    ),
    "no TensorRT, and a GPU that RTX does not serve": (
        replace(SOUND, trt=Missing("neither is installed", "not-installed", package.INSTALL["tensorrt-rtx"])),
        "trt-gpu",
        "neither is installed",
        'pip install "onnxfix[tensorrt]"',
    ),
    "no TensorRT": (
        replace(
            SOUND,
            machine=machine(gpus=(ADA,)),
            trt=Missing("neither is installed", "not-installed", package.INSTALL["tensorrt-rtx"]),
        ),
        "trt-gpu",
        "neither is installed",
        'pip install "onnxfix[tensorrt-rtx]"',
    ),
    "TensorRT without a GPU": (
        replace(
            without_gpu(),
            trt=Missing(
                "the driver shows none", "no-gpu", package.INSTALL["tensorrt-rtx"], " builds without one"
            ),
        ),
        "trt-build",
        "the driver shows none",
        'pip install "onnxfix[tensorrt-rtx]"',
    ),
    "no polygraphy": (
        replace(SOUND, versions=versions("polygraphy")),
        "trt-gpu",
        "polygraphy, which runs engines, is not installed",
        'pip install "onnxfix[tensorrt]"',
    ),
}
