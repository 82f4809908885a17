"""Models made at random, byte by byte: what the lazy path reads and writes is what protobuf alone would.

Every place where a tensor can be, every field in which it can keep its numbers, in any order, more than once, among
fields that nobody knows. ``eager.opened`` leaves every payload in the file, so that all of them take the lazy path.
"""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from onnxfix.errors import ModelError
from onnxfix.files import lazy, saving
from onnxfix.files.lazy import Pending
from support import eager
from support.eager import field, shuffled, tag, varint

PACKED = (4, 5, 7, 10, 11)
"""Fields of TensorProto that hold numbers: float, int32, int64, double, uint64."""
STRAY = (
    b"",
    field(100, b"a field of tomorrow"),
    field(77, 3),
    tag(3, 5) + b"four",
    tag(200, 1) + b"eight by",
)


class Maker:
    """Messages of onnx.proto with whatever is in them; ``overlong``: some numbers took more bytes than they need."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd, self.overlong = rnd, False

    def some(self, most: int) -> range:
        return range(self.rnd.randint(0, most))

    def number(self, kind: int) -> bytes:
        """One number as a field of that number stores it, without a tag."""
        value = self.rnd.choice((0, 1, 5, 127, 128, -1, 1 << 20, -(1 << 31), (1 << 31) - 1))
        if kind == 4:
            return struct.pack("<f", value)
        if kind == 10:
            return struct.pack("<d", value)
        width = self.rnd.choice((0, 0, 0, 0, 3, 10))
        plain = varint(value)
        made = varint(value, width)
        self.overlong |= made != plain or (kind == 5 and value < 0)
        return made

    def payload(self) -> bytes:
        """One field, or several, with a tensor's numbers."""
        kind = self.rnd.choice((6, 9, 9, 9, *PACKED))
        if kind == 9:
            return field(9, self.rnd.randbytes(self.rnd.choice((0, 1, 36, 37, 38, 300))))
        if kind == 6:
            return b"".join(field(6, b"text") for _ in range(2))
        numbers = [self.number(kind) for _ in range(self.rnd.choice((0, 1, 9, 60)))]
        if self.rnd.random() < 0.25:
            return b"".join(tag(kind, {4: 5, 10: 1}.get(kind, 0)) + one for one in numbers)
        half = self.rnd.randint(0, len(numbers)) if self.rnd.random() < 0.2 else 0
        return b"".join(
            field(kind, b"".join(part)) for part in (numbers[:half], numbers[half:]) if part or not half
        )

    def tensor(self) -> bytes:
        rnd = self.rnd
        parts = [self.payload() for _ in range(rnd.choice((0, 1, 1, 1, 1, 1, 2)))]
        parts += [field(1, rnd.randint(0, 300)) for _ in self.some(3)] or [field(1, varint(2) + varint(300))]
        parts += [field(2, rnd.choice((1, 1, 7, 10, 6, 8, 99)))] * rnd.choice((0, 1, 1, 2))
        parts += [field(8, b"w"), field(12, b"words")][: rnd.randint(0, 2)]
        parts += [field(13, field(1, b"location") + field(2, b"x"))] * (rnd.random() < 0.1)
        parts += [field(14, rnd.choice((0, 1, 9)))] * (rnd.random() < 0.2)
        # What has the number of a known field and not its type is unknown, too; protobuf keeps it behind the others.
        odd = (
            field(2, b""),
            field(2, b"\x80"),
            field(9, 7),
            field(4, 7),
            tag(8, 5) + b"four",
            field(16, b"m"),
        )
        parts += [rnd.choice((*STRAY, *odd))] * rnd.choice((0, 0, 1))
        return shuffled(rnd, parts)

    def sparse(self) -> bytes:
        parts = [field(1, self.tensor()), field(2, self.tensor()), field(3, 4)]
        parts += [field(self.rnd.choice((1, 2)), self.tensor())] * (self.rnd.random() < 0.15)
        return shuffled(self.rnd, parts)

    def attribute(self, depth: int) -> bytes:
        rnd = self.rnd
        parts = [field(1, b"a"), field(20, rnd.choice((4, 5, 9)))]
        for number, make in ((5, self.tensor), (10, self.tensor), (22, self.sparse), (23, self.sparse)):
            if rnd.random() < 0.3:
                parts += [field(number, make()) for _ in range(rnd.choice((1, 1, 2)))]
        for number in (6, 11):
            if depth < 3 and rnd.random() < 0.3:
                parts += [field(number, self.graph(depth + 1)) for _ in range(rnd.choice((1, 1, 2)))]
        parts += [field(4, b"a string that is longer than a stand-in, which stays"), rnd.choice(STRAY)]
        return shuffled(rnd, parts)

    def node(self, depth: int) -> bytes:
        parts = [field(5, self.attribute(depth)) for _ in self.some(2)]
        return shuffled(self.rnd, [*parts, field(2, b"y"), field(4, b"If"), self.rnd.choice(STRAY)])

    def graph(self, depth: int = 0) -> bytes:
        parts = [field(1, self.node(depth)) for _ in self.some(2)]
        parts += [field(5, self.tensor()) for _ in self.some(2)]
        parts += [field(15, self.sparse()) for _ in self.some(1)]
        return shuffled(self.rnd, [*parts, field(2, b"g"), self.rnd.choice(STRAY)])

    def function(self) -> bytes:
        parts = [field(7, self.node(2)) for _ in self.some(2)] + [
            field(11, self.attribute(2)) for _ in self.some(2)
        ]
        return shuffled(self.rnd, [*parts, field(1, b"f"), self.rnd.choice(STRAY)])

    def model(self) -> bytes:
        parts = [field(7, self.graph()) for _ in range(self.rnd.choice((0, 1, 1, 1, 1, 1, 1, 2)))]
        parts += [field(25, self.function()) for _ in self.some(2)]
        parts += [field(20, field(self.rnd.choice((1, 2)), self.graph(1))) for _ in self.some(1)]
        return shuffled(self.rnd, [*parts, field(1, 8), self.rnd.choice(STRAY)])


