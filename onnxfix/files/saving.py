"""``ModelProto`` to bytes and files: weights are copied by byte range from where they are, and moved to another file
where the model does not fit into one protobuf. The kernel copies them, so that they do not pass through us.

The metadata of a model that shares external data with its original has the hashes of that data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from google.protobuf.message import EncodeError
from onnx import ModelProto, TensorProto

from onnxfix.errors import ModelError, OnnxfixError, decoded
from onnxfix.files import lazy, scan, tensors, walk, wire
from onnxfix.files.atomic import Temporary
from onnxfix.files.folders import writing
from onnxfix.files.lazy import Range, Source, changed, whole
from onnxfix.files.scan import Piece
from onnxfix.files.walk import model_tensors
from onnxfix.runtime import system

if TYPE_CHECKING:
    from onnxfix.files.loading import Loaded

ALIGNMENT = 4096
"""Offsets of weights that are moved to another file are multiples of this, so that readers can map them (ONNX,
external data)."""
_PLAIN = {4: (TensorProto.FLOAT, TensorProto.COMPLEX64), 10: (TensorProto.DOUBLE, TensorProto.COMPLEX128)}
"""Fields whose packed numbers are stored as raw data is, for these element types."""


def serialize(proto: ModelProto) -> bytes:
    """``ModelProto`` to bytes, weights included; the same bytes for the same model.

    Raises:
        ModelError: the model does not fit into one protobuf, or a file that holds its weights has changed.
    """
    pieces, length = scan.splice(_serialized(proto))
    if length > wire.PROTOBUF_LIMIT:
        raise _too_large()
    return scan.assemble(pieces)


def _serialized(proto: ModelProto) -> bytes:
    """The model without the weights that stay in files."""
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except (EncodeError, ValueError):
        raise _too_large() from None


def _too_large() -> ModelError:
    return ModelError("the result does not fit into one protobuf (2 GB); keep its weights external")


@dataclass(frozen=True)
class Layout:
    """The content of a model's file, and in ``moved`` that of a second one for weights that are not in the first.
    ``proto`` is the model with the locations of external data that its file has."""

    proto: ModelProto = field(repr=False)
    pieces: Sequence[scan.Piece]
    moved: Sequence[Range | Whole | bytes]

    def write(self, path: Target, weights: Target | None = None) -> None:
        """Write the files, weights first; without ``weights`` only the model's.

        Raises:
            ModelError: the file that holds the weights has changed.
            OnnxfixError: the disk is full or a file cannot be written.
        """
        if weights is not None:
            write_pieces(self.moved, weights)
        write_pieces(self.pieces, path)


def laid_out(proto: ModelProto, location: str | None, own: Mapping[str, Whole] | None = None) -> Layout:
    """How a model is written, its weights by copying byte ranges; the same bytes for the same model.

    If the model takes more than ``wire.PROTOBUF_LIMIT`` bytes, the weights that stayed in their file go to a second
    one, as external data with this ``location``. ``own`` are all external data files of the model, by location, if
    they are to go there too: whole, so that one file keeps its offsets.

    Raises:
        ModelError: it does not fit into one protobuf, and not enough can be moved or there is no ``location``.
    """
    data = _serialized(proto)
    pieces, length = scan.splice(data)
    large = length > wire.PROTOBUF_LIMIT
    moved: list[Range | Whole | bytes] = []
    if location is not None and (large or own):
        mover = _Mover(location, moved)
        if own:
            proto = mover.adopt(proto, own, large)
            data = _serialized(proto)
        pieces, length = scan.splice(data, mover if large else None)
    if length > wire.PROTOBUF_LIMIT:
        raise _too_large()
    return Layout(proto, pieces, moved)


def save(proto: ModelProto, path: Target, weights: Target | None = None) -> bool:
    """Write a model, and its weights to the file ``weights`` beside it if both do not fit into one protobuf; returns
    whether ``weights`` was written.

    Raises:
        ModelError: it does not fit into one protobuf and not enough can be moved, or its file has changed.
        OnnxfixError: the disk is full or a file cannot be written.
    """
    name = weights.path.name if isinstance(weights, Temporary) else weights.name if weights else None
    layout = laid_out(proto, name)
    layout.write(path, weights if layout.moved else None)
    return bool(layout.moved)


class _Mover:
    """Assigns payloads their offsets in an external data file; ``moved`` collects the content of that file."""

    def __init__(self, location: str, moved: list[Range | Whole | bytes]) -> None:
        self.location, self.moved, self.end = location, moved, 0

    def adopt(self, proto: ModelProto, files: Mapping[str, Whole], more: bool) -> ModelProto:
        """A copy of the model whose external ``files`` are in this one. ``more``: other weights follow."""
        copy = walk.copied(proto)
        external = [tensor for tensor in model_tensors(copy) if tensors.is_external(tensor)]
        used = dict.fromkeys(files[location] for location in tensors.locations(external))
        starts = {file: self._append(file, file.size) for file in used}
        alone = len(used) == 1 and not more
        for tensor in external:
            file = files[tensors.locations([tensor])[0]]
            tensors.relocate(tensor, self.location, None if alone else starts[file])
        return copy

    def _append(self, piece: Range | Whole, length: int) -> int:
        """Where the piece begins."""
        gap = -self.end % ALIGNMENT
        if gap:
            self.moved.append(bytes(gap))
        self.moved.append(piece)
        start = self.end + gap
        self.end = start + length
        return start

    def __call__(self, where: Range, elem: int) -> bytes | None:
        if where.field != lazy.RAW and elem not in _PLAIN.get(where.field, ()):
            return None  # numbers that the wire format does not store as external data would
        start = self._append(where, where.length)
        reference = TensorProto(data_location=TensorProto.EXTERNAL)
        entries = (("location", self.location), ("offset", str(start)), ("length", str(where.length)))
        for key, value in entries:
            reference.external_data.add(key=key, value=value)
        return bytes(reference.SerializeToString(deterministic=True))


@dataclass(frozen=True)
class Whole:
    """A file that becomes part of another one, and its size when it was planned. It is opened as late as possible: a
    model may have thousands of data files."""

    path: Path
    size: int

    def open(self) -> Range:
        """All bytes of the file.

        Raises:
            ModelError: it cannot be read, or has another size by now.
        """
        try:
            found = whole(Source(self.path))
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if found.length != self.size:
            raise changed(self.path)
        return found


Target = Path | Temporary
"""Where bytes are written: a file that will be installed, or one in a temporary folder of ours."""

_WORTH_IT = 1 << 16
"""Bytes from which on a system call for a copy is cheaper than reading and writing."""
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""Errors of ``copy_file_range`` that another way to copy would meet as well."""


