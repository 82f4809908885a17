"""Reads the protobuf wire format of a model without its weights, and puts them back.

``cut`` walks a file's messages down to its tensors and says which bytes to take over and where stand-ins go instead;
``splice`` does the opposite for a serialized model. Both look at the fields in which tensors may lie and at nothing
else: the rest is taken as it is, and is for protobuf to judge. Field numbers are those of onnx.proto.
"""
# Long because: taking a file apart, putting it together and saying what is wrong with it share what a field is.

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from onnx import ModelProto, TensorProto

from onnxfix.errors import ModelError
from onnxfix.files import lazy
from onnxfix.files.lazy import LARGE, PAYLOADS, RAW, TOKEN_SIZE, Range, Source, prefix

MAX_DEPTH = 100
"""Messages inside each other: protobuf reads no deeper."""
_TAG_AND_LENGTH = 20
_SHORT, _LONG = 5, 10
"""Bytes that a tag or a length may take, and any other number: what protobuf reads, however small the number."""

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
"""The fields in which tensors lie, by message: field number to the message that it holds."""
SINGULAR = {("AttributeProto", 5), ("AttributeProto", 22), ("SparseTensorProto", 1), ("SparseTensorProto", 2)}
"""Fields that hold one message. Where a file has two, protobuf merges them, and their tensors are left alone."""
INDICES = ("SparseTensorProto", 2)
"""The field of which onnx's checker reads the numbers, and from no other file."""

Piece: TypeAlias = "tuple[int, int] | bytes | Range"
"""Part of a file to come: bytes of the input from one position to another, bytes as they are, or a payload."""


class Malformed(Exception):
    """The bytes are no message: ``at`` is the offset of the field that cannot be."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at, self.why = at, why


class Unusual(Malformed):
    """Protobuf may read it, but this module does not."""


class Window:
    """The part of a file that is being looked at; grows while it is read on and on, starts small after a leap."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self.size = read, size
        self.data, self.start, self.stop = b"", 0, 0
        self._step = 1 << 12

    def at(self, position: int) -> int:
        """Index in ``data`` of a position of the file; a field's tag and length can be read from there."""
        if position < self.start or (position + _TAG_AND_LENGTH > self.stop and self.stop < self.size):
            on = self.start <= position <= self.stop
            self._step = min(self._step * 4, 1 << 20) if on else 1 << 12
            self.data = self._read(position, min(max(self._step, _TAG_AND_LENGTH), self.size - position))
            self.start, self.stop = position, position + len(self.data)
        return position - self.start


