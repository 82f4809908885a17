"""Damage to a file's bytes: with no regard to what they mean, and to the fields of the protobuf wire format."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps

Mutator = Callable[[random.Random, bytes, bytes], bytes]
"""A generator, a model's bytes and those of another model -> damaged bytes."""

EXTREMES = (0, 1, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)


def varint(value: int, padding: int = 0) -> bytes:
    """A number of 64 bits; ``padding`` more bytes than it needs."""
    out, value = bytearray(), value % 2**64
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    if padding:
        out[-1] |= 128
        out += b"\x80" * (padding - 1) + b"\0"
    return bytes(out)


@dataclass
class Field:
    """A field of a message. ``payload`` is what follows the tag and, of type 2, the length."""

    number: int
    kind: int
    payload: bytes

    def encoded(self) -> bytes:
        """Its bytes."""
        length = varint(len(self.payload)) if self.kind == 2 else b""
        return varint(self.number << 3 | self.kind) + length + self.payload


def fields(data: bytes) -> list[Field] | None:
    """The fields of a message; None where the bytes are none."""
    found, place = [], 0
    while place < len(data):
        head = _number(data, place)
        if head is None or head[0] >> 3 == 0:
            return None
        number, kind, place = head[0] >> 3, head[0] & 7, head[1]
        end = place + {1: 8, 5: 4}.get(kind, 0)
        if kind in (0, 2):
            value = _number(data, place)
            if value is None:
                return None
            place, end = (value[1], value[1] + value[0]) if kind == 2 else (place, value[1])
        if kind in (3, 4, 6, 7) or end > len(data):
            return None
        found.append(Field(number, kind, data[place:end]))
        place = end
    return found


def _number(data: bytes, place: int) -> tuple[int, int] | None:
    value = 0
    for shift, byte in enumerate(data[place : place + 10]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, place + shift + 1
    return None


def joined(parts: list[Field]) -> bytes:
    """The bytes of a message."""
    return b"".join(part.encoded() for part in parts)


def somewhere(generator: random.Random, data: bytes, change: Callable[[list[Field]], bytes]) -> bytes:
    """``data`` with a message somewhere in it replaced by what ``change`` makes of its fields. The lengths around it
    are right."""
    parts = fields(data)
    if not parts:
        return data
    inner = [part for part in parts if part.kind == 2 and fields(part.payload)]
    if inner and generator.random() < 0.75:
        part = generator.choice(inner)
        part.payload = somewhere(generator, part.payload, change)
        return joined(parts)
    return change(parts)


# Without regard to fields


def flip_bits(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """A few bits are inverted."""
    out = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 8, 64))):
        if out:
            out[generator.randrange(len(out))] ^= 1 << generator.randrange(8)
    return bytes(out)