def held(data: bytes, overlong: bool, folder: Path, large: int = 1) -> int:
    """Hold the lazy path to what protobuf makes of the same bytes; returns how many weights stayed in the file."""
    path, out = folder / "m.onnx", folder / "out.onnx"
    path.write_bytes(data)
    try:
        proto = eager.parsed(data)
    except DecodeError:
        proto = None
    if proto is None or not proto.HasField("graph"):
        with pytest.raises(ModelError) as caught:
            eager.opened(path, large)
        assert str(caught.value).startswith(f"{path}: not an ONNX model")
        return 0
    loaded = eager.opened(path, large)
    wanted, found = eager.written(proto), eager.saved(loaded.proto, out)
    assert eager.written(ModelProto.FromString(found)) == wanted
    if not overlong:
        assert found == wanted
    assert saving.serialize(loaded.proto) == found
    assert eager.written(Pending(loaded.proto, loaded).model()) == wanted
    assert lazy.NONCE not in found
    assert loaded.fresh() == loaded.proto
    loaded.copy_to(out)
    assert out.read_bytes() == data
    return eager.stand_ins(loaded)


@given(st.randoms(use_true_random=True))
def test_random_models(rnd: random.Random) -> None:
    maker = Maker(rnd)
    data = maker.model()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps open files
        held(data, maker.overlong, Path(folder), rnd.choice((1, 1, lazy.TOKEN_SIZE, 200)))


# --------------------------------------------------------------------------------- every place and field, one by one

NUMBERS = bytes(range(1, 81))
PAYLOADS = {number: field(number, NUMBERS) for number in (*PACKED, 9)}


def sparse_of(tensor: bytes) -> bytes:
    return field(1, tensor) + field(2, b"")


def in_attribute(content: bytes) -> bytes:
    return field(1, field(5, field(1, b"a") + content))


def in_graph(content: bytes) -> bytes:
    return field(7, content)


PLACES: dict[str, Callable[[bytes], bytes]] = {
    "initializer": lambda t: in_graph(field(5, t)),
    "sparse-values": lambda t: in_graph(field(15, field(1, t))),
    "sparse-indices": lambda t: in_graph(field(15, field(2, t))),
    "attribute": lambda t: in_graph(in_attribute(field(5, t))),
    "attribute-list": lambda t: in_graph(in_attribute(field(10, b"") + field(10, t))),
    "sparse-attribute": lambda t: in_graph(in_attribute(field(22, sparse_of(t)))),
    "sparse-attribute-list": lambda t: in_graph(in_attribute(field(23, sparse_of(t)))),
    "subgraph": lambda t: in_graph(in_attribute(field(6, field(5, t)))),
    "subgraph-list": lambda t: in_graph(in_attribute(field(11, field(5, t)))),
    "sparse-in-subgraph": lambda t: in_graph(in_attribute(field(6, field(15, sparse_of(t))))),
    "sparse-in-subgraph-list": lambda t: in_graph(in_attribute(field(11, field(15, sparse_of(t))))),
    "two-deep": lambda t: in_graph(in_attribute(field(6, in_attribute(field(6, in_attribute(field(5, t))))))),
    "function": lambda t: in_graph(b"") + field(25, field(7, field(5, field(5, t)))),
    "function-default": lambda t: in_graph(b"") + field(25, field(11, field(5, t))),
    "function-default-graph": lambda t: (
        in_graph(b"") + field(25, field(11, field(6, in_attribute(field(5, t)))))
    ),
    "training": lambda t: in_graph(b"") + field(20, field(2, field(5, t))),
    "training-initialization": lambda t: in_graph(b"") + field(20, field(1, in_attribute(field(5, t)))),
}


