"""Protobuf's wire format: the fields of a message, where they begin and end, and what is wrong with a damaged file.

Nothing here knows where an ONNX model keeps its tensors (:mod:`onnxfix.files.scan` does).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from onnx import ModelProto

from onnxfix.errors import ModelError

PROTOBUF_LIMIT = 2**31 - 1
"""Maximum size of one protobuf message, in bytes (protobuf's own limit)."""
MAX_DEPTH = 100
"""Maximum nesting of messages that protobuf reads."""
_TAG_AND_LENGTH = 20
_SHORT, _LONG = 5, 10
"""Maximum bytes of a tag or a length, and of any other number, however small the number: what protobuf reads."""


def prefix(field: int, length: int) -> bytes:
    """Tag and length of a length-delimited field."""
    return varint(field << 3 | 2) + varint(length)


def varint(number: int) -> bytes:
    """An unsigned integer in base 128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Malformed(Exception):
    """The bytes are not a valid message; ``at`` is the offset of the invalid field."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at, self.why = at, why


class Unusual(Malformed):
    """Protobuf may be able to read it, this module is not."""


class Window:
    """The part of a file in memory. It grows while the file is read sequentially, and starts small after a jump."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self.size = read, size
        self.data, self.start, self.stop = b"", 0, 0
        self._step = 1 << 12

    @classmethod
    def of(cls, data: bytes) -> Window:
        """All of a message that is in memory."""
        window = cls(lambda position, length: data[position : position + length], len(data))
        window.data, window.stop = data, len(data)
        return window

    def at(self, position: int) -> int:
        """Index in ``data`` of a file position, with enough bytes behind it for a field's tag and length."""
        if position < self.start or (position + _TAG_AND_LENGTH > self.stop and self.stop < self.size):
            on = self.start <= position <= self.stop
            self._step = min(self._step * 4, 1 << 20) if on else 1 << 12
            self.data = self._read(position, min(max(self._step, _TAG_AND_LENGTH), self.size - position))
            self.start, self.stop = position, position + len(self.data)
        return position - self.start


def fields(
    window: Window, start: int, end: int, *, groups: bool = False
) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of a message: ``(number, wire type, start, start of the content, end)``, as file positions.

    With ``groups``, which ONNX does not use and protobuf skips, their beginning and end are fields without content.

    Raises:
        Malformed: a field is invalid, or reaches beyond the message.
    """
    position = start
    while position < end:
        begin, first = position, window.at(position)
        index, data = first, window.data
        try:
            tag = data[index]
            index += 1
            if tag > 0x7F:
                tag, index = read_varint(data, index - 1, _SHORT)
            kind = tag & 7
            if kind == 2:
                length = data[index]
                index += 1
                if length > 0x7F:
                    length, index = read_varint(data, index - 1, _SHORT)
            elif kind == 0:
                length = read_varint(data, index)[1] - index
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            elif groups and kind in (3, 4):
                length = 0
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


def read_varint(data: bytes, index: int, most: int = _LONG) -> tuple[int, int]:
    """A number in base 128, of at most ``most`` bytes, and the index behind it.

    Raises:
        OverflowError: it has more bytes.
        IndexError: the data ends within it.
    """
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


def fault(read: Callable[[int, int], bytes], size: int) -> Malformed | None:
    """The first field of a file that protobuf cannot read as part of a ModelProto, or None."""
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
                elif is_repeated(field):
                    check_whole_numbers(read, field, begin, body, stop)
            stack.extend(reversed(inner))
    except Malformed as found:
        return found
    except ModelError:
        return None  # the file changes while it is read
    return None


WIDTHS = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}
"""Bytes of packed numbers that all have the same."""
_VARINTS = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64)
_TOO_LONG = re.compile(rb"[\x80-\xff]{10}")
_STEP = 1 << 20


def is_repeated(field: Any) -> bool:
    """Whether the field is repeated. Protobuf 7 has no labels any more, and 5 nothing else."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def check_whole_numbers(
    read: Callable[[int, int], bytes], field: Any, begin: int, start: int, stop: int
) -> None:
    """Make sure that the content of a field of packed numbers, which begins at ``begin``, does not end within one.
    Numbers without a fixed size have to be read for that.

    Raises:
        Malformed: it does, or a number in base 128 has more bytes than allowed.
    """
    last = b""
    if field.type not in _VARINTS:
        is_whole = (stop - start) % WIDTHS.get(field.type, 1) == 0
    else:
        for at in range(start, stop, _STEP):
            last = last[1 - _LONG :] + read(at, min(_STEP, stop - at))
            if _TOO_LONG.search(last):
                break
        is_whole = not _TOO_LONG.search(last) and last[-1:] <= b"\x7f"
    if not is_whole:
        raise Malformed(begin, f"field {field.name} ends within a number")
