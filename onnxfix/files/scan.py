"""Takes the weights out of a serialized model, and puts them back.

``cut`` walks a file's messages down to its tensors and lists the bytes to keep and the stand-ins for large payloads;
``splice`` does the opposite for a serialized model. Both parse only the fields that can contain tensors. All other
bytes are copied unparsed, for protobuf to judge. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from onnx import TensorProto

from onnxfix.files import bounds, lazy
from onnxfix.files.lazy import LARGE, PAYLOADS, RAW, TOKEN_SIZE, Range, Source
from onnxfix.files.wire import MAX_DEPTH, Window, check_whole_numbers, fields, prefix, read_varint

TENSOR, STRING_DATA, EXTERNAL_DATA = "TensorProto", 6, 13
INSIDE: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: TENSOR, 15: "SparseTensorProto"},
    "SparseTensorProto": {1: TENSOR, 2: TENSOR},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: TENSOR, 6: "GraphProto", 10: TENSOR, 11: "GraphProto", 22: "SparseTensorProto", 23: "SparseTensorProto",
    },
}  # fmt: skip
"""The fields that can contain tensors, by message: field number to type of the message in it."""
SINGULAR = {("AttributeProto", 5), ("AttributeProto", 22), ("SparseTensorProto", 1), ("SparseTensorProto", 2)}
"""Fields with one message. If a file has two, protobuf merges them, and their tensors stay in memory."""
INDICES = ("SparseTensorProto", 2)
"""The field whose numbers onnx's checker reads. It reads no external data, so they stay embedded."""

Piece: TypeAlias = "bytes | memoryview | Range"
"""Part of an output file: bytes, or a range of a file."""


@dataclass
class _Parts:
    """A message under construction: ``data`` is copied from ``start`` on, up to the next replacement."""

    data: Source | memoryview
    start: int
    pieces: list[Piece] = field(default_factory=list)
    length: int = 0

    def until(self, position: int) -> None:
        """Copy the input from ``start`` up to ``position``; ``start`` stays."""
        if position > self.start:
            size = position - self.start
            if isinstance(self.data, Source):
                self.pieces.append(Range(self.data, RAW, self.start, size))
            else:
                self.pieces.append(self.data[self.start : position])
            self.length += size

    def put(self, piece: Piece, end: int) -> None:
        """Add ``piece``, and go on with the input from ``end`` on."""
        self.pieces.append(piece)
        self.length += piece.length if isinstance(piece, Range) else len(piece)
        self.start = end

    def nest(self, number: int, inner: _Parts, end: int) -> None:
        """Replace the message that ends at ``end`` by a changed one."""
        self.put(prefix(number, inner.length), end)
        self.pieces.extend(inner.pieces)
        self.length += inner.length


def cut(source: Source, large: int = LARGE, budget: bounds.Budget | None = None) -> list[Piece]:
    """Split a model into ranges of its file and bytes with stand-ins for large payloads.

    Args:
        source: the model's file.
        large: minimum size in bytes of a payload that gets a stand-in.
        budget: limits the elements that the walk visits, and with them its time; None: no limit.

    Raises:
        Malformed: the file cannot be parsed as fields down to its tensors.
        TooLarge: the model is beyond its budget.
        ModelError: the file changes while it is read.
    """
    parts = _Cutter(source, max(large, TOKEN_SIZE), budget).message("ModelProto", 0, source.size, 0)
    return parts.pieces if parts is not None else [lazy.whole(source)]


