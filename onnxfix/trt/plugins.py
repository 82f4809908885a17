"""Plugins: those that the full TensorRT ships, and those in the libraries that the user names with ``--plugins``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from onnxfix.errors import UsageError
from onnxfix.sandbox import one_line

#: The paths of the user's libraries, in the environment of the processes that use TensorRT.
VARIABLE = "ONNXFIX_TRT_PLUGINS"


def named() -> list[str]:
    """The user's libraries in this process."""
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def register(trt: Any, log: Any, reason: Callable[[], str] = lambda: "") -> tuple[str, ...]:
    """Register the plugins with the package's module ``trt``, once per process; returns the operators that the user's
    libraries serve. ``log`` is a TensorRT logger, ``reason`` returns the first error that it was told.

    Raises:
        UsageError: TensorRT does not load a library.
    """
    if trt.__name__ == "tensorrt":  # the other package ships none
        trt.init_libnvinfer_plugins(log, "")
    if not named():
        return ()
    _builder = trt.Builder(log)  # from here on the registry reports to the log
    registry = trt.get_plugin_registry()
    before = {one.name for one in registry.all_creators}
    for path in named():
        if registry.load_library(path) is None:
            why = one_line(reason()) or "it gives no reason"
            raise UsageError(f"--plugins {path}: TensorRT does not load this library: {why}")
    return tuple(sorted({one.name for one in registry.all_creators} - before))
