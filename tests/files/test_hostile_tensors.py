"""What a tensor says of its external data and its shape may be wrong in any way: one line, and nothing else is read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from onnx import ModelProto, helper

import onnxfix
from onnxfix.errors import ModelError
from onnxfix.files import loading, tensors
from support.models import floats, of_nodes
from support.wire import field, model, tensor, whole


def external(*entries: tuple[str, str], dims: tuple[int, ...] = (1,)) -> bytes:
    """A model with w in another file."""
    said = b"".join(field(13, field(1, key.encode()) + field(2, value.encode())) for key, value in entries)
    return model(field(5, tensor(dims, said + whole(14, 1))))


def refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        loading.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "'w'" in message or "w.bin" in message
    return message.removeprefix(f"{path}: ")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (tmp_path / "loop").symlink_to("pool")
    (tmp_path / "pool").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("loop", "loop"),
        ("loop/w.bin", "loop"),
        ("w\0.bin", "embedded null"),
        ("n" * 300, "cannot be read: File name too long"),
        ("a/" * 3000 + "w", "cannot be read: File name too long"),
    ],
)
def test_a_location_that_leads_nowhere_is_no_fault_of_ours(home: Path, location: str, why: str) -> None:
    line = refused(home / "m.onnx", external(("location", location)))
    assert why in line or "behind a symbolic link" in line
    assert len(line) < 500


def test_links_into_a_cache_name_the_copy_that_works(home: Path) -> None:
    """As Hugging Face keeps them: model and data are links to blobs in another folder."""
    (snapshot := home / "snapshot").mkdir()
    (home / "blob").write_bytes(external(("location", "w.bin")))
    (snapshot / "m.onnx").symlink_to("../blob")
    (snapshot / "w.bin").symlink_to("../w.bin")
    with pytest.raises(ModelError, match="behind a symbolic link") as caught:
        loading.load(snapshot / "m.onnx")
    command = f"cp -rL {snapshot} copy"
    assert command in str(caught.value)
    subprocess.run(command, shell=True, cwd=home, check=True)
    assert loading.load(home / "copy" / "m.onnx").external == ["w.bin"]


def test_a_hard_link_may_be_a_file_of_another_folder(home: Path) -> None:
    os.link(home / "w.bin", home / "other.bin")
    line = refused(home / "m.onnx", external(("location", "w.bin")))
    assert "w.bin: has 2 hard links" in line
    assert "cp w.bin copy && mv copy w.bin" in line
    os.replace(home / "w.bin", home / "gone")
    (home / "w.bin").write_bytes(bytes(16))
    assert loading.load(home / "m.onnx").external == ["w.bin"]


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("text", ["-4", "+4", " 4", "4\n", "0_4", "４", "0x4", "4.0", "9" * 21, "four"])
def test_an_offset_or_length_is_digits(home: Path, key: str, text: str) -> None:
    line = refused(home / "m.onnx", external(("location", "w.bin"), (key, text)))
    assert f"{key} of its external data is not a number of bytes: {text[:40]!r}" in " ".join(
        line.split()
    ) or (text == "4\n" and key in line)


@pytest.mark.parametrize("first", ["../secret", "/etc/passwd", "w.bin"])
def test_a_location_that_is_there_twice_brings_no_foreign_file(home: Path, first: str) -> None:
    """The last one was checked, and all of them were copied."""
    (home / "secret").write_bytes(b"secret")
    (inner := home / "in").mkdir()
    (inner / "w.bin").write_bytes(bytes(16))
    (deep := home / "out" / "deep").mkdir(parents=True)
    data = external(("location", first), ("location", "w.bin"))
    line = refused(inner / "m.onnx", data)
    assert "describes its external data twice" in line
    with pytest.raises(ModelError):
        onnxfix.apply(inner / "m.onnx", deep / "o.onnx", verify=False)
    assert [path.name for path in sorted((home / "out").rglob("*"))] == ["deep"]
    proto = ModelProto.FromString(data)
    assert tensors.external_files(proto) == ["w.bin"]


@pytest.mark.parametrize("dims", [(-4,), (-2, -2), (2, -(1 << 63)), (0, -1)])
def test_no_dimension_is_negative(tmp_path: Path, dims: tuple[int, ...]) -> None:
    weight = tensor(dims, field(9, bytes(16)))
    constant = field(5, field(1, b"value") + field(5, weight) + whole(20, 4))
    branch = field(5, field(1, b"then_branch") + field(6, field(5, weight)) + whole(20, 5))
    sparse = field(5, field(1, b"value") + field(22, field(1, weight)) + whole(20, 11))
    inside = (field(1, field(4, b"A") + one) for one in (constant, branch, sparse))
    for data in (model(field(5, weight)), model(field(15, field(1, weight))), *map(model, inside)):
        assert "has a negative dimension" in refused(tmp_path / "m.onnx", data)
        with pytest.raises(ModelError, match="negative dimension"):
            loading.load(data)


def test_no_shape_has_millions_of_dimensions(tmp_path: Path) -> None:
    """The product of so many numbers has millions of digits."""
    line = refused(tmp_path / "m.onnx", model(field(5, tensor((2,) * 2000))))
    assert "has 2000 dimensions, more than 1024" in line


def test_shapes_of_inputs_may_say_minus_one() -> None:
    """Some exporters write a symbolic dimension so."""
    node = helper.make_node("Abs", ["x"], ["y"])
    proto = of_nodes([node], floats(x=[-1, 3]), floats(y=[-1, 3]))
    assert onnxfix.check(proto).ok


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
def test_a_path_that_is_not_utf8_is_read_and_not_blamed_on_a_library(tmp_path: Path) -> None:
    (path := tmp_path / os.fsdecode(b"m\xff.onnx")).write_bytes(model())
    (plain := tmp_path / "m.onnx").write_bytes(model())
    assert onnxfix.check(path).ok
    assert onnxfix.apply(path, tmp_path / os.fsdecode(b"o\xff.onnx"), verify=False).ok
    before = sorted(tmp_path.iterdir())
    for call in (
        lambda: onnxfix.apply(path, tmp_path / "o.onnx"),
        lambda: onnxfix.apply(plain, tmp_path / os.fsdecode(b"p\xff.onnx")),
        lambda: onnxfix.verify(path),
        lambda: onnxfix.diagnose(path, against="fp16"),
    ):
        with pytest.raises(ModelError, match=r"\.onnx: its path is not UTF-8, and neither .* rename it"):
            call()
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_said_of_external_data_is_text(home: Path) -> None:
    said = field(13, field(1, b"location") + field(2, b"w\xff"))
    line = refused(home / "m.onnx", model(field(5, tensor((1,), said + whole(14, 1)))))
    assert "b'w\\xff' for its external data is not UTF-8" in line


def test_a_symbol_that_is_not_utf8_is_none(tmp_path: Path) -> None:
    kind = field(2, field(1, whole(1, 1) + field(2, field(1, field(2, b"n\xff")))))
    assert onnxfix.check(model(field(13, field(1, b"y") + kind))).ok


def test_a_thousand_imports_make_one_short_line() -> None:
    more = b"".join(field(8, whole(2, version)) for version in (*range(1, 20), *[18] * 1000))
    with pytest.raises(ModelError, match=r"in different versions, 18, 1, 2, 3, 4, 5, …: ") as caught:
        onnxfix.check(model(more=more))
    assert len(str(caught.value)) < 300
