"""Damage to a model's structure: to any field of any message in it, as protobuf's own descriptors list them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import ModelProto, NodeProto, TensorProto

from onnxfix.files.walk import copied

Mutator = Callable[[random.Random, ModelProto, ModelProto], None]
"""A generator, a model that is changed, and another model."""

DEPTH = 40
NAMES = (
    "", " ", "x", "y", "\0", "\x1b[31mred", "a\nb", "\u202eabc", "\U0001f984", "../../etc/passwd", "%s{0}$(x)",
    "n" * 5000, "[bold]", "<script>", '"', "a/b", "e\u0301", "\u2028", "::", "0", "-1", "ai.onnx", "com.microsoft",
)  # fmt: skip
INTEGERS = (
    0, 1, -1, 2, 3, 7, -5, 64, 65536, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
TYPES = (*TensorProto.DataType.values(), 24, 27, 99, 2**31 - 1, -1)
FLOATS = (0.0, -0.0, 1.5, -1.0, float("nan"), float("inf"), float("-inf"), 1e-45, 3.4e38)
_INTEGERS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_ENUM = FieldDescriptor.CPPTYPE_ENUM
_SHORT = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32, _ENUM)
_REALS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


@dataclass
class Slot:
    """A value in a model: a field that is set, or an element of a repeated one."""

    holder: Message
    field: FieldDescriptor
    place: int | None

    @property
    def value(self) -> Any:
        found = getattr(self.holder, self.field.name)
        return found if self.place is None else found[self.place]

    @property
    def is_message(self) -> bool:
        return self.field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE

    def put(self, value: Any) -> None:
        """Give it another value, of its own type."""
        if self.is_message:
            self.value.CopyFrom(value)
        elif self.place is None:
            setattr(self.holder, self.field.name, value)
        else:
            getattr(self.holder, self.field.name)[self.place] = value

    def remove(self) -> None:
        """Leave it out."""
        if self.place is None:
            self.holder.ClearField(self.field.name)
        else:
            del getattr(self.holder, self.field.name)[self.place]


def slots(message: Message, depth: int = 0) -> Iterator[Slot]:
    """All values in a message and in those within it; of a long list of numbers the first few."""
    for field, value in message.ListFields():
        is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
        if not field.is_repeated:
            yield Slot(message, field, None)
            if is_message and depth < DEPTH:
                yield from slots(value, depth + 1)
            continue
        for place in range(len(value) if is_message else min(len(value), 8)):
            yield Slot(message, field, place)
            if is_message and depth < DEPTH:
                yield from slots(value[place], depth + 1)


def chosen(generator: random.Random, model: ModelProto, wanted: Callable[[Slot], bool]) -> Slot | None:
    """One of the wanted values. Fields are equally likely: a model has more dimensions than outputs."""
    by_field: dict[str, list[Slot]] = {}
    for slot in slots(model):
        if wanted(slot):
            by_field.setdefault(slot.field.full_name, []).append(slot)
    return generator.choice(by_field[generator.choice(sorted(by_field))]) if by_field else None


def texts(model: ModelProto) -> list[str]:
    """The names in a model."""
    return sorted({slot.value for slot in slots(model) if isinstance(slot.value, str)})


def drop(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """Something is missing."""
    if slot := chosen(generator, model, lambda _: True):
        slot.remove()


def repeat(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """An element comes twice, thrice or, if it is small, a thousand times, under the same name."""
    if slot := chosen(generator, model, lambda one: one.place is not None and one.is_message):
        times = generator.choice((1, 1, 2, 1000 if slot.value.ByteSize() < 100 else 3))
        getattr(slot.holder, slot.field.name).extend([slot.value] * times)


def reorder(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """Two elements of a list change places."""
    if slot := chosen(generator, model, lambda one: bool(one.place) and one.is_message):
        second = Slot(slot.holder, slot.field, generator.randrange(int(slot.place or 0)))
        first = copied(slot.value)
        slot.put(second.value)
        second.put(first)


def transplant(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """A part is replaced by another one of its type, of this model or of another: a graph within itself, a body, a
    tensor, a type."""
    target = chosen(generator, model, lambda one: one.is_message)
    if target is None:
        return
    kind = target.field.message_type
    parts = [
        slot.value
        for source in (model, other)
        for slot in slots(source)
        if slot.is_message and slot.field.message_type is kind and slot.value.ByteSize() < 20_000
    ]
    if parts:
        target.put(copied(generator.choice(parts)))


def rename(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """A text becomes another one of the model, or an odd one: names, domains, operators, references, metadata."""
    if slot := chosen(generator, model, lambda one: isinstance(one.value, str)):
        slot.put(generator.choice(texts(model) if generator.random() < 0.6 else NAMES))


def rename_everywhere(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """A name becomes another one, wherever it stands."""
    known = texts(model)
    if known:
        old, new = generator.choice(known), generator.choice((*NAMES, *known))
        for slot in list(slots(model)):
            if isinstance(slot.value, str) and slot.value == old:
                slot.put(new)


def number(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """A number, a size, a type or a version is another one: extreme, the next one, or of a type that is not there."""

    def is_number(slot: Slot) -> bool:
        return slot.field.cpp_type in (*_INTEGERS, *_SHORT, *_REALS)

    if slot := chosen(generator, model, is_number):
        if slot.field.cpp_type in _REALS:
            slot.put(generator.choice(FLOATS))
        elif slot.field.cpp_type == _ENUM:
            slot.put(generator.choice(slot.field.enum_type.values).number)
        elif slot.field.cpp_type in _SHORT:
            slot.put(generator.choice((*TYPES, generator.randrange(30))))
        else:
            near = max(-(2**63), min(slot.value + generator.choice((-1, 1)), 2**63 - 1))
            slot.put(
                max(0, near) if slot.field.cpp_type == _INTEGERS[1] else generator.choice((*INTEGERS, near))
            )


def payload(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """The bytes of a tensor are fewer, more, others, or none."""
    if not any(isinstance(slot.value, bytes) for slot in slots(model)):
        model.graph.initializer.add(name=generator.choice(NAMES), data_type=1, dims=[3], raw_data=b"\0")
    if slot := chosen(generator, model, lambda one: isinstance(one.value, bytes)):
        data: bytes = slot.value
        noise = generator.randbytes(len(data)) if len(data) < 4096 else data[::-1]
        slot.put(
            generator.choice(
                (b"", data[:-1], data[: len(data) // 2], data + b"\0", data * 2, noise, b"\xff" * 4)
            )
        )


def fill(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """A field that is not set gets a value: content of another type, an empty part, a reference."""
    holders = [model, *(slot.value for slot in slots(model) if slot.is_message)]
    holder = generator.choice(holders)
    empty = [one for one in holder.DESCRIPTOR.fields if one not in dict(holder.ListFields())]
    if not empty:
        return
    field = generator.choice(empty)
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        target = getattr(holder, field.name)
        (target.add() if field.is_repeated else target.SetInParent())
        return
    value: Any = generator.choice(INTEGERS[:8])
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        value = (
            generator.choice((*NAMES, *texts(model))) if field.type != FieldDescriptor.TYPE_BYTES else b"\0\1"
        )
    elif field.cpp_type in _REALS:
        value = generator.choice(FLOATS)
    elif field.cpp_type == _ENUM:
        value = generator.choice(field.enum_type.values).number
    elif field.cpp_type in _SHORT:
        value = generator.randrange(1, 17)
    elif field.cpp_type == _INTEGERS[1]:
        value = abs(value)
    if field.is_repeated:
        getattr(holder, field.name).extend([value] * generator.choice((1, 3)))
    else:
        setattr(holder, field.name, value)


# What a change of one field seldom gives


def external(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """A tensor's data are in a file: somewhere else, beyond its end, at no number, under no name."""
    tensors = [slot.value for slot in slots(model) if isinstance(slot.value, TensorProto)]
    tensor = generator.choice(tensors) if tensors else model.graph.initializer.add(data_type=1, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    if generator.random() < 0.7:
        tensor.ClearField("raw_data")
    if generator.random() < 0.5 or not tensor.external_data:
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=generator.choice(LOCATIONS))
    key = generator.choice(("offset", "length", "checksum", "location", "basepath", ""))
    value = generator.choice(
        ("0", "4", "-1", "", "1e3", " 8", "0x10", "٣", "9" * 30, "9" * 5000, str(2**63), "nan")
    )
    tensor.external_data.add(key=key, value=value)


