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

from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from onnx import ModelProto

from onnxfix.errors import ModelError
from onnxfix.files.wire import MAX_DEPTH, WIDTHS, Malformed, Window, fields, is_repeated
from onnxfix.runtime.allowance import structure_mb

_MIB = 1 << 20
BASE, RATE, MOST = 512 * _MIB, 96, 8192 * _MIB
"""The default allowance in bytes: ``BASE``, ``RATE`` for each byte without weights, and ``MOST`` at most."""

BYTES = {
    "FunctionProto": 2000, "NodeProto": 1400, "TrainingInfoProto": 1000, "GraphProto": 900,
    "AttributeProto": 850, "TensorProto": 600, "ValueInfoProto": 300, "OperatorSetIdProto": 300,
}  # fmt: skip
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

    ``inner`` are those with messages, by their names, ``widths`` those with lists of numbers: the fewest bytes of one.
    """

    name: str
    fields: dict[int, str]
    costs: dict[int, int]
    inner: dict[int, str]
    widths: dict[int, int]


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
                kind.inner[field.number] = field.message_type.name
                kind.costs[field.number] = BYTES.get(field.message_type.name, MESSAGE)
                stack.append(field.message_type)
            elif field.type in _TEXTS:
                kind.costs[field.number] = STRING if is_repeated(field) else FIELD
            elif is_repeated(field):
                kind.costs[field.number] = NUMBER
                kind.widths[field.number] = WIDTHS.get(field.type, 1)
    found["NodeProto"].costs[2] = OUTPUT
    return found


class Budget:
    """What a model was charged, and may be charged: what the environment says, or the default allowance.

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
                    "MiB, and ONNXFIX_STRUCTURE_MB sets another one"
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

    It ends early where bytes are no message, and where the rest cannot be too much whatever it is.

    Raises:
        TooLarge: it is too much.
    """
    if budget.bears(len(data)):
        return budget.spent
    by_name, weights, position = kinds(), 0, 0
    window = Window.of(data)
    stack = [(by_name["ModelProto"], fields(window, 0, len(data), groups=True))]
    try:
        while stack:
            kind, entries = stack[-1]
            for number, wire, _, body, position in entries:
                inner, width = kind.inner.get(number), kind.widths.get(number)
                cost = kind.costs.get(number, FIELD)
                if width is not None and wire == 2:
                    cost = (position - body) // width * NUMBER
                elif inner is None and position - body > _MIB:
                    weights += position - body
                budget.charge(cost, position - weights, kind, number)
                if inner is not None and wire == 2 and position > body and len(stack) <= MAX_DEPTH:
                    stack.append((by_name[inner], fields(window, body, position, groups=True)))
                    break
            else:
                stack.pop()
                if budget.bears(len(data) - position):
                    break
    except Malformed:
        pass
    return budget.spent
