"""Models in object stores: brought to a temporary folder, processed there as local files, results put back.

A model comes with its external data. A result goes up after it was written here, which is after it verified: external
data first and the model last, so that nobody sees a model without its data. Local files are never copied.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from onnxfix.errors import OnnxfixError
from onnxfix.files import apart
from onnxfix.fleet import paths

Thing = TypeVar("Thing")

WHOLE_OR_NOTHING = frozenset(
    ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos", "hf", "memory")
)
"""Protocols of stores in which an object shows when its upload is complete, so that it needs no temporary name."""

_CHUNK = 1 << 22


@dataclass(frozen=True)
class Staged:
    """Local files that stand for a task's source and target. ``names`` are pairs of a local beginning of a path and
    what it stands for; ``target`` is "" where nothing is to be written. ``fetched`` is what the store said of each file
    before it was brought here."""

    source: str
    target: str
    url: str
    names: tuple[tuple[str, str], ...]
    fetched: dict[str, str] = field(default_factory=dict)

    def told(self, value: Thing) -> Thing:
        """A text, or a record of texts, with the names that the user knows instead of those of the copies."""
        if not self.names:
            return value
        told: Thing = _mapped(value, self._said)
        return told

    def _said(self, text: str) -> str:
        for here, there in self.names:
            text = text.replace(here, there)
        return text

    def publish(self) -> None:
        """Put the result and its external data to where the target stands; nothing to do for a local one.

        Where that fails half-way, data that was put stays: another model of the run may have found it there and use it.

        Raises:
            OnnxfixError: it cannot be written, or another file has the name of the external data.
        """
        if paths.remote(self.url):
            for location, path in _external(Path(self.target)):
                _put_data(path, paths.beside(self.url, location))
            _put(Path(self.target), self.url)


@contextlib.contextmanager
def staged(source: str, target: str, progress: Callable[[str], None] | None = None) -> Iterator[Staged]:
    """Local stand-ins for ``source`` and ``target`` while the context lasts; the paths themselves where they are local.

    Expected errors that leave the context name URLs instead of the copies.

    Raises:
        ModelError: the model is not there.
        OnnxfixError: the store cannot be read, or there is no room here.
    """
    if not paths.remote(source) and not paths.remote(target):
        yield Staged(source, target, "", ())
        return
    with tempfile.TemporaryDirectory(prefix="onnxfix-", ignore_cleanup_errors=True) as folder:
        found = _stand_ins(source, target, os.path.realpath(folder))
        try:
            if paths.remote(source):
                if progress is not None:
                    progress("fetching")
                _fetch(source, Path(found.source), found.fetched)
            yield found
        except OnnxfixError as error:
            raise type(error)(found.told(str(error))) from None


def _stand_ins(source: str, target: str, folder: str) -> Staged:
    here = {"source": source, "target": target}
    names = []
    for role, path in (("source", source), ("target", target)):
        if paths.remote(path):
            Path(folder, role).mkdir()
            here[role] = os.path.join(folder, role, paths.name_of(path))
            names.append((os.path.join(folder, role), path.rpartition("/")[0]))
    return Staged(here["source"], here["target"], target, tuple(names))


def _fetch(url: str, path: Path, marks: dict[str, str]) -> None:
    """The model and its external data, and in ``marks`` what the store said of them before. What is missing or has a
    name that leads out of the folder stays away: reading the model says so, in the same words as for local files."""
    marks[url] = paths.fingerprint(url)
    _get(url, path)
    for location, place in _external(path):
        data = paths.beside(url, location)
        system, inner = paths.filesystem(data)
        with paths.telling(data, paths.READ):
            there = system.isfile(inner)
        if there:
            place.parent.mkdir(parents=True, exist_ok=True)
            marks[data] = paths.fingerprint(data)
            _get(data, place)


def _external(model: Path) -> Iterator[tuple[str, Path]]:
    """(location with slashes, file) of each external data file that a model may have beside it, sorted."""
    files = {one.path for one in apart.files_named(model)} - {model}
    for path in sorted(files):
        location = os.path.relpath(path, model.parent) if path.is_relative_to(model.parent) else os.pardir
        if ".." not in Path(location).parts and location != os.curdir:
            yield location.replace(os.sep, "/"), path


def _get(url: str, path: Path) -> None:
    system, inner = paths.filesystem(url)
    with paths.telling(url, paths.READ):
        try:
            system.get_file(inner, str(path))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            room = f"{url}: no room for it in {tempfile.gettempdir()}; TMPDIR names another folder"
            raise OnnxfixError(room) from None


def _put_data(path: Path, url: str) -> None:
    """Put a file of external data, unless the same bytes are there already.

    Raises:
        OnnxfixError: other bytes are there, which may belong to another model.
    """
    system, inner = paths.filesystem(url)
    with paths.telling(url, paths.READ):
        system.invalidate_cache()  # listings of before this run
        there = system.exists(inner)
        alike = there and _same_bytes(path, system, inner)
    if there and not alike:
        raise OnnxfixError(f"{url}: another file has the name of the model's external data; move it")
    if not there:
        _put(path, url)


def _same_bytes(path: Path, system: Any, inner: str) -> bool:
    if system.size(inner) != path.stat().st_size:
        return False
    with path.open("rb") as ours, system.open(inner, "rb") as theirs:
        while True:
            left = ours.read(_CHUNK)
            if left != theirs.read(len(left) or 1):
                return False
            if not left:
                return True


def _put(path: Path, url: str) -> None:
    """Put a file so that it is seen whole or not at all, as far as the store can."""
    system, inner = paths.filesystem(url)
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    with paths.telling(url, "cannot be written"):
        if protocols & WHOLE_OR_NOTHING:
            system.put_file(str(path), inner)
            return
        import secrets  # brings OpenSSL

        folder, name = posixpath.split(inner)
        system.makedirs(folder, exist_ok=True)
        temporary = posixpath.join(folder, f".{name[:40]}.{secrets.token_hex(4)}.tmp")
        try:
            system.put_file(str(path), temporary)
            _rename(system, temporary, inner)
        except BaseException:
            with contextlib.suppress(Exception):  # the error that brought us here is the one to tell
                system.rm_file(temporary)
            raise


def _rename(system: Any, old: str, new: str) -> None:
    """Move a whole file over whatever has its name; some systems want the old one gone first."""
    try:
        system.mv(old, new)
    except Exception:
        if not system.exists(new) or not system.exists(old):
            raise
        system.rm_file(new)
        system.mv(old, new)


def _mapped(value: Any, said: Callable[[str], str]) -> Any:
    """``value`` with ``said`` of each text in it: dataclasses, tuples, lists and dicts are gone through."""
    if isinstance(value, str):
        return said(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{one.name: _mapped(getattr(value, one.name), said) for one in fields(value) if one.init}
        )
    if isinstance(value, dict):
        return {key: _mapped(item, said) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_mapped(item, said) for item in value)
    return value
