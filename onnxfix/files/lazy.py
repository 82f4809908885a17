"""Weights that stay in their file: the stand-ins that take their place in a lazily read model, and how to read them.

A stand-in is a short token in ``raw_data`` with the location of the payload: the open file, the field of
``TensorProto``, offset and length in bytes. Name, type and dimensions of the tensor are real. Tokens are plain bytes:
copying, serializing and parsing a tensor keeps them, and equal tokens mean equal bytes. They begin with a random number
of the process, so that no file can contain one.

Payloads are read by ``pread`` and never mapped into memory: reading a mapped file that another process truncates kills
the process by SIGBUS, while ``pread`` only returns fewer bytes.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from onnx import ModelProto, TensorProto

from onnxfix.errors import ModelError
from onnxfix.files.walk import copied, model_tensors
from onnxfix.files.wire import prefix
from onnxfix.runtime import system

RAW = 9
"""Number of the field ``TensorProto.raw_data``."""
PAYLOADS = {
    4: "float_data", 5: "int32_data", 7: "int64_data", RAW: "raw_data", 10: "double_data", 11: "uint64_data",
}  # fmt: skip
"""The fields of ``TensorProto`` that may stay in the file (onnx.proto); strings never do."""
LARGE = 1024
"""Bytes from which on a payload stays in the file. Smaller ones, such as shapes and axes, are in memory."""

NONCE = os.urandom(16)
_WHERE = struct.Struct("<IBQQ")
TOKEN_SIZE = len(NONCE) + _WHERE.size
_STEP, _CHUNK = 1 << 24, 1 << 20


class Source:
    """A model file, open for reading as long as this object lives.

    Raises:
        OSError: it cannot be opened.
    """

    _numbers = itertools.count()

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, system.READ)
        self.number = next(Source._numbers)
        found = os.fstat(self.fd)
        self.size = found.st_size
        self.stamp = stamp_of(found)
        self._known: dict[tuple[int, int], bytes] = {}
        _SOURCES[self.number] = self

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def __reduce__(self) -> str:
        raise TypeError(f"{self.path}: an open file can neither be copied nor sent to another process")

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on.

        Raises:
            ModelError: the file has changed since it was opened, or cannot be read.
        """
        parts = []
        try:
            while length > 0:
                part = system.read_at(self.fd, min(length, _STEP), offset)
                if not part:
                    break
                parts.append(part)
                offset, length = offset + len(part), length - len(part)
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if length > 0 or stamp_of(os.fstat(self.fd)) != self.stamp:
            raise changed(self.path)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def check(self) -> None:
        """Make sure that the open file and the file at the path are still what was read.

        Raises:
            ModelError: the file was changed, replaced, or removed.
        """
        if not stamp(self.path) == self.stamp == stamp_of(os.fstat(self.fd)):
            raise changed(self.path)

    def fingerprint(self, where: Range) -> bytes:
        """Length and hash of a range's bytes; computed once.

        Raises:
            ModelError: the file has changed.
        """
        import hashlib  # lazy: start-up, brings OpenSSL

        key = (where.offset, where.length)
        if key not in self._known:
            digest = hashlib.blake2b(digest_size=16)
            for start in range(0, where.length, _STEP):
                digest.update(self.read(where.offset + start, min(_STEP, where.length - start)))
            self._known[key] = b"%d:" % where.length + digest.digest()
        return self._known[key]


_SOURCES: WeakValueDictionary[int, Source] = WeakValueDictionary()


