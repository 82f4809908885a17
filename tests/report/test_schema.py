"""The published JSON Schemas: real reports fit them, nothing in a report is missing from them, and they can fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from onnxfix.report.render.documents import Kind, render_document
from support.cli import run
from support.cli_models import FIXABLE, write
from support.paths import ROOT
from support.real_tensorrt import REAL
from support.reports import REPORTS

sys.path.insert(0, str(ROOT / "docs"))

FOLDER = ROOT / "docs" / "schema"
FIXTURES = ROOT / "fixtures"


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda report: report.pop("findings"), "'findings' is a required property"),
    (lambda report: report.update(new=1), "'new' was unexpected"),
    (lambda report: report.update(schema=1), "2 was expected"),
    (lambda report: report["findings"][0]["place"].update(index="1"), "'1' is not of type 'integer'"),
    (lambda report: report["summary"].update(proof="surely"), "'surely' is not one of"),
]
"""What would be wrong in a report, and what is said of it."""


def strict(schema: Any) -> Any:
    """The same schema, which allows no other keys."""
    if isinstance(schema, Mapping):
        closed = {key: strict(value) for key, value in schema.items()}
        if closed.get("type") == "object" and "properties" in closed:
            closed.setdefault("additionalProperties", False)
        return closed
    return [strict(one) for one in schema] if isinstance(schema, list) else schema


def validator(name: str, part: str = "") -> jsonschema.Draft202012Validator:
    """Of a published schema, or of a definition in it; no other keys are allowed, at any depth."""
    schema = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    chosen = strict(schema)
    if part:
        chosen = {"$schema": schema["$schema"], "$ref": f"#/$defs/{part}", "$defs": chosen["$defs"]}
    return jsonschema.Draft202012Validator(chosen)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The documents of a check, an apply and a verify, and the lines of jsonl."""
    folder = tmp_path_factory.mktemp("schema")
    path = write(folder / "m.onnx", FIXABLE)
    found = {
        "check": run("check", path, folder / "gone.onnx", "--inputs-help", "--format", "json")[1],
        "apply": run("apply", path, "--rungs", "ort-cpu,reference", "--format", "json")[1],
        "verify": run("verify", path, folder / "m.fixed.onnx", "--rungs", "ort-cpu", "--format", "json")[1],
        "wrong": run("check", path, "--select", "NOPE", "--format", "json")[1],
    }
    documents = {name: json.loads(text) for name, text in found.items()}
    lines = run("check", path, folder / "gone.onnx", "--format", "jsonl")[1].splitlines()
    return {**documents, "lines": [json.loads(line) for line in lines]}


def test_reports_of_all_kinds_fit_the_schema() -> None:
    text = render_document(
        Kind.json, list(REPORTS.values()), [("gone.onnx", "no such file")], ["a pack is broken"]
    )
    document = json.loads(text)
    check = validator("report-2.schema.json")
    check.validate(document)
    for change, told in CHANGES:
        changed = json.loads(text)
        change(changed["reports"][list(REPORTS).index("error")])
        (error,) = check.iter_errors(changed)
        assert told in error.message


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "apply", "verify", "wrong"])
def test_reports_fit_the_schema(documents: dict[str, Any], command: str) -> None:
    document = documents[command]
    assert document["reports"] or document["errors"]
    validator("report-2.schema.json").validate(document)


@pytest.mark.slow
def test_lines_fit_the_schema(documents: dict[str, Any]) -> None:
    assert len(documents["lines"]) == 2
    for line in documents["lines"]:
        validator("report-2.schema.json", "Line").validate(line)


@REAL
@pytest.mark.slow
def test_reports_with_tensorrt_fit_the_schema(tmp_path: Path) -> None:
    models = [FIXTURES / "misread" / "decoder.onnx", FIXTURES / "trt" / "reduce_axes_from_range.onnx"]
    for command in (["apply", "--output-dir", tmp_path], ["check", "--trt"]):
        document = json.loads(run(command[0], *models, *command[1:], "--format", "json")[1])
        assert len(document["reports"]) == 2
        validator("report-2.schema.json").validate(document)
    document = json.loads(run("verify", models[0], "--batch-sweep", "--format", "json")[1])
    validator("report-2.schema.json").validate(document)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("misread/decoder.onnx", "--against", "fp16"),
        ("diagnose/encoder_outlier.onnx", "--against", "bf16"),
        pytest.param(("misread/decoder.onnx", "--against", "trt-network"), marks=REAL),
    ],
    ids=" ".join,
)
def test_diagnoses_fit_the_schema(arguments: tuple[str, ...]) -> None:
    document = json.loads(run("diagnose", FIXTURES / arguments[0], *arguments[1:], "--format", "json")[1])
    assert document["outputs"]
    validator("diagnosis-1.schema.json").validate(document)
