"""``onnxfix diagnose`` on the command line: text, JSON, files and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from support.cli import run
from support.models import model
from support.paths import FIXTURES
from support.real_tensorrt import FACT, REAL, RELEASE

NET = """
g (float[N, 4] x) => (float[N, 4] y)
<float[4] scale = {SCALE}>
{ a = Tanh(x)  b = Mul(a, scale)  y = Exp(b) }
"""
OUTLIER = FIXTURES / "diagnose" / "encoder_outlier.onnx"


@pytest.fixture
def nets(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "right.onnx", tmp_path / "other.onnx"
    for path, scale in zip(paths, ("3.0", "3.5"), strict=True):
        onnx.save(model(NET.replace("SCALE", f"1.0, 2.0, {scale}, 4.0")), path)
    return paths


def test_the_answer_comes_first(nets: tuple[Path, Path]) -> None:
    code, text, _ = run("diagnose", *nets)
    lines = text.splitlines()
    assert code == 1
    assert lines[0] == f"{nets[0]} against {nets[1]}  differs: b (weight)"
    assert lines[1].startswith("  node      b (Mul): own error 0.")
    assert [line[:8] for line in lines if line.startswith("  why") or line.startswith("  do")] == [
        "  why   ",
        "  do    ",
    ]
    assert run("diagnose", *nets, "-q")[1] == lines[0] + "\n"
    assert "values" in run("diagnose", *nets, "-v")[1]


def test_two_that_agree_end_with_0(nets: tuple[Path, Path]) -> None:
    code, text, _ = run("diagnose", nets[0], nets[0], "-q")
    assert (code, text) == (0, f"{nets[0]} against {nets[0]}  agrees: every output is bit-identical\n")


def test_json_and_the_report_are_the_same(nets: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, text, _ = run(
        "diagnose", *nets, "--format", "json", "--report", report, "--input-shapes", "x:[6,4]"
    )
    data = json.loads(text)
    assert json.loads(report.read_text()) == data
    assert (code, data["exit_code"], data["status"]) == (1, 1, "differ")
    assert [(one["node"], one["op_type"], one["cause"]) for one in data["culprits"]] == [
        ("b", "Mul", "weight")
    ]
    assert data["outputs"][0]["shape"] == [6, 4]


def test_the_nodes_to_keep_are_written(tmp_path: Path) -> None:
    keep = tmp_path / "keep_fp32.txt"
    code, text, _ = run("diagnose", OUTLIER, "--against", "fp16", "--keep-fp32", keep, "--format", "json")
    data = json.loads(text)
    assert code == 1
    lines = keep.read_text().splitlines()
    assert lines == data["keep_fp32"]
    for one in data["culprits"]:
        assert [line for line in lines if re.match(line, one["node"])]
    assert not [line for line in lines if re.match(line, "/embed/MatMul") or line.split() != [line]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a second model, or what to compare with: --against"),
        (("missing.onnx",), "missing.onnx"),
        (("--against", "gpu"), "--against"),
        (("--against", "fp16", "--inputs", "missing.npz"), "missing.npz"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(
    nets: tuple[Path, Path], arguments: tuple[str, ...], message: str
) -> None:
    code, text, errors = run("diagnose", nets[0], *arguments)
    assert (code, text) == (2, "")
    assert message in re.sub(r"\s+", " ", errors)


@REAL
@FACT
def test_the_rule_that_repairs_an_import_is_named() -> None:
    code, text, _ = run(
        "diagnose", FIXTURES / "misread" / "decoder.onnx", "--against", "trt-network", "--format", "json"
    )
    data = json.loads(text)
    (culprit,) = data["culprits"]
    assert code == 1
    assert (culprit["node"], culprit["cause"], culprit["rule"], culprit["fix"]) == (
        "decode",
        "hazard",
        "OPS013",
        "exact",
    )
    assert culprit["advice"].startswith("onnxfix apply ")
    assert data["versions"]["tensorrt-rtx"].split(".")[:2] == RELEASE.split(".")[:2]
