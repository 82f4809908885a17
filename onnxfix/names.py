"""Names that people type: targets and checks. Importing them loads nothing, so that a shell can complete them."""

from __future__ import annotations

from typing import NamedTuple

RUNGS = (
    *("contract", "symbolic", "reference", "ort-cpu", "ort-cuda", "trt-build", "trt-network", "trt-gpu"),
    "ort-trt",
)
"""The checks, in the order in which they run, all but the last one by default. CONTRIBUTING.md, "Adding a check", names
the other places that know them."""

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
    "trt10.6": Releases("TensorRT 10.6", (10, 6), (10, 6)),
    "trt10": Releases("TensorRT 10.15 or later", (10, 15), (10,)),
    "trt11": Releases("TensorRT 11.x", (11, 2), (11,)),
    "rtx": Releases("TensorRT-RTX 1.x", (1,), (1,), "tensorrt-rtx"),
}
"""The targets that tables and completion name: three releases, the newest TensorRT 10 and 11, and TensorRT-RTX. Other
releases are targets too."""
DEFAULT_TARGET = "trt11"
