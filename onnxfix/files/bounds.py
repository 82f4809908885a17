"""How much memory a model's structure may take, judged from its bytes before anything is parsed.

A model is untrusted, and protobuf is compact: two bytes of a file can be a node, which takes 1.1 kB once it is parsed
and wrapped. So the elements of a file are charged for what they cost here, and a model whose charge is beyond its
allowance is refused. Weights do not count: they stay in their file.

The default allowance is 512 MiB and 96 bytes for each byte of the file without weights, and 8 GiB at most. 22 exports
of up to 6,831 nodes are charged 3 to 20 bytes for each of their bytes, and a chain of a million nodes with names of
seven letters 87 (2.1 GB, as measured, and 20 seconds). What is made to fill memory is charged 150 (value infos) to
1,000 (functions).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from onnx import ModelProto

from onnxfix.errors import ModelError
from onnxfix.files.wire import MAX_DEPTH, is_repeated, read_varint, varint
from onnxfix.runtime.allowance import structure_mb

_MIB = 1 << 20
BASE, RATE, MOST = 512 * _MIB, 96, 8192 * _MIB
"""The default allowance in bytes: ``BASE``, ``RATE`` for each byte without weights, and ``MOST`` at most."""

BYTES = {
    "FunctionProto": 2000,
    "NodeProto": 1400,
    "TrainingInfoProto": 1000,
    "GraphProto": 900,
    "AttributeProto": 850,
    "TensorProto": 600,
    "ValueInfoProto": 300,
    "OperatorSetIdProto": 300,
}
"""Bytes of memory that an element takes at most: its protobuf and what onnxfix keeps about it. Measured as the growth
of the process by a million elements with nothing in them, or with a name where one is needed, rounded up: functions
1,830, nodes 1,250, training graphs 830, graphs 750, attributes 800, value infos 250."""
MESSAGE, STRING, OUTPUT, NUMBER = 160, 200, 450, 32
"""The same of other messages (measured: 33 to 90), of a text in a list (65 to 170), of a node's output (440), and of a
number in a list (25; 92 in a shape, of which ``tensors.MOST_DIMS`` are allowed)."""
FIELD = 130
"""The charge for any other field: a text and its copy in Python, and the time to walk over it."""
_DENSEST = max(BYTES.values()) // 2
"""The most that can be charged for one byte."""


class TooLarge(ModelError):
    """The structure of a model takes more memory than it may."""


@dataclass(frozen=True)
class Kind:
    """What the fields of a message are called and cost, by number.

    ``inner`` are those with messages, ``numbers`` those with lists of numbers: what matches a run of fields that are
    not packed, and the fewest bytes of a number.
    """

    name: str
    fields: dict[int, str]
    costs: dict[int, int]
    inner: dict[int, Kind]
    numbers: dict[int, tuple[re.Pattern[bytes], int]]


_WIDTHS = {
    FieldDescriptor.TYPE_FLOAT: (5, rb".{4}", 4),
    FieldDescriptor.TYPE_DOUBLE: (1, rb".{8}", 8),
}
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


@cache
def kinds() -> dict[str, Kind]:
    """The messages of ONNX by name."""
    found: dict[str, Kind] = {}
    stack: list[Any] = [ModelProto.DESCRIPTOR]
    while stack:
        message = stack.pop()
        if message.name in found:
            continue
        kind = found[message.name] = Kind(message.name, {}, {}, {}, {})
        for field in message.fields:
            kind.fields[field.number] = field.name
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                kind.costs[field.number] = BYTES.get(field.message_type.name, MESSAGE)
                stack.append(field.message_type)
            elif field.type in _TEXTS:
                kind.costs[field.number] = STRING if is_repeated(field) else FIELD
            elif is_repeated(field):
                wire, pattern, width = _WIDTHS.get(field.type, (0, rb"[\x80-\xff]{0,9}[\x00-\x7f]", 1))
                tag = re.escape(varint(field.number << 3 | wire))
                kind.costs[field.number] = NUMBER
                kind.numbers[field.number] = re.compile(rb"(?:%s%s)+" % (tag, pattern), re.S), width
    found["NodeProto"].costs[2] = OUTPUT
    _link(ModelProto.DESCRIPTOR, found, set())
    return found


def _link(message: Any, found: dict[str, Kind], seen: set[str]) -> None:
    """Enter the messages within messages."""
    seen.add(message.name)
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            found[message.name].inner[field.number] = found[field.message_type.name]
            if field.message_type.name not in seen:
                _link(field.message_type, found, seen)


class Budget:
    """What a model was charged, and may be charged: what the user says, or the default allowance.

    Raises:
        UsageError: the limit in the environment is no number.
    """

    def __init__(self) -> None:
        self.fixed = (structure_mb() or 0) * _MIB
        self.spent = 0
        self._allowed = self.allowance(0)

    def allowance(self, size: int) -> int:
        """Bytes of memory that a structure of ``size`` bytes may take."""
        return self.fixed or min(BASE + RATE * size, MOST)

    def bears(self, size: int) -> bool:
        """Whether so many more bytes cannot be too much, whatever they are."""
        return self.spent + size * _DENSEST <= self.allowance(0)

    def charge(self, cost: int, size: int, kind: Kind, number: int) -> None:
        """Charge ``cost`` bytes for a field of a message that ends ``size`` bytes from the beginning.

        Raises:
            TooLarge: it is too much.
        """
        self.spent += cost
        if self.spent > self._allowed:
            self._allowed = self.allowance(size)
            if self.spent > self._allowed:
                what = kind.fields.get(number, f"field {number}")
                raise TooLarge(
                    f"its structure would take too much memory: {self.spent // _MIB:,} MiB and more, as {what} of "
                    f"{kind.name} and others in {size:,} bytes without weights; the limit is {self._allowed // _MIB:,} "
                    "MiB, and --structure-limit MB sets another one"
                )


def check(data: bytes) -> None:
    """Make sure that a serialized model, with or without its weights, may be parsed.

    Bytes that are no model pass: protobuf judges them.

    Raises:
        TooLarge: its structure takes more memory than it may.
    """
    measure(data, Budget())


def measure(data: bytes, budget: Budget) -> int:
    """Charge for each element of a serialized model, and return the sum.

    It ends early where bytes are no message, and where the rest cannot be too much whatever it is: 22 exports take 0 to
    25 milliseconds, and a hostile file a second for 3 MB.

    Raises:
        TooLarge: it is too much.
    """
    if budget.bears(len(data)):
        return budget.spent
    stack = [(kinds()["ModelProto"], 0, len(data))] if data else []
    weights = 0
    try:
        while stack:
            kind, position, end = stack.pop()
            if budget.bears(len(data) - position):
                break
            while position < end:
                number, wire, body, stop = _field(data, position)
                if stop > end:
                    return budget.spent
                cost, inner = kind.costs.get(number, FIELD), kind.inner.get(number)
                if number in kind.numbers:
                    stop, cost = _numbers(data, kind.numbers[number], (position, body, stop, end), wire)
                elif inner is None and stop - body > _MIB:
                    weights += stop - body
                budget.charge(cost, stop - weights, kind, number)
                position = stop
                if inner is not None and wire == 2 and stop > body and len(stack) < MAX_DEPTH:
                    stack.append((kind, stop, end))
                    kind, position, end = inner, body, stop
    except (IndexError, OverflowError):
        pass
    return budget.spent


def _field(data: bytes, position: int) -> tuple[int, int, int, int]:
    """Number and wire type of the field at ``position``, and where its content begins and ends. Groups, which ONNX does
    not use and protobuf skips, are walked into: their beginning and end are fields without content."""
    tag = data[position]
    position += 1
    if tag > 0x7F:
        tag, position = read_varint(data, position - 1)
    wire = tag & 7
    if wire == 2:
        length = data[position]
        position += 1
        if length > 0x7F:
            length, position = read_varint(data, position - 1)
        return tag >> 3, wire, position, position + length
    if wire == 0:
        return tag >> 3, wire, position, read_varint(data, position)[1]
    return tag >> 3, wire, position, position + (8 if wire == 1 else 4 if wire == 5 else 0)


def _numbers(
    data: bytes, run: tuple[re.Pattern[bytes], int], field: tuple[int, int, int, int], wire: int
) -> tuple[int, int]:
    """The end of a list of numbers, and its charge: of a packed one, or of a run of fields with one number each.

    ``field`` is where it begins, where its content begins and ends, and where its message ends.
    """
    pattern, width = run
    start, body, stop, end = field
    if wire == 2:
        return stop, (stop - body) // width * NUMBER
    found = pattern.match(data, start, end)
    last = found.end() if found is not None else stop
    return last, (last - start) // (width + 1) * NUMBER
