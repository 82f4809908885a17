"""Files to models and back: the one place that knows how a model's bytes are read and written.

A model that was not changed is written by copying its bytes. External data is never parsed: it is checked to be
there when the model is loaded, left in place where the output stays in its folder, and copied file by file where
the output moves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError, EncodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.graph import regular, tensors

PROTOBUF_LIMIT = 2**31 - 1
"""Bytes that one protobuf message may take (protobuf's own limit)."""


@dataclass(frozen=True)
class Loaded:
    """A model as it was read. ``proto`` is a private copy, free to be edited."""

    proto: ModelProto
    data: bytes
    path: Path | None = None

    @property
    def base_dir(self) -> Path | None:
        """Folder that relative external data starts from."""
        return self.path.parent if self.path is not None else None

    def fresh(self) -> ModelProto:
        """The model once more, as it was read."""
        return parse(self.data, str(self.path or "the model"))


def load(source: str | os.PathLike[str] | ModelProto | bytes) -> Loaded:
    """Read a model from a path, bytes, or a ``ModelProto`` (which is copied, never changed).

    Raises:
        ModelError: the file is missing, unreadable, not ONNX, or its external data is not where it should be.
    """
    if isinstance(source, ModelProto):
        try:
            data = source.SerializeToString()
        except EncodeError:
            raise ModelError(
                "the model is larger than 2 GB; save it with external data and pass its path"
            ) from None
        return Loaded(parse(data, "the model"), data)
    if isinstance(source, bytes):
        return Loaded(parse(source, "the model"), source)
    path = Path(source)
    data = read(path)
    loaded = Loaded(parse(data, str(path)), data, path)
    for tensor in all_tensors(loaded.proto):
        if tensors.is_external(tensor):
            tensors.external_range(tensor, path.parent)
    return loaded


def read(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        ModelError: it is missing, a directory, unreadable, empty, or too large for one protobuf.
    """
    try:
        if path.is_dir():
            raise ModelError(f"{path}: is a directory; name the .onnx file in it")
        if path.exists() and not path.is_file():
            raise ModelError(f"{path}: is not a regular file")
        if path.stat().st_size > PROTOBUF_LIMIT:
            raise ModelError(f"{path}: larger than 2 GB; protobuf stops there, so save it with external data")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the path
        raise ModelError(f"{str(path)!r}: cannot be read: {error}") from None
    if not data:
        raise ModelError(f"{path}: is empty")
    return data


def parse(data: bytes, name: str) -> ModelProto:
    """Bytes to ``ModelProto``.

    Raises:
        ModelError: the bytes are not an ONNX model.
    """
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{name}: not an ONNX model, or truncated: its bytes are no ModelProto") from None
    if not proto.HasField("graph"):
        raise ModelError(f"{name}: not an ONNX model: it holds no graph")
    return proto


def all_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model: initializers, attributes, sparse parts, subgraphs, functions, training graphs."""
    graphs = [proto.graph]
    for info in proto.training_info:
        graphs += [info.initialization, info.algorithm]
    for graph in graphs:
        yield from _graph_tensors(graph)
    for function in getattr(proto, "functions", ()):
        yield from _node_tensors(function.node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Any) -> Iterator[TensorProto]:
    stack: list[NodeProto] = list(nodes)
    while stack:
        node = stack.pop()
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse_values = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for sparse in (*sparse_values, *attribute.sparse_tensors):
                yield sparse.values
                yield sparse.indices
            for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from graph.initializer
                stack.extend(graph.node)


def serialize(proto: ModelProto) -> bytes:
    """``ModelProto`` to bytes, the same bytes for the same model.

    Raises:
        ModelError: the model does not fit into one protobuf.
    """
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except (EncodeError, ValueError):
        raise ModelError(
            "the fixed model does not fit into one protobuf (2 GB); keep its weights external"
        ) from None


@contextlib.contextmanager
def temporary_beside(destination: Path) -> Iterator[Path]:
    """A temporary file in ``destination``'s folder, deleted at the end unless it was renamed away.

    Raises:
        OnnxfixError: the folder takes no files, or the destination is a device, a pipe or a directory.
    """
    regular.refuse_special(destination)
    try:
        # A beginning of the name, for people: the whole one and a suffix may be longer than a name can be.
        handle, name = tempfile.mkstemp(
            prefix=f".{destination.name[:40]}.", suffix=".tmp", dir=destination.parent
        )
    except OSError as error:
        raise OnnxfixError(f"{destination}: cannot be written: {error.strerror or error}") from None
    os.close(handle)
    path = Path(name)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write(data: bytes, path: Path) -> None:
    """Write and flush ``data`` to disk.

    Raises:
        OnnxfixError: the disk is full or the file cannot be written.
    """
    try:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OnnxfixError(f"{path.parent}: cannot be written: {error.strerror or error}") from None


def replace(temporary: Path, destination: Path, *, backup: bool = False) -> None:
    """Move a finished temporary file to its destination in one step; the old file is either whole or replaced.

    With ``backup``, ``destination.bak`` holds the old bytes until the new file is safely in place. The new file
    takes the old one's permissions. A link stays: what it leads to is replaced.

    Raises:
        OnnxfixError: the destination cannot be replaced, or is no regular file.
    """
    destination = regular.destination(destination)
    saved = destination.with_name(destination.name + ".bak") if backup and destination.exists() else None
    try:
        _copy_mode(temporary, destination)
        if saved is not None:
            if saved.exists() and _same_bytes(saved, destination):
                saved.unlink()  # a run that was killed left it
            elif saved.exists():
                raise OnnxfixError(f"{saved}: is in the way of a backup; move it and run again")
            try:
                os.link(destination, saved)
            except OSError:  # a file system without hard links
                shutil.copy2(destination, saved)
        os.replace(temporary, destination)
        _sync_folder(destination.parent)
    except OSError as error:
        raise OnnxfixError(f"{destination}: cannot be written: {error.strerror or error}") from None
    if saved is not None:
        saved.unlink(missing_ok=True)


def _copy_mode(temporary: Path, destination: Path) -> None:
    """mkstemp makes private files; give the result the mode that a plain ``open`` would have given it.

    The owner is kept where the system lets us: root in a container must not take a user's files away.
    """
    if destination.exists():
        old = destination.stat()
        with contextlib.suppress(OSError, AttributeError):
            os.chown(temporary, old.st_uid, old.st_gid)
        os.chmod(temporary, old.st_mode & 0o777)
        return
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(temporary, 0o666 & ~mask)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; some systems cannot open folders, and there the rename alone must do."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def external_files(proto: ModelProto) -> list[str]:
    """Relative locations of the model's external data files, sorted."""
    found: set[str] = set()
    for tensor in all_tensors(proto):
        if tensors.is_external(tensor):
            found.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return sorted(found)


def copy_external(proto: ModelProto, source: Path, destination: Path) -> list[Path]:
    """Bring the external files of ``proto`` from folder ``source`` to folder ``destination``; returns new files.

    A file that is already there with the same bytes is left alone.

    Raises:
        OnnxfixError: another file stands in the way, or the disk is full. Nothing half-written stays.
    """
    made: list[Path] = []
    if source.resolve() == destination.resolve():
        return made
    try:
        for location in external_files(proto):
            old, new = source / location, destination / location
            if os.path.lexists(new):
                if not new.is_file() or not _same_bytes(old, new):
                    raise OnnxfixError(
                        f"{new}: another file has the name of the model's external data; move it"
                    )
                continue
            new.parent.mkdir(parents=True, exist_ok=True)
            with temporary_beside(new) as temporary:
                copy_file(old, temporary)
                replace(temporary, new)
            made.append(new)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return made


def _same_bytes(first: Path, second: Path) -> bool:
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as a, second.open("rb") as b:
        while True:
            left, right = a.read(1 << 20), b.read(1 << 20)
            if left != right:
                return False
            if not left:
                return True


def copy_file(source: Path, destination: Path) -> None:
    """Copy by reflink or ``copy_file_range`` where the system has them: the bytes need not pass through us."""
    with source.open("rb") as reader, destination.open("r+b") as writer:
        remaining = source.stat().st_size
        while remaining > 0:
            try:
                done = os.copy_file_range(reader.fileno(), writer.fileno(), min(remaining, 1 << 30))
            except (AttributeError, OSError) as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise OnnxfixError(f"{destination.parent}: cannot be written: {error.strerror}") from None
                done = 0
            if done == 0:
                break
            remaining -= done
        if remaining > 0:
            offset = source.stat().st_size - remaining
            reader.seek(offset)
            writer.seek(offset)
            try:
                shutil.copyfileobj(reader, writer, 1 << 20)
            except OSError as error:
                raise OnnxfixError(
                    f"{destination.parent}: cannot be written: {error.strerror or error}"
                ) from None
        writer.flush()
        os.fsync(writer.fileno())
