"""The mark of tests that ask the real TensorRT-RTX, and how they ask it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import ModelProto

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import engine as trt_run
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.package import select_for_polygraphy
from onnxfix.tensorrt.records import TrtBuild
from support.patience import PATIENCE

INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("tensorrt_rtx", "polygraphy"))
"""Whether all of the extra ``tensorrt-rtx`` is installed."""
REAL = pytest.mark.trt
"""The mark of tests that need it; conftest.py skips them where it is not installed."""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


RELEASE = importlib.metadata.version("tensorrt-rtx") if INSTALLED else ""
"""The version of tensorrt-rtx that is installed; "" for none."""


def older_than(release: str) -> bool:
    """Whether the installed TensorRT-RTX is older than a release, such as "1.6"."""
    return _numbers(RELEASE) < _numbers(release)


def within(first: str, later: str) -> bool:
    """Whether the installed TensorRT-RTX is of release ``first`` or later, and before ``later``."""
    return not older_than(first) and older_than(later)


def since(release: str, what: str) -> pytest.MarkDecorator:
    """The mark of what cannot be asked of an older TensorRT-RTX, since that does not have ``what``."""
    return pytest.mark.skipif(
        bool(RELEASE) and older_than(release),
        reason=f"TensorRT-RTX {RELEASE} has no {what}: that came with {release}",
    )


FACT = pytest.mark.skipif(
    bool(RELEASE) and older_than("1.7"),
    reason=f"says what TensorRT-RTX 1.7 refuses, misreads and builds, as it was measured; {RELEASE} is installed",
)
"""The mark of tests whose facts are those of the TensorRT-RTX that they were measured with, and not of older ones."""


def built(worker: Worker, model: ModelProto, folder: Path, **options: Any) -> TrtBuild:
    """What its parser and builder make of a model, which is written into ``folder``."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return attempt(worker, path, package="tensorrt-rtx", timeout=PATIENCE, **options)


# -- in the sandbox


def sandboxed() -> Any:
    """The package, chosen for Polygraphy too."""
    select_for_polygraphy("tensorrt-rtx")
    import tensorrt_rtx  # lazy: only in the sandbox

    return tensorrt_rtx


def find_cuda_runtime(path: str, site: str) -> str:
    """What Polygraphy loads for the CUDA runtime when ``tensorrt.engine`` loads an engine and pip's packages are in
    ``site``, or why it finds none. What else might be installed is out of its sight."""
    sandboxed()
    import polygraphy.backend.trt  # lazy: only in the sandbox
    from polygraphy.cuda import cuda  # lazy: only in the sandbox

    real = cuda.util.find_in_dirs
    cuda.util.find_in_dirs = lambda name, folders: real(
        name, [folder for folder in folders if folder.startswith(site)]
    )
    loaded: list[str] = []

    def load_library(file: str) -> Any:
        if not os.path.exists(file):
            raise OSError(f"{file}: cannot open shared object file")
        loaded.append(file)
        return SimpleNamespace()

    cuda.ctypes = SimpleNamespace(CDLL=load_library)
    polygraphy.backend.trt.TrtRunner = lambda engine: SimpleNamespace(activate=cuda.wrapper)
    sys.path.append(site)
    return trt_run.load("one", path, package="tensorrt-rtx") or os.path.relpath(loaded[-1], site)


def sizes_of_types() -> dict[str, float | None]:
    """Bytes of an element by the real package's name of the type; None where it does not say."""
    return {name: getattr(kind, "itemsize", None) for name, kind in sandboxed().DataType.__members__.items()}
