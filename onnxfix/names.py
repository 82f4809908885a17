"""Names that people type: targets and checks. Importing them loads nothing, so that a shell can complete them."""

from __future__ import annotations

import re
from typing import NamedTuple

RUNGS = ("contract", "symbolic", "reference", "ort-cpu", "ort-cuda", "trt-build", "trt-network", "trt-gpu")
"""The checks, in the order in which they run, all by default. CONTRIBUTING.md, "Adding a check", names the other places
that know them."""

PYTORCH = "pytorch"
"""The check of a model that comes from PyTorch in the same run, beside ``RUNGS``: the module's own outputs."""


class Releases(NamedTuple):
    """A target: its title, and its oldest and newest release by the parts of a version that they have: (10,) is every
    10.x. ``package`` is NVIDIA's name of the product."""

    title: str
    oldest: tuple[int, ...]
    newest: tuple[int, ...]
    package: str = "tensorrt"

    def contain(self, version: tuple[int, ...]) -> bool:
        """Whether a version of this product is one of them."""
        return version[: len(self.oldest)] >= self.oldest and version[: len(self.newest)] <= self.newest


TARGETS = {
    "trt8.4": Releases("TensorRT 8.0 to 8.4.1", (8, 0), (8, 4, 1)),
    "trt8.6": Releases("TensorRT 8.6", (8, 6), (8, 6)),
    "trt10.6": Releases("TensorRT 10.0 to 10.13", (10, 0), (10, 13)),
    "trt10": Releases("TensorRT 10.14 or later", (10, 14), (10,)),
    "trt11": Releases("TensorRT 11.x", (11,), (11,)),
    "rtx": Releases("TensorRT-RTX 1.x", (1,), (1,), "tensorrt-rtx"),
}
"""The product lines of TensorRT that a model can be made for."""
DEFAULT_TARGET = "trt11"

_SPELLING = r"(?P<product>(?:tensorrt|trt)?[-_ ]*(?P<rtx>rtx)?)[-_ ]*v?(?P<version>\d+(?:\.\d+)*)?(?:\.x)?"


def target_of(text: str) -> str | None:
    """The target that somebody means by ``TRT10``, ``10.3``, ``trt-10``, ``TensorRT 8.6.1`` or ``rtx1.7``; None if it
    is none of them. A 10 without more is the newest."""
    if text.strip().lower() in TARGETS:
        return text.strip().lower()
    spelled = re.fullmatch(_SPELLING, text.strip(), re.IGNORECASE)
    if spelled is None:
        return None
    package = "tensorrt-rtx" if spelled["rtx"] else "tensorrt"
    if package == "tensorrt" and f"trt{spelled['version']}" in TARGETS:
        return f"trt{spelled['version']}"
    lines = {name: line for name, line in TARGETS.items() if line.package == package}
    if spelled["version"] is None:
        return next(iter(lines)) if spelled["rtx"] else None
    version = tuple(int(part) for part in spelled["version"].split("."))
    return next((name for name, line in lines.items() if line.contain(version)), None)
