"""Which of NVIDIA's two packages is used here, ``tensorrt`` or ``tensorrt_rtx``, and what this machine allows.

``tensorrt`` builds for the GPU that it runs on and cannot do without one. ``tensorrt_rtx`` also builds ahead of time
for a compute capability, without any GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal

from onnxfix.errors import UsageError
from onnxfix.sandbox import one_line

Package = Literal["auto", "tensorrt", "tensorrt-rtx"]
PACKAGES = ("auto", "tensorrt", "tensorrt-rtx")
INSTALL = {name: f'pip install "onnxfix[{name}]"' for name in PACKAGES[1:]}
DEFAULT_CAPABILITY = "8.9"
#: Strongly typed networks with local functions and node names in the parser's errors.
OLDEST_TENSORRT = 10
_CU_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, cuda.h


@dataclass(frozen=True)
class Gpu:
    """A GPU that the driver shows. ``capability`` is its compute capability, such as "8.9"."""

    name: str
    capability: str


@dataclass(frozen=True)
class Choice:
    """The package to build with. ``capability`` is what engines are built for; ``gpu`` is None where they are built
    ahead of time for a GPU that is not here (or not served: ``note`` says so) and cannot be executed."""

    package: Literal["tensorrt", "tensorrt-rtx"]
    version: str
    capability: str
    gpu: Gpu | None = None
    note: str = ""


@dataclass(frozen=True)
class Missing:
    """No package can be used; ``reason`` is one line that ends with what to do."""

    reason: str


def module_name(package: str) -> str:
    """The module of a package: ``tensorrt-rtx`` is imported as ``tensorrt_rtx``."""
    return package.replace("-", "_")


def missing(package: Package = "auto") -> str | None:
    """Why no TensorRT can be used here, as far as that shows without loading one; None when one is installed."""
    _known(package)
    wanted = PACKAGES[1:] if package == "auto" else (package,)
    if any(importlib.util.find_spec(module_name(name)) is not None for name in wanted):
        return None
    if package == "auto":
        return f"neither tensorrt nor tensorrt-rtx is installed: {INSTALL['tensorrt-rtx']}"
    return f"{package} is not installed: {INSTALL[package]}"


def choose(package: Package = "auto", compute_capability: str | None = None) -> Choice | Missing:
    """Choose the package; ``auto`` takes tensorrt where it loads and serves this GPU, else tensorrt-rtx.

    ``compute_capability`` ("8.9", "sm89") is what to build for; without it the GPU's own, else 8.9. Loads NVIDIA's
    libraries: call it in the sandbox.

    Raises:
        UsageError: the package or the compute capability does not exist.
    """
    _known(package)
    wanted = normal_capability(compute_capability) if compute_capability else None
    cards = gpus()
    if package != "auto":
        return _CHOOSERS[package](cards, wanted)
    reasons = []
    for name in PACKAGES[1:]:
        found = _CHOOSERS[name](cards, wanted)
        if isinstance(found, Choice):
            return found
        reasons.append(found.reason)
    # What is not installed at all is no news beside a reason that a user can act on.
    told = missing("auto") or next((r for r in reversed(reasons) if "is not installed" not in r), reasons[-1])
    return Missing(told)


def _known(package: str) -> None:
    if package not in PACKAGES:
        raise UsageError(f"there is no TensorRT package {package!r}; choose one of {', '.join(PACKAGES)}")


def load(package: str) -> Any:
    """Import the package's module.

    Raises:
        UsageError: it is not installed.
        Exception: whatever NVIDIA's loader raises.
    """
    if importlib.util.find_spec(module_name(package)) is None:
        raise UsageError(f"{package} is not installed: {INSTALL[package]}")
    return importlib.import_module(module_name(package))


def _loaded(package: str) -> tuple[Any, str]:
    """The module, and why there is none."""
    try:
        return load(package), ""
    except UsageError as error:
        return None, str(error)
    except Exception as error:  # the package without its libraries, or with those of another CUDA
        return None, f"{package} is installed but does not load ({one_line(error, 160)}): {INSTALL[package]}"


def _tensorrt(cards: list[Gpu], wanted: str | None) -> Choice | Missing:
    module, reason = _loaded("tensorrt")
    if module is None:
        return Missing(reason)
    version = str(module.__version__)
    instead = f"{INSTALL['tensorrt-rtx']} builds without one"
    if int(version.split(".")[0]) < OLDEST_TENSORRT:
        return Missing(
            f'tensorrt {version} is too old, onnxfix needs {OLDEST_TENSORRT}.0: pip install -U "onnxfix[tensorrt]"'
        )
    if not cards:
        return Missing(f"tensorrt builds on the GPU that it is for, and the driver shows none: {instead}")
    card = cards[0]
    if wanted is not None and wanted != card.capability:
        return Missing(
            f"tensorrt builds for this GPU's compute capability {card.capability} only, not for {wanted}: "
            f"{INSTALL['tensorrt-rtx']} builds ahead of time"
        )
    if _number(card.capability) < (7, 5):
        return Missing(
            f"tensorrt {version} does not serve {card.name} (compute capability {card.capability})"
        )
    return Choice("tensorrt", version, card.capability, card)


def _rtx(cards: list[Gpu], wanted: str | None) -> Choice | Missing:
    module, reason = _loaded("tensorrt-rtx")
    if module is None:
        return Missing(reason)
    version = str(module.__version__)
    own = next((card for card in cards if rtx_serves(card.capability)), None)
    note = ""
    if cards and own is None:
        note = (
            f"TensorRT-RTX does not run on {cards[0].name} (compute capability {cards[0].capability}): "
            "it serves 7.5, 8.x and 12.x. Engines are built ahead of time only"
        )
    default = DEFAULT_CAPABILITY
    if own is not None and _member(module, own.capability) is not None:
        default = own.capability
    capability = wanted or default
    if _member(module, capability) is None:
        have = ", ".join(capabilities(module))
        raise UsageError(f"tensorrt-rtx {version} cannot build for {capability}; it builds for {have}")
    runs = own if own is not None and own.capability == capability else None
    return Choice("tensorrt-rtx", version, capability, runs, note)


_CHOOSERS = {"tensorrt": _tensorrt, "tensorrt-rtx": _rtx}


def rtx_serves(capability: str) -> bool:
    """Whether TensorRT-RTX executes on a GPU of this compute capability (its own message names 7.5, 8.x, 12.x)."""
    major, minor = _number(capability)
    return (major, minor) == (7, 5) or major in (8, 12)


def normal_capability(text: str) -> str:
    """``8.9`` for "8.9", "89", "sm89" and "sm_89".

    Raises:
        UsageError: it is none of these.
    """
    match = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)", text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is no compute capability; write it like 8.9")
    return f"{int(match[1])}.{match[2]}"


def _number(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)


def _member(module: Any, capability: str) -> Any:
    return module.ComputeCapability.__members__.get("SM" + capability.replace(".", ""))


def member(module: Any, capability: str) -> Any:
    """The package's ``ComputeCapability`` of that number.

    Raises:
        UsageError: it builds for no such GPU.
    """
    found = _member(module, normal_capability(capability))
    if found is None:
        raise UsageError(
            f"this TensorRT cannot build for {capability}; it builds for {', '.join(capabilities(module))}"
        )
    return found


def capabilities(module: Any) -> list[str]:
    """The compute capabilities that tensorrt_rtx builds for, such as "8.9"."""
    names = (name[2:] for name in module.ComputeCapability.__members__ if name.startswith("SM"))
    return [f"{name[:-1]}.{name[-1]}" for name in names]


def gpus() -> list[Gpu]:
    """The GPUs that NVIDIA's driver shows; none without a driver. Reads the driver itself: no package is needed."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_gpu(driver, number) for number in range(count.value)]


def _gpu(driver: Any, number: int) -> Gpu:
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(128)
    driver.cuDeviceGet(ctypes.byref(device), number)
    driver.cuDeviceGetName(name, len(name), device)
    parts = []
    for attribute in _CU_COMPUTE_CAPABILITY:
        value = ctypes.c_int(0)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        parts.append(str(value.value))
    return Gpu(name.value.decode("utf-8", "replace"), ".".join(parts))


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
