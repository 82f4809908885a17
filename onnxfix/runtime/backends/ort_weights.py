"""Where ONNX Runtime finds a model's weights: mapped from the files that hold them, and never read into memory.

It maps external data (page by page, at any offset) and copies what a model file embeds, twice for a moment. So it is
given a skeleton of the model that names the file itself as the place of its large weights. That takes half the time to
load and half the memory, and computes the same bits. The ranges come from the lazy reader of ``graph``, whose work is
judged here among other things: each is used only where the file itself says, right before the bytes, that these are so
many bytes of the tensor of that name. Whatever else is odd, the file is loaded as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto

from onnxfix.errors import OnnxfixError
from onnxfix.files import lazy, loading, tensors, walk, wire

WORTH = 1 << 18
"""Bytes of a weight from which on it is mapped: below, a system call costs more than the copy."""
LARGE = 1 << 30
"""Bytes of weights from which on a model is large: then nothing is held in memory to save time."""
_FEWEST = 16 << 20  # bytes of a file in which weights are looked for
_PAGES = 1 << 17  # bytes by which a mapping may be longer than what is mapped
_NAME, _RAW = 8, lazy.RAW  # fields of TensorProto


def weight_bytes(model: ModelProto) -> int:
    """Bytes of all tensors that the model holds, wherever they lie."""
    return sum(tensors.nbytes(one) for one in walk.model_tensors(model))


@dataclass(frozen=True)
class Stored:
    """A model's weights: their bytes (``total``), how much is mapped of files of their own (``outside``), and the
    skeleton with which ``inside`` more is mapped of the model's file. ``folder`` is where all these files are."""

    total: int = 0
    outside: int = 0
    inside: int = 0
    skeleton: ModelProto | None = None
    folder: str = ""

    @property
    def large(self) -> bool:
        """Whether to save memory rather than time."""
        return self.total >= LARGE


def stored(path: str) -> Stored:
    """Where the weights of a model file are; of one that is no ordinary model, or is changed meanwhile, nothing is
    known."""
    try:
        return _stored(path)
    except (OnnxfixError, OSError, UnicodeError):
        return Stored()


def borrow(path: str, like: str) -> Stored | None:
    """Where the weights of a model file are if its external data is mapped from the files of the model ``like``, which
    have the same bytes: both models then share their memory. None where a weight is not found there."""
    try:
        return _borrow(*(loading.open_model(Path(one)) for one in (path, like)))
    except (OnnxfixError, OSError, UnicodeError):
        return None


def _borrow(own: loading.Loaded, other: loading.Loaded) -> Stored | None:
    files: dict[Path, lazy.Source] = {}
    mine, theirs = ([*_external(one, files)] for one in (own, other))
    alike: dict[tuple[int | str, int], tuple[TensorProto, lazy.Range]]
    alike = {(where.offset, where.length): (tensor, where) for tensor, where in theirs}
    alike |= {(tensor.name, where.length): (tensor, where) for tensor, where in theirs}
    if own.size > _FEWEST:  # it would be read into memory
        return None
    for tensor, where in mine:
        found = alike.get((tensor.name, where.length)) or alike.get((where.offset, where.length))
        if found is None or not lazy.equal(found[1], where):
            return None
        del tensor.external_data[:]
        tensor.external_data.extend(found[0].external_data)
    _fill(own.proto)
    outside = sum(where.length + _PAGES for _, where in mine)
    return Stored(weight_bytes(own.proto), outside, skeleton=own.proto, folder=str(other.base_dir))


def _external(
    loaded: loading.Loaded, files: dict[Path, lazy.Source]
) -> Iterator[tuple[TensorProto, lazy.Range]]:
    """The tensors in external data, and where each is; ``files`` are those that are open."""
    for tensor in walk.model_tensors(loaded.proto):
        if tensors.is_external(tensor) and loaded.base_dir is not None:
            file, offset, length = tensors.external_range(tensor, loaded.base_dir)
            if file not in files:
                files[file] = lazy.Source(file)
            yield tensor, lazy.Range(files[file], _RAW, offset, length)


def shared(path: str, file: Path, least: int) -> tuple[ModelProto, Stored]:
    """The model and where its weights are: in files, so that variants of it are cheap. Weights of ``least`` bytes and
    more of a small model are written to ``file``. A model with external data keeps its embedded weights, since there is
    only one folder."""
    where = stored(path)
    model = where.skeleton or onnx.load(path, load_external_data=False)
    if where.skeleton is not None or where.outside:
        return model, where
    with file.open("wb") as stream:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) < least:
                continue
            stream.write(b"\0" * (-stream.tell() % 64))
            place = {"location": file.name, "offset": stream.tell(), "length": len(tensor.raw_data)}
            stream.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            _put_outside(tensor, place)
        return model, replace(where, folder=str(file.parent), outside=stream.tell())


def _put_outside(tensor: TensorProto, place: Mapping[str, object]) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))


def _stored(path: str) -> Stored:
    loaded = loading.open_model(Path(path))
    sizes = [(tensors.is_external(one), tensors.nbytes(one)) for one in walk.model_tensors(loaded.proto)]
    folder, outside = os.path.dirname(os.path.abspath(path)), (size for external, size in sizes if external)
    found = Stored(sum(size for _, size in sizes), sum(size + _PAGES for size in outside), folder=folder)
    # ONNX Runtime follows none out of the folder; what lies beside it is found there
    linked = os.path.islink(path)
    if loaded.source is None or loaded.size < _FEWEST or (linked and found.outside):
        return found
    folder, name = os.path.split(os.path.realpath(path) if linked else os.path.abspath(path))
    inside = _externalize(loaded.proto, loaded.source, name)
    if not inside:
        return found
    _fill(loaded.proto)
    loaded.source.check()
    return replace(found, inside=inside, skeleton=loaded.proto, folder=folder)


def _fill(proto: ModelProto) -> None:
    """Read the weights that are embedded in the model's file."""
    for tensor in walk.model_tensors(proto):
        where = lazy.range_of(tensor)
        if where is not None:
            lazy.fill(tensor, where)


def _externalize(proto: ModelProto, source: lazy.Source, name: str) -> int:
    """Let the large initializers of the main graph name the model's own file; returns how many bytes are mapped."""
    total = 0
    for tensor in proto.graph.initializer:
        where = lazy.range_of(tensor)
        if where is None or where.length < WORTH or where.length != tensors.nbytes(tensor):
            continue
        if where.field != _RAW:
            continue
        # The bytes before a payload must be those with which protobuf writes this tensor's name and the length.
        name_bytes = tensor.name.encode()
        words = wire.prefix(_NAME, len(name_bytes)) + name_bytes + wire.prefix(_RAW, where.length)
        start = where.offset - len(words)
        if start <= 0 or source.read(start, len(words)) != words:
            continue
        tensor.ClearField("raw_data")
        _put_outside(tensor, {"location": name, "offset": where.offset, "length": where.length})
        total += where.length + _PAGES
    return total
