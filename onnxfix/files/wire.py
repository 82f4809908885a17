"""Files to models and back: the one place that knows how a model's bytes are read and written.

A file is read without its large weights: they stay where they are, with stand-ins in the ``ModelProto``
(:mod:`onnxfix.files.lazy`), and are copied by byte range when the model is written. A model that was not changed is
written by copying its file. External data is never parsed: it is checked to be there when the model is loaded, left in
place where the output stays in its folder, and copied file by file where the output moves.
"""
# Long because: reading and writing share how they name what went wrong, and both know where weights stay.

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError, EncodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxfix.errors import MissingFile, ModelError, OnnxfixError
from onnxfix.files import lazy, scan, tensors
from onnxfix.files.lazy import LARGE, Range, Source
from onnxfix.files.temporary import PLAIN, Temporary

PROTOBUF_LIMIT = 2**31 - 1
"""Bytes that one protobuf message may take (protobuf's own limit)."""
SMALL = 1 << 18
"""Bytes up to which a file is simply read: there is nothing to gain by leaving parts of it where they are."""
ALIGNMENT = 4096
"""Offsets of weights that are moved to another file are multiples of this, so that readers can map them (ONNX,
external data)."""

Target = Path | Temporary
"""Where bytes are written: a file that will be installed, or one in a temporary folder of ours."""


@dataclass(frozen=True)
class Loaded:
    """A model as it was read. ``proto`` is a private copy, free to be edited.

    ``skeleton`` is what it was parsed from: all bytes of the model, or those without the weights that stay in
    ``source``, which is open as long as this object lives. ``size`` is that of the file, in bytes.
    """

    proto: ModelProto
    skeleton: bytes = field(repr=False)
    path: Path | None = None
    source: Source | None = None
    beside: tuple[tuple[Path, tuple[int, ...]], ...] = ()
    """Files of the model that are not open, external data or itself, and what tells them from others of their name."""

    @property
    def base_dir(self) -> Path | None:
        """Folder that relative external data starts from."""
        return self.path.parent if self.path is not None else None

    @cached_property
    def outside(self) -> tuple[TensorProto, ...]:
        """The tensors whose bytes are in files of their own."""
        return tuple(tensor for tensor in all_tensors(self.proto) if tensors.is_external(tensor))

    @property
    def external(self) -> list[str]:
        """Relative locations of the external data files, sorted."""
        return _locations(self.outside)

    @property
    def size(self) -> int:
        """Bytes of the model, external data not counted."""
        return self.source.size if self.source is not None else len(self.skeleton)

    @property
    def stamp(self) -> tuple[int, ...]:
        """What tells the model's file from others of its name; empty for one that came from memory."""
        if self.source is not None:
            return self.source.stamp
        return dict(self.beside).get(self.path, ()) if self.path is not None else ()

    @property
    def mode(self) -> int:
        """What its files let everybody do, who may then do the same with what comes of them.

        Raises:
            ModelError: one of them is gone.
        """
        mode = PLAIN
        for path in {*([self.path] if self.path is not None else []), *(path for path, _ in self.beside)}:
            mode &= mode_of(path)
        return mode

    @property
    def oversize(self) -> bool:
        """Whether the model is larger than one protobuf may be: nothing but onnxfix reads it."""
        return self.size > PROTOBUF_LIMIT

    def fresh(self) -> ModelProto:
        """The model once more, as it was read."""
        return parse(self.skeleton, str(self.path or "the model"))

    def check(self) -> None:
        """Make sure that the files are still those that were read.

        Raises:
            ModelError: one was changed or replaced.
        """
        if self.source is not None:
            self.source.check()
        for path, stamp in self.beside:
            if lazy.stamp(path) != stamp:
                raise lazy.changed(path)

    def copy_to(self, path: Target) -> None:
        """Write the model to a file byte for byte.

        Raises:
            OnnxfixError: the disk is full or the file cannot be written, or the model has changed.
        """
        if self.source is None:
            write(self.skeleton, path)
        else:
            _write_pieces([(0, self.source.size)], path, self.source)


