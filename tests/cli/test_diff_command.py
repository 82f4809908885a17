"""``onnxfix diff`` and ``apply --diff``: what they print, their exit codes, and that nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from support.cli import errors, output, refused, reported, run, told
from support.models import model, write

CAST = "m (float[N,4] x) => (float[N,4] y) { c = Cast<to: int = 1>(x)\n y = Relu(c) }"


@pytest.fixture
def cast(tmp_path: Path) -> Path:
    path = write(tmp_path / "cast.onnx", model(CAST))
    return path


def test_apply_diff_shows_what_would_change_and_writes_nothing(cast: Path) -> None:
    before = cast.read_bytes()
    out = output(1, "apply", cast, "--diff", "--no-verify")
    assert "1 would be fixed" in out
    assert "- Cast  c  CST002" in out
    assert "~ Relu  y  X: c → x  CST002" in out
    assert [one.name for one in cast.parent.iterdir()] == ["cast.onnx"]
    assert cast.read_bytes() == before


def test_apply_diff_is_0_where_nothing_would_change_whatever_is_left(tmp_path: Path) -> None:
    path = tmp_path / "left.onnx"
    onnx.save(model("m (double[2] x) => (double[2] y) { y = Add(x, w) }", w=np.array([1e300, 1.0])), path)
    assert run("check", path, "--fail-on", "info")[0] == 1  # there are findings, and no fix
    code, report = reported("apply", path, "--diff", "--no-verify", "--fail-on", "info")
    assert (code, report["exit_code"], report["difference"]["changes"]) == (0, 0, [])


@pytest.mark.parametrize("options", [("-o", "a.onnx"), ("--output-dir", "d"), ("--in-place",), ("--resume",)])
def test_diff_contradicts_options_about_files(options: tuple[str, ...], cast: Path) -> None:
    error = errors(2, "apply", cast, "--diff", *options)
    assert "--diff writes no model" in error


def test_diff_of_two_files(cast: Path) -> None:
    fixed = cast.with_name("fixed.onnx")
    assert run("apply", cast, "--no-verify", "-o", fixed)[0] == 0
    code, out, _ = run("diff", cast, fixed)
    assert (code, "- Cast  c  CST002" in out) == (1, True)
    code, document = told("diff", cast, fixed)
    assert (code, document["exit_code"], document["removed"], document["added"], document["changed"]) == (
        1,
        1,
        1,
        0,
        1,
    )
    assert [one["rules"] for one in document["changes"]] == [["CST002"], ["CST002"]]
    assert run("diff", cast, cast, "-q")[:2] == (0, f"{cast} → {cast}  no difference\n")
    report = cast.with_name("report.json")
    report.write_text('{"reports": [{"output": "fixed.onnx", "applied": []}]}')
    assert output(1, "diff", cast, fixed, "--fixes", report) == out
    assert "is not the JSON report of an apply" in errors(2, "diff", cast, fixed, "--fixes", fixed)
    error = refused("diff", cast, cast.with_name("none.onnx"))
    assert "no such file" in error