LOCATIONS = (
    "weights.bin", "weights.bin", "model.onnx", "missing.bin", "", ".", "..", "/etc/passwd", "/dev/zero",
    "../outside.bin", "sub/weights.bin", "link.bin", "loop.bin", "hard.bin", "fifo.bin", "sub", "a\0b", "n" * 300,
    "sub/" * 2000 + "w", "weights.bin/", "./weights.bin", "sub/../weights.bin", "C:\\w.bin", "file:///etc/passwd",
)  # fmt: skip
"""Names of files, some of which ``cases.surroundings`` makes."""


def recursion(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """Functions that call each other: themselves, in a circle, in a long chain, each the next one twice."""
    count, times = generator.choice(((1, 1), (2, 1), (5, 2), (40, 2), (100, 1), (1500, 1)))
    circle = generator.random() < 0.5
    for place in range(count):
        made = model.functions.add(domain="own", name=f"R{place}", input=["a"], output=["b"])
        made.opset_import.add(domain="own", version=1)
        made.opset_import.add(domain="", version=18)
        following = f"R{(place + 1) % count}"
        last = place + 1 == count and not circle
        for step in range(times):
            names = {"input": ["a" if step == 0 else "t"], "output": ["b" if step == times - 1 else "t"]}
            made.node.add(op_type="Neg" if last else following, domain="" if last else "own", **names)
    model.opset_import.add(domain="own", version=1)
    node = _some_node(generator, model)
    node.op_type, node.domain = "R0", "own"


def nest(generator: random.Random, model: ModelProto, other: ModelProto) -> None:
    """A graph in itself, several times: branches as deep as nobody needs, which shadow the names around them."""
    node = _some_node(generator, model)
    node.op_type = generator.choice(("If", "Loop", "Scan"))
    body = node.attribute.add(name=generator.choice(("then_branch", "body")), type=5)
    for _ in range(generator.choice((1, 2, 12))):
        inner = copied(body.g if body.g.node else model.graph)
        if inner.ByteSize() > 20_000:
            break
        body.g.node.add(op_type="If", input=["c"], output=["inner"]).attribute.add(
            name="then_branch", type=5, g=inner
        )


def _some_node(generator: random.Random, model: ModelProto) -> NodeProto:
    """A node anywhere; one that is added where there is none."""
    nodes = [slot.value for slot in slots(model) if isinstance(slot.value, NodeProto)]
    return generator.choice(nodes) if nodes else model.graph.node.add(op_type="Identity")


MUTATORS: dict[Mutator, int] = {
    drop: 3, repeat: 2, reorder: 1, transplant: 4, rename: 5, rename_everywhere: 1, number: 8, payload: 2, fill: 3,
    external: 2, recursion: 1, nest: 1,
}  # fmt: skip
"""How often each is drawn: more often what leaves a model that is read, and so gets further."""
