"""``onnxfix layers``: the table as text and as JSON, the files that it writes, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onnxfix.cli.app import app
from onnxfix.place import Place
from onnxfix.proof.asking import Builds, BuiltEngine
from onnxfix.report.render.documents import result_lines
from onnxfix.report.render.layers import layers_page
from onnxfix.report.render.markdown import render_page
from onnxfix.report.render.stream import as_json
from onnxfix.tensorrt.files import Entry, Tactics
from onnxfix.tensorrt.reading import Candidate, EngineLayer, LayerTable, LayerTensor, NodeLayers
from onnxfix.tensorrt.records import Issue, TrtBuild
from onnxfix.tensorrt.timing import timing
from onnxfix.verbs.layering import LayerReport
from support.paths import FIXTURES
from support.real_tensorrt import REAL

VIT = FIXTURES / "vit.legacy.op17.onnx"


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["layers", *map(str, arguments)])


# ---------------------------------------------------------------------------------------------------------- rendering

NODE = Place((), "conv", "Conv", "c")
OTHER = Place(("y.then_branch",), "", "Relu", "r")
TABLE = LayerTable(
    TrtBuild("accepted", package="tensorrt-rtx", version="1.7.1.116", compute_capability="8.9"),
    (
        NodeLayers(
            NODE, "engine", ("CONVOLUTION",), ("float32",), ("float32",), ("L1",), (OTHER,), ("k",), ("L0",)
        ),
        NodeLayers(OTHER, "engine", ("ACTIVATION",), ("float32",), ("float16",), ("L1",), (NODE,), ("k",)),
        NodeLayers(Place((), "gone", "Identity", "g"), "merged", ("IDENTITY",), ("bool",), ("bool",)),
    ),
    (
        EngineLayer(
            "L0", "kgen", outputs=(LayerTensor("t", "float32", (-1, 3), "(NHWC) Channel major format"),)
        ),
        EngineLayer("L1", "correlation", "k", stamps=("conv",)),
    ),
    "log",
    unknown=("1 of 2 layers have no tactic yet",),
)
REPORT = LayerReport("m.onnx", TABLE, "TensorRT-RTX 1.7.1")


def text(report: LayerReport, **options: bool) -> list[str]:
    return [line.plain for line in result_lines(report, **options)]


def test_the_table() -> None:
    assert text(REPORT) == [
        "m.onnx: TensorRT-RTX 1.7.1 builds an engine of 2 layers for compute capability 8.9",
        "  note      1 of 2 layers have no tactic yet",
        "  3 nodes: 2 in layers of the engine, 1 merged or removed",
        "  node               operator  precision          layers          fused with  reformats  tactics",
        "  conv               Conv      float32            #1 correlation  r           #0         k",
        "  y.then_branch / r  Relu      float32 → float16  #1 correlation  conv                   k",
        "  gone               Identity  bool               merged",
    ]
    assert text(REPORT, quiet=True) == text(REPORT)[:1]
    assert text(REPORT, verbose=True)[7:] == [
        "  #0 kgen L0: no tactic yet",
        "     writes t  float32 [?, 3] (NHWC) Channel major format",
        "  #1 correlation L1: k",
    ]


def test_a_table_wider_than_the_terminal_has_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = text(REPORT)
    monkeypatch.setenv("COLUMNS", str(max(map(len, wide))))
    assert text(REPORT) == wide
    monkeypatch.setenv("COLUMNS", "80")
    assert text(REPORT)[3:] == [
        "  conv  operator Conv; precision float32; layers #1 correlation; fused with r; reformats #0; tactics k",
        "  y.then_branch / r  operator Relu; precision float32 → float16; layers #1 correlation; fused with conv; "
        "tactics k",
        "  gone  operator Identity; precision bool; layers merged",
    ]


def test_names_cannot_disturb_the_terminal() -> None:
    row = NodeLayers(Place((), "a\x1b[31m\nb", "Conv", "c"), "merged")
    found = text(LayerReport("m.onnx", LayerTable(TABLE.build, (row,), (), "log"), "TensorRT"))
    assert all("\x1b" not in one and "\n" not in one for one in found)


def test_a_refused_model_is_one_line_with_the_reason() -> None:
    refused = TrtBuild("refused", "parse", errors=(Issue("parse", "error", "no such operator"),))
    report = LayerReport("m.onnx", LayerTable(refused), "TensorRT 10.9.0")
    assert text(report) == ["m.onnx: TensorRT 10.9.0 refuses it: no such operator"]
    assert report.exit_code == 1
    report = replace(report, table=replace(TABLE, build=refused))
    assert "| `gone` | Identity | bool | merged |" in render_page(layers_page(report))
    timeout = LayerReport("m.onnx", LayerTable(TrtBuild("timeout", "build")), "TensorRT 10.9.0")
    assert timeout.exit_code == 3
    assert "could not be asked" in text(timeout)[0]


def engines(*outcomes: str) -> Builds:
    made = [
        BuiltEngine(1, TABLE, "d1", (), outcomes[0], 1e-5, "", timing([[2.0] * 5] * 4)),
        BuiltEngine(2, TABLE, "d2", (NODE,), outcomes[1], float("inf"), "output y"),
        BuiltEngine(3, LayerTable(TrtBuild("refused")), outcome="failed", reason="no memory"),
    ]
    return Builds(tuple(made), 1 if outcomes[0] == "right" else 2, "", "ort-cpu", 6)


def test_engines_that_were_compared() -> None:
    report = LayerReport("m.onnx", TABLE, "TensorRT", engines("right", "wrong"), engine="out.engine")
    assert text(report)[1:7] == [
        "  engine 1 → out.engine",
        "  note      1 of 2 layers have no tactic yet",
        "  compared with ort-cpu on 6 inputs",
        "  engine 1: 2 layers, error 1e-05, 2.000 ms, kept",
        "  engine 2: 2 layers, other bytes than engine 1, 1 nodes with other layers or tactics, error inf, wrong: "
        "output y",
        "  engine 3: not built: no memory",
    ]
    document = json.loads(as_json(report.to_dict()))["builds"]
    assert [one["error"] for one in document["engines"]] == [1e-5, None, None]
    assert (document["kept"], document["engines"][1]["differs"]) == (1, ["conv"])
    assert report.exit_code == 0
    wrong = LayerReport("m.onnx", TABLE, "TensorRT", engines("wrong", "wrong"))
    assert wrong.exit_code == 1


def test_tactics_that_were_kept() -> None:
    entry = Entry("0x1", "0x2", 0.5, "conv", (Candidate("k", "0x2", 0.5),))
    tactics = Tactics("tensorrt", "10.9.0", "8.9", (entry, entry), b"", 1)
    report = LayerReport("m.onnx", TABLE, "TensorRT", tactics=tactics, tactics_file="t.json")
    assert text(report)[1:3] == [
        "  2 tactics → t.json",
        "  1 tactics were not in the file that was loaded, and were timed",
    ]
    document = json.loads(as_json(report.to_dict()))
    assert (document["tactics_file"], document["tactics"], document["new_tactics"]) == ("t.json", 2, 1)


# ------------------------------------------------------------------------------------------------------- the command


@REAL
def test_a_model_as_json(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    found = run(VIT, "--format", "json", "--report", report)
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert document == json.loads(report.read_text())
    assert (document["status"], document["source"], document["exit_code"]) == ("accepted", "log", 0)
    rows = {row["node"]: row for row in document["nodes"]}
    assert len(rows) == len(document["nodes"])
    query = rows["/m/layers.0/attention/q_proj/MatMul"]
    assert set(query["fused_with"]) == {f"/m/layers.0/attention/{which}_proj/MatMul" for which in "kv"}
    assert (query["inputs"], query["outputs"], query["imported"]) == (
        ["float32"],
        ["float32"],
        ["MATRIX_MULTIPLY"],
    )
    assert rows["/m/embeddings/patch_embeddings/projection/Conv"]["reformats"], "its input is row major"
    assert set(query["layers"]) <= {layer["name"] for layer in document["layers"]}


@REAL
def test_engines_are_compared_and_one_is_saved(tmp_path: Path) -> None:
    engine = tmp_path / "best.engine"
    found = run(FIXTURES / "mixed_precision.legacy.op17.onnx", "--builds", "2", "--save-engine", engine)
    assert found.exit_code == 0, found.output
    assert f"engine 1 → {engine}" in found.stdout
    assert "no engine was executed: no NVIDIA GPU found" in found.stdout
    assert "engine 2: " in found.stdout
    assert engine.stat().st_size > 10_000
    assert [one.name for one in tmp_path.iterdir()] == ["best.engine"]


@REAL
def test_what_tensorrt_refuses(tmp_path: Path) -> None:
    engine = tmp_path / "none.engine"
    found = run(FIXTURES / "trt" / "int32_relu.onnx", "--save-engine", engine)
    assert found.exit_code == 1
    assert "refuses it: y: Relu:" in found.stdout
    assert not engine.exists()


@REAL
@pytest.mark.parametrize("option", ["--save-tactics", "--load-tactics"])
def test_rtx_keeps_no_tactics(option: str, tmp_path: Path) -> None:
    file = tmp_path / "tactics.json"
    if option == "--load-tactics":
        entry = Entry(f"0x{1:032x}", "0x2", 0.5)
        file.write_text(Tactics("tensorrt-rtx", "1.7.1.116", "8.9", (entry,), b"").to_json())
    found = run(VIT, option, file)
    assert found.exit_code == 2
    assert f"{option}: TensorRT-RTX " in found.stderr
    assert "has no editable timing cache" in found.stderr
    assert file.exists() == (option == "--load-tactics")


@REAL
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--builds", "2", "--save-tactics", "t.json"], "--save-tactics has no effect with --builds"),
        (["--builds", "2", "--timing-cache", "c"], "--timing-cache has no effect with --builds"),
        (
            ["--load-tactics", "t.json", "--timing-cache", "c"],
            "--load-tactics and --timing-cache exclude each other",
        ),
        (["--load-tactics", "none.json"], "--load-tactics none.json: cannot be read"),
        (["--save-tactics", "none/t.json"], "--save-tactics none/t.json: directory none does not exist"),
        (["--save-tactics", "e", "--save-engine", "e"], "is also --save-engine"),
        (["--report", "e", "--save-engine", "e"], "is also"),
        (["--builds", "0"], "--builds"),  # the rest of the line is typer's
        (["--trt-opt-shapes", "nothing:1x3"], "nothing"),
        (["--input-shapes", "nothing:1x3"], "nothing"),
    ],
)
def test_options_that_make_no_sense(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run(VIT, *options)
    assert found.exit_code == 2
    assert words in found.stderr
    assert list(tmp_path.iterdir()) == []


@REAL
def test_the_engine_is_for_the_given_shapes() -> None:
    found = run(VIT, "--input-shapes", "pixel_values:3x3x32x32", "--format", "json")
    assert found.exit_code == 0, found.output
    inputs = [one for layer in json.loads(found.stdout)["layers"] for one in layer["inputs"]]
    assert [3, 3, 32, 32] in [one["dims"] for one in inputs if one["name"] == "pixel_values"]