def stamp_of(found: os.stat_result) -> tuple[int, ...]:
    """Equal as long as the file is not changed or replaced."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def stamp(path: Path) -> tuple[int, ...]:
    """``stamp_of`` the file at a path; empty if there is none."""
    try:
        return stamp_of(os.stat(path))
    except (OSError, ValueError):
        return ()


def changed(path: Path) -> ModelError:
    """The error for a file that was changed or replaced since it was opened."""
    return ModelError(
        f"{path}: was changed or replaced while it was being read; run again when it is complete"
    )


@dataclass(frozen=True)
class Range:
    """Location of a payload: ``length`` bytes at ``offset``, those of the TensorProto field number ``field``."""

    source: Source
    field: int
    offset: int
    length: int

    def read(self) -> bytes:
        """The payload, as the file stores it.

        Raises:
            ModelError: the file has changed.
        """
        return self.source.read(self.offset, self.length)

    @property
    def token(self) -> bytes:
        """The stand-in for this payload."""
        return NONCE + _WHERE.pack(self.source.number, self.field, self.offset, self.length)


def whole(source: Source) -> Range:
    """All bytes of a file."""
    return Range(source, RAW, 0, source.size)


def range_at(data: bytes) -> Range:
    """The payload that a stand-in (at the start of ``data``) stands for.

    Raises:
        ModelError: the file with the payload was closed.
    """
    number, field, offset, length = _WHERE.unpack(data[len(NONCE) : TOKEN_SIZE])
    source = _SOURCES.get(number)
    if source is None:
        raise ModelError("the file with this weight was closed: keep what was loaded as long as its model")
    return Range(source, field, offset, length)


def range_of(tensor: TensorProto) -> Range | None:
    """Location of the tensor's payload in its model's file; None if it is in the tensor itself."""
    raw = tensor.raw_data
    return range_at(raw) if len(raw) == TOKEN_SIZE and raw.startswith(NONCE) else None


def with_payload(tensor: TensorProto) -> TensorProto:
    """The tensor with its bytes: itself if they are in memory, else a copy.

    Raises:
        ModelError: the file has changed.
    """
    where = range_of(tensor)
    if where is None:
        return tensor
    copy = copied(tensor)
    fill(copy, where)
    return copy


def fill(tensor: TensorProto, where: Range) -> None:
    """Replace the stand-in by the payload."""
    payload = where.read()
    if where.field == RAW:
        tensor.raw_data = payload
    else:
        tensor.ClearField("raw_data")
        tensor.MergeFromString(prefix(where.field, where.length) + payload)


def tokens(data: bytes) -> Iterator[int]:
    """Offsets of the stand-ins in serialized messages."""
    at = data.find(NONCE)
    while at >= 0:
        yield at
        at = data.find(NONCE, at + TOKEN_SIZE)


def keyed(data: bytes) -> bytes:
    """A serialized message with each stand-in replaced by a hash of its payload: equal for equal messages.

    Raises:
        ModelError: a file has changed.
    """
    for where in [range_at(data[at : at + TOKEN_SIZE]) for at in tokens(data)]:
        data = data.replace(where.token, bytes([where.field]) + where.source.fingerprint(where))
    return data


def same(first: TensorProto, second: TensorProto) -> bool:
    """Whether two tensors are stored the same way, bit for bit, in memory or in files.

    Raises:
        ModelError: a file has changed.
    """
    if first == second:
        return True
    one, other = range_of(first), range_of(second)
    if one is None and other is None:
        return False
    if one is not None and other is not None and (one.field, one.length) != (other.field, other.length):
        return False
    return bool(with_payload(first) == with_payload(second))


_EQUAL: set[frozenset[tuple[int, ...]]] = set()


def equal(first: Range, second: Range) -> bool:
    """Whether two ranges have the same bytes. Those that do are not compared again, unless a file changes.

    Raises:
        ModelError: a file has changed.
    """
    if first.length != second.length:
        return False
    pair = frozenset((*one.source.stamp, one.offset, one.length) for one in (first, second))
    if len(pair) > 1 and pair not in _EQUAL:
        for start in range(0, first.length, _CHUNK):
            size = min(_CHUNK, first.length - start)
            if first.source.read(first.offset + start, size) != second.source.read(
                second.offset + start, size
            ):
                return False
        _EQUAL.add(pair)
    return True


class Pending:
    """A model whose weights are read on demand. ``keep`` is an object that must live as long."""

    def __init__(self, proto: ModelProto, keep: object = None) -> None:
        self._proto, self._keep = proto, keep
        self._model: ModelProto | None = None

    def model(self) -> ModelProto:
        """The model with all embedded weights; external data stays external.

        Raises:
            ModelError: the file has changed since it was read.
        """
        if self._model is None:
            model = copied(self._proto)
            for tensor in model_tensors(model):
                where = range_of(tensor)
                if where is not None:
                    fill(tensor, where)
            self._model = model
        return self._model

    def __reduce__(self) -> tuple[type[Pending], tuple[ModelProto]]:
        # A copied or pickled report has its model, not our open file.
        return Pending, (self.model(),)