class _Cutter:
    """Removes the large payloads of a file. ``_removed`` counts the bytes removed so far."""

    def __init__(self, source: Source, large: int, budget: bounds.Budget | None) -> None:
        self._source, self._large, self._budget = source, large, budget
        self._window, self._removed = Window(source.read, source.size), 0

    def message(self, name: str, start: int, end: int, depth: int) -> _Parts | None:
        """A message without its large payloads; None if it has none."""
        if name == TENSOR:
            return self._tensor(start, end)
        inside, kind, parts = INSIDE[name], bounds.kinds()[name], _Parts(self._source, start)
        costs, budget = kind.costs, self._budget
        seen: set[int] = set()
        for number, wire, begin, body, stop in fields(self._window, start, end):
            if budget is not None:
                budget.charge(costs.get(number, bounds.FIELD), begin - self._removed, kind, number)
            inner_type = inside.get(number)
            if inner_type is None or wire != 2:
                continue
            if (name, number) in SINGULAR:
                if number in seen:
                    return None
                seen.add(number)
            if stop - body < self._large or depth >= MAX_DEPTH:
                continue
            inner = self.message(inner_type, body, stop, depth + 1)
            if inner is not None:
                inner.until(stop)
                parts.until(begin)
                parts.nest(number, inner, stop)
        if not parts.pieces:
            return None
        if depth == 0:
            parts.until(end)
        return parts

    def _tensor(self, start: int, end: int) -> _Parts | None:
        """A tensor with a stand-in; None unless it has exactly one payload, in one piece."""
        payload: tuple[int, int, int, int, int] | None = None
        for entry in fields(self._window, start, end):
            if entry[0] in PAYLOADS or entry[0] in (STRING_DATA, EXTERNAL_DATA):
                if payload is not None:
                    return None
                payload = entry
        if payload is None:
            return None
        number, wire, begin, body, stop = payload
        if wire != 2 or number not in PAYLOADS or stop - body < self._large:
            return None
        if number != RAW:
            field = TensorProto.DESCRIPTOR.fields_by_number[number]
            check_whole_numbers(self._source.read, field, begin, body, stop)
        self._removed += stop - body
        parts = _Parts(self._source, start)
        parts.until(begin)
        parts.put(prefix(RAW, TOKEN_SIZE) + Range(self._source, number, body, stop - body).token, stop)
        return parts


def assemble(pieces: Iterable[Piece]) -> bytes:
    """Join pieces.

    Raises:
        ModelError: a file has changed.
    """
    return b"".join(piece.read() if isinstance(piece, Range) else piece for piece in pieces)


Placed = Callable[[Range, int], "bytes | None"]


def splice(data: bytes, outside: Placed | None = None) -> tuple[list[Piece], int]:
    """The pieces of a serialized model with its stand-ins replaced by their payloads, and their total size in bytes.

    Args:
        data: the serialized model, with stand-ins.
        outside: called with each payload and its tensor's type (TensorProto.DataType); returns the fields that refer
            to it if it goes to another file, None if it is to be embedded.
    """
    positions = list(lazy.tokens(data))
    if not positions:
        return [data], len(data)
    parts = _Splicer(Window.of(data), positions, outside).message("ModelProto", 0, len(data))
    parts.until(len(data))
    return parts.pieces, parts.length


class _Splicer:
    """Replaces stand-ins by payloads. ``positions`` are their sorted offsets. Parses no other messages."""

    def __init__(self, window: Window, positions: list[int], outside: Placed | None) -> None:
        self.window, self.outside, self.data = window, outside, memoryview(window.data)
        self._positions = iter(positions)
        self._next = next(self._positions)

    def message(self, kind: str, start: int, end: int) -> _Parts:
        inside, parts = INSIDE[kind], _Parts(self.data, start)
        for number, wire, begin, body, stop in fields(self.window, start, end):
            if self._next >= end:
                break
            if stop <= self._next:
                continue
            inner_type = inside.get(number)
            assert inner_type is not None, "a stand-in outside of a tensor"
            assert wire == 2, "a stand-in in a number"
            if inner_type == TENSOR:
                inner = self._tensor(body, stop, self.outside if (kind, number) != INDICES else None)
            else:
                inner = self.message(inner_type, body, stop)
            inner.until(stop)
            parts.until(begin)
            parts.nest(number, inner, stop)
        return parts

    def _tensor(self, start: int, end: int, outside: Placed | None) -> _Parts:
        """A tensor with its payload, in the order in which protobuf writes fields: by number."""
        parts, tensor_fields, elem = _Parts(self.data, start), list(fields(self.window, start, end)), 0
        _, _, begin, body, stop = next(entry for entry in tensor_fields if entry[3] == self._next)
        stored = lazy.range_at(self.window.data[body:stop])
        for number, wire, _, value, after in tensor_fields:
            if number == 2 and wire == 0:
                elem = read_varint(self.window.data[value:after], 0)[0]
        self._next = next(self._positions, 1 << 62)
        reference = outside(stored, elem) if outside is not None else None
        if reference is not None or stored.field == RAW:
            position = stop if reference is None else end
        else:  # Fields after the stand-in have greater numbers, or are unknown to protobuf and come last.
            later = (b for n, _, b, _, _ in tensor_fields if b > begin or (n > stored.field and b != begin))
            position = next(later, end)
        if position > begin:
            parts.until(begin)
            parts.start = stop
        parts.until(position)
        if reference is not None:
            parts.put(reference, position)
        else:
            parts.put(prefix(stored.field, stored.length), position)
            parts.put(stored, position)
        if position <= begin:
            parts.until(begin)
            parts.start = stop
        return parts
