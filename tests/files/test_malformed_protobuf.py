"""Bytes that are no model: whatever protobuf refuses is one ModelError that says where, and never anything else.

What protobuf accepts, however odd, is read as protobuf reads it. ``test_random_encodings.held`` compares the two.
"""

from __future__ import annotations

import random
import re
import tempfile
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfix.errors import ModelError
from onnxfix.files import loading, wire
from support import cli, eager
from support.eager import field, model_of_tensor, tag, varint
from support.models import model
from test_random_encodings import NUMBERS, PLACES, Maker, held

pytestmark = pytest.mark.corpus

TENSOR = field(9, NUMBERS)
TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N] x) => (float[N] y) <float[12] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
  k = Constant<value = int64[6] {1, 2, 3, 4, 5, 6}>()  y = Neg(x)
}"""


def models() -> dict[str, bytes]:
    made = {
        name: PLACES[name](TENSOR + field(8, b"w"))
        for name in ("initializer", "two-deep", "function-default")
    }
    made["numbers"] = PLACES["sparse-attribute"](field(7, NUMBERS) + field(1, 80))
    made["text"] = model(TEXT).SerializeToString()
    return made


MODELS = models()


def place_of(error: ModelError) -> int | None:
    """The offset in its message."""
    found = re.search(r"\(at byte (\d+): [^)]+\)", str(error))
    return int(found.group(1)) if found else None


def refused(data: bytes, path: Path, large: int = 1) -> ModelError:
    """What the lazy path says of bytes that protobuf refuses."""
    path.write_bytes(data)
    with pytest.raises(DecodeError):
        eager.parsed(data)
    with pytest.raises(ModelError) as caught:
        eager.opened(path, large)
    assert type(caught.value) is ModelError
    text = str(caught.value)
    assert text.startswith(f"{path}: not an ONNX model, or truncated: its bytes are no ModelProto")
    assert len(text.splitlines()) == 1
    return caught.value


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("large", [1, 1 << 20])
def test_cut_short_at_every_byte(tmp_path: Path, name: str, large: int) -> None:
    """With ``large`` beyond everything no payload stays behind, and protobuf finds the fault first."""
    data, refusals = MODELS[name], 0
    for end in range(1, len(data)):
        part = data[:end]
        try:
            eager.parsed(part)
        except DecodeError:
            refusals += 1
            place = place_of(refused(part, tmp_path / "m.onnx", large))
            assert place is not None
            assert place < end
            # The field that was cut is the outermost one that reaches beyond the end.
            eager.parsed(data[:place])
        else:
            held(part, False, tmp_path, large)
    assert refusals > len(data) * 0.8


@pytest.mark.parametrize("name", MODELS)
def test_every_byte_replaced(tmp_path: Path, name: str) -> None:
    data, path, refusals = MODELS[name], tmp_path / "m.onnx", 0
    for at in range(len(data)):
        for value in (0, 0x7F, 0x80, 0xFF, data[at] ^ 1, data[at] ^ 4):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            try:
                eager.parsed(changed)
            except DecodeError:
                refusals += 1
                assert place_of(refused(changed, path)) is not None
            else:
                held(changed, True, tmp_path)
    assert refusals > len(data) / 3


def damaged(rnd: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rnd.choice((1, 1, 1, 2, 3))):
        at = rnd.randrange(len(out) + 1)
        match rnd.randrange(6):
            case 0:
                out[at : at + 1] = bytes([rnd.randrange(256)])
            case 1:
                out[at:at] = rnd.randbytes(rnd.randint(1, 3))
            case 2:
                del out[at : at + rnd.randint(1, 3)]
            case 3:
                out[at : at + 1] = bytes([rnd.choice((0, 0x7F, 0x80, 0xFF))])
            case 4:
                out[at:at] = b"\xff" * rnd.randint(1, 12)
            case _:
                out[at:at] = b"\x80" * rnd.randint(1, 10)
    return bytes(out) or b"\x00"


@given(st.randoms(use_true_random=True))
@settings(max_examples=400)
def test_damage_at_random(rnd: random.Random) -> None:
    data = damaged(rnd, rnd.choice((Maker(rnd).model(), *MODELS.values())))
    with tempfile.TemporaryDirectory() as folder:
        held(data, True, Path(folder))


def group(number: int, content: bytes = b"") -> bytes:
    return tag(number, 3) + content + tag(number, 4)


BAD = {
    "eleven bytes of a number": tag(50, 0) + b"\xff" * 10 + b"\x01",
    "eleven bytes of a tag": b"\xff" * 10 + b"\x01",
    "six bytes of a tag": varint(50 << 3, 6) + b"\x00",
    "six bytes of a length": tag(50, 2) + varint(0, 6),
    "a length of 2^31": tag(9, 2) + varint(1 << 31),
    "a length of 2^35": tag(9, 2) + varint(1 << 35),
    "a length of 2^63": tag(9, 2) + varint(1 << 63),
    "a length one too large": tag(50, 2) + varint(1),
    "field number 0": field(0, 1),
    "field number 0 with bytes": field(0, b"a"),
    "a field number of 30 bits": varint(1 << 32 | 9 << 3 | 2) + b"\x01a",
    "half of 4 bytes": tag(50, 5) + b"ab",
    "half of 8 bytes": tag(50, 1) + b"abcd",
    "wire type 6": tag(50, 6),
    "wire type 7": tag(50, 7),
    "a group that ends nowhere": tag(50, 3),
    "a group that begins nowhere": tag(50, 4),
    "a group that ends as another": tag(50, 3) + tag(51, 4),
    "a group that is cut": tag(50, 3) + tag(1, 2),
    "a tag alone": tag(50, 0),
    "floats and a half": field(4, bytes(42)),
    "doubles and a half": field(10, bytes(44)),
    "int32 that ends within a number": field(5, NUMBERS + b"\x80"),
    "int64 that ends within a number": field(7, NUMBERS + b"\xff"),
    "uint64 with a number of 11 bytes": field(11, NUMBERS + b"\x80" * 10 + b"\x00" + NUMBERS),
    "dims that end within a number": field(1, b"\x01\x80"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("large", [1, 40, 1 << 20])
@pytest.mark.parametrize("first", [b"", field(8, b"w"), field(8, b"w" * 200)])
def test_what_protobuf_refuses(tmp_path: Path, bad: str, large: int, first: bytes) -> None:
    data = model_of_tensor(first + BAD[bad])
    assert place_of(refused(data, tmp_path / "m.onnx", large)) == data.index(first + BAD[bad]) + len(first)


ODD = {
    "a group": group(50, field(1, 3) + field(2, b"x")),
    "groups in a group": group(50, group(51, group(52))),
    "an empty group of a known number": group(9),
    "a group of the weights' number": group(9, NUMBERS[:0] + field(9, NUMBERS)),
    "the greatest field number": field((1 << 29) - 1, 1),
    "five bytes of a tag": varint(50 << 3, 5) + b"\x00",
    "ten bytes of a number": tag(50, 0) + b"\xff" * 9 + b"\x7f",
    "a number for bytes": field(9, 1),
    "bytes for a number": field(2, b"\xff"),
    "no bytes": field(9, b""),
    "numbers one by one": b"".join(tag(4, 5) + b"abcd" for _ in range(20)),
    "ten bytes of a packed number": field(7, NUMBERS + b"\xff" * 9 + b"\x7f"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_protobuf_accepts(tmp_path: Path, odd: str) -> None:
    for tensor in (ODD[odd] + TENSOR, TENSOR + ODD[odd], ODD[odd]):
        eager.parsed(model_of_tensor(tensor))
        held(model_of_tensor(tensor), True, tmp_path)
    held(field(7, field(5, TENSOR) + ODD[odd]), True, tmp_path)


def nested(levels: int, inner: bytes) -> bytes:
    """A graph in a graph, so many times; each is three messages deeper."""
    for _ in range(levels):
        inner = field(1, field(5, field(6, inner)))
    return field(7, inner)


@pytest.mark.parametrize("levels", [0, 1, 10, 29, 30, 31, 32, 33, 34, 40, 60])
def test_deep_nesting(tmp_path: Path, levels: int) -> None:
    """Protobuf reads messages in a hundred levels and no deeper."""
    assert held(nested(levels, field(5, TENSOR)), False, tmp_path) == (levels <= 32)
    assert held(nested(levels, field(1, field(5, field(5, TENSOR)))), False, tmp_path) == (levels <= 32)
    deeper = field(1, field(5, field(22, field(1, TENSOR))))
    assert held(nested(levels, deeper), False, tmp_path) == (levels <= 31)


@pytest.mark.parametrize("kind", [5, 7, 11])
@pytest.mark.parametrize("step", range(1, 24))
def test_numbers_across_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, step: int
) -> None:
    monkeypatch.setattr(wire, "_STEP", step)
    assert held(model_of_tensor(field(kind, NUMBERS + b"\x80" * 9 + b"\x01" + NUMBERS)), True, tmp_path) == 1
    for bad in (NUMBERS[:11] + b"\x80" * 10 + b"\x01" + NUMBERS, NUMBERS[:11] + b"\x80"):
        assert place_of(refused(model_of_tensor(field(kind, bad)), tmp_path / "m.onnx")) == 6


def test_five_thousand_levels(tmp_path: Path) -> None:
    error = refused(nested(5000, field(5, TENSOR)), tmp_path / "m.onnx")
    assert "nested deeper than 100 levels" in str(error)
    assert place_of(error) is not None
    cli.refused("check", tmp_path / "m.onnx")


def test_the_offset_is_where_it_was_damaged(tmp_path: Path) -> None:
    """Far into a file of several windows, behind weights that were leapt over."""
    parts = [field(5, field(9, bytes(5000)) + field(8, b"w%d" % index)) for index in range(300)]
    bad = field(5, field(8, b"bad") + tag(9, 2) + varint(5001) + bytes(5000))
    body = b"".join([*parts[:200], bad, *parts[200:]])
    data = field(7, body)
    place = place_of(refused(data, tmp_path / "m.onnx", 1024))
    assert place == data.index(field(8, b"bad")) + len(field(8, b"bad"))


@pytest.mark.parametrize("command", ["check", "apply", "verify"])
@pytest.mark.parametrize("size", [0, loading.SMALL])
def test_on_the_command_line(tmp_path: Path, command: str, size: int) -> None:
    """One line and exit code 2, whether the file is small or so large that its weights stay behind."""
    path, output = tmp_path / "m.onnx", tmp_path / "out.onnx"
    data = field(7, field(5, field(9, bytes(size + 2000)) + field(8, b"w")))
    path.write_bytes(data[:-1])
    more = ["-o", output] if command == "apply" else []
    err = cli.refused(command, path, *more)
    assert "at byte 0: field 7 needs" in err
    assert [item.name for item in tmp_path.iterdir()] == ["m.onnx"]