def fields(window: Window, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of a message: ``(number, wire type, where it begins, where its content begins, where it ends)``.

    Raises:
        Malformed: a field is none, or reaches beyond the message.
    """
    position = start
    while position < end:
        begin, first = position, window.at(position)
        index, data = first, window.data
        try:
            tag = data[index]
            index += 1
            if tag > 0x7F:
                tag, index = _varint(data, index - 1, _SHORT)
            kind = tag & 7
            if kind == 2:
                length = data[index]
                index += 1
                if length > 0x7F:
                    length, index = _varint(data, index - 1, _SHORT)
            elif kind == 0:
                length = _varint(data, index)[1] - index
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise Unusual(begin, f"wire type {kind} is not one that ONNX uses")
        except IndexError:
            raise Malformed(begin, "the file ends within a field") from None
        except OverflowError:
            raise Malformed(begin, f"a number takes more than {_LONG} bytes, or a length {_SHORT}") from None
        if tag < 8 or tag >> 32:
            raise Malformed(begin, "there is no such field number")
        body = begin + index - first
        position = body + length
        if position > end:
            raise Malformed(
                begin, f"field {tag >> 3} needs {length} bytes, and {max(0, end - body)} are left"
            )
        yield tag >> 3, kind, begin, body, position


def _varint(data: bytes, index: int, most: int = _LONG) -> tuple[int, int]:
    """A number in base 128, of ``most`` bytes, and the index behind it."""
    result = shift = 0
    while True:
        byte = data[index]
        index += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, index
        shift += 7
        if shift >= 7 * most:
            raise OverflowError


@dataclass
class _Parts:
    """A message in the making: what is taken over from ``taken`` on, until something else comes."""

    taken: int
    pieces: list[Piece]
    length: int = 0

    def until(self, position: int) -> None:
        """Take over what comes before ``position``."""
        if position > self.taken:
            self.pieces.append((self.taken, position))
            self.length += position - self.taken

    def put(self, piece: Piece, behind: int) -> None:
        """Put something in the place of what ends at ``behind``."""
        self.pieces.append(piece)
        self.length += piece.length if isinstance(piece, Range) else len(piece)
        self.taken = behind

    def nest(self, number: int, inner: _Parts, behind: int) -> None:
        """Put a changed message in the place of the one that ends at ``behind``."""
        self.put(prefix(number, inner.length), behind)
        self.pieces.extend(inner.pieces)
        self.length += inner.length


def cut(source: Source, large: int = LARGE) -> list[Piece]:
    """The pieces of a model without its large payloads: ranges of the file, and bytes with stand-ins.

    Args:
        source: the model's file.
        large: bytes from which on a payload gets a stand-in.

    Raises:
        Malformed: the file is no sequence of fields down to its tensors.
        ModelError: the file changes while it is read.
    """
    window = Window(source.read, source.size)
    parts = _cut(window, source, "ModelProto", 0, source.size, max(large, TOKEN_SIZE), 0)
    return parts.pieces if parts is not None else [(0, source.size)]


def _cut(
    window: Window, source: Source, kind: str, start: int, end: int, large: int, depth: int
) -> _Parts | None:
    """A message without its large payloads; None where it has none."""
    if kind == TENSOR:
        return _cut_tensor(window, source, start, end, large)
    inside, parts = INSIDE[kind], _Parts(start, [])
    seen: set[int] = set()
    for number, wire, begin, body, stop in fields(window, start, end):
        held = inside.get(number)
        if held is None or wire != 2:
            continue
        if (kind, number) in SINGULAR:
            if number in seen:
                return None
            seen.add(number)
        if stop - body < large or depth >= MAX_DEPTH:
            continue
        inner = _cut(window, source, held, body, stop, large, depth + 1)
        if inner is not None:
            inner.until(stop)
            parts.until(begin)
            parts.nest(number, inner, stop)
    if not parts.pieces:
        return None
    if depth == 0:
        parts.until(end)
    return parts


def _cut_tensor(window: Window, source: Source, start: int, end: int, large: int) -> _Parts | None:
    """A tensor with a stand-in, where it has exactly one payload, and that in one piece."""
    found: tuple[int, int, int, int, int] | None = None
    for one in fields(window, start, end):
        if one[0] in PAYLOADS or one[0] in (STRING_DATA, EXTERNAL_DATA):
            if found is not None:
                return None
            found = one
    if found is None:
        return None
    number, wire, begin, body, stop = found
    if wire != 2 or number not in PAYLOADS or stop - body < large:
        return None
    if number != RAW:
        _whole_numbers(source.read, TensorProto.DESCRIPTOR.fields_by_number[number], begin, body, stop)
    parts = _Parts(start, [])
    parts.until(begin)
    parts.put(prefix(RAW, TOKEN_SIZE) + Range(source, number, body, stop - body).token, stop)
    return parts


def assemble(source: Source, pieces: list[Piece]) -> bytes:
    """The bytes that pieces of a file come to.

    Raises:
        ModelError: the file has changed.
    """
    return b"".join(
        source.read(piece[0], piece[1] - piece[0])
        if isinstance(piece, tuple)
        else piece
        if isinstance(piece, bytes)
        else piece.read()
        for piece in pieces
    )


Placed = Callable[[Range, int], "bytes | None"]


def splice(data: bytes, outside: Placed | None = None) -> tuple[list[Piece], int]:
    """The pieces of a serialized model with its payloads in the place of their stand-ins, and the bytes they come to.

    Args:
        data: what protobuf made of a model with stand-ins.
        outside: called with each payload and its tensor's type (TensorProto.DataType); gives the fields that refer to
            it where it is to lie in another file, or None where it is to be embedded.
    """
    found = list(lazy.tokens(data))
    if not found:
        return [(0, len(data))], len(data)
    window = Window(lambda position, length: data[position : position + length], len(data))
    window.data, window.stop = data, len(data)
    parts = _Splicer(window, found, outside).message("ModelProto", 0, len(data))
    parts.until(len(data))
    return parts.pieces, parts.length


class _Splicer:
    """``positions`` are where stand-ins begin, in order; messages without one are not looked into."""

    def __init__(self, window: Window, positions: list[int], outside: Placed | None) -> None:
        self.window, self.outside = window, outside
        self._positions = iter(positions)
        self._next = next(self._positions)

    def message(self, kind: str, start: int, end: int) -> _Parts:
        inside, parts = INSIDE[kind], _Parts(start, [])
        for number, wire, begin, body, stop in fields(self.window, start, end):
            if self._next >= end:
                break
            if stop <= self._next:
                continue
            held = inside.get(number)
            assert held is not None, "a stand-in where no tensor can be"
            assert wire == 2, "a stand-in in a number"
            if held == TENSOR:
                inner = self._tensor(body, stop, self.outside if (kind, number) != INDICES else None)
            else:
                inner = self.message(held, body, stop)
            inner.until(stop)
            parts.until(begin)
            parts.nest(number, inner, stop)
        return parts

    def _tensor(self, start: int, end: int, outside: Placed | None) -> _Parts:
        """A tensor with its payload, whose field comes where protobuf would write it: in the order of numbers."""
        parts, known, elem = _Parts(start, []), list(fields(self.window, start, end)), 0
        _, _, begin, body, stop = next(one for one in known if one[3] == self._next)
        where = lazy.range_at(self.window.data[body:stop])
        for number, wire, _, value, behind in known:
            if number == 2 and wire == 0:
                elem = _varint(self.window.data[value:behind], 0)[0]
        self._next = next(self._positions, 1 << 62)
        reference = outside(where, elem) if outside is not None else None
        if reference is not None:
            parts.until(begin)
            parts.taken = stop
            parts.until(end)
            parts.put(reference, end)
        elif where.field == RAW:
            parts.until(begin)
            parts.put(prefix(RAW, where.length), body)
            parts.put(where, stop)
        else:
            # What follows the stand-in has a greater number, or is unknown to protobuf and comes last.
            place = next((b for n, _, b, _, _ in known if b > begin or (n > where.field and b != begin)), end)
            self._typed(parts, where, place, begin, stop)
        return parts

    @staticmethod
    def _typed(parts: _Parts, where: Range, place: int, begin: int, stop: int) -> None:
        """Put a payload of numbers before ``place``, and leave the stand-in from ``begin`` to ``stop`` out."""
        head = prefix(where.field, where.length)
        if place <= begin:
            parts.until(place)
            parts.put(head, place)
            parts.put(where, place)
            parts.until(begin)
            parts.taken = stop
        else:
            parts.until(begin)
            parts.taken = stop
            parts.until(place)
            parts.put(head, place)
            parts.put(where, place)


def fault(read: Callable[[int, int], bytes], size: int) -> Malformed | None:
    """The first field of a file that protobuf cannot read as part of a ModelProto; None where all can be."""
    window = Window(read, size)
    stack: list[tuple[Any, int, int, int]] = [(ModelProto.DESCRIPTOR, 0, size, 0)]
    try:
        while stack:
            message, start, end, depth = stack.pop()
            if depth > MAX_DEPTH:
                return Malformed(start, f"messages are nested deeper than {MAX_DEPTH} levels")
            inner = []
            for number, wire, begin, body, stop in fields(window, start, end):
                field = message.fields_by_number.get(number)
                if field is None or wire != 2:
                    continue
                if field.type == FieldDescriptor.TYPE_MESSAGE:
                    inner.append((field.message_type, body, stop, depth + 1))
                elif _is_repeated(field):
                    _whole_numbers(read, field, begin, body, stop)
            stack.extend(reversed(inner))
    except Malformed as found:
        return found
    except ModelError:
        return None  # it changes while it is read
    return None


_WIDTHS = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}
_VARINTS = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64)
_TOO_LONG = re.compile(rb"[\x80-\xff]{10}")
_STEP = 1 << 20


def _is_repeated(field: Any) -> bool:
    """Whether it may hold packed numbers; protobuf 7 has no labels any more, and 5 nothing else."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _whole_numbers(read: Callable[[int, int], bytes], field: Any, begin: int, start: int, stop: int) -> None:
    """Make sure that packed numbers, if these are some, end where one ends; ``begin`` is where their field does.

    Those of no fixed size have to be read for that. They are rare: exporters write large weights as raw data.

    Raises:
        Malformed: they do not.
    """
    width = _WIDTHS.get(field.type)
    if width is not None:
        cut = (stop - start) % width > 0
    else:
        cut = field.type in _VARINTS and _is_cut(read, start, stop)
    if cut:
        raise Malformed(begin, f"field {field.name} ends within a number")


def _is_cut(read: Callable[[int, int], bytes], start: int, stop: int) -> bool:
    """Whether numbers in base 128 end within one, or one takes more bytes than it may."""
    last = b""
    for at in range(start, stop, _STEP):
        last = last[1 - _LONG :] + read(at, min(_STEP, stop - at))
        if _TOO_LONG.search(last):
            return True
    return last[-1:] > b"\x7f"
