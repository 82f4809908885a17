"""Files to models: a file is read without its large weights, which stay where they are.

Stand-ins take the place of the weights in the ``ModelProto`` (:mod:`onnxfix.files.lazy`). A model that was not changed
is written by copying its file. External data is never parsed: loading checks that it is there. The first bytes of a
file that is no ONNX model say what it is.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto, TensorProto

from onnxfix.errors import MissingFile, ModelError, about
from onnxfix.files import bounds, lazy, saving, scan, tensors, wire
from onnxfix.files.atomic import PLAIN
from onnxfix.files.lazy import LARGE, Source
from onnxfix.files.walk import model_tensors
from onnxfix.runtime import confinement, system

SMALL = 1 << 18
"""Bytes up to which a file is simply read: leaving parts of it in the file gains nothing."""


@dataclass(frozen=True)
class Loaded:
    """A model as it was read. ``proto`` is a private copy, free to be edited.

    ``skeleton`` is what it was parsed from: all bytes of the model, or those without the weights that stay in
    ``source``, which is open as long as this object lives.
    """

    proto: ModelProto
    skeleton: bytes = field(repr=False)
    path: Path | None = None
    source: Source | None = None
    beside: tuple[tuple[Path, tuple[int, ...]], ...] = ()
    """Files of the model that are not held open (its external data, or its own file), each with its stamp."""

    @property
    def base_dir(self) -> Path | None:
        """Folder that relative external data starts from."""
        return self.path.parent if self.path is not None else None

    @cached_property
    def outside(self) -> tuple[TensorProto, ...]:
        """The tensors that are stored as external data. On the way, dimensions of all tensors are checked.

        Raises:
            ModelError: those of one are no shape.
        """
        found = []
        for tensor in model_tensors(self.proto):
            tensors.check_dims(tensor)
            if tensors.is_external(tensor):
                found.append(tensor)
        return tuple(found)

    @property
    def external(self) -> list[str]:
        """Relative locations of the external data files, sorted."""
        return tensors.locations(self.outside)

    @property
    def size(self) -> int:
        """Size of the model in bytes, without external data."""
        return self.source.size if self.source is not None else len(self.skeleton)

    @property
    def stamp(self) -> tuple[int, ...]:
        """The stamp of the model's file, as ``lazy.stamp`` makes it; empty for a model from memory."""
        if self.source is not None:
            return self.source.stamp
        return dict(self.beside).get(self.path, ()) if self.path is not None else ()

    @property
    def mode(self) -> int:
        """The permissions that all its files grant: those that files made from it may have at most.

        Raises:
            ModelError: one of the files is missing.
        """
        mode = PLAIN
        for path in {*([self.path] if self.path is not None else []), *(path for path, _ in self.beside)}:
            try:
                mode &= path.stat().st_mode
            except OSError:
                raise lazy.changed(path) from None
        return mode

    @property
    def oversize(self) -> bool:
        """Whether the model is larger than one protobuf may be: nothing but onnxfix reads it."""
        return self.size > wire.PROTOBUF_LIMIT

    def fresh(self) -> ModelProto:
        """The model parsed again, as it was read."""
        return parse(self.skeleton, str(self.path or "the model"))

    def check(self) -> None:
        """Make sure that the files are still those that were read.

        Raises:
            ModelError: a file was changed or replaced.
        """
        if self.source is not None:
            self.source.check()
        for path, stamp in self.beside:
            if lazy.stamp(path) != stamp:
                raise lazy.changed(path)

    def copy_to(self, path: saving.Target) -> None:
        """Write the model to a file byte for byte.

        Raises:
            OnnxfixError: the disk is full or the file cannot be written, or the model has changed.
        """
        if self.source is None:
            saving.write(self.skeleton, path)
        else:
            saving.write_pieces([lazy.whole(self.source)], path)


def load(source: str | os.PathLike[str] | ModelProto | bytes, *, large: int = LARGE) -> Loaded:
    """Read a model from a path, bytes, or a ``ModelProto`` (which is copied, never changed).

    Weights of a file stay in it from ``large`` bytes on.

    Raises:
        ModelError: the file is missing, unreadable, not ONNX, or its external data is not where it should be, or its
            structure takes too much memory.
    """
    if isinstance(source, ModelProto):
        try:
            data = source.SerializeToString()
        except EncodeError:
            raise ModelError(
                "the model is larger than 2 GB, or nested more deeply than protobuf can write; save it with external "
                "data and pass its path"
            ) from None
        return _from_memory(data)
    if isinstance(source, bytes):
        return _from_memory(source)
    with about(source):
        loaded = open_model(Path(source), large=large, budget=bounds.Budget())
        for location in loaded.external:
            confinement.name(Path(source).parent / location)
        return _with_data_files(loaded)