def load(source: str | os.PathLike[str] | ModelProto | bytes, *, large: int = LARGE) -> Loaded:
    """Read a model from a path, bytes, or a ``ModelProto`` (which is copied, never changed).

    ``large`` are the bytes from which on the weights of a file stay in it.

    Raises:
        ModelError: the file is missing, unreadable, not ONNX, or its external data is not where it should be.
    """
    if isinstance(source, ModelProto):
        try:
            data = source.SerializeToString()
        except EncodeError:
            raise ModelError(
                "the model is larger than 2 GB, or nested more deeply than protobuf can write; save it with external "
                "data and pass its path"
            ) from None
        return Loaded(parse(data, "the model"), data)
    if isinstance(source, bytes):
        return Loaded(parse(source, "the model"), source)
    loaded = open_model(Path(source), large=large)
    if loaded.outside:
        return replace_fields(loaded, beside=(*loaded.beside, *_external(loaded)))
    return loaded


def mode_of(path: Path) -> int:
    """What a file lets everybody do.

    Raises:
        ModelError: it is gone.
    """
    try:
        return path.stat().st_mode & PLAIN
    except OSError:
        raise lazy.changed(path) from None


def load_whole(path: str | os.PathLike[str]) -> Loaded:
    """``load``, with all weights in memory: for what hands the model to tools that know no stand-ins.

    Raises:
        ModelError: as for ``load``, or the file is larger than one protobuf may be.
    """
    path = Path(path)
    stamp = lazy.stamp(path)
    data = read(path)
    loaded = Loaded(parse(data, str(path)), data, path)
    return replace_fields(loaded, beside=((path, stamp), *_external(loaded)))


