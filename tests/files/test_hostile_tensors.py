"""What a tensor says of its external data and its shape may be wrong in any way: one line, and nothing else is read.
What a model may take of memory and time is decided before it is parsed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from onnx import ModelProto, helper
from typer.testing import CliRunner

import onnxfix
from onnxfix.cli.app import app
from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.files import bounds, loading, tensors
from onnxfix.files.bounds import TooLarge
from onnxfix.files.wire import varint
from onnxfix.runtime.allowance import STRUCTURE_MB
from support.models import floats, of_nodes
from support.wire import field, model, node, tensor, times, whole


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


MIB = 1 << 20


def attribute(more: bytes) -> bytes:
    return field(1, node(field(5, field(1, b"a") + more)))


LARGE = {
    "empty nodes": lambda size: model(times(1, b"", size)),
    "nodes with a short name": lambda size: model(times(1, field(4, b"A"), size)),
    "empty value infos": lambda size: model(times(13, b"", 2 * size)),
    "empty attributes": lambda size: model(nodes=field(1, node(times(5, b"", size)))),
    "attributes with a name": lambda size: model(nodes=field(1, node(times(5, field(1, b"a"), size)))),
    "empty graphs in an attribute": lambda size: model(nodes=attribute(times(11, b"", size))),
    "empty tensors in an attribute": lambda size: model(nodes=attribute(times(10, b"", size))),
    "outputs of a node": lambda size: model(nodes=field(1, node(times(2, b"", size)))),
    "empty functions": lambda size: model(more=times(25, b"", size)),
    "empty training graphs": lambda size: model(more=times(20, b"", size)),
    "empty initializers": lambda size: model(times(5, b"", size)),
    "the graph again and again": lambda size: model(more=times(7, b"", size)),
    "imports": lambda size: model(more=times(8, b"", 2 * size)),
    "nodes behind a tag of two bytes": lambda size: model((varint(1 << 3 | 2 | 0x80)[:1] + b"\0\0") * (size // 3)),
    "nodes behind a group": lambda size: model(varint(50 << 3 | 3) + varint(50 << 3 | 4) + times(1, b"", size)),
    "nodes before what is no field": lambda size: model(times(1, b"", size) + b"\0\0"),
    "nodes behind a weight": lambda size: model(field(5, tensor(more=field(9, bytes(size)))) + times(1, b"", size)),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_model_that_fills_memory_is_refused_before_it_is_parsed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BASE", 1 * MIB)
    (path := tmp_path / "m.onnx").write_bytes(LARGE[name](64 << 10))
    with (
        mock.patch.object(loading, "parse", side_effect=AssertionError("it was parsed")),
        pytest.raises(TooLarge, match=r"m\.onnx: its structure would .* ONNXFIX_STRUCTURE_MB sets another"),
    ):
        loading.load(path)


MANY = {
    "dimensions": lambda: model(field(5, tensor((2,) * 9))),
    "a list of many numbers": lambda: model(nodes=attribute(field(8, b"\1" * 10**5) + whole(20, 7))),
    "the same, a field each": lambda: model(nodes=attribute(b"\x40\x01" * 10**5 + whole(20, 7))),
    "a list of many floats": lambda: model(nodes=attribute(b"\x3d\0\0\0\0" * 10**5 + whole(20, 6))),
    "a long text": lambda: model(field(10, b"d" * 5 * MIB)),
    "a large weight": lambda: model(field(5, tensor((MIB,), field(9, bytes(4 * MIB))))),
    "twenty thousand nodes": lambda: model(
        b"".join(field(1, node(output=b"o%d" % number)) for number in range(20_000))
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_what_a_real_model_may_hold_is_within_the_limit(name: str) -> None:
    bounds.check(MANY[name]())


def charged(data: bytes) -> int:
    """The charge of a small model, which is otherwise not looked at."""
    with mock.patch.dict(os.environ, {STRUCTURE_MB: "1"}), pytest.raises(TooLarge):
        bounds.measure(data, bounds.Budget())
    with mock.patch.dict(os.environ, {STRUCTURE_MB: str(10**5)}):
        budget = bounds.Budget()
        budget.allowance = lambda size: -1
        return bounds.measure(data, budget)


def test_two_million_nodes_are_within_the_limit() -> None:
    some = b"".join(
        field(1, node(output=b"v%06d" % number, read=b"v%06d" % number)) for number in range(20_000)
    )
    share = charged(model(some)) / len(some)
    size = len(some) * 100
    assert 1 << 30 < share * size < bounds.Budget().allowance(size)


@pytest.mark.slow
def test_the_environment_sets_the_limit_of_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = model(b"".join(field(1, node(output=b"o%d" % number)) for number in range(2000)))
    Path("m.onnx").write_bytes(data)
    line = "its structure would take too much memory"
    more = {
        "view": ["--rule", "GRA001", "-o", "part.onnx"],
        "diff": ["m.onnx"],
        "diagnose": ["--against", "fp16"],
        "reduce": ["--check", "ort-cpu"],
        "precision": ["-o", "low.onnx", "--to", "fp16", "--max-error", "0.1"],
    }
    monkeypatch.setenv(STRUCTURE_MB, "1")
    for command in (*more, "check", "apply", "verify", "lift", "layers"):
        done = CliRunner().invoke(app, [command, "m.onnx", *more.get(command, [])])
        assert (done.exit_code, line in done.stderr, done.stderr.count("\n")) == (2, True, 1), command
    for call in (onnxfix.check, onnxfix.apply, onnxfix.verify):
        for source in ("m.onnx", data, ModelProto.FromString(data)):
            with pytest.raises(ModelError, match=line):
                call(source)
    monkeypatch.setenv(STRUCTURE_MB, "100")
    assert len(loading.load(Path("m.onnx")).proto.graph.node) == 2001
    monkeypatch.setenv(STRUCTURE_MB, "much")
    with pytest.raises(OnnxfixError, match="ONNXFIX_STRUCTURE_MB=much: is not a number"):
        loading.load(Path("m.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["empty nodes", "empty functions"])
def test_the_whole_process_stays_small(name: str, tmp_path: Path) -> None:
    (path := tmp_path / "m.onnx").write_bytes(LARGE[name](5 * MIB))
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (700 << 20,) * 2)\n"
        "from onnxfix.cli.app import main; sys.argv = ['onnxfix', 'check', sys.argv[1]]; main()"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 2, done.stderr
    assert "ONNXFIX_STRUCTURE_MB" in done.stderr