@pytest.mark.parametrize("number", PAYLOADS)
@pytest.mark.parametrize("place", PLACES)
def test_every_place(tmp_path: Path, place: str, number: int) -> None:
    model = PLACES[place](PAYLOADS[number] + field(8, b"w"))
    assert held(model, False, tmp_path) == 1
    assert held(model, False, tmp_path, len(NUMBERS)) == 1
    assert held(model, False, tmp_path, len(NUMBERS) + 1) == 0


TWICE: dict[str, Callable[[bytes], bytes]] = {
    "attribute": lambda t: in_graph(in_attribute(field(5, t) + field(5, t))),
    "sparse-attribute": lambda t: in_graph(in_attribute(field(22, sparse_of(t)) + field(22, sparse_of(t)))),
    "sparse-values": lambda t: in_graph(field(15, field(1, t) + field(1, t))),
    "sparse-indices": lambda t: in_graph(field(15, field(2, t) + field(2, t))),
    "second-is-short": lambda t: in_graph(in_attribute(field(5, t) + field(5, b""))),
    "first-is-short": lambda t: in_graph(in_attribute(field(5, field(9, b"1")) + field(5, t))),
}


@pytest.mark.parametrize("number", PAYLOADS)
@pytest.mark.parametrize("place", TWICE)
def test_what_protobuf_merges_is_left_alone(tmp_path: Path, place: str, number: int) -> None:
    assert held(TWICE[place](PAYLOADS[number]), False, tmp_path) == 0


def test_graphs_that_protobuf_merges(tmp_path: Path) -> None:
    one = field(5, PAYLOADS[9])
    assert held(field(7, one) + field(7, one), False, tmp_path) == 2
    assert held(in_graph(in_attribute(field(6, one) + field(6, one))), False, tmp_path) == 2
    assert held(in_graph(b"") + field(20, field(1, one) + field(1, one)), False, tmp_path) == 2


@pytest.mark.parametrize("first", PAYLOADS)
@pytest.mark.parametrize("second", [*PAYLOADS, 6])
@pytest.mark.parametrize("short", [b"", NUMBERS])
def test_two_payloads_stay(tmp_path: Path, first: int, second: int, short: bytes) -> None:
    """Also two of one field: protobuf takes the last raw_data, and joins numbers."""
    assert held(eager.model_of_tensor(PAYLOADS[first] + field(second, short)), False, tmp_path) == 0
    assert held(eager.model_of_tensor(field(second, short) + PAYLOADS[first]), False, tmp_path) == 0


UNKNOWN = {
    "number of a known one, other type": field(2, b"\x80") + field(8, 5) + tag(12, 5) + b"four",
    "an empty type": field(2, b""),
    "below": field(9, 7) + field(10, 1) + field(4, 1),
    "beyond": field(100, b"x") + field(15, 1),
    "both": field(2, b"") + field(100, b"x") + tag(1, 1) + b"eight by",
}


@pytest.mark.parametrize("number", PAYLOADS)
@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize(
    "known", [b"", field(12, b"words"), field(8, b"w") + field(12, b"words") + field(14, 0)]
)
def test_unknown_fields_keep_their_place(tmp_path: Path, number: int, unknown: str, known: bytes) -> None:
    for tensor in (UNKNOWN[unknown] + PAYLOADS[number] + known, known + PAYLOADS[number] + UNKNOWN[unknown]):
        held(eager.model_of_tensor(tensor), False, tmp_path)


@pytest.mark.parametrize("width", range(1, 11))
def test_numbers_that_are_longer_than_need_be(tmp_path: Path, width: int) -> None:
    """Of tags and lengths protobuf reads five bytes, of other numbers ten. The lazy path takes what it takes."""
    tensor = field(9, NUMBERS)
    accepted = 0
    for model in (
        eager.model_of_tensor(varint(9 << 3 | 2, width) + varint(80) + NUMBERS),
        eager.model_of_tensor(tag(9, 2) + varint(80, width) + NUMBERS),
        eager.model_of_tensor(tensor + varint(100 << 3 | 2, width) + varint(1) + b"a"),
        eager.model_of_tensor(tensor + tag(100, 2) + varint(1, width) + b"a"),
        field(7, varint(5 << 3 | 2, width) + varint(len(tensor)) + tensor),
        field(7, tag(5, 2) + varint(len(tensor), width) + tensor),
        varint(7 << 3 | 2, width) + varint(len(field(5, tensor)), width) + field(5, tensor),
    ):
        accepted += held(model, False, tmp_path)
    assert accepted == (7 if width <= 5 else 0)
    assert held(field(1, 8, width) + eager.model_of_tensor(field(2, 1, width) + tensor), False, tmp_path) == 1
