"""Files to models and back: the one place that knows how a model's bytes are read and written.

A file is read without its large weights: they stay where they are, with stand-ins in the ``ModelProto``
(:mod:`onnxfix.graph.lazy`), and are copied by byte range when the model is written. A model that was not changed is
written by copying its file. External data is never parsed: it is checked to be there when the model is loaded, left in
place where the output stays in its folder, and copied file by file where the output moves.
"""
# Long because: reading, writing and replacing files share how they name what went wrong.

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import cached_property
from pathlib import Path

from google.protobuf.message import DecodeError, EncodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.graph import lazy, regular, scan, tensors
from onnxfix.graph.lazy import LARGE, Range, Source

PROTOBUF_LIMIT = 2**31 - 1
"""Bytes that one protobuf message may take (protobuf's own limit)."""
SMALL = 1 << 18
"""Bytes up to which a file is simply read: there is nothing to gain by leaving parts of it where they are."""
ALIGNMENT = 4096
"""Offsets of weights that are moved to another file are multiples of this, so that readers can map them (ONNX,
external data)."""


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

    def copy_to(self, path: Path) -> None:
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
        raise ModelError(f"{path}: no such file") from None
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


def save(proto: ModelProto, path: Path, weights: Path | None = None, location: str | None = None) -> bool:
    """Write a model to a file, its weights by copying byte ranges; the same bytes for the same model.

    Where it comes to more than ``PROTOBUF_LIMIT`` bytes, the weights that stayed in their file go to the file
    ``weights`` instead, as external data of the model, which calls it ``location`` (its own name, without that);
    returns whether they did.

    Raises:
        ModelError: it does not fit into one protobuf and not enough can be moved, or its file has changed.
        OnnxfixError: the disk is full or a file cannot be written. The file ``weights`` is not left behind.
    """
    data = _serialized(proto)
    pieces, length = scan.splice(data)
    if length <= PROTOBUF_LIMIT:
        _write_pieces(pieces, path, data)
        return False
    if weights is None:
        raise _too_large()
    moved: list[Range | bytes] = []
    place = _Place(location or weights.name, moved)
    pieces, length = scan.splice(data, place)
    if length > PROTOBUF_LIMIT:
        raise _too_large()
    try:
        _write_pieces(moved, weights, data)
        _write_pieces(pieces, path, data)
    except BaseException:
        weights.unlink(missing_ok=True)
        raise
    return True


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


def _write_pieces(pieces: Iterable[scan.Piece], path: Path, data: bytes | Source) -> None:
    """Write pieces of ``data`` and payloads to a file that is there.

    Raises:
        ModelError: a file that holds a payload has changed.
        OnnxfixError: the disk is full or the file cannot be written.
    """
    used: dict[int, Source] = {}
    try:
        with open(path, "wb", buffering=1 << 20, opener=_emptied) as file:
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
    except OSError as error:
        raise OnnxfixError(f"{path.parent}: cannot be written: {error.strerror or error}") from None
    for origin in used.values():
        origin.check()


def _emptied(path: str, flags: int) -> int:
    """Open a file for writing, and cut it only where it has something: ext4 starts to write a file that was cut to the
    disk as soon as it is closed, and an empty one counts as cut (``auto_da_alloc``), for which the closer waits."""
    handle = os.open(path, flags & ~os.O_TRUNC, 0o666)
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
    """Write ``data`` to a file.

    Raises:
        OnnxfixError: the disk is full or the file cannot be written.
    """
    try:
        with path.open("wb") as file:
            file.write(data)
    except OSError as error:
        raise OnnxfixError(f"{path.parent}: cannot be written: {error.strerror or error}") from None


def replace(temporary: Path, destination: Path, *, backup: bool = False, needs: Iterable[Path] = ()) -> None:
    """Move a finished temporary file to its destination in one step; the old file is either whole or replaced.

    With ``backup``, ``destination.bak`` holds the old bytes until the new file is safely in place. The new file, and
    ``needs``, the files written with it that it refers to, take the old one's permissions. A link stays: what it leads
    to is replaced. What replaces something is on the disk before it does, so that not even a power failure can take
    both; a file that is new is left to the system's cache.

    Raises:
        OnnxfixError: the destination cannot be replaced, or is no regular file.
    """
    destination = regular.destination(destination)
    replaces = destination.exists()
    saved = destination.with_name(destination.name + ".bak") if backup and replaces else None
    ours: Path | None = None
    try:
        for path in (*needs, temporary):
            if replaces:
                _sync(path)
            _copy_mode(path, destination)
        if saved is not None:
            if saved.exists() and same_bytes(saved, destination):
                saved.unlink()  # a run that was killed left it
            elif os.path.lexists(saved):
                raise OnnxfixError(f"{saved}: is in the way of a backup; move it and run again")
            ours = saved
            try:
                os.link(destination, saved)
            except OSError:  # a file system without hard links
                shutil.copy2(destination, saved)
        os.replace(temporary, destination)
        if replaces:
            with contextlib.suppress(
                OSError
            ):  # some systems cannot open folders; there the rename alone must do
                _sync(destination.parent)
    except OSError as error:
        raise OnnxfixError(f"{destination}: cannot be written: {error.strerror or error}") from None
    finally:  # at the destination is either the old file or the new one, whole
        if ours is not None:
            ours.unlink(missing_ok=True)


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


def _sync(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def external_files(proto: ModelProto) -> list[str]:
    """Relative locations of the model's external data files, sorted."""
    return _locations(tensor for tensor in all_tensors(proto) if tensors.is_external(tensor))


def _locations(outside: Iterable[TensorProto]) -> list[str]:
    return sorted(
        {entry.value for tensor in outside for entry in tensor.external_data if entry.key == "location"}
    )


def copy_external(
    locations: Iterable[str], source: Path, destination: Path, wanted: Callable[[], bool] = lambda: True
) -> list[Path]:
    """Bring a model's external files from folder ``source`` to folder ``destination``; returns new files.

    A file that is already there with the same bytes is left alone. ``wanted`` as for ``copy_file``.

    Raises:
        OnnxfixError: another file stands in the way, the disk is full, or it is not ``wanted``. Nothing stays then.
    """
    made: list[Path] = []
    if source.resolve() == destination.resolve():
        return made
    try:
        for location in locations:
            old, new = source / location, destination / location
            if os.path.lexists(new):
                if not new.is_file() or not same_bytes(old, new):
                    raise OnnxfixError(
                        f"{new}: another file has the name of the model's external data; move it"
                    )
                continue
            new.parent.mkdir(parents=True, exist_ok=True)
            with temporary_beside(new) as temporary:
                copy_file(old, temporary, wanted)
                replace(temporary, new)
            made.append(new)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return made


def same_bytes(first: Path, second: Path) -> bool:
    """Whether two files hold the same."""
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as a, second.open("rb") as b:
        while True:
            left, right = a.read(1 << 20), b.read(1 << 20)
            if left != right:
                return False
            if not left:
                return True


def copy_file(source: Path, destination: Path, wanted: Callable[[], bool] = lambda: True) -> None:
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
