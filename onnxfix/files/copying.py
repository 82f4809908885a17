"""Bytes into a file: as they are, or copied from an open file in the kernel,
without passing weights through us."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onnxfix import system
from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files.lazy import Range, Source, changed
from onnxfix.files.scan import Piece
from onnxfix.files.temporary import Temporary


@dataclass(frozen=True)
class Whole:
    """A file that becomes part of another one, and its size when it was planned."""

    path: Path
    size: int

    def open(self) -> Source:
        """The file, open for reading.

        Raises:
            ModelError: it cannot be read, or has another size by now.
        """
        try:
            source = Source(self.path)
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if source.size != self.size:
            raise changed(self.path)
        return source


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
    with _opened(path) as file:
        file.write(data)


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
    write_pieces([(0, origin.size)], destination, origin)


def write_pieces(pieces: Iterable[Piece | Whole], path: Target, data: bytes | Source) -> None:
    """Write pieces of ``data``, payloads and whole files to a file.

    Raises:
        ModelError: a file that holds a payload has changed.
        OnnxfixError: the disk is full or the file cannot be written.
    """
    used: dict[int, Source] = {}
    with _opened(path) as file:
        for piece in pieces:
            if isinstance(piece, bytes):
                file.write(piece)
            elif isinstance(piece, tuple) and isinstance(data, bytes):
                file.write(memoryview(data)[piece[0] : piece[1]])
            elif isinstance(piece, Whole):
                origin = piece.open()  # and closed at once: a model may have thousands of data files
                _append(file, origin, 0, piece.size)
                origin.check()
            else:
                origin, start, length = _range(piece, data)
                used[origin.number] = origin
                _append(file, origin, start, length)
    for origin in used.values():
        origin.check()


def _append(file: BinaryIO, origin: Source, start: int, length: int) -> None:
    """Append a range of an open file."""
    if length < _WORTH_IT:
        file.write(origin.read(start, length))
    else:
        file.flush()
        _copy_range(origin.fd, start, length, file.fileno())
        file.seek(0, os.SEEK_END)


@contextlib.contextmanager
def _opened(target: Target) -> Iterator[BinaryIO]:
    """The file, emptied; a temporary one is sealed at the end.

    Raises:
        OnnxfixError: the disk is full or the file cannot be written.
    """
    folder = target.path.parent if isinstance(target, Temporary) else target.parent
    try:
        if isinstance(target, Temporary):
            with open(target.emptied(), "wb", buffering=1 << 20, closefd=False) as file:
                yield file
            target.seal()
        else:
            with open(target, "wb", buffering=1 << 20, opener=_open_emptied) as file:
                yield file
    except OSError as error:
        raise OnnxfixError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _open_emptied(path: str, flags: int) -> int:
    """Open a file for writing, and truncate it only if it is not empty, as ``Temporary.emptied`` does."""
    handle = os.open(
        path, flags & ~os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o666
    )
    try:
        if os.fstat(handle).st_size:
            os.ftruncate(handle, 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _range(piece: Piece, data: bytes | Source) -> tuple[Source, int, int]:
    if isinstance(piece, Range):
        return piece.source, piece.offset, piece.length
    assert isinstance(piece, tuple)
    assert isinstance(data, Source)
    return data, piece[0], piece[1] - piece[0]


def _copy_range(source: int, start: int, length: int, destination: int) -> None:
    """Append ``length`` bytes of one open file to another: by reference where the file system can, else in the kernel,
    else through us."""
    offset, end = start, start + length
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
        part = system.read_at(source, min(end - offset, 1 << 20), offset)
        if not part:
            break  # the file was truncated meanwhile; the check of its source reports it
        offset += len(part)
        while part:
            part = part[os.write(destination, part) :]
