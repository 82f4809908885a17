"""External data that a model shares with its original; its metadata has the hashes of that data."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.errors import ModelError, decoded

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxfix.files.loading import Loaded

KEY = "onnxfix.shared_data:"
"""Beginning of the key in ``ModelProto.metadata_props`` that a location follows; the value is ``sha256:`` and the hash
of that file."""
_CHUNK = 1 << 20


def hashes(folder: Path, locations: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each data file, by location.

    Raises:
        ModelError: one cannot be read.
    """
    try:
        return {location: digest(folder / location) for location in locations}
    except OSError as error:
        raise ModelError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from None


def digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a local regular file, as hexadecimal digits. A pipe or a device is not waited for.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    import hashlib  # lazy: start-up (loads OpenSSL, which small runs do not need)

    def open_at_once(path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))

    found = hashlib.sha256()
    with open(path, "rb", buffering=0, opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
        while data := file.read(_CHUNK):
            found.update(data)
    return found.hexdigest()


def set_record(proto: ModelProto, hashes: Mapping[str, str]) -> None:
    """Record the SHA-256 of each shared file, by location, in place of what was recorded before."""
    set_metadata(proto, KEY, {location: f"sha256:{found}" for location, found in hashes.items()})


def set_metadata(proto: ModelProto, key: str, values: Mapping[str, str]) -> None:
    """Let the metadata whose keys begin with ``key`` be these: what follows it -> value."""
    for index in reversed(range(len(proto.metadata_props))):
        if decoded(proto.metadata_props[index].key).startswith(key):
            del proto.metadata_props[index]
    for more, value in values.items():
        proto.metadata_props.add(key=key + more, value=value)


def has_record(proto: ModelProto) -> bool:
    """Whether a model says that it shares data."""
    return any(decoded(entry.key).startswith(KEY) for entry in proto.metadata_props)


def first_changed(loaded: Loaded) -> str:
    """Why a model that shares data is not the one that was proven: a shared file changed; "" if none did.

    Raises:
        ModelError: one cannot be read.
    """
    if loaded.path is None or not has_record(loaded.proto):
        return ""
    known = {entry.key: entry.value for entry in loaded.proto.metadata_props}
    for location, found in hashes(
        loaded.path.parent, (one for one in loaded.external if KEY + one in known)
    ).items():
        if known[KEY + location] != f"sha256:{found}":
            return (
                f"{loaded.path.parent / location} changed since {loaded.path.name} was written, which shares it "
                "(--share-data): what was proven no longer holds; run onnxfix apply on the original again"
            )
    return ""
