"""The command line on good input: outputs, exit codes, formats, several models, in place."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.cli import errors, output, process, refused, run, shell, told
from support.cli_models import CLEAN, FIXABLE, external_model, write
from support.models import model

HAZARD = "g (float[2,3] x) => (float[A,B] y) <int64[2] s = {0, -1}> { y = Reshape<allowzero = 1>(x, s) }"


def test_check_reads_only(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    before = path.read_bytes()
    code, out, err = run("check", path)
    assert (code, err) == (0, "")  # what is found is below warning
    assert "CST" in out
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(("fail_on", "code"), [("info", 1), ("warning", 0), ("error", 0), ("never", 0)])
def test_fail_on(tmp_path: Path, fail_on: str, code: int) -> None:
    assert run("check", write(tmp_path / "m.onnx", FIXABLE), "--fail-on", fail_on)[0] == code


def test_error_that_has_only_an_unsafe_fix_remains(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", HAZARD)
    out = output(1, "check", path)
    assert "RSH002" in out
    assert "--unsafe-fixes" in out


def test_clean_model_comes_out_byte_for_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", CLEAN)
    out = output(0, "apply", path, "-o", tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == path.read_bytes()
    assert "byte for byte" in out


def test_in_place_replaces_and_removes_its_backup(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    before = path.read_bytes()
    path.chmod(0o640)
    inode = path.stat().st_ino
    assert run("apply", "--in-place", path)[0] == 0
    assert path.read_bytes() != before
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_ino != inode, "written over instead of renamed: a crash would leave half a model"
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    stamp = path.stat().st_mtime_ns
    assert run("apply", "--in-place", path)[0] == 0
    assert path.stat().st_mtime_ns == stamp, "an unchanged model is not rewritten"


def test_in_place_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    before = path.read_bytes()
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    assert run("apply", "--in-place", link)[0] == 0
    assert link.is_symlink()
    assert path.read_bytes() != before


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    path = write(tmp_path / os.fsdecode(b"caf\xe9.onnx"), FIXABLE)
    report = tmp_path / os.fsdecode(b"\xe9.json")
    assert run("check", path, "--report", report)[0] == 0
    assert len(json.loads(report.read_bytes())["reports"]) == 1


@pytest.mark.parametrize(
    "options",
    [
        ["-o", "x.onnx", "--in-place"],
        ["--output-dir", "d", "--in-place"],
        ["--no-verify", "--require", "ort-cpu"],
        ["--no-verify", "--inputs", "x.npz"],
        ["--no-verify", "--input-shapes", "x:1x3"],
        ["--select", "NOPE"],
        ["--ignore", "CST999"],
        ["--target", "trt99"],
        ["--require", "rung"],
        ["--input-shapes", "nope:[1]"],
        ["--inputs", "missing.npz"],
        ["--fail-on", "maybe"],
        ["--output", ""],
        ["--save-engine", ""],
        ["--effort", ""],
    ],
    ids=" ".join,
)
def test_usage_errors(tmp_path: Path, options: list[str]) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    err = refused("apply", path, *options)
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_json_and_report_file_agree(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    code, document = told("apply", path, "--report", tmp_path / "r.json")
    assert code == 0
    assert json.loads((tmp_path / "r.json").read_text()) == document
    report = document["reports"][0]
    assert report["schema"] == 2
    assert report["output"] == str(tmp_path / "m.fixed.onnx")
    assert {rung["name"]: rung["status"] for rung in report["verdict"]["rungs"]}["ort-cpu"] == "passed"
    assert report["applied"][0]["code"].startswith("CST")
    assert document["errors"] == []


@pytest.mark.slow
def test_explain_and_rules() -> None:
    for rule in json.loads(run("rules", "--format", "json")[1]):
        out = output(0, "explain", rule["code"].lower())
        assert rule["documentation"].splitlines()[0] in out
    assert run("explain", "CST999")[0] == 2


@pytest.mark.slow
def test_no_color_and_no_bar_without_a_terminal(tmp_path: Path) -> None:
    result = process("apply", write(tmp_path / "m.onnx", FIXABLE))
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_verify_tells_models_apart(tmp_path: Path) -> None:
    a = write(tmp_path / "a.onnx", CLEAN)
    b = write(tmp_path / "b.onnx", CLEAN.replace("Neg", "Abs"))
    assert run("verify", a)[0] == 0
    assert run("verify", a, a)[0] == 0
    out = output(3, "verify", a, b)
    assert "failed" in out


def test_inputs_from_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    np.savez(tmp_path / "in.npz", x=np.ones(4, np.float32))
    assert run("apply", path, "--inputs", tmp_path / "in.npz")[0] == 0
    np.savez(tmp_path / "in.npz", z=np.ones(4, np.float32))
    err = errors(2, "apply", path, "--inputs", tmp_path / "in.npz")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ("check a.onnx", ">/dev/full"),
        ("check a.onnx --format json", ">/dev/full"),
        ("rules", ">/dev/full"),
        ("check a.onnx --format json", ">&-"),
        ("rules", "| true"),
    ],
)
def test_output_that_goes_nowhere(tmp_path: Path, arguments: str, where: str) -> None:
    """A full disk is an error; a reader that went away, or was never there, is none."""
    write(tmp_path / "a.onnx", FIXABLE)
    result = shell(f"$onnxfix {arguments} {where}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert result.returncode == (2 if "full" in where else 0)
    assert len(result.stderr.splitlines()) == ("full" in where), result.stderr


def test_reader_that_goes_away_does_not_stop_the_work(tmp_path: Path) -> None:
    write(tmp_path / "a.onnx", FIXABLE)
    write(tmp_path / "b.onnx", FIXABLE)
    result = shell("$onnxfix apply -v a.onnx b.onnx --no-verify | true; exit ${PIPESTATUS[0]}", tmp_path)
    assert (result.returncode, result.stderr) == (0, b"")
    assert (tmp_path / "b.fixed.onnx").is_file()


@pytest.mark.parametrize(
    "encoding", ["ascii", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cp1252", "utf-8"))]
)
def test_any_encoding(tmp_path: Path, encoding: str) -> None:
    write(tmp_path / "modèle 模.onnx", FIXABLE)
    for arguments in ("apply --no-verify *.onnx", "explain RSH002"):
        result = shell(f"$onnxfix {arguments}", tmp_path, PYTHONIOENCODING=encoding)
        assert (result.returncode, result.stderr) == (0, b"")
        result.stdout.decode(encoding)


EVIL = "\x1b[2J\x1b]0;t\x07\n  ort-cpu     passed\r\x9b31m\u202e[bold]x[/bold]"


def test_names_do_not_reach_the_terminal_as_commands(tmp_path: Path) -> None:
    """Escape sequences in names are shown, not obeyed; a line break does not forge a line of the report."""
    proto = model(FIXABLE, 18)
    for node in proto.graph.node:
        node.name = EVIL
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    proto.graph.node[1].input[0] = "gone"
    (tmp_path / "bad.onnx").write_bytes(proto.SerializeToString())
    for arguments in (["check"], ["check", "-v"], ["apply", "--no-verify"], ["apply", "-v", "--no-verify"]):
        _, out, err = run(*arguments, tmp_path / "m.onnx", tmp_path / "bad.onnx")
        assert "[bold]x[/bold]" in out
        assert not set(out + err) & set("\x1b\x07\r\x9b\u202e")
        assert not [line for line in out.splitlines() if line.startswith("  ort-cpu")]
    findings = json.loads(run("check", tmp_path / "m.onnx", "--format", "json")[1])["reports"][0]["findings"]
    assert any(EVIL in finding["place"]["text"] for finding in findings)


def test_very_long_names_are_cut(tmp_path: Path) -> None:
    proto = model(FIXABLE, 18)
    for node in proto.graph.node:
        node.name = "n" * 100_000
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert len(run("check", "-v", tmp_path / "m.onnx")[1]) < 20_000


def test_verify_shows_the_worst_element_of_each_output(tmp_path: Path) -> None:
    """Its error, what is allowed there, and the command that finds the node; the first element that differs is not
    the worst."""
    text = (
        "g (float[3] x) => (float[3] y, float[3] z) "
        "{{ c = Constant<value = float[3] {{{}}}>() y = Add(x, c) z = Mul(x, c) }}"
    )
    a = write(tmp_path / "a.onnx", text.format("1.0, 1.0, 1.0"))
    b = write(tmp_path / "b.onnx", text.format("1.01, 1.0, 6.0"))
    out = output(3, "verify", a, b, "--rungs", "ort-cpu")
    told = " ".join(out.split())
    for name in ("y", "z"):
        assert re.search(
            rf"output {name}: 2 of 3 elements are out of tolerance, worst at \[2\]: \S+ against \S+, off by \S+ "
            r"where [\d.e-]+ is allowed",
            told,
        )
    assert f"next onnxfix diagnose {a} {b}" in told


def test_models_that_fail_by_warnings_are_named_at_the_end(tmp_path: Path) -> None:
    models = [write(tmp_path / f"{name}.onnx", CLEAN if name == "b" else FIXABLE) for name in "abc"]
    code, out, _ = run("check", "--fail-on", "info", *models)
    ending = out[out.index("3 models") :]
    assert code == 1
    assert [name for name in "abc" if f"{name}.onnx" in ending] == ["a", "c"]
    assert "a.onnx" not in run("check", "--fail-on", "never", *models)[1].partition("3 models")[2]


def test_quiet_verify_says_the_outcome(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.onnx", CLEAN), write(tmp_path / "b.onnx", CLEAN.replace("Neg", "Abs"))
    assert re.fullmatch(rf"{re.escape(str(a))}  VERIFIED  \([\d.]+ s\)\n", run("verify", a, "-q")[1])
    told = run("verify", a, b, "-q")[1]
    assert re.fullmatch(rf"{re.escape(f'{a} against {b}')}  FAILED: reference, ort-cpu\b.*\n", told)
    out = output(3, "verify", a, "-q", "--require", "ort-cuda")
    assert re.fullmatch(
        f"{re.escape(str(a))}  NOT VERIFIED: ort-cuda was required and could not be run: .+\n", out
    )


def test_a_required_rung_without_its_package_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path / "a.onnx", FIXABLE)
    wanted = ["--require", "trt-build", "--trt-package", "tensorrt"]
    monkeypatch.setattr(
        "onnxfix.tensorrt.package.importlib.util.find_spec", lambda name: None
    )  # as on a machine without either package
    out = output(3, "apply", model, "-q", *wanted)
    (told,) = out.splitlines()
    assert (
        "NOT VERIFIED: trt-build was required and could not be run: tensorrt is not installed: "
        'pip install "onnxfix[tensorrt]"; nothing was written  (' in told
    )
    assert not (tmp_path / "a.fixed.onnx").exists()
    code, out, _ = run("verify", model, "-q", "--require", "trt-build")
    assert (code, "neither tensorrt nor tensorrt-rtx is installed" in out) == (3, True)


def test_nothing_replaces_a_model_of_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    other = write(tmp_path / "m.fixed.onnx", CLEAN)
    before = path.read_bytes(), other.read_bytes()
    for arguments in (
        ["check", path, "--report", path],
        ["apply", path, "--report", tmp_path / "m.fixed.onnx"],
        ["verify", path, other, "--report", other],
        ["apply", path, other],
    ):
        refused(*arguments)
    assert (path.read_bytes(), other.read_bytes()) == before


def test_external_data_moves_with_the_model(tmp_path: Path) -> None:
    path = external_model(tmp_path / "a")
    weights = (tmp_path / "a/weights/w.bin").read_bytes()
    assert run("apply", path, "--output-dir", tmp_path / "b")[0] == 0
    assert (tmp_path / "b/m.onnx.data").read_bytes() == weights
    fixed = onnx.load(tmp_path / "b/m.onnx")
    assert np.array_equal(numpy_helper.to_array(fixed.graph.initializer[0]), np.arange(256, dtype=np.float32))
    assert not [n for n in fixed.graph.node if n.op_type == "Cast"]
    assert sorted(one.name for one in (tmp_path / "b").iterdir()) == ["m.onnx", "m.onnx.data"]
    # Again: what lies there has the same bytes, and stays; of other bytes, it goes with the model that it belongs to.
    stamp = (tmp_path / "b/m.onnx.data").stat().st_mtime_ns
    assert run("apply", path, "--output-dir", tmp_path / "b")[0] == 0
    assert (tmp_path / "b/m.onnx.data").stat().st_mtime_ns == stamp
    (tmp_path / "b/m.onnx.data").write_bytes(bytes(1024))
    assert run("apply", path, "--output-dir", tmp_path / "b")[0] == 0
    assert (tmp_path / "b/m.onnx.data").read_bytes() == weights
    (tmp_path / "b/m.onnx").unlink()
    (tmp_path / "b/m.onnx.data").write_bytes(b"another's")
    err = errors(2, "apply", path, "--output-dir", tmp_path / "b")
    assert "m.onnx.data: is in the way" in err
    assert (tmp_path / "b/m.onnx.data").read_bytes() == b"another's"