def _from_memory(data: bytes) -> Loaded:
    bounds.check(data)
    loaded = Loaded(parse(data, "the model"), data)
    _ = loaded.outside  # which checks the tensors
    return loaded


def load_whole(path: str | os.PathLike[str]) -> Loaded:
    """``load`` with all weights in memory, for tools that do not know stand-ins.

    Raises:
        ModelError: as for ``load``, or the file is larger than one protobuf may be.
    """
    path = Path(path)
    with about(path):
        stamp = lazy.stamp(path)
        confinement.name(path)
        return _with_data_files(_in_memory(read(path), path, stamp, bounds.Budget()))


def open_model(path: Path, *, large: int = LARGE, budget: bounds.Budget | None = None) -> Loaded:
    """``load`` for a file, whether or not its external data is there.

    ``budget`` is what its structure may take; None for a file that was read before, or was made here.

    Raises:
        ModelError: the file is missing, unreadable, or not ONNX, or beyond the budget.
    """
    _check_readable(path)
    confinement.name(path)
    try:
        source = Source(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    if source.size == 0:
        raise ModelError(f"{path}: is empty")
    if (
        source.size <= (SMALL if system.OPEN_FILES_CAN_BE_REPLACED else wire.PROTOBUF_LIMIT)
        and large >= LARGE
    ):
        return _in_memory(source.read(0, source.size), path, source.stamp, budget)
    try:
        skeleton = scan.assemble(scan.cut(source, large, budget))
    except wire.Unusual:
        data = read(path)
        source.check()
        return _in_memory(data, path, source.stamp, budget)
    except wire.Malformed as found:
        raise _not_a_model(str(path), found, _kind_of(b"", source)) from None
    if len(skeleton) > wire.PROTOBUF_LIMIT:
        raise ModelError(f"{path}: takes more than 2 GB even without its weights, the limit of protobuf")
    if budget is not None:
        bounds.check(skeleton)
    return Loaded(parse(skeleton, str(path), source), skeleton, path, source)


def _in_memory(data: bytes, path: Path, stamp: tuple[int, ...], budget: bounds.Budget | None) -> Loaded:
    """A model from all bytes of its file.

    Raises:
        ModelError: the bytes are no model, or beyond the budget.
    """
    if budget is not None:
        bounds.check(data)
    return Loaded(parse(data, str(path)), data, path, beside=((path, stamp),))


def _with_data_files(loaded: Loaded) -> Loaded:
    """The model, with its external data files and their stamps among those beside it.

    Raises:
        ModelError: one is missing or too short for its tensors, or outside the model's folder.
    """
    assert loaded.path is not None
    places: dict[str, Path] = {}
    paths = [tensors.external_range(tensor, loaded.path.parent, places)[0] for tensor in loaded.outside]
    stamps = ((path, lazy.stamp(path)) for path in dict.fromkeys(paths))
    return replace_fields(loaded, beside=(*loaded.beside, *stamps))


def _check_readable(path: Path) -> None:
    """Refuse what is not a regular file before it is opened: opening a pipe would wait for a writer."""
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
    _check_readable(path)
    try:
        if path.stat().st_size > wire.PROTOBUF_LIMIT:
            raise ModelError(f"{path}: larger than 2 GB, the limit of protobuf; save it with external data")
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not data:
        raise ModelError(f"{path}: is empty")
    return data


def parse(data: bytes, name: str, source: Source | None = None) -> ModelProto:
    """Bytes to ``ModelProto``. ``source`` is the file that ``data`` was read from, if ``data`` is not all of it.

    Raises:
        ModelError: the bytes are not an ONNX model.
    """
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        if source is None:
            found = wire.fault(lambda start, length: data[start : start + length], len(data))
        else:
            found = wire.fault(source.read, source.size)
        raise _not_a_model(name, found, _kind_of(data, source)) from None
    if not proto.HasField("graph"):
        kind = _kind_of(data, source)
        raise ModelError(f"{name}: {kind or 'not an ONNX model: it has no graph'}")
    return proto


def _kind_of(data: bytes, source: Source | None) -> Kind | None:
    """What the file looks like."""
    return kind_of(data[:HEAD] if source is None else source.read(0, min(HEAD, source.size)))


def _not_a_model(name: str, found: wire.Malformed | None, kind: Kind | None) -> ModelError:
    if kind is not None:
        return ModelError(f"{name}: {kind}")
    where = f" (at byte {found.at}: {found.why})" if found is not None else ""
    return ModelError(f"{name}: not an ONNX model, or truncated: its bytes are no ModelProto{where}")


HEAD = 4096
"""Bytes that ``kind_of`` looks at."""
_SHOWN = 40
_SHORTEST = 8
"""Characters of a text: fewer may be the beginning of a model that was cut short."""


class Kind(NamedTuple):
    """What a file looks like, and what to do about it ("": nothing that is known)."""

    what: str
    advice: str = ""

    def __str__(self) -> str:
        """``not an ONNX model (looks like an HTML page): the download failed``."""
        return f"not an ONNX model (looks like {self.what})" + (f": {self.advice}" if self.advice else "")


_EXPORT = "export it with torch.onnx.export"
_UNPACK = "decompress it first"
_MAGIC: tuple[tuple[str, Kind], ...] = (
    (r"version https://git-lfs", Kind("a Git LFS pointer", "fetch the model itself with 'git lfs pull'")),
    (r"\x1f\x8b", Kind("gzip data", _UNPACK)),
    (r"BZh\d", Kind("bzip2 data", _UNPACK)),
    (r"\xfd7zXZ\0", Kind("xz data", _UNPACK)),
    (r"\x28\xb5\x2f\xfd", Kind("zstd data", _UNPACK)),
    (r"7z\xbc\xaf", Kind("a 7z archive", _UNPACK)),
    (r".{257}ustar", Kind("a tar archive", _UNPACK)),
    (r"[a-z]trt\0\0\0\0", Kind("a TensorRT engine", "an engine is built from an ONNX model; name that one")),
    (r"....ORTM", Kind("ONNX Runtime's ORT format", "name the .onnx file that it was made from")),
    (r"....TFL3", Kind("a TensorFlow Lite model", "convert it with tf2onnx")),
    (r"\x89HDF\r\n", Kind("an HDF5 file, as Keras writes", "convert it with tf2onnx")),
    (r"GGUF", Kind("a GGUF file of llama.cpp")),
    (r".{6}\0\0\{", Kind("safetensors: weights without a graph", _EXPORT)),
    (r"\x93NUMPY", Kind("a NumPy array", "inputs are given by --inputs")),
    (r"\x80[\x02-\x05](?:\x8a\nl\xfc\x9cF\xf9|.*torch)", Kind("a PyTorch checkpoint", _EXPORT)),
    (r"\x80[\x02-\x05][\x8a\x95}\](]", Kind("a Python pickle")),
    (r"PK\x03\x04.*(?:data\.pkl|/code/|constants\.pkl)", Kind("a PyTorch checkpoint", _EXPORT)),
    (r"PK\x03\x04.*\.onnx", Kind("a zip archive with an .onnx file in it", "unpack it first")),
    (r"PK\x03\x04.*\.npy", Kind("NumPy's .npz", "inputs are given by --inputs")),
    (r"PK\x03\x04", Kind("a zip archive", "unpack it first")),
    (r"\x7fELF", Kind("a program or library")),
    (r"\0{16}", Kind("a file of zeros", "the download or the copy failed")),
)
_AS_TEXT = "save it as a binary model: onnx.save(onnx.load(path, format={}), 'model.onnx')"
_TEXTS: tuple[tuple[str, Kind], ...] = (
    (r"<!doctype html|<html|<head", Kind("an HTML page", "the download failed, or needs a login")),
    (r"<\?xml.*<net\b|<net\b", Kind("an OpenVINO model", "name the .onnx file that it was made from")),
    (r"<\?xml", Kind("XML")),
    (r"<\s*ir_version\s*:", Kind("a model in ONNX's text syntax", _AS_TEXT.format("'onnxtxt'"))),
    (r"ir_version\s*:", Kind("a model as protobuf text", _AS_TEXT.format("'textproto'"))),
    (r"\{.*\"(?:ir_?version|opset_?import)\"", Kind("a model as JSON", _AS_TEXT.format("'json'"))),
    (r"[\{\[]", Kind("JSON")),
)


def kind_of(head: bytes) -> Kind | None:
    """What a file that is no ONNX model looks like, by its first ``HEAD`` bytes; None if that is not known."""
    head = head[:HEAD]
    for pattern, kind in _MAGIC:
        if re.match(pattern.encode("latin-1"), head, re.DOTALL):
            return kind
    text = _text(head)
    if text is None:
        return None
    for pattern, kind in _TEXTS:
        if re.match(pattern, text.lstrip("\ufeff \t\r\n"), re.DOTALL | re.IGNORECASE):
            return kind
    if len(text) < _SHORTEST:
        return None
    line = " ".join(text.split())
    return Kind(f"text: {line[:_SHOWN] + '…' if len(line) > _SHOWN else line!r}" if line else "blank lines")


def _text(head: bytes) -> str | None:
    """The bytes as text; None if they are none."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16"
        head = head[: len(head) // 2 * 2]
    else:
        encoding = "utf-8"
    try:
        text = head.decode(encoding)
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3 or len(head) < HEAD:  # the head may end within a character
            return None
        text = head[: error.start].decode(encoding, "ignore")
    return text if all(char.isprintable() or char in "\t\r\n\f\ufeff" for char in text) else None
