"""``onnxfix lift``: what is written, what is said, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.report.render.documents import result_lines
from onnxfix.report.render.results import GAPS
from onnxfix.tensorrt.lift.records import Gap, Lifted, NetTensor
from onnxfix.verbs import layering
from support import lifted
from support.cli import output, run, streams
from support.models import model, write
from support.real_tensorrt import REAL

TURN = "g (float[N,3] x) => (float[3,N] y) { y = Transpose<perm = [1, 0]>(x) }"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which has a model m.onnx."""
    onnx.save(lifted.text(TURN), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@REAL
def test_the_network_is_written_and_runs(tmp_path: Path) -> None:
    before = (tmp_path / "m.onnx").read_bytes()
    code, out, err = run("lift", "m.onnx", "-o", "seen.onnx")
    assert code == 0, err
    first, *rest = out.splitlines()
    assert first.startswith("m.onnx: TensorRT-RTX ")
    assert first.endswith("→ seen.onnx")
    assert [line.split() for line in rest] == [
        ["input", "x", "FLOAT", "[N,", "3]"],
        ["output", "y", "FLOAT", "[3,", "?]"],
    ]
    onnx.checker.check_model(tmp_path / "seen.onnx")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(lifted.run(tmp_path / "seen.onnx", {"x": x})[0], x.T)
    assert (tmp_path / "m.onnx").read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["m.onnx", "seen.onnx"]
    nodes = onnx.load(tmp_path / "seen.onnx").graph.node
    told = {entry.key: entry.value for node in nodes for entry in node.metadata_props}
    assert told["onnx_node"] == "node_of_y"
    assert told["trt_kind"] == "SHUFFLE"


@REAL
def test_without_an_output_the_model_lends_its_name(tmp_path: Path) -> None:
    out = output(0, "lift", "m.onnx", "--format", "json")
    told = json.loads(out)
    assert (told["model"], told["status"], told["path"]) == ("m.onnx", "lifted", "m.lifted.onnx")
    assert told["names"]["y"] == "y"
    assert (tmp_path / "m.lifted.onnx").is_file()


@REAL
def test_a_model_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { y = my.dom.Nothing(x) }"
    write(tmp_path / "m.onnx", model(text, domains={"my.dom": 1}))
    out = output(1, "lift", "m.onnx", "-o", "seen.onnx")
    assert " refuses it: " in out
    assert not (tmp_path / "seen.onnx").exists()


@REAL
def test_the_weights_of_a_large_model_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layering, "EMBEDDED", 100)
    text = "g (float[1,32] x) => (float[33,32] y) { y = Concat<axis = 0>(x, w) }"
    write(tmp_path / "m.onnx", model(text, 17, 8, w=np.arange(1024, dtype=np.float32).reshape(32, 32)))
    found = onnxfix.lift(tmp_path / "m.onnx", tmp_path / "seen.onnx")
    assert found.lifted
    assert (tmp_path / "seen.onnx.data").stat().st_size == 4096
    feed = {"x": np.zeros((1, 32), np.float32)}
    for one, other in zip(
        lifted.run(tmp_path / "seen.onnx", feed), lifted.run(tmp_path / "m.onnx", feed), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(onnxfix.UsageError, match=r"seen\.onnx\.data: is in the way of the weights"):
        onnxfix.lift(tmp_path / "m.onnx", tmp_path / "seen.onnx")


@REAL
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m.onnx", "-o", "m.onnx"], "m.onnx: is also a model of this run"),
        (["m.onnx", "-o", "no/seen.onnx"], "no: no such directory for the output"),
        (["m.onnx", "-o", "."], ".: is a directory"),
        (["none.onnx"], "none.onnx: no such file"),
        (["junk.onnx"], "junk.onnx: "),
        (["m.onnx", "--trt-package", "tensorrt"], "tensorrt is not installed"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"no protobuf at all")
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    out, err = streams(2, "lift", *arguments)
    [line] = err.splitlines()
    assert words in line
    assert not out
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_what_is_missing_is_listed_up_to_a_limit() -> None:
    gaps = tuple(Gap("PLUGIN_V3", f"p{n}", f"n{n}", "a plugin") for n in range(GAPS + 2))
    found = Lifted(
        "unlifted",
        reason=str(gaps[0]),
        path="seen.onnx",
        model="m.onnx",
        inputs=(NetTensor("x", "FLOAT", ("N", 3)),),
        layers=(("PLUGIN_V3", GAPS + 2),),
        gaps=gaps,
        notes=("an assertion was dropped",),
        package="tensorrt-rtx",
        version="1.7.1.116",
    )
    first, *rest = [line.plain for line in result_lines(found)]
    assert first == (
        "m.onnx: TensorRT-RTX 1.7.1 imports it as 12 layers → seen.onnx, which cannot be run: "
        "12 of them are not read back"
    )
    assert rest[0] == "  input     x  FLOAT [N, 3]"
    assert rest[1] == "  note      an assertion was dropped"
    assert rest[2] == "  missing   PLUGIN_V3 layer p0 of ONNX node n0: a plugin"
    assert rest[-1] == "  and 2 more"
    assert len(rest) == GAPS + 3
    assert found.exit_code == 1


def test_a_child_that_died_says_how() -> None:
    found = Lifted("crash", "TensorRT's parser was killed by SIGSEGV", model="m.onnx")
    assert [line.plain for line in result_lines(found)] == [
        "m.onnx: its network could not be read: TensorRT's parser was killed by SIGSEGV"
    ]