def open_model(path: Path, *, large: int = LARGE) -> Loaded:
    """``load`` for a file, whether or not its external data is there.

    Raises:
        ModelError: the file is missing, unreadable, or not ONNX.
    """
    _readable(path)
    try:
        source = Source(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    if source.size == 0:
        raise ModelError(f"{path}: is empty")
    if source.size <= SMALL and large >= LARGE:
        data = source.read(0, source.size)
        return Loaded(parse(data, str(path)), data, path, beside=((path, source.stamp),))
    try:
        skeleton = scan.assemble(source, scan.cut(source, large))
    except scan.Unusual:
        data = read(path)
        source.check()
        return Loaded(parse(data, str(path)), data, path, beside=((path, source.stamp),))
    except scan.Malformed as found:
        raise _no_model(str(path), found) from None
    if len(skeleton) > PROTOBUF_LIMIT:
        raise ModelError(f"{path}: takes more than 2 GB even without its weights, and protobuf stops there")
    return Loaded(parse(skeleton, str(path), source), skeleton, path, source)


def _external(loaded: Loaded) -> tuple[tuple[Path, tuple[int, ...]], ...]:
    """The external data files of a model.

    Raises:
        ModelError: one is missing or too short for its tensors, or outside the model's folder.
    """
    if loaded.path is None:
        return ()
    found: dict[Path, tuple[int, ...]] = {}
    places: dict[str, Path] = {}
    for tensor in loaded.outside:
        path = tensors.external_range(tensor, loaded.path.parent, places)[0]
        if path not in found:
            found[path] = lazy.stamp(path)
    return tuple(found.items())


def _readable(path: Path) -> None:
    """Refuse what is no regular file, before it is opened: opening a pipe would wait for a writer."""
    try:
        if path.is_dir():
            raise ModelError(f"{path}: is a directory; name the .onnx file in it")
        if path.exists() and not path.is_file():
            raise ModelError(f"{path}: is not a regular file")
        path.stat()
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the path
        raise ModelError(f"{str(path)!r}: cannot be read: {error}") from None


def read(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        ModelError: it is missing, a directory, unreadable, empty, or too large for one protobuf.
    """
    _readable(path)
    try:
        if path.stat().st_size > PROTOBUF_LIMIT:
            raise ModelError(f"{path}: larger than 2 GB; protobuf stops there, so save it with external data")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not data:
        raise ModelError(f"{path}: is empty")
    return data


def parse(data: bytes, name: str, source: Source | None = None) -> ModelProto:
    """Bytes to ``ModelProto``. ``source`` is the file that they come from, where they are not all of it.

    Raises:
        ModelError: the bytes are not an ONNX model.
    """
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        if source is None:
            found = scan.fault(lambda start, length: data[start : start + length], len(data))
        else:
            found = scan.fault(source.read, source.size)
        raise _no_model(name, found) from None
    if not proto.HasField("graph"):
        raise ModelError(f"{name}: not an ONNX model: it holds no graph")
    return proto


def _no_model(name: str, found: scan.Malformed | None) -> ModelError:
    where = f" (at byte {found.at}: {found.why})" if found is not None else ""
    return ModelError(f"{name}: not an ONNX model, or truncated: its bytes are no ModelProto{where}")


def all_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model: initializers, attributes, sparse parts, subgraphs, functions, training graphs."""
    graphs = [proto.graph]
    for info in proto.training_info:
        graphs += [info.initialization, info.algorithm]
    for graph in graphs:
        yield from _graph_tensors(graph)
    for function in getattr(proto, "functions", ()):
        yield from node_tensors(function.node)
        yield from _attribute_tensors([getattr(function, "attribute_proto", ())])


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from _stored_tensors(graph)
    yield from node_tensors(graph.node)


def _stored_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Every tensor in the attributes of these nodes, and of the nodes in their graphs."""
    return _attribute_tensors([node.attribute for node in nodes])


def _attribute_tensors(stack: list[Iterable[AttributeProto]]) -> Iterator[TensorProto]:
    while stack:
        for attribute in stack.pop():
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse_values = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for sparse in (*sparse_values, *attribute.sparse_tensors):
                yield sparse.values
                yield sparse.indices
            for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _stored_tensors(graph)
                stack.extend(node.attribute for node in graph.node)


def serialize(proto: ModelProto) -> bytes:
    """``ModelProto`` to bytes, weights included; the same bytes for the same model.

    Raises:
        ModelError: the model does not fit into one protobuf, or a file that holds its weights has changed.
    """
    data = _serialized(proto)
    pieces, length = scan.splice(data)
    if length > PROTOBUF_LIMIT:
        raise _too_large()
    return b"".join(_in_memory(data, pieces))


def _serialized(proto: ModelProto) -> bytes:
    """The model without what stays in files."""
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except (EncodeError, ValueError):
        raise _too_large() from None


def _too_large() -> ModelError:
    return ModelError("the fixed model does not fit into one protobuf (2 GB); keep its weights external")


def _in_memory(data: bytes, pieces: Sequence[scan.Piece]) -> Iterator[bytes]:
    for piece in pieces:
        if isinstance(piece, tuple):
            yield data[piece[0] : piece[1]]
        else:
            yield piece if isinstance(piece, bytes) else piece.read()


@dataclass(frozen=True)
class Layout:
    """What a model's file is to hold, and what goes to another one because it does not fit into one protobuf."""

    pieces: Sequence[scan.Piece]
    moved: Sequence[Range | bytes]
    _data: bytes = field(repr=False)

    def write(self, path: Target, weights: Target | None = None) -> None:
        """Write the files, weights first.

        Raises:
            ModelError: the file that holds the weights has changed.
            OnnxfixError: the disk is full or a file cannot be written.
        """
        if self.moved:
            assert weights is not None
            _write_pieces(self.moved, weights, self._data)
        _write_pieces(self.pieces, path, self._data)


def laid_out(proto: ModelProto, location: str | None) -> Layout:
    """How a model is written, its weights by copying byte ranges; the same bytes for the same model.

    Where it comes to more than ``PROTOBUF_LIMIT`` bytes, the weights that stayed in their file go to another one, as
    external data that the model calls ``location``.

    Raises:
        ModelError: it does not fit into one protobuf and not enough can be moved, or nowhere.
    """
    data = _serialized(proto)
    pieces, length = scan.splice(data)
    if length <= PROTOBUF_LIMIT:
        return Layout(pieces, (), data)
    moved: list[Range | bytes] = []
    if location is not None:
        pieces, length = scan.splice(data, _Place(location, moved))
    if length > PROTOBUF_LIMIT:
        raise _too_large()
    return Layout(pieces, moved, data)


def save(proto: ModelProto, path: Target, weights: Target | None = None) -> bool:
    """Write a model, its weights to the file ``weights`` beside it where both do not fit into one protobuf; returns
    whether they did not.

    Raises:
        ModelError: it does not fit into one protobuf and not enough can be moved, or its file has changed.
        OnnxfixError: the disk is full or a file cannot be written.
    """
    name = weights.path.name if isinstance(weights, Temporary) else weights.name if weights else None
    layout = laid_out(proto, name)
    layout.write(path, weights)
    return bool(layout.moved)


class _Place:
    """Gives payloads their places in an external data file; collects in ``moved`` what that file is to hold."""

    def __init__(self, location: str, moved: list[Range | bytes]) -> None:
        self.location, self.moved, self.end = location, moved, 0

    def __call__(self, where: Range, elem: int) -> bytes | None:
        if where.field != lazy.RAW and elem not in _PLAIN.get(where.field, ()):
            return None  # numbers that the wire format does not store as external data would
        gap = -self.end % ALIGNMENT
        if gap:
            self.moved.append(bytes(gap))
        self.moved.append(where)
        start = self.end + gap
        self.end = start + where.length
        reference = TensorProto(data_location=TensorProto.EXTERNAL)
        for key, value in (
            ("location", self.location),
            ("offset", str(start)),
            ("length", str(where.length)),
        ):
            reference.external_data.add(key=key, value=value)
        return bytes(reference.SerializeToString(deterministic=True))


_PLAIN = {4: (TensorProto.FLOAT, TensorProto.COMPLEX64), 10: (TensorProto.DOUBLE, TensorProto.COMPLEX128)}
"""Fields whose packed numbers are raw data already, for these element types."""


def _write_pieces(pieces: Iterable[scan.Piece], path: Target, data: bytes | Source) -> None:
    """Write pieces of ``data`` and payloads to a file.

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
            else:
                origin, start, length = _range(piece, data)
                used[origin.number] = origin
                if length < _WORTH_IT:
                    file.write(origin.read(start, length))
                else:
                    file.flush()
                    _copy_range(origin.fd, start, length, file.fileno())
                    file.seek(0, os.SEEK_END)
    for origin in used.values():
        origin.check()


@contextlib.contextmanager
def _opened(target: Target) -> Iterator[BinaryIO]:
    """The file with nothing in it; a temporary one is sealed when it was written.

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
            with open(target, "wb", buffering=1 << 20, opener=_emptied) as file:
                yield file
    except OSError as error:
        raise OnnxfixError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _emptied(path: str, flags: int) -> int:
    """Open a file for writing, and cut it only where it has something, as ``Temporary.emptied`` does."""
    handle = os.open(path, flags & ~os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if os.fstat(handle).st_size:
            os.ftruncate(handle, 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


_STEP = 1 << 28
"""Bytes of a file that are copied before somebody is asked whether to go on: a second's worth on a slow disk."""
_WORTH_IT = 1 << 16
"""Bytes from which on a system call for a copy is cheaper than reading and writing."""


def _range(piece: scan.Piece, data: bytes | Source) -> tuple[Source, int, int]:
    if isinstance(piece, Range):
        return piece.source, piece.offset, piece.length
    assert isinstance(piece, tuple)
    assert isinstance(data, Source)
    return data, piece[0], piece[1] - piece[0]


def _copy_range(source: int, start: int, length: int, destination: int) -> None:
    """Append ``length`` bytes of one open file to another: by reference where the file system can, else in the kernel,
    else through us."""
    offset, end = start, start + length
    while offset < end:
        try:
            done = os.copy_file_range(source, destination, min(end - offset, 1 << 30), offset)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (
                errno.ENOSPC,
                errno.EDQUOT,
                errno.EIO,
                errno.EFBIG,
            ):
                raise
            break
        if done == 0:
            break
        offset += done
    while offset < end:
        part = os.pread(source, min(end - offset, 1 << 20), offset)
        if not part:
            break  # cut short behind our back: told by whoever checks the source
        offset += len(part)
        while part:
            part = part[os.write(destination, part) :]


def write(data: bytes, path: Target) -> None:
    """Write ``data`` to a file.

    Raises:
        OnnxfixError: the disk is full or the file cannot be written.
    """
    with _opened(path) as file:
        file.write(data)


def external_files(proto: ModelProto) -> list[str]:
    """Relative locations of the model's external data files, sorted."""
    return _locations(tensor for tensor in all_tensors(proto) if tensors.is_external(tensor))


def _locations(outside: Iterable[TensorProto]) -> list[str]:
    return sorted(
        {entry.value for tensor in outside for entry in tensor.external_data if entry.key == "location"}
    )


def copy_file(source: Path, destination: Target, wanted: Callable[[], bool] = lambda: True) -> None:
    """Copy by reflink or ``copy_file_range`` where the system has them: the bytes need not pass through us.

    ``wanted`` is asked now and then, from this thread, whether to go on.

    Raises:
        ModelError: the file is changed meanwhile.
        OnnxfixError: the disk is full, a file cannot be read or written, or it is not ``wanted`` any more.
    """

    def pieces(size: int) -> Iterator[tuple[int, int]]:
        for start in range(0, max(size, 1), _STEP):
            if not wanted():
                raise OnnxfixError(f"{source}: its copy is not wanted any more")
            yield start, min(start + _STEP, size)

    try:
        origin = Source(source)
    except OSError as error:
        raise OnnxfixError(f"{source}: cannot be read: {error.strerror or error}") from None
    _write_pieces(pieces(origin.size), destination, origin)
