"""The GPUs that NVIDIA's driver reports, and a missing package as data."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

from onnxfix.runtime.causes import Cause

_CU_COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, cuda.h


@dataclass(frozen=True)
class Gpu:
    """A GPU that the driver shows. ``capability`` is its compute capability, such as "8.9"."""

    name: str
    capability: str


@dataclass(frozen=True)
class Missing:
    """No package can be used: the reason (``what``), the same as data (``cause``), and the command that fixes it
    (``mend``), if one does. ``more`` is text after the command."""

    what: str
    cause: Cause = ""
    mend: str = ""
    more: str = ""

    @property
    def reason(self) -> str:
        """One line that ends with what to do."""
        return f"{self.what}: {self.mend}{self.more}" if self.mend else self.what


def driver_there() -> bool:
    """Whether there may be a GPU: a guess that loads nothing, for what is only worth its time with one."""
    return sys.platform == "win32" or os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")


def gpus() -> list[Gpu]:
    """The GPUs that NVIDIA's driver shows; none without a driver. Reads the driver itself: no package is needed."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    cards = []
    for number in range(count.value):
        device, name = ctypes.c_int(0), ctypes.create_string_buffer(128)
        driver.cuDeviceGet(ctypes.byref(device), number)
        driver.cuDeviceGetName(name, len(name), device)
        version = [ctypes.c_int(0) for _ in _CU_COMPUTE_CAPABILITY]
        for value, attribute in zip(version, _CU_COMPUTE_CAPABILITY, strict=True):
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability = ".".join(str(value.value) for value in version)
        cards.append(Gpu(name.value.decode("utf-8", "replace"), capability))
    return cards
