"""What a result depends on besides the model and the options: the sources of the rules and the versions of packages."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from onnxfix._version import __version__
from onnxfix.packs import installed, setting

PACKAGES = (
    "onnx",
    "numpy",
    "ml_dtypes",
    "onnxruntime",
    *(
        f"onnxruntime-{kind}"
        for kind in ("gpu", "directml", "openvino", "qnn", "rocm", "migraphx", "training")
    ),
    "ort-nightly",
    "ort-nightly-gpu",
    *(f"tensorrt{rtx}{cuda}" for rtx in ("", "-rtx") for cuda in ("", "-cu12", "-cu13")),
    "polygraphy",
    "onnxsim",
    "onnx-graphsurgeon",
)
"""Distributions whose version may change a finding or a verdict."""

_DRIVER = Path("/proc/driver/nvidia")


def versions() -> dict[str, str]:
    """Versions of packages, hashes of the sources of onnxfix and of the rule packs in use, and the visible GPUs, by
    name."""
    return _versions(setting())


@cache
def _versions(packs_setting: str) -> dict[str, str]:
    found = {"python": platform.python_version(), "onnxfix": __version__, "GPUs": _gpus()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    packs = {pack.module.partition(":")[0] for pack in installed() if pack.loaded}
    for module in sorted({"onnxfix", *packs}):
        found[f"source of {module}"] = _hash(_sources(module))
    return found


def _gpus() -> str:
    """NVIDIA's driver and the models of GPU that this process may use.

    Some rungs are skipped without a GPU, and TensorRT builds for the one that is present. Read from the Linux driver's
    files, since its library takes long to load; empty on other systems.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "hidden"
    lines: set[str] = set()
    for path in (_DRIVER / "version", *_DRIVER.glob("gpus/*/information")):
        with contextlib.suppress(OSError):
            lines.update(path.read_text(errors="replace").splitlines())
    return "\n".join(sorted(line for line in lines if line.startswith(("NVRM version:", "Model:"))))


def _sources(module: str) -> Iterator[tuple[str, Path]]:
    """(name, file) of the sources of a module: all of its top-level package, since rules share code."""
    for name in dict.fromkeys((module.partition(".")[0], module)):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # a broken rule pack: the registry warns about it
            return
        if spec is None:
            return
        if spec.origin is None:  # a namespace package: hash the named package in it only
            continue
        file = Path(spec.origin)
        root = file.parent
        files = sorted(root.rglob("*.py")) if spec.submodule_search_locations else [file]
        yield from ((str(one.relative_to(root)), one) for one in files)
        return


def _hash(files: Iterator[tuple[str, Path]]) -> str:
    found = hashlib.sha256()
    for name, path in files:
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        found.update(f"{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()
