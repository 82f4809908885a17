"""``ModelProto`` to bytes and files: weights are copied by byte range from where they are, and moved to another file
where the model does not fit into one protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import EncodeError
from onnx import ModelProto, TensorProto

from onnxfix.errors import ModelError
from onnxfix.files import copying, lazy, scan, tensors, walk, wire
from onnxfix.files.atomic import Temporary
from onnxfix.files.copying import Target, Whole
from onnxfix.files.lazy import Range
from onnxfix.files.walk import model_tensors

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
            copying.write_pieces(self.moved, weights)
        copying.write_pieces(self.pieces, path)


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
