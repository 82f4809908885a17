"""``--format`` and ``--report``: what is written where, and what is refused before any work."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from support.cli import output, refused, run, streams
from support.cli_models import CLEAN, FIXABLE, write

KINDS = {
    "json": "r.json",
    "jsonl": "r.jsonl",
    "sarif": "r.sarif",
    "github": "github:r.txt",
    "gitlab": "r.gitlab.json",
    "junit": "r.xml",
    "markdown": "r.md",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and the reports of all kinds on both and on one that is missing."""
    folder = tmp_path_factory.mktemp("reports")
    models = [write(folder / "a.onnx", FIXABLE), folder / "gone.onnx", write(folder / "b.onnx", CLEAN)]
    reports = [word for name in (*KINDS.values(), "r.html") for word in ("--report", _at(folder, name))]
    out = output(2, "check", *models, *reports, "--format", "jsonl", "--fail-on", "info")
    (folder / "out.jsonl").write_text(out)
    return folder


def _at(folder: Path, name: str) -> str:
    kind, _, file = name.rpartition(":")
    return f"{kind}:{folder / file}" if kind else str(folder / file)


def test_every_report_of_a_run_is_written(folder: Path) -> None:
    document = json.loads((folder / "r.json").read_text())
    assert [Path(one["path"]).name for one in document["reports"]] == ["a.onnx", "b.onnx"]
    assert [Path(one["path"]).name for one in document["errors"]] == ["gone.onnx"]
    lines = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]
    assert lines[:2] == document["reports"]
    assert lines[2]["error"] == document["errors"][0]["message"]
    run_ = json.loads((folder / "r.sarif").read_text())["runs"][0]
    findings = [one for one in document["reports"] for one in one["findings"]]
    assert (
        len(run_["results"]) == len(findings) == len(json.loads((folder / "r.gitlab.json").read_text())) - 1
    )
    assert run_["invocations"][0]["exitCode"] == 2
    suites = {Path(one.get("name", "")).name: one for one in ET.parse(folder / "r.xml").getroot()}
    assert {name: (one.get("failures"), one.get("errors")) for name, one in suites.items()} == {
        "a.onnx": (str(len({one["code"] for one in findings})), "0"), "b.onnx": ("0", "0"), "gone.onnx": ("0", "1"),
    }  # fmt: skip
    assert "2 of 3 models fail" in (folder / "r.md").read_text()
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    assert (folder / "r.txt").read_text().startswith("::error file=")


def test_json_lines_come_one_for_each_model(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    document = json.loads((folder / "r.json").read_text())
    assert [one.get("path") for one in lines] == [
        *(one["path"] for one in document["reports"]), document["errors"][0]["path"]
    ]  # fmt: skip
    assert lines[0]["findings"] == document["reports"][0]["findings"]


def _errors(kind: str, text: str) -> list[str]:
    """The messages of the errors in a document."""
    if kind == "json":
        return [one["message"] for one in json.loads(text)["errors"]]
    if kind == "jsonl":
        return [json.loads(line)["error"] for line in text.splitlines()]
    if kind == "sarif":
        told = json.loads(text)["runs"][0]["invocations"][0]["toolExecutionNotifications"]
        return [one["message"]["text"] for one in told]
    if kind == "gitlab":
        return [one["description"] for one in json.loads(text)]
    if kind == "junit":
        return [str(one.get("message")) for one in ET.fromstring(text).iter("error")]
    lines = [line for line in text.splitlines() if line.startswith(("- ❌ ", "::error"))]
    return [line.replace("- ❌ ", "").replace("::error title=onnxfix error::", "") for line in lines]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wrong",
    [("--select", "NOPE"), ("--report", "r.txt"), ("--timing-cache", "t"), ("--fail-on", "x"), ("--seedd",)],
    ids=lambda one: one[0],
)
def test_a_usage_error_is_a_document(tmp_path: Path, kind: str, wrong: tuple[str, ...]) -> None:
    out, err = streams(2, "check", write(tmp_path / "m.onnx", CLEAN), *wrong, "--format", kind)
    (message,) = _errors(kind, out)
    assert message.replace("\\", "") == err.removeprefix("onnxfix: ").strip()


@pytest.mark.parametrize("name", ["html", "text", "tsv"])
def test_other_formats_get_an_error_on_standard_error_alone(tmp_path: Path, name: str) -> None:
    err = refused("check", tmp_path / "gone.onnx", "--format", name, "--seedd")
    assert "no such option" in err or "is not one of" in err


def test_kinds_are_known_before_any_work(tmp_path: Path) -> None:
    for command in (["check"], ["apply"], ["verify"]):
        err = refused(command[0], tmp_path / "gone.onnx", *command[1:], "--report", tmp_path / "r.txt")
        assert "the name does not say what kind of report to write" in err, command
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [("diagnose", "--against", "fp16"), ("layers",)], ids=lambda one: one[0])
def test_other_results_are_no_sarif(tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    for report, told in (
        ("r.sarif", "this command writes no sarif report; end the name in .json, .md"),
        ("r.txt", "the name does not say what kind of report to write"),
    ):
        assert told in refused(name, tmp_path / "gone.onnx", *options, "--report", tmp_path / report)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_does_not_keep_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxfix.files import atomic

    real = atomic.put

    def put(path: Path, data: Any) -> None:
        if path.name == "a.json":
            raise OSError(28, "No space left on device", str(path))
        real(path, data)

    monkeypatch.setattr(atomic, "put", put)
    path = write(tmp_path / "m.onnx", CLEAN)
    out, err = streams(2, "check", path, "--report", tmp_path / "a.json", "--report", tmp_path / "b.json")
    assert "a.json" in err
    assert "no findings" in out or "0 findings" in out
    assert json.loads((tmp_path / "b.json").read_text())["reports"]


def test_one_file_holds_one_report(tmp_path: Path) -> None:
    path, report = write(tmp_path / "m.onnx", CLEAN), tmp_path / "r.json"
    code, _, err = run("check", path, "--report", report, "--report", f"markdown:{report}")
    assert (code, "is also --report" in err) == (2, True)
    assert not report.exists()


@pytest.mark.slow
def test_a_diagnosis_is_markdown_too(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", FIXABLE)
    out = output(0, "diagnose", path, path, "--format", "markdown", "--report", tmp_path / "d.md")
    assert out.startswith("## ✅ `")
    assert (tmp_path / "d.md").read_text() == out
