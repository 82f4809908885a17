"""Models in object stores, through fsspec: listing, identity and errors; copying models here and results there.

Each kind of store needs its own package: s3fs, gcsfs, adlfs, ... A model is copied to a temporary folder with its
external data and processed there. A result is uploaded after it was written locally, and so after it verified: external
data first and the model last, so that nobody sees a model without its data. Local files are never copied.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from onnxfix.errors import MissingFile, OnnxfixError, UsageError
from onnxfix.files import apart
from onnxfix.verbs.fleet import paths
from onnxfix.verbs.fleet.paths import Named, Record, TaskFiles

READ = "cannot be read"
ATOMIC_UPLOADS = frozenset(
    ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos", "hf", "memory")
)
"""Protocols of stores in which an object becomes visible once its upload is complete, so that it needs no temporary
name."""

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Staged(TaskFiles):
    """Local copies of a remote source, and a local file for a remote target.

    ``url`` is the task's target. ``folders`` are pairs of a local folder and the folder of the store that it stands
    for.
    """

    url: str = ""
    folders: tuple[tuple[str, str], ...] = ()

    def as_named(self, record: Record) -> Record:
        def rename(text: str) -> str:
            for here, there in self.folders:
                text = text.replace(here, there)
            return text

        named: Record = _map_texts(record, rename)
        return named

    def publish(self) -> None:
        """Upload the result and its external data; a local target needs nothing.

        If the upload fails halfway, external data that was uploaded stays: another model of the run may already use it.

        Raises:
            OnnxfixError: the store cannot be written, or another file has the name of the external data.
        """
        if paths.is_remote(self.url):
            for location, path in _external(Path(self.target)):
                _put_data(path, paths.beside(self.url, location))
            _put(Path(self.target), self.url)


@contextlib.contextmanager
def stage(source: str, target: str, progress: Callable[[str], None] | None = None) -> Iterator[Staged]:
    """Local stand-ins for ``source`` and ``target`` while the context lasts; a local path stands for itself.

    An ``OnnxfixError`` that leaves the context names URLs instead of the copies.

    Raises:
        ModelError: the model does not exist.
        OnnxfixError: the store cannot be read, or the temporary folder is full.
    """
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        here = {"source": source, "target": target}
        folders = []
        for role, path in (("source", source), ("target", target)):
            if paths.is_remote(path):
                place = os.path.join(os.path.realpath(folder), role)
                os.mkdir(place)
                here[role] = os.path.join(place, paths.name_of(path))
                folders.append((place, path.rpartition("/")[0]))
        files = Staged(here["source"], here["target"], url=target, folders=tuple(folders))
        try:
            if paths.is_remote(source):
                if progress is not None:
                    progress("fetching")
                files = replace(files, fetched=_fetch(source, Path(files.source)))
            yield files
        except OnnxfixError as error:
            raise type(error)(files.as_named(str(error))) from None


def _fetch(url: str, path: Path) -> dict[str, str]:
    """Copy the model and its external data here; returns the fingerprint of each URL before it was copied.

    External data that is missing, or whose name leads out of the folder, is left out: reading the model then reports
    it as for local files.
    """
    before = {url: fingerprint(url)}
    _get(url, path)
    for location, place in _external(path):
        data = paths.beside(url, location)
        system, inner = filesystem(data)
        with one_line_errors(data, READ):
            exists = system.isfile(inner)
        if exists:
            place.parent.mkdir(parents=True, exist_ok=True)
            before[data] = fingerprint(data)
            _get(data, place)
    return before


def _external(model: Path) -> Iterator[tuple[str, Path]]:
    """(location with slashes, file) of each external data file in the model's folder, sorted."""
    files = {one.path for one in apart.files_named(model)} - {model}
    for path in sorted(files):
        location = os.path.relpath(path, model.parent) if path.is_relative_to(model.parent) else os.pardir
        if ".." not in Path(location).parts and location != os.curdir:
            yield location.replace(os.sep, "/"), path


def _get(url: str, path: Path) -> None:
    system, inner = filesystem(url)
    with one_line_errors(url, READ):
        try:
            system.get_file(inner, str(path))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            full = f"{url}: no room for it in {tempfile.gettempdir()}; set TMPDIR to another folder"
            raise OnnxfixError(full) from None


def _put_data(path: Path, url: str) -> None:
    """Upload a file of external data, unless the same bytes are there already.

    Raises:
        OnnxfixError: other bytes are there, which may belong to another model.
    """
    system, inner = filesystem(url)
    with one_line_errors(url, READ):
        system.invalidate_cache()  # listings from before this run
        exists = system.exists(inner)
        same = exists and system.size(inner) == path.stat().st_size
        if same:
            with path.open("rb") as ours, system.open(inner, "rb") as theirs:
                chunks = iter(lambda: ours.read(_CHUNK), b"")
                same = all(chunk == theirs.read(len(chunk)) for chunk in chunks)
    if exists and not same:
        raise OnnxfixError(f"{url}: another file has the name of the model's external data; move it")
    if not exists:
        _put(path, url)