def write(data: bytes, path: Target) -> None:
    """Write ``data`` to a file.

    Raises:
        OnnxfixError: the disk is full or the file cannot be written.
    """
    write_pieces([data], path)


def copy_file(source: Path, destination: Target) -> None:
    """Copy a file, by reflink or ``copy_file_range`` where the system has them.

    Raises:
        ModelError: the file is changed meanwhile.
        OnnxfixError: the disk is full, or a file cannot be read or written.
    """
    try:
        origin = Source(source)
    except OSError as error:
        raise OnnxfixError(f"{source}: cannot be read: {error.strerror or error}") from None
    write_pieces([whole(origin)], destination)


def write_pieces(pieces: Iterable[Piece | Whole], path: Target) -> None:
    """Write bytes, payloads and whole files to a file.

    Raises:
        ModelError: a file that holds a payload has changed.
        OnnxfixError: the disk is full or the file cannot be written.
    """
    used: dict[int, Source] = {}
    where = path.path if isinstance(path, Temporary) else path
    with contextlib.ExitStack() as stack:
        stack.enter_context(writing(where.parent))
        target = path.rewrite() if isinstance(path, Temporary) else open(path, "wb", buffering=1 << 20)  # noqa: SIM115
        file: BinaryIO = stack.enter_context(target)
        for piece in pieces:
            if isinstance(piece, Whole):
                part = piece.open()
                _append(file, part)
                part.source.check()
            elif isinstance(piece, Range):
                used[piece.source.number] = piece.source
                _append(file, piece)
            else:
                file.write(piece)
    for origin in used.values():
        origin.check()


def _append(file: BinaryIO, part: Range) -> None:
    """Append a range of an open file."""
    if part.length < _WORTH_IT:
        file.write(part.read())
    else:
        file.flush()
        _copy_range(part, file.fileno())
        file.seek(0, os.SEEK_END)


def _copy_range(part: Range, destination: int) -> None:
    """Append a range to another open file: by reference where the file system can, else in the kernel, else through
    us."""
    source, offset, end = part.source.fd, part.offset, part.offset + part.length
    while offset < end and hasattr(os, "copy_file_range"):
        try:
            done = os.copy_file_range(source, destination, min(end - offset, 1 << 30), offset)
        except OSError as error:
            if error.errno in _FATAL:
                raise
            break
        if done == 0:
            break
        offset += done
    while offset < end:
        data = system.read_at(source, min(end - offset, 1 << 20), offset)
        if not data:
            break  # the file was truncated meanwhile; the check of its source reports it
        offset += len(data)
        while data:
            data = data[os.write(destination, data) :]


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
