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
from onnxfix.files.sharing import digest
from onnxfix.fleet import paths
from onnxfix.packs import installed, setting

if TYPE_CHECKING:
    from onnxfix.fleet.paths import TaskFiles
    from onnxfix.fleet.work import Task
    from onnxfix.report.report import Report

_DRIVER = Path("/proc/driver/nvidia")
_PACKAGES = ("onnx", "numpy", "ml-dtypes", "ort-nightly", "tensorrt", "polygraphy")
"""Beginnings of the names of distributions whose version may change a finding or a verdict."""


def hash_files(task: Task, report: Report, known: Iterable[str]) -> dict[str, str]:
    """The content that each file of a task with this report has now: what the task read, and what it wrote.

    ``known`` are the files that it had. Of a model at a URL, only they say what its external data are.
    """
    return {path: hash_file(path) for path in _list_files(task, task.source, task.target, report, known)}


def hash_file(path: str) -> str:
    """The SHA-256 of a local regular file, the store's fingerprint of a remote one; "" where it cannot be read."""
    try:
        if not paths.is_remote(path):
            return digest(path)
        from onnxfix.fleet import remote  # lazy: URLs only

        return remote.fingerprint(path)
    except (OSError, ValueError, OnnxfixError):
        return ""


def _list_files(
    task: Task, source: str, target: str, report: Report, known: Iterable[str] = ()
) -> Iterator[str]:
    yield from _files_of(source, known)
    if report.output and not task.options.output.in_place:
        yield from _files_of(target, known)
    if report.engine and task.options.trt is not None:
        yield str(Path(task.options.trt.save_engine))


def _files_of(model: str, known: Iterable[str] = ()) -> Iterator[str]:
    """A model and its external data, as far as the model can be read."""
    if paths.is_remote(model):
        yield model
        yield from (url for url in known if url != model and url.startswith(paths.beside(model, "")))
        return
    from onnxfix.files import apart  # lazy: start-up

    yield from dict.fromkeys(str(file.path) for file in apart.files_named(Path(model)))


class Watch:
    """Hashes the files of one task, if its model stays unchanged while the task runs. Make it before that."""

    def __init__(self, files: TaskFiles) -> None:
        self._task_files = files
        self._before = _stamp_files(_files_of(files.source))

    def hash_files(self, task: Task, report: Report) -> dict[str, str]:
        """The files by content, after the result was written; empty if the model changed meanwhile. ``report`` names
        local files."""
        files = self._task_files
        if task.options.output.in_place and report.changed and report.output:
            self._before = _stamp_files(_files_of(files.source))  # the file that needs no more work
        hashes = {}
        for path in _list_files(task, files.source, files.target, report):
            name = files.as_named(path)
            hashes[name] = files.fetched.get(name) or hash_file(name)
        return hashes if "" not in hashes.values() and self._before == _stamp_files(self._before) else {}


def _stamp_files(files: Iterable[str]) -> dict[str, tuple[int, ...]]:
    from onnxfix.files import lazy  # lazy: start-up

    return {file: lazy.stamp(Path(file)) for file in files}


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
    found = hashlib.sha256()
    for name in dict.fromkeys((module.partition(".")[0], module)):
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # of a namespace package, the named package in it counts
            continue
        file = Path(spec.origin)
        folder = file.parent
        whole = [
            path for path in folder.rglob("*") if path.suffix in (".py", ".json")
        ]  # with the catalog of rules
        for path in sorted(whole) if spec.submodule_search_locations else [file]:
            content = path.read_bytes()
            found.update(f"{path.relative_to(file.parent)}\0{len(content)}\0".encode() + content)
        break
    return found.hexdigest()