def _put(path: Path, url: str) -> None:
    """Upload a file so that readers see all of it or nothing, as far as the store allows."""
    system, inner = filesystem(url)
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    with one_line_errors(url, "cannot be written"):
        if protocols & ATOMIC_UPLOADS:
            system.put_file(str(path), inner)
            return
        folder, name = posixpath.split(inner)
        system.makedirs(folder, exist_ok=True)
        temporary = posixpath.join(folder, f".{name[:40]}.{secrets.token_hex(4)}.tmp")
        try:
            system.put_file(str(path), temporary)
            try:
                system.mv(temporary, inner)
            except Exception:
                if not system.exists(inner) or not system.exists(temporary):
                    raise
                system.rm_file(inner)  # some file systems replace nothing
                system.mv(temporary, inner)
        except BaseException:
            with contextlib.suppress(Exception):  # report the first error, not this one
                system.rm_file(temporary)
            raise


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with ``change`` applied to each string in it, through dataclasses, tuples, lists and dicts."""
    if isinstance(value, str):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{one.name: _map_texts(getattr(value, one.name), change) for one in fields(value) if one.init},
        )
    if isinstance(value, dict):
        return {key: _map_texts(item, change) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_map_texts(item, change) for item in value)
    return value


def matches(pattern: str) -> Iterator[Named]:
    """The models that a URL, or a URL with wildcards, names. Matches are sorted by name.

    Raises:
        UsageError: the glob matches no file, or the protocol is unknown or its package is missing.
        OnnxfixError: the store cannot be listed.
    """
    system, path = filesystem(pattern)  # a missing package is reported before any work
    if not paths.is_glob(pattern):
        yield Named(pattern, paths.name_of(pattern))
        return
    with one_line_errors(pattern, "cannot be listed"):
        if system.isfile(path):
            yield Named(pattern, paths.name_of(pattern))
            return
        found = system.glob(path, detail=True)
        files = sorted(name for name, info in found.items() if info.get("type") == "file")
        urls = [str(system.unstrip_protocol(name)) for name in files]
    if not files:
        raise UsageError(f"{pattern}: no file matches")
    root = paths.glob_root(path, "/")
    for name, url in zip(files, urls, strict=True):
        yield Named(url, posixpath.relpath(name, root or posixpath.curdir))


def canonical(url: str) -> str:
    """The URL as its file system spells it, so that two spellings of one place are equal."""
    system, path = filesystem(url)
    return str(system.unstrip_protocol(path))


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it.

    Raises:
        UsageError: fsspec or the protocol's package is not installed, or the protocol is unknown.
        OnnxfixError: the file system cannot be set up.
    """
    try:
        import fsspec  # lazy: optional package
    except ImportError:
        raise UsageError(f"{url}: needs fsspec: pip install 'onnxfix[remote]'") from None
    if "::" in url:
        raise UsageError(f"{url}: chained URLs are not supported; name the file itself")
    protocol = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec's text names the package
        raise UsageError(f"{url}: {protocol}:// needs another package: {error}") from None
    except ValueError as error:
        raise UsageError(f"{url}: {error}; fsspec knows no such protocol") from None
    except Exception as error:  # the protocol's package rejects its settings
        raise OnnxfixError(f"{url}: {_describe(error)}") from None
    return system, str(path)


def fingerprint(url: str) -> str:
    """A hash of the store's metadata of the file (entity tag, size, time); it changes when the file is replaced.

    Raises:
        ModelError: the file does not exist.
        OnnxfixError: the store cannot be read.
    """
    system, path = filesystem(url)
    with one_line_errors(url, READ):
        system.invalidate_cache()
        return str(system.ukey(path))


@contextlib.contextmanager
def one_line_errors(url: str, failure: str) -> Iterator[None]:
    """Turn what a store raises into one line that names the URL and the ``failure``.

    Raises:
        ModelError: the file does not exist.
        OnnxfixError: any other failure; each store's package has exceptions of its own.
    """
    try:
        yield
    except OnnxfixError:
        raise
    except FileNotFoundError as error:
        if failure != READ:  # a missing bucket, for example
            raise OnnxfixError(f"{url}: {failure}: {error.strerror or error}") from None
        raise MissingFile(f"{url}: no such file") from None
    except PermissionError as error:
        text = error.strerror or str(error)
        details = "" if not text or text.lower() == "permission denied" else f" ({text})"
        raise OnnxfixError(f"{url}: {failure}: permission denied{details}") from None
    except Exception as error:
        raise OnnxfixError(f"{url}: {failure}: {_describe(error)}") from None


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
