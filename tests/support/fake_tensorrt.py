"""A ``tensorrt`` for machines without a GPU: TensorRT-RTX with the habits of the full package's bindings 10.6.

``install`` puts it where the sandbox's children find it. What it imitates was seen with tensorrt 10.6.0 and numpy 2:
weights come as arrays with strides of 0, ``ErrorCode`` has a method in the place of ``name``, plugins have to be
registered, and a builder keeps a timing cache. Engines are built for compute capability 8.9, and none is executed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SOURCE = """
import os

import numpy as np
import tensorrt_rtx as rtx
from tensorrt_rtx import *

__version__ = "10.6.0"
TIMINGS = b"timings"
REGISTERED = []


def without_strides(kind, name):
    real = getattr(kind, name).fget

    def read(layer):
        array = real(layer)
        if not isinstance(array, np.ndarray) or array.size < 2:
            return array
        return np.lib.stride_tricks.as_strided(array.reshape(-1), (array.size,), (0,))

    setattr(kind, name, property(read))


for kind, name in (
    (rtx.IConstantLayer, "weights"),
    (rtx.IConvolutionLayer, "kernel"),
    (rtx.IConvolutionLayer, "bias"),
):
    without_strides(kind, name)
rtx.ErrorCode.name = lambda code: str(code)


def init_libnvinfer_plugins(logger, namespace):
    REGISTERED.append(namespace)
    return rtx.init_libnvinfer_plugins(logger, namespace)


class OnnxParser(rtx.OnnxParser):
    def parse_from_file(self, path):
        assert REGISTERED, "no plugin was found in the plugin registry"
        return super().parse_from_file(path)


class Cache:
    def __init__(self, data):
        self.data = bytes(data)

    def serialize(self):
        return self.data + TIMINGS


class Config:
    def __init__(self, config):
        self.real = config
        config.num_compute_capabilities = 1
        config.set_compute_capability(rtx.ComputeCapability.SM89, 0)

    def __getattr__(self, name):
        return getattr(self.real, name)

    def create_timing_cache(self, data):
        with open(os.path.join(os.path.dirname(__file__), "caches"), "a") as file:
            print(len(data), file=file)
        return Cache(data)

    def set_timing_cache(self, cache, ignore_mismatch):
        return True


class Builder(rtx.Builder):
    def create_builder_config(self):
        return Config(super().create_builder_config())

    def build_serialized_network(self, network, config):
        return super().build_serialized_network(network, config.real)
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make the fake importable in every sandbox that is started from now on; this process has no ``tensorrt``.

    Returns the file that gets a line for each timing cache that a builder is given: how many bytes it has.
    """
    package = folder / "site" / "tensorrt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), *([before] if before else [])]))
    return package / "caches"