def set_bytes(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """A few bytes in a row are others."""
    out, count = bytearray(data), generator.choice((1, 2, 4, 10))
    place = generator.randrange(len(out) + 1)
    out[place : place + count] = generator.choice((b"\0", b"\xff", b"\x80", b"\x7f", b"\n")) * count
    return bytes(out)


def truncate(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """The end is missing."""
    return data[: generator.randrange(len(data) + 1)]


def cut(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """Bytes in the middle are missing."""
    start = generator.randrange(len(data) + 1)
    return data[:start] + data[start + generator.choice((1, 2, 3, 8, 100)) :]


def insert(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """Random bytes are put between."""
    start = generator.randrange(len(data) + 1)
    return data[:start] + generator.randbytes(generator.choice((1, 2, 5, 50))) + data[start:]


def repeat(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """A part comes several times."""
    start = generator.randrange(len(data) + 1)
    part = data[start : start + generator.choice((1, 7, 40, 400))]
    return data[:start] + part * generator.choice((2, 3, 50)) + data[start:]


def splice(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """The first part of one model and the last part of another."""
    return data[: generator.randrange(len(data) + 1)] + other[generator.randrange(len(other) + 1) :]


def append(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """Two models one after the other, which protobuf merges."""
    return data + other


# With regard to fields


def of_a_message(change: Callable[[random.Random, list[Field]], bytes]) -> Mutator:
    """Change the fields of a message somewhere in the model."""

    @wraps(change)
    def mutate(generator: random.Random, data: bytes, other: bytes) -> bytes:
        return somewhere(generator, data, partial(change, generator))

    return mutate


@of_a_message
def repeat_field(generator: random.Random, parts: list[Field]) -> bytes:
    """A field comes several times; one that is not repeated is merged or replaced."""
    place = generator.randrange(len(parts))
    parts[place:place] = [parts[place]] * generator.choice((1, 2, 30))
    return joined(parts)


@of_a_message
def move_field(generator: random.Random, parts: list[Field]) -> bytes:
    """Fields in another order."""
    generator.shuffle(parts)
    return joined(parts)


@of_a_message
def renumber_field(generator: random.Random, parts: list[Field]) -> bytes:
    """A field has another number: that of another field, or one that ONNX does not have."""
    number = generator.choice((1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 14, 20, 999, 2**29 - 1))
    generator.choice(parts).number = number
    return joined(parts)


@of_a_message
def retype_field(generator: random.Random, parts: list[Field]) -> bytes:
    """A field has another wire type, groups among them; its bytes stay."""
    generator.choice(parts).kind = generator.randrange(8)
    return joined(parts)


@of_a_message
def extreme_number(generator: random.Random, parts: list[Field]) -> bytes:
    """A number is an extreme one, or longer than it needs to be; where there is none, one is added."""
    numbers = [part for part in parts if part.kind == 0]
    if not numbers:
        numbers = [Field(generator.randrange(1, 21), 0, b"")]
        parts.append(numbers[0])
    padding = generator.choice((0, 0, 0, 1, 5, 9))
    generator.choice(numbers).payload = varint(generator.choice(EXTREMES), padding)
    return joined(parts)


@of_a_message
def wrong_length(generator: random.Random, parts: list[Field]) -> bytes:
    """A length that is not that of what follows."""
    sized = [place for place, part in enumerate(parts) if part.kind == 2]
    if not sized:
        return joined(parts)
    place = generator.choice(sized)
    part, size = parts[place], len(parts[place].payload)
    lie = generator.choice((size - 1, size + 1, size + 100, 0, *EXTREMES))
    tag = varint(part.number << 3 | 2)
    return joined(parts[:place]) + tag + varint(lie) + part.payload + joined(parts[place + 1 :])


GRAPH_IN_NODE = (1, 5, 6)
"""Field numbers from a graph to the graph of an attribute of its node."""


def deep(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """Messages in messages, as deep as nobody needs."""
    path = generator.choice((GRAPH_IN_NODE, (1, 5, 11), (7,), (2, 2, 4, 1), (1,), (3,), (20, 1, 1, 4)))
    depth = generator.choice((30, 90, 110, 300, 3000))
    payload = b""
    for step in range(depth):
        payload = Field(path[-1 - step % len(path)], 2, payload).encoded()
        if len(payload) > 200_000:
            break
    return data + Field(generator.choice((7, 7, 25, 20, 14)), 2, payload).encoded()


def groups(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """Groups, which ONNX does not use: in each other, not closed, closed twice."""
    number = generator.choice((1, 7, 500))
    count, closed = generator.choice((1, 50, 5000)), generator.choice((0, 1, 1, 2))
    start, end = varint(number << 3 | 3), varint(number << 3 | 4)
    inserted = start * count + end * count * closed

    def change(parts: list[Field]) -> bytes:
        place = generator.randrange(len(parts) + 1)
        return joined(parts[:place]) + inserted + joined(parts[place:])

    return somewhere(generator, data, change)


def many_fields(generator: random.Random, data: bytes, other: bytes) -> bytes:
    """Very many small fields: empty messages, numbers, unknown ones."""
    field = Field(generator.randrange(1, 27), generator.choice((0, 2, 2)), b"")
    field.payload = b"\1" if field.kind == 0 else b""
    count = generator.choice((100, 2000, 40_000))

    def change(parts: list[Field]) -> bytes:
        return joined(parts) + field.encoded() * count

    return somewhere(generator, data, change)


ODD = (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\0", b"\x1b]0;x\x07", b"\xf5\x80\x80\x80", b"\r\n")


@of_a_message
def break_text(generator: random.Random, parts: list[Field]) -> bytes:
    """A field of bytes is no UTF-8, or has control characters in it."""
    texts = [part for part in parts if part.kind == 2]
    if texts:
        part = generator.choice(texts)
        place = generator.randrange(len(part.payload) + 1)
        part.payload = part.payload[:place] + generator.choice(ODD) + part.payload[place:]
    return joined(parts)


MUTATORS: tuple[Mutator, ...] = (
    flip_bits, set_bytes, truncate, cut, insert, repeat, splice, append, repeat_field, move_field, renumber_field,
    retype_field, extreme_number, extreme_number, wrong_length, deep, groups, many_fields, break_text,
)  # fmt: skip
"""What bytes are damaged by; one that is named twice is drawn twice as often."""
