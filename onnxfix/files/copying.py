"""Bytes into a file: as they are, or copied from an open file in the kernel,
without passing weights through us."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files.atomic import Temporary
from onnxfix.files.folders import writing
from onnxfix.files.lazy import Range, Source, changed, whole
from onnxfix.files.scan import Piece
from onnxfix.runtime import system


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
