"""Which of NVIDIA's two packages is used here, ``tensorrt`` or ``tensorrt_rtx``, and what this machine allows.

``tensorrt`` builds for the GPU that it runs on and cannot do without one. ``tensorrt_rtx`` also builds ahead of time
for a compute capability, without any GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from onnxfix.errors import UsageError
from onnxfix.runtime.nvidia import Gpu, Missing, gpus
from onnxfix.runtime.sandbox import one_line
from onnxfix.tensorrt.log import logger_of
from onnxfix.tensorrt.messages import means

Package = Literal["auto", "tensorrt", "tensorrt-rtx"]
MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
PACKAGES = ("auto", *MODULES)
INSTALL = {name: f'pip install "onnxfix[{name}]"' for name in MODULES}
DEFAULT_CAPABILITY = "8.9"
#: Environment of processes whose GPU kernels must not round float32 operands to TF32. In TensorRT-RTX 1.4 to 1.6 the
#: builder's flag alone does not turn it off. CUDA reads the variable when it is loaded, and TensorRT-RTX loads no
#: engine that was built under another value: the process that builds needs it as much as the one that executes.
TF32_OFF = {"NVIDIA_TF32_OVERRIDE": "0"}
#: Strongly typed networks with local functions and node names in the parser's errors.
OLDEST_TENSORRT = 10


@dataclass(frozen=True)
class Choice:
    """The package to build with. ``capability`` is what engines are built for; ``gpu`` is None where they are built
    ahead of time for a GPU that is not here, or that TensorRT loads no engine on (``note`` says so). ``served`` are the
    operators of the user's plugins. ``newest`` is the newest capability that it builds for, "" where none may be
    chosen."""

    package: Literal["tensorrt", "tensorrt-rtx"]
    version: str
    capability: str
    gpu: Gpu | None = None
    note: str = ""
    served: tuple[str, ...] = ()
    newest: str = ""


def module_name(package: str) -> str:
    """The module of a package: ``tensorrt-rtx`` is imported as ``tensorrt_rtx``."""
    return package.replace("-", "_")


def product(package: str, version: str) -> str:
    """``TensorRT-RTX 1.7.1`` for tensorrt-rtx 1.7.1.116."""
    name = "TensorRT-RTX" if package == "tensorrt-rtx" else "TensorRT"
    return f"{name} {'.'.join(version.split('.')[:3])}"


def missing(package: Package = "auto") -> str | None:
    """Why no TensorRT can be used here, as far as that shows without loading one; None when one is installed."""
    absent = not_installed(package)
    return absent.reason if absent is not None else None


def not_installed(package: str = "auto") -> Missing | None:
    """The same as data.

    Raises:
        UsageError: there is no such package.
    """
    if package not in PACKAGES:
        raise UsageError(f"unknown TensorRT package {package!r}; choose from {', '.join(PACKAGES)}")
    wanted = PACKAGES[1:] if package == "auto" else (package,)
    if any(importlib.util.find_spec(module_name(name)) is not None for name in wanted):
        return None
    if package == "auto":
        reason = "neither tensorrt nor tensorrt-rtx is installed"
        return Missing(reason, "not-installed", INSTALL["tensorrt-rtx"])
    return Missing(f"{package} is not installed", "not-installed", INSTALL[package])


def choose(package: Package = "auto", compute_capability: str | None = None) -> Choice | Missing:
    """Choose the package; ``auto`` takes tensorrt where it loads and serves this GPU, else tensorrt-rtx.

    ``compute_capability`` ("8.9", "sm89") is what to build for; without it the GPU's own, else 8.9. Loads NVIDIA's
    libraries: call it in the sandbox.

    Raises:
        UsageError: the package or the compute capability does not exist.
    """
    absent = not_installed(package)
    wanted = normal_capability(compute_capability) if compute_capability else None
    cards = gpus()
    if package != "auto":
        return _CHOOSERS[package](cards, wanted)
    lacks: list[Missing] = []
    for name in PACKAGES[1:]:
        found = _CHOOSERS[name](cards, wanted)
        if isinstance(found, Choice):
            return found
        lacks.append(found)
    if absent is not None:
        return absent
    # A package that is not installed matters less than a reason that a user can act on.
    return next((one for one in reversed(lacks) if one.cause != "not-installed"), lacks[-1])


def load(package: str) -> Any:
    """Import the package's module.

    Raises:
        UsageError: it is not installed.
        Exception: whatever NVIDIA's loader raises.
    """
    absent = not_installed(package)
    if absent is not None:
        raise UsageError(absent.reason)
    return importlib.import_module(module_name(package))


def _loaded(package: str) -> tuple[Any, Missing]:
    """The module, or why there is none."""
    try:
        return load(package), Missing("")
    except UsageError as error:
        return None, not_installed(package) or Missing(str(error), "not-installed")
    except Exception as error:  # the package without its libraries, or with those of another CUDA
        if means("memory", [str(error)]):  # installing it again would not help
            return None, Missing(one_line(error, 160), "memory")
        reason = f"{package} is installed but does not load ({one_line(error, 160)})"
        return None, Missing(reason, "not-loadable", INSTALL[package])


def _tensorrt(cards: list[Gpu], wanted: str | None) -> Choice | Missing:
    module, absent = _loaded("tensorrt")
    if module is None:
        return absent
    version = str(module.__version__)
    if int(version.split(".")[0]) < OLDEST_TENSORRT:
        what = f"tensorrt {version} is too old, onnxfix needs {OLDEST_TENSORRT}.0"
        return Missing(what, "version", 'pip install -U "onnxfix[tensorrt]"')
    if not cards:
        what = "tensorrt builds only for a GPU of this machine, and the driver shows none"
        return Missing(what, "no-gpu", INSTALL["tensorrt-rtx"], " builds without one")
    card = cards[0]
    if wanted is not None and wanted != card.capability:
        what = f"tensorrt builds for this GPU's compute capability {card.capability} only, not for {wanted}"
        return Missing(what, "gpu-not-served", INSTALL["tensorrt-rtx"], " builds ahead of time")
    if _number(card.capability) < (7, 5):
        what = f"tensorrt {version} does not support {card.name} (compute capability {card.capability})"
        return Missing(what, "gpu-not-served")
    return Choice("tensorrt", version, card.capability, card)


def _rtx(cards: list[Gpu], wanted: str | None) -> Choice | Missing:
    module, absent = _loaded("tensorrt-rtx")
    if module is None:
        return absent
    version = str(module.__version__)
    card = next(iter(cards), None)
    refused = _refused(module) if card is not None and wanted in (None, card.capability) else ""
    if card is not None and not refused and wanted in (None, card.capability):
        return Choice("tensorrt-rtx", version, card.capability, card)
    note = ""
    if card is not None and refused:
        note = (
            f"TensorRT-RTX {version} loads no engine on {card.name} (compute capability {card.capability}): "
            f"{refused}. Engines are built ahead of time only"
        )
    default = DEFAULT_CAPABILITY
    if card is not None and _member(module, card.capability) is not None:
        default = card.capability
    capability = wanted or default
    if _member(module, capability) is None:
        have = ", ".join(capabilities(module))
        raise UsageError(f"tensorrt-rtx {version} cannot build for {capability}; it builds for {have}")
    newest = "" if wanted else max(capabilities(module), key=_number)
    return Choice("tensorrt-rtx", version, capability, None, note, newest=newest)


def _refused(module: Any) -> str:
    """Why TensorRT loads no engine on the GPU that is here; "" where it loads a small one."""
    log, received = logger_of(module)
    received.clear()
    try:
        if loads_trial(module, log):
            return ""
        said = received.first_error
    except Exception as error:  # whatever NVIDIA's bindings raise
        said = str(error)
    return one_line(said or "no reason given", 300)


_CHOOSERS = {"tensorrt": _tensorrt, "tensorrt-rtx": _rtx}


def normal_capability(text: str) -> str:
    """``8.9`` for "8.9", "89", "sm89" and "sm_89".

    Raises:
        UsageError: it is none of these.
    """
    match = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)", text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is not a compute capability; write it like 8.9")
    return f"{int(match[1])}.{match[2]}"


def _number(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)


def _member(module: Any, capability: str) -> Any:
    return module.ComputeCapability.__members__.get("SM" + capability.replace(".", ""))


def member(module: Any, capability: str) -> Any:
    """The package's ``ComputeCapability`` of that number: ``CURRENT`` for that of the GPU that is here.

    Raises:
        UsageError: it builds for no such GPU.
    """
    number = normal_capability(capability)
    found = _member(module, number)
    if found is None and any(card.capability == number for card in gpus()[:1]):
        found = module.ComputeCapability.CURRENT
    if found is None:
        raise UsageError(
            f"this TensorRT cannot build for {capability}; it builds for {', '.join(capabilities(module))}"
        )
    return found


def capabilities(module: Any) -> list[str]:
    """The compute capabilities that tensorrt_rtx builds for, such as "8.9"."""
    names = (name[2:] for name in module.ComputeCapability.__members__ if name.startswith("SM"))
    return [f"{name[:-1]}.{name[-1]}" for name in names]


def select_for_polygraphy(package: str) -> None:
    """Have Polygraphy use this package. It reads the variable once: call this before it is imported.

    Raises:
        RuntimeError: it has been imported for the other package.
    """
    rtx = package == "tensorrt-rtx"
    os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1" if rtx else "0"
    config = importlib.import_module("polygraphy.config")
    if bool(config.USE_TENSORRT_RTX) != rtx:
        raise RuntimeError(f"this process uses Polygraphy with the other package, not with {package}")


# -- a small engine that shows whether TensorRT builds and loads engines for this machine's GPU, and whether float32
# products are computed in TF32. No table decides that: TensorRT-RTX 1.4 to 1.6 also execute engines on compute
# capability 9.0, which NVIDIA does not list, and 1.7 does not.

#: Compute capabilities that NVIDIA's support matrix lists, by package (TensorRT 10 and 11; TensorRT-RTX 1.4 to 1.7).
LISTED = {
    "tensorrt": ("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"),
    "tensorrt-rtx": ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1"),
}
#: float32 holds this next to 1, TF32 with its 10 bits of fraction does not.
_FINE = 2.0**-12
#: Rows and columns: enough for the kernels that use tensor cores.
_SIZE = 64


def listed(package: str, capability: str) -> bool:
    """Whether NVIDIA lists a compute capability ("8.9") for a package."""
    return capability in LISTED[package]


def trial_model() -> bytes:
    """An ONNX model of one MatMul: float32 ``a`` and ``b`` of shape (64, 64) to ``y`` of the same shape."""
    import onnx  # lazy: start-up

    make = onnx.helper
    a, b, y = (make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [_SIZE] * 2) for name in "aby")
    graph = make.make_graph([make.make_node("MatMul", ["a", "b"], ["y"])], "trial", [a, b], [y])
    opset = make.make_opsetid("", 13)
    return bytes(make.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())


def trial_feed() -> dict[str, Any]:
    """Inputs whose product shows how many bits of the operands were used."""
    import numpy as np  # lazy: may be broken where `onnxfix doctor` imports this module

    return {"a": np.full((_SIZE, _SIZE), 1 + _FINE, np.float32), "b": np.eye(_SIZE, dtype=np.float32)}


def trial_precision(outputs: Mapping[str, Any]) -> str:
    """What the product was computed in: "float32", "tf32", or "" where it is neither's result."""
    import numpy as np  # lazy: as above

    value = np.asarray(outputs["y"]) - np.float32(1)
    if np.all(value == _FINE):
        return "float32"
    return "tf32" if np.all(value == 0) else ""


def loads_trial(trt: Any, log: Any) -> bool:
    """Whether the package's module ``trt`` builds an engine for the GPU that is here, and loads it.

    Errors go to ``log``, a TensorRT logger. Needs a driver; call it in the sandbox.
    """
    builder = trt.Builder(log)
    network = builder.create_network(0) if builder else None
    if network is None or not trt.OnnxParser(network, log).parse(trial_model()):
        return False
    engine = builder.build_serialized_network(network, builder.create_builder_config())
    return engine is not None and trt.Runtime(log).deserialize_cuda_engine(engine) is not None
