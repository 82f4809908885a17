"""What a result depends on, by content: the files of a task, and the sources and versions of what works on it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix._version import __version__
from onnxfix.errors import OnnxfixError
from onnxfix.files import apart, lazy
from onnxfix.files.saving import digest
from onnxfix.rewrite.packs import installed, setting
from onnxfix.verbs.fleet.paths import TaskFiles, beside, is_remote

if TYPE_CHECKING:
    from onnxfix.options import RunOptions
    from onnxfix.report.report import Report

_DRIVER = Path("/proc/driver/nvidia")
_PACKAGES = ("onnx", "numpy", "ml-dtypes", "ort-nightly", "tensorrt", "polygraphy")
"""Beginnings of the names of distributions whose version may change a finding or a verdict."""


def hash_file(path: str) -> str:
    """The SHA-256 of a local regular file, the store's fingerprint of a remote one; "" where it cannot be read, or
    changes meanwhile."""
    try:
        if is_remote(path):
            from onnxfix.verbs.fleet import remote  # lazy: URLs only

            return remote.fingerprint(path)
        before = lazy.stamp(Path(path))
        content = digest(path)
        return content if lazy.stamp(Path(path)) == before else ""
    except (OSError, ValueError, OnnxfixError):
        return ""


def hash_source(files: TaskFiles, known: Iterable[str] = ()) -> dict[str, str]:
    """The content of the model of a task and of its external data, by the names that the user knows.

    ``known`` are the files that it had earlier: of a model at a URL, only they say what its external data are.
    """
    return dict(files.fetched) or {path: hash_file(path) for path in _list_files(files.source, known)}


def hash_results(
    files: TaskFiles, options: RunOptions, report: Report, known: Iterable[str] = ()
) -> dict[str, str]:
    """The same for what the task wrote."""
    written: list[str] = []
    if report.output:
        written += _list_files(files.source if options.output.in_place else files.target, known)
    if report.engine and options.trt is not None:
        written.append(str(Path(options.trt.save_engine)))
    return {path: hash_file(path) for path in map(files.as_named, written)}


def _list_files(model: str, known: Iterable[str]) -> Iterator[str]:
    """A model and its external data, as far as the model can be read."""
    if is_remote(model):
        yield model
        yield from (url for url in known if url != model and url.startswith(beside(model, "")))
    else:
        yield from dict.fromkeys(str(file.path) for file in apart.files_named(Path(model)))


def versions() -> dict[str, str]:
    """Versions of packages, hashes of the sources of onnxfix and of the rule packs in use, and the visible GPUs, by
    name."""
    return _versions(setting())


@cache
def _versions(packs_setting: str) -> dict[str, str]:
    found = {"python": platform.python_version(), "onnxfix": __version__, "GPUs": _describe_gpus()}
    for distribution in metadata.distributions():
        name = (distribution.name or "").lower().replace("_", "-")
        if name.startswith(_PACKAGES):
            found.setdefault(name, distribution.version)
    packs = {pack.module.partition(":")[0] for pack in installed() if pack.loaded}
    for module in sorted({"onnxfix", *packs}):
        found[f"source of {module}"] = _hash_sources(module)
    return found


def _describe_gpus() -> str:
    """NVIDIA's driver and the models of GPU that this process may use.

    Some checks are skipped without a GPU, and TensorRT builds for the one that is present. Read from the Linux driver's
    files, since its library takes long to load; empty on other systems.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "hidden"
    lines: set[str] = set()
    for path in (_DRIVER / "version", *_DRIVER.glob("gpus/*/information")):
        with contextlib.suppress(OSError):
            lines.update(path.read_text(errors="replace").splitlines())
    return "\n".join(sorted(line for line in lines if line.startswith(("NVRM version:", "Model:"))))


def _hash_sources(module: str) -> str:
    """A hash of the sources of a module: of all of its top-level package, since rules share code. Of one that cannot be
    found, about which the registry warns, it is the hash of nothing."""
    result = hashlib.sha256()
    for name in dict.fromkeys((module.partition(".")[0], module)):
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # of a namespace package, the named package in it counts
            continue
        file = Path(spec.origin)
        sources = [file]
        if spec.submodule_search_locations:  # with the catalog of rules
            sources = sorted(path for path in file.parent.rglob("*") if path.suffix in (".py", ".json"))
        for path in sources:
            content = path.read_bytes()
            result.update(f"{path.relative_to(file.parent)}\0{len(content)}\0".encode() + content)
        break
    return result.hexdigest()
